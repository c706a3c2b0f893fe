"""Whole-word and n-gram masking against the published procedures and closed forms."""

import collections
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from plm_jax import objectives
from plm_jax.common.errors import UserError

BERT = objectives.Special(pad=0, unk=1, cls=2, sep=3, mask=4, vocab_size=1000)


def row(lengths):
    """Returns [CLS], words of these sizes, [SEP], and `word_starts` without the first word, which is implied."""
    tokens = np.array([2, *range(100, 100 + sum(lengths)), 3], np.int32)
    return {"tokens": tokens, "word_starts": 1 + np.cumsum(lengths)[:-1]}


def masked(result):
    return result["target_positions"][result["target_weights"] > 0]


def runs(positions):
    """Returns the sorted lengths of the runs of consecutive positions."""
    return tuple(sorted(len(run) for run in np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)))


@hypothesis_settings(deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=40),
    st.integers(1, 4),
    st.floats(0.01, 1),
    st.sampled_from([0, 3, 20]),
    st.integers(0, 99),
)
def test_whole_words_fill_the_budget(lengths, longest, rate, max_predictions, seed):
    objective = objectives.get("masked_lm", BERT, rate=rate, whole_words=longest, max_predictions=max_predictions)
    example = row(lengths)
    before = example["tokens"].copy()
    result = objective(example, np.random.default_rng(seed))
    at = masked(result)
    np.testing.assert_array_equal(example["tokens"], before)
    budget = min(max(1, round(len(before) * rate)), max_predictions or len(before), sum(lengths))
    assert len(at) <= budget and len(result["targets"]) == (max_predictions or max(1, round(len(before) * rate)))
    restored = result["tokens"].copy()
    restored[at] = before[at]
    np.testing.assert_array_equal(restored, before)
    np.testing.assert_array_equal(result["targets"][: len(at)], before[at])
    ends = 1 + np.cumsum(lengths)
    left = []
    for size, end in zip(lengths, ends, strict=True):
        inside = np.isin(np.arange(end - size, end), at)
        assert inside.all() or not inside.any()
        left += [] if inside.any() else [size]
    # Each word begins a run once, and a run is shortened to its first word before it is dropped.
    assert longest > 1 or all(size > budget - len(at) for size in left)


def test_words_beyond_budget_are_never_masked():
    """Two of four words are longer than the budget of 3 tokens of a row of 20."""
    objective, example = objectives.get("masked_lm", BERT, whole_words=1), row([7, 2, 6, 3])
    positions = {p for seed in range(200) for p in masked(objective(example, np.random.default_rng(seed))).tolist()}
    assert positions == {8, 9, 16, 17, 18}
    assert objective.settings.count_unmaskable(example, BERT) == (13, 18)
    nothing = objective(row([9, 9]), np.random.default_rng(0))
    assert (
        nothing["target_weights"].tolist() == [0, 0, 0] and nothing["tokens"].tolist() == row([9, 9])["tokens"].tolist()
    )
    assert objective.settings.count_unmaskable(row([9, 9]), BERT) == (18, 18)
    assert objectives.MaskedLM().count_unmaskable(row([9, 9]), BERT) == (0, 18)


