"""How well a model predicts a prepared split: loss, perplexity, bits per byte, beside the unigram baseline."""

import dataclasses
import functools
import json
import math
import os
import sys

import jax
import numpy as np
from tqdm import tqdm

from plm_jax import config
from plm_jax.data import cache
from plm_jax.data.reader import Reader
from plm_jax.errors import UserError, nearest
from plm_jax.evaluation.language_model import LanguageModel
from plm_jax.training import losses


def evaluate(lm: LanguageModel, run: config.Run, task: str, show_progress: bool = True) -> dict[str, float]:
    """The metrics of one `SOURCE` (its validation split) or `SOURCE:SPLIT` of `run.data`'s cache.

    Every token of the split but the stream's very first is a target once, in rows of `run.data.length`.

    Returns:
      `loss`, nats a target token; `perplexity`, its exponential; `accuracy`; `bits_per_byte` of the split's UTF-8 text;
      `unigram_loss`, nats a token of the add-one unigram of the training split on the same targets; `tokens`, how many.

    Raises:
      UserError: an unknown source or split, no cache, or a cache of another vocabulary than the model's.
    """
    name, _, split = task.partition(":")
    split = split or "validation"
    if name not in run.data.sources:
        raise UserError(f"there is no task '{name}': {nearest(name, run.data.sources)}")
    reader = Reader(_only(run, lm, name))
    source = reader.sources[name]
    if split not in source.splits:
        raise UserError(f"'{name}' has no split '{split}': {nearest(split, source.splits)}")
    _check_vocabulary(lm, reader)
    log_unigram = add_one_unigram(source.splits["train"], source.vocabulary)
    batch_size = run.evaluation.batch_size
    sums, unigram = np.zeros(3), 0.0
    batches = reader.in_order(split, batch_size)
    total = reader.num_batches(split, batch_size)
    for batch in tqdm(batches, task, total, unit="batch", disable=not show_progress, file=sys.stderr):
        sums += [float(x) for x in _sums(lm.model, lm.params, batch)]
        unigram -= float(log_unigram[batch["targets"]].astype(np.float64).ravel() @ batch["target_weights"].ravel())
    nll, correct, tokens = sums
    if not tokens:
        raise UserError(f"'{task}' has no target token: prepare more text or another split")
    return {
        "loss": nll / tokens,
        "perplexity": math.exp(nll / tokens),
        "accuracy": correct / tokens,
        "bits_per_byte": nll / math.log(2) / source.splits[split].num_bytes,
        "unigram_loss": unigram / tokens,
        "tokens": tokens,
    }


def add_one_unigram(train: cache.Split, vocabulary: dict) -> np.ndarray:
    """Log-probabilities [vocab_size]: each token's count in the training stream plus one, normalised."""
    counts = train.unigram.astype(np.float64) + 1
    if vocabulary["eos"] is not None:
        counts[vocabulary["eos"]] += train.num_documents
    return np.log(counts / counts.sum())


def record(workdir: str, step: int, metrics: dict[str, dict[str, float]]) -> None:
    """Adds one row with `TASK/METRIC` keys to a run directory's evaluation.jsonl."""
    row = {"step": step} | {f"{task}/{name}": value for task, found in metrics.items() for name, value in found.items()}
    with open(os.path.join(workdir, "evaluation.jsonl"), "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


@functools.partial(jax.jit, static_argnames="model")
def _sums(model, params, batch):
    _, weight, metrics, _ = losses.causal(model, params, batch, None, {})
    return metrics["nll"], metrics["accuracy"], weight


def _only(run: config.Run, lm: LanguageModel, name: str) -> config.Run:
    """The run with this one source, without phases, for this model."""
    data = dataclasses.replace(run.data, sources={name: run.data.sources[name]}, mixture={})
    return dataclasses.replace(run, model=lm.config, data=data, train=dataclasses.replace(run.train, phases=()))


def _check_vocabulary(lm: LanguageModel, reader: Reader) -> None:
    if lm.vocabulary_id is None:
        from plm_jax.data import vocabularies  # It imports seqio: seconds, and only models from elsewhere need it.

        lm.vocabulary_id = vocabularies.identity(lm.vocabulary)
    if lm.vocabulary_id != reader.vocabulary["id"]:
        raise UserError(
            f"the model has vocabulary {lm.vocabulary_id[:12]}, the cache {reader.vocabulary['id'][:12]}: "
            "prepare the cache with the model's vocabulary"
        )
