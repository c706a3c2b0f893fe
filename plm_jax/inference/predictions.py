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
        """Returns the fields, which can be written as JSON, by column names such as `predicted_label`."""
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
      probabilities: dict from the name of each label to its probability. The labels are independent, and the
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
      start: index of the first character in the text, or in the list of words joined by spaces.
      end: index of the end, exclusive.
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
      entities: groups of consecutive words of one type. Words are in no entity if they are tagged `O`, or if they did
        not fit into the row.
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
        normalized over the context tokens of one window and the token for "no answer". If several windows have the
        span, the largest product counts. If there is no answer, the token for "no answer" is the first and the last
        token, and the smallest product of all windows counts.
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
      text: the result of `LanguageModel.generate` for the input text. For a masked model, this is the text with its
        blanks filled; for most decoders, the continuation of the text; for an encoder-decoder, the answer.
    """

    text: str
