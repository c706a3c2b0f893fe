"""Tables and texts of a report, with the text of runs escaped."""

import collections
import html
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax import config
from plm_jax.common import metrics
from plm_jax.experiments import comparison, report_curves
from plm_jax.experiments.report_curves import label
from plm_jax.experiments.run_logs import RunLog, Sweep, select_task_metrics
from plm_jax.objectives import Objective

# Largest number of differences of a variant, in the table and in its summary; of samples of a run; of characters of a
# text and of a config.
_MAX_DIFFERENCES, _MAX_SUMMARY, _MAX_SAMPLES, _MAX_CHARACTERS, _MAX_CONFIG = 100, 4, 9, 600, 2**16
_SIZES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_SPANS = ((86400, "days"), (3600, "h"), (60, "min"))
# Fields that do not affect what is learned.
_IGNORED_FIELDS = ("train.seed", "data.cache_dir")
_LONG_COLUMNS = ("Base", "Here")
_VERDICTS = {comparison.AGREES: "agrees", comparison.DISAGREES: "disagrees", comparison.NOT_SIGNIFICANT: ""}


def papers(sweep: Sweep, runs: Sequence[RunLog]) -> str:
    """Returns HTML tables that compare a sweep's runs with its reference run and with published results.

    If no runs are compared, `sweep.note` replaces the comparison. The result is empty if the sweep has neither
    comparisons, nor a note, nor published results.
    """
    marks = _marks(runs, sweep.prefix)
    content, verdicts = "", []
    for name, metric in sweep.compared.items():
        lines = comparison.paper_table(sweep.results, sweep.published, sweep.compared, name)
        if "Verdict" in lines[0]:
            column = lines[0].index("Verdict")
            verdicts = [line[column] for line in lines[2:]]
        content += f"<h3>{_escaped(comparison.title(name, metric, sweep.published))}</h3>{_grid(lines, marks)}"
    further_metrics = list(
        dict.fromkeys(name for row in sweep.published for name in row.figures if name not in sweep.compared)
    )
    if further_metrics:
        figures = [
            [f"{row.figures[name]:,.6g}" if name in row.figures else "" for name in further_metrics]
            for row in sweep.published
        ]
        lines = [
            ("Run", *further_metrics),
            *((row.run, *cells) for row, cells in zip(sweep.published, figures, strict=True)),
        ]
        content += f"<h3>Further results of the paper</h3>{_grid(lines, marks)}"
    if sweep.compared:
        counts = collections.Counter(verdicts)
        listed = dict.fromkeys([*(_VERDICTS if sweep.published else ()), *counts])
        summary = " ".join(_verdict(verdict, f"{counts[verdict]} × {verdict}") for verdict in listed)
        content = f'<p>{summary}</p><p class="note">{comparison.METHOD}</p>{content}'
    elif sweep.note:
        content = f'<p class="note">{_escaped(sweep.note)}</p>{content}'
    sources = dict.fromkeys(row.source for row in sweep.published if row.figures)
    return content + "".join(f'<p class="note">Source: {html.escape(source)}</p>' for source in sources)


def setups(sweep: Sweep) -> str:
    """Returns a table of settings of a sweep's runs that differ from the paper's, or that the paper does not state.

    The result is empty if there are no such settings.
    """
    if not sweep.setups:
        return ""
    note = "Settings of these runs that differ from the paper's, or that the paper does not state."
    return f'<p class="note">{note}</p>{_grid(sweep.setups, {})}'


