"""Evaluate a model on held-out data, prompts, text files or lm-eval tasks.

usage: plm_jax evaluate --checkpoint=MODEL [flags]

By default, the model is evaluated on the prepared validation splits of the sources in its config. Flags select other
evaluations:

  --texts    score text files with a decoder or a masked model
  --stride   score whole texts of a source, or text files, with overlapping windows
  --shots    evaluate with few-shot prompts: examples with answers, followed by a question
  --harness  run tasks of EleutherAI's lm-eval
  --watch    evaluate the checkpoints of a run as it saves them, until the run is finished

The metrics of a task are printed as soon as the task is done. If MODEL is a run or one of its checkpoints, they are
also appended to the run's evaluation.jsonl, except with --average. For a task without held-out rows, the only metric is
`tokens` = 0, and the reason is printed. If no task has held-out rows, the command fails.

examples:
  plm_jax evaluate --checkpoint=runs/demo-gpt2-0
  plm_jax evaluate --checkpoint=runs/demo-gpt2-0 --tasks=sentiment --shots=0,2 --limit=8
"""

import json
from typing import cast

from absl import flags

from plm_jax.common import command_line, progress, storage
from plm_jax.common.errors import UserError
from plm_jax.config.flags import ConfigFlag

_CHECKPOINT = flags.DEFINE_string(
    "checkpoint",
    None,
    "run, checkpoint, directory written by `convert`, Hugging Face directory, or hf:ORG/NAME[@REVISION] (required)",
)
_TASKS = flags.DEFINE_list(
    "tasks",
    [],
    "sources to evaluate: SOURCE (its validation split) or SOURCE:SPLIT; with --shots, also names of files in "
    "configs/tasks, such as sentiment (default: all sources)",
)
_OUTPUT = flags.DEFINE_string(
    "output", None, "JSON file for the metrics; with --watch, for the metrics of the last checkpoint"
)
_AVERAGE = flags.DEFINE_bool(
    "average",
    False,
    "evaluate the moving average of the weights (train.average); its metrics are not added to evaluation.jsonl",
)
_WATCH = flags.DEFINE_bool("watch", False, "evaluate each checkpoint of a run once, until the run is finished")
_SHOTS = flags.DEFINE_list("shots", [], "numbers of examples in the prompt, such as 0,1,5; one result per number")
_SEEDS = flags.DEFINE_list("seeds", ["0"], "with --shots: seeds for drawing the examples; metrics are means over seeds")
_NORMALIZE = flags.DEFINE_string(
    "normalize",
    "sum",
    "with --shots: how the score of a choice is computed. sum: its log-probability. token, character or byte: its "
    "log-probability per token, character or byte. unconditional: its log-probability minus its log-probability "
    "without the question",
)
_BALANCED = flags.DEFINE_bool("balanced", False, "with --shots: draw the same number of examples for each choice")
_SHOW = flags.DEFINE_integer("show", 0, "with --shots: number of prompts to print in full")
_LIMIT = flags.DEFINE_integer("limit", None, "maximum number of rows or texts per task (default: all)", lower_bound=1)
_TEXTS = flags.DEFINE_list("texts", [], "text files to score: paths or patterns such as 'data/*.txt'")
_STRIDE = flags.DEFINE_integer("stride", None, "score whole texts with windows that advance by this many tokens")
_HARNESS = flags.DEFINE_list(
    "harness", [], "lm-eval tasks to run; requires pip install '.[harness]' in a checkout of plm_jax"
)
_INCLUDE_PATH = flags.DEFINE_string("include_path", None, "with --harness: directory with YAML files of your own tasks")
_CONFIG = ConfigFlag("config whose sources are evaluated (default: the config of the checkpoint)")


def main() -> None:
    """Prints the metrics. Writes them to `--output` if it is set, and to evaluation.jsonl if the model is a run's."""
    checkpoint = command_line.required(_CHECKPOINT)
    _check()
    _CONFIG.modules.load()
    run = _CONFIG.optional_run(may_lack_model=not _WATCH.value)
    with progress.doing("loading JAX"):
        command_line.start_jax()
        from plm_jax.evaluation import evaluate, few_shot, watch

    if _WATCH.value:
        watch.follow(checkpoint, run, _TASKS.value, _write)
        return
    if _HARNESS.value:
        _evaluate_harness(checkpoint)
        return
    options = None
    if _SHOTS.value:
        shots, seeds = tuple(command_line.integers(_SHOTS)), tuple(command_line.seed_list(_SEEDS))
        normalize = cast(few_shot.Normalization, _NORMALIZE.value)  # The options check it.
        options = few_shot.FewShotOptions(shots, seeds, normalize, _BALANCED.value, _LIMIT.value, _SHOW.value)
    evaluate.evaluate(
        checkpoint,
        _TASKS.value,
        run=run,
        texts=_TEXTS.value,
        few_shot=options,
        stride=_STRIDE.value,
        limit=None if options else _LIMIT.value,
        average=_AVERAGE.value,
        report=_write,
    )


def _evaluate_harness(checkpoint: str) -> None:
    from plm_jax.evaluation import evaluate, prepared
    from plm_jax.inference import language_model

    with progress.doing("importing lm-eval"):
        from plm_jax.evaluation import harness
    with progress.doing(f"loading {checkpoint}"):
        lm = language_model.load(checkpoint, average=_AVERAGE.value)
    language_model.report_step(lm, checkpoint)
    metrics = harness.evaluate(lm, _HARNESS.value, _INCLUDE_PATH.value, _LIMIT.value)
    for task, figures in metrics.items():
        prepared.print_metrics(task, figures)
    evaluate.recorder(lm, _write)(metrics)


def _check() -> None:
    """Raises a `UserError` for flags that cannot be combined."""
    modes = [f"--{flag.name}" for flag in (_WATCH, _SHOTS, _STRIDE, _HARNESS) if flag.value not in (None, [], False)]
    if len(modes) > 1:
        raise UserError(f"{' and '.join(modes)} cannot be combined: pass one of them")
    if _AVERAGE.value and _WATCH.value:
        raise UserError("--average and --watch cannot be combined: evaluate the average of one checkpoint at a time")
    if _HARNESS.value and _TASKS.value:
        raise UserError("--tasks and --harness cannot be combined: list lm-eval tasks in --harness alone")
    if _TEXTS.value and (_TASKS.value or _CONFIG.is_given or set(modes) - {"--stride"}):
        raise UserError(
            "--texts cannot be combined with --tasks, --config, --watch, --shots or --harness: leave them out"
        )
    if missing := [pattern for pattern in _TEXTS.value if not storage.glob(pattern)]:
        raise UserError(f"--texts: no file matches {' or '.join(missing)}: pass paths, or patterns in quotes")
    if _LIMIT.value is not None and modes in ([], ["--watch"]) and not _TEXTS.value:
        raise UserError("--limit applies only to --texts, --shots, --stride and --harness: leave it out")


def _write(metrics: dict[str, dict[str, float]]) -> None:
    if _OUTPUT.value:
        storage.write(_OUTPUT.value, json.dumps(metrics, indent=2).encode("utf-8"))


if __name__ == "__main__":
    command_line.run(main)
