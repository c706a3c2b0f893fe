"""Metrics of a model on the labeled examples of a prepared split, and the metrics of the best constant answer."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from plm_jax import config, objectives
from plm_jax.common.errors import UserError, nearest
from plm_jax.data.labeled import metrics
from plm_jax.data.layouts.labeled import LabeledRows
from plm_jax.data.reader import Reader
from plm_jax.evaluation import perplexity
from plm_jax.inference.language_model import LanguageModel
from plm_jax.models import task_heads
from plm_jax.models.heads import TASK
from plm_jax.models.protocol import Module
from plm_jax.training import compiler


def evaluate(lm: LanguageModel, run: config.Run, task: str, show_progress: bool = True) -> dict[str, float]:
    """Returns the metrics of a model on the labeled examples of a task.

    Args:
      task: `SOURCE` (its validation split) or `SOURCE:SPLIT`.

    Returns:
      A dict: `examples`, the number of examples; the metrics of `data.labeled.metrics`; and, with the prefix
      `trivial_`, the same metrics of a constant answer. For classes, choices and tags, the constant answer is the most
      frequent one; only for the F1 of two classes, it is the second class. For labels, it is all labels that more than
      half of the examples have. For scores, it is the mean score. For spans, it is the whole context.

    Raises:
      UserError: the source or split is unknown, the source has no labels, the cache is missing, the vocabulary of the
        cache differs from the model's vocabulary, or the model lacks the head of the task.
    """
    name, split = perplexity.parse_task(run, task)
    head = lm.config.named_heads.get(TASK)
    if head is None or head.kind != _form(run.objective):
        raise UserError(f"the model has no head for {run.objective.kind}: fine-tune it first, with plm_jax finetune")
    length = perplexity.row_lengths(lm, run)[-1]
    reader = Reader(config.reader_config(perplexity.single_source_run(run, lm, name, length)))
    splits = reader.sources[name].splits
    if split not in splits:
        raise perplexity.NothingToPredictError(f"'{name}' has no split '{split}': {nearest(split, splits)}")
    perplexity.check_vocabulary(lm, run, reader.vocabulary["id"], "run prepare --from=CHECKPOINT to make a cache")
    rows, size = reader.rows(split, name, length), run.evaluation.batch_size
    if not isinstance(rows, LabeledRows):
        raise UserError(f"'{name}' has no labels: name a source of labeled examples")
    total = reader.num_batches(split, size, name, length)
    outputs: list[np.ndarray] = []
    with perplexity.progress_bar(task, total, "batch", show_progress) as progress_bar:
        for batch in reader.in_order(split, size, name=name, length=length):
            inputs = {key: value for key, value in batch.items() if key != "digest"}
            outputs += list(np.asarray(_output(lm.model, lm.params, inputs)))
            progress_bar.update()
    labels = getattr(head, "labels", ())
    results = metrics.compute_metrics(rows, outputs, labels)
    constant_metrics = trivial(rows, labels)
    return (
        {"examples": rows.num_documents}
        | results
        | {f"trivial_{key}": value for key, value in constant_metrics.items()}
    )


def _form(objective: objectives.Objective) -> str | None:
    return objective.form if isinstance(objective, objectives.LabeledObjective) else None


def trivial(rows: LabeledRows, labels: Sequence[str] = ()) -> dict[str, float]:
    """Returns the metrics of the constant answer that the docstring of `evaluate` describes.

    Args:
      labels: names of the classes, labels or tags.
    """
    form, documents = rows.objective.form, range(rows.num_documents)
    if form == "span":
        pairs = [(metrics.right_answers(rows, document), rows.context(document)) for document in documents]
        return {
            "exact_match": float(np.mean([metrics.exact_match(*pair) for pair in pairs])),
            "f1": float(np.mean([metrics.answer_f1(*pair) for pair in pairs])),
        }
    if form == "labels":
        counts = np.bincount(np.concatenate([rows.values("labels", document) for document in documents]).astype(int))
        share = np.pad(counts, (0, len(labels) - len(counts))) / rows.num_documents
        return metrics.compute_metrics(rows, [share - 0.5] * rows.num_rows, labels)
    column = {"score": "score", "tags": "tags"}.get(form or "", "label")
    values = np.concatenate([np.atleast_1d(rows.values(column, document)) for document in documents])
    output = np.array([values.mean()]) if form == "score" else 1.0 * np.bincount(values.astype(np.int64))
    if form == "tags":
        output = np.broadcast_to(output, (rows.length, len(output)))
    figures = metrics.compute_metrics(rows, [output] * rows.num_rows, labels)
    if form == "classes" and "f1" in figures:  # It is the F1 of the second class, so that is the best constant answer.
        figures["f1"] = metrics.compute_metrics(rows, [np.array([0.0, 1.0])] * rows.num_rows, labels)["f1"]
    return figures


@functools.partial(compiler.jit_inference, static_argnames="module")
def _output(module: Module, params: Any, batch: dict[str, Any]) -> jax.Array:
    return task_heads.output(module, params, batch)[0]
