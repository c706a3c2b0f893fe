"""Pairs whose order is the task (ALBERT), and pairs of single sentences (RoBERTa's SENTENCE-PAIR)."""

import itertools

import numpy as np
import pytest

from plm_jax import config, objectives
from plm_jax.data import layouts

MASKED_LM = objectives.get("masked_lm", objectives.Special(pad=0, cls=1, sep=2, mask=3, vocab_size=60_000))
FIRST = 4


def examples(source, length=16, **settings):
    """(A, B, label) of each pair of all passes, as numbers of tokens in the text."""
    layout = config.SentencePairs(**settings).open(layouts.RowRequest.of(source, "train", length, MASKED_LM))
    pairs = []
    for item in range(layout._passes[-1]):
        row = layout.example(item, layouts.generator(5, "draws", item))
        real = row["mask"] > 0
        tokens, types = row["tokens"][real], row["token_types"][real]
        assert (tokens[0], tokens[-1], tokens[types == 0][-1]) == (1, 2, 2)
        a, b = tokens[types == 0][1:-1] - FIRST, tokens[types == 1][:-1] - FIRST
        assert (np.diff(a) == 1).all() and (np.diff(b) == 1).all() and len(a) and len(b)
        pairs.append((a.tolist(), b.tolist(), int(row["pair_label"])))
    return pairs


def document_of(documents):
    borders = np.cumsum([sum(sentences) for sentences in documents])
    return lambda token: int(borders.searchsorted(token, side="right"))


# Rows of the documents "4 5. 6." and "7 8 9.", their token types and label; 1 is [CLS], 2 [SEP], 0 padding.
NEXT = ((1, 4, 5, 2, 6, 2, 0, 0, 0, 0), (0, 0, 0, 0, 1, 1, 0, 0, 0, 0), 0)
SWAPPED = ((1, 6, 2, 4, 5, 2, 0, 0, 0, 0), (0, 0, 0, 1, 1, 1, 0, 0, 0, 0), 1)
RANDOM = ((1, 4, 5, 2, 7, 8, 9, 2, 0, 0), (0, 0, 0, 0, 1, 1, 1, 1, 0, 0), 1)
PUT_BACK = ((1, 6, 2, 7, 8, 9, 2, 0, 0, 0), (0, 0, 0, 1, 1, 1, 1, 0, 0, 0), 1)
LONE = ((1, 7, 8, 9, 2, 4, 5, 6, 2, 0), (0, 0, 0, 0, 0, 1, 1, 1, 1, 0), 1)
LONE_LAST = ((1, 7, 8, 9, 2, 6, 2, 0, 0, 0), (0, 0, 0, 0, 0, 1, 1, 0, 0, 0), 1)


@pytest.mark.parametrize(
    ("task", "firsts"), [("next_sentence", {(NEXT,), (RANDOM, PUT_BACK)}), ("sentence_order", {(NEXT,), (SWAPPED,)})]
)
def test_a_worked_example(write_sentences, task, firsts):
    """Compares the rows of the first document, and the second's sentence with a random sentence of the first."""
    source, firsts_drawn, lasts = write_sentences({"train": [[2, 1], [3]]}), set(), set()
    settings = config.SentencePairs(task=task, duplicates=1, short_probability=0.0)
    for seed in range(20):
        layout = settings.open(layouts.RowRequest.of(source, "train", 10, MASKED_LM, seed))
        rows = [layout.example(item, layouts.generator(seed, "b", item)) for item in range(layout.num_rows)]
        names = "tokens", "token_types", "pair_label"
        *first, last = (tuple(tuple(row[n].tolist()) if row[n].ndim else int(row[n]) for n in names) for row in rows)
        firsts_drawn.add(tuple(first))
        lasts.add(last)
    assert (firsts_drawn, lasts) == (firsts, {LONE, LONE_LAST})


def test_a_half_is_swapped_and_a_lone_sentence_gets_a_random_one(write_sentences):
    """Sentences of one token fill rows of 13 of them; what is left of a document is one pair, or one sentence."""
    documents = [[1] * n for n in np.random.default_rng(0).integers(1, 60, 400)]
    document = document_of(documents)
    pairs = examples(write_sentences({"train": documents}), task="sentence_order", duplicates=2, short_probability=0.0)
    lone = [(a, b, label) for a, b, label in pairs if document(a[0]) != document(b[0])]
    whole = [(a, b, label) for a, b, label in pairs if document(a[0]) == document(b[0])]
    assert all(label == 1 and len(a) == 1 for a, _, label in lone)
    assert len(lone) == 2 * sum(len(sentences) % 13 == 1 for sentences in documents)
    for a, b, label in whole:
        first, second = (b, a) if label else (a, b)
        assert second[0] == first[-1] + 1
    swapped = sum(label for _, _, label in whole)
    assert abs(swapped - len(whole) / 2) < 4 * np.sqrt(len(whole) / 4)
    # Nothing is put back: each token is once in each pass.
    text = [t for a, b, label in pairs for t in (a if (a, b, label) in lone else (b + a if label else a + b))]
    assert text == 2 * list(range(sum(map(sum, documents))))


def test_parts_are_swapped_before_they_are_truncated(write_sentences):
    """The first part of a row keeps one token more, whichever it is of the text."""
    pairs = examples(write_sentences({"train": [[40, 40]] * 100}), 24, task="sentence_order", short_probability=0.0)
    # Sentences of 40 are chunks of one: random. Two of 20 are a chunk of two.
    assert {label for _, _, label in pairs} == {1}
    pairs = examples(
        write_sentences({"train": [[20, 20]] * 100}, "b"), 24, task="sentence_order", short_probability=0.0
    )
    sizes = {(len(a), len(b), a[0] % 40 < 20, label) for a, b, label in pairs}
    assert sizes == {(11, 10, True, 0), (11, 10, False, 1)}


@pytest.mark.parametrize("task", ["next_sentence", "sentence_order"])
def test_single_sentences(write_sentences, task):
    rng = np.random.default_rng(0)
    documents = [rng.integers(1, 6, rng.integers(1, 12)).tolist() for _ in range(300)]
    document = document_of(documents)
    ends = np.cumsum([0, *itertools.chain(*documents)])
    sentences = [list(range(a, b)) for a, b in itertools.pairwise(ends)]
    pairs = examples(write_sentences({"train": documents}), task=task, parts="sentences", duplicates=3)
    read = []
    for a, b, label in pairs:
        assert a in sentences and b in sentences
        apart = document(a[0]) != document(b[0])
        first, second = (b, a) if task == "sentence_order" and label and not apart else (a, b)
        assert apart or second[0] == first[-1] + 1
        assert label if apart else label == (first is b)
        read += first if apart else first + second
    assert read == 3 * list(range(ends[-1]))


def test_half_of_the_single_sentences_have_a_random_partner(write_sentences):
    """Documents of two sentences: with 1/2 one pair, else two, both random."""
    num = 3000
    labels = [
        label
        for _, _, label in examples(write_sentences({"train": [[2, 3]] * num}), 512, parts="sentences", duplicates=1)
    ]
    twice = len(labels) - num
    assert sum(labels) == 2 * twice and abs(twice - num / 2) < 4 * np.sqrt(num / 4)
