"""Rows of records: one row per record of several named texts and numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from plm_jax import objectives
from plm_jax.common.errors import UserError, nearest
from plm_jax.common.special_ids import SpecialIds
from plm_jax.data import cache
from plm_jax.data.layouts import index
from plm_jax.data.layouts.layout import Form, Layout, RowRequest
from plm_jax.data.layouts.rows import Rows


@dataclass(frozen=True)
class Records(Layout):
    """Records of the source `record_table`, for objectives that read named texts and numbers.

    An example has the tokens of each text and the value of each number that the objective reads, and the `length` of a
    row. The objective adds special tokens and truncates the texts.
    """

    kind: ClassVar[str] = "records"
    plural: ClassVar[str] = "records"

    @override
    def form(self, objective: objectives.Objective) -> Form:
        return "record"

    @property
    @override
    def is_full(self) -> bool:
        return False

    @override
    def check(
        self, objective: objectives.Objective, special: SpecialIds, length: int, sources: Mapping[str, Any]
    ) -> None:
        super().check(objective, special, length, sources)
        for name, source in sources.items():
            for field in ("texts", "numbers"):
                available = getattr(source, field)
                for needed in getattr(objective, field):
                    if needed not in available:
                        raise UserError(
                            f"objective '{objective.kind}' reads '{needed}', which is not among the {field} of source "
                            f"'{name}': {nearest(needed, available)}"
                        )

    @override
    def blank(self, length: int, objective: objectives.BoundObjective, num_characters: int = 0) -> dict[str, Any]:
        settings = objective.settings
        texts = {name: np.zeros(0, np.int32) for name in settings.texts}
        return {"length": length} | texts | dict.fromkeys(settings.numbers, np.zeros((), np.float32))

    @override
    def open(self, request: RowRequest) -> "RecordRows":
        return RecordRows(request)


class RecordRows(Rows):
    """Records of a split; there is a single pass over the split."""

    def __init__(self, request: RowRequest):
        assert isinstance(request.split, cache.Split)
        self._split, self._length, self._texts = request.split, request.length, request.texts
        self._objective = request.objective.settings
        self._documents, self._starts = np.asarray(self._split.documents), np.asarray(self._split.sentences)
        if len(self._starts) != len(self._texts) * self._split.num_documents:
            raise UserError("the records of a cache do not have the texts of its source: prepare it again")
        self.num_rows, self.pass_tokens = self._split.num_documents, self._split.num_tokens

    @override
    def windows(self, window_tokens: int) -> list[np.ndarray]:
        return [self._documents[:-1].searchsorted(index.window_edges(self.pass_tokens, window_tokens))]

    def spans(self, item: int) -> list[tuple[int, int]]:
        """Returns the span [start, stop) of tokens of each text of a record, in the order of the source's `texts`."""
        first = item * len(self._texts)
        starts = self._starts[first : first + len(self._texts)].tolist()
        return list(zip(starts, [*starts[1:], self._split.span(item)[1]], strict=True))

    @override
    def example(self, item: int, rng: np.random.Generator) -> dict[str, Any]:
        texts = {
            name: self._split.tokens(start, stop)
            for name, (start, stop) in zip(self._texts, self.spans(item), strict=True)
        }
        numbers = {name: self._split.of_document(name, item) for name in self._objective.numbers}
        return {"length": self._length} | {name: texts[name] for name in self._objective.texts} | numbers

    @override
    def documents(self, item: int, rng: np.random.Generator) -> list[int]:
        return [item]

    @override
    def rows_with(self, document: int) -> list[range]:
        return [range(document, document + 1)]
