"""Record of a trained model: its settings, its parameters and their origin."""

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
      model: settings of the model.
      params: parameters: arrays, or `files.LazyArray`, which are read on access.
      special_ids: known special ids and how texts are framed. `NAME_token_id` for the names of `common.special_ids` (an
        integer; several for `eos` if there are several), `decoder_start_token_id`, `sentinels` (their number),
        `lowercase` (whether WordPiece or SentencePiece drops case and accents), `begins_with_bos` (whether every text
        begins with `bos`) or `begins_with` (ids at the beginning of every text), `ends_with` (ids at the end of every
        text), `separates_with` (ids between the texts of a pair), `separator_token_id` (id between the documents of a
        decoder), and `max_length` (the largest number of tokens to which the tokenizer truncates a text).
      vocabulary: spec for `vocabularies.load`; None if there are no files of a vocabulary.
      family: kind of the Hugging Face family that the model was read as; None for other formats.
      run: config of the run that trained the model, which this package does not read; None for other models.
      workdir: directory of that run; None for other models.
      step: step of the checkpoint; None for other models.
      vocabulary_id: recorded id of the vocabulary that the model was trained with, or None.
      hub_files: files of its Hugging Face directory, as paths by name, that `hub.hub_files` copies unchanged; empty for
        other models.
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

    @property
    def max_length(self) -> int | None:
        """Number of tokens to which texts are truncated, the smaller of the limits of tokenizer and model, or None."""
        limits = self.special_ids.get("max_length"), self.model.max_length or self.model.num_positions
        return min((limit for limit in limits if limit), default=None)

    def flat(self) -> dict[str, Any]:
        """Returns the parameters by path, joined by `/`. Parameters on devices are fetched."""
        flat = traverse_util.flatten_dict(self.params, sep="/")
        return {path: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf for path, leaf in flat.items()}


def float32(leaf: Any) -> Any:
    """Returns a parameter as a float32 array in memory. An array on a device is returned unchanged."""
    return leaf if isinstance(leaf, jax.Array) else np.asarray(leaf, np.float32)
