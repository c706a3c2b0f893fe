import collections
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from plm_jax import objectives
from plm_jax.common.errors import UserError
from plm_jax.objectives import span_corruption

T5 = objectives.Special(pad=0, eos=1, unk=2, sentinels=tuple(range(32_099, 31_999, -1)), vocab_size=32_100)
MANY = objectives.Special(pad=0, eos=1, sentinels=tuple(range(10**6, 0, -1))[:2000], vocab_size=10**6 + 1)


def corrupt(num_tokens, seed=0, padding=0, special=MANY, **settings):
    """Corrupts the tokens 100, 101, …"""
    tokens = np.pad(np.arange(100, 100 + num_tokens), (0, padding))
    example = {"tokens": tokens} | ({"mask": tokens > 0} if padding else {})
    return objectives.get("span_corruption", special, **settings)(example, np.random.default_rng(seed))


def spans(row, special=MANY):
    """Returns the tokens between a row's sentinels, up to eos. The first item precedes the first sentinel."""
    row = row.tolist()
    parts, order = [[]], iter(special.sentinels)
    for token in row[: row.index(special.eos)]:
        if token >= special.sentinels[-1]:
            assert token == next(order)
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def lengths(result):
    """Returns the lengths of the clean spans and of the noise spans, in order."""
    *clean, last = spans(result["tokens"])
    first, *noise = spans(result["targets"])
    assert not last and not first
    return [len(s) for s in clean], [len(s) for s in noise]


@pytest.mark.parametrize(
    "length, num_tokens, target_length",
    [(128, 141, 29), (256, 284, 58), (512, 568, 114), (1024, 1137, 229), (2048, 2274, 456)],
)
def test_published_lengths(length, num_tokens, target_length):
    """Lengths of t5's `random_spans_helper`."""
    objective = objectives.get("span_corruption", MANY)
    assert (objective.input_length(length), objective.stride(length)) == (num_tokens, num_tokens)
    assert objective.settings.target_length(length) == target_length
    result = objective({"tokens": np.arange(100, 100 + num_tokens)}, np.random.default_rng(0))
    assert {k: (v.shape, v.dtype.name) for k, v in result.items()} == {
        "tokens": ((length,), "int32"),
        "mask": ((length,), "int32"),
        "decoder_tokens": ((target_length,), "int32"),
        "targets": ((target_length,), "int32"),
        "target_weights": ((target_length,), "float32"),
    }
    # Rows have no padding: their last token is eos.
    assert result["tokens"][-1] == result["targets"][-1] == 1
    assert result["mask"].all() and result["target_weights"].all()


def test_sentinels_equal_t5():
    result = corrupt(20, special=T5)
    assert result["targets"][0] == result["decoder_tokens"][1] == 32_099
    assert [t for t in result["tokens"] if t >= 32_000] == [t for t in result["targets"] if t >= 32_000] == [32_099]
    assert result["decoder_tokens"][0] == 0


@hypothesis_settings(deadline=None)
@given(st.integers(1, 300), st.integers(0, 40), st.floats(0.05, 0.6), st.floats(1, 10), st.integers(0, 99))
def test_inputs_and_targets_reconstruct_the_text(num_tokens, padding, density, mean, seed):
    result = corrupt(num_tokens, seed, padding, noise_density=density, mean_span_length=mean)
    clean, noise = spans(result["tokens"]), spans(result["targets"])
    text = [*clean[0]]
    for cut, after in zip(noise[1:], clean[1:], strict=True):
        text += cut + after
    assert text == list(range(100, 100 + num_tokens))
    num_noise = max(1, min(round(num_tokens * density), num_tokens - 1))
    assert sum(map(len, noise)) == num_noise
    assert len(noise) - 1 == max(1, min(round(num_noise / mean), num_tokens - num_noise))
    assert all(noise[1:]) and not noise[0] and not clean[-1]
    assert all(clean[:-1]) or num_tokens == 1
    for row, real in (("tokens", "mask"), ("targets", "target_weights")):
        end = result[row].tolist().index(1) + 1
        assert result[real].tolist() == [1] * end + [0] * (len(result[row]) - end)
        assert not result[row][end:].any()
    assert result["decoder_tokens"].tolist() == [0, *result["targets"][:-1]]
    whole = corrupt(num_tokens + padding, seed, noise_density=density, mean_span_length=mean)
    assert {k: v.shape for k, v in result.items()} == {k: v.shape for k, v in whole.items()}


