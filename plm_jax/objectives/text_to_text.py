"""What text-to-text objectives share: how long their rows are, sentinels, the rows of an encoder and a decoder.

The noises are those of Raffel et al. 2020 (arXiv:1910.10683), as `preprocessors.py` of
google-research/text-to-text-transfer-transformer makes them: a mask says which tokens are noise, one rule makes the
inputs of tokens and mask, another the targets.
"""

import bisect
import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int, Integer, Num
from typing_extensions import override

from plm_jax.common.errors import UserError
from plm_jax.objectives import rows
from plm_jax.objectives.examples import EncoderDecoderRows
from plm_jax.objectives.objective import Objective
from plm_jax.objectives.special import Special


@dataclass(frozen=True)
class TextToText(Objective):
    """The base of objectives that make inputs and targets of a text; by default both may be as long as the text."""

    architectures: ClassVar[tuple[str, ...]] = ("encoder_decoder",)
    example_rows: ClassVar[type | None] = EncoderDecoderRows
    separators: ClassVar[tuple[str, ...]] = ()  # T5 joins documents without one.

    def lengths(self, num_tokens: int) -> tuple[int, int]:
        """Lengths of the encoder's and the decoder's row for so many tokens, each with eos."""
        return num_tokens + 1, num_tokens + 1

    def num_sentinels(self, num_tokens: int) -> int:
        """How many sentinels a row of so many tokens takes."""
        return 0

    @override
    def input_length(self, length: int) -> int:
        """The most tokens that become an encoder row of `length`.

        Raises:
          UserError: no number does.
        """
        return _input_length(self, length)

    @override
    def target_length(self, length: int) -> int:
        """Length of the decoder's row beside an encoder row of `length`."""
        return self.lengths(self.input_length(length))[1]

    def corrupt(
        self, tokens: Integer[np.ndarray, " length"], special: Special, rng: np.random.Generator
    ) -> tuple[Integer[np.ndarray, " inputs"], Integer[np.ndarray, " targets"]]:
        """Inputs and targets of `tokens` [n], neither with eos."""
        raise NotImplementedError

    @override
    def apply(
        self, example: dict[str, np.ndarray], special: Special, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Makes the two rows.

        Args:
          example: `tokens` [input_length(L)]; `mask` of that shape, 0 at padding behind the text, may be left out where
            there is none.

        Returns:
          `tokens` and `mask` [L] int32: the inputs and eos. `targets` [T] int32 and `target_weights` [T] float32, T =
          `target_length(L)`: the targets, cut where they are too long, and eos. `decoder_tokens` [T] int32: the targets
          shifted right behind pad (0 if there is none).

        Raises:
          UserError: the vocabulary has no eos or fewer sentinels than a row needs; documents are kept apart.
        """
        tokens = np.asarray(example["tokens"], np.int32)
        self._check(example, special, len(tokens))
        length, target_length = self.lengths(len(tokens))
        if "mask" in example:
            tokens = tokens[: np.count_nonzero(example["mask"])]
        inputs, targets = self.corrupt(tokens, special, rng)
        row, mask = _ended(inputs, length, special, np.int32)
        return {"tokens": row, "mask": mask} | decoder(*_ended(targets, target_length, special, np.float32), special)

    def _check(self, example: dict[str, np.ndarray], special: Special, num_tokens: int) -> None:
        name, needed = self.kind.replace("_", " "), self.num_sentinels(num_tokens)
        if special.eos is None:
            raise UserError(f"{name} ends its rows with eos: set config.vocabulary.eos")
        if len(special.sentinels) < needed:
            raise UserError(
                f"{name} takes {needed} sentinels a row, the vocabulary has {len(special.sentinels)}: "
                f"set config.vocabulary.sentinels to at least {needed}"
            )
        rows.check_joined(example, name)


@functools.cache
def _input_length(settings: TextToText, length: int) -> int:
    end = 2
    while settings.lengths(end)[0] <= length:
        end *= 2
    num_tokens = bisect.bisect_right(range(1, end), length, key=lambda n: settings.lengths(n)[0])
    if num_tokens < 1 or settings.lengths(num_tokens)[0] != length:
        name = settings.kind.replace("_", " ")
        raise UserError(f"{name} makes no row of length {length}: change config.data.length")
    return num_tokens


def _ended(
    values: Integer[np.ndarray, " values"], length: int, special: Special, dtype: type
) -> tuple[Int[np.ndarray, " {length}"], Num[np.ndarray, " {length}"]]:
    """A row [length] of `values`, eos and padding, and 1 where it is real, 0 at padding."""
    size = min(len(values), length - 1)
    row = rows.padded(values[:size], size, length, special.pad or 0)
    row[size] = special.required("eos")
    return row, rows.padded(1, size + 1, length, dtype=dtype)


def decoder(
    targets: Int[np.ndarray, " length"], weights: Float[np.ndarray, " length"], special: Special
) -> dict[str, np.ndarray]:
    """A decoder's part of an example: `targets`, `target_weights`, and `decoder_tokens`, shifted right behind pad."""
    decoder_tokens = np.full_like(targets, special.pad or 0)
    decoder_tokens[1:] = targets[:-1]
    return {"decoder_tokens": decoder_tokens, "targets": targets, "target_weights": weights}


def with_sentinels(
    tokens: Integer[np.ndarray, " length"], cut: Bool[np.ndarray, " length"], special: Special
) -> Int[np.ndarray, " row"]:
    """`tokens` with a sentinel of its own for each stretch of `cut` ones, a mask [n]."""
    first = cut.copy()
    first[1:] &= ~cut[:-1]
    (starts,) = first.nonzero()
    kept = ~cut
    return weave(tokens[kept], kept.cumsum()[starts], special)


def weave(
    text: Integer[np.ndarray, " length"], before: Int[np.ndarray, " sentinels"], special: Special
) -> Int[np.ndarray, " row"]:
    """`text` with a sentinel in front of each of its tokens `before`, rising; its length stands for its end."""
    row = np.empty(len(text) + len(before), np.int32)
    is_text = np.ones(len(row), np.bool_)
    at = before + np.arange(len(before))
    is_text[at] = False
    row[is_text] = text
    row[at] = special.sentinels[: len(before)]
    return row