def overview(runs: Sequence[RunLog]) -> str:
    """Returns a table of the progress, losses and speed of each variant."""
    # For each column, a function that reads the value of a run, and one that formats the values of all seeds.
    columns: dict[str, tuple[Callable[[RunLog], float | None], Callable[[Sequence[float]], str]]] = {
        "Steps": (_last_step, _of_mean(lambda value: f"{value:,.0f}")),
        "Tokens": (lambda run: _reached(run, report_curves.TOKENS), _of_mean(_short)),
        "Model FLOPs": (lambda run: _reached(run, report_curves.FLOPS), _of_mean(lambda value: f"{value:.3g}")),
        "Loss": (lambda run: _last(run, "train/loss"), _of_metric("loss")),
        "Validation loss": (lambda run: _last(run, "validation/loss"), _of_metric("loss")),
        "Validation accuracy": (lambda run: _last(run, "validation/accuracy"), _of_metric("accuracy")),
        "Tokens/s": (lambda run: _median(run, "train/tokens_per_second"), _of_mean(_short)),
        "MFU": (lambda run: _median(run, "train/mfu"), _of_mean(_percent)),
        "Data wait": (_data_wait, _of_mean(_percent)),
        "Training time": (lambda run: _reached(run, report_curves.SECONDS), _of_mean(_span)),
    }
    variants = _variants(runs)
    values = {
        name: [[value for run in seed_runs if (value := read(run)) is not None] for seed_runs in variants.values()]
        for name, (read, _) in columns.items()
    }
    names = [name for name in columns if any(values[name])]
    head = ("Run", *(["Seeds"] if len(variants) < len(runs) else []), *names)
    lines: list[tuple[str, ...]] = [head]
    for index, (variant, seed_runs) in enumerate(variants.items()):
        seed_cells = [str(len(seed_runs))] if "Seeds" in head else []
        lines.append(
            (
                label(variant),
                *seed_cells,
                *(columns[name][1](values[name][index]) if values[name][index] else "" for name in names),
            )
        )
    notes = ["Loss is from the last logged row. Tokens include padding. Speeds are medians of logged values."]
    if "Tokens/s" in names and "MFU" not in names:
        notes.append("MFU is unknown because the peak FLOP/s of these devices is unknown.")
    return _grid(lines, _marks(runs)) + f'<p class="note">{" ".join(notes)}</p>'


def targets(runs: Sequence[RunLog]) -> str:
    """Returns an HTML list of the targets of each variant."""
    variants_by_target: dict[str, list[str]] = {}
    for variant, (run, *_) in _variants(runs).items():
        for target in _targets(run.config["config"]):
            variants_by_target.setdefault(target, []).append(_escaped(variant))
    items = "".join(
        f"<li>{', '.join(names)}: {html.escape(target)}.</li>" for target, names in variants_by_target.items()
    )
    return (
        '<p class="note">Targets of loss and accuracy (<code>real_loss</code> and <code>unigram_loss</code> cover '
        f'held-out text only, without special tokens and sentinels):</p><ul class="note">{items}</ul>'
    )


def _targets(run: Mapping[str, Any]) -> list[str]:
    """Returns descriptions of the targets of documents and of examples, for the kinds of sources that a config has."""
    kind = run["objective"]["kind"]
    objective = Objective.choices.get(kind)
    sources = [config.Source.choices.get(source["kind"]) for source in run.get("data", {}).get("sources", {}).values()]
    with_targets = [source is not None and issubclass(source, config.InputsTargetsSource) for source in sources]
    document_targets = (
        []
        if sources and all(with_targets)
        else [objective.targets if objective else f"the targets of objective '{kind}'"]
    )
    return document_targets + ["the targets of the examples, and the end token"] * any(with_targets)


def tasks(runs: Sequence[RunLog], sweeps: Sequence[Sweep]) -> str:
    """Returns tables of task results, compared with trivial predictors and with the baselines of sweeps."""
    content, sweep_variants = "", set()
    for sweep in sweeps:
        marks = _marks(runs, sweep.prefix)
        sweep_variants |= {f"{sweep.prefix}{result['name']}" for result in sweep.results}
        content += _grid(comparison.table(sweep.results), marks)
        if sweep.baselines:
            content += _grid(comparison.baselines_table(sweep.results, sweep.baselines), marks)
    single_runs = [
        {
            **{"name": label(run.variant), "error": None, "minutes": 0.0},
            "metrics": {name: float(curve.values[-1]) for name, curve in select_task_metrics(run.evaluation).items()},
        }
        for run in runs
        if run.variant not in sweep_variants and run.evaluation
    ]
    if any(result["metrics"] for result in single_runs):
        content += _grid(
            [line[:-1] for line in comparison.table(single_runs)], _marks(runs)
        )  # The minutes are unknown.
    return content


