"""Multiple choice: which of several texts continues or answers a context."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from jaxtyping import Bool, Integer
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.objectives.labeled import LabeledObjective, number, stacked
from plm_jax.objectives.special import Special


@dataclass(frozen=True)
class MultipleChoice(LabeledObjective):
    """Choice of the correct one of several texts, each in a row with the context (Devlin et al. 2019 §4.4).

    Attributes:
      num_choices: number of choices; must equal `form.number` of the sources.
    """

    kind: ClassVar[str] = "multiple_choice"
    form: ClassVar[str] = "choice"
    architectures: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "xlnet")
    targets: ClassVar[str] = "the right one of several texts"
    num_choices: Annotated[int, ranges.Range(2, 1024)] = 2

    @property
    @override
    def min_texts(self) -> int:
        return 1 + self.num_choices

    @property
    @override
    def rows_per_example(self) -> int:
        return self.num_choices

    @override
    def placeholder_label(self) -> dict[str, Any]:
        return {"label": 0}

    @override
    def special_tokens(self, num_texts: int) -> tuple[str, ...]:
        return super().special_tokens(min(num_texts, 2))  # Each row has two texts.

    @override
    def are_truncated(
        self, sizes: Integer[np.ndarray, "examples texts"], length: int, special: Special
    ) -> Bool[np.ndarray, " examples"]:
        pairs = (sizes[:, [0, choice]] for choice in range(1, sizes.shape[1]))
        return np.any([super(MultipleChoice, self).are_truncated(pair, length, special) for pair in pairs], axis=0)

    @override
    def apply(self, example: dict[str, Any], special: Special, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns the rows of the context with each choice, stacked along a new first axis, and `label` [] int32."""
        context, *choices = example["texts"]
        rows = [self.make_row([context, choice], example, special).row for choice in choices]
        return stacked(rows) | {"label": number(example["label"])}
