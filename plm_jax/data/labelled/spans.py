"""The answer to a question from the scores of where it begins and ends, over the windows of its context.

The rules are those of `utils_qa.py` in huggingface/transformers' question-answering example and of `run_squad.py` in
google-research/bert: of the best begins and ends of each window, those pairs that are legal, the best first.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class AnswerWindow(NamedTuple):
    """A row that holds a part of a context.

    Attributes:
      starts, ends: [L], a score of each place, as a begin and as an end; those of the first stand for no answer.
      begins, stops: [L], the characters of the context from which on and up to which each place is; -1: of none.
      may_start: bool [L], where this window has more context around a place than any other, and answers may begin.
    """

    starts: np.ndarray
    ends: np.ndarray
    begins: np.ndarray
    stops: np.ndarray
    may_start: np.ndarray


class Span(NamedTuple):
    """Characters [begin, stop) of a context, and the sum of the scores of their begin and end."""

    begin: int
    stop: int
    score: float


class Answer(NamedTuple):
    """What is told of a question.

    Attributes:
      text: empty: it has no answer.
      null_difference: by how much the score of no answer is above the best answer's, which is 0 where none is legal.
      spans: the best ones, the best first.
    """

    text: str
    null_difference: float
    spans: list[Span]


def best(windows: Sequence[AnswerWindow], n_best: int = 20, answer_length: int = 30) -> list[Span]:
    """The `n_best` best legal spans of `n_best` begins and as many ends of each window, the best first.

    A legal one has both ends in the context, begins where its window may, and has at most `answer_length` tokens.
    """
    found: list[Span] = []
    for window in windows:
        starts, ends = (np.argsort(-scores, kind="stable")[:n_best] for scores in (window.starts, window.ends))
        is_start, is_end = (window.begins[starts] >= 0) & window.may_start[starts], window.begins[ends] >= 0
        sizes = ends - starts[:, None] + 1
        legal = is_start[:, None] & is_end & (sizes >= 1) & (sizes <= answer_length)
        for i, j in zip(*legal.nonzero(), strict=True):
            first, last = starts[i], ends[j]
            score = float(window.starts[first]) + float(window.ends[last])
            found.append(Span(int(window.begins[first]), int(window.stops[last]), score))
    return sorted(found, key=lambda span: -span.score)[:n_best]


def answer(
    context: str,
    windows: Sequence[AnswerWindow],
    n_best: int = 20,
    answer_length: int = 30,
    unanswerable: bool = False,
    null_threshold: float = 0.0,
) -> Answer:
    """The text of the best span; where `unanswerable`, none if its score is too far below that of no answer.

    The latter is the least of all windows': each must say that the answer is not there.
    """
    spans = best(windows, n_best, answer_length)
    null = min(float(window.starts[0]) + float(window.ends[0]) for window in windows)
    difference = null - (spans[0].score if spans else 0.0)
    if not spans or (unanswerable and difference > null_threshold):
        return Answer("", difference, spans)
    return Answer(context[spans[0].begin : spans[0].stop], difference, spans)


def most_context(parts: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """Of each part of a context, its first token and how many there are, bool [tokens]: where it has most around them.

    That is the lesser of what is before and after, and a hundredth of the part's size; of equals the first part has it.
    """
    stop = max(first + size for first, size in parts)
    scores = np.full((len(parts), stop), -np.inf)
    for row, (first, size) in zip(scores, parts, strict=True):
        place = np.arange(size)
        row[first : first + size] = np.minimum(place, size - 1 - place) + 0.01 * size
    chosen = scores.argmax(0)
    return [chosen[first : first + size] == number for number, (first, size) in enumerate(parts)]
