"""UL2's mixture of denoisers."""

import functools
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Integer
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.objectives.span_corruption import SpanCorruption
from plm_jax.objectives.special import Special
from plm_jax.objectives.text_to_text import TextToText

MODES = ("R", "S", "X")
# A mean span length above the length of any row: a single span at the end of the row.
ONE_SPAN = 1e9


@dataclass(frozen=True)
class Denoiser(SpanCorruption):
    """One kind of span corruption in a mixture.

    Attributes:
      mode: mode token at the start of the inputs: regular (R), sequential (S) or extreme (X).
      rate: share of the rows, relative to the rates of the other denoisers.
    """

    mode: Literal["R", "S", "X"] = "R"
    rate: ranges.MixtureRate = 1.0


@dataclass(frozen=True)
class UL2(TextToText):
    """Mixture of several kinds of span corruption (UL2, Tay et al. 2022, arXiv:2205.05131).

    The inputs of each kind begin with a mode token.

    The denoisers are those of table 1: regular, sequential (the last quarter of the text, after one sentinel) and
    extreme. The table has no rates. §4.5 recommends that a fifth of the rows are sequential; here, the remaining rows
    are split evenly between regular and extreme rows. The last three sentinels are the mode tokens R, S and X; the
    tokenizer of the released model splits the mode tokens `[NLU]`, `[S2S]` and `[NLG]` into pieces. All texts have the
    number of tokens that fits the denoiser with the longest rows, so the rows of the other denoisers have padding; the
    listing in the paper fills each row. In the listing, a sequential row is a prefix LM with a random length of the
    prefix; here, sequential rows follow the table.

    Attributes:
      denoisers: denoisers of the mixture, with their rates.
    """

    kind: ClassVar[str] = "ul2"
    targets: ClassVar[str] = "the spans that were cut out, of all modes, with their sentinels and the end token"
    denoisers: tuple[Denoiser, ...] = (
        Denoiser(0.15, 3.0, "R", 0.2),
        Denoiser(0.15, 8.0, "R", 0.2),
        Denoiser(0.25, ONE_SPAN, "S", 0.2),
        Denoiser(0.5, 3.0, "X", 0.1),
        Denoiser(0.5, 8.0, "X", 0.1),
        Denoiser(0.15, 64.0, "X", 0.1),
        Denoiser(0.5, 64.0, "X", 0.1),
    )

    def __post_init__(self):
        if not sum(denoiser.rate for denoiser in self.denoisers) > 0:
            raise UserError("config.objective.denoisers has no rate above 0: set at least one")

    @functools.cached_property
    def _cumulative_rates(self) -> np.ndarray:
        """Cumulative sums of the rates of the denoisers."""
        return np.cumsum([denoiser.rate for denoiser in self.denoisers])

    @override
    def lengths(self, num_tokens: int) -> tuple[int, int]:
        encoder, decoder = zip(*(denoiser.lengths(num_tokens) for denoiser in self.denoisers), strict=True)
        return max(encoder) + 1, max(decoder)

    @override
    def num_sentinels(self, num_tokens: int) -> int:
        """Returns the number of modes plus the maximum number of sentinels that a denoiser needs."""
        return max(denoiser.num_sentinels(num_tokens) for denoiser in self.denoisers) + len(MODES)

    @override
    def corrupt(
        self, tokens: Integer[np.ndarray, " length"], special: Special, rng: np.random.Generator
    ) -> tuple[Integer[np.ndarray, " inputs"], Integer[np.ndarray, " targets"]]:
        """Applies a random denoiser and prepends its mode token to the inputs."""
        draw = rng.random() * self._cumulative_rates[-1]
        denoiser = self.denoisers[int(self._cumulative_rates.searchsorted(draw, side="right"))]
        inputs, targets = denoiser.corrupt(tokens, special, rng)
        mode = special.sentinels[MODES.index(denoiser.mode) - len(MODES)]
        return np.append(np.int32(mode), inputs), targets
