"""Bidirectional language modeling."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.objectives.objective import Objective
from plm_jax.objectives.special import Special


@dataclass(frozen=True)
class BidirectionalLM(Objective):
    """Prediction of each word from the words before it and from the words after it.

    This is the objective of ELMo (Peters et al. 2018, arXiv:1802.05365).

    The loss is the mean over both directions. The layout of streams reads text as allenai/bilm-tf does, except that
    characters are numbered from 0; bilm-tf reserves 0 for padding.

    Attributes:
      negative_samples: number of words drawn per batch for a sampled softmax in training; 0 trains with the full
        softmax. Words are drawn log-uniformly by id, so ids must be sorted by decreasing frequency. Validation always
        uses the full softmax.
    """

    kind: ClassVar[str] = "bidirectional_lm"
    architectures: ClassVar[tuple[str, ...]] = ("elmo",)
    loss: ClassVar[str] = "bidirectional_lm"
    loss_fields: ClassVar[tuple[str, ...]] = ("negative_samples",)
    targets: ClassVar[str] = "every next word, and every one before when reading backward"
    inputs: ClassVar[tuple[str, ...]] = ("stream",)
    negative_samples: ranges.LengthOrZero = 0

    @override
    def apply(
        self, example: dict[str, np.ndarray], special: Special, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Adds target weights to an example of the layout of streams, without randomness.

        Args:
          example: `targets` [2, L] and `characters` [2, L, C], for the forward and the backward direction; optionally
            `mask` [L], 0 at padding.

        Returns:
          `characters`, unchanged; `targets` [2, L] int32; and `target_weights` [2, L] float32, 0 at padding, else 1.

        Raises:
          UserError: the example does not come from the layout of streams.
        """
        if "characters" not in example:
            raise UserError("bidirectional language modeling reads streams: set config.data.layout to streams")
        targets = np.asarray(example["targets"], np.int32)
        weights = np.ones(targets.shape, np.float32)
        if "mask" in example:
            weights *= example["mask"]
        return {"characters": example["characters"], "targets": targets, "target_weights": weights}
