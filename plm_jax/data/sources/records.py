"""Sources of records: rows of tables with several named texts and numbers."""

from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from plm_jax.common.errors import UserError
from plm_jax.data.cache.columns import Column
from plm_jax.data.sources import row_fields
from plm_jax.data.sources.corpus import Record
from plm_jax.data.sources.files import TableSource


@dataclass(frozen=True)
class RecordTable(TableSource):
    """Records of several texts and numbers, such as preferences, rankings or parallel text, in the rows of tables.

    Objectives of the layout `records` read texts and numbers by the names of their fields. A document of the cache is a
    record, and its sentences are its texts.

    Attributes:
      path: path of the training files, as in `TextTable`.
      texts: names of the fields with texts. The first text decides whether the record is held out, unless `group` is
        set.
      numbers: names of the fields with numbers.
      validation: path of the validation files; may be a glob; if empty, some of the training records are held out.
    """

    kind: ClassVar[str] = "record_table"
    location_fields: ClassVar[tuple[str, ...]] = ("path", "validation")
    path: str
    texts: tuple[str, ...]
    numbers: tuple[str, ...] = ()
    validation: str = ""

    def __post_init__(self):
        names = (*self.texts, *self.numbers)
        if not self.texts or len(set(names)) < len(names):
            texts, numbers = (", ".join(fields) or "()" for fields in (self.texts, self.numbers))
            raise UserError(f"a source has texts {texts} and numbers {numbers}: name a text, and each field only once")

    @property
    @override
    def columns(self) -> tuple[Column, ...]:
        return tuple(Column(name, "<f4", "document") for name in self.numbers)

    @property
    @override
    def fields(self) -> set[str]:
        return {*self.texts, *self.numbers, self.group} - {""}

    @override
    def _record(self, location: str, row: dict[str, Any]) -> Record:
        first, *rest = (row_fields.text(location, row, name) for name in self.texts)
        values = {name: row_fields.number(location, row, name) for name in self.numbers}
        return Record(first, tuple(rest), values=values)
