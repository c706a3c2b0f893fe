"""Several runs of one base config, one after another on this machine, and one table of what they reached.

A sweep is a Python file with

    base         a config with or without a size, "../demo.py:bert", its path from the sweep's folder, or "demo:bert"
    overrides()  yields pairs: the name of a run, and what it changes in the base, {"train.steps": 100, …}

A value may be a whole section (`{"objective": objectives.MaskedLM(whole_words=1)}`), and `vars(run)` are all sections
of another run. Changes apply in their order; relative paths count from the base config's folder. `train.init_from` may
name an earlier run of the sweep; a config without a model of its own takes it from there (`transfer.resolve`). The file
may have, too,

    rivals()     a list of `comparison.Rivals`, beside which runs are told in a second table
    published()  a list of `comparison.Published`, what a paper reports of runs, and with it
    compared     by the paper's name of a metric ours, TASK/METRIC, that is set beside it, or several of which the mean
                 is: a third table, in which what runs NAME-… have reached counts for NAME

A page for several sizes, `--sweep=FILE.py:SIZE`, takes the size in each function, and its base is one, too:
`base(size)`, `overrides(size)`, `rivals(size)`, `compared(size)`, with the size for which there is no colon as their
default. `published()` is of all sizes: runs that only another one has are left out.

Each run is `pretrain` and then `evaluate`, processes of their own, in the folder of its name, where `attempts.json`
notes when it began (seconds since 1970), when the run did whose weights it took, and how long all its attempts took, in
seconds.
As a config file, this module is the config that a run directory holds: `--config=plm_jax/experiments/sweep.py:WORKDIR`.
"""

import contextlib
import dataclasses
import functools
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from plm_jax import config
from plm_jax.common import storage, users
from plm_jax.common.command_line import SAVED
from plm_jax.common.errors import Interrupted, UserError, nearest, users_code
from plm_jax.config import overrides, pages
from plm_jax.data.sources import task_mixtures
from plm_jax.experiments import comparison
from plm_jax.training import run_directory, transfer
from plm_jax.training.telemetry import read_lines

_FILES = "give a Python file with `base` and `overrides`"
_RESULTS, _TABLE, _ATTEMPTS = "sweep.json", "table.md", "attempts.json"
# Functions of a sweep's file, and of what they give a list.
_LISTS = {"rivals": comparison.Rivals, "published": comparison.Published}
# Of what a failed process said last so many bytes are kept.
_TAIL = 4096


@dataclass(frozen=True)
class Member:
    """A run of a sweep.

    Attributes:
      name: what `overrides` calls it; runs of one name differ in their seed.
      workdir: its run directory.
      changes: what it changes, as JSON.
      parent: the directory of the sweep's run whose weights it begins with; None: there is none.
    """

    name: str
    workdir: str
    changes: dict[str, Any]
    run: config.Run
    parent: str | None = None


def get_config(workdir: str):
    """The config of a run directory, as a config page gives it."""
    return config.to_config_dict(_held(workdir))


def run(path: str, workdir: str, seeds: Sequence[int] = ()) -> None:
    """Trains and evaluates the runs of a sweep that are not finished, and prints the table of all.

    `sweep.json`, with the base, every figure, and what they are compared with, and `table.md` are in `workdir`, brought
    up to date after each run.

    Args:
      seeds: the seeds of each run that does not set `train.seed` itself; by default its own alone. Those of other
        seeds are in NAME-seedSEED.

    Raises:
      UserError: the sweep's file cannot be used, or `workdir` not be written; a run failed, or waits for its parent,
        which did; one of another config, or that began with former weights of its parent, is in its place. The other
        runs are done nevertheless.
    """
    found = members(path, workdir, seeds)
    others = _others(path, {member.name for member in found})
    tell = functools.partial(_tell, workdir, others, found)
    errors: dict[str, str] = {}
    missing = []
    for member in found:
        with _noted(errors, member):
            if not _is_finished(member):
                missing.append(member)
    pending = {member.workdir for member in missing}
    try:
        tell(errors, pending)
    except OSError as error:
        raise UserError(f"cannot write {workdir} ({error.strerror}): give another --workdir") from error
    _say(f"{len(found)} runs, {len(found) - len(errors) - len(missing)} of them finished before")
    began = time.monotonic()
    for number, member in enumerate(missing, 1):
        folder = os.path.basename(member.workdir)
        _say(f"== {number}/{len(missing)} {folder}: {member.workdir}")
        pending.remove(member.workdir)
        with _noted(errors, member):
            # Parents come earlier: by now they are finished or have an error.
            if member.parent in errors:
                raise UserError(_waiting(member))
            _train(member)
            tell(errors, pending)
        left = (time.monotonic() - began) / number * (len(missing) - number)
        ending = f"failed: {errors[member.workdir]}" if member.workdir in errors else "finished"
        _say(f"== {number}/{len(missing)} {folder} {ending}; about {tqdm.format_interval(left)} left")
    for member in found:  # What finished before may have weights of a run that is refused now.
        if member.parent in errors:
            errors.setdefault(member.workdir, _waiting(member))
    print(tell(errors), end="", flush=True)
    if errors:
        said = "; ".join(f"{os.path.basename(folder)}: {error}" for folder, error in errors.items())
        raise UserError(f"{len(errors)} of {len(found)} runs failed ({said}): mend them and run the same command again")


