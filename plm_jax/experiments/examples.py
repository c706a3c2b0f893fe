"""Readable descriptions of the data of a run: the rows of a step's batch, and the steps that read a document."""

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
from plm_jax.objectives import packing
from plm_jax.runs import history

_OF_TOKENS = ("tokens", "decoder_tokens", "targets")


def of_step(workdir: str, step: int, row: int | None = None) -> Iterator[str]:
    """Yields lines that describe the batch of a step: every array of each row, or of one row.

    Args:
      workdir: run directory.
      row: index of the row; None for all rows.

    Raises:
      UserError: the run, step or row does not exist.
    """
    run_history = history.read_history(workdir, step)
    reader, texts = Reader(config.reader_config(run_history.run, run_history.phases)), _Texts(run_history.run, workdir)
    example_numbers = reader.numbers(step - 1)
    if row is not None and not 0 <= row < len(example_numbers):
        raise UserError(f"step {step} has no row {row}: pass --row from 0 to {len(example_numbers) - 1}")
    yield _describe_step(reader, run_history, step)
    for row_index, k in enumerate(example_numbers):
        if row in (None, row_index):
            yield ""
            yield f"row {row_index}: example {k} of {_origin(reader, k)}"
            yield from texts.described(reader.example(k), isinstance(run_history.run.data.layout, config.Packed))


def of_document(workdir: str, document: str) -> Iterator[str]:
    """Yields lines that list the steps at which a run has read a training document.

    Args:
      workdir: run directory.
      document: `SOURCE:NUMBER`, or `NUMBER` if the run has a single source.

    Raises:
      UserError: the run or document does not exist.
    """
    run_history = history.read_history(workdir, 1)
    run_history = history.read_history(workdir, max(1, min(run_history.last_step, run_history.run.train.steps)))
    reader = Reader(config.reader_config(run_history.run, run_history.phases))
    name, number = _parse_document(reader, document)
    steps = run_history.last_step
    yield f"{_document(reader, name, number)} in the {steps:,} steps of {workdir}:"
    num_rows = 0
    for k in reader.examples_with(name, number, steps):
        step, row = reader.locate(k)
        num_rows += 1
        yield f"  step {step + 1}, row {row} (example {k})"
    yield f"{num_rows:,} rows contain text of this document"


def _describe_step(reader: Reader, run_history: history.History, step: int) -> str:
    digest = digest_hex(reader.batch(step - 1, range(len(reader.numbers(step - 1))))["digest"].sum(0, np.int64))
    logged = run_history.rows.get(step, {})
    if step > run_history.last_step:
        verdict = "the run has not reached this step yet"
    elif "train/batch_digest" not in logged:
        verdict = "metrics.jsonl has no row of this step to compare with"
    elif digest == logged["train/batch_digest"]:
        verdict = "equal to metrics.jsonl"
    else:
        verdict = f"NOT equal to {logged['train/batch_digest']} in metrics.jsonl: the step read other examples"
    incident = f"; incident: {logged['incident']}" if "incident" in logged else ""
    return f"step {step}: batch digest {digest}, {verdict}{incident}"


def _origin(reader: Reader, k: int) -> str:
    name, documents = reader.origin(k)
    described = ", ".join(_document(reader, name, number) for number in documents)
    return f"{name}; documents {described or 'unknown for this layout'}"


def _document(reader: Reader, name: str, number: int) -> str:
    """Returns the source and number of a document, and its file and position if the cache stores them."""
    origin = reader.sources[name].origin("train", number)
    return f"{name}:{number}" + (f" ({origin[0]}, {origin[1]})" if origin else "")


def _parse_document(reader: Reader, document: str) -> tuple[str, int]:
    name, _, number = document.rpartition(":")
    name = name or (next(iter(reader.sources)) if len(reader.sources) == 1 else name)
    if name not in reader.sources:
        raise UserError(f"--document={document}: the run has no such source: {nearest(name, reader.sources)}")
    count = reader.sources[name].splits["train"].num_documents
    if not (number.isdecimal() and int(number) < count):
        raise UserError(f"--document={document}: pass {name}:NUMBER from {name}:0 to {name}:{count - 1}")
    return name, int(number)


