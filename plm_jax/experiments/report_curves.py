"""What the script of a report's page draws: curves with few points, and where each step lies on each axis."""

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

# So many points all curves of a page have together, a curve no more than these, and no fewer.
_POINTS, _MOST, _FEWEST = 250_000, 1_000, 60
# Points of a curve of time over steps.
_KNOTS = 200
_MOST_CHOICES = 500
# What has a picture of its own, or none.
_KNOWN = ("loss", "grad_norm", "learning_rate", "tokens_per_second", "mfu", "step_seconds", "data_wait_seconds")
TOKENS, FLOPS, SECONDS = "tokens", "flops", "seconds"
EVALUATION = "evaluation:"


class Card(NamedTuple):
    """A picture, or several of which one is chosen.

    Attributes:
      choices: by its label each one's curve and another, dashed, or None.
      is_noisy: whether smoothing is for it.
    """

    title: str
    unit: str
    choices: Mapping[str, tuple[str, str | None]]
    is_noisy: bool = True

    @property
    def units(self) -> dict[str, str]:
        """Units of the choices, by label."""
        percent = {label: scale(keys[0]) == 100 and not self.unit for label, keys in self.choices.items()}
        return {label: "%" if is_percent else self.unit for label, is_percent in percent.items()}


def cards(runs: Sequence[RunLog]) -> list[Card]:
    """The pictures for which some run has a curve.

    Raises:
      UserError: there are too many.
    """
    keys = list(dict.fromkeys(name for run in runs for name in run.metrics))
    measures = {
        what: (f"train/{what}", f"validation/{what}")
        for what in dict.fromkeys(key.partition("/")[2] for key in keys if key.startswith(("train/", "validation/")))
        if what not in _KNOWN and not what.startswith("norms/")
    }
    found = [
        Card("Loss", "nats a target", {"loss": ("train/loss", "validation/loss")}),
        Card("Other measures", "", dict(sorted(measures.items(), key=lambda item: "accuracy" not in item[0]))),
        Card("Tasks", "", {key: (f"{EVALUATION}{key}", None) for key in _tasks(runs)}),
        Card("Throughput", "tokens a second", {"": ("train/tokens_per_second", None)}),
        Card("MFU", "% of the peak", {"": ("train/mfu", None)}),
        Card("Data wait", "seconds a step", {"": ("train/data_wait_seconds", None)}),
        Card("Learning rate", "", {"": ("train/learning_rate", None)}, is_noisy=False),
        Card("Gradient norm", "", {"": ("train/grad_norm", None)}),
    ]
    if max(len(card.choices) for card in found) > _MOST_CHOICES:
        raise UserError(f"{runs[0].name} and the others log more than {_MOST_CHOICES} figures: take fewer runs")
    held = {name for run in runs for name, _ in _held(run)}
    return [card for card in found if any(key in held for keys in card.choices.values() for key in keys)]


def _tasks(runs: Sequence[RunLog]) -> list[str]:
    """The figures of evaluation.jsonl of which some run has more than one."""
    return list(dict.fromkeys(key for run in runs for key, of in run.evaluation.items() if len(of.steps) > 1))


def _held(run: RunLog) -> Iterator[tuple[str, Curve]]:
    yield from run.metrics.items()
    yield from ((f"{EVALUATION}{name}", curve) for name, curve in run.evaluation.items())


