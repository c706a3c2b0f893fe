"""The tables and texts of a report's page; what runs say is escaped."""

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
from plm_jax.experiments.run_logs import RunLog, Sweep, of_tasks
from plm_jax.objectives import Objective

# Of a variant so many differences are shown, and so many at first; of a run so many samples, and of each text so many
# characters; a config of no more characters.
_DIFFERENCES, _FIRST, _SAMPLES, _CHARACTERS, _CONFIG = 100, 4, 9, 600, 2**16
_SIZES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_SPANS = ((86400, "days"), (3600, "h"), (60, "min"))
# Fields whose difference is none of what is learned.
_NOTHING = ("train.seed", "data.cache_dir")
_LONG = ("Base", "Here")
_VERDICTS = {comparison.AGREES: "agrees", comparison.DISAGREES: "disagrees", comparison.NOT_RESOLVED: ""}


def papers(sweep: Sweep, runs: Sequence[RunLog]) -> str:
    """Returns tables of a sweep's runs, its reference and a paper's figures; empty if nothing is compared."""
    marks = _marks(runs, sweep.prefix)
    told, verdicts = "", []
    for name, metric in sweep.compared.items():
        lines = comparison.papers(sweep.results, sweep.published, sweep.compared, name)
        if "Verdict" in lines[0]:
            at = lines[0].index("Verdict")
            verdicts = [line[at] for line in lines[2:]]
        told += f"<h3>{_escaped(comparison.title(name, metric))}</h3>{_grid(lines, marks)}"
    others = list(dict.fromkeys(name for row in sweep.published for name in row.figures if name not in sweep.compared))
    if others:
        figures = [
            [f"{row.figures[name]:,.6g}" if name in row.figures else "" for name in others] for row in sweep.published
        ]
        lines = [("Run", *others), *((row.run, *own) for row, own in zip(sweep.published, figures, strict=True))]
        told += f"<h3>What else the paper reports</h3>{_grid(lines, marks)}"
    if sweep.compared:
        counts = collections.Counter(verdicts)
        said = " ".join(
            _verdict(verdict, f"{counts[verdict]} × {verdict}") for verdict in dict.fromkeys([*_VERDICTS, *counts])
        )
        told = f'<p>{said}</p><p class="note">{comparison.METHOD}</p>{told}'
    sources = dict.fromkeys(row.source for row in sweep.published if row.figures)
    return told + "".join(f'<p class="note">Source: {html.escape(source)}</p>' for source in sources)


def setups(sweep: Sweep) -> str:
    """Returns a table of the settings of a sweep's runs that differ from the paper's; empty if there are none."""
    if not sweep.setups:
        return ""
    note = "Settings of these runs that differ from the paper's, or that the paper does not state."
    return f'<p class="note">{note}</p>{_grid(sweep.setups, {})}'


def overview(runs: Sequence[RunLog]) -> str:
    """What each variant has reached, and how fast."""
    # How each is found of a run, and told of all seeds' values.
    columns: dict[str, tuple[Callable[[RunLog], float | None], Callable[[Sequence[float]], str]]] = {
        "Steps": (_last_step, _of_mean(lambda value: f"{value:,.0f}")),
        "Tokens": (lambda run: _reached(run, report_curves.TOKENS), _of_mean(_short)),
        "Model FLOPs": (lambda run: _reached(run, report_curves.FLOPS), _of_mean(lambda value: f"{value:.3g}")),
        "Loss": (lambda run: _last(run, "train/loss"), _of_metric("loss")),
        "Validation loss": (lambda run: _last(run, "validation/loss"), _of_metric("loss")),
        "Validation accuracy": (lambda run: _last(run, "validation/accuracy"), _of_metric("accuracy")),
        "Tokens/s": (lambda run: _median(run, "train/tokens_per_second"), _of_mean(_short)),
        "MFU": (lambda run: _median(run, "train/mfu"), _of_mean(_percent)),
        "Data wait": (_waited, _of_mean(_percent)),
        "Time of steps": (lambda run: _reached(run, report_curves.SECONDS), _of_mean(_span)),
    }
    variants = _variants(runs)
    found = {
        name: [[value for run in same if (value := of(run)) is not None] for same in variants.values()]
        for name, (of, _) in columns.items()
    }
    shown = [name for name in columns if any(found[name])]
    head = ("Run", *(["Seeds"] if len(variants) < len(runs) else []), *shown)
    lines: list[tuple[str, ...]] = [head]
    for number, (variant, same) in enumerate(variants.items()):
        seeds = [str(len(same))] if "Seeds" in head else []
        lines.append(
            (
                label(variant),
                *seeds,
                *(columns[name][1](found[name][number]) if found[name][number] else "" for name in shown),
            )
        )
    notes = ["Loss: of the last row that was logged. Tokens count padding, too. Speeds are medians of what was logged."]
    if "Tokens/s" in shown and "MFU" not in shown:
        notes.append("MFU is not known: the peak of these devices is not.")
    return _grid(lines, _marks(runs)) + f'<p class="note">{" ".join(notes)}</p>'


