"""Extraction of the span of a context that answers a question."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Integer
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.objectives.labeled import LabeledObjective, number
from plm_jax.objectives.special import Special


class ContextWindow(NamedTuple):
    """The part of a context in a row.

    Attributes:
      first: index in the context of the first token of the window.
      size: number of tokens.
      offset: index in the row of the first token of the window.
      null: index in the row of the token that stands for "no answer".
    """

    first: int
    size: int
    offset: int
    null: int


@dataclass(frozen=True)
class SpanExtraction(LabeledObjective):
    """Prediction of the start and end of the answer to a question in a context (Devlin et al. 2019 §4.2).

    A context that is too long for a row is split into windows, with one row for each window. If a window does not
    contain the whole answer, its target is the first token of the row or, for XLNet, the last token `cls`.

    Attributes:
      stride: number of context tokens that a window shares with the previous window, like `--doc_stride` in Hugging
        Face's run_qa.py. In BERT's own code, `doc_stride` is the step between windows.
      question_length: maximum number of tokens of a question; longer questions are truncated.
      answer_length: maximum number of tokens of a predicted answer.
      n_best: number of highest-scoring starts and ends from which the answer is chosen.
      unanswerable: whether questions may have no answer. "No answer" is predicted if its score exceeds the score of the
        best answer by more than `null_threshold`. The score of "no answer" is the score of the first token of the row
        or, for XLNet, of `cls`.
      null_threshold: difference of scores above which "no answer" is predicted.
    """

    kind: ClassVar[str] = "span_extraction"
    form: ClassVar[str] = "span"
    architectures: ClassVar[tuple[str, ...]] = ("encoder", "encoder_decoder", "xlnet")
    targets: ClassVar[str] = "where the answer begins and ends"
    stride: ranges.LengthOrZero = 128
    question_length: ranges.Length = 64
    answer_length: ranges.Length = 30
    n_best: Annotated[int, ranges.Range(1, 2**16)] = 20
    unanswerable: bool = False
    null_threshold: Annotated[float, ranges.Range(-1e6, 1e6)] = 0.0

    @property
    @override
    def min_texts(self) -> int:
        return 2

    @override
    def placeholder_label(self) -> dict[str, Any]:
        return {"answer": None, "window": 0}

    def room(self, question: Any, length: int, special: Special) -> Any:
        """Returns the number of context tokens that fit in a row with `question` question tokens (integer or array)."""
        return self.row_format(special).room(length, 2) - np.minimum(question, self.question_length)

    @override
    def num_windows(
        self, sizes: Integer[np.ndarray, "examples texts"], length: int, special: Special
    ) -> Int[np.ndarray, " examples"]:
        room = self.room(sizes[:, 0], length, special)
        return 1 + np.maximum(0, -(-(sizes[:, 1] - room) // (room - self.stride)))

    @override
    def are_truncated(
        self, sizes: Integer[np.ndarray, "examples texts"], length: int, special: Special
    ) -> Bool[np.ndarray, " examples"]:
        """Returns whether the question of each example is truncated, bool [n]; contexts are never truncated."""
        return sizes[:, 0] > self.question_length

    def window(self, question: int, context: int, length: int, special: Special, number: int) -> ContextWindow:
        """Returns window `number` of an example with `question` question tokens and `context` context tokens."""
        room = int(self.room(question, length, special))
        first = number * (room - self.stride)
        row_format, size = self.row_format(special), min(room, context - first)
        offset = row_format.text_starts([min(question, self.question_length), 0])[1]
        null = offset + size + len(row_format.after) - 1 if row_format.classifies_last else 0
        return ContextWindow(first, size, offset, null)

    @override
    def apply(self, example: dict[str, Any], special: Special, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns the row of a window, and `span_starts` and `span_ends` [] int32, indices in the row.

        Args:
          example: `texts`, the question and the context; `window`, the index of the window; `answer`, the indices in
            the context of the first and the last token of the answer, or None.
        """
        question, context = example["texts"]
        window = self.window(len(question), len(context), example["length"], special, example["window"])
        texts = [question[: self.question_length], context[window.first : window.first + window.size]]
        first, last = example["answer"] or (-1, -1)
        begin, end = first - window.first, last - window.first
        is_inside = 0 <= begin <= end < window.size
        return self.make_row(texts, example, special).row | {
            "span_starts": number(window.offset + begin if is_inside else window.null),
            "span_ends": number(window.offset + end if is_inside else window.null),
        }
