"""The stretch of a context that answers a question."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Integer
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.objectives.labelled import LabelledObjective, number
from plm_jax.objectives.special import Special


class ContextWindow(NamedTuple):
    """The part of a context that a row holds: its first token, how many there are, and where in the row they begin."""

    first: int
    size: int
    place: int


@dataclass(frozen=True)
class SpanExtraction(LabelledObjective):
    """Tell where in a context the answer to a question begins and ends (Devlin et al. 2019 §4.2).

    A context too long for a row is read in windows, each a row. One that does not hold the answer whole points at the
    first token.

    Attributes:
      stride: how many tokens of the context a window shares with the one before it, as `--doc_stride` of Hugging Face's
        run_qa.py (of BERT's own code it is by how many a window advances).
      question_length: tokens of the question; the rest is cut.
      answer_length, n_best: of an answer most tokens; from how many of the best begins and ends it is chosen.
      unanswerable: whether a question may have no answer, which is told where the first token's score is above the best
        answer's by more than `null_threshold`.
    """

    kind: ClassVar[str] = "span_extraction"
    form: ClassVar[str] = "span"
    targets: ClassVar[str] = "where the answer begins and ends"
    stride: ranges.LengthOrZero = 128
    question_length: ranges.Length = 64
    answer_length: ranges.Length = 30
    n_best: Annotated[int, ranges.Range(1, 2**16)] = 20
    unanswerable: bool = False
    null_threshold: Annotated[float, ranges.Range(-1e6, 1e6)] = 0.0

    @property
    @override
    def least_texts(self) -> int:
        return 2

    @override
    def blank_label(self) -> dict[str, Any]:
        return {"answer": None, "window": 0}

    def room(self, question: Any, length: int, special: Special) -> Any:
        """How many tokens of the context a row has beside a question of so many tokens, numbers or arrays."""
        return self.row_format(special).room(length, 2) - np.minimum(question, self.question_length)

    @override
    def num_windows(
        self, sizes: Integer[np.ndarray, "examples texts"], length: int, special: Special
    ) -> Int[np.ndarray, " examples"]:
        room = self.room(sizes[:, 0], length, special)
        return 1 + np.maximum(0, -(-(sizes[:, 1] - room) // (room - self.stride)))

    @override
    def are_cut(
        self, sizes: Integer[np.ndarray, "examples texts"], length: int, special: Special
    ) -> Bool[np.ndarray, " examples"]:
        """Of which examples the question is cut."""
        return sizes[:, 0] > self.question_length

    def window(self, question: int, context: int, length: int, special: Special, number: int) -> ContextWindow:
        """Window `number` of an example whose texts have so many tokens."""
        room = int(self.room(question, length, special))
        first = number * (room - self.stride)
        begins = self.row_format(special).begins([min(question, self.question_length), 0])
        return ContextWindow(first, min(room, context - first), begins[1])

    @override
    def apply(self, example: dict[str, Any], special: Special, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """The row of a window, and `span_starts` and `span_ends` [] int32, places in the row; nothing is drawn.

        Args:
          example: `texts`, question and context; `window`, its number; `answer`, the first and the last token of the
            context's that are of the answer; None: there is none.
        """
        question, context = example["texts"]
        window = self.window(len(question), len(context), example["length"], special, example["window"])
        texts = [question[: self.question_length], context[window.first : window.first + window.size]]
        first, last = example["answer"] or (-1, -1)
        begin, end = first - window.first, last - window.first
        is_there = 0 <= begin <= end < window.size
        return self.make_row(texts, example, special).row | {
            "span_starts": number(window.place + begin if is_there else 0),
            "span_ends": number(window.place + end if is_there else 0),
        }
