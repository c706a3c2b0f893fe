"""The base of text-to-text objectives: lengths of rows, sentinels, and the rows of an encoder and a decoder.

The noise follows Raffel et al. 2020 (arXiv:1910.10683) and `preprocessors.py` of
google-research/text-to-text-transfer-transformer: a mask marks noise tokens; one rule makes the inputs from the tokens
and the mask, and another rule makes the targets.
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
    """The base of objectives that turn a text into inputs and targets; by default both may be as long as the text."""

    architectures: ClassVar[tuple[str, ...]] = ("encoder_decoder",)
    example_rows: ClassVar[type | None] = EncoderDecoderRows
    separators: ClassVar[tuple[str, ...]] = ()  # T5 joins documents without one.

    def lengths(self, num_tokens: int) -> tuple[int, int]:
        """Returns the lengths of the encoder's row and of the decoder's row for `num_tokens` tokens, both with eos."""
        return num_tokens + 1, num_tokens + 1

    def num_sentinels(self, num_tokens: int) -> int:
        """Returns the number of sentinels that a text of `num_tokens` tokens needs."""
        return 0

    @override
    def input_length(self, length: int) -> int:
        """Returns the maximum number of text tokens whose encoder row has exactly `length` tokens.

        Raises:
          UserError: no number of tokens makes such a row.
        """
        return _input_length(self, length)

    @override
    def target_length(self, length: int) -> int:
        """Returns the length of the decoder's row for an encoder row of `length`."""
        return self.lengths(self.input_length(length))[1]

    def corrupt(
        self, tokens: Integer[np.ndarray, " length"], special: Special, rng: np.random.Generator
    ) -> tuple[Integer[np.ndarray, " inputs"], Integer[np.ndarray, " targets"]]:
        """Returns the inputs and the targets that are made from the tokens [n] of a text, without eos."""
        raise NotImplementedError

    @override
    def apply(
        self, example: dict[str, np.ndarray], special: Special, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Returns the encoder's and the decoder's row.

        Args:
          example: `tokens` [input_length(L)]; optionally `mask` of the same shape, 0 at padding after the text.

        Returns:
          `tokens` and `mask` [L] int32: the inputs and eos. `targets` [T] int32 and `target_weights` [T] float32: the
          targets, truncated if they are too long, and eos, with T = `target_length(L)`. `decoder_tokens` [T] int32: the
          targets shifted right by one, with pad as the first token (0 if the vocabulary has no pad).

        Raises:
          UserError: the vocabulary has no eos or too few sentinels, or the row has `segment_ids`.
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
            raise UserError(f"{name} ends rows with eos: set config.vocabulary.eos")
        if len(special.sentinels) < needed:
            raise UserError(
                f"{name} needs {needed} sentinels per row, but the vocabulary has {len(special.sentinels)}: "
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
        raise UserError(f"{name} cannot make a row of length {length}: change config.data.length")
    return num_tokens


def _ended(
    values: Integer[np.ndarray, " values"], length: int, special: Special, dtype: type
) -> tuple[Int[np.ndarray, " {length}"], Num[np.ndarray, " {length}"]]:
    """Returns a row [length] of `values`, truncated if they are too long, eos and padding, and its mask."""
    size = min(len(values), length - 1)
    row = rows.padded(values[:size], size, length, special.pad or 0)
    row[size] = special.required("eos")
    return row, rows.padded(1, size + 1, length, dtype=dtype)


def decoder(
    targets: Int[np.ndarray, " length"], weights: Float[np.ndarray, " length"], special: Special
) -> dict[str, np.ndarray]:
    """Returns the decoder's part of a row: `targets`, `target_weights` and `decoder_tokens`.

    `decoder_tokens` are the targets shifted right by one. The first token is pad, or 0 if the vocabulary has no pad.
    """
    decoder_tokens = np.full_like(targets, special.pad or 0)
    decoder_tokens[1:] = targets[:-1]
    return {"decoder_tokens": decoder_tokens, "targets": targets, "target_weights": weights}


def with_sentinels(
    tokens: Integer[np.ndarray, " length"], cut: Bool[np.ndarray, " length"], special: Special
) -> Int[np.ndarray, " row"]:
    """Replaces each run of tokens at which `cut` is True by one sentinel, in the order of `special.sentinels`."""
    first = cut.copy()
    first[1:] &= ~cut[:-1]
    (starts,) = first.nonzero()
    is_text = ~cut
    return weave(tokens[is_text], is_text.cumsum()[starts], special)


def weave(
    text: Integer[np.ndarray, " length"], before: Int[np.ndarray, " sentinels"], special: Special
) -> Int[np.ndarray, " row"]:
    """Inserts sentinels into `text`, in the order of `special.sentinels`.

    Args:
      before: indices of the tokens that a sentinel precedes, sorted; the index `len(text)` appends a sentinel.
    """
    row = np.empty(len(text) + len(before), np.int32)
    is_text = np.ones(len(row), np.bool_)
    at = before + np.arange(len(before))
    is_text[at] = False
    row[is_text] = text
    row[at] = special.sentinels[: len(before)]
    return row
