"""Base classes of the settings of sources of documents and examples."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from plm_jax.common.errors import UserError
from plm_jax.common.roles import Role
from plm_jax.data.sources.corpus import Corpus, Record
from plm_jax.data.sources.prompts import PromptConfig


class SourceRow(NamedTuple):
    """A row of a source: its fields by name, and the name of the row in errors."""

    location: str
    fields: dict[str, Any]


class RowReader(NamedTuple):
    """Reader of the rows of a source with their fields.

    Attributes:
      read: function from the name of a split to the rows of the split.
      splits: names of the splits.
    """

    read: Callable[[str], list[SourceRow]]
    splits: tuple[str, ...]


class Source(Role):
    """A source of documents, or of examples such as inputs and targets or labeled texts.

    Attributes:
      location_fields: names of the settings with the location of the data, which may change without making the cache
        outdated. Relative paths are relative to the folder of the config file.
      prompt: prompt format for `evaluate --shots`; None: the rows cannot be evaluated as prompts.
      texts: names of the fields of a record that are texts; empty for sources without records.
      numbers: names of the fields of a record that are numbers; empty for sources without records.
    """

    location_fields: ClassVar[tuple[str, ...]] = ()
    prompt: PromptConfig | None = None
    texts: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()

    def open(self, name: str) -> Corpus:
        """Opens the source for `prepare`; `name` is its name in the config.

        Raises:
          UserError: the source does not exist or does not fit its settings.
        """
        raise NotImplementedError

    def open_rows(self, name: str) -> RowReader:
        """Returns a reader of the rows with their fields; `name` is the source's name in the config.

        Raises:
          UserError: the rows have no fields.
        """
        raise UserError(
            f"source '{name}' is of kind '{self.kind}', whose rows have no fields: prompts need a table or TFDS"
        )

    def record(self, location: str, row: dict[str, Any]) -> Record | None:
        """Returns the record that `prepare` makes of a row with fields, or None if the source skips the row.

        Args:
          location: name of the row in errors.
          row: fields of the row.

        Raises:
          BadRow: the row does not fit the source.
        """
        raise NotImplementedError

    def rates(self) -> dict[str, float] | None:
        """Returns the rate of each task of a mixture, or None if the source is not a mixture."""
        return None


class TaskSource(Source):
    """A source that TensorFlow reads."""

    @property
    def document_field(self) -> str | None:
        """Name of the feature with the text of a document; None if rows are examples."""
        return None


class TfdsSource(TaskSource):
    """A source of a TensorFlow Datasets builder."""

    name: str
    data_dir: str
    train: str
    validation: str


class RegisteredSource(TaskSource):
    """A task or mixture in seqio's registry, named `name` and registered by the Python module `module`."""

    name: str
    module: str


class InputsTargetsSource(Source):
    """A source of examples with inputs and targets instead of documents."""