def differences(runs: Sequence[RunLog], sweeps: Sequence[Sweep]) -> str:
    """Returns collapsed sections with the differences between the config of each variant and the base config.

    The result is empty if there is a single variant and no sweep.
    """
    variants, name, base = _variants(runs), *_base(runs, sweeps)
    if len(variants) == 1 and not sweeps:
        return ""
    changes = {}
    for variant, (run, *_) in variants.items():
        changed = [row for row in config.differences(base, run.config["config"]) if row[0] not in _IGNORED_FIELDS]
        changes[label(variant)] = [
            (field, config.brief(before), config.brief(after)) for field, before, after in changed
        ]
    common = [row for row in next(iter(changes.values())) if all(row in rows for rows in changes.values())]
    variant_changes = {variant: [row for row in rows if row not in common] for variant, rows in changes.items()}
    content, marks = f'<p class="note">Base: {_escaped(name)}.</p>', _marks(runs)
    for variant, rows in (({"all": common} if common else {}) | variant_changes).items():
        first = ", ".join(f"{field} = {after}" for field, _, after in rows[:_MAX_SUMMARY]) or "same as the base"
        remaining = f" and {len(rows) - _MAX_SUMMARY} more" if len(rows) > _MAX_SUMMARY else ""
        summary = f"{marks.get(variant, '')}<b>{_escaped(variant)}</b>: {html.escape(first + remaining)}"
        table = _grid([("Field", "Base", "Here"), *rows[:_MAX_DIFFERENCES]], {})
        content += f"<details><summary>{summary}</summary>{table}</details>" if rows else f"<p>{summary}</p>"
    return content


def base_config(runs: Sequence[RunLog], sweeps: Sequence[Sweep]) -> str:
    """Returns a collapsed section with the base config."""
    name, base = _base(runs, sweeps)
    text = json.dumps(base, indent=2)
    if len(text) > _MAX_CONFIG:
        text = f"{len(text):,} characters: see config.json"
    return f"<details><summary>{_escaped(name)}: config</summary><pre>{html.escape(text)}</pre></details>"


def samples(runs: Sequence[RunLog]) -> str:
    """Returns the last samples of each variant, from its first run that has samples."""
    content = ""
    variants = [seed_runs for seed_runs in _variants(runs).values() if any(run.samples for run in seed_runs)]
    for seed_runs in variants:
        run = next(run for run in seed_runs if run.samples)
        rows = "".join(map(_sample, run.samples[-_MAX_SAMPLES:]))
        step = run.samples[-1]["step"]
        is_open = " open" if len(variants) == 1 else ""
        content += f"<details{is_open}><summary>{_escaped(run.name)}, step {step:,}</summary>{rows}</details>"
    return content


def _sample(row: Mapping[str, object]) -> str:
    content = ""
    for field in ("task", "prompt", "answer", "target"):
        if row.get(field) is not None:
            text = str(row[field])
            text = text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"
            content += f"<dt>{field}</dt><dd>{html.escape(text)}</dd>"
    return f'<dl class="sample">{content}</dl>'


def _base(runs: Sequence[RunLog], sweeps: Sequence[Sweep]) -> tuple[str, dict]:
    """Returns the name and the config of the base.

    This is the base of the sweep if there is exactly one sweep and its base is stored, otherwise the first run.
    """
    if len(sweeps) == 1 and sweeps[0].base:
        return f"the base of {label(sweeps[0].name)}", sweeps[0].base
    return label(runs[0].name), runs[0].config["config"]


