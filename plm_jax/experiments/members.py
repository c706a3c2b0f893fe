"""Runs of a sweep: their definition, their progress, and how they are trained and evaluated.

Each run executes `pretrain` and then `evaluate` in separate processes. `attempts.json` in its run directory stores when
the run began and when its parent began (seconds since 1970), the total duration of the run's attempts (seconds), and
the flags of its completed further evaluations.

This module is also a config file, which returns the config of a run directory:
`--config=plm_jax/experiments/members.py:WORKDIR`.
"""

import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plm_jax import config
from plm_jax.common import leases, storage, users
from plm_jax.common.errors import UserError
from plm_jax.runs import run_directory, transfer, workdir_lock
from plm_jax.runs.telemetry import read_lines

# Runs a command with flags; raises `UserError` if it fails.
Call = Callable[..., None]
_ATTEMPTS = "attempts.json"
# Seconds between two checks of another process.
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Member:
    """Run of a sweep.

    Attributes:
      name: name in `overrides`; runs with the same name differ only in their seed.
      workdir: run directory.
      changes: changes to the base config, as JSON.
      run: resolved config.
      parent: run directory of another run of the sweep whose weights this run reads, by `train.init_from` or
        `train.references`; None if this run reads no other run.
      evaluations: flags of each further `evaluate`.
    """

    name: str
    workdir: str
    changes: dict[str, Any]
    run: config.Run
    parent: str | None = None
    evaluations: tuple[tuple[str, ...], ...] = ()

    @property
    def folder(self) -> str:
        """Name of the run directory."""
        return os.path.basename(self.workdir)

    @property
    def waiting_message(self) -> str:
        """Message to print while the parent is not finished."""
        return f"waits for {os.path.basename(self.parent or '')}"


def get_config(workdir: str):
    """Returns the config of a run directory, like the `get_config` of a config file."""
    return config.to_config_dict(_saved_run(workdir))


def is_finished(member: Member) -> bool:
    """Whether a run with exactly this config has saved its last checkpoint and completed all evaluations."""
    last = os.path.join(member.workdir, "checkpoints", str(_steps(member)))
    if not _metrics(member) or not storage.exists(last) or _mismatch(member):
        return False
    done = _record(member.workdir).get("evaluations", [])
    return all([*flags] in done for flags in member.evaluations)


def train(member: Member, call: Call) -> None:
    """Pretrains and evaluates a run.

    Raises:
      UserError: the run directory contains another run, or a command failed.
    """
    _wait_for_killed_run(member)
    _check_config(member)
    if run_directory.has_checkpoint(member.workdir):
        record = _record(member.workdir)
    else:  # An earlier attempt saved nothing, and its config may have been fixed since.
        record = {"began": time.time(), "parent_began": _parent_began(member)}
        _write_config(member, member.workdir)
        write_json(member.workdir, _ATTEMPTS, record)
    began = time.monotonic()
    try:
        _pretrain(member, member.workdir, call)
        users.trust(
            config.modules(member.run)
        )  # Otherwise `evaluate` would treat them as the code of an untrusted checkpoint.
        for flags in ((), *member.evaluations):
            call("evaluate", *flags, f"--checkpoint={member.workdir}", *users.flags(member.run))
        record["evaluations"] = member.evaluations
    finally:
        seconds = record.get("seconds", 0.0) + time.monotonic() - began
        write_json(member.workdir, _ATTEMPTS, record | {"seconds": seconds})


def train_as_follower(member: Member, call: Call) -> None:
    """Pretrains in a process of a job that is not the first process, and waits until the run is finished.

    The first process runs `train`. This process must not end earlier, because launchers treat the end of one process
    as the end of the job.

    Raises:
      UserError: the errors of `train`.
    """
    _check_config(member)
    with tempfile.TemporaryDirectory() as folder:
        _write_config(member, folder)
        _pretrain(member, folder, call)
    while not is_finished(member):
        time.sleep(_POLL_SECONDS)


def result(member: Member, error: str | None, is_pending: bool) -> dict[str, Any]:
    """Returns the result of a run as JSON.

    The value `minutes` covers all attempts of the run, including start-up and evaluation. If there is an error or the
    run is pending, `minutes` is 0 and `metrics` is empty.

    Args:
      error: error message of the run; None without an error.
      is_pending: whether the run is waiting or running.
    """
    has_result = error is None and not is_pending
    return {
        "name": member.name,
        "seed": member.run.train.seed,
        "workdir": member.workdir,
        "overrides": member.changes,
        "error": error,
        "minutes": _record(member.workdir).get("seconds", 0.0) / 60 if has_result else 0.0,
        "metrics": _metrics(member) if has_result else {},
    }


def write_json(workdir: str, name: str, tree: Any) -> None:
    """Writes a tree to a JSON file in a folder."""
    storage.write(os.path.join(workdir, name), json.dumps(tree, indent=2).encode("utf-8"))


