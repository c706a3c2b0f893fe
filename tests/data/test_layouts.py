import dataclasses
import itertools
import types
from typing import ClassVar

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from plm_jax import config, objectives
from plm_jax.common.errors import UserError
from plm_jax.data import layouts
from plm_jax.data.layouts import blocks as block_rows
from tests.support.data import assert_like_blank, assert_rejected, open_reader


def block_order(num_tokens, length, stride, window, seed=0, name="a"):
    stream = types.SimpleNamespace(num_tokens=num_tokens)
    return layouts.Order(block_rows.BlockRows(stream, length, stride, separate=False), window, seed, name)


@given(
    num_tokens=st.integers(20, 3000), length=st.integers(1, 20), window=st.integers(1, 500), epochs=st.integers(1, 3)
)
def test_every_block_once_an_epoch_window_after_window(num_tokens, length, window, epochs):
    stride = max(1, length - 1)
    order = block_order(num_tokens, length, stride, window)
    expected = [i for i in range(num_tokens) if i * stride + length <= num_tokens]
    assert order.num_items == len(expected)
    for epoch in range(epochs):
        blocks = [order.item(epoch * len(expected) + i) for i in range(len(expected))]
        assert sorted(blocks) == expected
        windows = [block * stride // window for block in blocks]
        changes = sum(a != b for a, b in itertools.pairwise(windows))
        assert changes == len(set(windows)) - 1


def test_order_depends_on_seed_source_and_epoch_and_is_shuffled():
    def blocks(seed, name, epoch):
        order = block_order(40_000, 11, 10, 4_000, seed, name)
        return tuple(order.item(epoch * order.num_items + i) for i in range(order.num_items))

    orders = {blocks(*key) for key in [(0, "a", 0), (1, "a", 0), (0, "b", 0), (0, "a", 1)]}
    assert len(orders) == 4
    for items in orders:
        windows = list(dict.fromkeys(block // 400 for block in items))
        assert windows != sorted(windows)
        assert list(items[:400]) != sorted(items[:400])
    order = block_order(10**6, 11, 10, 10**4)
    assert 0 <= order.item(10**15) < order.num_items  # Does not walk through earlier epochs.


def test_windows_come_in_the_same_order_at_every_length():
    def windows(length):
        order = block_order(100_000, length + 1, length, 5_000)
        return list(dict.fromkeys(order.item(i) * length // 5_000 for i in range(order.num_items)))

    assert windows(10) == windows(25) == windows(100)


@given(st.integers(0, 5000), st.sampled_from([8, 16, 64]), st.sampled_from([8, 16, 64]))
def test_resume_keeps_the_epoch_and_the_tokens_read(k, before, after):
    old, new = (block_order(5001, n + 1, n, 640) for n in (before, after))
    resumed = new.resume(k, old)
    if before == after:
        assert resumed == k
    epoch, position = divmod(k, old.num_items)
    tokens = (resumed - epoch * new.num_items) * after
    assert min(position * before, new.num_items * after) <= tokens < position * before + after


def test_generators_differ_by_seed_stream_and_counter():
    keys = [(0, "a"), (1, "a"), (0, "b"), (0, "a", 1), (0, "a", 0, 1), (0, "a", 0, 0, 1)]
    draws = {layouts.generator(*key).integers(2**63) for key in keys}
    assert len(draws) == len(keys)
    assert layouts.generator(0, "a", 7).integers(2**63) == layouts.generator(0, "a", 7).integers(2**63)


@dataclasses.dataclass(frozen=True)
class Ends(layouts.Layout):
    """Layout of a user: the last tokens of each document are a row."""

    kind: ClassVar[str] = "tests_ends"
    plural: ClassVar[str] = "ends"
    least: int = 2

    @property
    def is_full(self):
        return False

    def check(self, objective, special, length, sources):
        super().check(objective, special, length, sources)
        if length < self.least:
            raise UserError(f"config.data.length is {length}: ends take at least {self.least}")

    def open(self, request):
        objective = request.objective
        return EndRows(request.split, objective.input_length(request.length), objective.special.pad)


class EndRows(layouts.Rows):
    def __init__(self, split, size, pad):
        self._split, self._size, self._pad = split, size, pad
        self.num_rows, self.pass_tokens = split.num_documents, split.num_tokens

    def windows(self, window_tokens):
        edges = np.arange(0, self._split.num_tokens + window_tokens, window_tokens)
        return [self._split.documents[:-1].searchsorted(edges)]

    def example(self, item, rng):
        start, stop = self._split.documents[item : item + 2].tolist()
        tokens = self._split.tokens(max(start, stop - self._size), stop).astype(np.int32)
        mask = (np.arange(self._size) < len(tokens)).astype(np.int32)
        return {"tokens": np.pad(tokens, (0, self._size - len(tokens)), constant_values=self._pad), "mask": mask}


def test_a_row_is_as_its_format_says():
    """An order of marks that no layout here has: A, two marks, B, and what begins the others at the end."""
    values = objectives.RowFormat((), (7, 7), (7, 8), pad=9, has_types=True).row([np.array([1, 2]), np.array([3])], 9)
    assert values["tokens"].tolist() == [1, 2, 7, 7, 3, 7, 8, 9, 9]
    assert values["mask"].tolist() == [1, 1, 1, 1, 1, 1, 1, 0, 0]
    assert values["token_types"].tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 0]
    row_format = objectives.RowFormat((5,), (7, 7), (8,))
    assert (row_format.room(9), row_format.room(9, 2), row_format.text_starts([3, 1])) == (7, 5, [1, 6])


def test_a_users_layout_is_read_like_ours(write_source, make_run, random_documents):
    documents = random_documents(3, 40)
    write_source("a", {"train": documents, "validation": documents[:5]}, pad=98)
    run = make_run("a", data={"layout": Ends()}, pad=98)
    opened = open_reader(run)
    expected = sorted((d[-9:] + [98] * 9)[:9] for d in documents)  # A causal row takes one token more.
    for epoch in range(2):
        examples = [opened.example(k) for k in range(epoch * 40, (epoch + 1) * 40)]
        rows = sorted([*example["tokens"].tolist(), int(example["targets"][-1])] for example in examples)
        assert rows == expected
    assert_like_blank(run, opened.batch(0, range(1)))
    assert opened.notes()[0].startswith("padding: 4 rows of 8 have only as many non-padding tokens as")
    assert_rejected("ends take at least 2", run, data={"length": 1})


def test_framed_blocks_cut_concatenated_documents_anywhere(write_source, make_run, random_documents):
    """DeBERTa's rows: [CLS], length - 2 tokens of the concatenated documents, [SEP]; the last row is padded."""
    documents = random_documents(5, 30)
    write_source("a", {"train": documents, "validation": documents[:5]}, pad=98, cls=97, sep=96)
    masked = objectives.MaskedLM(mask_share=0.0, random_share=0.0)
    ids = {"pad": 98, "cls": 97, "sep": 96}
    run = make_run("a", objective=masked, data={"layout": config.Blocks(frames=True), "length": 9}, **ids)
    opened, text = open_reader(run), [token for document in documents for token in document]
    rows = sorted([97, *text[start : start + 7], 96] for start in range(0, len(text) - 6, 7))
    assert sorted(opened.example(k)["tokens"].tolist() for k in range(len(rows))) == rows
    assert_like_blank(run, opened.batch(0, range(1)))
    assert_rejected("frames adds special tokens to rows", run, data={"layout": config.Blocks(False, frames=True)})
