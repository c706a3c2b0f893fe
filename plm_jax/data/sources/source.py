"""Bases of the settings that say where the documents and examples of a run come from."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from plm_jax.common.errors import UserError
from plm_jax.common.roles import Role
from plm_jax.data.sources.corpus import Corpus, Record
from plm_jax.data.sources.prompts import PromptConfig


class SourceRow(NamedTuple):
    """A row's fields by name, and the name of its place in errors."""

    place: str
    fields: dict[str, Any]


class RowReader(NamedTuple):
    """Reader of the rows of a source as they are.

    Attributes:
      read: returns the rows of a split.
      splits: names of the splits.
    """

    read: Callable[[str], list[SourceRow]]
    splits: tuple[str, ...]


class Source(Role):
    """Where text comes from: a corpus, or a task of inputs and targets.

    Attributes:
      places: the fields that say where it lies, and nothing of what it is; relative ones count from the config file.
      prompt: of rows with fields how `evaluate --shots` puts them to a model; None: it does not.
    """

    places: ClassVar[tuple[str, ...]] = ()
    prompt: PromptConfig | None = None

    def open(self, name: str) -> Corpus:
        """Its documents, as `prepare` reads them; `name` is what the config calls it.

        Raises:
          UserError: what the user can mend in it.
        """
        raise NotImplementedError

    def open_rows(self, name: str) -> RowReader:
        """Returns a reader of the rows with their fields; `name` is the source's name in the config.

        Raises:
          UserError: the rows have no fields.
        """
        raise UserError(
            f"source '{name}' is of kind '{self.kind}', whose rows have no fields: prompts need JSONL or TFDS"
        )

    def record(self, place: str, row: dict[str, Any]) -> Record | None:
        """Returns the record that `prepare` makes of a row with fields, or None if the source leaves it out.

        Args:
          place: name of the row in errors.
          row: its fields.

        Raises:
          BadRow: the row does not fit the source.
        """
        raise NotImplementedError

    def rates(self) -> dict[str, float] | None:
        """Of a mixture of tasks the rate of each; None: it is none."""
        return None


class TaskSource(Source):
    """A source that TensorFlow reads."""

    @property
    def document_field(self) -> str | None:
        """Feature that holds the text of a document; None if rows are examples."""
        return None


class TfdsSource(TaskSource):
    """A source of a TensorFlow Datasets builder."""

    name: str
    data_dir: str
    train: str
    validation: str


class RegisteredSource(TaskSource):
    """A source of which seqio's registry knows more; there its name may be that of a mixture."""

    name: str
    module: str


class InputsTargetsSource(Source):
    """A source of examples, with inputs and targets; the others are of documents."""
