"""Whole training runs from Python: `plm_jax.pretrain` and `plm_jax.finetune`, which the commands also call."""

import contextlib
import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from plm_jax import config
from plm_jax.common import command_line, progress, users
from plm_jax.config import checks
from plm_jax.runs import loop, preparation, run_directory, transfer
from plm_jax.runs.telemetry import read_lines

_CONFIG_FILE = '''"""Config of a run that was started from Python."""

import json

from plm_jax import config

TREE = {tree!r}


def get_config():
    return config.to_config_dict(config.from_dict(json.loads(TREE)))
'''


@dataclass(frozen=True)
class TrainResult:
    """Result of a training run.

    Attributes:
      workdir: run directory, from which `plm_jax.load` opens the trained model.
      step: last logged step; 0 if there is none.
      metrics: last value of every metric that is a number, with the keys of metrics.jsonl, such as `validation/loss`.
      trained: whether this call trained; False if the run was finished before.
    """

    workdir: str
    step: int
    metrics: Mapping[str, float]
    trained: bool = True


def pretrain(
    run: config.Run,
    workdir: str,
    *,
    source: str | None = None,
    allow_changes: bool = False,
    refuse_damaged: bool = False,
    config_flags: Sequence[str] | None = None,
    began: float | None = None,
) -> TrainResult:
    """Trains a run in a run directory.

    Missing and outdated caches are prepared first. Repeating the call resumes the run.

    Args:
      run: config of the run. Relative paths are relative to the working directory.
      workdir: run directory, local or in a bucket.
      source: trained model that provides the weights, the model, the vocabulary and the special ids: a run, a
        checkpoint, a converted or a Hugging Face directory, or `hf:ORG/NAME[@REVISION]`. None: the config provides
        them.
      allow_changes: whether to resume despite changes that are otherwise rejected, such as changes of the data, the
        seed or the optimizer. If False, an outdated cache of a run that has a checkpoint is an error.
      refuse_damaged: whether damage of the newest checkpoint or of the best weights is an error; if not, the run
        resumes from the newest intact checkpoint.
      config_flags: flags with which `plm_jax prepare` reads the config of `run`; None: `run` is written to a temporary
        config file, and flags for this file are used.
      began: time when this command started, in seconds since 1970; None: now.

    Raises:
      UserError: the config, a cache or a checkpoint is invalid, or they do not fit each other. Also raised if training
        cannot continue, for instance because too many steps in a row were not finite.
      Interrupted: a signal or a preemption notice ended the run, and its last step is saved.
      SystemExit: the preparation of the caches failed.
    """
    run, config_flags = _resolved(run, source, config_flags, [workdir])
    (result,) = _train(run, {workdir: run}, allow_changes, refuse_damaged, config_flags, began)
    return result


def finetune(
    run: config.Run,
    source: str,
    workdir: str,
    *,
    seeds: Sequence[int] = (),
    allow_changes: bool = False,
    refuse_damaged: bool = False,
    config_flags: Sequence[str] | None = None,
    began: float | None = None,
) -> list[TrainResult]:
    """Trains a pretrained model for the task of a config, once for each seed.

    Missing and outdated caches are prepared first. Repeating the call resumes the runs.

    Args:
      run: config of the run; its model, vocabulary and special ids are replaced by those of `source`.
      source: trained model: a run, a checkpoint, a converted or a Hugging Face directory, or `hf:ORG/NAME[@REVISION]`.
      workdir: run directory; with `seeds`, the folder of the run directories `seed-SEED`.
      seeds: seeds of the runs, one run per seed; empty: a single run with the seed of the config.
      allow_changes, refuse_damaged, config_flags, began: same as in `pretrain`.

    Returns:
      The result of each run, in the order of the seeds.

    Raises:
      UserError, Interrupted, SystemExit: for the same reasons as in `pretrain`.
    """
    workdirs = [os.path.join(workdir, f"seed-{seed}") for seed in seeds] or [workdir]
    run, config_flags = _resolved(run, source, config_flags, workdirs)
    runs = dict(zip(workdirs, [_with_seed(run, seed) for seed in seeds] or [run], strict=True))
    return _train(run, runs, allow_changes, refuse_damaged, config_flags, began)


def _resolved(
    run: config.Run, source: str | None, config_flags: Sequence[str] | None, workdirs: Sequence[str]
) -> tuple[config.Run, Sequence[str] | None]:
    """Returns a pair: the run with the model of `source`, if any, and the flags for `prepare`, or None."""
    if config_flags is None:
        run = config.resolve(config.to_dict(run), os.path.abspath("run.py"), replaces_model=source is not None)
    if source is None:
        return transfer.with_pinned_weights(run, workdirs), config_flags
    source = transfer.pin(source, workdirs)
    with progress.doing(f"reading {source}"):
        run = transfer.with_pinned_weights(transfer.resolve(run, source), workdirs)
    return run, None if config_flags is None else [*config_flags, f"--from={source}"]


def _with_seed(run: config.Run, seed: int) -> config.Run:
    return dataclasses.replace(run, train=dataclasses.replace(run.train, seed=seed))


def _train(
    run: config.Run,
    runs: Mapping[str, config.Run],
    allow_changes: bool,
    refuse_damaged: bool,
    config_flags: Sequence[str] | None,
    began: float | None,
) -> list[TrainResult]:
    """Trains runs that differ only in their seeds; `runs` maps each run directory to its run."""
    checks.refuse_unused(run)
    resumed = [workdir for workdir in runs if run_directory.has_checkpoint(workdir)]
    with _flags_of(run, config_flags) as flags:
        preparation.prepare_if_needed(run, flags, trained="" if allow_changes else ", ".join(resumed))
    with progress.doing("loading JAX"):
        command_line.start_jax()
    results = []
    for workdir, each in runs.items():
        trained = loop.pretrain(each, workdir, allow_changes, refuse_damaged, began)
        results.append(_result(workdir, trained))
        began = time.time()
    return results


@contextlib.contextmanager
def _flags_of(run: config.Run, config_flags: Sequence[str] | None) -> Generator[Sequence[str]]:
    """Yields `config_flags` or, if they are None, flags that name a temporary config file with the run."""
    if config_flags is not None:
        yield config_flags
        return
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(_CONFIG_FILE.format(tree=json.dumps(config.to_dict(run))))
        yield [f"--config={path}", *users.flags(run)]


def _result(workdir: str, trained: bool) -> TrainResult:
    metrics: dict[str, float] = {}
    step = 0
    for row in read_lines(os.path.join(workdir, "metrics.jsonl")):
        step = row["step"]
        metrics |= {name: value for name, value in row.items() if name != "step" and isinstance(value, int | float)}
    return TrainResult(workdir, step, metrics, trained)
