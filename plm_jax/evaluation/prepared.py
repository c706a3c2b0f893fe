"""The metrics of a model on the splits that its run, or another config, has prepared, or as it is asked otherwise."""

from collections.abc import Callable, Sequence
from typing import Any

from plm_jax import config
from plm_jax.common import metrics as declarations
from plm_jax.common.errors import UserError
from plm_jax.evaluation import few_shot, perplexity, scoring, task_metrics
from plm_jax.inference.language_model import LanguageModel
from plm_jax.runs import preparation

# By the tasks, SOURCE or SOURCE:SPLIT.
Metrics = dict[str, dict[str, float]]


def run_of(lm: LanguageModel, given: config.Run | None) -> config.Run:
    """The run whose data a model is evaluated on: the one given, else its own.

    Raises:
      UserError: it has none.
    """
    if given is not None:
        return config.expand_mixtures(given)
    if lm.run is None:
        raise UserError(
            "the checkpoint has no data: name files of text, as in --texts='*.txt', or a config by --config whose data "
            "`prepare --from=CHECKPOINT` has prepared"
        )
    return lm.run


def tasks_of(run: config.Run, tasks: Sequence[str], are_cached: bool = True) -> list[str]:
    """These tasks, by default the validation splits of all sources, whose caches are found to be of the run's texts.

    Args:
      are_cached: whether caches are read, and not the texts.

    Raises:
      UserError: there is no such source, or its cache is of other texts.
    """
    tasks = list(tasks or config.read_sources(run))
    for task in tasks:
        perplexity.split_of(run, task)  # None is worth waiting for if another is misspelt.
    if not are_cached:
        return tasks
    sources = {name: run.data.sources[name] for name in (task.partition(":")[0] for task in tasks)}
    # Those of examples are read themselves.
    cached = [name for name, source in sources.items() if not isinstance(source, config.InputsTargetsSource)]
    if changed := preparation.changed_caches(run, cached):
        raise UserError(f"{'; '.join(changed)}: run `python -m plm_jax prepare --config=…` first")
    return tasks


def prompted_of(run: config.Run | None, tasks: Sequence[str]) -> list[str]:
    """These tasks, by default all sources of the run that have a prompt.

    Raises:
      UserError: there is none.
    """
    sources = {} if run is None else run.data.sources
    if found := list(tasks or (name for name, source in sources.items() if source.prompt is not None)):
        return found
    raise UserError("no source here has a prompt: name a task, such as --tasks=sentiment, or a config with --config")


def evaluate(
    lm: LanguageModel,
    run: config.Run,
    tasks: Sequence[str],
    found: Callable[[Metrics], None] = lambda metrics: None,
    **how: Any,
) -> Metrics:
    """The metrics of the tasks, each of which is printed; of one of which nothing can be said, `tokens: 0`.

    Args:
      found: is given the metrics so far after each task, as soon as there are some.
      how: further arguments of `task_metrics.evaluate`.

    Raises:
      UserError: as `task_metrics.evaluate`; nothing can be said of any task.
    """
    return _each(tasks, lambda task: task_metrics.evaluate(lm, run, task, **how), found)


def evaluate_prompts(
    lm: LanguageModel,
    run: config.Run | None,
    tasks: Sequence[str],
    options: few_shot.FewShotOptions,
    found: Callable[[Metrics], None] = lambda metrics: None,
) -> Metrics:
    """Returns the metrics of the model's answers to the prompts of tasks; otherwise like `evaluate`.

    Args:
      run: run with the sources of the tasks; None for those of `configs/tasks`.

    Raises:
      UserError: the errors of `few_shot.evaluate`.
    """
    return _each(tasks, lambda task: few_shot.evaluate(lm, run, task, options), found)


def evaluate_files(
    lm: LanguageModel,
    patterns: Sequence[str],
    whole: scoring.TextScoring,
    found: Callable[[Metrics], None] = lambda metrics: None,
) -> Metrics:
    """Returns the perplexities of files of text by the patterns that match them; otherwise like `evaluate`.

    Raises:
      UserError: the errors of `scoring.evaluate_files`, or no pattern matches a file with text.
    """
    return _each(patterns, lambda pattern: scoring.evaluate_files(lm, pattern, whole), found)


def _each(
    tasks: Sequence[str], evaluate_one: Callable[[str], dict[str, float]], found: Callable[[Metrics], None]
) -> Metrics:
    metrics: Metrics = {}
    nothing: dict[str, str] = {}
    for task in tasks:
        try:
            metrics[task] = evaluate_one(task)
        except perplexity.NothingToPredictError as error:
            metrics[task], nothing[task] = {"tokens": 0}, str(error)
        tell(task, nothing.get(task) or metrics[task])
        if len(nothing) < len(metrics):
            found(metrics)
    if len(nothing) == len(tasks):
        raise UserError("; ".join(nothing.values()))
    return metrics


def tell(task: str, found: dict[str, float] | str) -> None:
    """Prints the figures of a task, or why there are none."""
    if not isinstance(found, str):
        found = ", ".join(f"{name} {declarations.shown(name, value)}" for name, value in found.items())
    print(f"{task}: {found}", flush=True)
