"""A page about runs: one HTML file with its pictures inside."""

import html
import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib

from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.objectives import Objective
from plm_jax.training.telemetry import read_lines

matplotlib.use("svg")  # No display is needed.
from matplotlib import pyplot as plt

PICTURES = (
    ("Loss", "nats a target", ("train/loss", "validation/loss")),
    ("Accuracy", "share of targets", ("train/accuracy", "train/pair_accuracy")),
    ("Throughput", "tokens a second", ("train/tokens_per_second",)),
    ("Learning rate", "", ("train/learning_rate",)),
    ("Gradient norm", "", ("train/grad_norm",)),
)
STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:1rem 0}td,th{padding:.25rem .75rem;border-bottom:1px solid #ddd;text-align:right}
td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}
pre{overflow-x:auto;background:#f6f6f6;padding:1rem;font-size:13px}"""


@dataclass(frozen=True)
class RunLog:
    """What a run directory holds for a report: its config, and the lines of its two logs."""

    name: str
    config: dict
    metrics: list[dict]
    evaluation: list[dict]


def read(workdir: str) -> RunLog:
    """Reads a run directory.

    Raises:
      UserError: it is none, or it is damaged.
    """
    path = os.path.join(workdir, "config.json")
    try:
        config = json.loads(storage.read(path))
        rows = [read_lines(os.path.join(workdir, name)) for name in ("metrics.jsonl", "evaluation.jsonl")]
    except FileNotFoundError:
        raise UserError(f"{workdir} is no run directory: it has no config.json") from None
    except ValueError as error:
        raise UserError(f"{workdir} is damaged ({error}): delete the broken lines") from error
    if "config" not in config:
        raise UserError(f"{workdir} is no run directory: its config.json is not of a run")
    return RunLog(os.path.basename(os.path.normpath(workdir)), config, *rows)


def write(workdirs: Sequence[str], output: str, png: str | None = None) -> None:
    """Writes the page about some run directories to `output`, and its pictures, TITLE.png, to the folder `png`."""
    runs = [read(workdir) for workdir in workdirs]
    of_sources = [("Validation loss by source", "nats a target", keys)] if (keys := _of_sources(runs)) else []
    drawn = (*PICTURES[:1], *of_sources, *PICTURES[1:])
    pictures = ""
    for title, unit, keys in drawn:
        svg, pixels = _picture(runs, unit, keys)
        pictures += f"<h2>{title}</h2>\n{svg}\n"
        if png is not None:
            storage.write(os.path.join(png, f"{title.lower().replace(' ', '_')}.png"), pixels)
    configs = "\n".join(
        f"<details><summary>{html.escape(run.name)}: config.json</summary>"
        f"<pre>{html.escape(json.dumps(run.config, indent=2))}</pre></details>"
        for run in runs
    )
    targets = "\n".join(f"<li>{html.escape(run.name)}: {html.escape(_targets(run))}.</li>" for run in runs)
    title = "plm_jax: " + ", ".join(html.escape(run.name) for run in runs)
    page = f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body><h1>{title}</h1>
{_table(runs)}
<p>Targets of the loss and the accuracy; <code>real_loss</code> and <code>unigram_loss</code>, dashed, are on held-out
text alone, without special tokens and sentinels:</p>
<ul>{targets}</ul>
{pictures}
<h2>Configs</h2>
{configs}
</body></html>
"""
    storage.write(output, page.encode("utf-8"))


def _targets(run: RunLog) -> str:
    """What the run's objective predicts."""
    kind = run.config["config"]["objective"]["kind"]
    known = Objective.choices.get(kind)
    return known.targets if known else f"those of objective '{kind}'"


def _table(runs: Sequence[RunLog]) -> str:
    """The last figures of each run, a column a run."""
    columns = [_figures(run) for run in runs]
    names = list(dict.fromkeys(name for column in columns for name in column))
    head = "".join(f"<th>{html.escape(run.name)}</th>" for run in runs)
    body = "\n".join(
        f"<tr><td>{html.escape(name)}</td>"
        + "".join(f"<td>{column.get(name, '')}</td>" for column in columns)
        + "</tr>"
        for name in names
    )
    return f"<table><tr><th></th>{head}</tr>\n{body}</table>"


def _figures(run: RunLog) -> dict[str, str]:
    figures = {}
    validated = [row for row in run.metrics if "validation/loss" in row][-1:]
    of_validation = [{name: value for name, value in row.items() if _is_validation(name)} for row in validated]
    for row in (*run.metrics[-1:], *of_validation, *run.evaluation[-1:]):
        figures |= {name: f"{value:,.6g}" if isinstance(value, int | float) else value for name, value in row.items()}
    return figures


def _is_validation(name: str) -> bool:
    return name.startswith("validation/")


def _of_sources(runs: Sequence[RunLog]) -> list[str]:
    """Keys of the validation losses of sources and in rows of the last phase's length; none of a single source."""
    names = dict.fromkeys(name for run in runs for row in run.metrics for name in row if _is_validation(name))
    found = [name for name in names if name.endswith("/loss") and name.count("/") > 1]
    return found if len(found) > 1 else []


def _picture(runs: Sequence[RunLog], unit: str, keys: Sequence[str]) -> tuple[str, bytes]:
    """The curves of some keys over steps, as SVG and PNG; with the loss, as levels, what the evaluation compares."""
    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    for run in runs:
        for key in keys:
            points = [(row["step"], row[key]) for row in run.metrics if key in row]
            if points:
                axes.plot(*zip(*points, strict=True), label=f"{run.name} {key}", marker="." if len(points) < 30 else "")
        for row in run.evaluation[-1:] if "train/loss" in keys else ():
            for key in (key for key in row if key.endswith(("/real_loss", "/unigram_loss"))):
                color = "grey" if key.endswith("/unigram_loss") else "black"
                axes.axhline(row[key], linestyle="--", color=color, label=f"{run.name} {key}")
    axes.set(xlabel="step", ylabel=unit)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    svg, pixels = io.StringIO(), io.BytesIO()
    figure.savefig(svg, format="svg")
    figure.savefig(pixels, format="png")
    plt.close(figure)
    return svg.getvalue()[svg.getvalue().index("<svg") :], pixels.getvalue()
