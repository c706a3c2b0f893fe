"""What the file of a sweep says: several runs of one base config, and what they are compared with.

A sweep is a Python file with

    base         a config with or without a size, "../demo.py:bert", its path from the sweep's folder, or "demo:bert"
    overrides()  yields pairs: the name of a run, and what it changes in the base, {"train.steps": 100, …}

A value may be a whole section (`{"objective": objectives.MaskedLM(whole_words=1)}`), and `vars(run)` are all sections
of another run. Changes apply in their order; relative paths count from the base config's folder. `train.init_from` may
name an earlier run of the sweep; a config without a model of its own takes it from there (`transfer.resolve`). The file
may have, too,

    evaluations()  pairs: the name of a run, and flags of a further `evaluate` of it, {"tasks": "sentiment",
                 "shots": (0, 5)}, whose figures are then among its own
    rivals()     a list of `comparison.Rivals` for a second table, of runs and their rivals
    compared     metrics for a third table, of each run against the first: TASK/METRIC, or several of them for their
                 mean, by name or by a paper's name. Only the first is tested. The default is a metric that all runs
                 have (`comparison.default_comparison`); {} compares nothing
    published()  a list of `comparison.Published`, a paper's figures, which the third table then includes. The first is
                 the reference, and results of runs NAME-… count for NAME. A metric other than the paper's is a
                 `comparison.StandIn`

A page for several sizes, `--sweep=FILE.py:SIZE`, takes the size in each function, and its base is one, too:
`base(size)`, `overrides(size)`, `evaluations(size)`, `rivals(size)`, `compared(size)`, with the size for which there is
no colon as their default. `published()` covers all sizes: runs that this size does not have are left out. Only runs of
the default size are compared with the paper's set-ups.
"""

import dataclasses
import inspect
import os
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from plm_jax import config
from plm_jax.common import ranges, storage
from plm_jax.common.errors import UserError, nearest, users_code
from plm_jax.config import files as pages
from plm_jax.config import overrides
from plm_jax.experiments import comparison, setups
from plm_jax.experiments.members import Member

# The files of a sweep's folder beside its runs: every figure, the table, and who trains there.
RESULTS, TABLE, LOCK = "sweep.json", "table.md", "lock"
_FILES = "give a Python file with `base` and `overrides`"
# The flags of `evaluate` that say in which way.
_WAYS = ("config", "tasks", "shots", "seeds", "normalise", "balanced", "limit", "stride", "harness", "include_path")
# Functions of a sweep's file, and of what they give a list.
_LISTS = {"rivals": comparison.Rivals, "published": comparison.Published}


def members(path: str, workdir: str, seeds: Sequence[int] = ()) -> list[Member]:
    """The runs that a sweep's file describes, of the first seed, then of the next; who sets a seed has that alone.

    Raises:
      UserError: there is no such file, it is none of a sweep, or a run's changes make no config.
    """
    described, base = _described(path)
    evaluations = _evaluations(path, described)

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
            run = dataclasses.replace(resolved, train=train)
            found[at] = Member(name, at, changes, run, parent, tuple(evaluations.get(name, ())))
    return list(found.values())


def _evaluations(path: str, runs: Collection[str]) -> dict[str, list[tuple[str, ...]]]:
    """By the names of runs the flags of each further `evaluate`."""
    sweep = pages.load(path, "--sweep=")
    found: dict[str, list[tuple[str, ...]]] = {}
    for pair in _given(sweep, "evaluations") if hasattr(sweep.module, "evaluations") else ():
        match pair:
            case str(name), dict(given):
                pass
            case _:
                raise UserError(f"`evaluations` of {path} yields {pair!r}: give a run's name and a dictionary of flags")
        if name not in runs:
            raise UserError(f"`evaluations` of {path} names a run '{name}': {nearest(name, runs)}")
        if unknown := [flag for flag in given if flag not in _WAYS]:
            raise UserError(f"`evaluations` of {path} has a flag '{unknown[0]}': {nearest(unknown[0], _WAYS)}")
        values = {flag: value if isinstance(value, list | tuple) else (value,) for flag, value in given.items()}
        found.setdefault(name, []).append(
            tuple(f"--{flag}={','.join(map(str, value))}" for flag, value in values.items())
        )
    return found


def _described(path: str) -> tuple[dict[str, tuple[dict[str, Any], config.Run]], str]:
    """By name each run's changes, as JSON, and its config, paths as given; and the base's file."""
    sweep = pages.load(path, "--sweep=")
    for name in ("base", "overrides"):
        if not hasattr(sweep.module, name):
            raise UserError(f"--sweep={path} has no `{name}`: {_FILES}")
    base = _base(sweep, path)
    with users_code(base.code):
        tree = config.to_dict(config.from_dict(base.config()))
    members = _given(sweep, "overrides")
    described: dict[str, tuple[dict[str, Any], config.Run]] = {}
    for member in members:
        match member:
            case str(name), dict(changes):
                pass
            case _:
                raise UserError(f"`overrides` of {path} yields {member!r}: give a name and a dictionary of changes")
        if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", name) or name in (RESULTS, TABLE, LOCK):
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


