"""A model with its weights, wherever it came from and wherever it goes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import flax
import jax
import numpy as np

from plm_jax.models import settings


@dataclass(frozen=True)
class Pretrained:
    """What a directory holds.

    Attributes:
      model: the model's settings.
      params: its parameters: arrays, or `files.InFiles`, which are read when they are asked for.
      special_ids: `bos_token_id`, `eos_token_id` (an integer or several), `pad_token_id`, `decoder_start_token_id`,
        `cls_token_id`, `sep_token_id`, `mask_token_id`, `sentinels` (how many), `lowercase` (whether WordPiece or
        SentencePiece drops case and accents), `begins_with_bos` (whether every text does) or `begins_with` (the ids
        that it does), as far as the files tell them.
      vocabulary: a spec for `vocabularies.load`; None where there are no files for one.
      family: the model_type of the Hugging Face family that it was read as; None: it was read as none.
    """

    model: settings.Transformer
    params: Mapping[str, Any]
    special_ids: Mapping[str, Any] = field(default_factory=dict)
    vocabulary: str | None = None
    family: str | None = None

    def flat(self) -> dict[str, Any]:
        """The parameters by their paths, joined by `/`; those on devices are fetched."""
        flat = flax.traverse_util.flatten_dict(self.params, sep="/")
        return {path: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf for path, leaf in flat.items()}


def float32(leaf: Any) -> Any:
    """A parameter as a float32 array in memory; one on a device stays there."""
    return leaf if isinstance(leaf, jax.Array) else np.asarray(leaf, np.float32)
