"""Evaluates lists of tasks, prompted tasks or text files, and prints their metrics."""

import os
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from plm_jax import config
from plm_jax.common import metrics as declarations
from plm_jax.common.errors import UserError
from plm_jax.evaluation import baselines, few_shot, perplexity, scoring, task_metrics
from plm_jax.inference.language_model import LanguageModel
from plm_jax.runs import preparation

# Metrics by name, by task (`SOURCE` or `SOURCE:SPLIT`).
Metrics = dict[str, dict[str, float]]


def resolve_run(lm: LanguageModel, run: config.Run | None) -> config.Run:
    """Returns the run on whose data a model is evaluated: `run` or, if it is None, the run that trained the model.

    The mixtures of `run` are replaced by their tasks.

    Raises:
      UserError: `run` is None, and the run that trained the model is unknown.
    """
    if run is not None:
        return config.expand_mixtures(run)
    if lm.run is None:
        raise UserError(
            "the checkpoint has no data: pass text files, such as --texts='*.txt', or a --config whose data was "
            "prepared by `prepare --from=CHECKPOINT`"
        )
    return lm.run


def resolve_tasks(run: config.Run, tasks: Sequence[str], are_cached: bool = True) -> list[str]:
    """Returns the names of tasks, after a check that their sources exist and that their caches are up to date.

    Args:
      tasks: names of tasks; empty for the validation splits of all sources that the run reads.
      are_cached: whether the tasks read caches. If False, they read the original texts, and no cache is checked.

    Raises:
      UserError: a source is unknown, its cache is missing or damaged, or its data or settings changed after the cache
        was prepared.
    """
    tasks = list(tasks or config.read_sources(run))
    for task in tasks:
        perplexity.parse_task(run, task)  # Reports a misspelled task before any other is evaluated.
    if not are_cached:
        return tasks
    sources = {name: run.data.sources[name] for name in (task.partition(":")[0] for task in tasks)}
    # Sources of inputs and targets are read directly, without a cache.
    cached = [name for name, source in sources.items() if not isinstance(source, config.InputsTargetsSource)]
    if changed := preparation.changed_caches(run, cached):
        raise UserError(f"{'; '.join(changed)}: run `python -m plm_jax prepare --config=…` first")
    return tasks


def resolve_prompted_tasks(run: config.Run | None, tasks: Sequence[str]) -> list[str]:
    """Returns `tasks` or, if there are none, the names of the run's sources that have a prompt.

    Raises:
      UserError: `tasks` is empty, and no source has a prompt.
    """
    sources = {} if run is None else run.data.sources
    if prompted := list(tasks or (name for name, source in sources.items() if source.prompt is not None)):
        return prompted
    raise UserError("no source has a prompt: name a task, such as --tasks=sentiment, or pass a config with --config")


def evaluate(
    lm: LanguageModel,
    run: config.Run,
    tasks: Sequence[str],
    report: Callable[[Metrics], None] = lambda metrics: None,
    **options: Any,
) -> Metrics:
    """Prints and returns the metrics of each task.

    If `task_metrics.evaluate` raises a `NothingToPredictError` for a task, the only metric of the task is `tokens`,
    with the value 0.

    Args:
      report: called after each task with the metrics of all tasks so far; not called before a task has targets.
      options: further arguments of `task_metrics.evaluate`.

    Raises:
      UserError: any other error of `task_metrics.evaluate`, or no task has targets.
    """
    headings = {task: _heading(run, task) for task in tasks}
    return _each(tasks, lambda task: task_metrics.evaluate(lm, run, task, **options), report, headings)


def _heading(run: config.Run, task: str) -> str:
    """Returns the name of a task.

    For a validation split, the last part of the source's setting `validation` follows in parentheses, if it is set.
    """
    name, _, split = task.partition(":")
    validation = getattr(run.data.sources[name], "validation", "") if split in ("", "validation") else ""
    return f"{task} ({os.path.basename(validation.rstrip('/'))})" if validation else task


