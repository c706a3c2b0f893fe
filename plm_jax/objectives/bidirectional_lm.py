"""Bidirectional language modelling."""

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
    """Predict each word from those before it, and from those after it (ELMo, Peters et al. 2018, arXiv:1802.05365).

    The loss is the mean of both directions'. The layout of streams gives what allenai/bilm-tf reads; characters are
    numbered from 0, where the source keeps 0 for padding.

    Attributes:
      negative_samples: words drawn for each batch, log-uniformly by their ids, so that these must fall in frequency;
        when training, the softmax is over them and the target alone. 0: over all words, as it always is in validation.
    """

    kind: ClassVar[str] = "bidirectional_lm"
    architectures: ClassVar[tuple[str, ...]] = ("elmo",)
    loss: ClassVar[str] = "bidirectional_lm"
    loss_fields: ClassVar[tuple[str, ...]] = ("negative_samples",)
    targets: ClassVar[str] = "every next word, and every one before when reading backward"
    takes: ClassVar[tuple[str, ...]] = ("stream",)
    negative_samples: ranges.LengthOrZero = 0

    @override
    def apply(
        self, example: dict[str, np.ndarray], special: Special, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Weighs the targets that the layout of streams has found; nothing is drawn.

        Args:
          example: `targets` [2, L] and `characters` [2, L, C], forward and backward; `mask` [L], 0 at padding, may be
            left out where there is none.

        Returns:
          `characters` and `targets` int32, `target_weights` [2, L] float32.

        Raises:
          UserError: it is no example of streams.
        """
        if "characters" not in example:
            raise UserError("bidirectional language modelling reads streams: choose streams as config.data.layout")
        targets = np.asarray(example["targets"], np.int32)
        weights = np.ones(targets.shape, np.float32)
        if "mask" in example:
            weights *= example["mask"]
        return {"characters": example["characters"], "targets": targets, "target_weights": weights}
