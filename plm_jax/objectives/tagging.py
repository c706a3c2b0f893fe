"""The tag of each word."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from plm_jax.objectives.labelled import LabelledObjective
from plm_jax.objectives.special import Special


@dataclass(frozen=True)
class Tagging(LabelledObjective):
    """Tell the tag of each word, from the first of its tokens (Devlin et al. 2019 §5.3)."""

    kind: ClassVar[str] = "tagging"
    form: ClassVar[str] = "tags"
    architectures: ClassVar[tuple[str, ...]] = ("encoder", "encoder_decoder", "elmo")
    targets: ClassVar[str] = "the tag of each word"

    @override
    def blank_label(self) -> dict[str, Any]:
        return {"tags": np.zeros(0, np.int64), "word_tokens": np.zeros(0, np.int64)}

    @override
    def apply(self, example: dict[str, Any], special: Special, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """The row, and `tags` [L] int32: at the first token of each word its tag, elsewhere -1; nothing is drawn.

        Args:
          example: `tags` [words]; `word_tokens` [words], the first of the text's tokens that is of each word, -1: none.
        """
        row, (begin,), (size,) = self.make_row(example["texts"], example, special)
        tokens = np.asarray(example["word_tokens"])
        there = (tokens >= 0) & (tokens < size)
        tags = np.full(example["length"], -1, np.int32)
        tags[begin + tokens[there]] = np.asarray(example["tags"])[there]
        return row | {"tags": tags}
