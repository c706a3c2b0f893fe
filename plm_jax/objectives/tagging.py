"""Tagging of words."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from plm_jax.objectives.labeled import LabeledObjective
from plm_jax.objectives.special import Special


@dataclass(frozen=True)
class Tagging(LabeledObjective):
    """Prediction of the tag of each word from its first token (Devlin et al. 2019 §5.3)."""

    kind: ClassVar[str] = "tagging"
    form: ClassVar[str] = "tags"
    architectures: ClassVar[tuple[str, ...]] = ("encoder", "encoder_decoder", "elmo", "xlnet")
    targets: ClassVar[str] = "the tag of each word"

    @override
    def placeholder_label(self) -> dict[str, Any]:
        return {"tags": np.zeros(0, np.int64), "word_tokens": np.zeros(0, np.int64)}

    @override
    def apply(self, example: dict[str, Any], special: Special, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns the row, and `tags` [L] int32: the tag of each word at its first token, -1 elsewhere.

        Args:
          example: `texts` and `length`; `tags` [words], the tag of each word; `word_tokens` [words], the index in the
            text of each word's first token, or -1 for a word without tokens.
        """
        row, (start,), (size,) = self.make_row(example["texts"], example, special)
        tokens = np.asarray(example["word_tokens"])
        in_row = (tokens >= 0) & (tokens < size)
        tags = np.full(example["length"], -1, np.int32)
        tags[start + tokens[in_row]] = np.asarray(example["tags"])[in_row]
        return row | {"tags": tags}
