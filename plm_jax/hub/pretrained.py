"""Record of a trained model, with its settings, its parameters and its origin."""

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
      params: tree of parameters. The leaves are arrays or `files.LazyArray`, which are read on access.
      special_ids: known special ids, and other facts about the tokenizer. The possible keys are:
        - `NAME_token_id` for each name in `common.special_ids`: an id, or a list of ids if there are several `eos`.
        - `decoder_start_token_id`: id at the beginning of a decoder's input.
        - `separator_token_id`: id between the documents of a decoder.
        - `begins_with_bos`: whether every text begins with `bos`.
        - `begins_with`: list of ids at the beginning of every text. It has priority over `begins_with_bos`.
        - `ends_with`: list of ids at the end of every text.
        - `separates_with`: list of ids between the texts of a pair.
        - `sentinels`: number of sentinels.
        - `lowercase`: whether WordPiece or SentencePiece drops case and accents.
        - `max_length`: number of tokens to which the tokenizer truncates a text.
      vocabulary: spec for `vocabularies.load`; None if there are no vocabulary files.
      family: kind of the Hugging Face family with which the model was read; None for other formats.
      run: config of the plm_jax run that trained the model; None if there is no such run. `plm_jax.hub` does not read
        it.
      workdir: directory of the run, or None.
      step: step of the checkpoint, or None.
      vocabulary_id: recorded id of the vocabulary with which the model was trained, or None.
      hub_files: files of the Hugging Face directory that `hub.hub_files` copies unchanged, as a mapping from names to
        paths. The mapping is empty if the model is not from such a directory.
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
        """Number of tokens to which texts are truncated; None if there is no limit.

        If the tokenizer and the model both have a limit, this is the smaller one.
        """
        limits = self.special_ids.get("max_length"), self.model.max_length or self.model.num_positions
        return min((limit for limit in limits if limit), default=None)

    def flat(self) -> dict[str, Any]:
        """Returns a dict from paths to parameters. The parts of a path are joined by `/`.

        Parameters on devices are copied to host memory.
        """
        flat = traverse_util.flatten_dict(self.params, sep="/")
        return {path: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf for path, leaf in flat.items()}


def float32(leaf: Any) -> Any:
    """Returns a parameter as a float32 NumPy array. A JAX array is returned unchanged, whatever its type."""
    return leaf if isinstance(leaf, jax.Array) else np.asarray(leaf, np.float32)
