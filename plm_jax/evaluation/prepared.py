"""The metrics of a model on the splits that its run, or another config, has prepared."""

from collections.abc import Callable, Sequence

from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.data import preparation
from plm_jax.data.sources import task_mixtures
from plm_jax.evaluation import perplexity, task_metrics
from plm_jax.inference.language_model import LanguageModel

# By the tasks, SOURCE or SOURCE:SPLIT.
Metrics = dict[str, dict[str, float]]


def run_of(lm: LanguageModel, given: config.Run | None) -> config.Run:
    """The run whose data a model is evaluated on: the one given, else its own.

    Raises:
      UserError: it has none.
    """
    if given is not None:
        return task_mixtures.expanded(given)
    if lm.run is None:
        raise UserError(
            "the checkpoint says nothing of data: name a config with --config, prepared with its vocabulary"
        )
    return lm.run


def tasks_of(run: config.Run, tasks: Sequence[str]) -> list[str]:
    """These tasks, by default the validation splits of all sources, whose caches are found to be of the run's texts.

    Raises:
      UserError: there is no such source, or its cache is of other texts.
    """
    tasks = list(tasks or config.read_sources(run))
    for task in tasks:
        perplexity.split_of(run, task)  # None is worth waiting for if another is misspelt.
    sources = {name: run.data.sources[name] for name in (task.partition(":")[0] for task in tasks)}
    # Those of examples are read themselves.
    cached = [name for name, source in sources.items() if not isinstance(source, config.InputsTargetsSource)]
    if changed := preparation.changed_caches(run, cached):
        raise UserError(f"{'; '.join(changed)}: run `python -m plm_jax.prepare --config=…` first")
    return tasks


def evaluate(
    lm: LanguageModel, run: config.Run, tasks: Sequence[str], found: Callable[[Metrics], None] = lambda metrics: None
) -> Metrics:
    """The metrics of the tasks, each of which is printed; of one of which nothing can be said, `tokens: 0`.

    Args:
      found: is given the metrics so far after each task, as soon as there are some.

    Raises:
      UserError: as `task_metrics.evaluate`; nothing can be said of any task.
    """
    metrics: Metrics = {}
    nothing: dict[str, str] = {}
    for task in tasks:
        try:
            metrics[task] = task_metrics.evaluate(lm, run, task)
        except perplexity.NothingToPredictError as error:
            metrics[task], nothing[task] = {"tokens": 0}, str(error)
        print(f"{task}: {nothing.get(task) or _figures(metrics[task])}", flush=True)
        if len(nothing) < len(metrics):
            found(metrics)
    if len(nothing) == len(tasks):
        raise UserError("; ".join(nothing.values()))
    return metrics


def _figures(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:,.4f}".removesuffix(".0000") for name, value in metrics.items())
