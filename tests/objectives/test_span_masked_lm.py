import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from plm_jax import objectives
from plm_jax.common.errors import UserError

SPECIAL = objectives.Special(pad=0, unk=1, cls=2, sep=3, mask=4, vocab_size=1000)
# First id of text, above the special ids. Random ids are 0 to 999 and rarely equal the text's.
TEXT = 10_000


def row(length, num_real=None, seed=0):
    """Returns [CLS] text [SEP] text [SEP] and padding. Text ids are TEXT plus their position; words begin at random."""
    num_real = length if num_real is None else num_real
    tokens = np.zeros(length, np.int32)
    tokens[:num_real] = TEXT + np.arange(num_real)
    tokens[0], tokens[num_real // 2], tokens[num_real - 1] = 2, 3, 3
    (word_starts,) = np.random.default_rng(seed).integers(0, 2, length).nonzero()
    return {"tokens": tokens, "mask": (np.arange(length) < num_real).astype(np.int32), "word_starts": word_starts}


def runs_of(positions):
    """Returns lists of consecutive positions."""
    spans = []
    for position in positions.tolist():
        if spans and spans[-1][-1] == position - 1:
            spans[-1].append(position)
        else:
            spans.append([position])
    return spans


@hypothesis_settings(deadline=None)
@given(
    st.integers(3, 80),
    st.integers(0, 40),
    st.floats(0.01, 1),
    st.floats(0.05, 0.9),
    st.integers(1, 12),
    st.sampled_from(["span", "token"]),
    st.integers(0, 99),
)
def test_budget_boundaries_and_shapes(num_real, padding, rate, p, max_words, replacement, seed):
    length, options = num_real + padding, {"geometric_p": p, "max_words": max_words, "replacement": replacement}
    objective = objectives.get("span_masked_lm", SPECIAL, rate=rate, **options)
    example = row(length, num_real, seed)
    before = example["tokens"].copy()
    result = objective(example, np.random.default_rng(seed))
    slots = math.ceil(length * rate)
    free = set(range(num_real)) - {0, num_real // 2, num_real - 1}
    num = min(slots, math.ceil(len(free) * rate), len(free))
    names = ("targets", "target_positions", "target_left", "target_right", "target_offsets")
    assert {name: result[name].shape for name in names} == dict.fromkeys(names, (slots,))
    assert {result[name].dtype.name for name in names} == {"int32"}
    assert result["target_weights"].tolist() == [1] * num + [0] * (slots - num)
    assert not any(result[name][num:].any() for name in names)
    positions = result["target_positions"][:num]
    assert set(positions.tolist()) <= free and len(set(positions.tolist())) == num
    want = [(span[0] - 1, span[-1] + 1, i) for span in runs_of(positions) for i in range(len(span))]
    assert list(zip(*(result[name][:num].tolist() for name in names[2:]), strict=True)) == want
    restored = result["tokens"].copy()
    restored[positions] = result["targets"][:num]
    np.testing.assert_array_equal(restored, before)
    np.testing.assert_array_equal(example["tokens"], before)


@hypothesis_settings(deadline=None)
@given(st.integers(3, 60), st.floats(0.05, 1), st.floats(0.05, 0.9), st.integers(1, 12), st.integers(0, 99))
def test_spans_equal_token_by_token_rule(length, rate, p, max_words, seed):
    """Uses the same draws: an order of the free tokens, and a number of words for each."""
    example, rng = row(length, seed=seed), np.random.default_rng(seed)
    free = sorted(set(range(length)) - {0, length // 2, length - 1})
    begins = {i for i in free if i in example["word_starts"] or i - 1 not in free}
    chances = (1 - p) ** np.arange(max_words)
    ends = (chances.cumsum() / chances.sum()).tolist()[:-1]
    num, taken = math.ceil(len(free) * rate), set()
    for anchor, draw in zip(rng.permutation(free).tolist(), rng.random(len(free)).tolist(), strict=True):
        if anchor not in taken:
            begin, words = max(i for i in begins if i <= anchor), 1 + sum(end <= draw for end in ends)
            while begin in free and (words := words - (begin in begins)) >= 0 and len(taken) < num:
                taken.add(begin)
                begin += 1
    result = objectives.get("span_masked_lm", SPECIAL, rate=rate, geometric_p=p, max_words=max_words)(
        example, np.random.default_rng(seed)
    )
    assert result["target_positions"][result["target_weights"] > 0].tolist() == sorted(taken)


def test_lengths_are_geometric_up_to_ten():
    """Long rows with few spans, so that hardly any touch; a word is a token. Mean 3.797 (the paper says 3.8)."""
    objective, rng = (
        objectives.get("span_masked_lm", SPECIAL, rate=0.002, max_predictions=10**6),
        np.random.default_rng(0),
    )
    length, lengths = 2**17, []
    tokens = np.full(length, TEXT)
    for _ in range(8):  # A million tokens.
        result = objective({"tokens": tokens}, rng)
        spans = runs_of(result["target_positions"][result["target_weights"] > 0])
        lengths += [len(span) for span in spans]
        assert sum(map(len, spans)) == math.ceil(0.002 * length)
    chances = 0.2 * 0.8 ** np.arange(10) / (1 - 0.8**10)
    mean = (chances * np.arange(1, 11)).sum()
    assert abs(mean - 3.797) < 1e-3
    deviation = np.sqrt((chances * np.arange(1, 11) ** 2).sum() - mean**2)
    assert abs(np.mean(lengths) - mean) < 4 * deviation / np.sqrt(len(lengths))
    counts = np.bincount(lengths, minlength=11)[1:11]
    assert (abs(counts - len(lengths) * chances) < 4 * np.sqrt(len(lengths) * chances)).all()


@pytest.mark.parametrize("replacement", ["span", "token"])
def test_spans_are_replaced_whole_or_by_token(replacement):
    """Over a million tokens, within four standard errors; a random id is the mask one time in a thousand."""
    objective, rng = objectives.get("span_masked_lm", SPECIAL, replacement=replacement), np.random.default_rng(2)
    tokens, kinds, mixed, spans = TEXT + np.arange(512), np.zeros(3), 0, 0
    for _ in range(2000):
        result = objective({"tokens": tokens}, rng)
        at = result["target_positions"]
        new, first = result["tokens"][at], result["target_offsets"] == 0
        kind = np.where(new == SPECIAL.mask, 0, np.where(new == tokens[at], 1, 2))
        kinds += np.bincount(kind[first] if replacement == "span" else kind, minlength=3)
        spans += first.sum()
        mixed += (kind[1:] != kind[:-1])[~first[1:]].sum()
    total = kinds.sum()
    assert total == (spans if replacement == "span" else 2000 * math.ceil(0.15 * 512))
    for count, share in zip(kinds, (0.8 + 1e-4, 0.1, 0.1 - 1e-4), strict=True):
        assert abs(count - total * share) < 4 * np.sqrt(total * share * (1 - share))
    # Neighbors within a span are of one kind, except for those random ids, or differ like independent draws.
    neighbours = 2000 * math.ceil(0.15 * 512) - spans
    share = 0.1 * 2 * 1e-3 * (1 - 1e-3) if replacement == "span" else 1 - 0.8001**2 - 0.1**2 - 0.0999**2
    assert abs(mixed - neighbours * share) < 4 * np.sqrt(3 * neighbours * share)


def test_row_without_text_has_no_target():
    for tokens in ([2, 3], [5], [2, 9], []):
        result = objectives.get("span_masked_lm", SPECIAL)(
            {"tokens": np.array(tokens, np.int32)}, np.random.default_rng(0)
        )
        assert (result["tokens"].tolist(), result["target_weights"].tolist()) == (tokens, [0])


def test_worked_example():
    """One word of three pieces: 0.6 of three tokens are two, and there are slots for 0.6 of the row's five."""
    tokens, starts = np.array([2, 50, 51, 52, 3]), np.array([1])
    objective = objectives.get("span_masked_lm", SPECIAL, rate=0.6, mask_share=1.0, random_share=0.0)
    result = objective({"tokens": tokens, "word_starts": starts}, np.random.default_rng(0))
    assert {name: value.tolist() for name, value in result.items() if name != "mask"} == {
        "tokens": [2, 4, 4, 52, 3],
        "targets": [50, 51, 0],
        "target_positions": [1, 2, 0],
        "target_weights": [1.0, 1.0, 0.0],
        "target_left": [0, 0, 0],
        "target_right": [3, 3, 0],
        "target_offsets": [0, 1, 0],
    }


def test_invalid_settings_are_rejected():
    for wrong in ({"geometric_p": 0.0}, {"geometric_p": 1.0}, {"max_words": 0}, {"rate": 0.0}):
        with pytest.raises(UserError, match=rf"config.objective.{next(iter(wrong))} is .*: must be"):
            objectives.get("span_masked_lm", SPECIAL, **wrong)
