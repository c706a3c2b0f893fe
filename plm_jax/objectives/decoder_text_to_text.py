"""Text-to-text objectives for decoders."""

import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from plm_jax.common.errors import UserError
from plm_jax.objectives import rows
from plm_jax.objectives.examples import DecoderRows
from plm_jax.objectives.objective import Objective
from plm_jax.objectives.span_corruption import SpanCorruption
from plm_jax.objectives.special import Special
from plm_jax.objectives.text_to_text import TextToText


@dataclass(frozen=True)
class DecoderTextToText(Objective):
    """A decoder reads the inputs of a text-to-text objective and goes on with its targets (Raffel et al. 2020 §3.2.1).

    Both end with eos and share a row; the targets alone are predicted. Where a row has fewer than it may, as
    `TextToText.lengths` says, it ends with padding.

    Attributes:
      noise: what makes inputs and targets of a text.
      prefix: whether the inputs see all of themselves, the "prefix LM" of that paper's table 2, or what is before them.
    """

    kind: ClassVar[str] = "decoder_text_to_text"
    architectures: ClassVar[tuple[str, ...]] = ("decoder",)
    targets: ClassVar[str] = "the targets of a text-to-text objective after its inputs, and the end token"
    example_rows: ClassVar[type | None] = DecoderRows
    noise: TextToText = SpanCorruption()
    prefix: bool = False

    @property
    @override
    def has_prefix(self) -> bool:
        return self.prefix

    @override
    def input_length(self, length: int) -> int:
        """How many tokens become a row of `length`.

        Raises:
          UserError: no number does.
        """
        return _input_length(self.noise, length)

    @property
    @override
    def separators(self) -> tuple[str, ...]:
        return self.noise.separators

    @override
    def apply(
        self, example: dict[str, np.ndarray], special: Special, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Makes the row, L long; `TextToText.apply` tells the example, and what it may lack.

        Returns:
          `tokens`, `targets` [L] int32: inputs, eos, targets, eos and padding, the latter shifted left by one.
          `target_weights` [L] float32, 1 at targets and their eos. With a `prefix`, `prefix_lengths` [] int32, how many
          of `tokens` are the inputs and their eos.
        """
        length = _row_length(self.noise, len(example["tokens"]))
        made = self.noise.apply(example, special, rng)
        inputs, targets = made["tokens"][made["mask"] > 0], made["targets"][made["target_weights"] > 0]
        whole = np.concatenate([inputs, targets])
        size, pad = len(whole) - 1, special.pad or 0
        weights = np.zeros(length, np.float32)
        weights[len(inputs) - 1 : size] = 1
        row = {
            "tokens": rows.padded(whole[:-1], size, length, pad),
            "targets": rows.padded(whole[1:], size, length, pad),
            "target_weights": weights,
        }
        return row | ({"prefix_lengths": np.array(len(inputs), np.int32)} if self.prefix else {})


def _row_length(noise: TextToText, num_tokens: int) -> int:
    """Of a row of inputs and targets, each with eos, without the last eos, which is a target alone."""
    return sum(noise.lengths(num_tokens)) - 1


@functools.cache
def _input_length(noise: TextToText, length: int) -> int:
    num_tokens = 1
    while _row_length(noise, num_tokens + 1) <= length:
        num_tokens += 1
    if (found := _row_length(noise, num_tokens)) != length:
        name = noise.kind.replace("_", " ")
        others = [found, _row_length(noise, num_tokens + 1)] if found < length else [found]
        raise UserError(
            f"{name} for a decoder makes no row of length {length}: set config.data.length to "
            f"{' or '.join(map(str, others))}"
        )
    return num_tokens
