"""The one record of a trained model: its settings, its weights, and what is known of where they come from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from plm_jax.models.protocol import ModelConfig


@dataclass(frozen=True)
class Pretrained:
    """A trained model.

    Attributes:
      model: the model's settings.
      params: its parameters: arrays, or `files.InFiles`, which are read when they are asked for.
      special_ids: `NAME_token_id` for the names of `common.special_ids` (an integer, of `eos` perhaps several),
        `decoder_start_token_id`, `sentinels` (how many), `lowercase` (whether WordPiece or SentencePiece drops case
        and accents), `begins_with_bos` (whether every text does) or `begins_with` (the ids that every text begins
        with), `ends_with` (the ids that every text ends with), `separator_token_id` (the id between a decoder's
        documents), as far as they are known.
      vocabulary: a spec for `vocabularies.load`; None where there are no files for one.
      family: the model_type of the Hugging Face family that it was read as; None: it was read as none.
      run: config of the run that trained it, which this package does not read; None for a model from elsewhere.
      workdir: the run's directory; None for a model that is in none.
      step: the checkpoint's step; None for a model from elsewhere.
      vocabulary_id: of the vocabulary that it was trained with, where that is recorded.
      hub_files: paths by name of the files of its Hugging Face directory that `hub.hub_files` copies unchanged into
        others; empty for a model that is not from Hugging Face.
    """

    model: ModelConfig
    params: Mapping[str, Any]
    special_ids: Mapping[str, Any] = field(default_factory=dict)
    vocabulary: str | None = None
    family: str | None = None
    run: Any = None
    workdir: str | None = None
    step: int | None = None
    vocabulary_id: str | None = None
    hub_files: Mapping[str, str] = field(default_factory=dict)

    def flat(self) -> dict[str, Any]:
        """The parameters by their paths, joined by `/`; those on devices are fetched."""
        flat = traverse_util.flatten_dict(self.params, sep="/")
        return {path: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf for path, leaf in flat.items()}


def float32(leaf: Any) -> Any:
    """A parameter as a float32 array in memory; one on a device stays there."""
    return leaf if isinstance(leaf, jax.Array) else np.asarray(leaf, np.float32)