def _base(sweep: pages.ConfigFile, path: str) -> pages.ConfigFile:
    """The base of a sweep's page."""
    base = _given(sweep, "base") if callable(sweep.module.base) else sweep.module.base
    if not isinstance(base, str):
        raise UserError(f"{path} has a `base` that is no path: {_FILES}")
    return pages.load(base, f"the base of {path} is ", beside=sweep)


def _given(sweep: pages.ConfigFile, name: str) -> Any:
    """What a function of a sweep's page gives for the size that is asked of the page; `published` may be of all sizes.

    Raises:
      UserError: it is no function, takes no size, or fails.
    """
    function = getattr(sweep.module, name)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:  # It cannot be called, or is a builtin without a signature.
        raise UserError(f"{sweep.given} has `{name}` that is no Python function: {_FILES}") from error
    is_of_all = name == "published" and not signature.parameters
    arguments = () if sweep.size is None or is_of_all else (sweep.size,)
    try:
        signature.bind(*arguments)
    except TypeError as error:
        given = f"size '{sweep.size}'" if arguments else "no size"
        raise UserError(f"{sweep.given} is given with {given}, which `{name}` does not take ({error})") from error
    with users_code(sweep.code):
        found = function(*arguments)
        if isinstance(found, str | dict):
            return found
        if not isinstance(found, Iterable):
            raise UserError(f"`{name}` of {sweep.given} returns {ranges.shown(found)}: {_FILES}")
        return list(found)


def others(path: str, runs: Collection[str]) -> dict[str, Any]:
    """What a sweep's file compares its runs with; `runs` are their names.

    Returns:
      `base`, the config; `rivals`, `published` and `compared` as the file defines them, empty by default; `compared` is
      None if the file does not define it.

    Raises:
      UserError: one names another run, or is none.
    """
    sweep = pages.load(path, "--sweep=")
    base = _base(sweep, path)
    with users_code(base.code):
        tree = config.to_dict(config.resolve(config.to_dict(config.from_dict(base.config())), base.file))
    listed = {name: _given(sweep, name) if hasattr(sweep.module, name) else [] for name in _LISTS}
    compared = getattr(sweep.module, "compared", None)
    compared = _given(sweep, "compared") if callable(compared) else compared
    compared = None if compared is None else dict(compared)
    for name, kind in _LISTS.items():
        if not all(isinstance(row, kind) for row in listed[name]):
            raise UserError(f"`{name}` of {path} must give a list of comparison.{kind.__name__}")
    if not all(isinstance(value, float | int) for row in listed["published"] for value in row.figures.values()):
        raise UserError(f"`published` of {path} has a figure that is no number: leave out what is not at hand")
    if sweep.size is not None:
        listed["published"] = [row for row in listed["published"] if _has(runs, row.run)]
    if sweep.size not in (None, _default_size(sweep)):  # Another size is not the paper's experiment.
        listed["published"] = [row._replace(setups={}) for row in listed["published"]]
    if unsourced := [row.run for row in listed["published"] if row.figures and not row.source]:
        raise UserError(
            f"`published` of {path} has figures of '{unsourced[0]}' without a source: name it, or drop them"
        )
    named = {name: [row.run for row in rows] for name, rows in listed.items()}
    others = [other for rival in listed["rivals"] for other in rival.others.values()]
    named["rivals"] += [other[0] for other in others if isinstance(other, tuple)]
    named["rivals"] += [other for other in others if isinstance(other, str) and "/" not in other]
    for function, names in named.items():
        for name in names:
            if name not in runs and not (function == "published" and _has(runs, name)):
                raise UserError(f"`{function}` of {path} names a run '{name}': {nearest(name, runs)}")
    for name in setups.by_run(listed["published"]):
        if name not in runs:
            raise UserError(f"`published` of {path} has a set-up of run '{name}': {nearest(name, runs)}")
    return {"base": tree, **listed, "compared": compared}


def _default_size(sweep: pages.ConfigFile) -> Any:
    """Returns the default size of a page, or None if it takes no size."""
    parameters = inspect.signature(sweep.module.overrides).parameters.values()
    return next((parameter.default for parameter in parameters), None)


def _has(runs: Collection[str], name: str) -> bool:
    """Whether a run counts for a name."""
    return any(comparison.belongs(run, name) for run in runs)
