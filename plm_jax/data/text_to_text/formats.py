"""Rows of data sets as text-to-text examples.

A format is a function from a row, a mapping with the fields that TFDS gives the data set, to a list of examples with
texts `inputs` and `targets` and what the task's postprocessor needs besides. Most rows make one example; ReCoRD's make
one an answer, and WSC's false ones none where it trains. Plain Python.
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

# The target of a row without a label, as test sets are.
UNKNOWN = "<unk>"
BOOLEAN = ("False", "True")
LANGUAGES = {"de": "German", "en": "English", "fr": "French", "ro": "Romanian"}
# ASCII only, as RE2's [[:punct:]] and \s are, with which T5 was made.
_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
_SPACES = re.compile(r"[\t\n\f\r ]+")
# Two rows of WSC have the pronoun elsewhere than they say. How T5 reads them, `X` for the pronoun.
_WSC_MENDED = {
    "The boy continued to whip the pony , and eventually the pony threw him over. John laughed out quite loud. "
    '"Good for him," he said. ': "The boy continued to whip the pony , and eventually the pony threw him over. "
    'John laughed out quite loud. "Good for X ," he said.',
    "When they had eventually calmed down a bit , and had gotten home, Mr. Farley put the magic pebble in an iron "
    "safe . Some day they might want to use it , but really for now, what more could they wish for?": "When they had "
    "eventually calmed down a bit , and had gotten home, Mr. Farley put the magic pebble in an iron safe . Some day "
    "they might want to use X , but really for now, what more could they wish for?",
}


def labelled(task: str, fields: Sequence[str], labels: Sequence[str], columns: Sequence[str] = ()) -> Format:
    """`TASK FIELD: text FIELD: text …` → the name of the label.

    Args:
      fields: in their order, which for T5 is that of the alphabet but for MultiRC and WiC.
      labels: the name of each value of the row's `label`.
      columns: the row's names of the fields, where they are others.
    """

    def examples(row: Row) -> list[Example]:
        texts = [f"{field}: {_text(row, column)}" for field, column in zip(fields, columns or fields, strict=True)]
        return [{"inputs": " ".join([task, *texts]), "targets": _label(row["label"], labels)}]

    return examples


def _label(label: Any, labels: Sequence[str]) -> str:
    return UNKNOWN if _checked(label, len(labels)) == -1 else labels[int(label)]


def _checked(label: Any, count: int) -> int:
    """A label that must be one of so many, or -1 for none."""
    if label not in range(-1, count):
        raise UserError(f"label {label!r}: give 0 to {count - 1}, or -1 for none")
    return int(label)


def _text(row: Row, name: str) -> str:
    """A field that must be text: of null Python would make `None`."""
    if not isinstance(value := row[name], str):
        raise UserError(f"'{name}' is {repr(value)[:40]}: give text")
    return value


def _texts(row: Row, name: str) -> list[str]:
    """A field that must be a list of texts."""
    if not (isinstance(values := row[name], list) and all(isinstance(value, str) for value in values)):
        raise UserError(f"'{name}' is {repr(values)[:40]}: give a list of texts")
    return values


def stsb(row: Row) -> list[Example]:
    """Similarity rounded to the nearest fifth, with one decimal: 26 labels and, without one, -1.0."""
    label = row["label"]
    if not (isinstance(label, numbers.Real) and math.isfinite(label)):
        raise UserError(f"label {label!r}: give a number, -1 for none")
    fifths = np.round(np.float32(label) * np.float32(5))  # In float32, halves to even, as TensorFlow does.
    inputs = f"stsb sentence1: {_text(row, 'sentence1')} sentence2: {_text(row, 'sentence2')}"
    return [{"inputs": inputs, "targets": f"{fifths / np.float32(5):.1f}"}]


_multirc = labelled("multirc", ("question", "answer", "paragraph"), BOOLEAN)


def multirc(row: Row) -> list[Example]:
    """As `labelled`, without HTML; `idx/…` tell which answers belong to one question."""
    [example] = _multirc(row)
    example["inputs"] = re.sub("</?b>", "", example["inputs"].replace("<br>", " "))
    return [example | _group(row, "paragraph", "question", "answer")]


def record(row: Row) -> list[Example]:
    """One example an answer, each with all answers; highlights become sentences of the passage."""
    passage = re.sub(r"([.?!\"'])\n@highlight\n", r"\1 ", _text(row, "passage")).replace("\n@highlight\n", ". ")
    entities, answers = ", ".join(_texts(row, "entities")), _texts(row, "answers")
    inputs = f"record query: {_text(row, 'query')} entities: {entities} passage: {passage}"
    rest = {"answers": answers, **_group(row, "passage", "query")}
    return [{"inputs": inputs, "targets": answer, **rest} for answer in answers or [UNKNOWN]]


def _group(row: Row, *parts: str) -> dict[str, np.int64]:
    """The parts of the row's `idx`, of 64 bits as in TFDS, which tell the examples that belong together."""
    return {f"idx/{part}": np.int64(int(row["idx"][part])) for part in parts}


