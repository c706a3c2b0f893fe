"""Conversion of rows of data sets to text-to-text examples, in plain Python.

A format is a function from a row to a list of examples. A row is a mapping with the fields of the TFDS data set. An
example has the texts `inputs` and `targets`, and further fields for the postprocessor of the task. Most rows make one
example. A row of ReCoRD with several answers makes one per answer. In training, a row of WSC makes none unless its noun
is correct. A format raises an error, such as `UserError` or `KeyError`, if a row does not fit.
"""

import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax.common.errors import UserError
from plm_jax.data.text_to_text import wnli

Row = Mapping[str, Any]
Example = dict[str, Any]
Format = Callable[[Row], list[Example]]

# Target of a row without a label, as in test sets.
UNKNOWN = "<unk>"
BOOLEAN = ("False", "True")
LANGUAGES = {"de": "German", "en": "English", "fr": "French", "ro": "Romanian"}
# ASCII only, like [[:punct:]] and \s in RE2, which T5 uses.
_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
_SPACES = re.compile(r"[\t\n\f\r ]+")
# Two rows of WSC have a wrong pronoun index. These are T5's corrections, with `X` for the pronoun.
_WSC_CORRECTIONS = {
    "The boy continued to whip the pony , and eventually the pony threw him over. John laughed out quite loud. "
    '"Good for him," he said. ': "The boy continued to whip the pony , and eventually the pony threw him over. "
    'John laughed out quite loud. "Good for X ," he said.',
    "When they had eventually calmed down a bit , and had gotten home, Mr. Farley put the magic pebble in an iron "
    "safe . Some day they might want to use it , but really for now, what more could they wish for?": "When they had "
    "eventually calmed down a bit , and had gotten home, Mr. Farley put the magic pebble in an iron safe . Some day "
    "they might want to use X , but really for now, what more could they wish for?",
}


def labeled(task: str, fields: Sequence[str], labels: Sequence[str], columns: Sequence[str] = ()) -> Format:
    """Returns the format with the inputs `TASK FIELD: text FIELD: text …` and the name of the label as targets.

    If the label is -1, the targets are `<unk>`.

    Args:
      fields: names of the fields in order; T5 sorts them by name, except in MultiRC and WiC.
      labels: name of each value of the row's `label`, from 0.
      columns: keys of the fields in a row; if empty, the keys are `fields`.
    """

    def examples(row: Row) -> list[Example]:
        texts = [f"{field}: {_text(row, column)}" for field, column in zip(fields, columns or fields, strict=True)]
        return [{"inputs": " ".join([task, *texts]), "targets": _label(row["label"], labels)}]

    return examples


def _label(label: Any, labels: Sequence[str]) -> str:
    return UNKNOWN if _checked(label, len(labels)) == -1 else labels[int(label)]


def _checked(label: Any, count: int) -> int:
    """Returns a label as an int. Raises `UserError` unless it is in [0, `count`) or -1, which stands for no label."""
    if label not in range(-1, count):
        raise UserError(f"label {label!r}: expected 0 to {count - 1}, or -1 for none")
    return int(label)


def _text(row: Row, name: str) -> str:
    """Returns a field, which must be text. Without this check, null would be formatted as the text `None`."""
    if not isinstance(value := row[name], str):
        raise UserError(f"'{name}' is {repr(value)[:40]}: expected text")
    return value


def _texts(row: Row, name: str) -> list[str]:
    """Returns a field after a check that it is a list of texts."""
    if not (isinstance(values := row[name], list) and all(isinstance(value, str) for value in values)):
        raise UserError(f"'{name}' is {repr(values)[:40]}: expected a list of texts")
    return values


def stsb(row: Row) -> list[Example]:
    """Converts a row of STS-B; the target is the similarity in steps of 0.2 (26 labels), or -1.0 without a label."""
    label = row["label"]
    if not (isinstance(label, numbers.Real) and math.isfinite(label)):
        raise UserError(f"label {label!r}: expected a number, or -1 for none")
    fifths = np.round(np.float32(label) * np.float32(5))  # In float32, half to even, like TensorFlow.
    inputs = f"stsb sentence1: {_text(row, 'sentence1')} sentence2: {_text(row, 'sentence2')}"
    return [{"inputs": inputs, "targets": f"{fifths / np.float32(5):.1f}"}]


_multirc = labeled("multirc", ("question", "answer", "paragraph"), BOOLEAN)


def multirc(row: Row) -> list[Example]:
    """Converts a row of MultiRC like `labeled`, without the tags `<b>` and `<br>`.

    The fields `idx/…` of the example identify the paragraph, the question and the answer.
    """
    [example] = _multirc(row)
    example["inputs"] = re.sub("</?b>", "", example["inputs"].replace("<br>", " "))
    return [example | _group(row, "paragraph", "question", "answer")]


