"""Text-to-text objectives with i.i.d. noise per token, the baselines of T5.

They follow Raffel et al. 2020 (arXiv:1910.10683) §3.3, table 3, and `preprocessors.py` of
google-research/text-to-text-transfer-transformer. T5 joins documents without a separator; only deshuffling reads single
documents. Here, the layout decides.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int, Integer
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.objectives.special import Special
from plm_jax.objectives.text_to_text import TextToText, with_sentinels

# Slots for a random number of tokens exceed its mean by this number of standard deviations. With i.i.d. noise at length
# 512 there are then T5's 192 slots for targets; two rows in 10,000 need more and are truncated, as in T5.
DEVIATIONS = 3.5


def _slots(mean: float, variance: float) -> int:
    return math.ceil(mean + DEVIATIONS * math.sqrt(variance))


@dataclass(frozen=True)
class ReplaceSpans(TextToText):
    """I.i.d. noise in which a sentinel replaces each run of noise tokens (T5's "i.i.d. denoising, replace spans").

    As in T5, sentinels in the targets replace runs of clean text: if a text begins with noise, its targets begin with
    that noise; if a text ends with clean text, its targets end with a sentinel. With n sentinels, a text has at most
    n - 1 runs of noise, and further runs stay clean; T5 would use ids of text as sentinels. In rows of 512, this
    affects less than one row in a million with T5's 100 sentinels, and about two rows in 10,000 with the minimum of 89
    sentinels.

    Attributes:
      noise_density: probability that a token is noise.
    """

    kind: ClassVar[str] = "replace_spans"
    targets: ClassVar[str] = "the stretches of noise, with the sentinels of the text between them and the end token"
    noise_density: ranges.InnerShare = 0.15

    @override
    def lengths(self, num_tokens: int) -> tuple[int, int]:
        # A token adds 0, 1 or, at the start of a run, 2 tokens to the targets; only neighbors depend on each other.
        d = self.noise_density
        mean = d * (2 - d)
        variance = d * (4 - 3 * d) - mean**2 + 2 * (d * mean - mean**2)
        return num_tokens + 1, 1 + min(_slots(num_tokens * mean, num_tokens * variance), num_tokens + 1)

    @override
    def num_sentinels(self, num_tokens: int) -> int:
        """Returns the number of sentinels that nearly all rows need."""
        begins = self.noise_density * (1 - self.noise_density)
        return min(1 + _slots(num_tokens * begins, num_tokens * begins * (1 - 3 * begins)), num_tokens)

    @override
    def corrupt(
        self, tokens: Integer[np.ndarray, " length"], special: Special, rng: np.random.Generator
    ) -> tuple[Integer[np.ndarray, " inputs"], Integer[np.ndarray, " targets"]]:
        """Returns the text with a sentinel for each run of noise, and the text with a sentinel for each clean run."""
        noise = rng.random(len(tokens)) < self.noise_density
        begins = noise.copy()
        begins[1:] &= ~noise[:-1]
        noise &= begins.cumsum() < len(special.sentinels)  # One is for the clean text after the last stretch of noise.
        return with_sentinels(tokens, noise, special), with_sentinels(tokens, ~noise, special)


@dataclass(frozen=True)
class DropTokens(TextToText):
    """I.i.d. noise in which noise tokens are deleted and become the targets (T5's "i.i.d. denoising, drop tokens").

    For rows of 512, T5 has 104 slots for targets; this implementation has 106.

    Attributes:
      noise_density: probability that a token is noise.
    """

    kind: ClassVar[str] = "drop_tokens"
    targets: ClassVar[str] = "the tokens that were left out, and the end token"
    noise_density: ranges.InnerShare = 0.15

    @override
    def lengths(self, num_tokens: int) -> tuple[int, int]:
        mean = num_tokens * self.noise_density
        return num_tokens + 1, 1 + min(_slots(mean, mean * (1 - self.noise_density)), num_tokens)

    @override
    def corrupt(
        self, tokens: Integer[np.ndarray, " length"], special: Special, rng: np.random.Generator
    ) -> tuple[Integer[np.ndarray, " inputs"], Integer[np.ndarray, " targets"]]:
        """Returns the clean tokens and the noise tokens."""
        noise = rng.random(len(tokens)) < self.noise_density
        return tokens[~noise], tokens[noise]


@dataclass(frozen=True)
class MaskTokens(TextToText):
    """I.i.d. noise in which noise tokens are replaced by a mask or random tokens; the targets are the whole text.

    With random tokens, this is T5's "BERT-style" denoising; without random tokens, it is T5's "MASS-style" denoising
    (Song et al. 2019, arXiv:1905.02450). The mask is the first sentinel, as in T5. Random tokens are never pad, bos,
    eos, unk, cls, sep or mask; in T5, they are never the ids 0 to 2, which are its special tokens.

    Attributes:
      noise_density: probability that a token is noise.
      random_share: probability that a noise token is replaced by a random token instead of the mask.
    """

    kind: ClassVar[str] = "mask_tokens"
    targets: ClassVar[str] = "the whole text, and the end token"
    noise_density: ranges.InnerShare = 0.15
    random_share: ranges.Share = 0.1

    @override
    def num_sentinels(self, num_tokens: int) -> int:
        """Returns 1, for the mask."""
        return 1

    @override
    def corrupt(
        self, tokens: Integer[np.ndarray, " length"], special: Special, rng: np.random.Generator
    ) -> tuple[Integer[np.ndarray, " inputs"], Integer[np.ndarray, " targets"]]:
        """Returns the noised text and the text."""
        noise = rng.random(len(tokens)) < self.noise_density
        inputs = np.where(noise, special.sentinels[0], tokens)
        if self.random_share:
            (at,) = noise.nonzero()
            at = at[rng.random(len(at)) < self.random_share]
            inputs[at] = _random_ids(len(at), special, rng)
        return inputs, tokens


def _random_ids(size: int, special: Special, rng: np.random.Generator) -> Int[np.ndarray, " {size}"]:
    """Draws `size` ids uniformly, except pad, bos, eos, unk, cls, sep and mask."""
    ids = (special.pad, special.bos, special.eos, special.unk, special.cls, special.sep, special.mask)
    special_ids = sorted({i for i in ids if i is not None})
    drawn = rng.integers(special.vocab_size - len(special_ids), size=size)
    for i in special_ids:
        drawn += drawn >= i
    return drawn


@dataclass(frozen=True)
class Deshuffling(TextToText):
    """Prediction of a text from its tokens in random order (T5's "deshuffling")."""

    kind: ClassVar[str] = "deshuffling"
    targets: ClassVar[str] = "the text in its order, and the end token"

    @override
    def corrupt(
        self, tokens: Integer[np.ndarray, " length"], special: Special, rng: np.random.Generator
    ) -> tuple[Integer[np.ndarray, " inputs"], Integer[np.ndarray, " targets"]]:
        """Returns the shuffled text and the text."""
        return rng.permutation(tokens), tokens