def evaluate_prompts(
    lm: LanguageModel,
    run: config.Run | None,
    tasks: Sequence[str],
    options: few_shot.FewShotOptions,
    report: Callable[[Metrics], None] = lambda metrics: None,
) -> Metrics:
    """Prints and returns the metrics of the model's answers to the prompts of each task.

    Args:
      run: run whose sources the tasks may name; None if all tasks are from `configs/tasks`.
      report: called after each task with the metrics of all tasks so far.

    Raises:
      UserError: an error of `few_shot.evaluate`.
    """
    return _each(tasks, lambda task: few_shot.evaluate(lm, run, task, options), report)


def evaluate_files(
    lm: LanguageModel,
    patterns: Sequence[str],
    text_scoring: scoring.TextScoring,
    report: Callable[[Metrics], None] = lambda metrics: None,
) -> Metrics:
    """Prints and returns the perplexities of the text files that match each pattern.

    If the files of a pattern have no text, the only metric of the pattern is `tokens`, with the value 0.

    Args:
      report: called after each pattern with the metrics of all patterns so far; not called before a pattern has text.

    Raises:
      UserError: no file matches a pattern, no file of any pattern has text, the stride is invalid, or the model cannot
        score texts.
    """
    return _each(patterns, lambda pattern: scoring.evaluate_files(lm, pattern, text_scoring), report)


def _each(
    tasks: Sequence[str],
    evaluate_one: Callable[[str], dict[str, float]],
    report: Callable[[Metrics], None],
    headings: Mapping[str, str] = types.MappingProxyType({}),
) -> Metrics:
    metrics: Metrics = {}
    failures: dict[str, str] = {}
    for task in tasks:
        try:
            metrics[task] = evaluate_one(task)
        except perplexity.NothingToPredictError as error:
            metrics[task], failures[task] = {"tokens": 0}, str(error)
        if task not in failures or len(tasks) > 1:  # If there is one task, the error says why it failed.
            print_metrics(task, failures.get(task) or metrics[task], headings.get(task, task))
        if len(failures) < len(metrics):
            report(metrics)
    if len(failures) == len(tasks):
        raise UserError("; ".join(failures.values()))
    return metrics


def print_metrics(task: str, metrics: dict[str, float] | str, heading: str = "") -> None:
    """Prints the metrics of a task as a table.

    Args:
      task: name of the task.
      metrics: metrics by name, or a text that says why the task has no metrics.
      heading: heading of the table; by default the name of the task.
    """
    heading = heading or task
    print(
        f"{heading}: {metrics}" if isinstance(metrics, str) else "\n".join(_table(task, metrics, heading)), flush=True
    )


def _table(task: str, metrics: Mapping[str, float], heading: str) -> list[str]:
    """Returns the lines of a table of metrics, with the columns value, trivial baseline and verdict.

    Columns without entries, and rows of metrics that are the baseline of another metric, are left out.
    """
    metrics = {f"{task}/{name}": value for name, value in metrics.items()}
    shown_as_baselines = {baselines.baseline_of(metrics, name) for name in metrics}
    rows: list[tuple[str, ...]] = [(heading, "value", "trivial", "verdict")]
    for name, value in metrics.items():
        if name in shown_as_baselines:
            continue
        declared, trivial = declarations.declared(name), baselines.trivial_value(metrics, name)
        cells = [f"  {name.removeprefix(f'{task}/')}", declarations.shown(name, value), "", ""]
        if trivial is not None and declared is not None and declared.sign:
            is_better = declared.sign * (value - trivial) > 0
            cells[2:] = declarations.shown(name, trivial), "better" if is_better else "not better"
        rows.append(tuple(cells))
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    return ["  ".join(_aligned(row, widths)).rstrip() for row in zip(*columns, strict=True)]


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """Yields the cells of a row, padded to `widths`. The second and the third cell are aligned to the right."""
    for index, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        yield cell.rjust(width) if index in (1, 2) else cell.ljust(width)