def _variants(runs: Sequence[RunLog]) -> dict[str, list[RunLog]]:
    variants: dict[str, list[RunLog]] = {}
    for run in runs:
        variants.setdefault(run.variant, []).append(run)
    return variants


def _marks(runs: Sequence[RunLog], prefix: str = "") -> dict[str, str]:
    """Returns the color swatch of each variant, by the variant's name without the prefix."""
    marks = {variant: f'<i class="swatch" data-group="{index}"></i>' for index, variant in enumerate(_variants(runs))}
    return {label(name.removeprefix(prefix)): mark for name, mark in marks.items()}


def _grid(lines: comparison.Lines, marks: Mapping[str, str]) -> str:
    """Returns a table in a scrollable box; the first line is the header."""
    head, *rows = lines
    kinds = [
        ' class="long"' if name in _LONG_COLUMNS else ' class="text"' if name in comparison.TEXTS else ""
        for name in head
    ]
    content = "".join(f"<th{kind}>{_escaped(name)}</th>" for kind, name in zip(kinds, head, strict=True))
    for row in rows:
        cells = [_cell(name, text) for name, text in zip(head, row, strict=True)]
        cells[0] = marks.get(row[0], "") + cells[0]
        content += "<tr>" + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, cells, strict=True)) + "</tr>"
    return f'<div class="box"><table><tr>{content}</table></div>'


def _cell(column: str, text: str) -> str:
    if column == "Verdict" and text:
        return _verdict(text, text)
    mean, sign, deviation = text.partition(" ± ")
    return _escaped(mean) + (f'<span class="spread">{sign}{_escaped(deviation)}</span>' if sign else "")


def _verdict(verdict: str, text: str) -> str:
    return f'<span class="verdict {_VERDICTS.get(verdict, "")}">{_escaped(text)}</span>'


def _escaped(text: str) -> str:
    return html.escape(label(text))


def _last_step(run: RunLog) -> float | None:
    return max((curve.steps[-1] for curve in run.metrics.values()), default=None)


def _last(run: RunLog, key: str) -> float | None:
    """Returns the last value of a metric, or None if the metric is not logged.

    Returns NaN for a training metric that has no value at the run's last step, because its value was not finite.
    """
    curve = run.metrics.get(key)
    if curve is None:
        return None
    is_current = key.startswith("validation/") or curve.steps[-1] == _last_step(run)
    return float(curve.values[-1]) if is_current else math.nan


def _median(run: RunLog, key: str) -> float | None:
    curve = run.metrics.get(key)
    return None if curve is None else float(np.median(curve.values))


def _data_wait(run: RunLog) -> float | None:
    """Returns the fraction of the training time that the run's first process waited for batches; None if unknown."""
    wait_seconds, step_seconds = (run.metrics.get(f"train/{name}_seconds") for name in ("data_wait", "step"))
    if wait_seconds is None or step_seconds is None or not np.array_equal(wait_seconds.steps, step_seconds.steps):
        return None
    steps = np.diff(step_seconds.steps, prepend=0)
    return float(steps @ wait_seconds.values / max(steps @ step_seconds.values, 1e-9))


def _reached(run: RunLog, axis: str) -> float | None:
    """Returns the position of the last step on an axis, or None if it is unknown."""
    positions, last_step = report_curves.axis(run, axis), _last_step(run)
    return None if isinstance(positions, str) or last_step is None else float(np.interp(last_step, *positions))


def _of_metric(name: str) -> Callable[[Sequence[float]], str]:
    return lambda values: comparison.figure(values, metrics.declared(name))


def _of_mean(format_value: Callable[[float], str]) -> Callable[[Sequence[float]], str]:
    return lambda values: format_value(statistics.mean(values))


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _short(value: float) -> str:
    return next((f"{value / size:.4g}{unit}" for size, unit in _SIZES if value >= size), f"{value:.4g}")


def _span(seconds: float) -> str:
    return next((f"{seconds / size:.3g} {unit}" for size, unit in _SPANS if seconds >= 2 * size), f"{seconds:.3g} s")
