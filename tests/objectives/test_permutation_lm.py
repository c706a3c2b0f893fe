"""Spans and orders of permutation language modeling against the published code and its laws."""

import itertools

import numpy as np
import pytest

from plm_jax import objectives
from plm_jax.objectives import permutation_lm
from tests.support import xlnet_rows

SEP, CLS, EOS, TEXT = 4, 3, 7, 10
SPECIAL = objectives.Special(pad=0, cls=CLS, sep=SEP, eos=EOS, vocab_size=1000)
# A number in [0, 1) that stands for each length of a span.
DRAWS = [sum(xlnet_rows.GRAM_WEIGHTS[:n]) / sum(xlnet_rows.GRAM_WEIGHTS) + 0.01 for n in range(5)]


def half(rng, size=256):
    """Returns whether each of `size` tokens begins a word, as three of four do."""
    return rng.random(size) < 0.75


def lengths_of(gram, by_words):
    """Returns the lengths of the spans that begin in 2,000 halves of rows, all for the same draw."""
    rng, lengths = np.random.default_rng(0), []
    for _ in range(2000):
        draws = np.array([[DRAWS[gram - 1], rng.random()]])
        lengths += [stop - start for start, stop in permutation_lm.draw_spans(half(rng), 10**6, by_words, draws)]
    return lengths


@pytest.mark.parametrize("gram", [1, 2, 3, 4, 5])
def test_published_spans_count_tokens_and_corrected_ones_words(gram):
    assert set(lengths_of(gram, by_words=False)) == {gram}
    assert np.mean(lengths_of(gram, by_words=True)) == pytest.approx(gram / 0.75, rel=0.02)


def test_lengths_of_spans_have_inverse_probabilities():
    rng, counts = np.random.default_rng(0), np.zeros(6)
    for _ in range(300):
        for start, stop in permutation_lm.draw_spans(np.ones(10_000, bool), 10**6, False, rng.random((100, 2))):
            counts[stop - start] += 1
    weights = np.array(xlnet_rows.GRAM_WEIGHTS)
    np.testing.assert_allclose(counts[1:] / counts.sum(), weights / weights.sum(), atol=0.01)


def test_published_spans_reach_36_of_43_tokens():
    rng, chosen = np.random.default_rng(0), []
    for _ in range(1000):
        spans = permutation_lm.draw_spans(half(rng), 43, False, rng.random((43, 2)))
        chosen.append(sum(stop - start for start, stop in spans))
    assert np.mean(chosen) == pytest.approx(36, abs=1) and max(chosen) <= 43


