"""`python -m plm_jax.evaluate --checkpoint=SRC [--tasks=a,b:train] [--output=F.json]`: metrics on prepared splits.

Each task is printed and recorded when it is done. Where nothing is held out a line says so, and the record `tokens: 0`.
"""

import json

from absl import flags

from plm_jax import config
from plm_jax.common import command_line, progress, storage
from plm_jax.common.errors import UserError
from plm_jax.config.flags import ConfigFlag

_CHECKPOINT = flags.DEFINE_string("checkpoint", None, "a run, its checkpoint, a converted or a Hugging Face directory")
_TASKS = flags.DEFINE_list("tasks", [], "sources of the config, each with :SPLIT or for validation; default: all")
_OUTPUT = flags.DEFINE_string("output", None, "a JSON file for the metrics")
_CONFIG = ConfigFlag()


def main() -> None:
    """Prints the metrics; a run directory gets them in its evaluation.jsonl too."""
    checkpoint = command_line.required(_CHECKPOINT)
    _CONFIG.modules.load()
    given = _CONFIG.run() if _CONFIG.is_given else None
    with progress.doing("loading JAX"):
        command_line.start_jax()
        from plm_jax.data import preparation
        from plm_jax.data.sources import task_mixtures
        from plm_jax.evaluation import perplexity, task_metrics
        from plm_jax.inference import language_model

    with progress.doing(f"loading {checkpoint}"):
        lm = language_model.load(checkpoint)
    if lm.run is None and given is None:
        raise UserError(f"{checkpoint} says nothing of data: name a config with --config, prepared with its vocabulary")
    run = lm.run if given is None else task_mixtures.expanded(given)
    tasks = list(_TASKS.value or config.read_sources(run))
    for task in tasks:
        perplexity.split_of(run, task)  # None is worth waiting for if another is misspelt.
    sources = {name: run.data.sources[name] for name in (task.partition(":")[0] for task in tasks)}
    # Those of examples are read themselves.
    cached = [name for name, source in sources.items() if not isinstance(source, config.InputsTargetsSource)]
    if changed := preparation.changed_caches(run, cached):
        raise UserError(f"{'; '.join(changed)}: run `python -m plm_jax.prepare --config=…` first")
    record = None if lm.workdir is None else perplexity.Record(lm.workdir, lm.step)
    metrics: dict[str, dict[str, float]] = {}
    nothing: dict[str, str] = {}
    for task in tasks:
        try:
            metrics[task] = task_metrics.evaluate(lm, run, task)
        except perplexity.NothingToPredictError as error:
            metrics[task], nothing[task] = {"tokens": 0}, str(error)
        print(f"{task}: {nothing.get(task) or _figures(metrics[task])}", flush=True)
        if len(nothing) == len(metrics):
            continue
        if record is not None:
            record.write(metrics)
        if _OUTPUT.value:
            storage.write(_OUTPUT.value, json.dumps(metrics, indent=2).encode("utf-8"))
    if len(nothing) == len(tasks):
        raise UserError("; ".join(nothing.values()))


def _figures(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:,.4f}".removesuffix(".0000") for name, value in metrics.items())


if __name__ == "__main__":
    command_line.run(main)