def targets(runs: Sequence[RunLog]) -> str:
    """What the variants predict."""
    found: dict[str, list[str]] = {}
    for variant, (run, *_) in _variants(runs).items():
        for said in _targets(run.config["config"]):
            found.setdefault(said, []).append(_escaped(variant))
    told = "".join(f"<li>{', '.join(names)}: {html.escape(said)}.</li>" for said, names in found.items())
    return (
        '<p class="note">Targets of loss and accuracy (<code>real_loss</code> and <code>unigram_loss</code> are '
        f'on held-out text alone, without special tokens and sentinels):</p><ul class="note">{told}</ul>'
    )


def _targets(run: Mapping[str, Any]) -> list[str]:
    """What is predicted of documents, and of examples with targets, where a config has such sources."""
    kind = run["objective"]["kind"]
    known = Objective.choices.get(kind)
    sources = [config.Source.choices.get(source["kind"]) for source in run.get("data", {}).get("sources", {}).values()]
    with_targets = [source is not None and issubclass(source, config.InputsTargetsSource) for source in sources]
    of_documents = [] if sources and all(with_targets) else [known.targets if known else f"those of objective '{kind}'"]
    return of_documents + ["the targets that examples come with, and the end token"] * any(with_targets)


def tasks(runs: Sequence[RunLog], sweeps: Sequence[Sweep]) -> str:
    """What runs reach on tasks, beside trivial predictors and what a sweep's file names."""
    told, swept = "", set()
    for sweep in sweeps:
        marks = _marks(runs, sweep.prefix)
        swept |= {f"{sweep.prefix}{result['name']}" for result in sweep.results}
        told += _grid(comparison.table(sweep.results), marks)
        if sweep.rivals:
            told += _grid(comparison.beside(sweep.results, sweep.rivals), marks)
    others = [
        {
            **{"name": label(run.variant), "error": None, "minutes": 0.0},
            "metrics": {name: float(curve.values[-1]) for name, curve in of_tasks(run.evaluation).items()},
        }
        for run in runs
        if run.variant not in swept and run.evaluation
    ]
    if any(result["metrics"] for result in others):
        told += _grid([line[:-1] for line in comparison.table(others)], _marks(runs))  # How many minutes is not known.
    return told


def differences(runs: Sequence[RunLog], sweeps: Sequence[Sweep]) -> str:
    """How the config of each variant differs from the base, folded; nothing of a single one."""
    variants, name, base = _variants(runs), *_base(runs, sweeps)
    if len(variants) == 1 and not sweeps:
        return ""
    found = {}
    for variant, (run, *_) in variants.items():
        changed = [row for row in config.differences(base, run.config["config"]) if row[0] not in _NOTHING]
        found[label(variant)] = [(field, config.brief(was), config.brief(now)) for field, was, now in changed]
    of_all = [row for row in next(iter(found.values())) if all(row in rows for rows in found.values())]
    own = {variant: [row for row in rows if row not in of_all] for variant, rows in found.items()}
    told, marks = f'<p class="note">Base: {_escaped(name)}.</p>', _marks(runs)
    for variant, rows in (({"all": of_all} if of_all else {}) | own).items():
        first = ", ".join(f"{field} = {now}" for field, _, now in rows[:_FIRST]) or "as the base"
        more = f" and {len(rows) - _FIRST} more" if len(rows) > _FIRST else ""
        summary = f"{marks.get(variant, '')}<b>{_escaped(variant)}</b>: {html.escape(first + more)}"
        table = _grid([("Field", "Base", "Here"), *rows[:_DIFFERENCES]], {})
        told += f"<details><summary>{summary}</summary>{table}</details>" if rows else f"<p>{summary}</p>"
    return told


def base_config(runs: Sequence[RunLog], sweeps: Sequence[Sweep]) -> str:
    """The config that others differ from, folded."""
    name, base = _base(runs, sweeps)
    told = json.dumps(base, indent=2)
    if len(told) > _CONFIG:
        told = f"{len(told):,} characters: see its config.json"
    return f"<details><summary>{_escaped(name)}: config</summary><pre>{html.escape(told)}</pre></details>"


def samples(runs: Sequence[RunLog]) -> str:
    """What runs answered last, of the first seed of each variant."""
    told = ""
    variants = [same for same in _variants(runs).values() if any(run.samples for run in same)]
    for same in variants:
        run = next(run for run in same if run.samples)
        rows = "".join(map(_sample, run.samples[-_SAMPLES:]))
        step = run.samples[-1]["step"]
        is_open = " open" if len(variants) == 1 else ""
        told += f"<details{is_open}><summary>{_escaped(run.name)}, step {step:,}</summary>{rows}</details>"
    return told