@contextlib.contextmanager
def _noted(errors: dict[str, str], member: Member) -> Iterator[None]:
    """Puts a mistake into `errors`, by the run's directory."""
    try:
        yield
    except UserError as error:
        errors[member.workdir] = str(error)
    except OSError as error:
        errors[member.workdir] = f"cannot write {error.filename} ({error.strerror})"


def _waiting(member: Member) -> str:
    return f"waits for {os.path.basename(member.parent)}"


def _others(path: str, runs: Collection[str]) -> dict[str, Any]:
    """What a sweep's file compares its runs with; `runs` are their names.

    Returns:
      `base`, its config; `rivals`, `published`, `compared`: as the file has them, nothing by default.

    Raises:
      UserError: one names another run, or is none.
    """
    sweep = pages.load(path, "--sweep=")
    base = _base(sweep, path)
    with users_code(base.module.__file__):
        tree = config.to_dict(config.resolve(config.to_dict(config.from_dict(base.config())), base.file))
    listed = {name: _given(sweep, name) if hasattr(sweep.module, name) else [] for name in _LISTS}
    compared = getattr(sweep.module, "compared", {})
    compared = dict(_given(sweep, "compared") if callable(compared) else compared)
    for name, kind in _LISTS.items():
        if not all(isinstance(row, kind) for row in listed[name]):
            raise UserError(f"`{name}` of {path} must give a list of comparison.{kind.__name__}")
    if not all(isinstance(value, float | int) for row in listed["published"] for value in row.figures.values()):
        raise UserError(f"`published` of {path} has a figure that is no number: leave out what is not at hand")
    if sweep.size is not None:
        listed["published"] = [row for row in listed["published"] if _has(runs, row.run)]
    named = {name: [row.run for row in rows] for name, rows in listed.items()}
    others = [name for rival in listed["rivals"] for name in rival.others.values()]
    named["rivals"] += [name for name in others if isinstance(name, str) and "/" not in name]
    for function, names in named.items():
        for name in names:
            if name not in runs and not (function == "published" and _has(runs, name)):
                raise UserError(f"`{function}` of {path} names a run '{name}': {nearest(name, runs)}")
    if compared and not listed["published"]:
        raise UserError(f"{path} has `compared` and no `published`: say there what the paper reports")
    return {"base": tree, **listed, "compared": compared}


def _has(runs: Collection[str], name: str) -> bool:
    """Whether a run counts for a name."""
    return any(comparison.belongs(run, name) for run in runs)


def _tell(
    workdir: str,
    others: dict[str, Any],
    found: Sequence[Member],
    errors: dict[str, str],
    pending: Collection[str] = (),
) -> str:
    """Writes what the runs have reached so far, and gives the table; `pending` are directories of runs to come."""
    results = [_result(member, errors.get(member.workdir), member.workdir in pending) for member in found]
    table = comparison.table(results)
    if others["rivals"]:
        table += "\n" + comparison.beside(results, others["rivals"])
    if others["compared"]:
        table += "\n" + comparison.papers(results, others["published"], others["compared"])
    rows = {name: [row._asdict() for row in others[name]] for name in ("rivals", "published")}
    _write_json(workdir, _RESULTS, {"runs": results, **others, **rows})
    storage.write(os.path.join(workdir, _TABLE), table.encode("utf-8"))
    return table