def test_words_are_equally_likely():
    """1e6 tokens in words of two: each word's count within four standard errors."""
    objective, draws, words = objectives.get("masked_lm", BERT, whole_words=1), 2000, 250
    rng = np.random.default_rng(0)
    counts = np.zeros(words)
    for _ in range(draws):
        at = masked(objective(row([2] * words), rng))
        assert len(at) == 2 * (round(0.15 * (2 * words + 2)) // 2)
        counts += np.bincount((at[::2] - 1) // 2, minlength=words)
    share = counts.sum() / draws / words
    assert (abs(counts - draws * share) < 4 * np.sqrt(draws * share * (1 - share))).all()


def test_ngram_lengths_have_probability_1_over_n():
    """Three tokens of 800 words: the possible runs, which rarely touch."""
    length, draws = 800, 2500
    objective = objectives.get("masked_lm", BERT, rate=3 / (length + 2), whole_words=3)
    rng = np.random.default_rng(0)
    example = row([1] * length)
    counts = collections.Counter(runs(masked(objective(example, rng))) for _ in range(draws))
    p1, p2, p3 = 6 / 11, 3 / 11, 2 / 11
    expected = {(3,): p3, (1, 2): p2 + p1 * (p2 + p3), (1, 1, 1): p1 * p1}
    for kinds, share in expected.items():
        assert abs(counts[kinds] - draws * share) < 4 * np.sqrt(draws * share * (1 - share)) + draws * 6 / length
    assert set(counts) == set(expected)


def test_ngrams_at_row_end_are_shorter_like_in_albert():
    """All orders of three words and all lengths, enumerated: two tokens of them, up to three words a time.

    A length is drawn with the same chances at every word, and a slice of the words behind it is what there is.
    """
    chances, expected = np.array([6, 3, 2]) / 11, collections.Counter()
    for order in itertools.permutations(range(3)):
        for sizes in itertools.product((1, 2, 3), repeat=3):
            taken = set()
            for word in order:
                size = sizes[word]
                while size and len(taken) + len(range(3)[word : word + size]) > 2:
                    size -= 1
                if not taken & set(range(3)[word : word + size]):
                    taken |= set(range(3)[word : word + size])
            expected[tuple(sorted(taken))] += np.prod([chances[size - 1] for size in sizes]) / 6
    objective, draws = objectives.get("masked_lm", BERT, rate=2 / 5, whole_words=3), 8_000
    rng, example = np.random.default_rng(0), row([1] * 3)
    counts = collections.Counter(tuple((masked(objective(example, rng)) - 1).tolist()) for _ in range(draws))
    assert set(counts) == set(expected) and abs(sum(expected.values()) - 1) < 1e-12
    for words, share in expected.items():
        assert abs(counts[words] - draws * share) < 4 * np.sqrt(draws * share * (1 - share)), words


def test_rate_of_two_fifths():
    rng = np.random.default_rng(0)
    for longest in (0, 1, 3):
        result = objectives.get("masked_lm", BERT, rate=0.4, whole_words=longest)(row([1] * 510), rng)
        assert result["target_weights"].sum() == len(result["targets"]) == 205


def test_words_begin_after_separators_and_special_tokens_stay():
    tokens = np.array([2, 10, 11, 3, 12, 13, 3, 0], np.int32)
    example = {"tokens": tokens, "mask": (tokens > 0).astype(np.int32), "word_starts": np.array([2])}
    objective = objectives.get("masked_lm", BERT, rate=2 / 7, whole_words=1)
    masked_sets = {tuple(masked(objective(example, np.random.default_rng(seed))).tolist()) for seed in range(60)}
    assert masked_sets == {(1, 2), (4, 5)}


def test_row_without_words_has_no_target():
    result = objectives.get("masked_lm", BERT, whole_words=3)(
        {"tokens": np.array([2, 3]), "word_starts": np.array([], np.int64)}, np.random.default_rng(0)
    )
    assert (result["tokens"].tolist(), result["target_weights"].tolist()) == ([2, 3], [0])


def test_invalid_settings_are_rejected():
    objective = objectives.get("masked_lm", BERT, whole_words=1)
    assert objective.reads == ("word_starts",) and objectives.get("masked_lm", BERT).reads == ()
    with pytest.raises(UserError, match="needs `word_starts` in each example"):
        objective({"tokens": np.arange(10, 20)}, np.random.default_rng(0))
    for wrong in ("whole_words", "duplicates"):
        with pytest.raises(UserError, match=rf"config.objective.{wrong} is -1: must be between 0 and"):
            objectives.get("masked_lm", BERT, **{wrong: -1})
