"""Sweep files: several runs of one base config, and what they are compared with.

A sweep is a Python file that defines

    base         a config with or without a size: a path from the sweep's folder ("../demo.py:bert") or a name
                 ("demo:bert")
    overrides()  pairs of the name of a run and its changes to the base, {"train.steps": 100, …}

A value may be a whole section (`{"objective": objectives.MaskedLM(whole_words=1)}`), and `vars(run)` returns all
sections of another run. Changes are applied in order; relative paths start at the base config's folder.
`train.init_from` and the sources of `train.references` may name an earlier run of the sweep; a config without a model
takes the model of the run in `train.init_from` (`transfer.resolve`). The file may also define

    evaluations()  pairs of the name of a run and flags of a further `evaluate` of the run, {"tasks": "sentiment",
                 "shots": (0, 5)}. The metrics of this `evaluate` are added to the run's other metrics
    baselines()  a list of `comparison.Baselines` for a second table, which compares runs with baselines
    compared     metrics of a third table, which compares each run with the first: a dictionary from a name, such as the
                 paper's, to TASK/METRIC, or to several TASK/METRIC for their mean. Only the first metric is tested. The
                 default is a metric that all runs have and that is validated on the same targets in all runs
                 (`comparison.default_comparison`); {} compares nothing
    published()  a list of `comparison.Published`, the results of a paper, which the third table then includes. The
                 first is the reference, and results of runs NAME-… count for NAME. A metric other than the paper's is a
                 `comparison.SubstituteMetric`

A sweep file for several sizes, `--sweep=FILE.py:SIZE`, defines functions of the size, including `base`: `base(size)`,
`overrides(size)`, `evaluations(size)`, `baselines(size)`, `compared(size)`. The default of the parameter is the size
that is used without a colon. `published()` covers all sizes; runs that a size does not have are left out. Only runs of
the default size are compared with the paper's setups.
"""

import dataclasses
import inspect
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from plm_jax import config
from plm_jax.common import overrides, ranges, storage
from plm_jax.common.errors import UserError, nearest, users_code
from plm_jax.config import files as config_files
from plm_jax.experiments import comparison, setups
from plm_jax.experiments.members import Member

# Files in a sweep's folder: all results, the tables, and the lock.
RESULTS, TABLE, LOCK = "sweep.json", "table.md", "lock"
_EXPECTED = "expected a Python file with `base` and `overrides`"
# Flags of `evaluate` that define an evaluation.
_EVALUATE_FLAGS = (
    "config",
    "tasks",
    "shots",
    "seeds",
    "normalize",
    "balanced",
    "limit",
    "stride",
    "harness",
    "include_path",
)
# Functions of a sweep file that return lists, and the class of the items.
_LISTS = {"baselines": comparison.Baselines, "published": comparison.Published}


def load_members(path: str, workdir: str, seeds: Sequence[int] = ()) -> list[Member]:
    """Loads the runs of a sweep file: all runs with the first seed, then all runs with the next seed.

    A run that sets `train.seed` itself has only this seed. Runs with any seed may read its weights.

    Args:
      seeds: seeds of the runs; empty for the seeds of their configs.

    Raises:
      UserError: the file is missing or not a sweep file, the changes of a run do not yield a valid config, two runs
        have the same run directory, or a run reads the weights of several runs.
    """
    runs, base = _load_runs(path)
    evaluations = _evaluations(path, runs)

    def directory(name: str, seed: int | None) -> str:
        run_seed = runs[name][1].train.seed if name in runs else seed
        return os.path.join(storage.absolute(workdir), name if seed in (None, run_seed) else f"{name}-seed{seed}")

    members: dict[str, Member] = {}
    for requested in seeds or (None,):
        for name, (changes, unresolved) in runs.items():
            seed = requested
            if "train.seed" in changes:
                seed = unresolved.train.seed
                if requested is not None and requested != (seed if seed in seeds else seeds[0]):
                    continue
            folder = directory(name, seed)
            if folder in members:
                raise UserError(
                    f"{path} has two runs in {folder}: list each seed once, and avoid names that end like a seed"
                )
            resolved = config.resolve(config.to_dict(unresolved), base)
            train = resolved.train if seed is None else dataclasses.replace(resolved.train, seed=seed)
            parents = {
                other: other_folder
                for other_seed in (None, requested, seed)  # The last that exists counts.
                for other in _read_runs(unresolved.train)
                if (other_folder := directory(other, other_seed)) in members
            }
            if len(parents) > 1:
                raise UserError(
                    f"run '{name}' of {path} reads the runs {' and '.join(parents)}: name only one run in "
                    "train.init_from and train.references"
                )
            parent = next(iter(parents.values()), None)
            run = dataclasses.replace(resolved, train=_with_folders(train, unresolved.train, parents))
            members[folder] = Member(name, folder, changes, run, parent, tuple(evaluations.get(name, ())))
    return list(members.values())