def members(path: str, workdir: str, seeds: Sequence[int] = ()) -> list[Member]:
    """The runs that a sweep's file describes, of the first seed, then of the next; who sets a seed has that alone.

    Raises:
      UserError: there is no such file, it is none of a sweep, or a run's changes make no config.
    """
    described, base = _described(path)

    def directory(name: str, seed: int | None) -> str:
        own = described[name][1].train.seed if name in described else seed
        return os.path.join(storage.absolute(workdir), name if seed in (None, own) else f"{name}-seed{seed}")

    found: dict[str, Member] = {}
    for given in seeds or (None,):
        for name, (changes, as_given) in described.items():
            seed = given
            if "train.seed" in changes:
                seed = as_given.train.seed
                if given not in (None, seed if seed in seeds else seeds[0]):
                    continue
            at, init_from = directory(name, seed), as_given.train.init_from
            if at in found:
                raise UserError(f"{path} has two runs in {at}: give each seed once, and no name that ends like one")
            resolved = config.resolve(config.to_dict(as_given), base)
            train = resolved.train if seed is None else dataclasses.replace(resolved.train, seed=seed)
            parent = next((at for at in (directory(init_from, s) for s in (seed, given)) if at in found), None)
            if parent:
                train = dataclasses.replace(train, init_from=parent)
            found[at] = Member(name, at, changes, dataclasses.replace(resolved, train=train), parent)
    return list(found.values())


def _described(path: str) -> tuple[dict[str, tuple[dict[str, Any], config.Run]], str]:
    """By name each run's changes, as JSON, and its config, paths as given; and the base's file."""
    sweep = pages.load(path, "--sweep=")
    for name in ("base", "overrides"):
        if not hasattr(sweep.module, name):
            raise UserError(f"--sweep={path} has no `{name}`: {_FILES}")
    base = _base(sweep, path)
    with users_code(base.module.__file__):
        tree = config.to_dict(config.from_dict(base.config()))
    members = _given(sweep, "overrides")
    described: dict[str, tuple[dict[str, Any], config.Run]] = {}
    for member in members:
        match member:
            case str(name), dict(changes):
                pass
            case _:
                raise UserError(f"`overrides` of {path} yields {member!r}: give a name and a dictionary of changes")
        if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", name) or name in (_RESULTS, _TABLE):
            raise UserError(f"{path} has a run '{name}': give another name, of letters, digits, _ - + and .")
        if name in described:
            raise UserError(f"{path} has two runs '{name}': give each a name of its own")
        try:
            described[name] = (
                config.to_dict(changes),
                config.from_dict(overrides.apply(tree, list(changes.items()), config.Run)),
            )
        except UserError as error:
            raise UserError(f"run '{name}' of {path}: {error}") from error
    if not described:
        raise UserError(f"{path} has no run: let `overrides` yield names and changes")
    return described, base.file


def _base(sweep: pages.Page, path: str) -> pages.Page:
    """The base of a sweep's page."""
    base = _given(sweep, "base") if callable(sweep.module.base) else sweep.module.base
    if not isinstance(base, str):
        raise UserError(f"{path} has a `base` that is no path: {_FILES}")
    return pages.load(base, f"the base of {path} is ", beside=sweep)


def _given(sweep: pages.Page, name: str) -> Any:
    """What a function of a sweep's page gives for the size that is asked of the page; `published` may be of all sizes.

    Raises:
      UserError: it is no function, takes no size, or fails.
    """
    function = getattr(sweep.module, name)
    if not callable(function):
        raise UserError(f"{sweep.given} has `{name}` that is no function: {_FILES}")
    signature = inspect.signature(function)
    is_of_all = name == "published" and not signature.parameters
    arguments = () if sweep.size is None or is_of_all else (sweep.size,)
    try:
        signature.bind(*arguments)
    except TypeError as error:
        given = f"size '{sweep.size}'" if arguments else "no size"
        raise UserError(f"{sweep.given} is given with {given}, which `{name}` does not take ({error})") from error
    with users_code(sweep.module.__file__):
        found = function(*arguments)
        return found if isinstance(found, str | dict) else list(found)


def _held(workdir: str) -> config.Run:
    """The config that a run directory holds.

    Raises:
      UserError: there is none, or it is damaged.
    """
    described = run_directory.read(workdir)
    if described is None:
        raise UserError(f"{workdir} is no run directory: it has no config.json")
    return config.from_saved(described["config"], described.get("modules"))


