"""The base class `Layout` of the config section `data.layout`, which decides the tokens of each row."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import numpy as np

from plm_jax import objectives
from plm_jax.common.errors import UserError
from plm_jax.common.roles import Role
from plm_jax.common.special_ids import SpecialIds
from plm_jax.data import cache
from plm_jax.data.layouts import formats
from plm_jax.data.layouts.formats import Example
from plm_jax.data.layouts.order import Order, RowOrder
from plm_jax.data.layouts.rows import Rows

Form = Literal["text", "row", "stream", "labeled", "record"]


@dataclass(frozen=True)
class RowRequest:
    """A split to open, and the settings of the rows to make from the split.

    Attributes:
      split: documents of the split.
      name: name of the split, such as `train`.
      identity: hash that identifies the contents of the cache; empty if there is no cache.
      folder: local folder in which indexes of rows are stored.
      length: number of tokens of a row.
      objective: the objective that reads the rows.
      seed: seed for the choices that are drawn when the split is opened.
      characters: characters of each word [vocab_size, C], for layouts that read characters; otherwise None.
      texts: names of the texts of a record; empty if the source has no records.
      token_types: dict from the names of sources and texts to token types; empty if the layout decides the token types.
      fixed_sizes: whether a row must have the same number of tokens each time it is read, so that the row can be
        packed.
    """

    split: cache.DocumentTable
    name: str
    identity: str
    folder: str
    length: int
    objective: objectives.BoundObjective
    seed: int = 0
    characters: np.ndarray | None = None
    texts: tuple[str, ...] = ()
    token_types: Mapping[str, int] = field(default_factory=dict)
    fixed_sizes: bool = False

    @classmethod
    def of(
        cls,
        source: cache.CachedSource,
        name: str,
        length: int,
        objective: objectives.BoundObjective,
        seed: int = 0,
        characters: np.ndarray | None = None,
        token_types: Mapping[str, int] | None = None,
    ) -> Self:
        """Returns the request for the split `name` of a cached source."""
        split, identity, folder = source.splits[name], source.identity, source.folder
        return cls(split, name, identity, folder, length, objective, seed, characters, source.texts, token_types or {})


class Layout(Role):
    """Rule that makes rows of a batch from the tokens of a split.

    A subclass is a frozen dataclass whose fields are settings. It must define `kind`, `plural` and `open`; all other
    members have defaults.

    Attributes:
      plural: plural noun for the rows in error messages.
      num_texts: number of texts in a row with special ids around its texts, such as 2 for `[CLS] A [SEP] B [SEP]`; 0
        for other rows and for translations.
      num_token_types: number of token types of rows with several texts.
      least_length: minimum length of a row in tokens.
      attend_across_documents: whether a token attends to other documents in the same row; if not, rows have segment
        ids.
      begin: fields of `config.vocabulary` with the special ids that precede each document.
      continues_rows: whether row r of each batch continues row r of the previous batch, so that a model keeps its
        recurrent state.
      labels_pairs: whether rows are pairs with a `pair_label`.
      has_positions: whether the layout makes `positions` for some rows. The reader then adds positions that count from
        0 to all other rows.
    """

    plural: ClassVar[str]
    num_texts: ClassVar[int] = 0
    num_token_types: ClassVar[int] = 2
    least_length: ClassVar[int] = 1
    attend_across_documents: ClassVar[bool] = True
    begin: ClassVar[tuple[str, ...]] = ()
    continues_rows: ClassVar[bool] = False
    labels_pairs: ClassVar[bool] = False
    has_positions: ClassVar[bool] = False

    def open(self, request: RowRequest) -> Rows:
        """Returns the rows of a split.

        Raises:
          UserError: an index of the rows is damaged or cannot be written, or the split does not fit the layout.
        """
        raise NotImplementedError

    def order(self, rows: Rows, window_tokens: int, batch_size: int, seed: int, name: str) -> RowOrder:
        """Returns the order in which training reads the rows of source `name`; by default, the random `Order`.

        Args:
          window_tokens: number of tokens of a window, within which rows are shuffled.
          batch_size: number of rows of a batch, for layouts whose rows continue the previous batch.

        Raises:
          UserError: the layout does not support this batch size.
        """
        return Order(rows, window_tokens, seed, name)

    def form(self, objective: objectives.Objective) -> Form:
        """Returns the form of the rows, such as `text`; `Objective.inputs` describes the forms.

        `check` rejects a form that is not in the objective's `inputs`.
        """
        return "row" if self.num_texts else "text"

    def reads_characters(self, objective: objectives.Objective) -> bool:
        """Whether rows are made of the characters of words. `RowRequest.characters` is then needed."""
        return False

    @property
    def is_full(self) -> bool:
        """Whether rows have little or no padding. If not, a run reports the padding."""
        return not self.num_texts

    def blank(self, length: int, objective: objectives.BoundObjective, num_characters: int = 0) -> Example:
        """Returns a row of placeholder tokens, from which `noising.blank` makes an example.

        Args:
          num_characters: number of characters of a word, for layouts that read characters.
        """
        if self.form(objective.settings) == "row":
            texts = [np.zeros(1, np.int32)] * self.num_texts
            return self.row_format(objective.special).row(texts, length)
        tokens = np.zeros(objective.input_length(length), np.int32)
        return formats.make_row(tokens, np.zeros(0, np.int64), len(tokens), not self.attend_across_documents)

    def target_length(self, objective: objectives.Objective, length: int) -> int:
        """Returns the number of slots for targets in a row of `length` tokens."""
        return objective.target_length(length)

    def packing(self, objective: objectives.BoundObjective, length: int) -> objectives.PackedFormat | None:
        """Returns the shapes of packed rows; None if rows are not packed."""
        return None

    def row_format(self, special: objectives.Special) -> objectives.RowFormat:
        """Returns the special tokens around the texts of a row.

        Rows of two texts also have `token_types`: 0 up to and including the first `[SEP]`, 1 for the second text and
        its `[SEP]`, and 0 at padding.

        Raises:
          UserError: the vocabulary has neither the pair cls and sep nor the pair bos and eos.
        """
        return objectives.RowFormat.of(special, has_types=self.num_texts > 1)

    def check(
        self, objective: objectives.Objective, special: SpecialIds, length: int, sources: Mapping[str, Any]
    ) -> None:
        """Checks that the layout fits the settings of a phase.

        Args:
          special: the special ids of the vocabulary.
          length: number of tokens of a row.
          sources: settings of the sources that are read, by name.

        Raises:
          UserError: the objective does not read these rows, a source does not fit the layout, `length` is too small, or
            the vocabulary lacks special ids.
        """
        self._check_form(objective)
        for name, source in sources.items():
            if bool(source.texts) != (self.form(objective) == "record"):
                kind = "has records" if source.texts else "has no records of named texts"
                raise UserError(
                    f"source '{name}' {kind}, but config.data.layout is '{self.kind}': change config.data.layout or "
                    "the source"
                )
        if self.num_texts:
            check_special_ids(special, self.num_texts, self.plural)
        check_length(length, self.least_length, self.plural)

    def _check_form(self, objective: objectives.Objective) -> None:
        form, accepted = self.form(objective), objective.inputs
        if form in accepted:
            return
        if "labeled" in (form, *accepted):
            raise UserError(
                f"objective '{objective.kind}' does not read config.data.layout '{self.kind}': use labeled with "
                "classification, regression, tagging, span_extraction and multiple_choice, and only with them"
            )
        if "record" in (form, *accepted):
            raise UserError(
                f"objective '{objective.kind}' does not read config.data.layout '{self.kind}': use records with "
                "objectives that read named texts, and only with them"
            )
        if "stream" in (form, *accepted):
            raise UserError(
                f"objective '{objective.kind}' does not read config.data.layout '{self.kind}': use streams with "
                "bidirectional_lm, and only with it"
            )
        raise UserError(
            f"objective '{objective.kind}' adds its own special tokens, but rows of {self.plural} already have some: "
            "use masked_lm, or blocks as config.data.layout"
        )


def check_length(length: int, least: int, plural: str) -> None:
    """Raises a `UserError` if `length` is below `least`; `plural` is the noun for the rows in the message."""
    if length < least:
        raise UserError(f"config.data.length is {length}: {plural} need at least {least}")


def check_special_ids(special: SpecialIds, num_texts: int, plural: str) -> None:
    """Raises a `UserError` if the vocabulary lacks the special ids around texts.

    They are cls and sep; for rows of one text, bos and eos suffice. `plural` is the noun for the rows in the message.
    """
    if None not in (special.cls, special.sep):
        return
    if num_texts > 1:
        raise UserError(f"{plural} need special ids: set config.vocabulary.cls and config.vocabulary.sep")
    if None in (special.bos, special.eos):
        raise UserError(
            f"{plural} need special ids around them: set config.vocabulary.cls and config.vocabulary.sep, "
            "or config.vocabulary.bos and config.vocabulary.eos"
        )


def begins_with(layout: Layout, special: SpecialIds) -> list[int]:
    """Returns the special ids that a layout puts before each document."""
    return [getattr(special, name) for name in layout.begin]
