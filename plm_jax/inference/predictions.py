"""Predictions of models that were fine-tuned for a task, one class for each kind of task head."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Prefix of the columns of predictions in tables.
PREFIX = "predicted_"


@dataclass(frozen=True)
class Prediction:
    """The base of predictions, one for each example."""

    def columns(self) -> dict[str, Any]:
        """Returns the fields as JSON values by the names of their columns, such as `predicted_label`."""
        return {f"{PREFIX}{name}": value for name, value in dataclasses.asdict(self).items()}


@dataclass(frozen=True)
class ClassPrediction(Prediction):
    """The class of a text or of a pair of texts.

    Attributes:
      label: name of the most probable class.
      probability: probability of this class.
      probabilities: probability of each class by its name.
    """

    label: str
    probability: float
    probabilities: Mapping[str, float]


@dataclass(frozen=True)
class LabelsPrediction(Prediction):
    """The labels of a text or of a pair of texts, any number of them.

    Attributes:
      labels: names of the labels whose probability is above 0.5.
      probabilities: probability of each label by its name; the labels are independent, so these need not add up to 1.
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
      start: first character in the text.
      end: end in the text, exclusive.
      score: mean probability of the tags of its words.
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
      entities: consecutive words of one type; words tagged `O` are left out.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    entities: tuple[Entity, ...]


@dataclass(frozen=True)
class AnswerPrediction(Prediction):
    """The span of a context that answers a question.

    Attributes:
      answer: text of the span; empty if the context has no answer.
      start: first character of the span in the context; None if there is no answer.
      end: end of the span, exclusive; None if there is no answer.
      score: product of the probabilities of the first and the last token. Each is a probability among the tokens of the
        context in the same window and the token for "no answer".
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
      text: text with its blanks filled for a masked model, the continuation for a decoder, or the answer of an
        encoder-decoder.
    """

    text: str
