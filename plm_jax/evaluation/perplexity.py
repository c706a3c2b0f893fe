"""How well a model predicts a prepared split: loss, perplexity, accuracy, beside the unigram baseline."""

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
    """A split that is not there or asks nothing of a model; other tasks can be evaluated all the same."""


def split_of(run: config.Run, task: str) -> tuple[str, str]:
    """The source and the split of a task, `SOURCE` (its validation split) or `SOURCE:SPLIT`.

    Raises:
      UserError: an unknown source.
    """
    name, _, split = task.partition(":")
    if name not in run.data.sources:
        raise UserError(f"there is no task '{name}': {nearest(name, run.data.sources)}")
    return name, split or "validation"


def lengths(lm: LanguageModel, run: config.Run) -> list[int]:
    """The row lengths at which a model is evaluated: its phase's, and the last phase's if that is another."""
    stages = config.resolve_phases(run)
    step = lm.step if run is lm.run and lm.step is not None else run.train.steps
    now = next((stage for stage in stages if step <= stage.end_step), stages[-1])
    return list(dict.fromkeys([now.length, stages[-1].length]))


def evaluate(lm: LanguageModel, run: config.Run, task: str, show_progress: bool = True) -> dict[str, float]:
    """The metrics of one `SOURCE` (its validation split) or `SOURCE:SPLIT` of `run.data`'s cache.

    The targets are those of the run's objective over the whole split in rows of the length of the checkpoint's phase,
    noise keyed by the row: every token that has one before it, the masked tokens, the spans with their sentinels and
    end, or every word and end of a document in both directions, with the softmax over all words.

    Returns:
      `loss`, what training minimises, and of several terms each, as `validation/…` in metrics.jsonl: with sentence
      pairs `masked_lm_loss` and `pair_loss`, nats a pair, of an ELECTRA `generator_loss` and `discriminator_loss`, nats
      a token of the input; the loss's own metrics; `length`, of a row. Of a loss that tells `nll`, nats a target:
      `perplexity`, its exponential; `accuracy`, a share; `tokens`, the targets; of those of them that are text, neither
      special tokens (unk counts as text) nor sentinels, `real_loss`, `real_tokens`, and `unigram_loss`, that of a
      unigram over the targets: it expects text in the share that text has among them, and of text the training split's
      add-one unigram. Causal: `bits_per_byte`, the bits of all targets, ends of documents included, by the UTF-8 bytes
      of those of them that are text. With sentence pairs: `pair_accuracy`, and `pairs`, their number. Of an ELECTRA all
      targets are the generator's, and there are `discriminator_accuracy`, `discriminator_auc`, the area under its ROC
      curve (where some tokens are replaced and some are not), and `replaced`, the share of tokens that are, with
      samples drawn for each batch of `evaluation.batch_size` rows with the same key. `pair_constant_accuracy` and
      `discriminator_constant_accuracy` are the accuracies of the better constant answer. Where the run's last phase has
      rows of another LENGTH, the same of these as LENGTH/loss, ….

    Raises:
      UserError: an unknown source or split, no cache, a cache of another vocabulary than the model's, or a model of
        another kind than the run's; `NothingToPredictError` among them.
    """
    now, *last = lengths(lm, run)
    found = _evaluate(lm, run, task, now, show_progress)
    for length in last:
        of_last = _evaluate(lm, run, task, length, show_progress)
        found |= {f"{length}/{name}": value for name, value in of_last.items()}
    return found


