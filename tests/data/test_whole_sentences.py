"""Rows of whole sentences against a walk, sentence by sentence."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_jax import config, objectives
from plm_jax.common.errors import UserError
from plm_jax.data import layouts
from plm_jax.data.layouts import full_sentences as whole_sentences
from plm_jax.data.layouts import index
from tests.support import caches
from tests.support.data import assert_like_blank, assert_rejected, open_reader, unstack

PAD, CLS, SEP, MASK, FIRST = 0, 1, 2, 3, 4
IDS = {"pad": PAD, "cls": CLS, "sep": SEP, "mask": MASK}
MASKED = objectives.MaskedLM()
SPECIAL = objectives.Special(pad=PAD, cls=CLS, sep=SEP, mask=MASK, vocab_size=60_000)


def published(documents, length, cross, drop=False):
    """Rows as a packer makes them that takes sentences one by one; token n of the text is FIRST + n.

    With `drop`, a sentence longer than a row ends the row before it and is in none.
    """
    rows, row, token = [], [], FIRST

    def flush():
        if row:
            rows.append([CLS, *row, SEP])
            row.clear()

    for sentences in documents:
        begins_document = True
        for size in sentences:
            if drop and size > length - 2:
                flush()
                token, begins_document = token + size, False
                continue
            while size:
                piece = min(size, length - 2)  # A sentence too long for a row is cut.
                between = [SEP] if row and begins_document else []
                if len(row) + len(between) + piece > length - 2:
                    flush()
                    between = []
                row += between + list(range(token, token + piece))
                token, size, begins_document = token + piece, size - piece, False
        if not cross:
            flush()
    flush()
    return rows


def opened(source, length, cross, split="train", drop=False):
    objective = objectives.get("masked_lm", SPECIAL)
    return config.FullSentences(cross, drop).open(layouts.RowRequest.of(source, split, length, objective))


def rows_of(layout):
    """The rows without their padding, which is checked."""
    token_rows = []
    for item in range(layout.num_rows):
        row = layout.example(item, None)
        size = int(row["mask"].sum())
        assert row["mask"].tolist() == [1] * size + [0] * (len(row["mask"]) - size)
        assert not row["tokens"][size:].any() and {v.dtype.name for v in row.values()} == {"int32"}
        token_rows.append(row["tokens"][:size].tolist())
    return token_rows


def corpus(seed, num_documents, longest_sentence):
    rng = np.random.default_rng(seed)
    return [rng.integers(1, longest_sentence + 1, rng.integers(1, 15)).tolist() for _ in range(num_documents)]


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("cross", [True, False])
@pytest.mark.parametrize("length, longest", [(16, 9), (40, 5), (10, 30), (3, 4)])
def test_rows_are_those_of_a_walk(write_sentences, cross, length, longest, drop):
    documents = corpus(length, 60, longest)
    layout = opened(write_sentences({"train": documents}), length, cross, drop=drop)
    rows = rows_of(layout)
    assert rows == published(documents, length, cross, drop)
    ends = np.cumsum([FIRST, *map(sum, documents)])
    for document, (begin, end) in enumerate(itertools.pairwise(ends)):
        (items,) = layout.rows_with(document)
        assert [*items] == [i for i, row in enumerate(rows) if any(begin <= token < end for token in row)]


def test_spanberts_rows_of_a_document():
    """`BlockDataset` of facebookresearch/SpanBERT by hand: room for 5, and sentences of these lengths."""
    sentences, documents = np.cumsum([0, 2, 2, 6, 3, 9, 1, 4, 5]), np.array([0, 6, 8])
    starts, ends = whole_sentences.walk(sentences, documents, 5, False, False, True)
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == [(0, 4), (10, 13), (22, 23), (23, 27), (27, 32)]


def test_a_corpus_of_long_sentences_alone_is_rejected(write_sentences):
    with pytest.raises(UserError, match=r"every sentence is longer than a row of 10: raise config\.data\.length"):
        opened(write_sentences({"train": [[9], [20, 11]]}), 10, False, drop=True)


@given(
    st.lists(st.lists(st.integers(1, 25), min_size=1, max_size=12), min_size=1, max_size=8),
    st.integers(1, 20),
    st.booleans(),
    st.booleans(),
)
def test_where_rows_begin(documents, room, cross, drop):
    sentences = np.cumsum([0, *itertools.chain(*documents)])
    firsts = np.cumsum([0, *map(len, documents)])
    begins = np.cumsum([FIRST, *map(sum, documents)])
    expected = []
    for row in published(documents, room + 2, cross, drop):
        document = int(begins.searchsorted(row[1], side="right")) - 1
        expected.append(row[1] - FIRST + document)
    starts, ends = whole_sentences.walk(sentences, firsts, room, cross, drop_long_sentences=drop)
    assert starts.tolist() == expected and (ends > starts).all() and (starts[1:] >= ends[:-1]).all()


@pytest.mark.parametrize("cross", [True, False])
def test_blocks_of_documents_leave_no_token_out(write_sentences, monkeypatch, cross):
    monkeypatch.setattr(index, "BLOCK_SENTENCES", 50)
    documents = corpus(1, 120, 6)
    layout = opened(write_sentences({"train": documents}), 24, cross)
    rows = rows_of(layout)
    assert not cross or layout.pass_tokens == sum(map(sum, documents)) + len(documents)
    assert [t for row in rows for t in row if t >= FIRST] == list(range(FIRST, FIRST + sum(map(sum, documents))))
    assert all(len(row) <= 24 for row in rows)
    borders = set(np.cumsum([FIRST, *map(sum, documents)]).tolist())
    for row in rows:
        inside = [row[i + 1] for i in range(1, len(row) - 1) if row[i] == SEP]
        assert set(inside) == borders & set(row[2:]) and (cross or not inside)


@pytest.fixture
def make(make_run):
    """`make(cross_documents, length)` returns a masked-LM run over full sentences of source `a`."""

    def make(cross, length=16, objective=MASKED, ids=IDS):
        data = {"layout": config.FullSentences(cross), "length": length}
        return make_run("a", 60_000, data=data, objective=objective, **{"eos": None} | ids)

    return make


@pytest.mark.parametrize("cross", [True, False])
def test_a_run_reads_them_masked(write_sentences, make, cross):
    documents = {"train": corpus(0, 40, 9), "validation": corpus(1, 9, 9)}
    write_sentences(documents)
    run = make(cross)
    opened = open_reader(run)
    rows = []
    for row in itertools.chain(*map(unstack, opened.in_order("validation", 4))):
        tokens, real = row["tokens"], row["target_weights"] > 0
        tokens[row["target_positions"][real]] = row["targets"][real]
        rows += [tokens[row["mask"] > 0].tolist()] if row["mask"].any() else []
    assert rows == published(documents["validation"], 16, cross)
    assert_like_blank(run, next(opened.batches(0)))


def test_a_run_reports_how_full_short_rows_are(write_sentences, make):
    write_sentences({"train": [[5]] * 100})
    assert open_reader(make(True, 14)).notes() == []
    # Seven of 14 tokens are real, so that four rows are as two.
    assert open_reader(make(False, 14)).notes() == [
        "padding: 4 rows of 14 have only as many non-padding tokens as 2 full rows"
    ]


def test_bos_and_eos_replace_cls_and_sep(make):
    bos_eos = objectives.Special(pad=1, bos=0, eos=2, vocab_size=9)
    row = objectives.RowFormat.of(bos_eos).row([np.array([5, 6])], 6)
    assert row["tokens"].tolist() == [0, 5, 6, 2, 1, 1] and row["mask"].tolist() == [1, 1, 1, 1, 0, 0]
    run = make(True, ids={"pad": 1, "bos": 0, "eos": 2, "mask": 3})
    assert config.from_dict(config.to_dict(run)) == run


def test_bad_configs_are_rejected(make):
    needs_ids = "set config.vocabulary.cls and config.vocabulary.sep, or config.vocabulary.bos"
    assert_rejected(needs_ids, make(True, ids={"cls": 1, "mask": 3}))
    assert_rejected("config.data.length is 2: full sentences need at least 3", make(True, length=2))
    causal = make(True, objective=objectives.Causal(), ids={"bos": 8, "eos": 9})
    assert_rejected("'causal' adds its own special tokens, but rows of full sentences", causal)


@pytest.mark.parametrize("cross", [True, False])
def test_denoising_permutes_the_sentences_of_a_row(write_sentences, make, cross):
    """BART has no token between documents; its first and last token keep their positions."""
    documents = {"train": corpus(0, 40, 9), "validation": corpus(1, 30, 9)}
    source = write_sentences(documents)
    ids = {"pad": 0, "bos": 1, "eos": 2, "mask": 3}
    run = make(cross, 24, objectives.Denoising(noise=objectives.denoising.NoNoise()), ids)
    vocabulary = source.vocabulary | {"cls": None, "sep": None, **ids}
    caches.rewrite(source.folder, lambda manifest: manifest.update(vocabulary=vocabulary))
    opened = open_reader(run)
    begins = set(np.cumsum([FIRST, *itertools.chain(*documents["validation"])]).tolist())
    ends = {begin - 1 for begin in begins}
    borders = set(np.cumsum([FIRST, *map(sum, documents["validation"])]).tolist())
    text, num_permuted = [], 0
    for row in itertools.chain(*map(unstack, opened.in_order("validation", 1))):
        targets, inputs = row["targets"][row["target_weights"] > 0].tolist(), row["tokens"][row["mask"] > 0].tolist()
        assert (targets[0], targets[-1], inputs[0], inputs[-1]) == (1, 2, 1, 2)
        assert sorted(inputs) == sorted(targets)
        assert row["decoder_tokens"][: len(targets)].tolist() == [2, *targets[:-1]]
        text += targets[1:-1]
        num_permuted += inputs != targets
        for before, after in itertools.pairwise(inputs[1:-1]):
            assert after == before + 1 or (before in ends and after in begins)
        assert cross or not borders & set(targets[2:-1])
    assert text == list(range(FIRST, FIRST + sum(map(sum, documents["validation"])))) and num_permuted > 10
    assert_like_blank(run, next(opened.batches(0)))
    assert bool(opened.notes()) != cross
