"""Padding of rows: the share of padding in a phase, and the number of padding tokens in a batch."""

from collections.abc import Iterable
from typing import NamedTuple, Self

import numpy as np

from plm_jax.data.layouts import Example


class Padding(NamedTuple):
    """Padding of rows.

    Attributes:
      share: share of tokens that are padding, as `of` counts them.
      unpacked: share of padding if each inner row were a row of its own; None if the rows are not packed.
    """

    share: float
    unpacked: float | None

    @classmethod
    def of(cls, examples: Iterable[Example], is_packed: bool) -> Self:
        """Returns the padding of one or more examples.

        For an encoder-decoder, only the targets are counted, because noise also shortens the inputs. For examples
        without `mask`, tokens without a target count as padding.
        """
        real, num_inner = [], 0
        for example in examples:
            has_targets = "decoder_tokens" in example and "target_weights" in example
            real.append(float(example["target_weights" if has_targets or "mask" not in example else "mask"].mean()))
            num_inner += int(example["segment_ids"].max()) if is_packed else 1
        return cls(1 - float(np.mean(real)), 1 - sum(real) / num_inner if is_packed else None)

    def describe(self, rows: int, length: int) -> str:
        """Returns a text about the padding of a batch that has `rows` rows of `length` tokens."""
        if self.unpacked is None:
            full_rows = f"{rows * (1 - self.share):.0f} full rows"
            return f"{rows} rows of {length} have only as many non-padding tokens as {full_rows}"
        gain = (1 - self.share) / (1 - self.unpacked)
        return (
            f"{self.share:.1%} of packed rows of {length}, {self.unpacked:.1%} without packing; "
            f"a step has {gain:.2f} times as many non-padding tokens"
        )


def count_padding(batch: Example) -> np.ndarray:
    """Returns the number of padding tokens of each example of a batch, uint32 [B].

    For an encoder-decoder, this is the sum over inputs and targets. Rows that do not mark padding count as rows without
    padding.

    Args:
      batch: batch as the reader yields it, with arrays [B, …].
    """
    count = len(next(iter(batch.values())))
    padding = np.zeros(count, np.int64)
    for is_padding in (_of_tokens(batch), _of_decoder(batch)):
        if is_padding is not None:
            padding += is_padding.reshape(count, -1).sum(1)
    return padding.astype(np.uint32)


def _of_tokens(batch: Example) -> np.ndarray | None:
    """Returns which input tokens are padding, or None if the batch does not show this."""
    for key in ("mask", "segment_ids"):
        if key in batch:
            return batch[key] == 0
    if "target_weights" not in batch or "decoder_tokens" in batch:
        return None
    weights = batch["target_weights"]
    if "characters" in batch:  # Both directions read the same tokens.
        return weights[:, 0] == 0
    tokens = batch["tokens"]
    index, is_target = np.arange(tokens.shape[-1]), weights > 0
    if "target_positions" in batch:  # The last tokens of such a row are targets.
        ends = np.where(is_target, batch["target_positions"] + 1, 0).max(-1)
        return index >= ends[..., None]
    # In a decoder's row, the token after the last input that has a target is this target, or padding.
    ends = np.where(is_target, index + 1, 0).max(-1)[..., None]
    last, following = np.maximum(ends - 1, 0), np.minimum(ends, len(index) - 1)
    repeats = np.take_along_axis(tokens, following, -1) == np.take_along_axis(batch["targets"], last, -1)
    return index >= ends + repeats


def _of_decoder(batch: Example) -> np.ndarray | None:
    """Returns which decoder tokens are padding, or None if there are none or the batch does not mark padding."""
    if "decoder_tokens" not in batch:
        return None
    key = next((key for key in ("decoder_segment_ids", "decoder_mask", "target_weights") if key in batch), None)
    return None if key is None else batch[key] == 0
