"""Span corruption."""

import bisect
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from plm_jax.errors import UserError
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
        longest = int((length + 1) / (1 - self.noise_density)) + 2
        num_tokens = bisect.bisect_right(range(1, longest), length, key=lambda n: self._lengths(n)[0])
        if num_tokens < 1 or self._lengths(num_tokens)[0] != length:
            raise UserError(f"span corruption makes no row of length {length}: change config.data.length")
        return num_tokens

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
        noise_starts = np.append(0, noise_ends[:-1])
        change = np.zeros(len(tokens) + 1, np.int8)
        change[clean_ends + noise_starts], change[clean_ends + noise_ends] = 1, -1
        is_noise = np.cumsum(change[:-1], dtype=np.int8) > 0
        inputs, mask = _weave(tokens[~is_noise], clean_ends, special, length)
        targets, weights = _weave(tokens[is_noise], noise_starts, special, target_length)
        return {
            "tokens": inputs,
            "mask": mask.astype(np.int32),
            "decoder_tokens": np.append(np.int32(special.pad or 0), targets[:-1]),
            "targets": targets,
            "target_weights": weights.astype(np.float32),
        }


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
    ends[:-1] = np.sort(rng.choice(max(0, total - 1), parts - 1, replace=False, shuffle=False)) + 1
    return ends


def _weave(text: np.ndarray, before: np.ndarray, special: Special, length: int) -> tuple[np.ndarray, np.ndarray]:
    """A row [length] of `text` with a sentinel in front of each of its tokens `before`, then eos; and what is real."""
    row = np.full(length, special.pad or 0, np.int32)
    size = len(text) + len(before)
    at = before + np.arange(len(before))
    is_text = np.ones(size, np.bool_)
    is_text[at] = False
    row[:size][is_text] = text
    row[at] = special.sentinels[: len(before)]
    row[size] = special.eos
    return row, np.arange(length) <= size