def _read_runs(train: config.TrainConfig) -> list[str]:
    """Returns the sources from which a run reads models. A source may be the name of another run."""
    return [train.init_from, *(reference.source for reference in train.references.values())]


def _with_folders(
    train: config.TrainConfig, unresolved: config.TrainConfig, folders: Mapping[str, str]
) -> config.TrainConfig:
    """Returns training settings in which the names of runs are replaced by their folders."""
    references = {
        name: dataclasses.replace(reference, source=folders.get(unresolved.references[name].source, reference.source))
        for name, reference in train.references.items()
    }
    init_from = folders.get(unresolved.init_from, train.init_from)
    return dataclasses.replace(train, init_from=init_from, references=references)


def _evaluations(path: str, runs: Collection[str]) -> dict[str, list[tuple[str, ...]]]:
    """Returns the flags of each further `evaluate` of a run, by run name."""
    sweep = config_files.load(path, "--sweep=", is_sweep=True)
    evaluations: dict[str, list[tuple[str, ...]]] = {}
    for pair in _call(sweep, "evaluations") if hasattr(sweep.module, "evaluations") else ():
        match pair:
            case str(name), dict(options):
                pass
            case _:
                raise UserError(
                    f"`evaluations` of {path} yields {pair!r}: expected the name of a run and a dictionary of flags"
                )
        if name not in runs:
            raise UserError(f"`evaluations` of {path} names a run '{name}': {nearest(name, runs)}")
        if unknown := [flag for flag in options if flag not in _EVALUATE_FLAGS]:
            raise UserError(
                f"`evaluations` of {path} has a flag '{unknown[0]}': {nearest(unknown[0], _EVALUATE_FLAGS)}"
            )
        values = {flag: value if isinstance(value, list | tuple) else (value,) for flag, value in options.items()}
        evaluations.setdefault(name, []).append(
            tuple(f"--{flag}={','.join(map(str, value))}" for flag, value in values.items())
        )
    return evaluations


def _load_runs(path: str) -> tuple[dict[str, tuple[dict[str, Any], config.Run]], str]:
    """Loads the changes and configs of all runs of a sweep file.

    Returns:
      A pair. The first item is a dict from the name of a run to a pair: its changes as JSON, and its config with
      unresolved paths. The second item is the path of the base config's file.
    """
    sweep = config_files.load(path, "--sweep=", is_sweep=True)
    for name in ("base", "overrides"):
        if not hasattr(sweep.module, name):
            raise UserError(f"--sweep={path} has no `{name}`: {_EXPECTED}")
    base = _base(sweep, path)
    with users_code(base.code):
        tree = config.to_dict(config.from_dict(base.config()))
    pairs = _call(sweep, "overrides")
    runs: dict[str, tuple[dict[str, Any], config.Run]] = {}
    for pair in pairs:
        match pair:
            case str(name), dict(changes):
                pass
            case _:
                raise UserError(f"`overrides` of {path} yields {pair!r}: expected a name and a dictionary of changes")
        if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", name) or name in (RESULTS, TABLE, LOCK):
            raise UserError(f"{path} has a run '{name}': use another name of letters, digits, _, -, + and .")
        if name in runs:
            raise UserError(f"{path} has two runs '{name}': use unique names")
        try:
            runs[name] = (
                config.to_dict(changes),
                config.from_dict(overrides.apply(tree, list(changes.items()), config.Run)),
            )
        except UserError as error:
            raise UserError(f"run '{name}' of {path}: {error}") from error
        if runs[name][1].evaluation.patience:
            raise UserError(f"run '{name}' of {path} may stop early: set evaluation.patience to 0 in sweeps")
    if not runs:
        raise UserError(f"{path} has no runs: `overrides` must yield names and changes")
    return runs, base.file