def _evaluate(lm: LanguageModel, run: config.Run, task: str, length: int, show_progress: bool) -> dict[str, float]:
    """The metrics in rows of a length."""
    name, split = split_of(run, task)
    loss = losses.get(run.objective.loss, **run.objective.loss_settings)
    _check_model(lm, run, loss)
    reader = Reader(config.reader_config(only(run, lm, name, length)))
    source = reader.sources[name]
    if split not in source.splits:
        if split in cache.SPLITS:
            mend = "name another split, or raise config.data.validation_fraction and prepare again"
            raise NothingToPredictError(f"nothing is held out of '{name}': {mend}")
        raise UserError(f"'{name}' has no split '{split}': {nearest(split, source.splits)}")
    check_vocabulary(lm, run, reader.vocabulary["id"], "prepare the cache")
    batches = reader.in_order(split, run.evaluation.batch_size)
    total = reader.num_batches(split, run.evaluation.batch_size)
    is_real, log_unigram = real_ids(reader.objective.special), add_one_unigram(source.splits["train"])
    with bar(f"{task}, rows of {length}", total, "batch", show_progress) as drawn:
        sums = _add_up(lm, loss, _counted(batches, drawn), is_real, log_unigram)
    found = means.of_total(loss, sums.total)
    if not found or ("nll" in found and not sums.real_tokens):
        raise NothingToPredictError(f"'{task}' has no target that is text: prepare more text or another split")
    found["length"] = length
    if "nll" in found:
        found |= {
            "perplexity": math.exp(found["nll"]),
            "real_loss": sums.real_nll / sums.real_tokens,
            # No model is told which targets are text, and each pays for that: the unigram, too.
            "unigram_loss": sums.unigram / sums.real_tokens - math.log(sums.real_tokens / sums.tokens),
            "tokens": sums.tokens,
            "real_tokens": sums.real_tokens,
        }
    if run.objective.is_likelihood:
        nats = found["nll"] * sums.tokens
        found["bits_per_byte"] = nats / math.log(2) / predicted_bytes(source.splits[split], sums.real_tokens)
    if "pair_accuracy" in found:
        found["pairs"] = sums.num_pairs
        found["pair_constant_accuracy"] = baselines.constant_accuracy(sums.pair_labels / sums.num_pairs)
    for name, parts in sums.decisions.items():
        scores, labels = map(np.concatenate, zip(*parts, strict=True))
        found[f"{name}_constant_accuracy"] = baselines.constant_accuracy(float(labels.mean()))
        if 0 < labels.mean() < 1:
            found[f"{name}_auc"] = baselines.auc(scores, labels)
    return found


@contextlib.contextmanager
def bar(what: str, total: int | None, unit: str, show: bool) -> Generator[tqdm]:
    """A bar on stderr that is drawn again and again, also while the first batch is compiled."""
    every = functools.partial(progress.pause, terminal=sys.stderr.isatty())
    with (
        tqdm(None, what, total, unit=unit, disable=not show, file=sys.stderr) as drawn,
        progress.beating(lambda seconds: drawn.refresh(), progress.SILENCE_SECONDS, every),
    ):
        yield drawn


def _counted(batches: Iterable[Batch], drawn: tqdm) -> Iterator[Batch]:
    for batch in batches:
        yield batch
        drawn.update()


@dataclasses.dataclass
class _Sums:
    """Sums over the batches of a split.

    Attributes:
      total: those of the loss; None: there was no batch.
      tokens, real_tokens, real_nll, unigram: of targets, how many; of those that are text, how many, and the nats of
        the model and of the unigram.
      pair_labels: of pairs, how many have label 1.
      decisions: by the name of a term parts of its scores [n] and labels, bool [n].
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
    found, carry = _Sums(), None
    for batch in batches:
        carry = nn.unbox(registry.new_carry(lm.model, len(next(iter(batch.values()))))) if carry is None else carry
        targets, weights = (batch.get(name, np.zeros(0, np.int32)) for name in ("targets", "target_weights"))
        real_weights = weights * is_real[targets]
        of_batch, real_nll, carry = _of_batch(loss, lm.model, lm.params, batch, real_weights, carry)
        found.total = means.add(found.total, of_batch)
        found.tokens += float(weights.sum())
        found.real_tokens += float(real_weights.sum())
        found.real_nll += float(real_nll)
        found.unigram -= float(log_unigram[targets].ravel() @ real_weights.ravel())
        if "pair_label" in batch:
            found.pair_labels += float(batch["mask"].any(axis=1) @ batch["pair_label"])
        for name, (scores, labels, counts) in _decisions(loss, lm.model, lm.params, batch).items():
            counts = np.asarray(counts)
            found.decisions.setdefault(name, []).append((np.asarray(scores)[counts], np.asarray(labels)[counts]))
    return found


def predicted_bytes(split: cache.Split, num_text_targets: float) -> int:
    """The UTF-8 bytes of a split's text that its targets are, of which so many are text.

    A target needs a token before it. Where nothing marks the begin of a document, the stream's very first token has
    none, and where documents are kept apart, no document's first one.
    """
    unpredicted = split.num_tokens - round(num_text_targets)
    if unpredicted not in (0, 1, split.num_documents):
        raise AssertionError(f"{unpredicted} tokens are no targets: they are not first ones of documents")
    return split.num_bytes - int(split.column("first_bytes")[:unpredicted].sum(dtype=np.int64))


def add_one_unigram(train: cache.Split) -> np.ndarray:
    """Log-probabilities [vocab_size]: each token's count in the training text plus one, normalised."""
    counts = train.unigram.astype(np.float64) + 1
    return np.log(counts / counts.sum())


