"""Answers from the scores of start and end tokens, over the windows of a context.

The best starts and ends of each window are combined into valid pairs, best first. The rules follow `utils_qa.py` in the
question-answering example of huggingface/transformers, and `run_squad.py` in google-research/bert.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class AnswerWindow(NamedTuple):
    """Scores of a row that contains a part of a context.

    Attributes:
      starts: [L], score of each position as the start of the answer.
      ends: [L], score of each position as the end of the answer.
      begins: [L], index in the context of the first character of each token; -1 at positions outside of the context.
      stops: [L], index in the context after the last character of each token; -1 at positions outside of the context.
      may_start: bool [L], whether an answer may start at each position. It may if no other window has more context
        around the token (`most_context`).
      null: position whose scores stand for "no answer".
    """

    starts: np.ndarray
    ends: np.ndarray
    begins: np.ndarray
    stops: np.ndarray
    may_start: np.ndarray
    null: int = 0


class Span(NamedTuple):
    """Candidate answer: characters [begin, stop) of a context, and the sum of the start score and the end score."""

    begin: int
    stop: int
    score: float


class Answer(NamedTuple):
    """Predicted answer to a question.

    Attributes:
      text: text of the answer; empty if there is no answer.
      null_difference: score of "no answer" minus the score of the best span. If no span is valid, the score of the best
        span counts as 0.
      spans: best spans, best first.
    """

    text: str
    null_difference: float
    spans: list[Span]


def best(windows: Sequence[AnswerWindow], n_best: int = 20, answer_length: int = 30) -> list[Span]:
    """Returns up to `n_best` valid spans of all windows, best first.

    Only the `n_best` best starts and the `n_best` best ends of each window are combined. A valid span has its first and
    last token in the context, starts where `may_start` is true, and has 1 to `answer_length` tokens.
    """
    spans: list[Span] = []
    for window in windows:
        starts, ends = (np.argsort(-scores, kind="stable")[:n_best] for scores in (window.starts, window.ends))
        is_start, is_end = (window.begins[starts] >= 0) & window.may_start[starts], window.begins[ends] >= 0
        sizes = ends - starts[:, None] + 1
        valid = is_start[:, None] & is_end & (sizes >= 1) & (sizes <= answer_length)
        pairs = window.starts[starts].astype(np.float64)[:, None] + window.ends[ends].astype(np.float64)
        order = np.argsort(-np.where(valid, pairs, -np.inf), axis=None, kind="stable")[: min(n_best, valid.sum())]
        for i, j in zip(*np.unravel_index(order, pairs.shape), strict=True):
            spans.append(Span(int(window.begins[starts[i]]), int(window.stops[ends[j]]), float(pairs[i, j])))
    return sorted(spans, key=lambda span: -span.score)[:n_best]


def answer(
    context: str,
    windows: Sequence[AnswerWindow],
    n_best: int = 20,
    answer_length: int = 30,
    unanswerable: bool = False,
    null_threshold: float = 0.0,
) -> Answer:
    """Returns the best answer. Its text is empty if no span is valid.

    With `unanswerable`, its text is also empty if the score of "no answer" exceeds the score of the best span by more
    than `null_threshold`. The score of "no answer" is the lowest among the windows, because every window must reject an
    answer.

    Args:
      n_best, answer_length: arguments of `best`.
    """
    spans = best(windows, n_best, answer_length)
    null = min(float(window.starts[window.null]) + float(window.ends[window.null]) for window in windows)
    difference = null - (spans[0].score if spans else 0.0)
    if not spans or (unanswerable and difference > null_threshold):
        return Answer("", difference, spans)
    return Answer(context[spans[0].begin : spans[0].stop], difference, spans)


def most_context(parts: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """Returns one array per part of a context, bool [tokens]: whether each token has the most context in this part.

    The context of a token is the number of the part's tokens before it or after it, whichever is smaller, plus a
    hundredth of the number of all tokens of the part. If parts have the same context, the first one counts as the part
    with the most.

    Args:
      parts: for each part, the index of its first token in the context, and its number of tokens.
    """
    stop = max(first + size for first, size in parts)
    scores = np.full((len(parts), stop), -np.inf)
    for row, (first, size) in zip(scores, parts, strict=True):
        offset = np.arange(size)
        row[first : first + size] = np.minimum(offset, size - 1 - offset) + 0.01 * size
    chosen = scores.argmax(0)
    return [chosen[first : first + size] == number for number, (first, size) in enumerate(parts)]
