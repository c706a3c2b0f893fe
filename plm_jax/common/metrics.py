"""Declarations of metrics: the unit, the direction, and the names of the counts of test rows.

Files store fractions from 0 to 1 and correlations from -1 to 1; reports show both in percent. Metrics that are defined
on 0 to 100, such as BLEU, are declared as points and have values from 0 to 100 everywhere. Declare a metric of your own
with:

    from plm_jax.common import metrics

    metrics.declare("wer", metrics.Metric(better="less", unit="fraction", rows=("examples",)))

A metric without a declaration gets no verdict in reports, and `evaluation.select` rejects it.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from plm_jax.common.errors import UserError

Unit = Literal["fraction", "correlation", "points", "nats", "count", ""]
Better = Literal["more", "less", ""]
# Limits of a metric's values, by unit.
_RANGES = {"fraction": (0.0, 1.0), "correlation": (-1.0, 1.0), "points": (0.0, 100.0)}
# Units that reports show in percent.
_SHARES = ("fraction", "correlation")


@dataclass(frozen=True)
class Metric:
    """Declaration of a metric.

    Attributes:
      better: `more` or `less`: whether larger or smaller values are better. Empty for a figure that describes data or a
        baseline.
      unit: `fraction` (0 to 1), `correlation` (-1 to 1), `points` (0 to 100), `nats`, `count`, or empty for any other.
      rows: names of counts that an evaluation reports next to the metric. The first one that is present is the number
        of test rows that the metric averages over.
    """

    better: Better = ""
    unit: Unit = ""
    rows: tuple[str, ...] = ()

    def __post_init__(self):
        for name, kinds in (("better", Better), ("unit", Unit)):
            if getattr(self, name) not in get_args(kinds):
                raise UserError(
                    f"{name} of a metric is {getattr(self, name)!r}: use one of {', '.join(get_args(kinds))}"
                )

    @property
    def sign(self) -> int:
        """1 if larger values are better, -1 if smaller ones are, 0 if no direction is declared."""
        return {"more": 1, "less": -1, "": 0}[self.better]

    @property
    def is_share(self) -> bool:
        """Whether the unit is a fraction or a correlation."""
        return self.unit in _SHARES

    @property
    def range(self) -> tuple[float, float] | None:
        """Smallest and largest value, or None if the unit has no limits."""
        return _RANGES.get(self.unit)

    def from_percent(self, value: float) -> float:
        """Converts a figure from a paper to the stored unit: divides a fraction or a correlation by 100."""
        return value / 100 if self.is_share else value


_OF_EXAMPLES = Metric("more", "fraction", ("examples",))
_CORRELATION = Metric("more", "correlation", ("examples",))
_POINTS = Metric("more", "points", ("examples",))
_NATS, _FRACTION, _COUNT = Metric("less", "nats"), Metric(unit="fraction"), Metric(unit="count")
_LESS = Metric("less")
_DECLARED: dict[str, Metric] = {
    # Losses, and metrics of targets in text. The loss of a term, in nats, is called NAME_loss.
    **dict.fromkeys(("loss", "nll", "real_loss"), _NATS),
    "unigram_loss": Metric(unit="nats"),
    "accuracy": Metric("more", "fraction", ("examples", "tokens")),
    "boundary_accuracy": Metric("more", "fraction", ("tokens",)),
    "pair_accuracy": Metric("more", "fraction", ("pairs",)),
    **dict.fromkeys(("discriminator_accuracy", "discriminator_auc"), Metric("more", "fraction")),
    **dict.fromkeys(("pair_constant_accuracy", "discriminator_constant_accuracy", "replaced"), _FRACTION),
    **dict.fromkeys(("perplexity", "token_perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte"), _LESS),
    # Labeled rows, answers to prompts, and T5's tasks.
    **dict.fromkeys(
        ("f1", "exact_match", "em", "mean_3class_f1", "token_accuracy", "precision", "recall"),
        _OF_EXAMPLES,
    ),
    **dict.fromkeys(("f1_micro", "f1_macro", "strict_precision", "strict_recall", "strict_f1"), _OF_EXAMPLES),
    **dict.fromkeys(("matthews", "pearson", "spearman"), _CORRELATION),
    **dict.fromkeys(("matthews_corrcoef", "pearson_corrcoef", "spearman_corrcoef"), _CORRELATION),
    **dict.fromkeys(("bleu", "chrf", "rouge1", "rouge2", "rougeLsum"), _POINTS),
    "mse": _LESS,
    **dict.fromkeys(("chance", "chance_low", "chance_high"), _FRACTION),
    # lm-eval's tasks.
    **dict.fromkeys(("acc", "acc_norm", "acc_bytes", "acc_mutual_info"), Metric("more", "fraction")),
    # Training.
    **dict.fromkeys(("mfu", "real_mfu", "padding_share"), _FRACTION),
    **dict.fromkeys(("examples", "tokens", "real_tokens", "length", "pairs", "texts", "words", "bytes"), _COUNT),
}
_BUILT_IN = frozenset(_DECLARED)
# Prefixes for predictors that ignore the input, in the unit of the metric that follows.
BASELINES = ("most_frequent_", "trivial_")
_DEVIATIONS = ("_deviation", "_stderr")


def declare(name: str, metric: Metric) -> None:
    """Declares a metric of your own. The declaration applies to all figures of this name, whatever their source.

    Raises:
      UserError: the name already has another declaration.
    """
    if _DECLARED.setdefault(name, metric) != metric:
        raise UserError(f"metric '{name}' is declared as {_DECLARED[name]}, not {metric}: use another name for yours")


def declared(name: str) -> Metric | None:
    """Returns the declaration of a figure such as `SOURCE/accuracy`; None if there is none.

    The source may be followed by a group, as in `SOURCE/5_shots/accuracy`. The deviation or a baseline of a declared
    metric has the metric's unit and no direction. Names of deviations end in `_deviation` or `_stderr`; names of
    baselines begin with one of the prefixes in `BASELINES`. Any other name that ends in `_loss` counts as a loss in
    nats.
    """
    base = _base(name)
    if base in _DECLARED:
        return _DECLARED[base]
    stripped = [base.removeprefix(prefix) for prefix in BASELINES] + [base.removesuffix(end) for end in _DEVIATIONS]
    metric = next((_DECLARED[other] for other in stripped if other in _DECLARED), None)
    if metric is not None:
        return Metric(unit=metric.unit)
    return _NATS if base.endswith("_loss") else None


def of_users(names: Iterable[str]) -> dict[str, Metric]:
    """Returns the declarations of these figures' metrics by name, without built-in declarations."""
    bases = set(map(_base, names)) - _BUILT_IN
    return {name: metric for name, metric in _DECLARED.items() if name in bases}


