"""Text-to-text objectives whose noise is drawn token by token, those that T5 was compared with.

Raffel et al. 2020 (arXiv:1910.10683) §3.3, table 3, after `preprocessors.py` of
google-research/text-to-text-transfer-transformer. There documents are joined without a mark, but for deshuffling, which
takes each alone; here the layout decides.
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

# By how many standard deviations the slots for what varies by row exceed its mean. So i.i.d. noise at length 512 has
# T5's 192 slots for targets; two rows in 10,000 have more and lose their end, as T5's do.
DEVIATIONS = 3.5


def _slots(mean: float, variance: float) -> int:
    return math.ceil(mean + DEVIATIONS * math.sqrt(variance))


@dataclass(frozen=True)
class ReplaceSpans(TextToText):
    """I.i.d. noise of which each stretch gives way to one sentinel (T5's "i.i.d. denoising, replace spans").

    As in T5, the sentinels of the targets stand for the stretches of clean text: a text that begins with noise has
    targets that begin with it, and one that ends clean has targets that end with a sentinel. Where there are more
    stretches of noise than sentinels, which is one row in millions, the last ones stay clean; T5 would run into the ids
    of text.

    Attributes:
      noise_density: chance of a token to be noise.
    """

    kind: ClassVar[str] = "replace_spans"
    targets: ClassVar[str] = "the stretches of noise, with the sentinels of the text between them and the end token"
    noise_density: ranges.InnerShare = 0.15

    @override
    def lengths(self, num_tokens: int) -> tuple[int, int]:
        # A token adds 0, 1 or, where its stretch begins, 2 to the targets; only neighbours depend on each other.
        d = self.noise_density
        mean = d * (2 - d)
        variance = d * (4 - 3 * d) - mean**2 + 2 * (d * mean - mean**2)
        return num_tokens + 1, 1 + min(_slots(num_tokens * mean, num_tokens * variance), num_tokens + 1)

    @override
    def num_sentinels(self, num_tokens: int) -> int:
        """What nearly all rows need."""
        begins = self.noise_density * (1 - self.noise_density)
        return min(1 + _slots(num_tokens * begins, num_tokens * begins * (1 - 3 * begins)), num_tokens)

    @override
    def corrupt(
        self, tokens: Integer[np.ndarray, " length"], special: Special, rng: np.random.Generator
    ) -> tuple[Integer[np.ndarray, " inputs"], Integer[np.ndarray, " targets"]]:
        """The text with a sentinel for each stretch of noise, and with one for each stretch of clean text."""
        noise = rng.random(len(tokens)) < self.noise_density
        begins = noise.copy()
        begins[1:] &= ~noise[:-1]
        number = begins.cumsum()
        if number[-1] >= len(special.sentinels):  # One is for the clean text after the last stretch of noise.
            noise &= number < len(special.sentinels)
        return with_sentinels(tokens, noise, special), with_sentinels(tokens, ~noise, special)


@dataclass(frozen=True)
class DropTokens(TextToText):
    """I.i.d. noise that is left out; the targets are what is missing (T5's "i.i.d. denoising, drop tokens").

    T5 leaves 104 slots for the targets of rows of 512, here there are 106.

    Attributes:
      noise_density: chance of a token to be noise.
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
        """The clean tokens, and the noise."""
        noise = rng.random(len(tokens)) < self.noise_density
        return tokens[~noise], tokens[noise]


@dataclass(frozen=True)
class MaskTokens(TextToText):
    """I.i.d. noise that gives way to one mask, and in part to random tokens; the targets are the whole text.

    With random tokens it is T5's "BERT-style" denoising, without its "MASS-style" (Song et al. 2019, arXiv:1905.02450).
    The mask is the first sentinel, as in T5. A random token is any but the special ones; T5 spares the ids 0 to 2,
    which are its special ones.

    Attributes:
      noise_density: chance of a token to be noise.
      random_share: chance of a noise token to become a random one and not the mask.
    """

    kind: ClassVar[str] = "mask_tokens"
    targets: ClassVar[str] = "the whole text, and the end token"
    noise_density: ranges.InnerShare = 0.15
    random_share: ranges.Share = 0.1

    @override
    def num_sentinels(self, num_tokens: int) -> int:
        """The mask."""
        return 1

    @override
    def corrupt(
        self, tokens: Integer[np.ndarray, " length"], special: Special, rng: np.random.Generator
    ) -> tuple[Integer[np.ndarray, " inputs"], Integer[np.ndarray, " targets"]]:
        """The text with its noise, and the text."""
        noise = rng.random(len(tokens)) < self.noise_density
        inputs = np.where(noise, special.sentinels[0], tokens)
        if self.random_share:
            (at,) = noise.nonzero()
            at = at[rng.random(len(at)) < self.random_share]
            inputs[at] = _random_ids(len(at), special, rng)
        return inputs, tokens


def _random_ids(size: int, special: Special, rng: np.random.Generator) -> Int[np.ndarray, " {size}"]:
    """`size` ids, each that is not special equally likely; sentinels are not special."""
    ids = (special.pad, special.bos, special.eos, special.unk, special.cls, special.sep, special.mask)
    spared = sorted({i for i in ids if i is not None})
    drawn = rng.integers(special.vocab_size - len(spared), size=size)
    for i in spared:
        drawn += drawn >= i
    return drawn


@dataclass(frozen=True)
class Deshuffling(TextToText):
    """The text's tokens in random order; the targets are the text (T5's "deshuffling")."""

    kind: ClassVar[str] = "deshuffling"
    targets: ClassVar[str] = "the text in its order, and the end token"

    @override
    def corrupt(
        self, tokens: Integer[np.ndarray, " length"], special: Special, rng: np.random.Generator
    ) -> tuple[Integer[np.ndarray, " inputs"], Integer[np.ndarray, " targets"]]:
        """The text shuffled, and the text."""
        return rng.permutation(tokens), tokens
