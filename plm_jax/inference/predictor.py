"""Predictions with a fine-tuned model's task head.

Examples are tokenized as in a prepared source. The objective and the layout of `evaluate` turn the examples into rows.
A model therefore has the same outputs here and in `evaluate`.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax import config, objectives
from plm_jax.common.errors import ExampleError
from plm_jax.data import cache
from plm_jax.data.cache.columns import OFFSETS, SENTENCE_STARTS, gather
from plm_jax.data.labeled import metrics, spans
from plm_jax.data.layouts.labeled import LabeledRows
from plm_jax.data.prepare import tokenizing
from plm_jax.data.sources import labeled as forms
from plm_jax.data.vocabularies import Vocabulary, words
from plm_jax.generation.scoring import ignore_progress
from plm_jax.generation.strategies.strategy import task_output
from plm_jax.hub.pretrained import Pretrained
from plm_jax.inference import batches, tagging
from plm_jax.inference.predictions import (
    AnswerPrediction,
    ChoicePrediction,
    ClassPrediction,
    LabelsPrediction,
    Prediction,
    ScorePrediction,
)
from plm_jax.models.protocol import Module
from plm_jax.models.task_heads import TaskHead
from plm_jax.runs import model_text

logger = logging.getLogger(__name__)
# Length of rows of a question and a context in the question-answering pipeline of transformers.
_SPAN_LENGTH = 384
# More special tokens than any row has.
_MOST_SPECIAL = 16


class Predictor:
    """A predictor that runs one task head on batches of examples of similar length.

    Attributes:
      objective: objective that makes the rows.
      length: maximum number of tokens in a row; None: no limit.
    """

    def __init__(
        self, pretrained: Pretrained, head: TaskHead, module: Module, vocabulary: Vocabulary, batch_size: int = 32
    ):
        """Initializes a predictor.

        Args:
          pretrained: the model, with its parameters in memory.
          head: task head of the model.
          module: Linen module of the model.
          vocabulary: vocabulary of the model.
          batch_size: number of rows in a batch.
        """
        self._pretrained, self._head, self._module = pretrained, head, module
        self._vocabulary, self._batch_size = vocabulary, batch_size
        run = pretrained.run
        if run is not None and isinstance(run.objective, objectives.LabeledObjective):
            self.objective = run.objective
            self.length = config.resolve_phases(run)[-1].length
        else:
            self.length = pretrained.max_length
            if head.kind == "span":
                self.length = min(self.length or _SPAN_LENGTH, _SPAN_LENGTH)
            self.objective = _objective(head.kind, pretrained.model.architecture, self.length)
        self._special = _special(pretrained)
        self._spelling = None
        if pretrained.model.max_characters:
            tokens = vocabulary.table["tokens"]
            self._spelling = words.characters(tokens, pretrained.model.max_characters)

    def predict(self, examples: Sequence[Any], advance: Callable[[int], Any] = ignore_progress) -> list[Prediction]:
        """Returns a prediction for each example.

        Args:
          examples: list of examples, in the forms that `LanguageModel.predict` accepts.
          advance: called with the number of rows in each finished batch.

        Raises:
          UserError: an example does not fit the task.
        """
        parsed = [self._parse(number, example) for number, example in enumerate(examples)]
        by_size: dict[int, list[int]] = {}
        for number, texts in enumerate(parsed):
            by_size.setdefault(len(texts), []).append(number)
        predictions: dict[int, Prediction] = {}
        for numbers in by_size.values():
            predicted = self._predict([parsed[number] for number in numbers], advance)
            predictions |= zip(numbers, predicted, strict=True)
        return [predictions[number] for number in range(len(examples))]

    def _parse(self, number: int, example: Any) -> tuple[Any, ...]:
        """Returns the texts of an example; a list of words counts as one text."""
        kind, expected, original = self._head.kind, _EXAMPLES[self._head.kind], example
        if isinstance(example, Mapping) and kind != "tags":
            names = _NAMES.get(kind, ())
            example = tuple(example[name] for name in (names if set(example) == set(names) else example))
        is_sequence = isinstance(example, list | tuple)
        if kind == "tags":
            is_words = is_sequence and all(isinstance(word, str) and word for word in example)
            texts = (example,) if isinstance(example, str) or is_words else ()
        elif isinstance(example, str):
            texts = (example,) if kind in ("classes", "labels", "score") else ()
        elif kind == "choice" and is_sequence and len(example) == 2:
            texts = (example[0], *example[1]) if isinstance(example[1], list | tuple) and len(example[1]) > 1 else ()
        else:
            texts = tuple(example) if is_sequence and len(example) == 2 else ()
        is_text = kind == "tags" or all(isinstance(text, str) for text in texts)
        if not texts or not is_text or (len(texts) > 1 and self.objective.rows == "elmo"):
            problem = f"does not fit the task of the model: expected {expected}"
            raise ExampleError(f"example {number}", original, problem)
        return texts

    def _predict(self, examples: Sequence[tuple[Any, ...]], advance: Callable[[int], Any]) -> list[Prediction]:
        """Returns the predictions for examples with the same number of texts."""
        rows = self._rows(examples)
        outputs = self._outputs(rows, advance)
        return [self._prediction(rows, outputs, number, example) for number, example in enumerate(examples)]

    def _rows(self, examples: Sequence[tuple[Any, ...]]) -> LabeledRows:
        kind = self._head.kind
        texts = [tuple(" ".join(text) if not isinstance(text, str) else text for text in each) for each in examples]
        if kind == "span":
            texts = [(context, question) for question, context in texts]
        keeps_offsets = kind in ("span", "tags")
        values = tokenizing.encode_examples(
            [first for first, *_ in texts], [tuple(rest) for _, *rest in texts], self._vocabulary, keeps_offsets
        )
        columns = [SENTENCE_STARTS, *(OFFSETS if keeps_offsets else ()), *forms.columns(kind)]
        table = cache.MemoryTable(values, columns)
        labels = self._labels([example for (example, *_) in examples], texts, table)
        by_name = {column.name: column for column in forms.columns(kind)}
        values |= {name: gather(by_name[name], column) for name, column in labels.items()}
        length = self.length
        if length is None:
            length = int(np.diff(table.documents).max(initial=0)) + _MOST_SPECIAL
        objective = self.objective
        if isinstance(objective, objectives.MultipleChoice):
            objective = objectives.MultipleChoice(rows=objective.rows, num_choices=len(texts[0]) - 1)
        return LabeledRows(table, length, objective, self._special, self._spelling)

    def _labels(
        self, examples: Sequence[Any], texts: Sequence[tuple[str, ...]], table: cache.MemoryTable
    ) -> dict[str, list[Any]]:
        """Returns the columns that a labeled source has in addition to its texts, with placeholders for the labels."""
        kind, number = self._head.kind, len(texts)
        if kind == "span":
            contexts = [np.frombuffer(context.encode("utf-8"), np.uint8) for context, _ in texts]
            return {"answer_begins": [()] * number, "answer_ends": [()] * number, "context_bytes": contexts}
        if kind == "tags":
            begins = [
                tagging.word_begins(example, self._vocabulary, table, document)
                for document, example in enumerate(examples)
            ]
            return {"tags": [np.zeros(len(each)) for each in begins], "word_begins": begins}
        if kind == "labels":
            return {"labels": [()] * number}
        return {"score" if kind == "score" else "label": [0] * number}

    def _outputs(self, rows: LabeledRows, advance: Callable[[int], Any]) -> list[np.ndarray]:
        """Returns the outputs of the head for each row."""
        model, rng = self._pretrained.model, np.random.default_rng(0)
        examples = [
            model.read(rows.objective.apply(rows.example(item, rng), self._special, rng))
            for item in range(rows.num_rows)
        ]

        def process(batch: list[dict[str, np.ndarray]]) -> np.ndarray:
            length = batches.padded_length(max(map(_size, batch)), rows.length)
            inputs = {name: np.stack([_cut(name, example[name], length) for example in batch]) for name in batch[0]}
            return np.asarray(task_output(self._module, self._pretrained.params, inputs, "task"))

        size = batches.fitting_size(self._batch_size, len(examples))
        return batches.map_by_length(examples, size, process, advance, _size)

    def _prediction(
        self, rows: LabeledRows, outputs: Sequence[np.ndarray], document: int, example: tuple[Any, ...]
    ) -> Prediction:
        kind = self._head.kind
        labels: tuple[str, ...] = getattr(self._head, "labels", ())
        if kind == "span":
            return _answer(rows, outputs, document)
        output = outputs[document]
        if kind == "classes":
            probabilities = _softmax(output).tolist()
            best = int(np.argmax(output))
            by_label = dict(zip(labels, probabilities, strict=True))
            return ClassPrediction(labels[best], probabilities[best], by_label)
        if kind == "labels":
            probabilities = (1 / (1 + np.exp(-output.astype(np.float64)))).tolist()
            chosen = tuple(label for label, value in zip(labels, output, strict=True) if value > 0)
            return LabelsPrediction(chosen, dict(zip(labels, probabilities, strict=True)))
        if kind == "score":
            return ScorePrediction(float(output[0]))
        if kind == "tags":
            return tagging.predict(rows, document, example[0], _softmax(output), labels)
        best = int(np.argmax(output))
        return ChoicePrediction(best, example[1 + best], tuple(_softmax(output).tolist()))


# Names of the texts of an example that is a dict in any order.
_NAMES = {"span": ("question", "context"), "choice": ("question", "choices")}
_EXAMPLES = {
    "classes": "a text or a pair of texts",
    "labels": "a text or a pair of texts",
    "score": "a text or a pair of texts",
    "tags": "a text, or a list of words",
    "span": "a question and a context",
    "choice": "a context and a list of at least two choices",
}


def _objective(kind: str, architecture: str, length: int | None) -> objectives.LabeledObjective:
    """Returns the objective for a model that no run of this package has trained on labeled examples."""
    classes = [
        choice
        for choice in objectives.Objective.choices.values()
        if issubclass(choice, objectives.LabeledObjective) and choice.form == kind
    ]
    fields: dict[str, Any] = {"rows": architecture}
    if kind == "span" and length is not None:
        # For rows of 384 tokens these are the numbers of transformers' pipeline, which compares all spans.
        fields |= {"stride": min(128, length // 3), "question_length": min(64, length // 4), "n_best": length}
    return classes[0](**fields)


def _special(pretrained: Pretrained) -> objectives.Special:
    """Returns the special ids of a model.

    For a decoder, the result also contains the ids around and between texts, unless a run of this package trained the
    decoder on labeled examples.
    """
    section = model_text.section(pretrained)
    special = objectives.Special.of(section, pretrained.model.vocab_size)
    run = pretrained.run
    if pretrained.model.architecture == "encoder" and run is None and "begins_with" in pretrained.special_ids:
        rows = objectives.RowFormat.labeled(special)
        marks = {"begins_with": rows.before, "ends_with": rows.after, "separates_with": rows.between}
        if any(tuple(pretrained.special_ids.get(name, ())) != ids for name, ids in marks.items()):
            logger.warning(
                "the tokenizer of this model puts other special tokens around texts than `predict`: outputs can differ "
                "from those of transformers"
            )
    if pretrained.model.architecture != "decoder" or (
        run is not None and isinstance(run.objective, objectives.LabeledObjective)
    ):
        return special
    before, after = model_text.frame(pretrained.model, pretrained.special_ids, run)
    between = pretrained.special_ids.get("separates_with", ())
    return dataclasses.replace(special, frame=(tuple(before), tuple(between), tuple(after)))


def _size(example: Mapping[str, np.ndarray]) -> int:
    """Returns the number of tokens of the longest row of an example."""
    return int(example["mask"].sum(-1).max())


def _cut(name: str, array: np.ndarray, length: int) -> np.ndarray:
    """Truncates the rows of a model's input to `length` tokens."""
    return array[..., :length, :] if name == "characters" else array[..., :length]


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def _answer(rows: LabeledRows, outputs: Sequence[np.ndarray], document: int) -> AnswerPrediction:
    settings = rows.objective
    assert isinstance(settings, objectives.SpanExtraction)
    windows = metrics.answer_windows(rows, outputs, document)
    rules = settings.n_best, settings.answer_length, settings.unanswerable, settings.null_threshold
    answer = spans.answer(rows.context(document), windows, *rules)
    if not answer.text:
        score = min(float(np.prod([scores[window.null] for scores in _probabilities(window)])) for window in windows)
        return AnswerPrediction("", None, None, score)
    best = answer.spans[0]
    score = max(_span_probability(window, best) for window in windows)
    return AnswerPrediction(answer.text, best.begin, best.stop, score)


def _probabilities(window: spans.AnswerWindow) -> list[np.ndarray]:
    """Returns two arrays: each token's probability of being the start, and of being the end of the answer.

    Only the tokens of the context and the token for "no answer" have probabilities above 0.
    """
    is_candidate = window.begins[: len(window.starts)] >= 0
    is_candidate[window.null] = True
    return [_softmax(np.where(is_candidate, scores, -np.inf)) for scores in (window.starts, window.ends)]


def _span_probability(window: spans.AnswerWindow, span: spans.Span) -> float:
    """Returns the probability of a span in a window, or 0 if the span is not in the window."""
    starts, ends = _probabilities(window)
    size = len(starts)
    is_first, is_last = window.begins[:size] == span.begin, window.stops[:size] == span.stop
    return float(starts[is_first].max(initial=0.0) * ends[is_last].max(initial=0.0))
