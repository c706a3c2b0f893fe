"""Metrics of a model on a task, including tasks of inputs and targets that define their own metric functions.

Answers are decoded with the settings in `evaluation.decoding`. The `postprocess_fn` and `metric_fns` of a task have the
same meaning as in seqio. Metric functions with the arguments (targets, scores) receive the log-likelihood of each
example's targets as its score.
"""

import collections
import itertools
import math
import numbers
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from plm_jax import config, objectives
from plm_jax.common import metrics as declarations
from plm_jax.common.errors import UserError, nearest
from plm_jax.data import cache, vocabularies
from plm_jax.data.prepare import reading
from plm_jax.data.sources.tensorflow_sources import import_tasks
from plm_jax.data.text_to_text import formats
from plm_jax.evaluation import labeled, perplexity, scoring
from plm_jax.generation import constraints
from plm_jax.inference import batches
from plm_jax.inference.language_model import LanguageModel
from plm_jax.models.protocol import Module


def evaluate(
    lm: LanguageModel,
    run: config.Run,
    task: str,
    show_progress: bool = True,
    text_scoring: scoring.TextScoring | None = None,
) -> dict[str, float]:
    """Returns the metrics of a model on a task.

    Args:
      run: run in whose data the task is.
      task: `SOURCE` (its validation split) or `SOURCE:SPLIT`.
      text_scoring: settings for scoring the documents of a source as whole texts; None if they are not scored as whole
        texts.

    Returns:
      A dict of metrics.

      - Whole texts: the metrics of `scoring.evaluate`.
      - Labeled examples: the metrics of `labeled.evaluate`.
      - Examples with inputs and targets: `examples`, the number of examples; and the metrics of the task's metric
        functions, in the units of `common.metrics`. Metrics of predictions are repeated with the prefix
        `most_frequent_`, for a predictor that always answers with the most frequent target. Metrics that are not finite
        are left out.
      - Rows of documents: the metrics of `perplexity.evaluate`.

    Raises:
      UserError: an error of the functions above; the task has no metric functions; a metric function needs arguments
        other than targets and predictions or scores; a metric is outside of its declared range; the split has no
        examples or no labels; or the model does not fit the run.
    """
    if text_scoring is not None:
        return scoring.evaluate(lm, run, task, text_scoring, show_progress)
    source = run.data.sources.get(task.partition(":")[0])
    if isinstance(source, config.LabeledSource):
        return labeled.evaluate(lm, run, task, show_progress)
    if not isinstance(source, config.InputsTargetsSource):
        return perplexity.evaluate(lm, run, task, show_progress)
    return _evaluate_examples(lm, run, task, show_progress)


def _evaluate_examples(lm: LanguageModel, run: config.Run, task: str, show_progress: bool) -> dict[str, float]:
    registered, split = _registered_task(run, task)
    _check_metric_functions(registered)
    _check_model(lm, run)
    examples = list(_examples(registered, run, split))
    if not examples:
        remedy = "name another split, or raise config.data.validation_fraction"
        raise perplexity.NothingToPredictError(f"'{task}' has no examples: {remedy}")
    targets = [_processed(registered, example, example.targets, is_target=True) for example in examples]
    if any(example.targets == formats.UNKNOWN for example in examples) or all(map(_is_unknown, targets)):
        raise perplexity.NothingToPredictError(f"'{task}' has no labels: name another split")
    answerer = _Answerer(lm, run, examples, task, show_progress)
    # A function that returns percent returns 100 for perfect answers, so it is rejected before any answer is decoded.
    perfect = [_processed(registered, example, example.targets, is_target=False) for example in examples]
    for metric_fn in registered.predict_metric_fns:
        _values(metric_fn, targets, perfect)
    metrics: dict[str, float] = {"examples": len(examples)}
    if registered.predict_metric_fns:
        ((most_frequent, _),) = collections.Counter(example.targets for example in examples).most_common(1)
        for prefix, answers in (("", answerer.answers()), ("most_frequent_", [most_frequent] * len(examples))):
            pairs = zip(examples, answers, strict=True)
            predictions = [_processed(registered, example, answer, is_target=False) for example, answer in pairs]
            for metric_fn in registered.predict_metric_fns:
                metrics |= _values(metric_fn, targets, predictions, prefix)
    if registered.score_metric_fns:
        scores = answerer.log_likelihoods()
        for metric_fn in registered.score_metric_fns:
            metrics |= _values(metric_fn, targets, scores)
    return metrics


