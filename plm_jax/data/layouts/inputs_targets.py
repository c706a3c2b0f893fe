"""Rows of examples with inputs and targets: one example per row or, if rows are packed, as many examples as fit.

In the cache of a source with inputs and targets, a document is an example. The first sentence of the document is the
inputs, and the second sentence is the targets; each may have no tokens. Consecutive examples are packed in the order of
the cache, which `prepare` has shuffled. Examples are packed in blocks of BLOCK_EXAMPLES, and a row always ends at the
end of a block.
"""

from typing import ClassVar

import numpy as np
from typing_extensions import override

from plm_jax import objectives
from plm_jax.data import cache
from plm_jax.data.layouts import index
from plm_jax.data.layouts.formats import Example
from plm_jax.data.layouts.rows import Rows

BLOCK_EXAMPLES = 2**18


class InputsTargetsRows(Rows):
    """Rows of examples with inputs and targets. No objective transforms these rows.

    There is a single pass over the split.
    """

    is_finished: ClassVar[bool] = True

    def __init__(self, split: cache.DocumentTable, rows: objectives.ExampleRows, length: int, packed: bool):
        self._split, self._rows, self._length = split, rows, length
        self._first = _pack(split, rows, length) if packed else range(split.num_documents + 1)
        self.num_rows = len(self._first) - 1
        self.examples_per_row = split.num_documents / self.num_rows
        self.pass_tokens = split.num_tokens

    @override
    def windows(self, window_tokens: int) -> list[np.ndarray]:
        documents, is_packed = self._split.documents, not isinstance(self._first, range)
        begins = np.asarray(documents)[self._first[:-1]] if is_packed else documents
        edges = index.window_edges(self._split.num_tokens, window_tokens)
        return [np.minimum(begins.searchsorted(edges), self.num_rows)]

    @override
    def example(self, item: int, rng: np.random.Generator) -> Example:
        numbers = range(self._first[item], self._first[item + 1])
        return self._rows.row([self._read(number) for number in numbers], self._length)

    @override
    def documents(self, item: int, rng: np.random.Generator) -> range:
        return range(int(self._first[item]), int(self._first[item + 1]))

    @override
    def rows_with(self, document: int) -> list[range]:
        row = document
        if not isinstance(self._first, range):
            row = int(self._first.searchsorted(document, side="right")) - 1
        return [range(row, row + 1)]

    def _read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the input tokens and the target tokens of an example."""
        start, stop = self._split.span(number)
        tokens, size = self._split.tokens(start, stop), int(self._split.sentences[2 * number + 1]) - start
        return tokens[:size], tokens[size:]

    @override
    def notes(self, name: str) -> list[str]:
        lengths = _lengths(self._split, 0, self._split.num_documents)
        share = float(np.mean(self._rows.are_truncated(*lengths, self._length)))
        return [f"{share:.1%} of the examples of '{name}' are longer than a row and are truncated"] * (share > 0)


def _lengths(split: cache.DocumentTable, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns two arrays for the examples [first, last): their numbers of input tokens and of target tokens."""
    documents, targets = np.asarray(split.documents)[first : last + 1], np.asarray(split.sentences)
    targets = targets[2 * first + 1 : 2 * last : 2]
    return targets - documents[:-1], documents[1:] - targets


def _pack(split: cache.DocumentTable, rows: objectives.ExampleRows, length: int) -> np.ndarray:
    """Packs consecutive examples into rows.

    Returns:
      Index of the first example of each row, followed by the number of examples.
    """
    firsts = []
    for first in range(0, split.num_documents, BLOCK_EXAMPLES):
        lengths = _lengths(split, first, min(first + BLOCK_EXAMPLES, split.num_documents))
        limits = zip(rows.sizes(*lengths, length), rows.lengths(length), strict=True)
        following = [index.next_fit(sizes, limit) for sizes, limit in limits]
        firsts.append(first + index.follow(np.minimum(*following)))
    return np.concatenate([*firsts, [split.num_documents]])