def _base(sweep: config_files.ConfigFile, path: str) -> config_files.ConfigFile:
    """Loads the base config of a sweep file."""
    base = _call(sweep, "base") if callable(sweep.module.base) else sweep.module.base
    if not isinstance(base, str):
        raise UserError(f"`base` of {path} is not a path: {_EXPECTED}")
    return config_files.load(base, f"the base of {path} is ", beside=sweep)


def _call(sweep: config_files.ConfigFile, name: str) -> Any:
    """Calls a function of a sweep file. If the sweep has a size, the size is passed.

    The function `published` need not accept a size.

    Raises:
      UserError: the name is not a function, or the function does not accept the size or fails.
    """
    function = getattr(sweep.module, name)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:  # It is not callable, or is a builtin without a signature.
        raise UserError(f"`{name}` of {sweep.argument} is not a Python function: {_EXPECTED}") from error
    is_for_all_sizes = name == "published" and not signature.parameters
    arguments = () if sweep.size is None or is_for_all_sizes else (sweep.size,)
    try:
        signature.bind(*arguments)
    except TypeError as error:
        supplied = f"size '{sweep.size}'" if arguments else "no size"
        raise UserError(f"`{name}` of {sweep.argument} does not accept {supplied} ({error})") from error
    with users_code(sweep.code):
        result = function(*arguments)
        if isinstance(result, str | dict):
            return result
        if not isinstance(result, Iterable):
            raise UserError(f"`{name}` of {sweep.argument} returns {ranges.shown(result)}: {_EXPECTED}")
        return list(result)


def load_comparisons(path: str, runs: Collection[str]) -> dict[str, Any]:
    """Loads the comparisons that a sweep file defines.

    Args:
      runs: names of the runs.

    Returns:
      A dict with the keys `base`, `baselines`, `published` and `compared`. `base` is the base config. The other values
      are as the file defines them. If the file does not define them, `baselines` and `published` are empty lists, and
      `compared` is None. If the sweep has a size, results of runs that the size does not have are left out of
      `published`. Setups are also left out unless the size is the default size.

    Raises:
      UserError: an item has the wrong type or names an unknown run.
    """
    sweep = config_files.load(path, "--sweep=", is_sweep=True)
    base = _base(sweep, path)
    with users_code(base.code):
        tree = config.to_dict(config.resolve(config.to_dict(config.from_dict(base.config())), base.file))
    lists = {name: _call(sweep, name) if hasattr(sweep.module, name) else [] for name in _LISTS}
    compared = getattr(sweep.module, "compared", None)
    compared = _call(sweep, "compared") if callable(compared) else compared
    if compared is not None and not isinstance(compared, Mapping):
        raise UserError(f"`compared` of {path} is {ranges.shown(compared)}: expected a dictionary of SOURCE/METRIC")
    for name, kind in _LISTS.items():
        if not all(isinstance(row, kind) for row in lists[name]):
            raise UserError(f"`{name}` of {path} must return a list of comparison.{kind.__name__}")
    if not all(isinstance(value, float | int) for row in lists["published"] for value in row.figures.values()):
        raise UserError(f"`published` of {path} has a figure that is not a number: leave out missing figures")
    if sweep.size is not None:
        lists["published"] = [row for row in lists["published"] if _has(runs, row.run)]
    if sweep.size not in (None, _default_size(sweep)):  # Other sizes do not reproduce the paper's experiment.
        lists["published"] = [row._replace(setups={}) for row in lists["published"]]
    if unsourced := [row.run for row in lists["published"] if row.figures and not row.source]:
        raise UserError(
            f"`published` of {path} has figures of '{unsourced[0]}' without a source: add the source or remove them"
        )
    names_by_function = {name: [row.run for row in rows] for name, rows in lists.items()}
    baselines = [baseline for baseline in lists["baselines"] for baseline in baseline.columns.values()]
    names_by_function["baselines"] += [baseline[0] for baseline in baselines if isinstance(baseline, tuple)]
    names_by_function["baselines"] += [
        baseline for baseline in baselines if isinstance(baseline, str) and "/" not in baseline
    ]
    for function, names in names_by_function.items():
        for name in names:
            if name not in runs and not (function == "published" and _has(runs, name)):
                raise UserError(f"`{function}` of {path} names a run '{name}': {nearest(name, runs)}")
    for name in setups.by_run(lists["published"]):
        if name not in runs:
            raise UserError(f"`published` of {path} has a setup of run '{name}': {nearest(name, runs)}")
    return {"base": tree, **lists, "compared": None if compared is None else dict(compared)}