@pytest.mark.parametrize("size", [7, 40, 256])
@pytest.mark.parametrize("by_words", [False, True])
def test_targets_of_half_a_row_equal_the_source(by_words, size):
    differ = 0
    for seed in range(600 if size < 256 else 100):
        rng, goal = np.random.default_rng(seed), 1 + seed % (size // 3)
        starts = half(rng, size)
        draws, order = rng.random((goal, 2)), rng.permutation(size)
        expected, in_spans = xlnet_rows.choose_tokens(starts, goal, draws, order, by_words)
        spans = permutation_lm.draw_spans(starts, goal, by_words, draws)
        assert sum(stop - start for start, stop in spans) == in_spans
        rng = np.random.default_rng(seed)
        half(rng, size)
        chosen = permutation_lm.draw_targets(starts, goal, by_words, False, rng)
        np.testing.assert_array_equal(chosen, expected)
        assert chosen.sum() == goal
        differ += xlnet_rows.choose_tokens(starts, goal, draws, order, not by_words)[0] != expected
        if by_words:
            assert all(starts[start] and starts[stop] for start, stop in spans)
    assert differ > 50


def example(length=40, num_real=40):
    """Returns [CLS] text [SEP] text [SEP] and padding, with tokens that count from TEXT; each begins a word."""
    tokens = np.where(np.arange(length) < num_real, TEXT + np.arange(length), 0)
    tokens[[0, num_real // 2, num_real - 1]] = CLS, SEP, SEP
    mask = (np.arange(length) < num_real).astype(np.int32)
    return {"tokens": tokens, "mask": mask, "word_starts": np.arange(num_real)}


@pytest.mark.parametrize(("num_real", "limits"), [(40, (10, 10)), (30, (10, 5)), (20, (10, 0)), (13, (6, 0))])
def test_padded_rows_have_a_share_of_the_targets(num_real, limits):
    objective = objectives.get("permutation_lm", SPECIAL, num_predict=20)
    source, positions = example(num_real=num_real), []
    for seed in range(200):
        row = objective(source, np.random.default_rng(seed))
        drawn = row["target_positions"][row["target_weights"] > 0]
        np.testing.assert_array_equal(row["tokens"], source["tokens"])
        np.testing.assert_array_equal(row["targets"][: len(drawn)], source["tokens"][drawn])
        assert row["order"][num_real:].max(initial=0) in (0, 41)
        assert np.count_nonzero(drawn < 20) <= limits[0] and np.count_nonzero(drawn >= 20) <= limits[1]
        positions += drawn.tolist()
    text = set(range(num_real)) - {0, num_real // 2, num_real - 1}
    if not limits[1]:
        text &= set(range(20))
    assert set(positions) == text


def test_rows_depend_on_the_generator_alone_and_keep_their_columns():
    columns = {name: np.arange(40, dtype=np.int32) for name in ("token_types", "segment_ids", "positions")}
    source = example() | columns
    objective = objectives.get("permutation_lm", SPECIAL)
    first, second, other = (objective(source, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_equal(first, second)
    assert not np.array_equal(first["order"], other["order"])
    for name, column in columns.items():
        np.testing.assert_array_equal(first[name], column)
    assert len(first["targets"]) == 40 // 6 and objectives.get("permutation_lm").settings.target_length(512) == 85


def test_separators_and_special_tokens_begin_words():
    tokens = np.where(np.arange(40) % 5 == 2, EOS, TEXT)
    tokens[[9, 24, 39]] = SEP, SEP, CLS
    objective = objectives.get("permutation_lm", SPECIAL, num_predict=12)
    for seed in range(50):
        row = objective({"tokens": tokens, "word_starts": np.zeros(0, np.int64)}, np.random.default_rng(seed))
        rng, expected = np.random.default_rng(seed), []
        for part in (tokens[:20], tokens[20:]):
            draws, order = rng.random((6, 2)), rng.permutation(20)
            expected += xlnet_rows.choose_tokens((part < TEXT).tolist(), 6, draws, order)[0]
        np.testing.assert_array_equal(row["order"] % 41 > 0, np.array(expected) | np.isin(tokens, (SEP, CLS)))


def test_backward_rows_choose_spans_of_the_text_read_forward():
    """Words of three tokens begin at the right in a backward row, so published spans end at their first tokens."""
    positions = np.arange(60, dtype=np.int32)[::-1]
    tokens = np.arange(60) + TEXT
    objective = objectives.get("permutation_lm", SPECIAL, num_predict=4)
    for seed in range(100):
        words = np.arange(60)[positions % 3 == 0]
        rng = np.random.default_rng(seed)
        row = objective({"tokens": tokens, "word_starts": words, "positions": positions}, rng)
        rng, forward = np.random.default_rng(seed), []
        for begin, end in ((0, 30), (30, 60)):
            starts = np.isin(np.arange(begin, end), words)[::-1]
            chosen = permutation_lm.draw_targets(starts, 2, False, False, rng)[::-1]
            forward += (begin + chosen.nonzero()[0]).tolist()
        assert row["target_positions"].tolist() == forward


@pytest.mark.parametrize("perm_size", [0, 5, 64])
def test_order_is_random_within_parts_of_each_half(perm_size):
    is_ranked = np.random.default_rng(0).random(40) < 0.6
    orders = []
    for seed in range(400):
        order = permutation_lm.draw_order(is_ranked, perm_size, np.random.default_rng(seed))
        first, second = order[:20], order[20:]
        assert first[~is_ranked[:20]].max() == 0 < first[is_ranked[:20]].min()
        assert first.max() + 1 <= second.min() and len(set(second[is_ranked[20:]])) == is_ranked[20:].sum()
        assert set(second[~is_ranked[20:]]) == {second.min()} and second[is_ranked[20:]].min() > second.min()
        orders.append(order)
    positions = is_ranked.nonzero()[0]
    size = min(perm_size or 20, 20)
    for before, after in itertools.combinations(positions.tolist(), 2):
        share = np.mean([order[before] < order[after] for order in orders])
        if before // size == after // size:
            assert 0.35 < share < 0.65
        else:
            assert share == 1
