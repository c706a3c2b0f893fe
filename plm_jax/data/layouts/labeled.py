"""Rows of labeled examples: one row per example, or several windows for a long context.

In the cache of a labeled source, a document is an example, and its sentences are its texts (`sources.labeled`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from plm_jax import objectives
from plm_jax.common.errors import UserError
from plm_jax.common.special_ids import SpecialIds
from plm_jax.data import cache
from plm_jax.data.layouts import index
from plm_jax.data.layouts.layout import Form, Layout, RowRequest, check_length, check_special_ids
from plm_jax.data.layouts.rows import Rows

# Number of text tokens of the shortest row.
_LEAST_TOKENS = 2


@dataclass(frozen=True)
class LabeledLayout(Layout):
    """Labeled examples: texts and a label, from which objectives such as `classification` make rows."""

    kind: ClassVar[str] = "labeled"
    plural: ClassVar[str] = "labeled examples"

    @override
    def form(self, objective: objectives.Objective) -> Form:
        return "labeled"

    @override
    def reads_characters(self, objective: objectives.Objective) -> bool:
        return isinstance(objective, objectives.LabeledObjective) and objective.rows == "elmo"

    @property
    @override
    def is_full(self) -> bool:
        return False

    @override
    def check(
        self, objective: objectives.Objective, special: SpecialIds, length: int, sources: Mapping[str, Any]
    ) -> None:
        super().check(objective, special, length, sources)
        objective = _labeled(objective)
        forms = {name: _form(name, source, objective) for name, source in sources.items()}
        num_texts = next(iter(forms.values())).num_texts
        for form in forms.values():
            _check_form(objective, form.num_texts, len(form.labels))
        for name in objective.special_tokens(num_texts):
            if getattr(special, name) is None:
                raise UserError(
                    f"for {objective.kind}, rows of a decoder begin with bos, have sep between texts and end with cls: "
                    f"set config.vocabulary.{name}; config.vocabulary.added adds new ids"
                )
        if objective.rows != "decoder":
            check_special_ids(special, 1, self.plural)
        _check_room(objective, objectives.Special.of(special), num_texts, length)
        _check_same_labels({name: form.labels for name, form in forms.items()})

    @override
    def blank(self, length: int, objective: objectives.BoundObjective, num_characters: int = 0) -> dict[str, Any]:
        settings = _labeled(objective.settings)
        spelling = np.broadcast_to(np.zeros(num_characters, np.uint16), (objective.special.vocab_size, num_characters))
        texts = [np.zeros(0, np.int32)] * settings.min_texts
        return {"texts": texts, "length": length, "spelling": spelling} | settings.placeholder_label()

    @override
    def open(self, request: RowRequest) -> "LabeledRows":
        assert isinstance(request.split, cache.Split)
        objective = _labeled(request.objective.settings)
        return LabeledRows(request.split, request.length, objective, request.objective.special, request.characters)


def _labeled(objective: objectives.Objective) -> objectives.LabeledObjective:
    """Returns the objective; raises `UserError` if it does not read labeled examples."""
    if not isinstance(objective, objectives.LabeledObjective):
        raise UserError(
            f"objective '{objective.kind}' does not read labeled examples: choose another config.data.layout or "
            "objective"
        )
    return objective


def _form(name: str, source: Any, objective: objectives.LabeledObjective) -> Any:
    """Returns the setting `form` of a source; raises `UserError` if it has none or the objective reads another kind."""
    form = getattr(source, "form", None)
    if form is None or form.kind != objective.form:
        actual = "is not a labeled source" if form is None else f"has form.kind {form.kind}"
        raise UserError(
            f"source '{name}' {actual}, but objective '{objective.kind}' reads form.kind {objective.form}: use a "
            "labeled source with that form.kind, or another objective"
        )
    return form


def _check_form(objective: objectives.LabeledObjective, num_texts: int, num_labels: int) -> None:
    """Rejects a source whose number of texts or labels does not fit the objective."""
    if isinstance(objective, objectives.MultipleChoice) and num_texts != 1 + objective.num_choices:
        raise UserError(
            f"config.objective.num_choices is {objective.num_choices}, but the source has form.number "
            f"{num_texts - 1}: make them equal"
        )
    if isinstance(objective, objectives.MultiLabelClassification) and num_labels != objective.num_labels:
        raise UserError(
            f"config.objective.num_labels is {objective.num_labels}, but the source has {num_labels} form.labels: make "
            "them equal"
        )
    class_weights = getattr(objective, "class_weights", ())
    if class_weights and num_labels != len(class_weights):
        raise UserError(
            f"config.objective.class_weights has {len(class_weights)} weights, but the source has {num_labels} "
            "form.labels: set one weight for each label"
        )
    if num_texts < objective.min_texts:
        raise UserError("config.objective.both_orders is for pairs of texts: set form.pair of the source")
    if objective.rows == "elmo" and num_texts > 1:
        raise UserError("ELMo reads one text per row: remove form.pair of the source")


def _check_room(
    objective: objectives.LabeledObjective, special: objectives.Special, num_texts: int, length: int
) -> None:
    """Rejects rows that are too short for their special tokens and some text, or for several windows of a context."""
    num_texts = min(num_texts, 2)
    num_special = length - objective.row_format(special).room(length, num_texts)
    check_length(length, num_special + _LEAST_TOKENS, f"rows of {num_texts} texts with {num_special} special tokens")
    if isinstance(objective, objectives.SpanExtraction):
        least = num_special + objective.question_length + objective.stride + 1
        if length < least:
            raise UserError(
                f"config.data.length is {length}, too short for windows to advance: set at least {least}, or "
                "lower config.objective.stride or config.objective.question_length"
            )


def _check_same_labels(labels: Mapping[str, Sequence[str]]) -> None:
    """Rejects sources whose labels differ."""
    (first, expected), *rest = labels.items()
    for name, actual in rest:
        if actual != expected:
            raise UserError(f"sources '{first}' and '{name}' have different form.labels: make them equal")


class LabeledRows(Rows):
    """Rows of labeled examples; there is a single pass over the split.

    A row is an example or, with `span_extraction`, a window of the context of an example.

    Attributes:
      objective: objective that makes the rows.
      length: length of a row in tokens.
      sizes: number of tokens of each text [examples, texts]. Texts are in the order in which the objective reads them.
    """

    def __init__(
        self,
        split: cache.Split | cache.MemoryTable,
        length: int,
        objective: objectives.LabeledObjective,
        special: objectives.Special,
        characters: np.ndarray | None = None,
    ):
        self._split, self.length, self._characters = split, length, characters
        self.objective, self._special = objective, special
        documents, starts = np.asarray(split.documents), np.asarray(split.sentences)
        num_texts = len(starts) // split.num_documents
        if num_texts * split.num_documents != len(starts):
            raise UserError("the examples of a cache differ in their number of texts: prepare it again")
        sizes = np.diff(np.append(starts, split.num_tokens)).reshape(split.num_documents, num_texts)
        # The cache has a context before its question, since the first text decides whether an example is held out.
        self._order = [1, 0] if self._has_windows else list(range(num_texts))
        self.sizes = sizes[:, self._order]
        counts = objective.num_windows(self.sizes, length, special)
        self._first = np.append(0, np.cumsum(counts))
        self.num_rows, self.pass_tokens = int(self._first[-1]), split.num_tokens
        self.examples_per_row = split.num_documents / self.num_rows
        self._begins = np.repeat(documents[:-1], counts)

    @property
    def _has_windows(self) -> bool:
        return isinstance(self.objective, objectives.SpanExtraction)

    @property
    def num_documents(self) -> int:
        """Number of examples."""
        return self._split.num_documents

    @override
    def windows(self, window_tokens: int) -> list[np.ndarray]:
        return [self._begins.searchsorted(index.window_edges(self.pass_tokens, window_tokens))]

    def document(self, item: int) -> int:
        """Returns the index of the example that a row belongs to."""
        return int(self._first.searchsorted(item, side="right")) - 1

    def rows_of(self, document: int) -> range:
        """Returns the rows of an example."""
        return range(int(self._first[document]), int(self._first[document + 1]))

    def window(self, item: int) -> objectives.ContextWindow:
        """Returns the part of the context that a row contains; for `span_extraction` only."""
        assert isinstance(self.objective, objectives.SpanExtraction)
        document = self.document(item)
        number = item - int(self._first[document])
        question, context = self.sizes[document].tolist()
        return self.objective.window(question, context, self.length, self._special, number)

    def values(self, name: str, document: int) -> np.ndarray:
        """Returns the values of a column for an example."""
        return self._split.of_document(name, document)

    def context(self, document: int) -> str:
        """Returns the text of an example's context."""
        return bytes(self.values("context_bytes", document)).decode("utf-8")

    def context_offsets(self, document: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns two arrays [tokens]: the first character and the end (exclusive) of each token of the context."""
        size = int(self.sizes[document, 1])
        return self.values("char_starts", document)[:size], self.values("char_ends", document)[:size]

    def word_tokens(self, document: int) -> np.ndarray:
        """Returns, for each word of an example, the index of the first token that starts in the word [words].

        The index is -1 for a word in which no token starts.
        """
        begins, starts = self.values("word_begins", document), self.values("char_starts", document)
        edges = starts.searchsorted(np.append(begins, np.iinfo(np.int64).max))
        return np.where(edges[:-1] < edges[1:], edges[:-1], -1)

    def word_positions(self, document: int) -> np.ndarray:
        """Returns the position of the first token of each word in the example's row [words].

        The position is -1 for a word in which no token starts, or if the row is too short for the token.
        """
        tokens, row_format = self.word_tokens(document), self.objective.row_format(self._special)
        is_in_row = (tokens >= 0) & (tokens < row_format.room(self.length))
        return np.where(is_in_row, row_format.text_starts([0])[0] + tokens, -1)

    def answer(self, document: int) -> tuple[int, int] | None:
        """Returns the first and the last token of an example's first answer, as indices in the context.

        Returns None if the example has no answer, or if no token overlaps the answer.
        """
        begins, ends = self.values("answer_begins", document), self.values("answer_ends", document)
        if not len(begins):
            return None
        starts, stops = self.context_offsets(document)
        (inside,) = ((stops > begins[0]) & (starts < ends[0])).nonzero()
        return (int(inside[0]), int(inside[-1])) if len(inside) else None

    @override
    def example(self, item: int, rng: np.random.Generator) -> dict[str, Any]:
        document = self.document(item)
        tokens = self._split.tokens(*self._split.span(document))
        sizes = np.empty(len(self._order), np.int64)
        sizes[self._order] = self.sizes[document]
        texts = np.split(tokens, np.cumsum(sizes)[:-1])
        example: dict[str, Any] = {"texts": [texts[i] for i in self._order], "length": self.length}
        if self._characters is not None:
            example["spelling"] = self._characters
        form = self.objective.form
        if form == "span":
            return example | {"answer": self.answer(document), "window": item - int(self._first[document])}
        if form == "tags":
            return example | {"tags": self.values("tags", document), "word_tokens": self.word_tokens(document)}
        name = {"score": "score", "labels": "labels"}.get(form or "", "label")
        return example | {name: self.values(name, document)}

    @override
    def documents(self, item: int, rng: np.random.Generator) -> list[int]:
        return [self.document(item)]

    @override
    def rows_with(self, document: int) -> list[range]:
        return [self.rows_of(document)]

    @override
    def notes(self, name: str) -> list[str]:
        notes, num_cut = [], int(self.objective.are_truncated(self.sizes, self.length, self._special).sum())
        if num_cut:
            reason = "have a question that is too long" if self._has_windows else "are longer than a row"
            notes.append(f"{num_cut:,} of the {self.num_documents:,} examples of '{name}' {reason} and are truncated")
        if self._has_windows and (missing := self._num_missing_answers()):
            notes.append(f"{missing:,} answers of '{name}' fit into no window: their rows count as unanswerable")
        return notes

    def _num_missing_answers(self) -> int:
        """Counts the examples whose first answer is not completely in any window."""
        missing = 0
        for document in range(self.num_documents):
            if not len(self.values("answer_begins", document)):
                continue
            if (answer := self.answer(document)) is None:
                missing += 1
            elif len(rows := self.rows_of(document)) > 1:  # A single window has the whole context.
                windows = map(self.window, rows)
                missing += not any(
                    window.first <= answer[0] and answer[1] < window.first + window.size for window in windows
                )
        return missing