def _saved_run(workdir: str) -> config.Run:
    """Returns the config of a run directory.

    Raises:
      UserError: the config is missing or damaged.
    """
    described = run_directory.read(workdir)
    if described is None:
        raise UserError(f"{workdir} is not a run directory: it has no config.json")
    return config.from_saved(described["config"], described.get("modules"))


def _metrics(member: Member) -> dict[str, float]:
    """Returns the metrics of the last checkpoint, on the validation split of each source and in further evaluations.

    Returns an empty dict if a source is not evaluated yet.
    """
    logged = read_lines(os.path.join(member.workdir, "evaluation.jsonl"))
    steps = _steps(member)
    rows = [row for row in logged if row["step"] == steps]
    metrics: dict[str, float] = {}
    for source in config.read_sources(config.expand_mixtures(member.run)):
        source_metrics = {name: value for row in rows for name, value in row.items() if name.startswith(f"{source}/")}
        if not source_metrics:
            return {}
        metrics |= source_metrics
    if member.evaluations:
        metrics |= {name: value for row in rows for name, value in row.items() if "/" in name}
    return metrics


def _steps(member: Member) -> int:
    """Returns the number of steps of a run.

    If the config sets `train.epochs`, the number comes from the saved run. It is 0 before the first checkpoint.
    """
    if member.run.train.epochs is None:
        return member.run.train.steps
    return _saved_run(member.workdir).train.steps if run_directory.has_checkpoint(member.workdir) else 0


def _resolved(member: Member) -> config.Run:
    """Returns the config that the run is trained with.

    Mixtures are replaced by their tasks. If the config has no model, the model of the checkpoint in `train.init_from`
    is used.

    Raises:
      UserError: the checkpoint is missing or does not fit the config.
    """
    run = transfer.with_pinned_weights(config.expand_mixtures(member.run), [member.workdir])
    return transfer.resolve(run, run.train.init_from) if run.model.is_placeholder else run


def _record(workdir: str) -> dict[str, Any]:
    """Returns `began`, `parent_began`, `seconds` and `evaluations` of a run; empty if no sweep has started it.

    Raises:
      UserError: the record is damaged.
    """
    path = os.path.join(workdir, _ATTEMPTS)
    try:
        return json.loads(storage.read(path))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}): delete {workdir}") from error


def _parent_began(member: Member) -> float | None:
    return _record(member.parent).get("began") if member.parent else None


def _check_config(member: Member) -> None:
    if mismatch := _mismatch(member):
        raise UserError(mismatch)


def _mismatch(member: Member) -> str | None:
    """Returns a text that says how the run in a run directory differs from the expected run.

    Returns None if the runs agree, or if the run directory has no checkpoint.
    """
    if not run_directory.has_checkpoint(member.workdir):
        return None
    try:
        saved_run, expected_run = _saved_run(member.workdir), _resolved(member)
    except UserError as error:
        return str(error)
    if expected_run.train.epochs is not None:
        expected_run = dataclasses.replace(
            expected_run, train=dataclasses.replace(expected_run.train, steps=saved_run.train.steps)
        )
    changed = [
        f"{field} was {config.brief(before)} and is {config.brief(after)}"
        for field, before, after in config.differences(config.to_dict(saved_run), config.to_dict(expected_run))
    ]
    if not changed and _record(member.workdir).get("parent_began") != _parent_began(member):
        parent = os.path.basename(member.parent or "")
        return (
            f"{member.workdir} started from weights of {parent}, which was trained again since: delete {member.workdir}"
        )
    if not changed:
        return None
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return (
        f"{member.workdir} contains a run with another config ({', '.join(changed[:3])}{more}): "
        "delete it, or rename the run"
    )


def _wait_for_killed_run(member: Member) -> None:
    """Waits until a run that a killed sweep has left behind has ended, but at most `grace_seconds`."""
    lock, deadline = workdir_lock.folder(member.workdir), time.monotonic() + member.run.checkpoint.grace_seconds
    while (holder := leases.taken(lock)) and leases.is_here(holder) and leases.is_alive(lock):
        if time.monotonic() > deadline:  # Another process trains there; `pretrain` will report it.
            return
        time.sleep(_POLL_SECONDS)


def _write_config(member: Member, folder: str) -> None:
    """Writes the config of a run to a folder, from which `pretrain` reads it."""
    run = _resolved(member)
    write_json(folder, "config.json", {"config": config.to_dict(run), "modules": users.used(run)})


def _pretrain(member: Member, folder: str, call: Call) -> None:
    """Trains the run whose config `_write_config` has written to a folder."""
    config_file = f"{os.path.abspath(__file__)}:{folder}"
    call("pretrain", f"--config={config_file}", f"--workdir={member.workdir}", *users.flags(member.run))
