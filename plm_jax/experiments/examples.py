"""What a run read, for people: the rows of a step's batch, and the steps that read a document."""

import dataclasses
import itertools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from plm_jax import config
from plm_jax.common.errors import UserError, nearest
from plm_jax.data import vocabularies
from plm_jax.data.reader import Reader, digest_hex
from plm_jax.data.vocabularies import words
from plm_jax.runs import history

_OF_TOKENS = ("tokens", "decoder_tokens", "targets")


def of_step(workdir: str, step: int, row: int | None = None) -> Iterator[str]:
    """Lines that tell what a step read: of each row, or of one, all that its batch has of it.

    Raises:
      UserError: there is no such run, step or row.
    """
    known = history.read_history(workdir, step)
    reader, texts = Reader(config.reader_config(known.run, known.phases)), _Texts(known.run, workdir)
    numbers = reader.numbers(step - 1)
    if row is not None and not 0 <= row < len(numbers):
        raise UserError(f"step {step} has no row {row}: give --row from 0 to {len(numbers) - 1}")
    yield _about_step(reader, known, step)
    for at, k in enumerate(numbers):
        if row in (None, at):
            yield ""
            yield f"row {at}: example {k} of {_origin(reader, k)}"
            yield from texts.lines(reader.example(k))


def of_document(workdir: str, document: str) -> Iterator[str]:
    """Lines that tell which steps of a run read a training document, named as `SOURCE:NUMBER`.

    Raises:
      UserError: there is no such run or document.
    """
    known = history.read_history(workdir, 1)
    known = history.read_history(workdir, max(1, min(known.last_step, known.run.train.steps)))
    reader = Reader(config.reader_config(known.run, known.phases))
    name, number = _parsed(reader, document)
    steps = known.last_step
    yield f"{_document(reader, name, number)} in the {steps:,} steps of {workdir}:"
    found = 0
    for k in reader.examples_with(name, number, steps):
        step, row = reader.locate(k)
        found += 1
        yield f"  step {step + 1}, row {row} (example {k})"
    yield f"{found:,} rows have text of it"


def _about_step(reader: Reader, known: history.History, step: int) -> str:
    digest = digest_hex(reader.batch(step - 1, range(len(reader.numbers(step - 1))))["digest"].sum(0, np.int64))
    noted = known.rows.get(step, {})
    if step > known.last_step:
        said = "it is not taken yet"
    elif "train/batch_digest" not in noted:
        said = "metrics.jsonl has no row of it to compare with"
    elif digest == noted["train/batch_digest"]:
        said = "as in metrics.jsonl"
    else:
        said = f"and NOT {noted['train/batch_digest']}, as in metrics.jsonl: it read other examples than these"
    incident = f"; incident: {noted['incident']}" if "incident" in noted else ""
    return f"step {step}: batch digest {digest}, {said}{incident}"


def _origin(reader: Reader, k: int) -> str:
    name, documents = reader.origin(k)
    told = ", ".join(_document(reader, name, number) for number in documents)
    return f"{name}; documents {told or 'are not told by its layout'}"


def _document(reader: Reader, name: str, number: int) -> str:
    """A document by its source and number, and by its file where the cache knows that."""
    origin = reader.sources[name].origin("train", number)
    return f"{name}:{number}" + (f" ({origin[0]}, {origin[1]})" if origin else "")


def _parsed(reader: Reader, document: str) -> tuple[str, int]:
    name, _, number = document.rpartition(":")
    name = name or (next(iter(reader.sources)) if len(reader.sources) == 1 else name)
    if name not in reader.sources:
        raise UserError(f"--document={document} is of no source of the run: {nearest(name, reader.sources)}")
    count = reader.sources[name].splits["train"].num_documents
    if not (number.isdecimal() and int(number) < count):
        raise UserError(f"--document={document}: give {name}:NUMBER from {name}:0 to {name}:{count - 1}")
    return name, int(number)


class _Texts:
    """Rows of a run's batches as text."""

    def __init__(self, run: config.Run, workdir: str):
        spec = vocabularies.within(run.vocabulary.spec, os.path.join(workdir, "vocabulary"))
        self._vocabulary = vocabularies.load_plain(dataclasses.replace(run.vocabulary, spec=spec))
        given = {name: getattr(run.vocabulary, name) for name in config.SPECIALS}
        self._special = {i: f"[{name}]" for name, i in reversed(given.items()) if i is not None}

    def lines(self, example: dict[str, np.ndarray]) -> Iterator[str]:
        """All keys of an example, those of tokens as ids and as text."""
        for key in [key for key in _OF_TOKENS if key in example] + sorted(example.keys() - set(_OF_TOKENS)):
            for name, values in _rows(key, example[key]):
                if key == "targets" and "target_positions" in example:
                    yield from self._masked(example)
                elif key == "characters":
                    yield f"  {name} spell: {' '.join(map(_spelt, values))}"
                elif key in _OF_TOKENS:
                    yield f"  {name}: {' '.join(map(str, values.tolist()))}"
                    yield f"  {name} as text: {self._text(values)}"
                else:
                    yield f"  {name}: {_runs(values)}"

    def _masked(self, example: dict[str, np.ndarray]) -> Iterator[str]:
        """Targets at places of their own: of each what is read there and what is to be found."""
        shown = example["tokens"]
        for position, target, weight in zip(
            *(example[key].tolist() for key in ("target_positions", "targets", "target_weights")), strict=True
        ):
            if weight:
                read = shown[position : position + 1]
                yield f"  target at {position}: {self._text(read)!r} → {self._text(np.array([target]))!r} ({target})"

    def _text(self, ids: np.ndarray) -> str:
        """Ids as text, special ones as `[name]`, several of one as `[name ×5]`."""
        found = []
        for special, group in itertools.groupby(ids.tolist(), lambda i: self._special.get(i)):
            run = list(group)
            many = f"{special[:-1]} ×{len(run)}]" if special and len(run) > 1 else special
            found.append(many or self._vocabulary.decode(run))
        return " ".join(found)


def _rows(key: str, values: Any) -> Iterator[tuple[str, np.ndarray]]:
    """An array as rows with names: `targets[0]`, …"""
    values = np.asarray(values)
    if values.ndim <= 1 + (key == "characters"):
        yield key, np.atleast_1d(values)
        return
    for number, part in enumerate(values):
        yield from _rows(f"{key}[{number}]", part) if key != "characters" else [(f"{key}[{number}]", part)]


def _runs(values: np.ndarray) -> str:
    """Values, each that comes several times in a row once: `1 ×120, 0 ×8`."""
    groups = [(value, len(list(group))) for value, group in itertools.groupby(values.tolist())]
    return ", ".join(f"{value:g} ×{count}" if count > 1 else f"{value:g}" for value, count in groups)


def _spelt(characters: np.ndarray) -> str:
    """A word by its characters."""
    marks = {words.BEGIN_SENTENCE: words.BOS, words.END_SENTENCE: words.EOS}
    for mark, word in marks.items():
        if mark in characters:
            return word
    return bytes(characters[characters < 256].astype(np.uint8)).decode("utf-8", "replace")
