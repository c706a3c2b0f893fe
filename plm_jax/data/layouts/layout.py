"""What a layout is: the role of a config that says which tokens make each row, and the rows that its opening gives."""

import abc
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from plm_jax import objectives
from plm_jax.common.errors import UserError
from plm_jax.common.roles import Role
from plm_jax.data.layouts import formats
from plm_jax.data.layouts.order import Order

if TYPE_CHECKING:
    from plm_jax import config
    from plm_jax.data import cache

Example = formats.Example
Form = Literal["text", "row", "stream", "labelled"]


class Rows(abc.ABC):
    """A split in rows, as an opened layout gives them; safe to read from several threads.

    Rows are numbered in the order of the text, and on over passes: different ways to go through the whole split.

    Attributes:
      num_rows: rows 0 to num_rows - 1 are all of the split once, in order.
      pass_tokens: the tokens by which the rows of a pass advance in all.
      examples_a_row: of a source with inputs and targets, how many there are in a row on average.
      is_finished: whether rows are as a model reads them, and no objective makes anything of them.
    """

    num_rows: int
    pass_tokens: int
    examples_a_row: float = 1.0
    is_finished: ClassVar[bool] = False

    @abc.abstractmethod
    def windows(self, window_tokens: int) -> list[np.ndarray]:
        """For each pass the first row of each window [windows + 1], and the end.

        A row belongs to the window of `window_tokens` that it starts in, so windows are the same tokens at every
        length.
        """

    @abc.abstractmethod
    def example(self, item: int, rng: np.random.Generator) -> Example:
        """Row number `item`, as an objective takes it; `rng` makes what is drawn anew each time."""

    def documents(self, item: int, rng: np.random.Generator) -> Iterable[int]:
        """The numbers of the documents that row number `item` has text of, drawn by `rng` as `example` draws.

        None by default: of a layout of a user's own they are not known.
        """
        del item, rng
        return ()

    def rows_with(self, document: int) -> Iterable[np.ndarray | range]:
        """The numbers of the rows that may have text of a document, of each pass; `documents` tells which have it."""
        raise UserError(f"{type(self).__name__} does not tell of which documents its rows are: give it `rows_with`")

    def order(self, window_tokens: int, batch_size: int, seed: int, name: str) -> Any:
        """In which order training reads the rows, as `Order` tells; `name` is the source's."""
        del batch_size
        return Order(self, window_tokens, seed, name)

    def shortage(self, length: int, batch_size: int) -> str:
        """What an error says of a source whose split gives no row, and what to do."""
        del length, batch_size
        return "has too little training text for a row: lower config.data.length or give more text"

    def notes(self, name: str) -> list[str]:
        """What a run tells its user of the rows of a source: what they leave out."""
        del name
        return []


class Layout(Role):
    """Which tokens make each row of a batch.

    A choice is a frozen dataclass of settings that sets `kind` and opens itself; its `blank` and `check` say the rest.

    Attributes:
      plural: what errors call its rows.
      attend_across_documents: whether a token sees earlier documents of its row; if not, rows have segment ids.
      begin: the special ids before each document, by their names in a config's `vocabulary`.
      goes_on: whether a row of a batch goes on where the same row of the batch before ended, and so the state of a
        model that has one.
      labels_pairs: whether its rows are pairs with a `pair_label`.
    """

    plural: ClassVar[str]
    attend_across_documents: ClassVar[bool] = True
    begin: ClassVar[tuple[str, ...]] = ()
    goes_on: ClassVar[bool] = False
    labels_pairs: ClassVar[bool] = False

    def open(
        self,
        source: "cache.CachedSource",
        split: str,
        length: int,
        seed: int,
        objective: objectives.BoundObjective,
        characters: np.ndarray | None = None,
    ) -> Rows:
        """A source's split in rows of `length`.

        Args:
          characters: [vocab_size, C], those of each word, where the layout reads them.

        Raises:
          UserError: an index of its rows that is damaged or cannot be written.
        """
        raise NotImplementedError

    def gives(self, objective: objectives.Objective) -> Form:
        """The form of its rows, of those that an objective `takes`."""
        del objective
        return "text"

    def reads_characters(self, objective: objectives.Objective) -> bool:
        """Whether `open` takes the characters of words."""
        del objective
        return False

    def is_full(self) -> bool:
        """Whether padding is at the end of a split alone; if not, a run says how much there is."""
        return True

    def blank(self, length: int, objective: objectives.BoundObjective, num_characters: int = 0) -> Example:
        """A row without text: keys, shapes and types of all that opened rows give.

        Args:
          num_characters: of a word, where the layout reads them.
        """
        del num_characters
        tokens = np.zeros(objective.input_length(length), np.int32)
        return formats.stretch(tokens, np.zeros(0, np.int64), len(tokens), not self.attend_across_documents)

    def check(self, run: "config.Run", stage: "config.Phase") -> None:
        """What the layout asks of a run's other parts, and of the rows of a stage.

        Raises:
          UserError: the objective does not take its rows, or another thing is missing.
        """
        del stage
        form, takes = self.gives(run.objective), run.objective.takes
        if form in takes:
            return
        if "labelled" in (form, *takes):
            raise UserError(
                f"objective '{run.objective.kind}' does not read config.data.layout '{self.kind}': labelled is the "
                "layout of classification, regression, tagging, span_extraction and multiple_choice, and of them alone"
            )
        if "stream" in (form, *takes):
            raise UserError(
                f"objective '{run.objective.kind}' does not read config.data.layout '{self.kind}': bidirectional_lm "
                "reads streams, all others read the other layouts"
            )
        raise UserError(
            f"objective '{run.objective.kind}' makes rows of its own, {self.plural} are a row: "
            "choose masked_lm, or blocks as config.data.layout"
        )


def check_length(length: int, least: int, plural: str) -> None:
    """Refuses rows too short for a layout."""
    if length < least:
        raise UserError(f"config.data.length is {length}: {plural} take at least {least}")


def begins_with(layout: Layout, special: objectives.Special) -> list[int]:
    """The special ids before each document."""
    return [getattr(special, name) for name in layout.begin]


def check_around(vocabulary: "config.VocabularyConfig", plural: str) -> None:
    """Refuses rows between marks without special ids for these."""
    if None in (vocabulary.cls, vocabulary.sep) and None in (vocabulary.bos, vocabulary.eos):
        raise UserError(
            f"{plural} need special ids around them: set config.vocabulary.cls and config.vocabulary.sep, "
            "or config.vocabulary.bos and config.vocabulary.eos"
        )
