"""Predictions of models: one dataclass for each kind of task head, and one for models without a task head."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Prefix of the columns of predictions in tables.
PREFIX = "predicted_"


@dataclass(frozen=True)
class Prediction:
    """Base class of predictions. A prediction belongs to one example."""

    def columns(self) -> dict[str, Any]:
        """Returns a dict from column names, such as `predicted_label`, to the fields as JSON values."""
        return {f"{PREFIX}{name}": value for name, value in dataclasses.asdict(self).items()}


@dataclass(frozen=True)
class ClassPrediction(Prediction):
    """The class of a text or of a pair of texts.

    Attributes:
      label: name of the most probable class.
      probability: probability of this class.
      probabilities: dict from the name of each class to its probability.
    """

    label: str
    probability: float
    probabilities: Mapping[str, float]


@dataclass(frozen=True)
class LabelsPrediction(Prediction):
    """The predicted labels of a text or of a pair of texts; there may be none.

    Attributes:
      labels: names of the labels whose probability is above 0.5.
      probabilities: dict from the name of each label to its probability; the labels are independent, so the
        probabilities need not add up to 1.
    """

    labels: tuple[str, ...]
    probabilities: Mapping[str, float]


@dataclass(frozen=True)
class ScorePrediction(Prediction):
    """The score of a text or of a pair of texts.

    Attributes:
      score: the score, in the unit of the training examples.
    """

    score: float


@dataclass(frozen=True)
class Entity:
    """Consecutive words with one label.

    Attributes:
      label: type of the entity, without `B-` and `I-`.
      text: text of the entity.
      start: index of the first character in the text.
      end: index of the end in the text, exclusive.
      score: mean, over the words of the entity, of the probability of the predicted tag.
    """

    label: str
    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class TagPrediction(Prediction):
    """The tags of the words of a text.

    Attributes:
      words: the words.
      tags: tag of each word.
      entities: groups of consecutive words of one type; words tagged `O` are in no entity.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    entities: tuple[Entity, ...]


@dataclass(frozen=True)
class AnswerPrediction(Prediction):
    """The span of a context that answers a question.

    Attributes:
      answer: text of the span; empty if the context has no answer.
      start: index of the first character of the span in the context; None if there is no answer.
      end: index of the end of the span in the context, exclusive; None if there is no answer.
      score: product of the probability of the first token and the probability of the last token. Both probabilities are
        normalized over the context tokens of one window and the token for "no answer". If there is no answer, the token
        for "no answer" counts as the first and the last token.
    """

    answer: str
    start: int | None
    end: int | None
    score: float


@dataclass(frozen=True)
class ChoicePrediction(Prediction):
    """The choice among several texts.

    Attributes:
      choice: index of the chosen text, from 0.
      text: the chosen text.
      probabilities: probability of each text.
    """

    choice: int
    text: str
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class TextPrediction(Prediction):
    """The text that a model without a task head writes.

    Attributes:
      text: for a masked model, the input text with its blanks filled; for a decoder, the continuation of the input
        text; for an encoder-decoder, the answer.
    """

    text: str
