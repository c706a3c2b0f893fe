"""Classification and regression of texts and pairs of texts."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.objectives.labeled import LabeledObjective, number, stacked
from plm_jax.objectives.special import Special


@dataclass(frozen=True)
class _TextsObjective(LabeledObjective):
    """The base of objectives with one label for a text or a pair of texts.

    Attributes:
      label: key of the label in examples and rows.
      dtype: type of the label in rows.
      both_orders: whether a decoder reads a pair of texts in both orders, one row for each order. This suits symmetric
        tasks such as similarity (Radford et al. 2018 §3.3).
    """

    architectures: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "encoder_decoder", "elmo", "xlnet")
    label: ClassVar[str]
    dtype: ClassVar[type]
    both_orders: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.both_orders and self.rows != "decoder":
            raise UserError(
                f"config.objective.both_orders needs rows for a decoder, config.objective.rows is {self.rows}: "
                "set both_orders to False"
            )

    @property
    @override
    def min_texts(self) -> int:
        return 2 if self.both_orders else 1

    @property
    @override
    def rows_per_example(self) -> int:
        return 2 if self.both_orders else 1

    @override
    def placeholder_label(self) -> dict[str, Any]:
        return {self.label: 0}

    @override
    def apply(self, example: dict[str, Any], special: Special, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns the row of `LabeledObjective.make_row` together with the label.

        With `both_orders`, two rows are stacked.
        """
        texts = example["texts"]
        if self.both_orders:
            row = stacked([self.make_row(order, example, special).row for order in (texts, texts[::-1])])
        else:
            row = self.make_row(texts, example, special).row
        return row | {self.label: self._target(example[self.label])}

    def _target(self, label: Any) -> np.ndarray:
        """Returns the label of an example as an array."""
        return number(label, self.dtype)


@dataclass(frozen=True)
class Classification(_TextsObjective):
    """Classification of a text or a pair of texts (Devlin et al. 2019 §4.1; Radford et al. 2018 §3.3).

    Attributes:
      class_weights: factor of the loss of each class, in the order of `form.labels`, like `class_weight` in Keras. If
        empty, every class has the factor 1.
    """

    kind: ClassVar[str] = "classification"
    form: ClassVar[str] = "classes"
    targets: ClassVar[str] = "the class of each text or pair"
    label: ClassVar[str] = "label"
    dtype: ClassVar[type] = np.int32
    loss_fields: ClassVar[tuple[str, ...]] = ("lm_coefficient", "class_weights")
    class_weights: tuple[ranges.Scale, ...] = ()


@dataclass(frozen=True)
class Regression(_TextsObjective):
    """Prediction of the score of a text or a pair of texts, trained with the squared error."""

    kind: ClassVar[str] = "regression"
    form: ClassVar[str] = "score"
    targets: ClassVar[str] = "the score of each text or pair"
    label: ClassVar[str] = "score"
    dtype: ClassVar[type] = np.float32


@dataclass(frozen=True)
class MultiLabelClassification(_TextsObjective):
    """Prediction of any number of labels of a text or a pair of texts, each with its own sigmoid.

    Attributes:
      num_labels: number of labels; must equal the number of labels in `form.labels` of the sources.
    """

    kind: ClassVar[str] = "multi_label_classification"
    form: ClassVar[str] = "labels"
    targets: ClassVar[str] = "the labels of each text or pair"
    label: ClassVar[str] = "labels"
    dtype: ClassVar[type] = np.float32
    num_labels: Annotated[int, ranges.Range(2, 2**20)] = 2

    @override
    def placeholder_label(self) -> dict[str, Any]:
        return {"labels": np.zeros(0, np.int64)}

    @override
    def _target(self, label: Any) -> np.ndarray:
        """Returns an array [num_labels]: 1 for each label that the example has, otherwise 0."""
        target = np.zeros(self.num_labels, self.dtype)
        target[np.asarray(label, np.int64)] = 1
        return target
