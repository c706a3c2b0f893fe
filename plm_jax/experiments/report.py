"""A page about runs: one HTML file with its pictures inside.

A run may be anyone's: what it says stands on the page as text, and the page may load and run nothing.
"""

import html
import io
import json
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib

from plm_jax.common import storage, strict_json
from plm_jax.common.errors import UserError, one_line
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
# Styles are in the page and in its pictures; nothing else is.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_MOST_CURVES = 500


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
        config = strict_json.read(path)
        rows = [read_lines(os.path.join(workdir, name)) for name in ("metrics.jsonl", "evaluation.jsonl")]
    except FileNotFoundError:
        raise UserError(f"{workdir} is no run directory: it has no config.json") from None
    except OSError as error:
        raise UserError(f"cannot read {workdir} ({error.strerror}): make it readable") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{workdir} is damaged ({one_line(error)}): delete the broken lines") from error
    try:
        kind = config["config"]["objective"]["kind"]
    except (LookupError, TypeError):
        kind = None
    if not isinstance(kind, str):
        raise UserError(f"{workdir} is no run directory: its config.json is not of a run")
    if not all(isinstance(row, dict) and _number(row.get("step")) is not None for row in (*rows[0], *rows[1])):
        raise UserError(f"{workdir} is damaged (a line of its logs is no object with a step): delete the broken lines")
    return RunLog(os.path.basename(os.path.normpath(workdir)), config, *rows)


def write(workdirs: Sequence[str], output: str, png: str | None = None) -> None:
    """Writes the page about some run directories to `output`, and its pictures, TITLE.png, to the folder `png`."""
    runs = [read(workdir) for workdir in workdirs]
    of_sources = [("Validation loss by source", "nats a target", keys)] if (keys := _of_sources(runs)) else []
    drawn = (*PICTURES[:1], *of_sources, *PICTURES[1:])
    pictures = ""
    for title, unit, keys in drawn:
        svg, pixels = _picture(runs, unit, keys)
        pictures += f"<h2>{html.escape(title)}</h2>\n{svg}\n"
        if png is not None:
            storage.write(os.path.join(png, f"{title.lower().replace(' ', '_')}.png"), pixels)
    configs = "\n".join(
        f"<details><summary>{html.escape(run.name)}: config.json</summary>"
        f"<pre>{html.escape(json.dumps(run.config, indent=2))}</pre></details>"
        for run in runs
    )
    targets = "\n".join(f"<li>{html.escape(run.name)}: {html.escape(_targets(run))}.</li>" for run in runs)
    title = "plm_jax: " + ", ".join(html.escape(run.name) for run in runs)
    page = f"""<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}"><title>{title}</title>
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
    storage.write(output, page.encode("utf-8", "backslashreplace"))


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
        + "".join(f"<td>{html.escape(column.get(name, ''))}</td>" for column in columns)
        + "</tr>"
        for name in names
    )
    return f"<table><tr><th></th>{head}</tr>\n{body}</table>"


def _figures(run: RunLog) -> dict[str, str]:
    figures = {}
    validated = [row for row in run.metrics if "validation/loss" in row][-1:]
    of_validation = [{name: value for name, value in row.items() if _is_validation(name)} for row in validated]
    for row in (*run.metrics[-1:], *of_validation, *run.evaluation[-1:]):
        numbers = {name: _number(value) for name, value in row.items()}
        figures |= {name: str(row[name]) if value is None else f"{value:,.6g}" for name, value in numbers.items()}
    return figures


def _number(value: Any) -> float | None:
    """A number of a log; None: it is something else, or too large for one."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and (isinstance(value, float) or abs(value) < 2**63) else None


def _label(run: RunLog, key: str) -> str:
    """What a curve is called, without what no font has."""
    text = f"{run.name} {key}"
    text = "".join(c if c.isprintable() and not "\ud800" <= c <= "\udfff" else "�" for c in text)
    return text if len(text) <= 100 else f"{text[:99]}…"


def _is_validation(name: str) -> bool:
    return name.startswith("validation/")


def _of_sources(runs: Sequence[RunLog]) -> list[str]:
    """Keys of the validation losses of sources and in rows of the last phase's length; none of a single source."""
    names = dict.fromkeys(name for run in runs for row in run.metrics for name in row if _is_validation(name))
    found = [name for name in names if name.endswith("/loss") and name.count("/") > 1]
    if len(found) > _MOST_CURVES:
        raise UserError(f"{runs[0].name} and the others have {len(found):,} validation losses: at most {_MOST_CURVES}")
    return found if len(found) > 1 else []


def _picture(runs: Sequence[RunLog], unit: str, keys: Sequence[str]) -> tuple[str, bytes]:
    """The curves of some keys over steps, as SVG and PNG; with the loss, as levels, what the evaluation compares."""
    with plt.rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Characters that the font lacks, and curves without a range.
        return _drawn(runs, unit, keys)


def _can_be_drawn(value: Any) -> bool:
    """Whether it is a number that a picture has a place for."""
    return _number(value) is not None and (math.isnan(value) or abs(value) < 1e30)


def _drawn(runs: Sequence[RunLog], unit: str, keys: Sequence[str]) -> tuple[str, bytes]:
    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    for run in runs:
        for key in keys:
            points = [(row["step"], row[key]) for row in run.metrics if _can_be_drawn(row.get(key))]
            if points:
                marker = "." if len(points) < 30 else ""
                axes.plot(*zip(*points, strict=True), label=_label(run, key), marker=marker)
        for row in run.evaluation[-1:] if "train/loss" in keys else ():
            levels = [key for key in row if key.endswith(("/real_loss", "/unigram_loss")) and _can_be_drawn(row[key])]
            for key in levels[:_MOST_CURVES]:
                color = "grey" if key.endswith("/unigram_loss") else "black"
                axes.axhline(row[key], linestyle="--", color=color, label=_label(run, key))
    axes.set(xlabel="step", ylabel=unit)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    svg, pixels = io.StringIO(), io.BytesIO()
    figure.savefig(svg, format="svg")
    figure.savefig(pixels, format="png")
    plt.close(figure)
    return svg.getvalue()[svg.getvalue().index("<svg") :], pixels.getvalue()
