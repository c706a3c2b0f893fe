"""`python -m plm_jax.evaluate --checkpoint=SRC [--tasks=a,b:train] [--output=F.json]`: metrics on prepared splits.

Each task is printed and recorded when it is done. Where nothing is held out a line says so, and the record `tokens: 0`.
With `--watch` SRC is a run directory, each of whose checkpoints is evaluated once, until the run is finished.
"""

import json

from absl import flags

from plm_jax.common import command_line, progress, storage
from plm_jax.config.flags import ConfigFlag

_CHECKPOINT = flags.DEFINE_string("checkpoint", None, "a run, its checkpoint, a converted or a Hugging Face directory")
_TASKS = flags.DEFINE_list("tasks", [], "sources of the config, each with :SPLIT or for validation; default: all")
_OUTPUT = flags.DEFINE_string("output", None, "a JSON file for the metrics; with --watch, of the last checkpoint")
_WATCH = flags.DEFINE_bool("watch", False, "evaluate each checkpoint of the run, those to come too, once")
_CONFIG = ConfigFlag()


def main() -> None:
    """Prints the metrics; a run directory gets them in its evaluation.jsonl too."""
    checkpoint = command_line.required(_CHECKPOINT)
    _CONFIG.modules.load()
    given = _CONFIG.run() if _CONFIG.is_given else None
    with progress.doing("loading JAX"):
        command_line.start_jax()
        from plm_jax.evaluation import perplexity, prepared, watch
        from plm_jax.inference import language_model

    if _WATCH.value:
        watch.follow(checkpoint, given, _TASKS.value, _write)
        return
    with progress.doing(f"loading {checkpoint}"):
        lm = language_model.load(checkpoint)
    run = prepared.run_of(lm, given)
    tasks = prepared.tasks_of(run, _TASKS.value)
    record = None if lm.workdir is None else perplexity.Record(lm.workdir, lm.step)

    def found(metrics: prepared.Metrics) -> None:
        if record is not None:
            record.write(metrics)
        _write(metrics)

    prepared.evaluate(lm, run, tasks, found)


def _write(metrics: dict[str, dict[str, float]]) -> None:
    if _OUTPUT.value:
        storage.write(_OUTPUT.value, json.dumps(metrics, indent=2).encode("utf-8"))


if __name__ == "__main__":
    command_line.run(main)
