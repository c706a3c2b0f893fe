import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from plm_jax import objectives
from plm_jax.common.errors import UserError

BERT = objectives.Special(pad=0, unk=1, cls=2, sep=3, mask=4, vocab_size=1000)


def row(length, num_real=None):
    """Returns [CLS] text [SEP] and padding. Text ids increase from 100, so each is its position + 99."""
    num_real = length if num_real is None else num_real
    tokens = np.zeros(length, np.int32)
    tokens[:num_real] = [2, *range(100, 98 + num_real), 3]
    return {"tokens": tokens, "mask": (np.arange(length) < num_real).astype(np.int32)}


def restored(result):
    """Returns the row with its targets restored."""
    tokens, real = result["tokens"].copy(), result["target_weights"] > 0
    tokens[result["target_positions"][real]] = result["targets"][real]
    return tokens


@hypothesis_settings(deadline=None)
@given(st.integers(3, 60), st.integers(0, 40), st.sampled_from([0, 1, 5, 20]), st.floats(0.01, 1), st.integers(0, 99))
def test_budget_targets_and_shapes(num_real, padding, max_predictions, rate, seed):
    length = num_real + padding
    objective = objectives.get("masked_lm", BERT, rate=rate, max_predictions=max_predictions)
    example = row(length, num_real)
    before = example["tokens"].copy()
    result = objective(example, np.random.default_rng(seed))
    slots = max_predictions or max(1, round(length * rate))
    expected = min(slots, max(1, round(num_real * rate)), num_real - 2)
    assert {k: (v.shape, v.dtype.name) for k, v in result.items()} == {
        "tokens": ((length,), "int32"),
        "mask": ((length,), "int32"),
        "targets": ((slots,), "int32"),
        "target_positions": ((slots,), "int32"),
        "target_weights": ((slots,), "float32"),
    }
    assert result["target_weights"].tolist() == [1] * expected + [0] * (slots - expected)
    positions = result["target_positions"]
    assert (np.diff(positions[:expected]) > 0).all() and positions[0] > 0 and positions.max() < num_real - 1
    assert not positions[expected:].any() and not result["targets"][expected:].any()
    np.testing.assert_array_equal(restored(result), before)
    np.testing.assert_array_equal(example["tokens"], before)
    np.testing.assert_array_equal(result["mask"], example["mask"])


