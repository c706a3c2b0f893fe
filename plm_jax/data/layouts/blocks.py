"""Documents one after another, cut every so many tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from plm_jax import objectives
from plm_jax.common.errors import UserError
from plm_jax.data.layouts.layout import Example, Layout, Rows, begins_with
from plm_jax.data.layouts.stream import Stream

if TYPE_CHECKING:
    from plm_jax import config
    from plm_jax.data import cache


@dataclass(frozen=True)
class Blocks(Layout):
    """Documents one after another, cut every `length` tokens.

    Attributes:
      attend_across_documents: whether a token sees earlier documents of its block; if not, the batch has segment ids.
      begin: what a decoder reads before each document, by the names of `vocabulary`'s special ids, as in `("bos",)`;
        then every prompt and every example with inputs begins with it, too.
    """

    kind: ClassVar[str] = "blocks"
    plural: ClassVar[str] = "blocks"
    attend_across_documents: bool = True
    begin: tuple[Literal["bos", "cls", "gmask", "sop"], ...] = ()

    def check(self, run: "config.Run", stage: "config.Phase") -> None:
        """What begins documents is fed to decoders, and has an id."""
        super().check(run, stage)
        if self.begin and not run.objective.takes_begin:
            raise UserError(
                f"objective '{run.objective.kind}' has its own marks around texts: leave config.data.layout.begin out"
            )
        for name in self.begin:
            if getattr(run.vocabulary, name) is None:
                raise UserError(f"config.data.layout.begin names {name}: set config.vocabulary.{name}, or leave it out")

    def open(
        self,
        source: "cache.CachedSource",
        split: str,
        length: int,
        seed: int,
        objective: objectives.BoundObjective,
        characters: np.ndarray | None = None,
    ) -> "BlockRows":
        """See `Layout.open`."""
        del seed, characters
        special = objective.special
        stream = Stream(source.splits[split], objective.separator, special.pad, begins_with(self, special))
        needed, stride = objective.input_length(length), objective.stride(length)
        return BlockRows(stream, needed, stride, not self.attend_across_documents, objective.reads)


class BlockRows(Rows):
    """Rows of `length` tokens of a stream, one every `stride`, in one pass.

    They have of what the objective `reads` all that the split has.

    What is left at the stream's end is the last row, short and padded, and in no window.
    """

    def __init__(self, stream: Stream, length: int, stride: int, separate: bool, reads: Sequence[str] = ()):
        self._stream = stream
        self._reads = [name for name in reads if stream.has(name)]
        self._length = length
        self._stride = stride
        self._separate = separate
        self._num_whole = max(0, (stream.num_tokens - length) // stride + 1)
        self.num_rows = max(0, -(-(stream.num_tokens - length + stride) // stride))
        self.pass_tokens = self._num_whole * stride

    def windows(self, window_tokens: int) -> list[np.ndarray]:
        """See `Rows.windows`."""
        starts = np.arange(-(-self._stream.num_tokens // window_tokens) + 1, dtype=np.int64) * window_tokens
        return [np.minimum(-(-starts // self._stride), self._num_whole)]

    def example(self, item: int, rng: np.random.Generator) -> Example:
        """See `Stream.example`; nothing is drawn."""
        del rng
        start = item * self._stride
        stop = min(start + self._length, self._stream.num_tokens)
        made = self._stream.example(start, self._length, self._separate)
        for name in self._reads:
            made[name] = self._stream.starts(name, start, stop)
        return made

    def documents(self, item: int, rng: np.random.Generator) -> range:
        """See `Rows.documents`."""
        del rng
        start = item * self._stride
        return self._stream.numbers(start, min(start + self._length, self._stream.num_tokens))

    def rows_with(self, document: int) -> list[range]:
        """See `Rows.rows_with`."""
        start, stop = self._stream.stretch(document)
        first = max(0, (start - self._length) // self._stride + 1)
        return [range(first, min((stop - 1) // self._stride + 1, self.num_rows))]

    def shortage(self, length: int, batch_size: int) -> str:
        """See `Rows.shortage`."""
        del batch_size
        return (
            f"has {self._stream.num_tokens} training tokens, a row of length {length} takes {self._length}: "
            "lower config.data.length or give more text"
        )
