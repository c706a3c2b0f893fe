"""Masks of DeBERTa, one n-gram per window from left to right, against a walk over the words and closed forms."""

import bisect
import itertools

import numpy as np
import pytest

from plm_jax import objectives
from plm_jax.common.errors import UserError

SPECIAL = objectives.Special(pad=0, unk=1, cls=2, sep=3, mask=4, vocab_size=1000)
PUBLISHED = {"windows": True, "whole_words": 3, "max_predictions": 96}


class Draws:
    """A generator that returns prepared numbers, and counts how many were used."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def __call__(self, count):
        return self.rng.random((count, 2)).tolist()


def walk(words, length, most, draws):
    """Returns the masked positions: an n-gram from each window of 6 n words, then words until the budget is reached."""
    pairs, chosen, offset = iter(draws), [False] * len(words), 0
    shares = list(itertools.accumulate(1 / n for n in range(1, most + 1)))
    while offset < len(words):
        of_size, of_place = next(pairs)
        gram = 1 + bisect.bisect(shares, of_size * shares[-1])
        context = min(gram * 6, len(words) - offset)
        first = offset + int(of_place * context)
        last = min(first + gram, len(words))
        for number in range(first, last):
            chosen[number] = True
        offset = max(offset + context, last)
    budget, masked = max(1, round(length * 0.15)), []
    for number, word in enumerate(words):
        if chosen[number]:
            masked += word
            if len(masked) >= budget:
                break
    return masked


@pytest.mark.parametrize("whole_words", [0, 1, 3])
def test_masks_equal_a_walk_over_words(whole_words):
    objective = objectives.get("masked_lm", SPECIAL, windows=True, whole_words=whole_words, max_predictions=96)
    sizes_rng = np.random.default_rng(0)
    for seed in range(1000):
        sizes = sizes_rng.integers(1, 5, sizes_rng.integers(1, 130)).tolist()
        length = sum(sizes) + 2
        tokens = np.array([2, *range(100, 100 + sum(sizes)), 3], np.int32)
        starts = np.cumsum([1, *sizes])
        words = [list(range(*bounds)) for bounds in itertools.pairwise(starts.tolist())]
        units = words if whole_words else [[position] for position in range(1, length - 1)]
        result = objective({"tokens": tokens, "word_starts": starts[:-1]}, np.random.default_rng(seed))
        expected = walk(units, length, max(1, whole_words), Draws(seed)(len(units)))[:96]
        np.testing.assert_array_equal(result["target_positions"][result["target_weights"] > 0], expected)
        np.testing.assert_array_equal(result["targets"][: len(expected)], tokens[expected])


def test_a_sixth_of_the_words_is_drawn_and_the_end_of_a_full_row_never_predicted():
    """With words of one token, 77 of 510 tokens: about the first 462 have a rate of a sixth."""
    objective = objectives.get("masked_lm", SPECIAL, **PUBLISHED)
    tokens = np.array([2, *range(100, 610), 3], np.int32)
    example = {"tokens": tokens, "word_starts": np.arange(1, 511)}
    counts, numbers = np.zeros(512), []
    for seed in range(2000):
        result = objective(example, np.random.default_rng(seed))
        positions = result["target_positions"][result["target_weights"] > 0]
        counts[positions] += 1
        numbers.append(len(positions))
    assert abs(counts[10:400].mean() / 2000 - 1 / 6) < 0.004
    assert counts[-20:].max() == 0 and max(numbers) == 77


def test_unknown_tokens_and_masks_are_not_predicted():
    objective = objectives.get("masked_lm", SPECIAL, windows=True, rate=0.9)
    tokens = np.array([2, *[1, 4, 100] * 10, 3], np.int32)
    result = objective({"tokens": tokens}, np.random.default_rng(0))
    assert set(result["targets"][result["target_weights"] > 0]) == {100}


def test_replaced_tokens_are_all_masked_in_the_recipe_of_v3():
    objective = objectives.get(
        "replaced_token", SPECIAL, windows=True, max_predictions=80, mask_share=1.0, discriminator_weight=10.0
    )
    tokens = np.array([2, *range(100, 610), 3], np.int32)
    result = objective({"tokens": tokens}, np.random.default_rng(0))
    positions = result["target_positions"][result["target_weights"] > 0]
    assert len(positions) == 77 and (result["tokens"][positions] == 4).all()
    np.testing.assert_array_equal((positions - 1) // 6, np.arange(77))  # One per window of six tokens.


@pytest.mark.parametrize(("field", "value"), [("independent", True), ("smoothing", 0.5)])
def test_other_draws_are_rejected(field, value):
    with pytest.raises(UserError, match="windows"):
        objectives.MaskedLM(windows=True, **{field: value})
