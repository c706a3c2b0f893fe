"""One document a row (DistilBERT); that the rows are its code's is in test_published_rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_jax import config, objectives
from plm_jax.common.errors import UserError
from plm_jax.data import layouts
from plm_jax.data.layouts import documents
from tests.support.data import assert_rejected, open_reader

IDS = {"pad": 0, "cls": 1, "sep": 2, "mask": 3, "unk": 4}
MASKED = objectives.MaskedLM()


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
    """`make(length)` returns a masked-LM run over documents."""

    def make(length=16, objective=MASKED, **ids):
        data = {"layout": config.Documents(), "length": length}
        return make_run("a", data=data, objective=objective, **{"eos": None} | IDS | ids)

    return make


def test_short_and_unknown_rows_are_dropped_and_counted(write_source, make, monkeypatch):
    monkeypatch.setattr(documents, "BLOCK_TOKENS", 20)
    texts = [[7] * 9, [8] * 10, [4] * 6 + [9] * 6, [4] * 7 + [9] * 7, [4] * 8 + [9] * 6, [10] * 40]
    write_source("a", {"train": texts * 9}, eos=None, **IDS)
    opened = open_reader(make())
    layout = opened.rows("train", "a", 16)
    examples = [layout.example(item, None) for item in range(layout.num_rows)]
    rows = [row["tokens"][row["mask"] > 0].tolist() for row in examples]
    # 6 of 14 and 7 of 16 are below half, 8 of 16 are not; of 40 tokens 13, 14 and 13 make a row.
    expected = [[8] * 10, texts[2], texts[3], [10] * 13, [10] * 14, [10] * 13]
    assert rows == [[1, *text, 2] for text in expected] * 9
    dropped = 1 - sum(map(len, expected)) / sum(map(len, texts))
    assert opened.notes() == [
        f"{dropped:.1%} of the tokens of 'a' are dropped, in rows that are too short or have too many unknown tokens",
        "padding: 4 rows of 16 have only as many non-padding tokens as 4 full rows",
    ]
    order = layouts.Order(layout, 64, 3, "a")
    assert sorted(order.item(k) for k in range(order.num_items)) == list(range(layout.num_rows))


def test_bad_configs_are_rejected(write_source, make):
    assert_rejected("config.data.length is 11: documents need at least 12", make(length=11))
    needs_ids = "documents need special ids around them: set config.vocabulary.cls"
    assert_rejected(needs_ids, make(cls=None, bos=9))
    causal = make(objective=objectives.Causal())
    assert_rejected("objective 'causal' adds its own special tokens, but rows of documents", causal)
    write_source("a", {"train": [[7] * 9] * 5}, eos=None, **IDS)
    with pytest.raises(UserError, match="'a' has no training document of 10 tokens, most of them known"):
        open_reader(make())
