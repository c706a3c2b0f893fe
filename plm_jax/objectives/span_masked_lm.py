"""Masked language modelling of spans."""

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
    """Predict spans of whole words, from all other tokens and from the two at their ends (SpanBERT, Joshi et al. 2020,
    arXiv:1907.10529).

    The rules are those of facebookresearch/SpanBERT, masking.py: a span starts with the word of a token drawn from
    those still free, and goes on for a number of words, fewer where the row's text or the budget ends, in a word's
    midst if need be; spans that touch become one. The budget is a share of the text, special tokens not counted. The
    defaults are those of the command in its pretraining/README.md; the code's own are 0.3 and "token". The source draws
    random tokens from the text, this from the vocabulary, as BERT does. A row's first and last token are never
    predicted, so that every span has two ends.

    Attributes:
      geometric_p: lengths in words are k with a probability proportional to (1 - geometric_p)^k; 0.2 makes 3.8 words.
      max_words: the longest.
      replacement: whether the mask, random ids or neither are drawn for a span as a whole or for each token.
    """

    kind: ClassVar[str] = "span_masked_lm"
    targets: ClassVar[str] = "the masked tokens; the loss is theirs and that of the spans' boundaries added up"
    marks_spans: ClassVar[bool] = True
    geometric_p: ranges.InnerShare = 0.2
    max_words: Annotated[int, ranges.Range(1, 2**16)] = 10
    replacement: Literal["span", "token"] = "span"

    def __post_init__(self):
        super().__post_init__()
        if self.whole_words:
            raise UserError("config.objective.whole_words is not for spans, which have max_words: leave it out")

    @property
    @override
    def reads(self) -> tuple[str, ...]:
        """What examples must have besides tokens."""
        return ("word_starts",)

    @override
    def _budget(self, num_tokens: int) -> int:
        """How many of so many tokens are predicted."""
        return max(1, math.ceil(num_tokens * self.rate))

    @override
    def apply(
        self, example: dict[str, np.ndarray], special: Special, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Masks spans, none with a token that begins or ends a row or document.

        Args:
          example: as `MaskedLM.apply` takes it; `word_starts` may be left out where each token is a word.

        Returns:
          What `MaskedLM.apply` gives, and of each target `target_left` and `target_right`, the positions before and
          after its span, and `target_offsets`, its number in the span from 0; [P] int32, unused slots all 0.
        """
        return super().apply(example, special, rng)

    @override
    def _free(
        self, tokens: Int[np.ndarray, " real"], mask: Int[np.ndarray, " real"], special: Special
    ) -> Bool[np.ndarray, " real"]:
        free = super()._free(tokens, mask, special)
        (real,) = mask.nonzero()
        free[real[:1]] = free[-1:] = False
        return free

    @override
    def _num_rated(self, tokens: Int[np.ndarray, " real"], mask: Int[np.ndarray, " real"], special: Special) -> int:
        return int(np.count_nonzero(super()._free(tokens, mask, special)))

    @override
    def _choose(
        self, free: Bool[np.ndarray, " real"], num: int, example: dict[str, np.ndarray], rng: np.random.Generator
    ) -> Int[np.ndarray, " positions"]:
        starts = free.copy()
        if "word_starts" in example:
            # What follows a token that stays begins a word, too.
            begins = np.zeros(len(example["tokens"]), np.bool_)
            begins[example["word_starts"]] = True
            starts[1:] &= begins[1 : len(free)] | ~free[:-1]
        # Drawn from what is still free, one after another: a random order, of which what is taken is passed over. Few
        # of them are looked at, so each is looked up by itself.
        anchors = rng.permutation(free.nonzero()[0])
        draws = rng.random(len(anchors))
        limits = _cumulative(self.geometric_p, self.max_words)
        start_bytes, free_bytes, taken = starts.tobytes(), free.tobytes() + b"\0", bytearray(len(free) + 1)
        for anchor, draw in zip(anchors.data, draws.data, strict=True):
            if taken[anchor]:
                continue
            start = end = start_bytes.rindex(1, 0, anchor + 1)
            stop = free_bytes.index(0, start)
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
    def _draw(
        self, positions: Int[np.ndarray, " positions"], rng: np.random.Generator
    ) -> tuple[Float[np.ndarray, " positions"], dict[str, np.ndarray]]:
        begins, ends = np.ones((2, len(positions)), np.bool_)
        begins[1:] = ends[:-1] = positions[1:] > positions[:-1] + 1
        span, firsts = begins.cumsum() - 1, positions[begins]
        draws = rng.random(len(positions)) if self.replacement == "token" else rng.random(len(firsts))[span]
        first, last = firsts[span], positions[ends][span]
        return draws, {"target_left": first - 1, "target_right": last + 1, "target_offsets": positions - first}


@functools.cache
def _cumulative(p: float, longest: int) -> tuple[float, ...]:
    """Of a geometric law cut off after `longest`: the probability of at most 1, 2, … up to `longest` - 1."""
    chances = (1 - p) ** np.arange(longest)
    return tuple((np.cumsum(chances)[:-1] / chances.sum()).tolist())
