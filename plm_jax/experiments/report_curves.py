"""Data for the script of a report: curves with few points, and the position of each step on each axis."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from plm_jax import config
from plm_jax.common import metrics
from plm_jax.common.errors import UserError, one_line
from plm_jax.experiments.run_logs import Curve, RunLog
from plm_jax.runs import phase_costs, resume

# Largest number of points of all curves together; largest and smallest limit for one curve.
_MAX_POINTS, _MAX_CURVE_POINTS, _MIN_CURVE_POINTS = 250_000, 1_000, 60
# Number of points at which time is given over steps.
_TIME_POINTS = 200
_MAX_CHOICES = 500
# Metrics that have a plot of their own, or none.
_EXCLUDED = ("loss", "grad_norm", "learning_rate", "tokens_per_second", "mfu", "step_seconds", "data_wait_seconds")
TOKENS, FLOPS, SECONDS = "tokens", "flops", "seconds"
EVALUATION = "evaluation:"


class Card(NamedTuple):
    """A plot, or several plots of which the reader selects one.

    Attributes:
      title: title of the plot.
      unit: unit of the values; empty if it depends on the plot (`units`).
      choices: dict from the label of a plot to a pair: the metric of the solid curve, and the metric of the dashed
        curve. The second is None without a dashed curve.
      is_noisy: whether the curves can be smoothed.
    """

    title: str
    unit: str
    choices: Mapping[str, tuple[str, str | None]]
    is_noisy: bool = True

    @property
    def units(self) -> dict[str, str]:
        """Unit of each plot, by label: `unit`, or `%` for shares if `unit` is empty."""
        percent = {label: scale(keys[0]) == 100 and not self.unit for label, keys in self.choices.items()}
        return {label: "%" if is_percent else self.unit for label, is_percent in percent.items()}


def cards(runs: Sequence[RunLog]) -> list[Card]:
    """Returns the plots for which at least one run has a curve.

    Raises:
      UserError: the runs log too many metrics.
    """
    keys = list(dict.fromkeys(name for run in runs for name in run.metrics))
    measures = {
        measure: (f"train/{measure}", f"validation/{measure}")
        for measure in dict.fromkeys(key.partition("/")[2] for key in keys if key.startswith(("train/", "validation/")))
        if measure not in _EXCLUDED and not measure.startswith("norms/")
    }
    all_cards = [
        Card("Loss", "nats per target", {"loss": ("train/loss", "validation/loss")}),
        Card("Other metrics", "", dict(sorted(measures.items(), key=lambda item: "accuracy" not in item[0]))),
        Card("Tasks", "", {key: (f"{EVALUATION}{key}", None) for key in _tasks(runs)}),
        Card("Throughput", "tokens per second", {"": ("train/tokens_per_second", None)}),
        Card("MFU", "% of peak", {"": ("train/mfu", None)}),
        Card("Data wait", "seconds per step", {"": ("train/data_wait_seconds", None)}),
        Card("Learning rate", "", {"": ("train/learning_rate", None)}, is_noisy=False),
        Card("Gradient norm", "", {"": ("train/grad_norm", None)}),
    ]
    if max(len(card.choices) for card in all_cards) > _MAX_CHOICES:
        raise UserError(f"{runs[0].name} and the other runs log more than {_MAX_CHOICES} metrics: report fewer runs")
    logged = {name for run in runs for name, _ in _all_curves(run)}
    return [card for card in all_cards if any(key in logged for keys in card.choices.values() for key in keys)]


def _tasks(runs: Sequence[RunLog]) -> list[str]:
    """Returns the metrics of evaluation.jsonl that at least one run has at several steps."""
    return list(dict.fromkeys(key for run in runs for key, curve in run.evaluation.items() if len(curve.steps) > 1))


def _all_curves(run: RunLog) -> Iterator[tuple[str, Curve]]:
    yield from run.metrics.items()
    yield from ((f"{EVALUATION}{name}", curve) for name, curve in run.evaluation.items())


def page_data(runs: Sequence[RunLog], cards: Sequence[Card]) -> dict[str, Any]:
    """Returns the data that the page's script reads, as a JSON value: `cards`, `groups` and `runs`.

    Each run has the following data, among others:

    - `steps` is a list of delta-encoded lists of steps.
    - `curves` maps each metric to a curve. A curve is [index, values], or [index, means, minima, maxima] if each point
      summarizes several rows. The steps of the curve are `steps[index]`.
    - `axes` maps the name of each axis to [steps, positions of these steps], or to a text that says why the positions
      are unknown. The script interpolates linearly between the positions.
    """
    scales = {key: scale(key) for card in cards for keys in card.choices.values() for key in keys if key is not None}
    curves_of_runs = [{name: curve for name, curve in _all_curves(run) if name in scales} for run in runs]
    lengths = [min(len(curve.steps), _MAX_CURVE_POINTS) for curves in curves_of_runs for curve in curves.values()]
    is_large = sum(lengths) > _MAX_POINTS
    max_points = (
        max(_MIN_CURVE_POINTS, _MAX_POINTS // sum(length > _MIN_CURVE_POINTS for length in lengths))
        if is_large
        else _MAX_CURVE_POINTS
    )
    variants = list(dict.fromkeys(run.variant for run in runs))
    packed_runs = []
    for run, curves in zip(runs, curves_of_runs, strict=True):
        steps: dict[tuple[int, ...], int] = {}
        packed = {}
        for name, curve in curves.items():
            at, *values = _few(curve, max_points)
            if len(at):
                deltas = tuple(np.diff(at, prepend=0).tolist())
                index = steps.setdefault(deltas, len(steps))
                packed[name] = [index, *([_short(x * scales[name]) for x in points] for points in values)]
        axes = {name: axis(run, name) for name in (TOKENS, FLOPS, SECONDS)}
        packed_runs.append(
            {
                **{"name": label(run.name), "group": variants.index(run.variant), "steps": list(steps), "axes": axes},
                **{"curves": packed, "levels": levels(run)},
            }
        )
    groups = [label(variant) for variant in variants]
    return {"cards": [card._asdict() | {"units": card.units} for card in cards], "groups": groups, "runs": packed_runs}


def scale(key: str) -> int:
    """Returns the factor by which the values of a metric are multiplied for drawing: 100 for shares, else 1."""
    metric = metrics.declared(key.removeprefix(EVALUATION))
    return 100 if metric is not None and metric.is_share else 1


def axis(run: RunLog, name: str) -> tuple[list[int], Sequence[float]] | str:
    """Returns steps of a run and their positions on an axis, or the reason why the positions are unknown.

    Args:
      name: TOKENS, FLOPS or SECONDS.
    """
    return _seconds(run) if name == SECONDS else _work(run, (TOKENS, FLOPS).index(name))


def label(text: str) -> str:
    """Replaces unprintable characters in a name, and shortens the name to 100 characters."""
    text = "".join(c if c.isprintable() and not "\ud800" <= c <= "\udfff" else "�" for c in text)
    return text if len(text) <= 100 else f"{text[:99]}…"


def _few(curve: Curve, max_points: int) -> tuple[np.ndarray, ...]:
    """Returns the steps and the finite values of a curve, reduced to at most `max_points` values.

    The values of a longer curve are replaced by the means, minima and maxima of groups of consecutive values.
    """
    is_drawn = np.isfinite(curve.values)
    steps, values = curve.steps[is_drawn], curve.values[is_drawn]
    if len(steps) <= max_points:
        return steps, values
    # A point has three values.
    starts = np.linspace(0, len(steps), max_points // 3, endpoint=False).astype(int)
    counts = np.diff(starts, append=len(steps))
    middle = steps[starts + counts // 2]
    means = np.add.reduceat(values, starts) / counts
    return middle, means, np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)


def _short(value: float) -> float | int:
    """Rounds a value to five significant digits."""
    value = float(f"{value:.5g}")
    return int(value) if value.is_integer() and abs(value) < 1e9 else value


def levels(run: RunLog) -> list[tuple[str, float]]:
    """Returns pairs (name, loss): the last `real_loss` and `unigram_loss` of tasks.

    There are at most eight pairs. Losses that are not finite are left out.
    """
    last = {name: float(curve.values[-1]) for name, curve in run.evaluation.items()}
    return [
        (label(name), _short(value))
        for name, value in last.items()
        if name.endswith(("/real_loss", "/unigram_loss")) and math.isfinite(value)
    ][:8]


def _work(run: RunLog, index: int) -> tuple[list[int], list[int]] | str:
    """Returns steps and the work up to each step, or the reason why the work is unknown.

    The unit of the work is tokens (`index` 0) or model FLOPs (`index` 1).
    """
    try:
        resolved = config.from_saved(run.config["config"], run.config.get("modules"))
        phases = config.resolve_phases(resolved)
        counts = [
            (phase_costs.num_tokens(resolved, phase), phase_costs.model_flops(resolved, phase)) for phase in phases
        ]
        for start in run.config.get("history", ()):
            for field in start["changes"]:
                if _decides(field, resolved):
                    return f"{label(field)} changed at step {int(start['step'])}"
    except (UserError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        return f"its config cannot be read ({one_line(error)})"
    work = [(phase.end_step - phase.first_step) * count[index] for phase, count in zip(phases, counts, strict=True)]
    return [0, *(phase.end_step for phase in phases)], list(itertools.accumulate(work, initial=0))


def _decides(field: str, run: config.Run) -> bool:
    """Whether a change of a field affects the cost of a step or the steps of phases."""
    if field == "train.steps":
        return bool(run.train.phases)
    if field.partition(".")[0] not in ("model", "objective", "data", "train"):
        return False
    parts = field.split(".")
    resume_fields = [name for n in range(len(parts), 0, -1) if (name := ".".join(parts[:n])) in resume.FIELDS]
    return bool(resume_fields) and resume.FIELDS[resume_fields[0]] in ("fixed", "read")


def _seconds(run: RunLog) -> tuple[list[int], list[float]] | str:
    """Returns steps and the seconds until the end of each step, or the reason why the seconds are unknown."""
    step_seconds = run.metrics.get("train/step_seconds")
    if step_seconds is None or not np.isfinite(step_seconds.values).all() or (step_seconds.values < 0).any():
        return "the duration of its steps is not logged"
    until = np.cumsum(step_seconds.values * np.diff(step_seconds.steps, prepend=0))
    picked = np.unique(np.linspace(0, len(until) - 1, min(_TIME_POINTS, len(until))).astype(int))
    return [0, *step_seconds.steps[picked].tolist()], [0, *map(_short, until[picked])]