def test_partitions_are_uniform():
    """Compares with all partitions of 6 into 3 nonempty parts, also in rows."""
    rng = np.random.default_rng(0)
    compositions = [c for c in itertools.product(range(1, 7), repeat=3) if sum(c) == 6]
    draws = 4000
    counts = collections.Counter(
        tuple(np.diff(span_corruption._partition(6, 3, rng), prepend=0).tolist()) for _ in range(draws)
    )
    assert set(counts) == set(compositions)
    share = 1 / len(compositions)
    assert all(abs(n - draws * share) < 4 * np.sqrt(draws * share * (1 - share)) for n in counts.values())


def test_spans_are_uniform_and_independent():
    """10 tokens, 4 of them noise in 2 spans: 5 partitions of the clean tokens times 3 of the noise."""
    draws = 1500
    counts = collections.Counter(
        str(lengths(corrupt(10, seed, noise_density=0.4, mean_span_length=2.0))) for seed in range(draws)
    )
    assert len(counts) == 15
    assert all(abs(n - draws / 15) < 4 * np.sqrt(draws * 14 / 225) for n in counts.values())


def test_span_lengths_over_a_million_tokens():
    """(n - k - 1 choose s - 2) of the partitions of n tokens into s parts begin with a part of k."""
    rows = []
    for seed in range(1761):
        result = corrupt(568, seed)
        clean, noise = (np.flatnonzero(result[name] > 10**5) for name in ("tokens", "targets"))
        rows.append((np.diff(clean, prepend=-1) - 1, np.diff(noise, append=113) - 1))
    for which, num_tokens in ((0, 568 - 85), (1, 85)):
        for k in (1, 2, 3, 5, 8, 13, 21):
            share = math.comb(num_tokens - k - 1, 26) / math.comb(num_tokens - 1, 27)
            counts = [np.count_nonzero(row[which] == k) for row in rows]
            assert abs(np.mean(counts) - 28 * share) < 4 * np.std(counts) / len(rows) ** 0.5, (which, k)
        assert {int(row[which].sum()) for row in rows} == {num_tokens}


@hypothesis_settings(deadline=None)
@given(st.integers(3, 700), st.sampled_from([(0.15, 3.0), (0.15, 2.0), (0.25, 5.0), (0.5, 3.0), (0.1, 10.0)]))
def test_rows_of_every_length_are_full(length, settings):
    """The largest number of tokens that fits, found by increments like in t5."""
    density, mean = settings

    def encoder_length(n):
        noise = max(1, min(round(n * density), n - 1))
        return n - noise + max(1, round(noise / mean)) + 1

    expected = 2
    while encoder_length(expected + 1) <= length:
        expected += 1
    objective = objectives.get("span_corruption", MANY, noise_density=density, mean_span_length=mean)
    assert objective.input_length(length) == expected
    result = objective({"tokens": np.arange(100, 100 + expected)}, np.random.default_rng(0))
    assert (len(result["tokens"]), len(result["targets"])) == (length, objective.settings.target_length(length))


def test_stream_has_no_separator():
    kinds = {kind: objectives.get(kind, T5).separator for kind in ("causal", "masked_lm", "span_corruption")}
    assert kinds == {"causal": 1, "masked_lm": 1, "span_corruption": None}
    bert = objectives.Special(cls=2, sep=3, mask=4)
    assert objectives.get("masked_lm", bert).separator == 3


def test_invalid_settings_are_rejected():
    with pytest.raises(UserError, match=r"28 sentinels per row, but the vocabulary has 2: set config.vocabulary.sent"):
        corrupt(568, special=objectives.Special(eos=1, sentinels=(9, 8)))
    with pytest.raises(UserError, match=r"set config.vocabulary.eos"):
        corrupt(20, special=objectives.Special(sentinels=(9, 8)))
    with pytest.raises(UserError, match=r"attend_across_documents to True"):
        objectives.get("span_corruption", T5)({"tokens": np.arange(9), "segment_ids": np.ones(9)}, None)
    with pytest.raises(UserError, match=r"cannot make a row of length 1: change config.data.length"):
        objectives.get("span_corruption", T5).input_length(1)
    with pytest.raises(UserError, match=r"cannot make a row of length 4"):
        objectives.get("span_corruption", T5, noise_density=0.5, mean_span_length=1.0).input_length(4)
    for wrong in ({"noise_density": 0.0}, {"noise_density": 1.0}, {"mean_span_length": 0.5}):
        with pytest.raises(UserError, match=rf"config.objective.{next(iter(wrong))} is .*: must be"):
            objectives.get("span_corruption", T5, **wrong)
