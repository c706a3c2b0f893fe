"""Plots of `report --png`: curves of runs over steps."""

import io
import warnings
from collections.abc import Iterator, Sequence

import matplotlib
import numpy as np

from plm_jax.experiments.report_curves import label, levels, scale
from plm_jax.experiments.run_logs import RunLog

matplotlib.use("agg")  # Needs no display.
from matplotlib import pyplot as plt

_PICTURES = (
    ("loss", "nats per target", ("train/loss", "validation/loss")),
    ("accuracy", "% of targets", ("train/accuracy", "train/pair_accuracy")),
    ("throughput", "tokens per second", ("train/tokens_per_second",)),
    ("learning_rate", "", ("train/learning_rate",)),
    ("gradient_norm", "", ("train/grad_norm",)),
)


def pictures(runs: Sequence[RunLog]) -> Iterator[tuple[str, bytes]]:
    """Yields the name and the PNG image of each plot.

    Several seeds are drawn as their mean, with a band between the smallest and the largest value.
    """
    validation_names = {name: None for run in runs for name in run.metrics if name.startswith("validation/")}
    source_losses = [name for name in validation_names if name.endswith("/loss") and name.count("/") > 1]
    plots: list[tuple[str, str, Sequence[str]]] = [*_PICTURES]
    if len(source_losses) > 1:
        plots.insert(1, ("validation_loss_by_source", "nats per target", source_losses))
    for name, unit, keys in plots:
        with plt.rc_context({"text.parse_math": False}), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Characters that the font lacks, and curves without a range.
            yield name, _picture(runs, unit, keys)


def _picture(runs: Sequence[RunLog], unit: str, keys: Sequence[str]) -> bytes:
    figure, axes = plt.subplots(figsize=(9, 4))
    for variant in dict.fromkeys(run.variant for run in runs):
        for key in keys:
            curves = [run.metrics[key] for run in runs if run.variant == variant and key in run.metrics]
            if curves:
                steps = max((curve.steps for curve in curves), key=len)
                values = [scale(key) * np.interp(steps, *curve, left=np.nan, right=np.nan) for curve in curves]
                marker = "." if len(steps) < 30 else ""
                (line,) = axes.plot(steps, np.nanmean(values, 0), label=label(f"{variant} {key}"), marker=marker)
                if len(values) > 1:
                    band = np.nanmin(values, 0), np.nanmax(values, 0)
                    axes.fill_between(steps, *band, color=line.get_color(), alpha=0.2)
    if len(runs) == 1 and "train/loss" in keys:
        for name, value in levels(runs[0]):
            color = "grey" if name.endswith("/unigram_loss") else "black"
            axes.axhline(value, linestyle="--", color=color, label=label(f"{runs[0].name} {name}"))
    axes.set(xlabel="step", ylabel=unit)
    axes.grid(alpha=0.3)
    if lines := len(axes.get_legend_handles_labels()[0]):
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), ncols=-(-lines // 20), fontsize="small")
    pixels = io.BytesIO()
    figure.savefig(pixels, format="png", bbox_inches="tight")
    plt.close(figure)
    return pixels.getvalue()
