"""Span corruption."""

import bisect
import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from plm_jax.errors import UserError
from plm_jax.objectives import rows
from plm_jax.objectives.special import Special


@dataclass(frozen=True)
class SpanCorruption:
    """Spans give way to sentinels, the decoder says the spans (T5, Raffel et al. 2020, arXiv:1910.10683).

    The defaults are those of `span_corruption` in google-research/text-to-text-transfer-transformer.

    Attributes:
      noise_density: share of tokens that are cut out.
      mean_span_length: of those spans, in tokens.
    """

    kind: ClassVar[str] = "span_corruption"
    noise_density: float = 0.15
    mean_span_length: float = 3.0

    def __post_init__(self):
        if not 0 < self.noise_density < 1:
            raise UserError(f"config.objective.noise_density is {self.noise_density}: give between 0 and 1")
        if not self.mean_span_length >= 1:
            raise UserError(f"config.objective.mean_span_length is {self.mean_span_length}: give at least 1")

    def _counts(self, num_tokens: int) -> tuple[int, int]:
        """How many of so many tokens are noise, and in how many spans; Python's `round`, halves to even, as in T5."""
        noise = max(1, min(round(num_tokens * self.noise_density), num_tokens - 1))
        return noise, max(1, min(round(noise / self.mean_span_length), num_tokens - noise))

    def _lengths(self, num_tokens: int) -> tuple[int, int]:
        """Lengths of the encoder's and the decoder's row for so many tokens: sentinels and eos come in."""
        noise, spans = self._counts(num_tokens)
        return num_tokens - noise + spans + 1, noise + spans + 1

    def input_length(self, length: int) -> int:
        """How many tokens become an encoder row of `length`: 568 become 512.

        Raises:
          UserError: no number does.
        """
        return _input_length(self, length)

    def stride(self, length: int) -> int:
        """Rows do not overlap."""
        return self.input_length(length)

    def separator(self, special: Special) -> int | None:
        """Nothing: T5 joins documents without a mark."""
        del special
        return None

    def target_length(self, length: int) -> int:
        """Length of the decoder's row beside an encoder row of `length`: 114 beside 512."""
        return self._lengths(self.input_length(length))[1]

    def apply(
        self, example: dict[str, np.ndarray], special: Special, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Cuts spans out; a row begins with clean text and ends with noise.

        Args:
          example: `tokens` [input_length(L)]; `mask` of that shape, 0 at padding behind the text, may be left out where
            there is none.

        Returns:
          `tokens` and `mask` [L] int32: the clean spans, each followed by a sentinel, and eos. `targets` [T] int32 and
          `target_weights` [T] float32, T = `target_length(L)`: each sentinel followed by its span, and eos.
          `decoder_tokens` [T] int32: the targets shifted right behind pad (0 if there is none).

        Raises:
          UserError: the vocabulary has no eos or fewer sentinels than a row needs; documents are kept apart.
        """
        tokens = np.asarray(example["tokens"], np.int32)
        length, target_length = self._lengths(len(tokens))
        if "mask" in example:
            tokens = tokens[: np.count_nonzero(example["mask"])]
        noise, spans = self._counts(len(tokens))
        _check(example, special, spans)
        clean_ends, noise_ends = _partition(len(tokens) - noise, spans, rng), _partition(noise, spans, rng)
        noise_starts = np.zeros_like(noise_ends)
        noise_starts[1:] = noise_ends[:-1]
        change = np.zeros(len(tokens) + 1, np.int8)
        change[clean_ends + noise_starts], change[clean_ends + noise_ends] = 1, -1
        is_noise = change[:-1].cumsum(dtype=np.int8).view(np.bool_)
        inputs = _weave(tokens[~is_noise], clean_ends, special)
        targets = _weave(tokens[is_noise], noise_starts, special)
        pad = special.pad or 0
        made = rows.padded(targets, len(targets), target_length, pad)
        decoder_tokens = np.full_like(made, pad)
        decoder_tokens[1:] = made[:-1]
        return {
            "tokens": rows.padded(inputs, len(inputs), length, pad),
            "mask": rows.padded(1, len(inputs), length),
            "decoder_tokens": decoder_tokens,
            "targets": made,
            "target_weights": rows.padded(1, len(targets), target_length, dtype=np.float32),
        }


@functools.cache
def _input_length(settings: SpanCorruption, length: int) -> int:
    longest = int((length + 1) / (1 - settings.noise_density)) + 2
    num_tokens = bisect.bisect_right(range(1, longest), length, key=lambda n: settings._lengths(n)[0])
    if num_tokens < 1 or settings._lengths(num_tokens)[0] != length:
        raise UserError(f"span corruption makes no row of length {length}: change config.data.length")
    return num_tokens


def _check(example: dict[str, np.ndarray], special: Special, spans: int) -> None:
    if special.eos is None:
        raise UserError("span corruption ends its rows with eos: set config.vocabulary.eos")
    if len(special.sentinels) < spans:
        raise UserError(
            f"span corruption takes {spans} sentinels a row, the vocabulary has {len(special.sentinels)}: "
            f"set config.vocabulary.sentinels to at least {spans}"
        )
    if "segment_ids" in example:
        raise UserError(
            "span corruption cannot keep documents apart: set config.data.layout.attend_across_documents to True"
        )


def _partition(total: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """The ends [parts] of consecutive non-empty parts of `total` tokens, every way to part them equally likely."""
    ends = np.full(parts, total)
    ends[:-1] = rows.subset(total - 1, parts - 1, rng) + 1
    return ends


def _weave(text: np.ndarray, before: np.ndarray, special: Special) -> np.ndarray:
    """`text` with a sentinel in front of each of its tokens `before`, and eos."""
    row = np.empty(len(text) + len(before) + 1, np.int32)
    is_text = np.ones(len(row), np.bool_)
    at = before + np.arange(len(before))
    is_text[at] = is_text[-1] = False
    row[is_text] = text
    row[at] = special.sentinels[: len(before)]
    row[-1] = special.eos
    return row
