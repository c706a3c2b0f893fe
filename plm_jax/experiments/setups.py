"""Setups that papers state for their experiments, and their differences from the configs of our runs."""

import dataclasses
import enum
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from plm_jax import config
from plm_jax.training import schedules


class NotStated(enum.Enum):
    """Type of NOT_STATED, which marks a value that a paper does not state."""

    NOT_STATED = "not stated"


NOT_STATED = NotStated.NOT_STATED
# Head of the table of differences from papers.
SETUP_HEAD = ("Run", "Setting", "Stated", "Here", "Reason", "Setup stated in")


class BestOf(NamedTuple):
    """Values from which a paper chose the best on development data."""

    values: tuple[float, ...]


# A number, a description where the paper has no number, or NOT_STATED.
Stated = float | str | BestOf | NotStated
# Fields of a section of a config by dotted path, such as `noise.kind`.
Section = Mapping[str, Any] | NotStated


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The setup of an experiment as a paper states it.

    Attributes:
      source: sections, tables and pages that state the setup.
      objective: `kind` and other fields of `config.objective`. For a run on text-to-text examples only, `kind` is
        `inputs_targets`.
      sources: names of the sources that the run reads; None if sources are not compared.
      batch_size: number of rows; if phases differ, (until, rows) for each phase, where `until` is the share of all
        steps after which the phase ends.
      steps: number of steps. A config has either `steps` or `epochs`.
      epochs: number of epochs.
      learning_rate: peak learning rate.
      warmup: number of steps, or share of all steps.
      length: number of tokens in a row; if phases differ, (until, tokens) for each phase.
      model: fields of `config.model`. They are not compared if the model comes from a checkpoint.
      rows: fields of `config.data.layout` and `config.data.inputs_targets`.
      reasons: dict from the name of a value, such as `steps` or `objective.rate`, to a reason. The reason says why the
        config differs from the paper. If the paper does not state the value, the reason says where the config's value
        comes from.
    """

    source: str
    objective: Section
    sources: Collection[str] | None
    batch_size: Stated | tuple[tuple[float, int], ...]
    learning_rate: Stated
    warmup: Stated
    length: Stated | tuple[tuple[float, int], ...]
    steps: Stated = NOT_STATED
    epochs: Stated = NOT_STATED
    model: Section = NOT_STATED
    rows: Section = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)

    def because(self, **reasons: str) -> "Setup":
        """Returns this setup with further reasons; `__` in a name stands for a dot."""
        named = {name.replace("__", "."): reason for name, reason in reasons.items()}
        return dataclasses.replace(self, reasons={**self.reasons, **named})


class SetupDifference(NamedTuple):
    """A value of a config that differs from the paper's value, or that the paper does not state.

    Attributes:
      name: name of the value, such as `steps` or `objective.rate`.
      paper: the paper's value.
      ours: the config's value; None if the config has no such value.
      reason: reason from `Setup.reasons`; empty if there is no reason.
    """

    name: str
    paper: Any
    ours: Any
    reason: str


def differences(setup: Setup, run: config.Run) -> list[SetupDifference]:
    """Compares a setup with a resolved config.

    Returns:
      Every value that differs from the paper, and every value that the paper does not state.
    """
    ours, stated = _values(run), _stated(setup, run)
    pairs = {name: (value, _at(ours, name)) for name, value in stated.items()}
    return [
        SetupDifference(name, paper, value, setup.reasons.get(name, ""))
        for name, (paper, value) in pairs.items()
        if paper is NOT_STATED or not _is_same(paper, value)
    ]


def _stated(setup: Setup, run: config.Run) -> dict[str, Any]:
    """Returns the values of a setup with which a config is compared, by name."""
    stated: dict[str, Any] = {}
    sections = ("objective", "rows") if run.model.is_placeholder else ("objective", "rows", "model")
    for name in sections:
        section = getattr(setup, name)
        if section is NOT_STATED:
            stated[name] = NOT_STATED
        else:
            stated |= {f"{name}.{path}": value for path, value in section.items()}
    if setup.sources is not None:
        stated["sources"] = tuple(sorted(setup.sources))
    length = "steps" if run.train.epochs is None else "epochs"
    lengths = [name for name in ("steps", "epochs") if name == length or getattr(setup, name) is not NOT_STATED]
    names = ("batch_size", *lengths, "learning_rate", "warmup", "length")
    return stated | {name: getattr(setup, name) for name in names}


def _values(run: config.Run) -> dict[str, Any]:
    """Returns the values of a config that a `Setup` may state; the value of a section is a nested dictionary."""
    sources = config.read_sources(run)
    tree = config.to_dict(run)
    has_examples_alone = all(isinstance(source, config.InputsTargetsSource) for source in sources.values())
    return {
        "objective": {"kind": "inputs_targets"} if has_examples_alone else tree["objective"],
        "rows": {**tree["data"]["layout"], **tree["data"]["inputs_targets"]},
        "model": tree["model"],
        "sources": tuple(sorted(sources)),
        "batch_size": _by_phase(run, "batch_size"),
        "steps": run.train.steps if run.train.epochs is None else None,
        "epochs": run.train.epochs,
        "learning_rate": _peak(run.schedule),
        "warmup": _warmup(run.schedule),
        "length": _by_phase(run, "length"),
    }


def _at(tree: Mapping[str, Any], path: str) -> Any:
    """Returns the value at a dotted path of a tree.

    Returns the kind if the path is a section, and None if the path does not exist.
    """
    value: Any = tree
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value.get("kind") if isinstance(value, Mapping) else value


def _by_phase(run: config.Run, name: str) -> Any:
    """Returns the batch size or length of a run, or (until, value) for each phase if phases differ."""
    values = [
        getattr(run.data if name == "length" else run.train, name)
        if getattr(phase, name) is None
        else getattr(phase, name)
        for phase in run.train.phases or (config.PhaseConfig(until=1.0),)
    ]
    if len(set(values)) == 1:
        return values[0]
    return tuple((phase.until, value) for phase, value in zip(run.train.phases, values, strict=True))


def _peak(schedule: config.Schedule) -> float | None:
    """Returns the peak learning rate, or None for a user's kind of schedule."""
    # Evaluating the schedule would need JAX, which would claim the devices for a process that only starts runs.
    if isinstance(schedule, schedules.RampedSchedule):
        return schedule.learning_rate
    if isinstance(schedule, schedules.RsqrtSchedule | schedules.RsqrtWarmupSchedule):
        return schedule.learning_rate / math.sqrt(max(schedule.warmup_steps, 1))
    return None


