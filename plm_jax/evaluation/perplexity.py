"""Loss, perplexity and accuracy of a model on a prepared split, and the loss of a unigram baseline."""

import contextlib
import dataclasses
import functools
import json
import math
import os
import sys
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from plm_jax import config, losses, objectives
from plm_jax.common import progress, storage
from plm_jax.common.errors import UserError, nearest
from plm_jax.data import cache, vocabularies
from plm_jax.data.reader import Reader
from plm_jax.evaluation import baselines
from plm_jax.inference.language_model import LanguageModel
from plm_jax.losses import means
from plm_jax.models import registry
from plm_jax.models.protocol import Module

# Arrays of a batch by their names.
Batch = dict[str, Any]


class NothingToPredictError(UserError):
    """Error for a task without targets or without its split. `prepared` then continues with the remaining tasks."""


def parse_task(run: config.Run, task: str) -> tuple[str, str]:
    """Splits a task, `SOURCE` or `SOURCE:SPLIT`, into the names of its source and split (default: validation).

    Raises:
      UserError: the source is unknown.
    """
    name, _, split = task.partition(":")
    if name not in run.data.sources:
        raise UserError(f"there is no task '{name}': {nearest(name, run.data.sources)}")
    return name, split or "validation"


def row_lengths(lm: LanguageModel, run: config.Run) -> list[int]:
    """Returns the row length of the phase in which the checkpoint was saved and, if it differs, of the last phase.

    If the step of the checkpoint is unknown, or if `run` did not train the model, returns only the row length of the
    last phase.
    """
    phases = config.resolve_phases(run)
    step = lm.step if run is lm.run and lm.step is not None else run.train.steps
    current = next((phase for phase in phases if step <= phase.end_step), phases[-1])
    return list(dict.fromkeys([current.length, phases[-1].length]))


def evaluate(lm: LanguageModel, run: config.Run, task: str, show_progress: bool = True) -> dict[str, float]:
    """Returns the metrics of a model on the rows of a prepared split.

    The targets are those of the run's objective in validation, such as the masked tokens of a masked model
    (`Objective.targets`). The whole split is read, in rows of the first length in `row_lengths`. Random choices, such
    as which tokens are masked, depend on the seed of `run` and on the index of the row.

    Args:
      run: run whose caches are read.
      task: `SOURCE` (its validation split) or `SOURCE:SPLIT`.

    Returns:
      A dict of metrics.

      - All losses: `loss`, the loss of the objective; further metrics of the loss; and `length`, the row length. If the
        loss has several terms, also the mean of each term: `masked_lm_loss` and `pair_loss` (nats per pair) with
        sentence pairs; `generator_loss` and `discriminator_loss` (nats per input token) with ELECTRA.
      - Losses with `nll`: `nll`, in nats per target; `perplexity`, the exponential of `nll`; `accuracy`, a share; and
        `tokens`, the number of targets. Three metrics are computed only over targets that are text (special tokens
        except unk, and sentinels, are not text): `real_loss`, in nats per target; `real_tokens`, the number of targets;
        and `unigram_loss`, the loss of a unigram model. The unigram model assigns the share of text among all targets
        to text. It divides this share among tokens by their add-one frequencies in the training split.
      - The objective `next_token`: `bits_per_byte`, the bits of all targets, including document ends, divided by the
        number of UTF-8 bytes of the targets that are text.
      - Sentence pairs: `pair_accuracy`; `pairs`, the number of pairs; and `pair_constant_accuracy`, the accuracy of the
        better constant answer.
      - ELECTRA, where the targets above are the generator's: `replaced`, the share of tokens that are replaced;
        `discriminator_accuracy`; `discriminator_constant_accuracy`, the accuracy of the better constant answer; and, if
        some tokens are replaced and some are not, `discriminator_auc`, the area under the ROC curve. Samples are drawn
        with the same key for each batch of `evaluation.batch_size` rows.

      If `row_lengths` returns a second length LENGTH, the metrics also contain `LENGTH/loss` and so on, for rows of
      this length.

    Raises:
      NothingToPredictError: the source has no validation data, or no target is text.
      UserError: the source or split is unknown, the cache is missing, the vocabulary of the cache differs from the
        model's vocabulary, the kind of the model differs from the kind of `run.model`, or the model lacks a head.
    """
    length, *last_lengths = row_lengths(lm, run)
    metrics = _evaluate(lm, run, task, length, show_progress)
    for last_length in last_lengths:
        last_metrics = _evaluate(lm, run, task, last_length, show_progress)
        metrics |= {f"{last_length}/{name}": value for name, value in last_metrics.items()}
    return metrics


