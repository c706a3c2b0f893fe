"""Summary of finished training runs: last validation next to trivial baselines, best weights, and next commands."""

import math
import os
import time
from collections.abc import Mapping, Sequence

from plm_jax import config, objectives
from plm_jax.common import metrics, storage
from plm_jax.common.errors import UserError
from plm_jax.data.layouts.labeled import LabeledRows
from plm_jax.data.mixtures import Mixture
from plm_jax.data.reader import Reader
from plm_jax.evaluation import labeled, perplexity
from plm_jax.experiments import seeds
from plm_jax.models.heads import TASK
from plm_jax.runs import checkpoint_folders, checkpoint_formats, run_directory
from plm_jax.runs.train import TrainResult

_OBJECTIVES = ("next_token", "masked_lm")
# Number of validation batches that are read for the loss of a unigram model, if the run has no smaller limit.
_MOST_BATCHES = 64


def lines(results: Sequence[TrainResult], seconds: float) -> list[str]:
    """Returns the lines of a summary of runs. The runs differ only in their seeds.

    Args:
      results: results of the runs, which are finished.
      seconds: duration of this execution of the command.
    """
    duration, workdirs = time.strftime("%H:%M:%S", time.gmtime(seconds)), [result.workdir for result in results]
    run = _saved_run(workdirs[0])
    best = [os.path.join(workdir, "checkpoints", checkpoint_folders.BEST) for workdir in workdirs]
    best = [checkpoint for checkpoint in best if storage.exists(checkpoint)]
    model = (best or workdirs)[0]
    format = checkpoint_formats.format_for_others(checkpoint_formats.described(model))
    return [
        f"{_heading(results)} ({duration})",
        *(f"  {line}" for line in seeds.lines(workdirs, _baselines(run))),
        *map(_best_line, best),
        "next:",
        *(f"  {command}" for command in _commands(run, model, format)),
    ]


def _heading(results: Sequence[TrainResult]) -> str:
    """Returns the first line, which says how many of the runs were finished before the command started."""
    name = results[0].workdir if len(results) == 1 else f"{len(results)} runs"
    verb = "is" if len(results) == 1 else "are"
    finished = sum(not result.trained for result in results)
    if not finished:
        return f"{name} {verb} trained"
    if finished == len(results):
        return f"nothing was trained: {name} {'was' if verb == 'is' else 'were'} finished before"
    return f"{name} {verb} trained, {finished} of them before this start"


def _best_line(checkpoint: str) -> str:
    """Returns the line of the best weights of a run."""
    meta = checkpoint_folders.read_meta(checkpoint_folders.absolute(checkpoint))
    metric, value = meta["selected"]["by"], meta["selected"]["value"]
    return f"  best weights: {metric} {metrics.shown(metric, value)} at step {meta['step']:,}, in {checkpoint}"


def _saved_run(workdir: str) -> config.Run:
    described = run_directory.read(workdir)
    assert described is not None, "a finished run has a config"
    return config.from_saved(described["config"], described.get("modules"))


def _commands(run: config.Run, checkpoint: str, format: str) -> list[str]:
    """Returns commands that use the trained model. One of the commands converts the model to `format`."""
    commands = [f"plm_jax evaluate --checkpoint={checkpoint}"]
    if isinstance(run.objective, objectives.LabeledObjective):
        commands.append(f"plm_jax predict --checkpoint={checkpoint} --input=FILE --output=predictions.jsonl")
    elif "vocabulary" in run.model.named_heads and run.model.architecture != "xlnet":
        prompt = "The [MASK] of" if run.model.architecture in ("encoder", "electra") else "The"
        commands.append(f'plm_jax generate --checkpoint={checkpoint} --prompt="{prompt}"')
    return [*commands, f"plm_jax convert --source={checkpoint} --target=DIR --format={format}"]


def _baselines(run: config.Run) -> dict[str, float]:
    """Returns the metrics of predictors that ignore the input, by names such as `validation/SOURCE/accuracy`.

    For labeled examples, the predictor is the best constant answer. For documents, it is a unigram model if the loss is
    one of `_OBJECTIVES`; other losses have no predictor. If the cache is gone, the dict is empty.
    """
    try:
        reader = Reader(config.reader_config(run))
    except UserError:  # The cache is gone; the model is trained anyway.
        return {}
    baselines: dict[str, float] = {}
    for name, source in reader.sources.items():
        if "validation" not in source.splits:
            continue
        for metric, value in _source_baselines(run, reader, name).items():
            baselines[f"validation/{name}/{metric}"] = value
    if len(reader.sources) == 1:
        baselines |= {f"validation/{name.split('/')[-1]}": value for name, value in baselines.items()}
    return baselines


def _source_baselines(run: config.Run, reader: Reader, name: str) -> Mapping[str, float]:
    if isinstance(run.objective, objectives.LabeledObjective):
        rows = reader.rows("validation", name, config.resolve_phases(run)[-1].length)
        assert isinstance(rows, LabeledRows)
        labels = getattr(run.model.named_heads.get(TASK), "labels", ())
        return labeled.trivial(rows, labels)
    source = reader.sources[name]
    if source.has_inputs_targets or run.objective.loss not in _OBJECTIVES:
        return {}
    return {"nll": _unigram_loss(run, reader, name)}


def _unigram_loss(run: config.Run, reader: Reader, name: str) -> float:
    """Returns the metric `unigram_loss` of `evaluate` for the first batches of a source; NaN if no target is text."""
    batch_size = run.evaluation.batch_size
    rates = {other: rate for other, rate in reader.rates(config.resolve_phases(run)[-1]).items() if rate}
    limit = Mixture(rates).counts(run.evaluation.max_batches or _MOST_BATCHES).get(name, 0)
    is_real = perplexity.real_ids(reader.objective.special)
    log_probabilities = perplexity.add_one_unigram(reader.sources[name].splits["train"])
    nats = tokens = real_tokens = 0.0
    for batch in reader.in_order("validation", batch_size, name=name, max_batches=min(max(1, limit), _MOST_BATCHES)):
        targets, weights = batch["targets"], batch["target_weights"]
        real_weights = weights * is_real[targets]
        nats -= float(log_probabilities[targets].ravel() @ real_weights.ravel())
        tokens, real_tokens = tokens + float(weights.sum()), real_tokens + float(real_weights.sum())
    return nats / real_tokens - math.log(real_tokens / tokens) if real_tokens else math.nan
