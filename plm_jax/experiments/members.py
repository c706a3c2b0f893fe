"""The runs of a sweep: what each is, how far it has come, and how it is trained and evaluated.

Each is `pretrain` and then `evaluate`, processes of their own, in the folder of its name, where `attempts.json` notes
when it began (seconds since 1970), when the run did whose weights it took, how long its attempts took, in seconds, and
how else it has been evaluated.
As a config file, this module is the config that a run directory holds:
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

# Runs a verb with these flags; raises `UserError` where it fails.
Call = Callable[..., None]
_ATTEMPTS = "attempts.json"
# Seconds between two looks at what another process does.
_LOOK = 0.5


@dataclass(frozen=True)
class Member:
    """A run of a sweep.

    Attributes:
      name: what `overrides` calls it; runs of one name differ in their seed.
      workdir: its run directory.
      changes: what it changes, as JSON.
      parent: the directory of the sweep's run whose weights it begins with; None: there is none.
      evaluations: the flags of each further `evaluate`.
    """

    name: str
    workdir: str
    changes: dict[str, Any]
    run: config.Run
    parent: str | None = None
    evaluations: tuple[tuple[str, ...], ...] = ()

    @property
    def folder(self) -> str:
        """The name of its run directory."""
        return os.path.basename(self.workdir)

    @property
    def waits(self) -> str:
        """What is said of it while its parent is not finished."""
        return f"waits for {os.path.basename(self.parent or '')}"


def get_config(workdir: str):
    """The config of a run directory, as a config page gives it."""
    return config.to_config_dict(_held(workdir))


def is_finished(member: Member) -> bool:
    """Whether a run of this very config has its last checkpoint, evaluated in all ways that are asked for."""
    last = os.path.join(member.workdir, "checkpoints", str(_steps(member)))
    if not _metrics(member) or not storage.exists(last) or _misfit(member):
        return False
    done = _record(member.workdir).get("evaluations", [])
    return all([*flags] in done for flags in member.evaluations)


def train(member: Member, call: Call) -> None:
    """Pretrains and evaluates.

    Raises:
      UserError: another run is in its place; or a verb failed.
    """
    _let_end(member)
    _refuse_misfit(member)
    if run_directory.has_checkpoint(member.workdir):
        record = _record(member.workdir)
    else:  # What failed before had nothing to go on with; its config may have been mended.
        record = {"began": time.time(), "parent_began": _parent_began(member)}
        _hand_over(member, member.workdir)
        write_json(member.workdir, _ATTEMPTS, record)
    began = time.monotonic()
    try:
        _pretrain(member, member.workdir, call)
        users.trust(config.modules(member.run))  # `evaluate` would take them for any checkpoint's.
        for flags in ((), *member.evaluations):
            call("evaluate", *flags, f"--checkpoint={member.workdir}", *users.flags(member.run))
        record["evaluations"] = member.evaluations
    finally:
        seconds = record.get("seconds", 0.0) + time.monotonic() - began
        write_json(member.workdir, _ATTEMPTS, record | {"seconds": seconds})


def train_beside(member: Member, call: Call) -> None:
    """Pretrains as another process of the job whose first one does `train`, and waits until that has evaluated.

    A launcher takes the end of one process for the end of all.

    Raises:
      UserError: as `train`.
    """
    _refuse_misfit(member)
    with tempfile.TemporaryDirectory() as folder:
        _hand_over(member, folder)
        _pretrain(member, folder, call)
    while not is_finished(member):
        time.sleep(_LOOK)


def result(member: Member, error: str | None, is_pending: bool) -> dict[str, Any]:
    """What came of a run, as JSON; `minutes` are those of all its attempts, start and evaluation included."""
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
    """Writes a tree to a file of a folder."""
    storage.write(os.path.join(workdir, name), json.dumps(tree, indent=2).encode("utf-8"))


def _held(workdir: str) -> config.Run:
    """The config that a run directory holds.

    Raises:
      UserError: there is none, or it is damaged.
    """
    described = run_directory.read(workdir)
    if described is None:
        raise UserError(f"{workdir} is no run directory: it has no config.json")
    return config.from_saved(described["config"], described.get("modules"))


def _metrics(member: Member) -> dict[str, float]:
    """What the last checkpoint reached on the validation split of each source, and wherever else a run is evaluated.

    Nothing if one of the sources is not evaluated.
    """
    log = read_lines(os.path.join(member.workdir, "evaluation.jsonl"))
    steps = _steps(member)
    rows = [row for row in log if row["step"] == steps]
    found: dict[str, float] = {}
    for source in config.read_sources(config.expand_mixtures(member.run)):
        own = {name: value for row in rows for name, value in row.items() if name.startswith(f"{source}/")}
        if not own:
            return {}
        found |= own
    if member.evaluations:
        found |= {name: value for row in rows for name, value in row.items() if "/" in name}
    return found


def _steps(member: Member) -> int:
    """Those of a run; of one that goes by epochs those that it found them to be, 0 before that."""
    if member.run.train.epochs is None:
        return member.run.train.steps
    return _held(member.workdir).train.steps if run_directory.has_checkpoint(member.workdir) else 0


def _resolved(member: Member) -> config.Run:
    """The run as it is trained: with the tasks of mixtures, and the model of the checkpoint that it begins with.

    Raises:
      UserError: that checkpoint is not there, or does not fit the config.
    """
    run = config.expand_mixtures(member.run)
    return transfer.resolve(run, run.train.init_from) if run.model.is_placeholder else run


def _record(workdir: str) -> dict[str, Any]:
    """`began`, `parent_began`, `seconds` and `evaluations` of a run; nothing of one that no sweep has begun.

    Raises:
      UserError: it is damaged.
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