def check_sources(path: str, comparisons: Mapping[str, Any], members: Sequence[Member]) -> None:
    """Checks that the source of every compared metric exists.

    The metrics themselves cannot be checked: the metrics of a source are known only when a run is finished.

    Args:
      comparisons: result of `load_comparisons`.

    Raises:
      UserError: a metric is not SOURCE/METRIC, or no run has its source, and no further evaluation has its task.
    """
    flags = [flag.partition("=") for member in members for further in member.evaluations for flag in further]
    sources = {name: source for member in members for name, source in member.run.data.sources.items()}
    known = {*sources, *(task for flag, _, tasks in flags if flag == "--tasks" for task in tasks.split(","))}
    # A mixture of seqio becomes sources NAME-TASK. Sources of other configs and tasks of lm-eval may have any name.
    mixtures = tuple(f"{name}-" for name, source in sources.items() if isinstance(source, config.RegisteredSource))
    is_open = any(flag in ("--config", "--harness") for flag, *_ in flags)
    for function, metric in _metrics(path, comparisons):
        source, slash, _ = metric.partition("/")
        if not slash:
            raise UserError(f"`{function}` of {path} names a metric '{metric}': expected SOURCE/METRIC")
        is_known = is_open or source.startswith(mixtures) or not known.isdisjoint((source, source.partition(":")[0]))
        if not is_known:
            problem = f"names a metric '{metric}', but no run has a source or task '{source}'"
            raise UserError(f"`{function}` of {path} {problem}: {nearest(source, known)}")


def _metrics(path: str, comparisons: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields pairs (`compared` or `baselines`, metric) for every metric that either of them names."""
    for name, value in (comparisons["compared"] or {}).items():
        metric = comparison.get_metric(value)
        if not _is_metric(metric):
            shown = ranges.shown(metric)
            raise UserError(
                f"`compared` of {path} has {shown} for '{name}': expected SOURCE/METRIC or a tuple of these"
            )
        for part in comparison.part_names(metric):
            yield "compared", part
    for row in comparisons["baselines"]:
        yield "baselines", row.metric
        for column in row.columns.values():
            metric = column[1] if isinstance(column, tuple) else column
            if isinstance(metric, str) and "/" in metric:
                yield "baselines", metric


def _is_metric(value: Any) -> bool:
    """Whether a value is the name of a metric or a non-empty sequence of metrics."""
    return isinstance(value, str) or (isinstance(value, list | tuple) and bool(value) and all(map(_is_metric, value)))


def _default_size(sweep: config_files.ConfigFile) -> Any:
    """Returns the size that a sweep file uses by default, or None if its functions accept no size."""
    parameters = inspect.signature(sweep.module.overrides).parameters.values()
    return next((parameter.default for parameter in parameters), None)


def _has(runs: Collection[str], name: str) -> bool:
    """Whether the results of any run count as results of `name` (`comparison.counts_for`)."""
    return any(comparison.counts_for(run, name) for run in runs)
