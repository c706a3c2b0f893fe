"""Causal language modelling."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from plm_jax.objectives.examples import DecoderRows
from plm_jax.objectives.objective import Objective
from plm_jax.objectives.special import Special


@dataclass(frozen=True)
class Causal(Objective):
    """Predict each token from those before it (GPT, Radford et al. 2018).

    Documents follow one another in full rows, each behind the last one's eos, and a token sees those before its own, as
    the papers of GPT-2 and GPT-3 tell (their training code is not published), unless the layout keeps them apart.
    Neighbouring rows share a token, so that each but the very first is predicted once; Hugging Face's examples
    (run_clm.py) leave out the first one of every row.
    """

    kind: ClassVar[str] = "causal"
    architectures: ClassVar[tuple[str, ...]] = ("decoder",)
    targets: ClassVar[str] = "every next token"
    takes_begin: ClassVar[bool] = True
    is_likelihood: ClassVar[bool] = True
    example_rows: ClassVar[type | None] = DecoderRows

    @override
    def input_length(self, length: int) -> int:
        """One more than the row: every input has a target."""
        return length + 1

    @override
    def stride(self, length: int) -> int:
        """Rows overlap by one token, so every token but the very first is a target once."""
        return length

    @override
    def apply(
        self, example: dict[str, np.ndarray], special: Special, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Shifts the tokens by one.

        Args:
          example: `tokens` [L + 1]; `mask` [L + 1], 0 at padding, may be left out where there is none; `segment_ids`
            [L + 1], the number of each token's document from 1, only if documents do not see each other.

        Returns:
          `tokens`, `targets` [L] int32 and `target_weights` [L] float32, 0 for a target that is padding or in another
          document than its input; `segment_ids` and `positions`, counted from the document's first token here, if
          `segment_ids` were given.
        """
        tokens = np.asarray(example["tokens"], np.int32)
        mask = example.get("mask")
        weights = np.ones(len(tokens) - 1, np.float32) if mask is None else mask[1:].astype(np.float32)
        made = {"tokens": tokens[:-1], "targets": tokens[1:], "target_weights": weights}
        if "segment_ids" in example:
            segments = np.asarray(example["segment_ids"], np.int32)
            same = segments[1:] == segments[:-1]
            index = np.arange(len(segments) - 1, dtype=np.int32)
            first = np.concatenate([[True], ~same[:-1]])
            made["target_weights"] = weights * same
            made["segment_ids"] = segments[:-1]
            made["positions"] = index - np.maximum.accumulate(np.where(first, index, 0)).astype(np.int32)
        return made