def _warmup(schedule: config.Schedule) -> float:
    """Returns the warm-up of a schedule: a number of steps as an int, or a share of all steps as a float."""
    return getattr(schedule, "warmup_fraction", 0.0) or getattr(schedule, "warmup_steps", 0)


def _is_same(paper: Any, ours: Any) -> bool:
    if isinstance(paper, BestOf):
        return any(_is_same(value, ours) for value in paper.values)
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in (paper, ours)]
    if all(numbers):
        return math.isclose(paper, ours, rel_tol=1e-9)
    return _with_tuples(paper) == _with_tuples(ours)


def _with_tuples(value: Any) -> Any:
    """Converts lists to tuples, also within lists and tuples."""
    return tuple(map(_with_tuples, value)) if type(value) in (tuple, list) else value


def table(runs: Mapping[str, config.Run], setups: Mapping[str, Setup]) -> list[tuple[str, ...]]:
    """Returns a table of the differences between configs and the papers.

    The first row is SETUP_HEAD. Runs with the same difference share a row. The table is empty if there are no
    differences.

    Args:
      runs: resolved configs by run name.
      setups: setups by run name.
    """
    merged: dict[tuple[str, ...], list[str]] = {}
    for name, setup in setups.items():
        for row in differences(setup, runs[name]):
            cells = (row.name, _text(row.paper), _text(row.ours), row.reason, setup.source)
            merged.setdefault(cells, []).append(name)
    return [SETUP_HEAD, *((", ".join(names), *cells) for cells, names in merged.items())] if merged else []


def _text(value: Any) -> str:
    match _with_tuples(value):
        case NotStated():
            return value.value
        case None:
            return "none"
        case BestOf():
            return f"best of {', '.join(map(_text, value.values))}"
        case tuple() if value and all(isinstance(pair, tuple) for pair in value):
            return ", ".join(f"{number:,} until {until:.0%}" for until, number in value)
        case tuple():
            return ", ".join(map(_text, value))
        case float() if value < 1:
            return f"{value:,.6g}"
        case int() | float() if not isinstance(value, bool):
            return f"{value:,}"
        case _:
            return str(value)


def of_run(name: str, pretraining: Setup, tuning: Mapping[str, Setup]) -> dict[str, Setup]:
    """Returns the setups of a run and of the runs that are tuned from it, by run name.

    Args:
      name: name of the run.
      pretraining: setup of the run.
      tuning: setups of the tuned runs. The keys are the suffixes of their names, such as `-mnli`.
    """
    return {name: pretraining} | {f"{name}{end}": setup for end, setup in tuning.items()}


def by_run(published: Sequence[Any]) -> dict[str, Setup]:
    """Returns the setups in all given `comparison.Published` items, by run name."""
    return {run: setup for row in published for run, setup in row.setups.items()}
