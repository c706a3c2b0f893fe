"""Share of padding in the rows of a phase."""

from collections.abc import Iterable
from typing import NamedTuple, Self

import numpy as np

from plm_jax.data.layouts import Example


class Padding(NamedTuple):
    """Padding of rows.

    Attributes:
      share: share of the tokens of rows, for an encoder-decoder of the targets, that are padding.
      unpacked: the same share if each inner row of packed rows were a row; None if rows are not packed.
    """

    share: float
    unpacked: float | None

    @classmethod
    def of(cls, examples: Iterable[Example], is_packed: bool) -> Self:
        """Returns the padding of some examples. Noise does not shorten rows."""
        real, num_inner = [], 0
        for example in examples:
            has_targets = "decoder_tokens" in example and "target_weights" in example
            real.append(float(example["target_weights" if has_targets or "mask" not in example else "mask"].mean()))
            num_inner += int(example["segment_ids"].max()) if is_packed else 1
        return cls(1 - float(np.mean(real)), 1 - sum(real) / num_inner if is_packed else None)

    def describe(self, rows: int, length: int) -> str:
        """Returns a description of the padding of a batch of `rows` rows of `length`."""
        if self.unpacked is None:
            return f"{rows} rows of {length} have only as many real tokens as {rows * (1 - self.share):.0f} full rows"
        gain = (1 - self.share) / (1 - self.unpacked)
        return (
            f"{self.share:.1%} of packed rows of {length}, {self.unpacked:.1%} without packing; "
            f"a step has {gain:.2f} times as many real tokens"
        )