def answer_examples(lm: LanguageModel, run: config.Run, task: str, number: int) -> list[dict[str, str]]:
    """Answers the first `number` examples of a task of inputs and targets, or all examples if there are fewer.

    Returns:
      A dict with `prompt`, `answer` and `target` for each example.

    Raises:
      UserError: the split does not exist, or the model has no vocabulary.
    """
    registered, split = _registered_task(run, task)
    examples = list(itertools.islice(_examples(registered, run, split), number))
    answers = _Answerer(lm, run, examples, task, show_progress=False).answers()
    pairs = zip(examples, answers, strict=True)
    return [{"prompt": example.inputs, "answer": answer, "target": example.targets} for example, answer in pairs]


def _registered_task(run: config.Run, task: str) -> tuple[Any, str]:
    """Returns a pair: the seqio task of `SOURCE` or `SOURCE:SPLIT`, and the name of the split."""
    name, _, split = task.partition(":")
    registered = import_tasks().registered(name, run.data.sources[name], run.data.bad_rows)
    return registered, split or "validation"


def _check_metric_functions(task: Any) -> None:
    if metric_objs := task.metric_objs[: len(task.metric_objs) - len(task.metric_fns)]:
        names = ", ".join(getattr(metric, "__name__", type(metric).__name__) for metric in metric_objs)
        raise UserError(f"task '{task.name}' has metric_objs ({names}): replace them by metric_fns")
    if not task.metric_fns:
        raise UserError(f"task '{task.name}' has no metric_fns: set them where the task is registered")
    if task.predict_with_aux_metric_fns:
        raise UserError(
            f"task '{task.name}' has a metric function of aux_values: use functions of predictions or scores"
        )


def _check_model(lm: LanguageModel, run: config.Run) -> None:
    if lm.config.kind != run.model.kind:
        raise UserError(
            f"the checkpoint's model is of kind '{lm.config.kind}', but config.model.kind is '{run.model.kind}': pass "
            f"a --config for a model of kind '{lm.config.kind}'"
        )
    if run is not lm.run:
        expected = vocabularies.identity(vocabularies.load(run.vocabulary))
        perplexity.check_vocabulary(lm, run, expected, "pass a config")


def _examples(task: Any, run: config.Run, split: str) -> Iterator[Any]:
    """Yields the examples of a split. A task without a validation split is split in the same way as by `prepare`."""
    tasks = import_tasks()
    if split in cache.SPLITS and "train" in task.splits and "validation" not in task.splits:
        examples = list(tasks.examples(task, "train"))
        records = [tasks.record(example) for example in examples]
        held_out = reading.hold_out(records, run.data.validation_fraction)
        for example, record, is_held_out in zip(examples, records, held_out, strict=True):
            if not record.is_empty and is_held_out == (split == "validation"):
                yield example
    elif split in task.splits:
        yield from tasks.examples(task, split)
    else:
        raise UserError(f"task '{task.name}' has no split '{split}': {nearest(split, task.splits)}")


def _processed(task: Any, example: Any, text: str, is_target: bool) -> Any:
    return task.postprocess_fn(text, example=example.row, is_target=is_target)


def _is_unknown(target: Any) -> bool:
    """Whether a processed target is -1, which T5 uses for test sets without labels."""
    return isinstance(target, numbers.Real) and target == -1


