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
    """A text-to-text objective for a decoder, which reads the inputs and continues with the targets.

    As in Raffel et al. 2020 §3.2.1, inputs and targets each end with eos and share a row; only the targets are
    predicted. Rows are padded to the maximum length that follows from `TextToText.lengths`.

    Attributes:
      noise: text-to-text objective that turns a text into inputs and targets.
      prefix: whether attention within the inputs is bidirectional instead of causal (the "prefix LM" in table 2 of
        Raffel et al. 2020).
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
        """Returns the number of tokens of text from which a row of `length` is made.

        Raises:
          UserError: no number of tokens makes such a row.
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
        """Returns the row of an example; `example` is the same as in `TextToText.apply`.

        Returns:
          `tokens` [L] int32: inputs, eos, targets and padding. `targets` [L] int32: the same shifted left by one, with
          eos after the targets. `target_weights` [L] float32: 1 at the targets and the eos after them, else 0. If
          `prefix`, also `prefix_lengths` [] int32: the number of input tokens including eos.
        """
        length = _row_length(self.noise, len(example["tokens"]))
        noised = self.noise.apply(example, special, rng)
        inputs, targets = noised["tokens"][noised["mask"] > 0], noised["targets"][noised["target_weights"] > 0]
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
    """Returns the length of a row: inputs, eos and targets. The eos after the targets is only predicted."""
    return sum(noise.lengths(num_tokens)) - 1


@functools.cache
def _input_length(noise: TextToText, length: int) -> int:
    num_tokens = 1
    while _row_length(noise, num_tokens + 1) <= length:
        num_tokens += 1
    if (nearest := _row_length(noise, num_tokens)) != length:
        name = noise.kind.replace("_", " ")
        lengths = [nearest, _row_length(noise, num_tokens + 1)] if nearest < length else [nearest]
        raise UserError(
            f"{name} for a decoder cannot make a row of length {length}: set config.data.length to "
            f"{' or '.join(map(str, lengths))}"
        )
    return num_tokens