def wsc(row: Row) -> list[Example]:
    """`wsc: … *pronoun* …` → the noun in question, right or wrong as `label` says.

    Raises:
      UserError: the word at `span2_index` is not `span2_text`, or is the first.
    """
    text, place, pronoun = _text(row, "text"), row["span2_index"], _text(row, "span2_text")
    words, blanked = text.split(" "), _WSC_MENDED.get(text)
    if blanked is None:
        if not 0 < place < len(words) or words[place] != pronoun:
            raise UserError(f"word {place} of '{text[:60]}' is not '{pronoun}': mend the row's span2_index")
        blanked = " ".join([*words[:place], "X", " ".join(words[place + 1 :])])
    return [_resolution(blanked.replace(" X ", f" *{pronoun}* "), _text(row, "span1_text"), row["label"])]


def true_wsc(row: Row) -> list[Example]:
    """As `wsc`, of rows with the right noun only: what T5 trains on."""
    return wsc(row) if _checked(row["label"], 2) == 1 else []


def wnli_as_wsc(row: Row) -> list[Example]:
    """The premise with its pronoun marked → the noun that the hypothesis has instead."""
    marked, noun = wnli.resolve(_text(row, "sentence1"), _text(row, "sentence2"))
    return [_resolution(marked, noun, row["label"])]


def _resolution(text: str, noun: str, label: Any) -> Example:
    return {"inputs": f"wsc: {text}", "targets": noun, "referent": noun, "label": _checked(label, 2)}


def definite_pronoun(row: Row) -> list[Example]:
    """`wsc: … *pronoun* …`, the first where it comes twice → the right candidate."""
    pronoun = re.escape(_text(row, "pronoun"))
    marked = re.sub(rf" ({pronoun})([ .,])", r" *\1*\2", _text(row, "sentence"), count=1)
    return [{"inputs": f"wsc: {marked}", "targets": _label(row["label"], _texts(row, "candidates"))}]


def squad(row: Row) -> list[Example]:
    """`question: … context: …` → the first answer; spaces around all punctuation."""
    question, context = _spaced(_text(row, "question")), _spaced(_text(row, "context"))
    return [_question(f"question: {question} context: {context}", row)]


def closed_book_squad(row: Row) -> list[Example]:
    """`squad trivia question: …` → the first answer, to be known without the context."""
    return [_question(f"squad trivia question: {_spaced(_text(row, 'question'))}", row)]


def _question(inputs: str, row: Row) -> Example:
    answers = [_spaced(answer) for answer in _texts(row["answers"], "text")]
    return {"inputs": _SPACES.sub(" ", inputs), "targets": (answers or [UNKNOWN])[0], "answers": answers}


def _spaced(text: str) -> str:
    """A space on both sides of each punctuation mark, no two together."""
    return _SPACES.sub(" ", _PUNCTUATION.sub(r" \1 ", text))


def summary(row: Row) -> list[Example]:
    """`summarize: …` → the highlights."""
    return [{"inputs": f"summarize: {_text(row, 'article')}", "targets": _text(row, "highlights")}]


def translation(source: str, target: str) -> Format:
    """`translate English to German: …` → the text in the target language; languages by their codes."""
    prefix = f"translate {LANGUAGES[source]} to {LANGUAGES[target]}: "
    return lambda row: [{"inputs": prefix + _text(row, source), "targets": _text(row, target)}]
