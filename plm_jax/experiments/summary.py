"""Summary of finished training runs: last validation next to trivial baselines, best weights, and next commands."""

import os
import time
from collections.abc import Mapping, Sequence

import numpy as np

from plm_jax import config, objectives
from plm_jax.common import metrics, storage
from plm_jax.common.errors import UserError
from plm_jax.data.layouts.labeled import LabeledRows
from plm_jax.data.reader import Reader
from plm_jax.evaluation import labeled, perplexity
from plm_jax.experiments import seeds
from plm_jax.models.heads import TASK
from plm_jax.runs import checkpoint_folders, run_directory

_OBJECTIVES = ("next_token", "masked_lm")


def lines(workdirs: Sequence[str], seconds: float) -> list[str]:
    """Returns the lines of a summary of runs that differ only in their seeds.

    Args:
      workdirs: directories of the runs, which are finished.
      seconds: duration of this start.
    """
    duration = time.strftime("%H:%M:%S", time.gmtime(seconds))
    heading = f"{workdirs[0]} is trained" if len(workdirs) == 1 else f"{len(workdirs)} runs are trained"
    run = _saved_run(workdirs[0])
    best = [os.path.join(workdir, "checkpoints", checkpoint_folders.BEST) for workdir in workdirs]
    best = [checkpoint for checkpoint in best if storage.exists(checkpoint)]
    return [
        f"{heading} ({duration})",
        *(f"  {line}" for line in seeds.lines(workdirs, _baselines(run))),
        *map(_best_line, best),
        "next:",
        *(f"  {command}" for command in _commands(run, (best or workdirs)[0])),
    ]


def _best_line(checkpoint: str) -> str:
    """Returns the line of the best weights of a run."""
    meta = checkpoint_folders.read_meta(checkpoint_folders.absolute(checkpoint))
    metric, value = meta["selected"]["by"], meta["selected"]["value"]
    return f"  best weights: {metric} {metrics.shown(metric, value)} at step {meta['step']:,}, in {checkpoint}"


def _saved_run(workdir: str) -> config.Run:
    described = run_directory.read(workdir)
    assert described is not None, "a finished run has a config"
    return config.from_saved(described["config"], described.get("modules"))


def _commands(run: config.Run, checkpoint: str) -> list[str]:
    """Returns commands that use the trained model."""
    commands = [f"plm_jax evaluate --checkpoint={checkpoint}"]
    if isinstance(run.objective, objectives.LabeledObjective):
        commands.append(f"plm_jax predict --checkpoint={checkpoint} --input=FILE --output=predictions.jsonl")
    elif "vocabulary" in run.model.named_heads:
        prompt = "The [MASK] of" if run.objective.loss == "masked_lm" else "The"
        commands.append(f'plm_jax generate --checkpoint={checkpoint} --prompt="{prompt}"')
    return [*commands, f"plm_jax convert --source={checkpoint} --target=DIR --format=huggingface"]


def _baselines(run: config.Run) -> dict[str, float]:
    """Returns the metrics of predictors that ignore the input, by names such as `validation/SOURCE/accuracy`.

    They are those of the best constant answer for labeled examples, and the loss of a unigram model for text.
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
    counts = source.splits["validation"].unigram
    log_probabilities = perplexity.add_one_unigram(source.splits["train"])
    return {"nll": -float(counts @ log_probabilities.ravel()[: len(counts)] / max(1, np.sum(counts)))}
