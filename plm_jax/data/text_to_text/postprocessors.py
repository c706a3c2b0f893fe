"""Conversion of outputs of a model and of targets to values that the metrics of a task compare.

Each function is a seqio `postprocess_fn(output, example=row, is_target=bool)`, called once with the text of the target
and once with the text of the prediction; `example` has the fields of the task's examples, with texts as bytes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Example = Mapping[str, Any]

_ARTICLES = ("a", "an", "the")
_POSSESSIVES = ("her", "his", "my", "our", "their", "whose", "your")
_DEMONSTRATIVES = ("that", "these", "this", "those", "which")
_QUANTIFIERS = ("each", "every", "few", "many", "much", "some")
_DETERMINERS = frozenset({*_ARTICLES, *_POSSESSIVES, *_DEMONSTRATIVES, *_QUANTIFIERS})


def label_index(output: str, labels: Sequence[str], **_: Any) -> int:
    """Returns the index of the output in `labels`, or -1 if the output is not a label."""
    return labels.index(output) if output in labels else -1


def number(output: str, **_: Any) -> float:
    """Returns the output as a float, or -1 if it is not a number."""
    try:
        return float(output)
    except ValueError:
        return -1.0


def multirc(output: str, example: Example, is_target: bool = False) -> dict[str, Any]:
    """Returns a dict with `value`, the index of the label, or -1 if the output is not a label.

    For a target, the dict also has `group`, which identifies the question.
    """
    value: dict[str, Any] = {"value": label_index(output, ("False", "True"))}
    return value | _group(example, is_target, "paragraph", "question")


def record(output: str, example: Example, is_target: bool = False) -> dict[str, Any]:
    """Returns a dict with `value`, the answer or, for a target, all correct answers.

    For a target, the dict also has `group`, which identifies the query.
    """
    value = {"value": answers(output, example, is_target)}
    return value | _group(example, is_target, "passage", "query")


def _group(example: Example, is_target: bool, *parts: str) -> dict[str, tuple[int, ...]]:
    return {"group": tuple(int(example[f"idx/{part}"]) for part in parts)} if is_target else {}


def answers(output: str, example: Example, is_target: bool = False) -> str | list[str]:
    """Returns the output unchanged or, for a target, all correct answers."""
    return [_text(answer) for answer in example["answers"]] if is_target else output


def referent(output: str, example: Example, is_target: bool = False) -> int:
    """Returns 1 if the output is the candidate noun, and 0 if it is another noun; for a target, returns the label.

    Nouns are compared in lower case and without determiners. Two nouns count as equal if one of them contains every
    word of the other, and if both or neither have an apostrophe. Returns -1 if the output has no words except
    determiners.
    """
    if is_target:
        return int(example["label"])
    noun, candidate = _content(output), _content(_text(example["referent"]))
    if not noun:
        return -1
    if ("'" in noun) != ("'" in candidate):
        return 0
    words, candidate_words = set(noun.split(" ")), set(candidate.split(" "))
    return int(words <= candidate_words or candidate_words <= words)


def _content(text: str) -> str:
    return " ".join(word for word in text.strip().lower().split(" ") if word not in _DETERMINERS)


def _text(value: str | bytes) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else value