def _evaluate(lm: LanguageModel, run: config.Run, task: str, length: int, show_progress: bool) -> dict[str, float]:
    name, split = parse_task(run, task)
    loss = losses.get(run.objective.loss, **run.objective.loss_settings)
    _check_model(lm, run, loss)
    reader = Reader(config.reader_config(single_source_run(run, lm, name, length)))
    source = reader.sources[name]
    if split not in source.splits:
        if split in cache.SPLITS:
            raise NothingToPredictError(
                f"'{name}' has no validation data: name another split, or prepare again with at least two documents "
                '(in text files, document="paragraph" or "line" makes more of them) and '
                "config.data.validation_fraction above 0"
            )
        raise UserError(f"'{name}' has no split '{split}': {nearest(split, source.splits)}")
    check_vocabulary(lm, run, reader.vocabulary["id"], "run prepare --from=CHECKPOINT to make a cache")
    batches = reader.in_order(split, run.evaluation.batch_size)
    total = reader.num_batches(split, run.evaluation.batch_size)
    is_real, log_unigram = real_ids(reader.objective.special), add_one_unigram(source.splits["train"])
    with progress_bar(f"{task}, rows of {length}", total, "batch", show_progress) as bar:
        sums = _add_up(lm, loss, _counted(batches, bar), is_real, log_unigram)
    metrics = means.of_total(loss, sums.total)
    if not metrics or ("nll" in metrics and not sums.real_tokens):
        raise NothingToPredictError(f"'{task}' has no target that is text: prepare more text, or name another split")
    metrics["length"] = length
    if "nll" in metrics:
        metrics |= {
            "perplexity": math.exp(metrics["nll"]),
            "real_loss": sums.real_nll / sums.real_tokens,
            # A model does not know which targets are text, so the unigram loss includes the cost of predicting this.
            "unigram_loss": sums.unigram / sums.real_tokens - math.log(sums.real_tokens / sums.tokens),
            "tokens": sums.tokens,
            "real_tokens": sums.real_tokens,
        }
    if run.objective.is_likelihood:
        nats = metrics["nll"] * sums.tokens
        metrics["bits_per_byte"] = nats / math.log(2) / predicted_bytes(source.splits[split], sums.real_tokens)
    if "pair_accuracy" in metrics:
        metrics["pairs"] = sums.num_pairs
        metrics["pair_constant_accuracy"] = baselines.constant_accuracy(sums.pair_labels / sums.num_pairs)
    for name, parts in sums.decisions.items():
        scores, labels = map(np.concatenate, zip(*parts, strict=True))
        metrics[f"{name}_constant_accuracy"] = baselines.constant_accuracy(float(labels.mean()))
        if 0 < labels.mean() < 1:
            metrics[f"{name}_auc"] = baselines.auc(scores, labels)
    return metrics


@contextlib.contextmanager
def progress_bar(description: str, total: int | None, unit: str, show: bool) -> Generator[tqdm]:
    """Context manager that yields a progress bar on stderr, and refreshes the bar while nothing advances.

    Args:
      total: number of units; None if it is unknown.
      show: whether the bar is visible.
    """
    every = functools.partial(progress.pause, terminal=sys.stderr.isatty())
    with (
        tqdm(None, description, total, unit=unit, disable=not show, file=sys.stderr) as bar,
        progress.beating(lambda seconds: bar.refresh(), progress.SILENCE_SECONDS, every),
    ):
        yield bar


def _counted(batches: Iterable[Batch], bar: tqdm) -> Iterator[Batch]:
    for batch in batches:
        yield batch
        bar.update()


