"""What a task's own metrics say of a model's answers to its examples.

Answers are decoded as `evaluation.decoding` says; the task's `postprocess_fn` and `metric_fns` are seqio's.
Functions of (targets, scores) get the log-likelihood of each example's targets, as rank classification does.
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
from plm_jax.evaluation import batches, labelled, perplexity, scoring
from plm_jax.generation import constraints
from plm_jax.inference.language_model import LanguageModel
from plm_jax.models.protocol import Module


def evaluate(
    lm: LanguageModel,
    run: config.Run,
    task: str,
    show_progress: bool = True,
    whole: scoring.TextScoring | None = None,
) -> dict[str, float]:
    """The metrics of one `SOURCE` (its validation split) or `SOURCE:SPLIT` of `run.data`.

    Args:
      whole: tells the documents of a source as whole texts.

    Returns:
      Of whole texts what `scoring.evaluate` does. Of a source of documents what
      `perplexity.evaluate` does, of labelled examples what `labelled.evaluate` does. Of one of inputs and targets:
      `examples`, their number; the metrics of the task's metric functions, in the units of `common.metrics`; and, with
      the prefix `most_frequent_`, the metrics of predictions if the answer is always the most frequent one of these
      examples.

    Raises:
      UserError: as `perplexity.evaluate`; a task without metric functions, or one that needs more than targets and
        predictions or scores; a metric outside its declared range; a split without examples or labels.
    """
    if whole is not None:
        return scoring.evaluate(lm, run, task, whole, show_progress)
    name, _, split = task.partition(":")
    source = run.data.sources.get(name)
    if isinstance(source, config.LabelledSource):
        return labelled.evaluate(lm, run, task, show_progress)
    if not isinstance(source, config.InputsTargetsSource):
        return perplexity.evaluate(lm, run, task, show_progress)
    found = import_tasks().registered(name, source, run.data.bad_rows)
    if objects := found.metric_objs[: len(found.metric_objs) - len(found.metric_fns)]:
        names = ", ".join(getattr(metric, "__name__", type(metric).__name__) for metric in objects)
        raise UserError(f"task '{found.name}' has metric_objs ({names}): give it metric_fns, which alone are run")
    if not found.metric_fns:
        raise UserError(f"task '{found.name}' has no metric_fns: give it some where it is registered")
    if found.predict_with_aux_metric_fns:
        raise UserError(f"task '{found.name}' has a metric of aux_values: use those of predictions or scores")
    if lm.config.kind != run.model.kind:
        trained = f"the config trains '{run.model.kind}'"
        raise UserError(f"the model is of kind '{lm.config.kind}', {trained}: name one of its kind")
    if run is not lm.run:
        wanted = vocabularies.identity(vocabularies.load(run.vocabulary))
        perplexity.check_vocabulary(lm, run, wanted, "give a config")
    examples = list(_examples(found, run, split or "validation"))
    if not examples:
        mend = "name another split, or raise config.data.validation_fraction"
        raise perplexity.NothingToPredictError(f"'{task}' has no examples: {mend}")
    targets = [_processed(found, example, example.targets, is_target=True) for example in examples]
    if any(example.targets == formats.UNKNOWN for example in examples) or all(map(_is_unknown, targets)):
        raise perplexity.NothingToPredictError(f"'{task}' has no labels: name another split")
    answerer = _Answerer(lm, run, examples, task, show_progress)
    # A function that returns per cent returns 100 for perfect answers, so it is rejected before any answer is decoded.
    perfect = [_processed(found, example, example.targets, is_target=False) for example in examples]
    for of_predictions in found.predict_metric_fns:
        _values(of_predictions, targets, perfect)
    metrics: dict[str, float] = {"examples": len(examples)}
    if found.predict_metric_fns:
        ((most_frequent, _),) = collections.Counter(example.targets for example in examples).most_common(1)
        for prefix, answers in (("", answerer.answers()), ("most_frequent_", [most_frequent] * len(examples))):
            pairs = zip(examples, answers, strict=True)
            predictions = [_processed(found, example, answer, is_target=False) for example, answer in pairs]
            for of_predictions in found.predict_metric_fns:
                metrics |= _values(of_predictions, targets, predictions, prefix)
    if found.score_metric_fns:
        scores = answerer.log_likelihoods()
        for of_scores in found.score_metric_fns:
            metrics |= _values(of_scores, targets, scores)
    return metrics


def answered(lm: LanguageModel, run: config.Run, task: str, number: int) -> list[dict[str, str]]:
    """`prompt`, `answer` and `target` of the first examples of a task of inputs and targets."""
    name, _, split = task.partition(":")
    found = import_tasks().registered(name, run.data.sources[name], run.data.bad_rows)
    examples = list(itertools.islice(_examples(found, run, split or "validation"), number))
    answers = _Answerer(lm, run, examples, task, show_progress=False).answers()
    pairs = zip(examples, answers, strict=True)
    return [{"prompt": one.inputs, "answer": answer, "target": one.targets} for one, answer in pairs]


def _examples(task: Any, run: config.Run, split: str) -> Iterator[Any]:
    """Those of a split; of a task without one for validation those that `prepare` holds out, or not."""
    tasks = import_tasks()
    if split in cache.SPLITS and "train" in task.splits and "validation" not in task.splits:
        examples = list(tasks.examples(task, "train"))
        records = [tasks.record(example) for example in examples]
        held_out = reading.hold_out(records, run.data.validation_fraction)
        for example, record, is_held_out in zip(examples, records, held_out, strict=True):
            if record.has_text and is_held_out == (split == "validation"):
                yield example
    elif split in task.splits:
        yield from tasks.examples(task, split)
    else:
        raise UserError(f"task '{task.name}' has no split '{split}': {nearest(split, task.splits)}")


def _processed(task: Any, example: Any, text: str, is_target: bool) -> Any:
    return task.postprocess_fn(text, example=example.row, is_target=is_target)


def _is_unknown(target: Any) -> bool:
    """Whether a processed target is no class and no number: -1, as T5 has it where a test set has no labels."""
    return isinstance(target, numbers.Real) and target == -1


def _values(function: Callable[..., dict[str, Any]], targets: Any, answers: Any, prefix: str = "") -> dict[str, float]:
    """Returns the finite metrics of a metric function; the correlation of a constant answer is not finite.

    T5's own functions return per cent, which is converted.

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
                f"{high:g}: return it in this range, or call it another name"
            )
        values[f"{prefix}{name}"] = value
    return values


