"""Packed rows: several rows of another layout, the inner rows, in one row.

Inner rows are joined in the order of the text by next fit: a packed row ends before the first inner row that does not
fit. The index of a split (`index.py`) has one column, in which the rows of a pass follow the rows of the previous pass:

    starts   first inner row of each packed row; a packed row ends where the next packed row begins
"""

import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from plm_jax import objectives
from plm_jax.common import trees
from plm_jax.common.errors import UserError
from plm_jax.common.special_ids import SpecialIds
from plm_jax.data.layouts import index, noising
from plm_jax.data.layouts.documents import Documents
from plm_jax.data.layouts.formats import Example
from plm_jax.data.layouts.layout import Form, Layout, RowRequest
from plm_jax.data.layouts.randomness import generator
from plm_jax.data.layouts.rows import Rows
from plm_jax.objectives.packing import INNER_KEYS

# Number of inner rows that are packed at once.
BLOCK_ROWS = 2**18


@dataclass(frozen=True)
class Packed(Layout):
    """Rows that each consist of as many rows of another layout as fit, without padding between them.

    The rows of the other layout are called inner rows. A token attends only to its own inner row, and positions restart
    with each inner row. The objective acts on each inner row as if this inner row were alone in a row of
    `config.data.length` tokens. No inner row is cut.

    Attributes:
      inner: layout of the inner rows. It must put special tokens around texts, like `documents` and `sentence_pairs`.
    """

    kind: ClassVar[str] = "packed"
    plural: ClassVar[str] = "packed rows"
    attend_across_documents: ClassVar[bool] = False
    inner: Layout = field(default=Documents())

    @property
    @override
    def num_texts(self) -> int:
        return self.inner.num_texts

    @property
    @override
    def least_length(self) -> int:
        return self.inner.least_length

    @property
    @override
    def labels_pairs(self) -> bool:
        return self.inner.labels_pairs

    @property
    @override
    def is_full(self) -> bool:
        return False

    @override
    def form(self, objective: objectives.Objective) -> Form:
        return self.inner.form(objective)

    @override
    def blank(self, length: int, objective: objectives.BoundObjective, num_characters: int = 0) -> Example:
        return self.inner.blank(length, objective, num_characters)

    @override
    def target_length(self, objective: objectives.Objective, length: int) -> int:
        """Returns the number of target slots of a packed row.

        The slots suffice for any inner rows of at least `inner.least_length` tokens that have at most `length` tokens
        together. If the objective's `max_targets` returns 0, there are as many slots as in a row that is not packed.
        """
        sizes = range(min(self.inner.least_length, length), length + 1)
        largest = max(length * objective.max_targets(size) // size for size in sizes)
        return largest or objective.target_length(length)

    @override
    def packing(self, objective: objectives.BoundObjective, length: int) -> objectives.PackedFormat:
        num_targets, num_rows = self.target_length(objective.settings, length), length // self.inner.least_length
        return objectives.PackedFormat(length, num_targets, max(1, num_rows), objective.special.pad or 0)

    @override
    def check(
        self, objective: objectives.Objective, special: SpecialIds, length: int, sources: Mapping[str, Any]
    ) -> None:
        self.inner.check(objective, special, length, sources)
        if self.form(objective) != "row":
            raise UserError(
                f"config.data.layout.inner is '{self.inner.kind}', whose rows for objective '{objective.kind}' cannot "
                "be packed: use documents, sentence_pairs, segments or full_sentences with masked_lm, span_masked_lm "
                "or replaced_token"
            )
        bound = objectives.BoundObjective(objective, objectives.Special.of(special))
        if unknown := sorted(noising.blank(self.inner, length, bound).keys() - INNER_KEYS):
            raise UserError(
                f"objective '{objective.kind}' with config.data.layout.inner '{self.inner.kind}' makes rows with "
                f"`{unknown[0]}`, which cannot be packed: use '{self.inner.kind}' as config.data.layout"
            )

    @override
    def open(self, request: RowRequest) -> "PackedRows":
        packing = self.packing(request.objective, request.length)
        inner = self.inner.open(replace(request, fixed_sizes=True))
        sizes = range(request.length + 1)
        max_targets = [request.objective.settings.max_targets(size) if size else 0 for size in sizes]

        def walk(number: int) -> Iterator[index.RowBlock]:
            return _walk(inner, number, packing, np.array(max_targets), request.split.num_documents)

        settings = [trees.to_dict(self), trees.to_dict(packing), max_targets, request.seed]
        num_passes = len(inner.passes) - 1
        return PackedRows(index.open_index(request, settings, {"starts": "<i8"}, walk, num_passes), inner, packing)


def _walk(
    inner: Rows, number: int, packing: objectives.PackedFormat, max_targets: np.ndarray, num_documents: int
) -> Iterator[index.RowBlock]:
    """Yields the packed rows of a pass."""
    begin, end = inner.passes[number : number + 2]
    first = begin
    while first < end:
        stop = min(first + BLOCK_ROWS, end)
        sizes = np.minimum(inner.max_sizes(first, stop), packing.length)
        starts = first + pack(sizes, packing, max_targets)
        if stop < end:  # The last row continues in the next block.
            stop, starts = int(starts[-1]), starts[:-1]
        yield index.RowBlock(num_documents * (stop - first) // (end - begin), [starts])
        first = stop


def pack(sizes: np.ndarray, packing: objectives.PackedFormat, max_targets: np.ndarray) -> np.ndarray:
    """Packs inner rows by next fit, within the maximum numbers of tokens, targets and inner rows in `packing`.

    Args:
      sizes: maximum number of tokens of each inner row.
      max_targets: maximum number of targets of an inner row, indexed by the number of tokens of the inner row.

    Returns:
      Index of the first inner row of each packed row.
    """
    limits = (sizes, packing.length), (max_targets[sizes], packing.num_targets), (np.ones_like(sizes), packing.num_rows)
    return index.follow(np.minimum.reduce([index.next_fit(*limit) for limit in limits]))


class PackedRows(Rows):
    """Packed rows, with as many passes as the inner rows have."""

    packing: objectives.PackedFormat

    def __init__(self, rows: index.Index, inner: Rows, packing: objectives.PackedFormat):
        self._inner, self._passes, self._starts = inner, rows.passes, rows.columns["starts"]
        self.packing = packing
        self.num_rows, self.pass_tokens = self._passes[1], inner.pass_tokens

    @property
    @override
    def passes(self) -> list[int]:
        return self._passes

    @override
    def windows(self, window_tokens: int) -> list[np.ndarray]:
        edges = self._inner.windows(window_tokens)
        passes = zip(self._passes, self._passes[1:], edges, strict=False)
        return [index.first_from(self._starts, first, end, inner) for first, end, inner in passes]

    def numbers(self, item: int) -> range:
        """Returns the indices of the inner rows of packed row `item`."""
        is_last = item + 1 == self._passes[-1]
        return range(int(self._starts[item]), self._inner.passes[-1] if is_last else int(self._starts[item + 1]))

    @override
    def inner_rows(self, item: int, rng: np.random.Generator) -> list[tuple[Rows, int, np.random.Generator]]:
        """Returns the inner rows of packed row `item`, each with a generator whose seed is drawn from `rng`."""
        numbers, self._inner.constants = self.numbers(item), self.constants
        seeds = rng.integers(2**63, size=len(numbers)).tolist()
        return [
            (self._inner, number, generator(seed, "inner rows")) for number, seed in zip(numbers, seeds, strict=True)
        ]

    @override
    def example(self, item: int, rng: np.random.Generator) -> Example:
        raise NotImplementedError("objectives read the inner rows of a packed row")

    @override
    def documents(self, item: int, rng: np.random.Generator) -> list[int]:
        inner = self.inner_rows(item, rng)
        documents = [document for rows, number, inner_rng in inner for document in rows.documents(number, inner_rng)]
        return list(dict.fromkeys(documents))

    @override
    def rows_with(self, document: int) -> Iterator[np.ndarray]:
        for numbers in self._inner.rows_with(document):
            inner = np.asarray(numbers, np.int64)
            number = bisect.bisect_right(self._inner.passes, inner[0]) - 1 if len(inner) else 0
            first, end = self._passes[number : number + 2]
            yield first + np.unique(self._starts[first:end].searchsorted(inner, side="right") - 1)

    @override
    def shortage(self) -> str:
        return self._inner.shortage()

    @override
    def notes(self, name: str) -> list[str]:
        return self._inner.notes(name)
