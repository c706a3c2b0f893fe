"""Rows of a text and its translation, as in XLM (Conneau and Lample 2019, arXiv:1901.07291)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from plm_jax import objectives
from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.common.special_ids import SpecialIds
from plm_jax.data.layouts.blocks import Blocks
from plm_jax.data.layouts.formats import Example
from plm_jax.data.layouts.layout import Form, Layout, RowRequest, check_length, check_special_ids
from plm_jax.data.layouts.records import RecordRows
from plm_jax.data.layouts.rows import Rows

# Special tokens of a row.
NUM_SPECIAL = 4


@dataclass(frozen=True)
class Translations(Layout):
    """A text and its translation per row, `[CLS] text [SEP] [CLS] translation [SEP]`, from records of two texts.

    In XLM, all four special tokens are `</s>`; to reproduce this, set `cls` and `sep` in `config.vocabulary` to the id
    of `</s>`. Positions restart at the second `[CLS]`. Each half of a row has the token type that `data.token_types`
    sets for its text, such as the id of the language. If `data.token_types` is empty, rows have no token types. If a
    pair is too long, the longer text is truncated at its end until the pair fits or both texts have the same length; if
    necessary, both texts are then truncated equally.

    Attributes:
      swapped: probability that the second text of a record comes first (0.5 in XLM). The order is drawn each time a row
        is read.
      text: layout for sources of monolingual text that are mixed with sources of pairs. Positions do not restart within
        rows of monolingual text.
    """

    kind: ClassVar[str] = "translations"
    plural: ClassVar[str] = "translations"
    least_length: ClassVar[int] = NUM_SPECIAL + 2
    has_positions: ClassVar[bool] = True
    swapped: ranges.Share = 0.0
    text: Layout = field(default=Blocks())

    @override
    def form(self, objective: objectives.Objective) -> Form:
        return "row"

    @property
    @override
    def is_full(self) -> bool:
        return False

    @override
    def row_format(self, special: objectives.Special) -> objectives.RowFormat:
        """Returns the special tokens of a row of two texts, without token types."""
        row_format = objectives.RowFormat.of(special)
        return replace(row_format, between=row_format.after + row_format.before)

    @override
    def check(
        self, objective: objectives.Objective, special: SpecialIds, length: int, sources: Mapping[str, Any]
    ) -> None:
        self._check_form(objective)
        check_special_ids(special, 2, self.plural)
        check_length(length, self.least_length, self.plural)
        for name, source in sources.items():
            if source.texts and len(source.texts) != 2:
                raise UserError(
                    f"config.data.layout '{self.kind}' needs two texts, and source '{name}' has "
                    f"{', '.join(source.texts)}: change the source's texts"
                )
        if single := {name: source for name, source in sources.items() if not source.texts}:
            if self.text.num_texts > 1 or self.text.has_positions or not self.text.attend_across_documents:
                raise UserError(
                    f"rows of config.data.layout.text '{self.text.kind}' do not have the arrays of translations: set "
                    "it to full_sentences, or blocks that attend across documents"
                )
            self.text.check(objective, special, length, single)

    @override
    def blank(self, length: int, objective: objectives.BoundObjective, num_characters: int = 0) -> Example:
        return _row(self.row_format(objective.special), [np.zeros(1, np.int32)] * 2, length, ())

    @override
    def open(self, request: RowRequest) -> Rows:
        if not request.texts:
            return self.text.open(request)
        return TranslationRows(request, self.row_format(request.objective.special), self.swapped)


def _row(row_format: objectives.RowFormat, texts: list[np.ndarray], length: int, types: tuple[int, ...]) -> Example:
    """Returns a row of two texts, which must fit, with positions that start at 0 in each half.

    `types` are the token types of the two halves. If `types` is empty, the row has no token types.
    """
    row = row_format.row(texts, length)
    positions = np.arange(length, dtype=np.int32)
    second = row_format.text_starts([len(text) for text in texts])[1] - len(row_format.before)
    if types:
        row["token_types"] = np.where(positions < second, *types).astype(np.int32)
    positions[second:] -= second
    return row | {"positions": positions}


class TranslationRows(RecordRows):
    """Rows `[CLS] text [SEP] [CLS] translation [SEP]` of `length` tokens, one per record, in a single pass."""

    def __init__(self, request: RowRequest, row_format: objectives.RowFormat, swapped: float):
        super().__init__(request)
        self._format, self._swapped = row_format, swapped
        self._types = tuple(request.token_types[name] for name in request.texts if request.token_types)

    @override
    def example(self, item: int, rng: np.random.Generator) -> Example:
        step = -1 if self._swapped and rng.random() < self._swapped else 1
        spans = self.spans(item)[::step]
        sizes = [stop - start for start, stop in spans]
        sizes = objectives.truncate_longest(sizes, self._format.room(self._length, num_texts=2))
        texts = [self._split.tokens(start, start + size) for (start, _), size in zip(spans, sizes, strict=True)]
        return _row(self._format, texts, self._length, self._types[::step])
