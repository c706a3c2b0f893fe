"""Causal language modelling."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Causal:
    """Predict each token from those before it (GPT, Radford et al. 2018)."""

    kind: ClassVar[str] = "causal"
