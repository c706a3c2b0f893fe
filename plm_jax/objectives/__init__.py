"""What noise and which targets: pure NumPy functions `(example, rng) → example`, one file each."""

import dataclasses
import typing
from typing import Any

import numpy as np

from plm_jax.common.errors import UserError, nearest
from plm_jax.objectives.bidirectional_lm import BidirectionalLM
from plm_jax.objectives.blank_infilling import BlankInfilling
from plm_jax.objectives.causal import Causal
from plm_jax.objectives.denoising import Denoising
from plm_jax.objectives.examples import Objectives as ReadsExamples
from plm_jax.objectives.examples import Rows as ExampleRows
from plm_jax.objectives.examples import rows as example_rows
from plm_jax.objectives.masked_lm import MaskedLM
from plm_jax.objectives.prefix_lm import DecoderPrefixLM, FullLM, PrefixLM
from plm_jax.objectives.replaced_token import ReplacedToken
from plm_jax.objectives.span_corruption import SpanCorruption
from plm_jax.objectives.span_masked_lm import SpanMaskedLM
from plm_jax.objectives.special import Special
from plm_jax.objectives.token_corruption import Deshuffling, DropTokens, MaskTokens, ReplaceSpans
from plm_jax.objectives.ul2 import UL2, Denoiser

__all__ = [
    "UL2",
    "BidirectionalLM",
    "BlankInfilling",
    "Causal",
    "DecoderPrefixLM",
    "Denoiser",
    "Denoising",
    "Deshuffling",
    "DropTokens",
    "ExampleRows",
    "FullLM",
    "MaskTokens",
    "MaskedLM",
    "Objective",
    "PrefixLM",
    "ReadsExamples",
    "ReplaceSpans",
    "ReplacedToken",
    "Settings",
    "SpanCorruption",
    "SpanMaskedLM",
    "Special",
    "example_rows",
    "get",
]

Settings = (
    Causal
    | MaskedLM
    | SpanMaskedLM
    | ReplacedToken
    | SpanCorruption
    | ReplaceSpans
    | DropTokens
    | MaskTokens
    | Deshuffling
    | PrefixLM
    | FullLM
    | DecoderPrefixLM
    | UL2
    | Denoising
    | BlankInfilling
    | BidirectionalLM
)
KINDS = {kind.kind: kind for kind in typing.get_args(Settings)}


@dataclasses.dataclass(frozen=True)
class Objective:
    """An objective's settings (`Causal`, …) bound to the special ids that it writes."""

    settings: Settings
    special: Special

    @property
    def separator(self) -> int | None:
        """The id that follows each document of a stream; None: there is none."""
        return self.settings.separator(self.special)

    def input_length(self, length: int) -> int:
        """How many tokens make a row of `length`."""
        return self.settings.input_length(length)

    def stride(self, length: int) -> int:
        """By how many tokens the inputs of consecutive rows advance."""
        return self.settings.stride(length)

    @property
    def reads(self) -> tuple[str, ...]:
        """What it asks of examples besides tokens: `word_starts`, the rising indices of the tokens that begin words, or
        `sentence_starts`, where sentences begin.
        """
        return getattr(self.settings, "reads", ())

    @property
    def frames(self) -> bool:
        """Whether it puts a text, of up to `input_length` tokens, between the marks that begin and end a row."""
        return getattr(self.settings, "frames", False)

    @property
    def duplicates(self) -> int:
        """How many draws each row has, an epoch each, after which they come again; 0: a new one every time."""
        return getattr(self.settings, "duplicates", 0)

    def __call__(self, example: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
        """The example with noise and targets; `example` holds `tokens` [input_length] and stays as it is."""
        return self.settings.apply(example, self.special, rng)


def get(name: str, special: Special | None = None, **settings: Any) -> Objective:
    """The objective of a kind, as in `get("causal")`.

    Raises:
      UserError: an unknown kind or setting.
    """
    if name not in KINDS:
        raise UserError(f"there is no objective '{name}': {nearest(name, KINDS)}")
    known = [f.name for f in dataclasses.fields(KINDS[name])]
    for setting in settings:
        if setting not in known:
            raise UserError(f"objective '{name}' has no setting '{setting}': {nearest(setting, known)}")
    return Objective(KINDS[name](**settings), special or Special())
