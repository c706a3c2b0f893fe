"""Span corruption."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from jaxtyping import Int, Integer
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.objectives import rows
from plm_jax.objectives.special import Special
from plm_jax.objectives.text_to_text import TextToText, weave


@dataclass(frozen=True)
class SpanCorruption(TextToText):
    """Prediction of the spans that sentinels replace in the input (T5, Raffel et al. 2020, arXiv:1910.10683).

    The defaults are those of `span_corruption` in google-research/text-to-text-transfer-transformer. As in this code,
    the probability that a token is noise depends on its position: a row begins with clean text and ends with noise. The
    number of text tokens determines the number of noise tokens and the number of spans: 568 tokens become an encoder's
    row of 512 and a decoder's row of 114 tokens. T5 cuts its texts from 128 joined documents, with at most 65,536
    tokens of each document; here, the layout decides.

    Attributes:
      noise_density: share of tokens that are cut out.
      mean_span_length: mean length of the spans, in tokens.
    """

    kind: ClassVar[str] = "span_corruption"
    targets: ClassVar[str] = "the spans that were cut out, with their sentinels and the end token"
    noise_density: ranges.InnerShare = 0.15
    mean_span_length: Annotated[float, ranges.Range(1, 1e9)] = 3.0

    def _counts(self, num_tokens: int) -> tuple[int, int]:
        """Returns the number of noise tokens and the number of spans, both rounded with halves to even, as in T5."""
        noise = max(1, min(round(num_tokens * self.noise_density), num_tokens - 1))
        return noise, max(1, min(round(noise / self.mean_span_length), num_tokens - noise))

    @override
    def lengths(self, num_tokens: int) -> tuple[int, int]:
        noise, spans = self._counts(num_tokens)
        return num_tokens - noise + spans + 1, noise + spans + 1

    @override
    def num_sentinels(self, num_tokens: int) -> int:
        return self._counts(num_tokens)[1]

    @override
    def corrupt(
        self, tokens: Integer[np.ndarray, " length"], special: Special, rng: np.random.Generator
    ) -> tuple[Integer[np.ndarray, " inputs"], Integer[np.ndarray, " targets"]]:
        """Returns a pair: clean spans, each followed by a sentinel, and noise spans, each preceded by a sentinel."""
        noise, spans = self._counts(len(tokens))
        clean_ends, noise_ends = _partition(len(tokens) - noise, spans, rng), _partition(noise, spans, rng)
        noise_starts = np.zeros_like(noise_ends)
        noise_starts[1:] = noise_ends[:-1]
        change = np.zeros(len(tokens) + 1, np.int8)
        change[clean_ends + noise_starts], change[clean_ends + noise_ends] = 1, -1
        is_noise = change[:-1].cumsum(dtype=np.int8).view(np.bool_)
        return weave(tokens[~is_noise], clean_ends, special), weave(tokens[is_noise], noise_starts, special)


def _partition(total: int, parts: int, rng: np.random.Generator) -> Int[np.ndarray, " {parts}"]:
    """Splits `total` tokens into non-empty parts and returns the ends [parts]; all partitions are equally likely."""
    ends = np.full(parts, total)
    ends[:-1] = rows.subset(total - 1, parts - 1, rng) + 1
    return ends
