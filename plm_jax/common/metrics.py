"""Declarations of metrics: the unit of each, its direction, and the count of the rows that it is computed from.

Files hold fractions from 0 to 1 and correlations from -1 to 1; people read both in per cent. Metrics that their papers
define on 0 to 100, such as BLEU, are declared as points and stay so everywhere. A metric of your own declares itself:

    from plm_jax.common import metrics

    metrics.declare("wer", metrics.Metric(better="less", unit="fraction", rows=("examples",)))

Reports give no verdict on a metric without a declaration, and `evaluation.select` rejects it.
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
# Limits of the values of a metric by its unit.
_RANGES = {"fraction": (0.0, 1.0), "correlation": (-1.0, 1.0), "points": (0.0, 100.0)}
# Units that people read in per cent.
_SHARES = ("fraction", "correlation")


@dataclass(frozen=True)
class Metric:
    """Declaration of a metric.

    Attributes:
      better: whether more or less of it is better; empty for a figure that describes data or a baseline.
      unit: `fraction` (0 to 1), `correlation` (-1 to 1), `points` (0 to 100), `nats`, `count`, or empty for another.
      rows: names of counts that an evaluation reports next to it; the first one that is present is the number of test
        rows over which the metric averages.
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
        """1 where more is better, -1 where less is, 0 where neither is declared."""
        return {"more": 1, "less": -1, "": 0}[self.better]

    @property
    def is_share(self) -> bool:
        """Whether people read it in per cent."""
        return self.unit in _SHARES

    @property
    def range(self) -> tuple[float, float] | None:
        """The least and the greatest value; None: there are no such limits."""
        return _RANGES.get(self.unit)

    def from_percent(self, value: float) -> float:
        """Converts a figure that a paper prints, shares in per cent, to the unit of files."""
        return value / 100 if self.is_share else value


_OF_EXAMPLES = Metric("more", "fraction", ("examples",))
_CORRELATION = Metric("more", "correlation", ("examples",))
_POINTS = Metric("more", "points", ("examples",))
_NATS, _FRACTION, _COUNT = Metric("less", "nats"), Metric(unit="fraction"), Metric(unit="count")
_LESS = Metric("less")
_DECLARED: dict[str, Metric] = {
    # Losses, and metrics of targets in text. The nats of a term are called NAME_loss.
    **dict.fromkeys(("loss", "nll", "real_loss"), _NATS),
    "unigram_loss": Metric(unit="nats"),
    "accuracy": Metric("more", "fraction", ("examples", "tokens")),
    "boundary_accuracy": Metric("more", "fraction", ("tokens",)),
    "pair_accuracy": Metric("more", "fraction", ("pairs",)),
    **dict.fromkeys(("discriminator_accuracy", "discriminator_auc"), Metric("more", "fraction")),
    **dict.fromkeys(("pair_constant_accuracy", "discriminator_constant_accuracy", "replaced"), _FRACTION),
    **dict.fromkeys(("perplexity", "token_perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte"), _LESS),
    # Labelled rows, answers to prompts, and T5's tasks.
    **dict.fromkeys(
        ("f1", "exact_match", "em", "mean_3class_f1", "token_accuracy", "precision", "recall"), _OF_EXAMPLES
    ),
    **dict.fromkeys(("strict_precision", "strict_recall", "strict_f1"), _OF_EXAMPLES),
    **dict.fromkeys(("matthews", "pearson", "spearman"), _CORRELATION),
    **dict.fromkeys(("matthews_corrcoef", "pearson_corrcoef", "spearman_corrcoef"), _CORRELATION),
    **dict.fromkeys(("bleu", "chrf", "rouge1", "rouge2", "rougeLsum"), _POINTS),
    "mse": _LESS,
    **dict.fromkeys(("chance", "chance_low", "chance_high"), _FRACTION),
    # lm-eval's tasks.
    **dict.fromkeys(("acc", "acc_norm", "acc_bytes", "acc_mutual_info"), Metric("more", "fraction")),
    # Training.
    **dict.fromkeys(("mfu", "padding_share"), _FRACTION),
    **dict.fromkeys(("examples", "tokens", "real_tokens", "length", "pairs", "texts", "words", "bytes"), _COUNT),
}
_BUILT_IN = frozenset(_DECLARED)
# Answers that look at no input, in the unit of the metric that they are measured by.
BASELINES = ("most_frequent_", "trivial_")
_DEVIATIONS = ("_deviation", "_stderr")


def declare(name: str, metric: Metric) -> None:
    """Declares a metric of your own, for every figure of this name, whatever the source.

    Raises:
      UserError: the name is declared otherwise.
    """
    if _DECLARED.setdefault(name, metric) != metric:
        raise UserError(f"metric '{name}' is declared as {_DECLARED[name]}, not {metric}: give yours another name")


def declared(name: str) -> Metric | None:
    """Returns the declaration of a figure, such as `SOURCE/accuracy` or `SOURCE/5_shots/accuracy`; None: it has none.

    A deviation, and a baseline with one of the prefixes BASELINES, has the unit of its metric and no direction.
    """
    base = _base(name)
    if base in _DECLARED:
        return _DECLARED[base]
    stripped = [base.removeprefix(prefix) for prefix in BASELINES] + [base.removesuffix(end) for end in _DEVIATIONS]
    of = next((_DECLARED[other] for other in stripped if other in _DECLARED), None)
    if of is not None:
        return Metric(unit=of.unit)
    return _NATS if base.endswith("_loss") else None


def of_users(names: Iterable[str]) -> dict[str, Metric]:
    """Returns the declarations of these figures that this package does not have itself."""
    bases = set(map(_base, names)) - _BUILT_IN
    return {name: metric for name, metric in _DECLARED.items() if name in bases}


def _base(name: str) -> str:
    """The name of a figure without its source; lm-eval adds a comma and the name of its filter."""
    return name.rpartition("/")[2].partition(",")[0]


def fits(metric: Metric, value: float) -> bool:
    """Whether a value lies in the range of a metric, except for rounding."""
    low, high = metric.range or (-math.inf, math.inf)
    return not math.isfinite(value) or low - 1e-6 <= value <= high + 1e-6


def percent(metric: Metric | None, values: Iterable[float]) -> int:
    """Returns the factor by which people read these values of a metric: 100 of shares, else 1."""
    return 100 if metric is not None and metric.is_share and all(fits(metric, value) for value in values) else 1


def shown(name: str, value: float, digits: int = 4) -> str:
    """Formats a figure for people: shares in per cent, whole numbers without decimals, others with `digits` of them."""
    return shown_seeds(declared(name), [value], digits).removesuffix("." + "0" * digits)


def shown_seeds(metric: Metric | None, values: Sequence[float], digits: int = 3) -> str:
    """Formats the mean of a metric over seeds, and of several seeds their sample standard deviation."""
    scale = percent(metric, values)
    digits = 2 if scale == 100 else digits
    text = f"{scale * statistics.mean(values):,.{digits}f}"
    if len(values) > 1:
        with np.errstate(invalid="ignore"):  # A diverged run's value is no number, and then the deviation is none.
            text += f" ± {scale * np.std(values, ddof=1):,.{digits}f}"
    return f"{text} %" if scale == 100 else text
