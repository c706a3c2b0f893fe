"""Masking of MacBERT, ERNIE, DistilBERT and ModernBERT, in 20,000 rows each, against their published rules."""

import collections
import dataclasses
import math

import numpy as np
import pytest

from plm_jax import objectives
from plm_jax.common.errors import UserError
from plm_jax.objectives.similar_words import SimilarWords, pack

ROWS = 20_000
# Few random ids are ids of the text, which are below 1,000.
SPECIAL = objectives.Special(pad=0, unk=1, cls=2, sep=3, mask=4, vocab_size=10**7)
MACBERT = {"mask_share": 0.0, "similar_share": 0.8, "whole_words": 4, "ngram_weights": (0.4, 0.3, 0.2, 0.1)}


def row(sizes):
    """Returns [CLS], words with these numbers of tokens, [SEP]. Text ids increase from 100."""
    tokens = np.array([2, *range(100, 100 + sum(sizes)), 3], np.int32)
    return {"tokens": tokens, "word_starts": 1 + np.cumsum([0, *sizes[:-1]])}


def near(count, draws, share, errors=4.5):
    """Whether a binomial count is within some standard errors of its mean."""
    return abs(count - draws * share) <= errors * math.sqrt(draws * share * (1 - share)) + 1e-9


def positions(result):
    return result["target_positions"][result["target_weights"] > 0]


def similar_words(sizes, has_similar):
    """Returns a table in which the first similar word of a word has its ids + 1,000, and the second + 2,000."""
    tokens, starts = row(sizes)["tokens"], row(sizes)["word_starts"]
    words = {}
    for start, size, listed in zip(starts, sizes, has_similar, strict=True):
        word = tuple(tokens[start : start + size].tolist())
        if listed:
            words[word] = tuple(tuple(token + shift for token in word) for shift in (1000, 2000))
    return SimilarWords(pack(words))


def test_macbert_replaces_words_by_similar_words():
    """80 % similar, 10 % random, 10 % unchanged, drawn per word; without similar words 90 % random; never the mask."""
    sizes = [1, 2, 3, 1] * 4
    has_similar = [True, True, True, False] * 4
    special = dataclasses.replace(SPECIAL, similar_words=similar_words(sizes, has_similar))
    objective, example = objectives.get("masked_lm", special, rate=0.3, **MACBERT), row(sizes)
    rng, kinds, seconds = np.random.default_rng(0), collections.Counter(), 0
    before, starts = example["tokens"], example["word_starts"]
    for _ in range(ROWS):
        result = objective(example, rng)
        chosen = np.zeros(len(before), bool)
        chosen[positions(result)] = True
        assert not (result["tokens"] == SPECIAL.mask).any()
        for start, size, listed in zip(starts, sizes, has_similar, strict=True):
            if not chosen[start]:
                continue
            shift = result["tokens"][start : start + size] - before[start : start + size]
            kind = {0: "kept", 1000: "similar", 2000: "similar"}.get(int(shift[0]), "random")
            assert kind == "random" or (shift == shift[0]).all()
            assert chosen[start : start + size].all() and (kind != "random" or not np.isin(shift, (1000, 2000)).any())
            seconds += shift[0] == 2000
            kinds[listed, kind] += 1
    listed, unlisted = (sum(count for (has, _), count in kinds.items() if has == of) for of in (True, False))
    for kind, share in {"similar": 0.8, "random": 0.1, "kept": 0.1}.items():
        assert near(kinds[True, kind], listed, share)
    assert near(kinds[False, "kept"], unlisted, 0.1) and kinds[False, "similar"] == 0
    assert near(seconds, kinds[True, "similar"], 0.5)


def test_random_words_of_macbert_are_never_the_mask():
    special = objectives.Special(mask=4, vocab_size=7)
    settings = {"rate": 1.0, "mask_share": 0.0, "random_share": 0.5, "similar_share": 0.5, "whole_words": 1}
    objective, rng = objectives.get("masked_lm", special, **settings), np.random.default_rng(0)
    counts = np.bincount(np.concatenate([objective(row([1] * 60), rng)["tokens"][1:-1] for _ in range(100)]))
    assert counts[4] == 0 and all(near(count, 6200, 1 / 6) for count in counts[[0, 1, 2, 3, 5, 6]])