def _sample(row: Mapping[str, object]) -> str:
    told = ""
    for field in ("task", "prompt", "answer", "target"):
        if row.get(field) is not None:
            text = str(row[field])
            text = text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}…"
            told += f"<dt>{field}</dt><dd>{html.escape(text)}</dd>"
    return f'<dl class="sample">{told}</dl>'


def _base(runs: Sequence[RunLog], sweeps: Sequence[Sweep]) -> tuple[str, dict]:
    """What differences are told from: of one sweep its base, else the first run."""
    if len(sweeps) == 1 and sweeps[0].base:
        return f"the base of {label(sweeps[0].name)}", sweeps[0].base
    return label(runs[0].name), runs[0].config["config"]


def _variants(runs: Sequence[RunLog]) -> dict[str, list[RunLog]]:
    found: dict[str, list[RunLog]] = {}
    for run in runs:
        found.setdefault(run.variant, []).append(run)
    return found


def _marks(runs: Sequence[RunLog], prefix: str = "") -> dict[str, str]:
    """Of each variant, by its name without the prefix, what stands before it: the colour of its curves."""
    marks = {variant: f'<i class="swatch" data-group="{number}"></i>' for number, variant in enumerate(_variants(runs))}
    return {label(name.removeprefix(prefix)): mark for name, mark in marks.items()}


def _grid(lines: comparison.Lines, marks: Mapping[str, str]) -> str:
    """A table, in a box of its own that scrolls; its first line is its head."""
    head, *rows = lines
    kinds = [' class="long"' if name in _LONG else ' class="text"' if name in comparison.TEXTS else "" for name in head]
    told = "".join(f"<th{kind}>{_escaped(name)}</th>" for kind, name in zip(kinds, head, strict=True))
    for row in rows:
        cells = [_cell(name, text) for name, text in zip(head, row, strict=True)]
        cells[0] = marks.get(row[0], "") + cells[0]
        told += "<tr>" + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, cells, strict=True)) + "</tr>"
    return f'<div class="box"><table><tr>{told}</table></div>'


def _cell(column: str, text: str) -> str:
    if column == "Verdict" and text:
        return _verdict(text, text)
    mean, sign, deviation = text.partition(" ± ")
    return _escaped(mean) + (f'<span class="spread">{sign}{_escaped(deviation)}</span>' if sign else "")


def _verdict(verdict: str, told: str) -> str:
    return f'<span class="verdict {_VERDICTS.get(verdict, "")}">{_escaped(told)}</span>'


def _escaped(text: str) -> str:
    return html.escape(label(text))


def _last_step(run: RunLog) -> float | None:
    return max((curve.steps[-1] for curve in run.metrics.values()), default=None)


def _last(run: RunLog, key: str) -> float | None:
    """The last figure; NaN of training's where the last row has none: there it was not finite."""
    curve = run.metrics.get(key)
    if curve is None:
        return None
    is_of_last = key.startswith("validation/") or curve.steps[-1] == _last_step(run)
    return float(curve.values[-1]) if is_of_last else math.nan


def _median(run: RunLog, key: str) -> float | None:
    curve = run.metrics.get(key)
    return None if curve is None else float(np.median(curve.values))


def _waited(run: RunLog) -> float | None:
    """The share of the time of steps in which this host waited for a batch."""
    waited, took = (run.metrics.get(f"train/{name}_seconds") for name in ("data_wait", "step"))
    if waited is None or took is None or not np.array_equal(waited.steps, took.steps):
        return None
    steps = np.diff(took.steps, prepend=0)
    return float(steps @ waited.values / max(steps @ took.values, 1e-9))


def _reached(run: RunLog, axis: str) -> float | None:
    """Where the last step lies on an axis, if that is known."""
    known, last = report_curves.axis(run, axis), _last_step(run)
    return None if isinstance(known, str) or last is None else float(np.interp(last, *known))


def _of_metric(name: str) -> Callable[[Sequence[float]], str]:
    return lambda values: comparison.figure(values, metrics.declared(name))


def _of_mean(told: Callable[[float], str]) -> Callable[[Sequence[float]], str]:
    return lambda values: told(statistics.mean(values))


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _short(value: float) -> str:
    return next((f"{value / size:.4g}{unit}" for size, unit in _SIZES if value >= size), f"{value:.4g}")


def _span(seconds: float) -> str:
    return next((f"{seconds / size:.3g} {unit}" for size, unit in _SPANS if seconds >= 2 * size), f"{seconds:.3g} s")
