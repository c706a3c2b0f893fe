"""Streams of documents with their first and last tokens, compared with streams joined by hand."""

import itertools
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_jax import config, objectives
from plm_jax.data import cache, layouts
from plm_jax.data.cache import sorted_ids
from plm_jax.data.layouts import blocks as block_rows
from plm_jax.objectives.examples import DecoderRows
from tests.support.data import assert_like_blank, assert_rejected, changed, open_reader

BOS, GMASK, SOP, EOS = 95, 96, 97, 99


def joined(documents, begin, eos):
    """Returns the tokens of the stream and the number of the document of each token."""
    texts = [[*begin, *document, *([] if eos is None else [eos])] for document in documents]
    return [t for text in texts for t in text], [i for i, text in enumerate(texts) for _ in text]


def begun(run, begin, attend=True):
    return changed(run, data={"layout": config.Blocks(attend_across_documents=attend, begin=begin)})


@pytest.mark.parametrize("begin", [("bos",), ("gmask", "sop")])
def test_the_first_token_of_a_separate_document_is_predicted(write_source, make_run, begin):
    documents = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11, 12, 13, 14], [15]]
    ids = {"bos": BOS, "gmask": GMASK, "sop": SOP}
    write_source("a", {"train": documents, "validation": documents}, **ids)
    run = begun(make_run(["a"], **ids), begin, attend=False)
    targets = []
    opened = open_reader(run)
    for batch in opened.in_order("validation", 2):
        real = batch["target_weights"] > 0
        targets += batch["targets"][real].tolist()
        first = (batch["positions"] == 0) & (batch["segment_ids"] > 0)
        first[:, 0] = False  # A row may begin within a document.
        assert set(batch["tokens"][first]) == {ids[begin[0]]}
    assert sorted(t for t in targets if t < 90) == list(range(1, 16))
    counts = {t: targets.count(t) for t in (BOS, GMASK, SOP, EOS)}
    assert counts == {BOS: 0, GMASK: 0, SOP: len(documents) * len(begin[1:]), EOS: len(documents)}
    assert_like_blank(run, next(opened.batches(0)))


@pytest.mark.parametrize(
    ("begin", "objective", "ids", "message"),
    [
        (("bos",), objectives.Causal(), {}, "begin names bos: set config.vocabulary.bos, or remove it"),
        (("boss",), objectives.Causal(), {}, r"begin\[0\] is 'boss': did you mean 'bos'"),
        (("bos",), objectives.MaskedLM(), {"bos": 3}, "'masked_lm' adds its own special tokens to texts: remove"),
    ],
)
def test_bad_first_tokens_are_rejected(make_run, begin, objective, ids, message):
    assert_rejected(message, begun(make_run(["a"], objective=objective, **ids), begin))


def test_examples_of_a_decoder_begin_as_its_texts_do():
    special = objectives.Special(gmask=GMASK, sop=SOP, eos=EOS, vocab_size=100)
    rows = DecoderRows(objectives.Causal(), special, 4, True, [GMASK, SOP])
    row = rows.row([([1, 2], [3]), ([], [4])], 12)
    assert row["tokens"].tolist() == [GMASK, SOP, 1, 2, 3, GMASK, SOP, 4, 0, 0, 0, 0]
    assert row["targets"].tolist() == [SOP, 1, 2, 3, EOS, SOP, 4, EOS, 0, 0, 0, 0]
    assert row["target_weights"].tolist() == [0, 0, 0, 1, 1, 0, 1, 1, 0, 0, 0, 0]
    sizes = [size.tolist() for size in rows.sizes(np.array([2, 0, 90]), np.array([1, 1, 90]), 12)]
    assert sizes == [[5, 3, 12], [5, 3, 12]]
    assert rows.are_truncated(np.array([7, 8]), np.array([3, 3]), 12).tolist() == [False, True]
    assert rows.prompt(list(range(20)), 12) == [GMASK, SOP, *range(7)]


BEGINS = [[], [BOS], [GMASK, SOP]]


@pytest.mark.parametrize("longest", [30, 2])
@pytest.mark.parametrize("eos", [EOS, None])
@pytest.mark.parametrize("begin", BEGINS)
def test_a_stream_joins_documents_with_their_special_tokens(write_source, random_documents, begin, eos, longest):
    documents = [document[:longest] for document in random_documents(1, 40)]
    split = cache.open_source(write_source("a", {"train": documents}), "a").splits["train"]
    stream = layouts.Stream(split, eos, None, begin)
    flat, number = joined(documents, begin, eos)
    assert stream.num_tokens == len(flat)
    rng = np.random.default_rng(0)
    for start in range(len(flat)):
        stop = min(len(flat), start + int(rng.integers(1, 80)))
        tokens, begins = stream.read(start, stop)
        assert tokens.tolist() == flat[start:stop]
        assert begins.tolist() == [i - start for i in range(start + 1, stop) if number[i] != number[i - 1]]
        example = stream.example(start, 80, separate=True)
        num_real = min(80, len(flat) - start)
        padding = [0] * (80 - num_real)
        assert example["tokens"].tolist() == flat[start : start + num_real] + padding
        segments = [n - number[start] + 1 for n in number[start : start + num_real]]
        assert example["segment_ids"].tolist() == segments + padding
        assert ("mask" in example) == bool(padding)
        assert not padding or example["mask"].tolist() == [1] * num_real + padding


@pytest.mark.parametrize("eos", [EOS, None])
@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=6), st.integers(0, 2))
def test_starts_of_sentences_and_words_are_positions_in_the_stream(eos, documents, num_begin):
    """Documents are lists of the lengths of their sentences."""
    lengths = [length for document in documents for length in document]
    columns = {"sentence_starts": np.cumsum([0, *lengths[:-1]])}
    split = types.SimpleNamespace(
        num_documents=len(documents),
        num_tokens=sum(lengths),
        documents=(starts := np.cumsum([0, *map(sum, documents)])),
        search=lambda extra: sorted_ids.Search(starts, sorted_ids.milestones(starts, sum(lengths)), extra),
        has=lambda name: name in columns,
        column=columns.get,
        tokens=lambda start, stop: np.zeros(stop - start, int),
    )
    stream, marks = layouts.Stream(split, eos, None, [BOS] * num_begin), []
    for document in documents:
        marks += [False] * num_begin + [i == 0 for length in document for i in range(length)]
        marks += [False] * (eos is not None)
    for start, stop in itertools.combinations(range(len(marks) + 1), 2):
        assert stream.starts("sentence_starts", start, stop).tolist() == np.flatnonzero(marks[start:stop]).tolist()
    blocks = block_rows.BlockRows(stream, 5, 5, False, reads=("sentence_starts",))
    for item in range(blocks.num_rows):
        positions = blocks.example(item, None)["sentence_starts"]
        assert positions.tolist() == np.flatnonzero(marks[5 * item : 5 * item + 5]).tolist()
    assert "sentence_starts" not in block_rows.BlockRows(stream, 5, 5, False).example(0, None)
    columns["word_starts"] = columns["sentence_starts"]
    example = block_rows.BlockRows(stream, 5, 5, False, reads=("word_starts",)).example(0, None)
    assert "sentence_starts" not in example
    assert example["word_starts"].tolist() == np.flatnonzero(marks[:5]).tolist()