def drawn(runs: Sequence[RunLog], shown: Sequence[Card]) -> dict[str, Any]:
    """All that the script needs, as JSON: `cards`, `groups` and `runs`.

    A run's `curves` are [index of its steps, values] or, where each point stands for several rows, [index of its steps,
    means, lowest, highest]; its `steps` are lists of a step and how much is added for each of the next. On an axis a
    run has steps and where they lie, with lines between them, or why that is not known.
    """
    scales = {key: scale(key) for card in shown for keys in card.choices.values() for key in keys if key is not None}
    held = [{name: curve for name, curve in _held(run) if name in scales} for run in runs]
    lengths = [min(len(curve.steps), _MOST) for curves in held for curve in curves.values()]
    are_many = sum(lengths) > _POINTS
    most = max(_FEWEST, _POINTS // sum(length > _FEWEST for length in lengths)) if are_many else _MOST
    variants = list(dict.fromkeys(run.variant for run in runs))
    found = []
    for run, curves in zip(runs, held, strict=True):
        steps: dict[tuple[int, ...], int] = {}
        packed = {}
        for name, curve in curves.items():
            at, *values = _few(curve, most)
            if len(at):
                own = tuple(np.diff(at, prepend=0).tolist())
                index = steps.setdefault(own, len(steps))
                packed[name] = [index, *([_short(x * scales[name]) for x in some] for some in values)]
        axes = {name: axis(run, name) for name in (TOKENS, FLOPS, SECONDS)}
        found.append(
            {
                **{"name": label(run.name), "group": variants.index(run.variant), "steps": list(steps), "axes": axes},
                **{"curves": packed, "levels": levels(run)},
            }
        )
    groups = [label(variant) for variant in variants]
    return {"cards": [card._asdict() | {"units": card.units} for card in shown], "groups": groups, "runs": found}


def scale(key: str) -> int:
    """Returns the factor by which a figure is multiplied for drawing: 100 for shares, else 1."""
    metric = metrics.declared(key.removeprefix(EVALUATION))
    return 100 if metric is not None and metric.is_share else 1


def axis(run: RunLog, name: str) -> tuple[list[int], Sequence[float]] | str:
    """Some steps of a run and where they lie on an axis, with lines between them; or why that is not known."""
    return _seconds(run) if name == SECONDS else _work(run, (TOKENS, FLOPS).index(name))


def label(text: str) -> str:
    """A name without what no font has."""
    text = "".join(c if c.isprintable() and not "\ud800" <= c <= "\udfff" else "�" for c in text)
    return text if len(text) <= 100 else f"{text[:99]}…"


def _few(curve: Curve, most: int) -> tuple[np.ndarray, ...]:
    """Steps and values of the points that are drawn; of a long curve means, and the lowest and highest of each."""
    is_drawn = np.isfinite(curve.values)
    steps, values = curve.steps[is_drawn], curve.values[is_drawn]
    if len(steps) <= most:
        return steps, values
    # Three figures a point.
    begins = np.linspace(0, len(steps), most // 3, endpoint=False).astype(int)
    counts = np.diff(begins, append=len(steps))
    middle = steps[begins + counts // 2]
    means = np.add.reduceat(values, begins) / counts
    return middle, means, np.minimum.reduceat(values, begins), np.maximum.reduceat(values, begins)


def _short(value: float) -> float | int:
    """A figure with five digits."""
    value = float(f"{value:.5g}")
    return int(value) if value.is_integer() and abs(value) < 1e9 else value


def levels(run: RunLog) -> list[tuple[str, float]]:
    """What the evaluation compares the loss with: of each task the add-one unigram's, and the model's on text."""
    last = {name: float(curve.values[-1]) for name, curve in run.evaluation.items()}
    return [
        (label(name), _short(value))
        for name, value in last.items()
        if name.endswith(("/real_loss", "/unigram_loss")) and math.isfinite(value)
    ][:8]


def _work(run: RunLog, which: int) -> tuple[list[int], list[int]] | str:
    """Steps, and the tokens (`which` is 0) or model FLOPs (1) up to them; or why they are not known."""
    try:
        resolved = config.from_saved(run.config["config"], run.config.get("modules"))
        stages = config.resolve_phases(resolved)
        counts = [
            (phase_costs.num_tokens(resolved, stage), phase_costs.model_flops(resolved, stage)) for stage in stages
        ]
        for start in run.config.get("history", ()):
            for field in start["changes"]:
                if _decides(field, resolved):
                    return f"{label(field)} changed at step {int(start['step'])}"
    except (UserError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        return f"its config cannot be read ({one_line(error)})"
    of_stages = [
        (stage.end_step - stage.first_step) * count[which] for stage, count in zip(stages, counts, strict=True)
    ]
    return [0, *(stage.end_step for stage in stages)], list(itertools.accumulate(of_stages, initial=0))


def _decides(field: str, run: config.Run) -> bool:
    """Whether a change of a field changes what a step costs, or which steps are in which phase."""
    if field == "train.steps":
        return bool(run.train.phases)
    if field.partition(".")[0] not in ("model", "objective", "data", "train"):
        return False
    parts = field.split(".")
    known = [name for n in range(len(parts), 0, -1) if (name := ".".join(parts[:n])) in resume.FIELDS]
    return bool(known) and resume.FIELDS[known[0]] in ("fixed", "read")


def _seconds(run: RunLog) -> tuple[list[int], list[float]] | str:
    """Steps, and the seconds of all steps up to them; or why these are not known."""
    took = run.metrics.get("train/step_seconds")
    if took is None or not np.isfinite(took.values).all() or (took.values < 0).any():
        return "how long its steps took is not logged"
    until = np.cumsum(took.values * np.diff(took.steps, prepend=0))
    picked = np.unique(np.linspace(0, len(until) - 1, min(_KNOTS, len(until))).astype(int))
    return [0, *took.steps[picked].tolist()], [0, *map(_short, until[picked])]