def test_macbert_weighs_ngrams():
    """Four tokens in n-grams of .4/.3/.2/.1, the last one shortened to the rest, among 400 words that rarely touch."""
    length = 400
    objective = objectives.get("masked_lm", SPECIAL, rate=4 / (length + 2), **MACBERT)
    rng, example, counts = np.random.default_rng(1), row([1] * length), collections.Counter()
    for _ in range(ROWS):
        at = positions(objective(example, rng))
        counts[tuple(sorted(map(len, np.split(at, np.flatnonzero(np.diff(at) > 1) + 1))))] += 1
    expected = {
        (4,): 0.1,
        (1, 3): 0.4 * 0.3 + 0.2,
        (2, 2): 0.3 * 0.6,
        (1, 1, 2): 0.4 * 0.4 * 0.6 + 0.4 * 0.3 + 0.3 * 0.4,
        (1, 1, 1, 1): 0.4**3,
    }
    assert counts.keys() == expected.keys() and abs(sum(expected.values()) - 1) < 1e-12
    for runs, share in expected.items():
        # Two n-grams touch in about 3 % of the rows.
        assert abs(counts[runs] - ROWS * share) < 4.5 * math.sqrt(ROWS * share) + ROWS * 0.03


def test_ernie_chooses_units_independently():
    """Each unit with probability .15 whatever the others; then 80/10/10 for each of its tokens; no budget."""
    sizes = [1, 2, 4, 2, 1, 3] * 4
    objective, example = objectives.get("masked_lm", SPECIAL, independent=True, whole_words=1), row(sizes)
    rng, starts = np.random.default_rng(2), example["word_starts"]
    chosen, masked, kinds = np.zeros((ROWS, len(sizes)), bool), [], np.zeros(3)
    for number in range(ROWS):
        result = objective(example, rng)
        at, after = positions(result), result["tokens"]
        of_token = np.isin(np.arange(len(after)), at)
        chosen[number] = of_token[starts]
        np.testing.assert_array_equal(of_token[1:-1], np.repeat(chosen[number], sizes))
        is_mask, is_kept = after[at] == SPECIAL.mask, after[at] == example["tokens"][at]
        kinds += is_mask.sum(), is_kept.sum(), (~is_mask & ~is_kept).sum()
        pairs = starts[chosen[number] & (np.array(sizes) == 2)]
        masked.append(((after[pairs] == SPECIAL.mask) & (after[pairs + 1] == SPECIAL.mask)).mean() if len(pairs) else 0)
    assert all(near(count, ROWS, 0.15) for count in chosen.sum(0))
    for count, share in zip(kinds, (0.8, 0.1, 0.1), strict=True):
        assert near(count, kinds.sum(), share)
    with_pairs = chosen[:, np.array(sizes) == 2].any(1)
    assert abs(np.mean(np.array(masked)[with_pairs]) - 0.64) < 0.015
    # The variance of the number of units is binomial, so that no budget couples them.
    variance, expected = chosen.sum(1).var(), len(sizes) * 0.15 * 0.85
    assert abs(variance / expected - 1) < 5 * math.sqrt(2 / ROWS)


def test_modernbert_draws_every_token_independently():
    """30 % of the tokens, each independently; slots for five standard deviations more than the mean."""
    length = 128
    objective = objectives.get("masked_lm", SPECIAL, rate=0.3, independent=True)
    rng, example, chosen = np.random.default_rng(3), row([1] * (length - 2)), np.zeros((ROWS, length), bool)
    slots = objective.settings.target_length(length)
    assert slots == math.ceil(length * 0.3 + 5 * math.sqrt(length * 0.3 * 0.7))
    for number in range(ROWS):
        result = objective(example, rng)
        assert result["targets"].shape == (slots,)
        chosen[number, positions(result)] = True
    assert not chosen[:, [0, -1]].any() and all(near(count, ROWS, 0.3) for count in chosen[:, 1:-1].sum(0))
    numbers = chosen.sum(1)
    assert abs(numbers.var() / ((length - 2) * 0.3 * 0.7) - 1) < 5 * math.sqrt(2 / ROWS)
    assert numbers.max() < slots
    neighbors = (chosen[:, 1:-2] & chosen[:, 2:-1]).mean()
    assert abs(neighbors - 0.09) < 0.001