@pytest.mark.parametrize(("rate", "mask_share", "random_share"), [(0.15, 0.8, 0.1), (0.4, 0.5, 0.2)])
def test_shares_equal_settings(rate, mask_share, random_share):
    """Counts over a million tokens are within four standard errors of their binomial distributions."""
    draws, length = 2000, 512
    objective = objectives.get("masked_lm", BERT, rate=rate, mask_share=mask_share, random_share=random_share)
    rng = np.random.default_rng(0)
    at, kinds, random = np.zeros(length), np.zeros(3), []
    for _ in range(draws):
        result = objective(row(length), rng)
        new = result["tokens"][result["target_positions"]]
        same, masked = new == result["targets"], new == BERT.mask
        kinds += masked.sum(), same.sum(), (~same & ~masked).sum()
        random.append(new[~same & ~masked])
        at[result["target_positions"]] += 1
    total = draws * round(rate * length)
    assert at.sum() == total
    chance = 1 / BERT.vocab_size  # Probability that a random id is the mask, or the token itself.
    unchanged = random_share * chance
    kept_share = 1 - mask_share - random_share
    for count, share in zip(
        kinds, (mask_share + unchanged, kept_share + unchanged, random_share - 2 * unchanged), strict=True
    ):
        assert abs(count - total * share) < 4 * np.sqrt(total * share * (1 - share))
    assert at[0] == at[-1] == 0
    share = round(rate * length) / (length - 2)
    assert (abs(at[1:-1] - draws * share) < 4 * np.sqrt(draws * share * (1 - share))).all()
    # Uniform over the whole vocabulary, including special ids, so quarters have equal counts.
    random = np.concatenate(random)
    quarters = np.bincount(random * 4 // BERT.vocab_size, minlength=4)
    assert (abs(quarters - len(random) / 4) < 4 * np.sqrt(len(random) * 3 / 16)).all()
    assert random.min() < 100 and (random >= 0).all() and random.max() < BERT.vocab_size


def test_subsets_of_positions_are_equally_likely():
    objective = objectives.get("masked_lm", BERT, rate=0.4)
    rng = np.random.default_rng(1)
    draws = 3000
    pairs = [tuple(objective(row(6), rng)["target_positions"]) for _ in range(draws)]
    counts = np.array([pairs.count((i, j)) for i in range(1, 5) for j in range(i + 1, 5)])
    assert counts.sum() == draws
    assert (abs(counts - draws / 6) < 4 * np.sqrt(draws * 5 / 36)).all()


def test_separators_stay_and_other_keys_pass():
    tokens = np.array([2, 9, 3, 9, 3, 0], np.int32)
    other_keys = {
        "token_types": np.array([0, 0, 0, 1, 1, 0], np.int32),
        "positions": np.arange(6, dtype=np.int32),
        "segment_ids": np.array([1, 1, 1, 1, 1, 0], np.int32),
        "pair_label": np.int32(1),
    }
    mask = np.array([1, 1, 1, 1, 1, 0], np.int32)
    result = objectives.get("masked_lm", BERT, rate=1.0)(
        {"tokens": tokens, "mask": mask, **other_keys}, np.random.default_rng(0)
    )
    assert result["target_positions"].tolist() == [1, 3, 0, 0, 0, 0]
    assert result["target_weights"].tolist() == [1, 1, 0, 0, 0, 0]
    for key, value in other_keys.items():
        np.testing.assert_array_equal(result[key], value)
    assert result["pair_label"].shape == ()


@pytest.mark.parametrize("seed", range(20))
def test_row_follows_its_draws(seed):
    """Covers padding at any position, all kinds of ids, and each target."""
    special = objectives.Special(pad=0, bos=7, eos=5, cls=2, sep=3, mask=4, vocab_size=1000)
    rng = np.random.default_rng(seed)
    tokens, mask = rng.choice([*range(8), 999, 50_000], 40), rng.integers(0, 2, 40)
    tokens[30:], mask[30:] = 0, 0
    result = objectives.get("masked_lm", special, rate=0.5, mask_share=0.4, random_share=0.3)(
        {"tokens": tokens, "mask": mask}, np.random.default_rng(seed)
    )
    free = [i for i in range(40) if mask[i] and tokens[i] not in (7, 5, 2, 3)]
    num = min(max(1, round(mask.sum() * 0.5)), len(free))
    rng, want = np.random.default_rng(seed), tokens.tolist()
    at = sorted(free[i] for i in rng.random(len(free)).argsort()[:num])
    for i, draw, random in zip(at, rng.random(num), rng.random(num), strict=True):
        want[i] = 4 if draw < 0.4 else int(random * 1000) if draw < 0.4 + 0.3 else want[i]
    assert result["tokens"].tolist() == want
    assert result["target_positions"].tolist() == at + [0] * (20 - num)


def test_published_budgets():
    """google-research/bert: 20 predictions at length 128; round(19.2) of a whole row are used."""
    objective = objectives.get("masked_lm", BERT, max_predictions=20)
    assert objective(row(128), np.random.default_rng(0))["target_weights"].sum() == 19
    # Python rounds half to even: 2.5 to 2, 1.5 to 2.
    quarter = objectives.get("masked_lm", BERT, rate=0.25)
    assert [quarter(row(n), np.random.default_rng(0))["target_weights"].sum() for n in (10, 6, 4)] == [2, 2, 1]


def test_row_of_special_ids_has_no_target():
    result = objectives.get("masked_lm", BERT)({"tokens": np.array([2, 3])}, np.random.default_rng(0))
    assert (result["tokens"].tolist(), result["target_weights"].tolist()) == ([2, 3], [0])


def test_invalid_settings_are_rejected():
    with pytest.raises(UserError, match=r"set config.vocabulary.mask"):
        objectives.get("masked_lm")(row(8), np.random.default_rng(0))
    for wrong in ({"rate": 0.0}, {"max_predictions": -1}, {"mask_share": 0.95}, {"random_share": -0.1}):
        with pytest.raises(UserError, match=rf"config.objective.*{next(iter(wrong))} .*must be"):
            objectives.get("masked_lm", BERT, **wrong)