def _refuse_misfit(member: Member) -> None:
    if misfit := _misfit(member):
        raise UserError(misfit)


def _misfit(member: Member) -> str | None:
    """What is wrong where a run directory holds another run than the one wanted."""
    if not run_directory.has_checkpoint(member.workdir):
        return None
    try:
        held, wanted = _held(member.workdir), _resolved(member)
    except UserError as error:
        return str(error)
    if wanted.train.epochs is not None:
        wanted = dataclasses.replace(wanted, train=dataclasses.replace(wanted.train, steps=held.train.steps))
    changed = [
        f"{field} was {config.brief(was)} and is {config.brief(now)}"
        for field, was, now in config.differences(config.to_dict(held), config.to_dict(wanted))
    ]
    if not changed and _record(member.workdir).get("parent_began") != _parent_began(member):
        parent = os.path.basename(member.run.train.init_from)
        return f"{member.workdir} began with weights of {parent}, which was trained anew since: delete it"
    if not changed:
        return None
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return (
        f"{member.workdir} holds a run of another config ({', '.join(changed[:3])}{more}): "
        "delete it, or give the run another name"
    )


def _let_end(member: Member) -> None:
    """Waits for the run of a sweep that was killed: it learns of that, saves its step and ends."""
    lock, deadline = workdir_lock.folder(member.workdir), time.monotonic() + member.run.checkpoint.grace_seconds
    while (holder := leases.taken(lock)) and leases.is_here(holder) and leases.is_alive(lock):
        if time.monotonic() > deadline:  # It is somebody else's, and `pretrain` says whose.
            return
        time.sleep(_LOOK)


def _hand_over(member: Member, folder: str) -> None:
    """Leaves a run's config in a folder, from which `pretrain` takes it."""
    run = _resolved(member)
    write_json(folder, "config.json", {"config": config.to_dict(run), "modules": users.used(run)})


def _pretrain(member: Member, folder: str, call: Call) -> None:
    """Trains the config that is in a folder."""
    held = f"{os.path.abspath(__file__)}:{folder}"
    call("pretrain", f"--config={held}", f"--workdir={member.workdir}", *users.flags(member.run))