@pytest.mark.parametrize("whole_words", [0, 1])
def test_independent_draws_beyond_the_slots_are_a_random_subset(whole_words, monkeypatch):
    """Ten units of two tokens, all of them chosen, and slots for six tokens."""
    sizes = [2] * 10 if whole_words else [1] * 20
    monkeypatch.setattr(objectives.MaskedLM, "target_length", lambda self, length: 6)
    objective = objectives.get("masked_lm", SPECIAL, rate=1.0, independent=True, whole_words=whole_words)
    rng, counts = np.random.default_rng(4), np.zeros(22)
    for _ in range(ROWS // 5):
        at = positions(objective(row(sizes), rng))
        assert len(at) == 6
        counts[at] += 1
    assert all(near(count, ROWS // 5, 0.3) for count in counts[1:-1])


def test_independent_draws_may_choose_nothing():
    objective = objectives.get("masked_lm", SPECIAL, rate=0.01, independent=True)
    result = objective(row([1] * 8), np.random.default_rng(5))
    assert not result["target_weights"].any() and result["tokens"].tolist() == row([1] * 8)["tokens"].tolist()


@pytest.mark.parametrize(("num", "smoothing"), [(1, 0.7), (4, 0.5)])
def test_rare_tokens_are_drawn_more_often(num, smoothing):
    """Tokens are drawn one after another with probability ∝ count^-smoothing, without replacement."""
    num_tokens, rng = 20, np.random.default_rng(6)
    counts = np.concatenate([[10**6], 10 ** rng.uniform(0, 6, num_tokens), [10**6]]).astype(np.int64)
    counts[5] = 0  # Only in validation.
    weights = np.maximum(counts[1:-1], 1) ** -smoothing
    example = row([1] * num_tokens) | {"token_counts": counts}
    objective = objectives.get("masked_lm", SPECIAL, rate=num / (num_tokens + 2), smoothing=smoothing)
    drawn, expected = np.zeros(num_tokens), np.zeros(num_tokens)
    for _ in range(ROWS):
        at = positions(objective(example, rng)) - 1
        assert len(at) == num
        drawn[at] += 1
        left = weights.copy()
        for _ in range(num):
            token = int(np.searchsorted(np.cumsum(left), rng.random() * left.sum(), side="right"))
            expected[token], left[token] = expected[token] + 1, 0
    if num == 1:
        expected = ROWS * weights / weights.sum()
    assert (abs(drawn - expected) <= 5 * np.sqrt(2 * expected) + 5).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ngram_weights": (0.4, 0.3), "whole_words": 3}, "one weight for each number of words"),
        ({"ngram_weights": (0.0, 0.0), "whole_words": 2}, "at least one of them above 0"),
        ({"ngram_weights": (1.0,)}, "one weight for each number of words"),
        ({"independent": True, "whole_words": 2}, "set it to 1"),
        ({"smoothing": 0.7, "whole_words": 1}, "smoothing applies to single tokens"),
        ({"smoothing": 0.7, "independent": True}, "smoothing applies to single tokens"),
        ({"independent": True, "max_predictions": 20}, "independent draws have no maximum"),
        ({"similar_share": 0.1}, "set whole_words"),
        ({"similar_share": 0.2, "whole_words": 1}, "their sum must be at most 1"),
    ],
)
def test_contradictions_are_one_line(settings, message):
    with pytest.raises(UserError, match=message) as error:
        objectives.get("masked_lm", SPECIAL, **settings)
    assert "\n" not in str(error.value)


def test_smoothed_translation_lm_never_predicts_special_tokens():
    objective = objectives.get("translation_lm", SPECIAL, rate=0.9, independent=False, smoothing=0.5)
    example = row([1] * 8) | {"token_counts": np.array([0, *[10**6] * 8, 0])}
    assert positions(objective(example, np.random.default_rng(7))).tolist() == list(range(1, 9))


def test_spans_have_neither_weights_nor_independent_draws():
    similar, grams = {"mask_share": 0.5, "similar_share": 0.1}, {"ngram_weights": (1.0,)}
    for settings in ({"smoothing": 0.7}, {"independent": True}, similar, grams):
        with pytest.raises(UserError, match="do not apply to spans"):
            objectives.get("span_masked_lm", SPECIAL, **settings)


def test_tables_of_similar_words_are_checked():
    table = pack({(5,): [(6,), (7,)], (1, 2): [(3, 4)]})
    words = SimilarWords(table)
    assert len(words) == 2
    rng = np.random.default_rng(0)
    assert {tuple(np.array(words.draw(np.array([5]), rng))) for _ in range(20)} == {(6,), (7,)}
    np.testing.assert_array_equal(words.draw(np.array([1, 2]), rng), [3, 4])
    assert words.draw(np.array([2, 1]), rng) is None
    assert len(SimilarWords(table[:0])) == 0
    for damaged in (table[:-1], table[1:], np.append(table, 1)):
        with pytest.raises(UserError, match="invalid at value"):
            SimilarWords(damaged)
