"""Rows that are blocks of a fixed number of tokens of concatenated documents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from typing_extensions import override

from plm_jax import objectives
from plm_jax.common.errors import UserError
from plm_jax.common.special_ids import SpecialIds
from plm_jax.data.layouts.formats import Example
from plm_jax.data.layouts.layout import Layout, RowRequest, begins_with
from plm_jax.data.layouts.rows import StridedRows
from plm_jax.data.layouts.stream import Stream


@dataclass(frozen=True)
class Blocks(Layout):
    """Concatenated documents, split into blocks of `length` tokens.

    Attributes:
      attend_across_documents: whether tokens attend to other documents in the same block; if not, batches have segment
        ids.
      begin: fields of `config.vocabulary` whose special ids a decoder reads before each document, such as `("bos",)`.
        Prompts and examples with inputs also begin with these ids.
      frames: whether `cls` and `sep` (or `bos` and `eos`) surround each block. If True, there are no separators between
        documents (DeBERTa; microsoft/DeBERTa, experiments/language_model/prepare_data.py).
    """

    kind: ClassVar[str] = "blocks"
    plural: ClassVar[str] = "blocks"
    attend_across_documents: bool = True
    begin: tuple[Literal["bos", "cls", "gmask", "sop"], ...] = ()
    frames: bool = False

    @property
    @override
    def num_texts(self):
        return int(self.frames)

    @property
    @override
    def is_full(self):
        return True

    @override
    def check(
        self, objective: objectives.Objective, special: SpecialIds, length: int, sources: Mapping[str, Any]
    ) -> None:
        super().check(objective, special, length, sources)
        if self.frames and (self.begin or not self.attend_across_documents):
            raise UserError(
                "config.data.layout.frames adds special tokens to rows, not to documents, and no segment ids: leave "
                "out begin, and set attend_across_documents to True"
            )
        if self.begin and not objective.allows_begin:
            raise UserError(
                f"objective '{objective.kind}' adds its own special tokens to texts: remove config.data.layout.begin"
            )
        for name in self.begin:
            if getattr(special, name) is None:
                raise UserError(f"config.data.layout.begin names {name}: set config.vocabulary.{name}, or remove it")

    @override
    def open(self, request: RowRequest) -> "BlockRows":
        objective, special = request.objective, request.objective.special
        if self.frames:
            stream = Stream(request.split, None, special.pad)
            return FramedRows(stream, self.row_format(special), request.length, objective.reads)
        stream = Stream(request.split, objective.separator, special.pad, begins_with(self, special))
        length, stride = objective.input_length(request.length), objective.stride(request.length)
        return BlockRows(stream, length, stride, not self.attend_across_documents, objective.reads)


class BlockRows(StridedRows):
    """Rows of one pass over a stream: one row of `length` tokens begins every `stride` tokens.

    A row includes the columns in `reads` that the split has. Tokens that remain at the end of the stream form the last
    row, which is padded. Training does not read this row.
    """

    def __init__(self, stream: Stream, length: int, stride: int, separate: bool, reads: Sequence[str] = ()):
        super().__init__(stream, length, stride)
        self._reads = [name for name in reads if stream.has(name)]
        self._separate = separate

    @override
    def windows(self, window_tokens: int) -> list[np.ndarray]:
        starts = np.arange(-(-self._stream.num_tokens // window_tokens) + 1, dtype=np.int64) * window_tokens
        return [np.minimum(-(-starts // self.stride), self.num_whole)]

    @override
    def example(self, item: int, rng: np.random.Generator) -> Example:
        start, stop = self.span(item)
        row = self._stream.example(start, self.length, self._separate)
        for name in self._reads:
            row[name] = self._stream.starts(name, start, stop)
        return row

    @override
    def shortage(self) -> str:
        return (
            f"has {self._stream.num_tokens} training tokens, but a row needs {self.length}: "
            "lower config.data.length or add more text"
        )


class FramedRows(BlockRows):
    """Rows of `length` tokens. Each row is a block of a stream, surrounded by special tokens."""

    def __init__(self, stream: Stream, row_format: objectives.RowFormat, length: int, reads: Sequence[str] = ()):
        room = row_format.room(length)
        super().__init__(stream, room, room, False, reads)
        self._format, self._row_length = row_format, length

    @override
    def example(self, item: int, rng: np.random.Generator) -> Example:
        start, stop = self.span(item)
        tokens, _ = self._stream.read(start, stop)
        row, offset = self._format.row([tokens], self._row_length), len(self._format.before)
        return row | {name: offset + self._stream.starts(name, start, stop) for name in self._reads}