def record(row: Row) -> list[Example]:
    """Converts a row of ReCoRD to one example per answer, or to one with the target `<unk>` if it has no answers.

    The lines `@highlight` of the passage are removed, and the lines after them become sentences.
    """
    passage = re.sub(r"([.?!\"'])\n@highlight\n", r"\1 ", _text(row, "passage")).replace("\n@highlight\n", ". ")
    entities, answers = ", ".join(_texts(row, "entities")), _texts(row, "answers")
    inputs = f"record query: {_text(row, 'query')} entities: {entities} passage: {passage}"
    fields = {"answers": answers, **_group(row, "passage", "query")}
    return [{"inputs": inputs, "targets": answer, **fields} for answer in answers or [UNKNOWN]]


def _group(row: Row, *parts: str) -> dict[str, np.int64]:
    """Returns these parts of the row's `idx`, with the keys `idx/PART`. They are int64, as in TFDS."""
    return {f"idx/{part}": np.int64(int(row["idx"][part])) for part in parts}


def wsc(row: Row) -> list[Example]:
    """Converts a row of WSC: `wsc: … *pronoun* …` → the candidate noun, which is correct if `label` is 1.

    Raises:
      UserError: a text or the label is invalid, or the word at `span2_index` is not `span2_text` or is the first word.
    """
    text, index, pronoun = _text(row, "text"), row["span2_index"], _text(row, "span2_text")
    words, blanked = text.split(" "), _WSC_CORRECTIONS.get(text)
    if blanked is None:
        if not 0 < index < len(words) or words[index] != pronoun:
            raise UserError(f"word {index} of '{text[:60]}' is not '{pronoun}': fix the row's span2_index")
        blanked = " ".join([*words[:index], "X", " ".join(words[index + 1 :])])
    return [_resolution(blanked.replace(" X ", f" *{pronoun}* "), _text(row, "span1_text"), row["label"])]


def true_wsc(row: Row) -> list[Example]:
    """Converts a row of WSC like `wsc`, or to no example unless its noun is correct. T5 trains on these examples."""
    return wsc(row) if _checked(row["label"], 2) == 1 else []


def wnli_as_wsc(row: Row) -> list[Example]:
    """Converts a row of WNLI: `wsc: ` and the premise with a marked pronoun → the noun in the hypothesis."""
    marked, noun = wnli.resolve(_text(row, "sentence1"), _text(row, "sentence2"))
    return [_resolution(marked, noun, row["label"])]


def _resolution(text: str, noun: str, label: Any) -> Example:
    return {"inputs": f"wsc: {text}", "targets": noun, "referent": noun, "label": _checked(label, 2)}


def definite_pronoun(row: Row) -> list[Example]:
    """Converts a row of definite pronoun resolution: `wsc: … *pronoun* …` → the correct candidate.

    Only the first occurrence of the pronoun is marked. If the label is -1, the target is `<unk>`.
    """
    pronoun = re.escape(_text(row, "pronoun"))
    marked = re.sub(rf" ({pronoun})([ .,])", r" *\1*\2", _text(row, "sentence"), count=1)
    return [{"inputs": f"wsc: {marked}", "targets": _label(row["label"], _texts(row, "candidates"))}]


def squad(row: Row) -> list[Example]:
    """Converts a row of SQuAD: `question: … context: …` → the first answer, with spaces around all punctuation.

    If there are no answers, the target is `<unk>`.
    """
    question, context = _spaced(_text(row, "question")), _spaced(_text(row, "context"))
    return [_question(f"question: {question} context: {context}", row)]


def closed_book_squad(row: Row) -> list[Example]:
    """Converts a row of SQuAD without its context: `squad trivia question: …` → the target of `squad`."""
    return [_question(f"squad trivia question: {_spaced(_text(row, 'question'))}", row)]


def _question(inputs: str, row: Row) -> Example:
    answers = [_spaced(answer) for answer in _texts(row["answers"], "text")]
    return {"inputs": _SPACES.sub(" ", inputs), "targets": (answers or [UNKNOWN])[0], "answers": answers}


def _spaced(text: str) -> str:
    """Adds spaces around punctuation and joins runs of white space."""
    return _SPACES.sub(" ", _PUNCTUATION.sub(r" \1 ", text))


def summary(row: Row) -> list[Example]:
    """Converts a row of CNN/DailyMail: `summarize: …` → the highlights."""
    return [{"inputs": f"summarize: {_text(row, 'article')}", "targets": _text(row, "highlights")}]


def translation(source: str, target: str) -> Format:
    """Returns the format `translate English to German: …` → the translation, for two codes in LANGUAGES."""
    prefix = f"translate {LANGUAGES[source]} to {LANGUAGES[target]}: "
    return lambda row: [{"inputs": prefix + _text(row, source), "targets": _text(row, target)}]