@dataclasses.dataclass
class _Sums:
    """Sums over the batches of a split.

    Attributes:
      total: sums of the loss; None before the first batch.
      tokens: number of targets.
      real_tokens: number of targets that are text.
      real_nll: negative log-likelihood of the targets that are text, in nats.
      unigram: negative log-likelihood of the targets that are text under the unigram model, in nats.
      pair_labels: number of pairs with label 1.
      decisions: for each binary term of the loss, by name, a list of pairs of arrays: the scores [n] in a batch, and
        the labels, bool [n].
    """

    total: losses.LossSums | None = None
    tokens: float = 0.0
    real_tokens: float = 0.0
    real_nll: float = 0.0
    unigram: float = 0.0
    pair_labels: float = 0.0
    decisions: dict[str, list[tuple[np.ndarray, np.ndarray]]] = dataclasses.field(default_factory=dict)

    @property
    def num_pairs(self) -> float:
        """Number of sentence pairs."""
        return 0.0 if self.total is None else float(self.total.weights["pair"])


def _add_up(
    lm: LanguageModel, loss: losses.Loss, batches: Iterable[Batch], is_real: np.ndarray, log_unigram: np.ndarray
) -> _Sums:
    sums, carry = _Sums(), None
    for batch in batches:
        carry = nn.unbox(registry.new_carry(lm.model, len(next(iter(batch.values()))))) if carry is None else carry
        targets, weights = (batch.get(name, np.zeros(0, np.int32)) for name in ("targets", "target_weights"))
        real_weights = weights * is_real[targets]
        batch_sums, real_nll, carry = _sum_batch(loss, lm.model, lm.params, batch, real_weights, carry)
        sums.total = means.add(sums.total, batch_sums)
        sums.tokens += float(weights.sum())
        sums.real_tokens += float(real_weights.sum())
        sums.real_nll += float(real_nll)
        sums.unigram -= float(log_unigram[targets].ravel() @ real_weights.ravel())
        if "pair_label" in batch:
            weights = batch["pair_weights"] if "pair_weights" in batch else batch["mask"].any(axis=1)
            sums.pair_labels += float(weights.ravel() @ batch["pair_label"].ravel())
        for name, (scores, labels, counts) in _decisions(loss, lm.model, lm.params, batch).items():
            counts = np.asarray(counts)
            sums.decisions.setdefault(name, []).append((np.asarray(scores)[counts], np.asarray(labels)[counts]))
    return sums


def predicted_bytes(split: cache.Split, num_text_targets: float) -> int:
    """Returns the number of UTF-8 bytes of the targets of a split that are text.

    Every target follows a token. If documents begin with a special token, every token of text is therefore a target. If
    not, the first token of the stream is not a target or, if attention does not cross documents, the first token of
    each document is not a target.

    Args:
      num_text_targets: number of targets that are text.
    """
    unpredicted = split.num_tokens - round(num_text_targets)
    if unpredicted not in (0, 1, split.num_documents):
        raise AssertionError(f"{unpredicted} tokens are not targets, and they are not the first tokens of documents")
    return split.num_bytes - int(split.column("first_bytes")[:unpredicted].sum(dtype=np.int64))


def add_one_unigram(train: cache.Split) -> np.ndarray:
    """Returns the log-probabilities of an add-one unigram model of the training split, float64 [vocab_size]."""
    counts = train.unigram.astype(np.float64) + 1
    return np.log(counts / counts.sum())


def real_ids(special: objectives.Special) -> np.ndarray:
    """Returns a mask of the ids that are text, bool [vocab_size].

    Sentinels are not text. Special tokens except unk are not text.
    """
    ids = [getattr(special, name) for name in config.SPECIALS if name != "unk"] + list(special.sentinels)
    return ~np.isin(np.arange(special.vocab_size), [i for i in ids if i is not None])


class EvaluationLog:
    """Writer of the line of one checkpoint in a run directory's evaluation.jsonl.

    Several processes of a machine may write lines to a local file at the same time, but only one to a file in a bucket.
    """

    def __init__(self, workdir: str, step: int):
        self._path, self._step, self._row = os.path.join(workdir, "evaluation.jsonl"), step, b""

    def write(self, metrics: dict[str, dict[str, float]]) -> None:
        """Appends a line with the step and these metrics, named `TASK/METRIC`; replaces the line of an earlier call.

        Args:
          metrics: dict from each task to its metrics by name.
        """
        figures = {f"{task}/{name}": value for task, of_task in metrics.items() for name, value in of_task.items()}
        row = (json.dumps({"step": self._step} | figures) + "\n").encode("utf-8")
        with contextlib.nullcontext() if storage.is_remote(self._path) else storage.locked(f"{self._path}.lock"):
            rows = storage.read(self._path) if storage.exists(self._path) else b""
            storage.write(self._path, rows.replace(self._row, b"") + row if self._row else rows + row)
        self._row = row


