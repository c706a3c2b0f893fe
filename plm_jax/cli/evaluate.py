"""`python -m plm_jax evaluate --checkpoint=SRC [--tasks=a,b:train] [--output=F.json]`: metrics on prepared splits.

With `--texts`, any decoder or masked model scores files of text. With `--shots`, the model answers rows as prompts.
With `--stride`, it scores the whole texts of a source. With `--harness`, it answers lm-eval's tasks.
Each task is printed and recorded when it is done. If nothing is held out, a line reports it and `tokens` is 0.
With `--watch` SRC is a run directory, each of whose checkpoints is evaluated once, until the run is finished.
"""

import json
from typing import cast

from absl import flags

from plm_jax.common import command_line, progress, storage
from plm_jax.common.errors import UserError
from plm_jax.config.flags import ConfigFlag

_CHECKPOINT = flags.DEFINE_string("checkpoint", None, "a run, its checkpoint, a converted or a Hugging Face directory")
_TASKS = flags.DEFINE_list("tasks", [], "sources of the config, each with :SPLIT or for validation; default: all")
_OUTPUT = flags.DEFINE_string("output", None, "a JSON file for the metrics; with --watch, of the last checkpoint")
_WATCH = flags.DEFINE_bool("watch", False, "evaluate each checkpoint of the run, those to come too, once")
_SHOTS = flags.DEFINE_list("shots", [], "put rows to the model as text, each behind so many examples, as in 0,1,5")
_SEEDS = flags.DEFINE_list("seeds", ["0"], "by which the examples are drawn, each again; figures are means")
_NORMALIZE = flags.DEFINE_string("normalize", "sum", "of choices: sum, token, character, byte or unconditional")
_BALANCED = flags.DEFINE_bool("balanced", False, "of each choice as many examples as of any other")
_SHOW = flags.DEFINE_integer("show", 0, "print so many prompts whole")
_LIMIT = flags.DEFINE_integer("limit", None, "only so many rows or texts of each task", lower_bound=1)
_TEXTS = flags.DEFINE_list("texts", [], "files to score, each one text: paths or patterns such as 'data/*.txt'")
_STRIDE = flags.DEFINE_integer("stride", None, "tell whole texts, by windows that move so many tokens")
_HARNESS = flags.DEFINE_list("harness", [], "tasks of lm-eval, which `pip install 'plm_jax[harness]'` brings")
_INCLUDE_PATH = flags.DEFINE_string("include_path", None, "a folder with YAML files of further tasks of lm-eval")
_CONFIG = ConfigFlag()


def main() -> None:
    """Prints the metrics; a run directory gets them in its evaluation.jsonl too."""
    checkpoint = command_line.required(_CHECKPOINT)
    _check()
    _CONFIG.modules.load()
    given = _CONFIG.run(may_lack_model=not _WATCH.value) if _CONFIG.is_given else None
    with progress.doing("loading JAX"):
        command_line.start_jax()
        from plm_jax.evaluation import evaluate, few_shot, watch

    if _WATCH.value:
        watch.follow(checkpoint, given, _TASKS.value, _write)
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
        run=given,
        texts=_TEXTS.value,
        few_shot=options,
        stride=_STRIDE.value,
        limit=None if options else _LIMIT.value,
        report=_write,
    )


def _evaluate_harness(checkpoint: str) -> None:
    from plm_jax.evaluation import evaluate, prepared
    from plm_jax.inference import language_model

    with progress.doing("importing lm-eval"):
        from plm_jax.evaluation import harness
    with progress.doing(f"loading {checkpoint}"):
        lm = language_model.load(checkpoint)
    metrics = harness.evaluate(lm, _HARNESS.value, _INCLUDE_PATH.value, _LIMIT.value)
    for task, figures in metrics.items():
        prepared.print_metrics(task, figures)
    evaluate.recorder(lm, _write)(metrics)


def _check() -> None:
    """Raises a `UserError` for flags that do not go together."""
    ways = [f"--{flag.name}" for flag in (_WATCH, _SHOTS, _STRIDE, _HARNESS) if flag.value not in (None, [], False)]
    if len(ways) > 1:
        raise UserError(f"{' and '.join(ways)} are given: evaluate one way at a time")
    if _HARNESS.value and _TASKS.value:
        raise UserError("--tasks and --harness are given: name lm-eval's tasks by --harness alone")
    if _TEXTS.value and (_TASKS.value or _CONFIG.is_given or set(ways) - {"--stride"}):
        raise UserError(
            "--texts evaluates files of text only: leave out --tasks, --config and every other way except --stride"
        )
    if missing := [pattern for pattern in _TEXTS.value if not storage.glob(pattern)]:
        raise UserError(f"--texts: no file matches {' or '.join(missing)}: give paths of files or patterns in quotes")
    if _LIMIT.value is not None and ways in ([], ["--watch"]) and not _TEXTS.value:
        raise UserError("--limit is for --texts, --shots, --stride and --harness: leave it out")


def _write(metrics: dict[str, dict[str, float]]) -> None:
    if _OUTPUT.value:
        storage.write(_OUTPUT.value, json.dumps(metrics, indent=2).encode("utf-8"))


if __name__ == "__main__":
    command_line.run(main)
