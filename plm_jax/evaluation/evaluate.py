"""The Python entry point `plm_jax.evaluate`, which the `evaluate` command also calls."""

import contextlib
import os
from collections.abc import Callable, Sequence

from plm_jax import config
from plm_jax.common import progress, storage
from plm_jax.common.errors import UserError
from plm_jax.evaluation import perplexity, prepared
from plm_jax.evaluation.few_shot import FewShotOptions
from plm_jax.evaluation.prepared import Metrics
from plm_jax.evaluation.scoring import TextScoring
from plm_jax.inference.language_model import LanguageModel, load, report_step
from plm_jax.runs import transfer


def evaluate(
    model: LanguageModel | str,
    tasks: Sequence[str] = (),
    *,
    run: config.Run | None = None,
    texts: Sequence[str] = (),
    few_shot: FewShotOptions | None = None,
    stride: int | None = None,
    limit: int | None = None,
    average: bool = False,
    report: Callable[[Metrics], None] | None = None,
) -> Metrics:
    """Prints and returns the metrics of each task. For a run or a checkpoint, also adds them to evaluation.jsonl.

    Args:
      model: a loaded model; or the path of a run, a checkpoint, a converted model or a Hugging Face model.
      tasks: names, either `SOURCE` (its validation split) or `SOURCE:SPLIT`. If empty: all sources of the run or, with
        `few_shot`, all sources that have a prompt.
      run: run on whose data the model is evaluated; None for the run that trained the model. Caches that
        `prepare --from` made for the path `model` are read.
      texts: paths or patterns of text files, which the model scores instead of tasks.
      few_shot: settings of an evaluation with prompts, where `tasks` may contain tasks of `configs/tasks`; or None.
      stride: number of tokens by which windows move over whole texts; None: only `texts` are scored as whole texts, in
        disjoint windows.
      limit: maximum number of texts for each task, with `texts` or `stride`; None for all.
      average: whether to evaluate the moving average of the weights. Its metrics are not added to evaluation.jsonl.
      report: called after each task with the metrics of all tasks so far.

    Raises:
      UserError: arguments cannot be combined, the model cannot be loaded, or a task cannot be evaluated.
    """
    _check_options(tasks, run, texts, few_shot, stride, limit)
    if isinstance(model, LanguageModel):
        if average:
            raise UserError(
                "average applies to the path of a run: load the model with plm_jax.load(path, average=True)"
            )
        lm = model
    else:
        with progress.doing(f"loading {model}"):
            lm = load(model, average=average)
        report_step(lm, str(model))
    record = recorder(lm, report)
    text_scoring = TextScoring(stride, limit)
    if texts:
        return prepared.evaluate_files(lm, texts, text_scoring, record)
    if few_shot is not None:
        run = lm.run if run is None else run
        return prepared.evaluate_prompts(lm, run, prepared.resolve_prompted_tasks(run, tasks), few_shot, record)
    if run is not None and run.model.is_placeholder:
        if isinstance(model, LanguageModel):
            raise UserError(
                "the config takes its model from a checkpoint: pass the path of a checkpoint instead of a model"
            )
        run = transfer.resolve(run, model)
    elif run is not None and stride is None and not isinstance(model, LanguageModel):
        run = _with_caches_of(run, model)
    run = prepared.resolve_run(lm, run)
    names = prepared.resolve_tasks(run, tasks, are_cached=stride is None)
    return prepared.evaluate(lm, run, names, record, text_scoring=None if stride is None else text_scoring)


def _with_caches_of(run: config.Run, model: str) -> config.Run:
    """Returns `run` with the vocabulary and caches that `prepare --from=MODEL` made; unchanged if there are none."""
    with contextlib.suppress(UserError):  # Without a vocabulary, there are no such caches.
        resolved = transfer.resolve(run, model)
        folders = (os.path.join(resolved.data.cache_dir, name) for name in config.read_sources(resolved))
        return resolved if any(map(storage.exists, folders)) else run
    return run


def _check_options(
    tasks: Sequence[str],
    run: config.Run | None,
    texts: Sequence[str],
    few_shot: FewShotOptions | None,
    stride: int | None,
    limit: int | None,
) -> None:
    """Raises a `UserError` for arguments of `evaluate` that cannot be combined."""
    if texts and (tasks or run is not None or few_shot is not None):
        raise UserError("texts cannot be combined with tasks, run or few_shot: leave these out")
    if few_shot is not None and (stride is not None or limit is not None):
        raise UserError(
            "few_shot cannot be combined with stride or limit: leave these out, or set FewShotOptions.limit"
        )
    if limit is not None and stride is None and not texts:
        raise UserError("limit applies only to texts and stride: leave it out")


def recorder(lm: LanguageModel, report: Callable[[Metrics], None] | None = None) -> Callable[[Metrics], None]:
    """Returns a function that records metrics.

    The function adds the metrics to evaluation.jsonl if the model has a run directory. It then calls `report` with the
    metrics, unless `report` is None.
    """
    log = None if lm.workdir is None or lm.step is None else perplexity.EvaluationLog(lm.workdir, lm.step)

    def record(metrics: Metrics) -> None:
        if log is not None:
            log.write(metrics)
        if report is not None:
            report(metrics)

    return record
