"""One document a row (DistilBERT); that the rows are its code's is in test_published_rows."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_jax import config, objectives
from plm_jax.common.errors import UserError
from plm_jax.data import layouts, reader
from plm_jax.data.layouts import documents

IDS = {"pad": 0, "cls": 1, "sep": 2, "mask": 3, "unk": 4}


@given(st.lists(st.integers(1, 90), min_size=1, max_size=8), st.integers(12, 40))
def test_pieces_are_those_of_the_marked_line(sizes, length):
    edges = np.cumsum([0, *sizes])
    expected = []
    for begin, size in zip(edges.tolist(), sizes, strict=False):
        line = ["cls", *range(begin, begin + size), "sep"]
        step = len(line) if len(line) <= length else length - 2
        expected += [[t for t in line[i : i + step] if isinstance(t, int)] for i in range(0, len(line), step)]
    starts, stops = documents.cut(edges, length)
    assert [list(range(*pair)) for pair in zip(starts.tolist(), stops.tolist(), strict=True)] == expected


@pytest.fixture
def make(make_run):
    """A masked-LM run over documents."""

    def make(length=16, objective=None, **ids):
        run = make_run("a", eos=None, objective=objective or objectives.MaskedLM())
        data = dataclasses.replace(run.data, layout=config.Documents(), length=length)
        return dataclasses.replace(run, data=data, vocabulary=config.VocabularyConfig("bytes", **{**IDS, **ids}))

    return make


def test_short_and_unknown_rows_are_left_out_and_a_run_says_how_much(write_source, make, monkeypatch):
    monkeypatch.setattr(documents, "BLOCK_TOKENS", 20)
    texts = [[7] * 9, [8] * 10, [4] * 6 + [9] * 6, [4] * 7 + [9] * 7, [4] * 8 + [9] * 6, [10] * 40]
    write_source("a", {"train": texts * 9}, eos=None, **IDS)
    run = make()
    assert config.from_dict(config.to_dict(run)) == run
    opened = reader.Reader(config.reader_config(run))
    layout = opened.rows("train", "a", 16)
    rows = [layout.example(item, None) for item in range(layout.num_rows)]
    found = [row["tokens"][row["mask"] > 0].tolist() for row in rows]
    # 6 of 14 and 7 of 16 are below half, 8 of 16 are not; of 40 tokens 13, 14 and 13 make a row.
    kept = [[8] * 10, texts[2], texts[3], [10] * 13, [10] * 14, [10] * 13]
    assert found == [[1, *text, 2] for text in kept] * 9
    left_out = 1 - sum(map(len, kept)) / sum(map(len, texts))
    assert opened.notes() == [
        f"{left_out:.1%} of the tokens of 'a' are dropped, in rows that are too short or have too many unknown tokens",
        "4 rows of 16 have as many tokens as 4 full rows",
    ]
    order = layouts.Order(layout, 64, 3, "a")
    assert sorted(order.item(k) for k in range(order.num_items)) == list(range(layout.num_rows))


def test_what_they_need_is_told(write_source, make):
    for run, message in (
        (make(length=11), "config.data.length is 11: documents need at least 12"),
        (make(cls=None, bos=9), "documents need special ids around them: set config.vocabulary.cls"),
        (make(objective=objectives.Causal()), "objective 'causal' adds its own special tokens, but rows of documents"),
    ):
        with pytest.raises(UserError, match=message):
            config.from_dict(config.to_dict(run))
    write_source("a", {"train": [[7] * 9] * 5}, eos=None, **IDS)
    with pytest.raises(UserError, match="'a' has no training document of 10 tokens, most of them known"):
        reader.Reader(config.reader_config(make()))