@functools.partial(jax.jit, static_argnames=("loss", "model"))
def _sum_batch(
    loss: losses.Loss, model: Module, params: Any, batch: Batch, real_weights: jax.Array, carry: Any
) -> tuple[losses.LossSums, jax.Array, Any]:
    """Evaluates a batch.

    Args:
      real_weights: weights of the targets that are text; 0 for all other targets.

    Returns:
      Three results: the sums of the loss and of its metrics; the sum of `nll`, in nats, weighted by `real_weights`; and
      the recurrent state for the next batch.
    """

    def get_nll(sums: losses.LossSums) -> jax.Array:
        return next((metrics["nll"] for metrics in sums.metrics.values() if "nll" in metrics), jnp.zeros(()))

    def sum_with(weights: jax.Array) -> tuple[losses.LossSums, jax.Array, Any]:
        sums, new_carry = means.sums(loss, model, params, batch | {"target_weights": weights}, carry)
        return sums, get_nll(sums), new_carry

    if "target_weights" not in batch:
        sums, new_carry = means.sums(loss, model, params, batch, carry)
        return sums, get_nll(sums), new_carry
    # Only the weights are mapped, so there is one forward pass, or two if the loss reads samples.
    weights = jnp.stack([batch["target_weights"], real_weights])
    both, nlls, carry = jax.vmap(sum_with, out_axes=(0, 0, None))(weights)
    return jax.tree.map(lambda x: x[0], both), nlls[1], carry


@functools.partial(jax.jit, static_argnames=("loss", "model"))
def _decisions(loss: losses.Loss, model: Module, params: Any, batch: Batch) -> Any:
    return loss.scores(model, params, batch)


def _check_model(lm: LanguageModel, run: config.Run, loss: losses.Loss) -> None:
    if lm.config.kind != run.model.kind:
        raise UserError(
            f"the checkpoint's model is of kind '{lm.config.kind}', but config.model.kind is '{run.model.kind}': pass "
            f"a --config for a model of kind '{lm.config.kind}'"
        )
    for head in loss.heads:
        if head not in lm.config.named_heads:
            raise UserError(f"the model has no {head} head: evaluate a model that has one")


def single_source_run(run: config.Run, lm: LanguageModel, name: str, length: int) -> config.Run:
    """Returns `run` with only the source `name`, the model of `lm`, rows of `length` tokens, and no phases."""
    segmenters = {source: segmenter for source, segmenter in run.data.segmenters.items() if source == name}
    data = dataclasses.replace(
        run.data, length=length, sources={name: run.data.sources[name]}, mixture={}, segmenters=segmenters
    )
    return dataclasses.replace(run, model=lm.config, data=data, train=dataclasses.replace(run.train, phases=()))


def check_vocabulary(lm: LanguageModel, run: config.Run, expected: str, remedy: str) -> None:
    """Checks that the model has the expected vocabulary.

    Args:
      run: config that defines the special tokens around documents, for a model whose vocabulary has no recorded id.
      expected: id of the expected vocabulary.
      remedy: beginning of the advice in the error message. The advice ends "… with the model's vocabulary".

    Raises:
      UserError: the model has a different vocabulary, or none.
    """
    actual = lm.vocabulary_id
    if actual is None:
        # Files and case come from the model; the ids around documents come from the config.
        specials = lm.tokenizer.specials
        section = dataclasses.replace(
            run.vocabulary, spec=specials.spec, train_kind=specials.train_kind, lowercase=specials.lowercase
        )
        actual = vocabularies.identity(vocabularies.load_plain(section))
    if actual != expected:
        raise UserError(
            f"the model has vocabulary {actual[:12]}, not {expected[:12]}: {remedy} with the model's vocabulary"
        )
