"""Causal language modeling."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from plm_jax.objectives.examples import DecoderRows
from plm_jax.objectives.objective import Objective
from plm_jax.objectives.special import Special


@dataclass(frozen=True)
class Causal(Objective):
    """Prediction of each token from the tokens before it (GPT, Radford et al. 2018).

    In the layout `blocks`, documents follow one another, separated by eos. A token attends to every token before it in
    the row, including tokens of other documents, unless the layout keeps documents apart. This follows the papers on
    GPT-2 and GPT-3, whose training code is not published. The first token of a row is also the last target of the row
    before it; Hugging Face's example (run_clm.py) does not predict the first token of any row.
    """

    kind: ClassVar[str] = "causal"
    architectures: ClassVar[tuple[str, ...]] = ("decoder",)
    targets: ClassVar[str] = "every next token"
    allows_begin: ClassVar[bool] = True
    is_likelihood: ClassVar[bool] = True
    example_rows: ClassVar[type | None] = DecoderRows

    @override
    def input_length(self, length: int) -> int:
        """Returns one more than the length of the row: every input has a target."""
        return length + 1

    @override
    def stride(self, length: int) -> int:
        """Returns the length of the row: the last target of a row is also the first token of the next row."""
        return length

    @override
    def apply(
        self, example: dict[str, np.ndarray], special: Special, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Shifts the tokens by one.

        Args:
          example: `tokens` [L + 1]; optionally `mask` [L + 1], 0 at padding; `segment_ids` [L + 1], only if attention
            does not cross documents: the number of each token's document, counted from 1, or 0 at padding.

        Returns:
          `tokens` and `targets` [L] int32. `target_weights` [L] float32: 0 for a target that is padding or, with
          `segment_ids`, the first token of a document, else 1. If the example has `segment_ids`, also `segment_ids`
          [L], and `positions` [L], which count from the first token of the document in this row.
        """
        tokens = np.asarray(example["tokens"], np.int32)
        mask = example.get("mask")
        weights = np.ones(len(tokens) - 1, np.float32) if mask is None else mask[1:].astype(np.float32)
        row = {"tokens": tokens[:-1], "targets": tokens[1:], "target_weights": weights}
        if "segment_ids" in example:
            segments = np.asarray(example["segment_ids"], np.int32)
            same = segments[1:] == segments[:-1]
            index = np.arange(len(segments) - 1, dtype=np.int32)
            first = np.concatenate([[True], ~same[:-1]])
            row["target_weights"] = weights * same
            row["segment_ids"] = segments[:-1]
            row["positions"] = index - np.maximum.accumulate(np.where(first, index, 0)).astype(np.int32)
        return row
