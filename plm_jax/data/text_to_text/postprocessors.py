"""What a model wrote, and what the target says, as the metrics of the task compare them.

Each is a seqio `postprocess_fn(output, example=row, is_target=bool)`, called with the target's text and with a
prediction of it; `example` holds the fields of the task's examples, texts of it as bytes.
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
    """Index of the label, -1 for any other text."""
    return labels.index(output) if output in labels else -1


def number(output: str, **_: Any) -> float:
    """The number, -1 for any other text."""
    try:
        return float(output)
    except ValueError:
        return -1.0


def multirc(output: str, example: Example, is_target: bool = False) -> dict[str, Any]:
    """Index of the label; with the target the question that the answer belongs to."""
    found: dict[str, Any] = {"value": label_index(output, ("False", "True"))}
    return found | _group(example, is_target, "paragraph", "question")


def record(output: str, example: Example, is_target: bool = False) -> dict[str, Any]:
    """The answer; as target all that are right, and the query that they belong to."""
    found = {"value": answers(output, example, is_target)}
    return found | _group(example, is_target, "passage", "query")


def _group(example: Example, is_target: bool, *parts: str) -> dict[str, tuple[int, ...]]:
    return {"group": tuple(int(example[f"idx/{part}"]) for part in parts)} if is_target else {}


def answers(output: str, example: Example, is_target: bool = False) -> str | list[str]:
    """The answer; as target all that are right."""
    return [_text(answer) for answer in example["answers"]] if is_target else output


def referent(output: str, example: Example, is_target: bool = False) -> int:
    """Whether the noun is the one in question, as target whether it should be; -1 for no noun.

    Words in lower case, without determiners: all of one noun are among the other's. A possessive is another noun.
    """
    if is_target:
        return int(example["label"])
    found, asked = _content(output), _content(_text(example["referent"]))
    if not found:
        return -1
    if ("'" in found) != ("'" in asked):
        return 0
    words, asked_words = set(found.split(" ")), set(asked.split(" "))
    return int(words <= asked_words or asked_words <= words)


def _content(text: str) -> str:
    return " ".join(word for word in text.strip().lower().split(" ") if word not in _DETERMINERS)


def _text(value: str | bytes) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else value