class _Answerer:
    """A model before the examples of a task, in batches of `evaluation.batch_size`, the shortest first."""

    def __init__(self, lm: LanguageModel, run: config.Run, examples: Sequence[Any], task: str, show_progress: bool):
        self._lm, self._length, self._size = lm, perplexity.lengths(lm, run)[0], run.evaluation.batch_size
        self._how = run.evaluation.decoding
        self._special = objectives.Special.of(run.vocabulary, lm.vocabulary.vocab_size, run.vocabulary.sentinels)
        example_rows = config.reader_config(run).example_rows(self._special)
        if example_rows is None:
            raise UserError(f"'{task}' has no inputs and targets: name another task")
        self._rows = example_rows
        self._bar = partial(perplexity.bar, total=len(examples), unit="example", show=show_progress)
        self._task = task
        texts = [text for example in examples for text in (example.inputs, example.targets)]
        ids = [np.asarray(ids, np.int64) for ids, _ in lm.vocabulary.encode_offsets(texts)]
        self._examples = list(zip(ids[::2], ids[1::2], strict=True))

    def answers(self) -> list[str]:
        """What the model says to each example's inputs."""
        prompts = [self._rows.prompt(inputs.tolist(), self._length) for inputs, _ in self._examples]
        limit = self._rows.target_length or self._rows.lengths(self._length)[1]
        how = self._how.changed(max_new_tokens=self._how.max_new_tokens or limit, num_return_sequences=1)
        write = self._lm.writer(settings=how)
        answers = self._batched(f"{self._task}: answering", prompts, write)
        bos = self._special.bos
        texts = (self._lm.vocabulary.decode([token for token in answer if token != bos]) for answer in answers)
        return [constraints.cut(text, how.stop_strings) for text in texts]

    def log_likelihoods(self) -> list[float]:
        """Of each example's targets, cut to the row, given its inputs, in nats."""
        rows = [self._rows.row([example], self._length) for example in self._examples]

        def score(batch: list[dict[str, np.ndarray]]) -> list[float]:
            stacked = {key: np.array([row[key] for row in batch]) for key in batch[0]}
            return np.asarray(_log_likelihoods(self._lm.model, self._lm.params, stacked)).tolist()

        return self._batched(f"{self._task}: scoring", rows, score)

    def _batched(self, what: str, items: Sequence[Any], of_batch: Callable[[list[Any]], list[Any]]) -> list[Any]:
        with self._bar(what) as bar:
            return batches.by_length(items, self._size, of_batch, bar.update)


@partial(jax.jit, static_argnames="model")
def _log_likelihoods(model: Module, params: Any, batch: dict[str, Any]) -> Float[Array, " batch"]:
    """Sums of the targets' log-probabilities under `target_weights`, float32 [B]."""
    log_probs = jax.nn.log_softmax(model.apply({"params": params}, **model.model.read(batch)))
    of_targets = jnp.take_along_axis(log_probs, batch["targets"][..., None], axis=-1)[..., 0]
    return jnp.sum(of_targets * batch["target_weights"], axis=-1)