def _base(name: str) -> str:
    """Returns the name of a figure without its source, and without the `,FILTER` that lm-eval appends."""
    return name.rpartition("/")[2].partition(",")[0]


def groups(name: str) -> list[str]:
    """Returns the prefixes of a metric's name, longest first: `a/5_shots` and `a` for `a/5_shots/accuracy`."""
    parts = name.split("/")[:-1]
    return ["/".join(parts[:n]) for n in range(len(parts), 0, -1)]


def fits(metric: Metric, value: float) -> bool:
    """Whether a value is in the range of a metric, up to rounding. NaN and infinities count as in the range."""
    low, high = metric.range or (-math.inf, math.inf)
    return not math.isfinite(value) or low - 1e-6 <= value <= high + 1e-6


def percent(metric: Metric | None, values: Iterable[float]) -> int:
    """Returns 100 if reports show these values of the metric in percent, else 1.

    Reports show the values in percent if the metric is a fraction or a correlation and `fits` accepts all values.
    """
    return 100 if metric is not None and metric.is_share and all(fits(metric, value) for value in values) else 1


def shown(name: str, value: float, digits: int = 4) -> str:
    """Formats a figure for reports.

    A value that reports show in percent (`percent`) has two decimals. Any other value has `digits` decimals, or none if
    all of them would be zero.
    """
    return shown_seeds(declared(name), [value], digits).removesuffix("." + "0" * digits)


def shown_seeds(metric: Metric | None, values: Sequence[float], digits: int = 3) -> str:
    """Formats the mean of a metric over seeds, followed by the sample standard deviation if there are several values.

    Values that reports show in percent (`percent`) have two decimals, and other values have `digits` decimals.
    """
    scale = percent(metric, values)
    digits = 2 if scale == 100 else digits
    text = f"{scale * statistics.mean(values):,.{digits}f}"
    if len(values) > 1:
        with np.errstate(invalid="ignore"):  # The deviation is NaN if a diverged run's value is.
            text += f" ± {scale * np.std(values, ddof=1):,.{digits}f}"
    return f"{text} %" if scale == 100 else text
