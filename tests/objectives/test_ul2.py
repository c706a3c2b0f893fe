"""UL2's mixture against its table."""

import collections
import json

import numpy as np
import pytest

from plm_jax import objectives
from plm_jax.common import trees
from plm_jax.common.errors import UserError

T5 = objectives.Special(pad=0, eos=1, unk=2, sentinels=tuple(range(32_099, 31_999, -1)), vocab_size=32_100)
MODES = dict(zip((32_002, 32_001, 32_000), "RSX", strict=True))


def parts(row):
    """Returns the mode and the tokens between a row's sentinels, up to eos."""
    row = row.tolist()
    row = row[: row.index(1)]
    mode = MODES.get(row[0])
    row = row[1:] if mode else row
    seams = [i for i, token in enumerate(row) if token >= 32_000]
    assert [row[i] for i in seams] == list(T5.sentinels[: len(seams)])
    return mode, [row[a + 1 : b] for a, b in zip([-1, *seams], [*seams, len(row)], strict=True)]


def test_table_of_denoisers():
    """Table 1 of Tay et al. 2022, as (mode, corruption rate, mean span length)."""
    assert [(d.mode, d.noise_density, d.mean_span_length) for d in objectives.UL2().denoisers if d.mode != "S"] == [
        *[("R", 0.15, 3), ("R", 0.15, 8)],
        *[("X", 0.5, 3), ("X", 0.5, 8), ("X", 0.15, 64), ("X", 0.5, 64)],
    ]


def test_rows_of_512():
    """The row fits the tokens of the regular kind of mean length 3 into 511; the extreme kind has the most targets."""
    objective = objectives.get("ul2", T5)
    num_tokens = objectives.get("span_corruption", T5).input_length(511)
    assert objective.input_length(512) == num_tokens == 567
    assert objective.settings.target_length(512) == 284 + 95 + 1
    rng = np.random.default_rng(0)
    counts, text = collections.Counter(), list(range(100, 100 + num_tokens))
    draws = 3000
    for _ in range(draws):
        result = objective({"tokens": np.array(text)}, rng)
        assert (len(result["tokens"]), len(result["targets"])) == (512, 380)
        mode, clean = parts(result["tokens"])
        no_mode, noise = parts(result["targets"])
        assert not noise[0] and no_mode is None
        joined = [*clean[0]]
        for cut, after in zip(noise[1:], clean[1:], strict=True):
            joined += cut + after
        assert joined == text
        counts[mode, sum(map(len, noise)), len(noise) - 1] += 1
    # Noise tokens: 567 × 0.15, × 0.25 and × 0.5, rounded half to even. Spans: noise tokens / mean length.
    expected = {
        **{("R", 85, 28): 0.2, ("R", 85, 11): 0.2, ("S", 142, 1): 0.2},
        **{("X", 284, 95): 0.1, ("X", 284, 36): 0.1, ("X", 85, 1): 0.1, ("X", 284, 4): 0.1},
    }
    assert set(counts) == set(expected)
    assert all(abs(counts[k] - draws * p) < 4 * np.sqrt(draws * p * (1 - p)) for k, p in expected.items())


@pytest.mark.parametrize("length", [32, 64, 128, 200, 256, 1024])
def test_rows_of_other_lengths_fit_any_kind(length):
    many = objectives.Special(pad=0, eos=1, sentinels=tuple(range(9999, 5000, -1)), vocab_size=10_000)
    objective, rng = objectives.get("ul2", many), np.random.default_rng(0)
    tokens = np.full(objective.input_length(length), 7)
    for _ in range(60):
        result = objective({"tokens": tokens}, rng)
        assert len(result["tokens"]) == length
        assert result["tokens"][int(result["mask"].sum()) - 1] == 1
        assert result["targets"][int(result["target_weights"].sum()) - 1] == 1
        assert np.count_nonzero(result["tokens"] == 7) + np.count_nonzero(result["targets"] == 7) == len(tokens)


def test_last_quarter_is_sequential():
    objective = objectives.UL2((objectives.Denoiser(0.25, 1e9, "S"),))
    result = objectives.BoundObjective(objective, T5)({"tokens": np.arange(100, 140)}, np.random.default_rng(0))
    assert parts(result["tokens"]) == ("S", [list(range(100, 130)), []])
    assert parts(result["targets"]) == (None, [[], list(range(130, 140))])


def test_settings_survive_round_trip():
    result = objectives.UL2((objectives.Denoiser(0.3, 5.0, "X", 2.0),))
    tree = json.loads(json.dumps(trees.to_dict(result)))
    assert tree["kind"] == "ul2" and trees.parse(objectives.Objective, tree, "config.objective") == result


def test_invalid_settings_are_rejected():
    for wrong, message in (
        ({"mode": "Q"}, "mode is 'Q'"),
        ({"rate": -0.5}, "rate is -0.5"),
        ({"noise_density": 2.0}, "2.0"),
    ):
        with pytest.raises(UserError, match=message):
            trees.parse(objectives.UL2, {"denoisers": [wrong]}, "config.objective")
    with pytest.raises(UserError, match="no rate above 0"):
        objectives.get("ul2", denoisers=(objectives.Denoiser(rate=0.0),))
    with pytest.raises(UserError, match="needs 98 sentinels per row, but the vocabulary has 3"):
        few = objectives.Special(eos=1, sentinels=(9, 8, 7))
        objectives.get("ul2", few)({"tokens": np.arange(567)}, np.random.default_rng(0))