def real_ids(special: objectives.Special) -> np.ndarray:
    """Bool [vocab_size]: which ids are text, neither sentinels nor special; unk is text that the vocabulary lacks."""
    ids = [getattr(special, name) for name in config.SPECIALS if name != "unk"] + list(special.sentinels)
    return ~np.isin(np.arange(special.vocab_size), [i for i in ids if i is not None])


class EvaluationLog:
    """One line with `TASK/METRIC` keys at the end of a run directory's evaluation.jsonl, which grows with the tasks."""

    def __init__(self, workdir: str, step: int):
        self._path, self._step, self._row = os.path.join(workdir, "evaluation.jsonl"), step, b""

    def write(self, metrics: dict[str, dict[str, float]]) -> None:
        """Puts the line of these tasks in the place of what was written before."""
        rows = storage.read(self._path) if storage.exists(self._path) else b""
        figures = {f"{task}/{name}": value for task, found in metrics.items() for name, value in found.items()}
        row = (json.dumps({"step": self._step} | figures) + "\n").encode("utf-8")
        storage.write(self._path, rows.replace(self._row, b"") + row if self._row else rows + row)
        self._row = row


@functools.partial(jax.jit, static_argnames=("loss", "model"))
def _of_batch(
    loss: losses.Loss, model: Module, params: Any, batch: Batch, real_weights: jax.Array, carry: Any
) -> tuple[losses.LossSums, jax.Array, Any]:
    """The sums of a batch, the nats of its targets that are text, and what the loss carries on to the next batch."""

    def nll_of(found: losses.LossSums) -> jax.Array:
        return next((own["nll"] for own in found.metrics.values() if "nll" in own), jnp.zeros(()))

    def under(weights: jax.Array) -> tuple[losses.LossSums, jax.Array, Any]:
        found, after = means.sums(loss, model, params, batch | {"target_weights": weights}, carry)
        return found, nll_of(found), after

    if "target_weights" not in batch:
        found, after = means.sums(loss, model, params, batch, carry)
        return found, nll_of(found), after
    # Mapped over the weights alone, so there is one forward pass (of what reads samples, two).
    weights = jnp.stack([batch["target_weights"], real_weights])
    both, nlls, carry = jax.vmap(under, out_axes=(0, 0, None))(weights)
    return jax.tree.map(lambda x: x[0], both), nlls[1], carry


@functools.partial(jax.jit, static_argnames=("loss", "model"))
def _decisions(loss: losses.Loss, model: Module, params: Any, batch: Batch) -> Any:
    return loss.scores(model, params, batch)


def _check_model(lm: LanguageModel, run: config.Run, loss: losses.Loss) -> None:
    if lm.config.kind != run.model.kind:
        raise UserError(
            f"the model is of kind '{lm.config.kind}', the config trains '{run.model.kind}': name a config of its kind"
        )
    for head in loss.heads:
        if head not in lm.config.named_heads:
            raise UserError(f"the model has no {head} head: evaluate one that has")


def only(run: config.Run, lm: LanguageModel, name: str, length: int) -> config.Run:
    """The run with this one source, in rows of `length` without phases, for this model."""
    segmenters = {source: how for source, how in run.data.segmenters.items() if source == name}
    data = dataclasses.replace(
        run.data, length=length, sources={name: run.data.sources[name]}, mixture={}, segmenters=segmenters
    )
    return dataclasses.replace(run, model=lm.config, data=data, train=dataclasses.replace(run.train, phases=()))


def check_vocabulary(lm: LanguageModel, run: config.Run, wanted: str, mend: str) -> None:
    """The model's vocabulary must be that of the id `wanted`; `mend` is what to do with it if another is asked for.

    Raises:
      UserError: it is another.
    """
    found = lm.vocabulary_id
    if found is None:
        # The model's files and case; what ids the cache has put around documents is the config's choice.
        own = lm.tokenizer.specials
        section = dataclasses.replace(run.vocabulary, spec=own.spec, train_kind=own.train_kind, lowercase=own.lowercase)
        found = vocabularies.identity(vocabularies.load_plain(section))
    if found != wanted:
        raise UserError(f"the model has vocabulary {found[:12]}, not {wanted[:12]}: {mend} with the model's vocabulary")