class _Texts:
    """Converter of rows of a run's batches to text."""

    def __init__(self, run: config.Run, workdir: str):
        spec = vocabularies.within(run.vocabulary.spec, os.path.join(workdir, "vocabulary"))
        self._vocabulary = vocabularies.load_plain(dataclasses.replace(run.vocabulary, spec=spec))
        special_ids = {name: getattr(run.vocabulary, name) for name in config.SPECIALS}
        self._special = {i: f"[{name}]" for name, i in reversed(special_ids.items()) if i is not None}

    def described(self, example: dict[str, np.ndarray], is_packed: bool) -> Iterator[str]:
        """Yields the lines that describe an example. For a packed row, describes each inner row."""
        inner_rows = packing.split(example) if is_packed else [example]
        for number, row in enumerate(inner_rows, start=1):
            if is_packed:
                yield f"  inner row {number} of {len(inner_rows)}"
            yield from self.lines(row)

    def lines(self, example: dict[str, np.ndarray]) -> Iterator[str]:
        """Yields lines for every array of an example.

        Token arrays are shown both as ids and as text. Targets at positions are listed one by one.
        """
        for key in [key for key in _OF_TOKENS if key in example] + sorted(example.keys() - set(_OF_TOKENS)):
            for name, values in _rows(key, example[key]):
                if key == "targets" and "target_positions" in example:
                    yield from self._masked(example)
                elif key == "characters":
                    yield f"  {name} spelled: {' '.join(map(_spelling, values))}"
                elif key in _OF_TOKENS:
                    yield f"  {name}: {' '.join(map(str, values.tolist()))}"
                    yield f"  {name} as text: {self._text(values)}"
                else:
                    yield f"  {name}: {_run_lengths(values)}"

    def _masked(self, example: dict[str, np.ndarray]) -> Iterator[str]:
        """Yields a line with the input and the target, for each target position whose weight is not 0."""
        tokens = example["tokens"]
        for position, target, weight in zip(
            *(example[key].tolist() for key in ("target_positions", "targets", "target_weights")), strict=True
        ):
            if weight:
                read = tokens[position : position + 1]
                yield f"  target at {position}: {self._text(read)!r} → {self._text(np.array([target]))!r} ({target})"

    def _text(self, ids: np.ndarray) -> str:
        """Decodes ids; special tokens are written as `[name]`, and repeated special tokens as `[name ×5]`."""
        pieces = []
        for special, group in itertools.groupby(ids.tolist(), lambda i: self._special.get(i)):
            span = list(group)
            marker = f"{special[:-1]} ×{len(span)}]" if special and len(span) > 1 else special
            pieces.append(marker or self._vocabulary.decode(span))
        return " ".join(pieces)


def _rows(key: str, values: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the rows of an array with their names, such as `targets[0]`."""
    values = np.asarray(values)
    if values.ndim <= 1 + (key == "characters"):
        yield key, np.atleast_1d(values)
        return
    for number, row in enumerate(values):
        yield from _rows(f"{key}[{number}]", row) if key != "characters" else [(f"{key}[{number}]", row)]


def _run_lengths(values: np.ndarray) -> str:
    """Formats values in run-length encoding, such as `1 ×120, 0 ×8`."""
    groups = [(value, len(list(group))) for value, group in itertools.groupby(values.tolist())]
    return ", ".join(f"{value:g} ×{count}" if count > 1 else f"{value:g}" for value, count in groups)


def _spelling(characters: np.ndarray) -> str:
    """Decodes the characters of a word."""
    markers = {words.BEGIN_SENTENCE: words.BOS, words.END_SENTENCE: words.EOS}
    for marker, word in markers.items():
        if marker in characters:
            return word
    return bytes(characters[characters < 256].astype(np.uint8)).decode("utf-8", "replace")
