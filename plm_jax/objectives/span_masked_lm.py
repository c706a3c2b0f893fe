"""Masked language modeling of spans."""

import bisect
import functools
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.objectives.masked_lm import MaskedLM
from plm_jax.objectives.special import Special


@dataclass(frozen=True)
class SpanMaskedLM(MaskedLM):
    """Prediction of spans of words (SpanBERT, Joshi et al. 2020, arXiv:1907.10529).

    Each token of a span is predicted twice: from its own output, and from the outputs at the span's two boundaries.

    The rules are those of facebookresearch/SpanBERT, masking.py. A span starts with the word of a random unmasked token
    and has a random number of words. It ends earlier at a special token or when the budget is used up, within a word if
    necessary. Adjacent spans are merged. The budget is a share of the text without special tokens. The defaults are
    those of the command in SpanBERT's pretraining/README.md; the defaults of its code are 0.3 for `geometric_p` and
    "token" for `replacement` ("word_piece" in the code). The source draws random tokens from the text; this
    implementation draws them from the vocabulary, like BERT. The first and last token of a row are never predicted, so
    that every span has two boundaries.

    Attributes:
      rate: number of predictions as a share of the tokens of a row without special tokens, rounded up. If
        `max_predictions` is above 0, it limits this number.
      geometric_p: parameter p of the distribution of span lengths in words: a span of k words has a probability
        proportional to (1 - p) ** k. With 0.2, the mean is 3.8 words.
      max_words: maximum number of words in a span.
      replacement: whether the kind of replacement (mask, random ids or none) is drawn once per span or for each token.
    """

    kind: ClassVar[str] = "span_masked_lm"
    targets: ClassVar[str] = "the masked tokens; the loss is theirs and that of the spans' boundaries added up"
    marks_spans: ClassVar[bool] = True
    geometric_p: ranges.InnerShare = 0.2
    max_words: Annotated[int, ranges.Range(1, 2**16)] = 10
    replacement: Literal["span", "token"] = "span"

    def __post_init__(self):
        if self.similar_share or self.ngram_weights:
            raise UserError("config.objective.similar_share and ngram_weights do not apply to spans: leave them out")
        super().__post_init__()
        if self.whole_words:
            raise UserError("config.objective.whole_words does not apply to spans: set max_words instead")
        if self.smoothing or self.independent or self.windows:
            raise UserError("config.objective.smoothing, independent and windows do not apply to spans: leave them out")

    @property
    @override
    def reads(self) -> tuple[str, ...]:
        return ("word_starts",)

    @override
    def budget(self, num_tokens: int) -> int:
        return max(1, math.ceil(num_tokens * self.rate))

    @override
    def apply(
        self, example: dict[str, np.ndarray], special: Special, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Masks spans of tokens that `is_maskable` accepts.

        Args:
          example: the same as for `MaskedLM.apply`; without `word_starts`, each token is a word.

        Returns:
          The row of `MaskedLM.apply` with three more arrays [P] int32, which are 0 in unused slots: `target_left` and
          `target_right`, the positions before and after the span of each target, and `target_offsets`, the index of
          each target in its span.
        """
        return super().apply(example, special, rng)

    @override
    def is_maskable(
        self, tokens: Int[np.ndarray, " real"], mask: Int[np.ndarray, " real"], special: Special
    ) -> Bool[np.ndarray, " real"]:
        maskable = super().is_maskable(tokens, mask, special)
        (real,) = mask.nonzero()
        maskable[real[:1]] = maskable[-1:] = False
        return maskable

    @override
    def num_rated(self, tokens: Int[np.ndarray, " real"], mask: Int[np.ndarray, " real"], special: Special) -> int:
        return int(np.count_nonzero(super().is_maskable(tokens, mask, special)))

    @override
    def choose_positions(
        self,
        maskable: Bool[np.ndarray, " real"],
        num: int,
        example: dict[str, np.ndarray],
        special: Special,
        rng: np.random.Generator,
    ) -> Int[np.ndarray, " positions"]:
        starts = maskable.copy()
        if "word_starts" in example:
            # A token after an unmaskable token also begins a word.
            begins = np.zeros(len(example["tokens"]), np.bool_)
            begins[example["word_starts"]] = True
            starts[1:] &= begins[1 : len(maskable)] | ~maskable[:-1]
        # Visits maskable tokens in random order and skips those already taken. Only a few are visited, so that single
        # lookups are cheaper than arrays.
        anchors = rng.permutation(maskable.nonzero()[0])
        draws = rng.random(len(anchors))
        limits = _cumulative(self.geometric_p, self.max_words)
        start_bytes, maskable_bytes = starts.tobytes(), maskable.tobytes() + b"\0"
        taken = bytearray(len(maskable) + 1)
        for anchor, draw in zip(anchors.data, draws.data, strict=True):
            if taken[anchor]:
                continue
            start = end = start_bytes.rindex(1, 0, anchor + 1)
            stop = maskable_bytes.index(0, start)
            for _ in range(1 + bisect.bisect_right(limits, draw)):
                end = start_bytes.find(1, end + 1, stop)
                if end < 0:
                    end = stop
                    break
            while (new := taken.count(0, start, end)) > num:
                end -= 1
            taken[start:end] = b"\1" * (end - start)
            num -= new
            if not num:
                break
        return np.frombuffer(taken, np.bool_).nonzero()[0]

    @override
    def draw_replacements(
        self, positions: Int[np.ndarray, " positions"], example: dict[str, np.ndarray], rng: np.random.Generator
    ) -> tuple[Float[np.ndarray, " positions"], dict[str, np.ndarray]]:
        begins, ends = np.ones((2, len(positions)), np.bool_)
        begins[1:] = ends[:-1] = positions[1:] > positions[:-1] + 1
        span, firsts = begins.cumsum() - 1, positions[begins]
        draws = rng.random(len(positions)) if self.replacement == "token" else rng.random(len(firsts))[span]
        first, last = firsts[span], positions[ends][span]
        return draws, {"target_left": first - 1, "target_right": last + 1, "target_offsets": positions - first}


@functools.cache
def _cumulative(p: float, longest: int) -> tuple[float, ...]:
    """Returns the probabilities of lengths of at most 1, 2, …, `longest` - 1 for a truncated geometric distribution."""
    chances = (1 - p) ** np.arange(longest)
    return tuple((np.cumsum(chances)[:-1] / chances.sum()).tolist())