def _is_finished(member: Member) -> bool:
    """Whether a run of this very config has its last checkpoint, evaluated."""
    last = os.path.join(member.workdir, "checkpoints", str(_steps(member)))
    return bool(_metrics(member)) and storage.exists(last) and not _misfit(member)


def _metrics(member: Member) -> dict[str, float]:
    """What the last checkpoint reached on the validation split of each source; nothing if one is not evaluated."""
    log = read_lines(os.path.join(member.workdir, "evaluation.jsonl"))
    steps = _steps(member)
    rows = [row for row in log if row["step"] == steps]
    found: dict[str, float] = {}
    for source in config.read_sources(task_mixtures.expanded(member.run)):
        own = {name: value for row in rows for name, value in row.items() if name.startswith(f"{source}/")}
        if not own:
            return {}
        found |= own
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
    run = task_mixtures.expanded(member.run)
    return transfer.resolve(run, run.train.init_from) if run.model.stands_in else run


def _record(workdir: str) -> dict[str, float | None]:
    """`began`, `parent_began` and `seconds` of a run; nothing of one that no sweep has begun.

    Raises:
      UserError: it is damaged.
    """
    path = os.path.join(workdir, _ATTEMPTS)
    try:
        return json.loads(storage.read(path))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): delete {workdir}") from error


def _parent_began(member: Member) -> float | None:
    return _record(member.parent).get("began") if member.parent else None


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


def _train(member: Member) -> None:
    """Pretrains and evaluates.

    Raises:
      UserError: another run is in its place; or a verb failed.
    """
    misfit = _misfit(member)
    if misfit:
        raise UserError(misfit)
    if run_directory.has_checkpoint(member.workdir):
        record = _record(member.workdir)
    else:  # What failed before had nothing to go on with; its config may have been mended.
        record = {"began": time.time(), "parent_began": _parent_began(member)}
        run = _resolved(member)
        described = {"config": config.to_dict(run), "modules": users.used(run)}
        _write_json(member.workdir, "config.json", described)
        _write_json(member.workdir, _ATTEMPTS, record)
    began = time.monotonic()
    try:
        held, modules = f"{os.path.abspath(__file__)}:{member.workdir}", users.flags(member.run)
        _call("pretrain", f"--config={held}", f"--workdir={member.workdir}", *modules)
        users.trust(config.modules(member.run))  # `evaluate` would take them for any checkpoint's.
        _call("evaluate", f"--checkpoint={member.workdir}", *modules)
    finally:
        seconds = record.get("seconds", 0.0) + time.monotonic() - began
        _write_json(member.workdir, _ATTEMPTS, record | {"seconds": seconds})


def _call(verb: str, *flags: str) -> None:
    """Runs a verb, which is heard on; one that was stopped with its step saved runs again.

    Raises:
      UserError: it failed; its message is the last line that it said.
      Interrupted: this process was asked to stop, and the verb has ended.
    """
    command, tail = [sys.executable, "-m", f"plm_jax.{verb}", *flags], b""
    # In a session of its own: Ctrl-C would reach it twice, and the second signal ends a run before its step is saved.
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as process:
        try:
            tail = _heard(process)
        except BaseException as error:
            process.terminate()
            _heard(process)
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted("the sweep was stopped: the same command goes on") from error
            raise
    if process.returncode == SAVED:
        _call(verb, *flags)
    elif process.returncode < 0:
        raise UserError(f"{verb} died of {signal.Signals(-process.returncode).name}: run the same command again")
    elif process.returncode:
        lines = [line.strip() for line in re.split(r"[\r\n]+", tail.decode("utf-8", "replace")) if line.strip()]
        raise UserError(lines[-1].removeprefix("error: ") if lines else f"{verb} ended with {process.returncode}")


def _heard(process: subprocess.Popen) -> bytes:
    """Says what a process says until it ends; returns the last of it."""
    tail = b""
    while said := os.read(process.stderr.fileno(), 2**16):
        os.write(2, said)
        tail = (tail + said)[-_TAIL:]
    return tail


def _result(member: Member, error: str | None, is_pending: bool) -> dict[str, Any]:
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


def _write_json(workdir: str, name: str, tree: Any) -> None:
    storage.write(os.path.join(workdir, name), json.dumps(tree, indent=2).encode("utf-8"))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