def _values(function: Callable[..., dict[str, Any]], targets: Any, answers: Any, prefix: str = "") -> dict[str, float]:
    """Returns the metrics that a metric function computes, with `prefix` before their names.

    Metrics that are not finite, such as the correlation of a constant answer, are left out. T5's own metric functions
    return percentages, which are converted to the units of `common.metrics`.

    Raises:
      UserError: a metric is outside the range that is declared for its name.
    """
    is_percent = getattr(function, "func", function).__module__.partition(".")[0] == "t5"
    values = {}
    for name, value in function(targets, answers).items():
        value = getattr(value, "value", value)
        if not isinstance(value, numbers.Real) or not math.isfinite(value):
            continue
        metric = declarations.declared(name) or declarations.Metric()
        value = metric.from_percent(float(value)) if is_percent else float(value)
        if metric.range is not None and not declarations.fits(metric, value):
            low, high = metric.range
            raise UserError(
                f"a metric function returns {name} {value:g}, which is declared as a {metric.unit} from {low:g} to "
                f"{high:g}: return a value in this range, or rename the metric"
            )
        values[f"{prefix}{name}"] = value
    return values


class _Answerer:
    """Answers and scores of a model for the examples of a task, in batches of `evaluation.batch_size`."""

    def __init__(self, lm: LanguageModel, run: config.Run, examples: Sequence[Any], task: str, show_progress: bool):
        self._lm, self._length, self._size = lm, perplexity.row_lengths(lm, run)[0], run.evaluation.batch_size
        self._decoding = run.evaluation.decoding
        self._special = objectives.Special.of(run.vocabulary, lm.vocabulary.vocab_size, run.vocabulary.sentinels)
        example_rows = config.reader_config(run).example_rows(self._special)
        if example_rows is None:
            raise UserError(f"'{task}' does not have inputs and targets: name another task")
        self._rows = example_rows
        self._bar = partial(perplexity.progress_bar, total=len(examples), unit="example", show=show_progress)
        self._task = task
        texts = [text for example in examples for text in (example.inputs, example.targets)]
        ids = [np.asarray(ids, np.int64) for ids, _ in lm.vocabulary.encode_offsets(texts)]
        self._examples = list(zip(ids[::2], ids[1::2], strict=True))

    def answers(self) -> list[str]:
        """Returns the model's answer to the inputs of each example."""
        length, target_length = self._rows.lengths(self._length)
        prompts = [self._rows.prompt(inputs.tolist(), length) for inputs, _ in self._examples]
        limit = self._rows.target_length or target_length
        decoding = self._decoding.changed(max_new_tokens=self._decoding.max_new_tokens or limit, num_return_sequences=1)
        write = self._lm.writer(settings=decoding)
        answers = self._batched(f"{self._task}: answering", prompts, write)
        bos = self._special.bos
        texts = (self._lm.vocabulary.decode([token for token in answer if token != bos]) for answer in answers)
        return [constraints.cut(text, decoding.stop_strings) for text in texts]

    def log_likelihoods(self) -> list[float]:
        """Returns the log-likelihood of each example's targets given its inputs, in nats.

        Inputs and targets are cut to the row length.
        """
        rows = [self._rows.row([example], self._length) for example in self._examples]

        def score(batch: list[dict[str, np.ndarray]]) -> list[float]:
            stacked = {key: np.array([row[key] for row in batch]) for key in batch[0]}
            return np.asarray(_log_likelihoods(self._lm.model, self._lm.params, stacked)).tolist()

        return self._batched(f"{self._task}: scoring", rows, score)

    def _batched(self, description: str, items: Sequence[Any], process: Callable[[list[Any]], list[Any]]) -> list[Any]:
        with self._bar(description) as progress_bar:
            return batches.map_by_length(items, self._size, process, progress_bar.update)


@partial(jax.jit, static_argnames="model")
def _log_likelihoods(model: Module, params: Any, batch: dict[str, Any]) -> Float[Array, " batch"]:
    """Returns the log-likelihood of each row, float32 [B].

    This is the sum of the targets' log-probabilities, weighted by `target_weights`.
    """
    log_probs = jax.nn.log_softmax(model.apply({"params": params}, **model.model.read(batch)))
    target_log_probs = jnp.take_along_axis(log_probs, batch["targets"][..., None], axis=-1)[..., 0]
    return jnp.sum(target_log_probs * batch["target_weights"], axis=-1)
