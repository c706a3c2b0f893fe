"""`python -m plm_jax finetune --config=C --checkpoint=SRC --workdir=W`: trains a pretrained model for a task.

Model, vocabulary and special ids are SRC's, all else is the config's. The same command goes on; W is a run directory.
`--seeds=0,1,2` trains W/seed-0 and so on, and prints what they reach on held-out rows, mean ± standard deviation.
"""

import dataclasses
import os
import time

from absl import flags

from plm_jax.common import command_line, progress
from plm_jax.config import checks
from plm_jax.config.flags import ConfigFlag

_CONFIG = ConfigFlag()
_CHECKPOINT = flags.DEFINE_string("checkpoint", None, "a run, its checkpoint, a converted or a Hugging Face directory")
_WORKDIR = flags.DEFINE_string("workdir", None, "the run directory: config, checkpoints, metrics")
_SEEDS = flags.DEFINE_list("seeds", [], "one run per seed; by default the config's seed")
_ALLOW_CHANGES = flags.DEFINE_bool("allow_changes", False, "as of pretrain")
_REFUSE_DAMAGED = flags.DEFINE_bool(
    "refuse_damaged", False, "end where the newest checkpoint is damaged; else the run goes on from the one before"
)


def main() -> None:
    """Trains the model of `--checkpoint` as `--config` says in `--workdir`."""
    began = time.time()
    page, source = _CONFIG.run(replaces_model=True), command_line.required(_CHECKPOINT)
    workdir, seeds = command_line.required(_WORKDIR), command_line.seed_list(_SEEDS)
    with progress.doing(f"looking at {source}"):
        from plm_jax.runs import run_directory, transfer

        run = transfer.resolve(page, source)
    runs = {os.path.join(workdir, f"seed-{seed}"): dataclasses.replace(run.train, seed=seed) for seed in seeds}
    runs = {path: dataclasses.replace(run, train=train) for path, train in runs.items()} or {workdir: run}
    going_on = [path for path in runs if run_directory.has_checkpoint(path)]
    if not going_on:
        checks.refuse_unused(run)
    from plm_jax.runs import preparation

    keeps = ", ".join(going_on) if not _ALLOW_CHANGES.value else ""
    preparation.prepare_if_needed(run, [*_CONFIG.arguments(), f"--from={source}"], trained=keeps)
    with progress.doing("loading JAX"):
        command_line.start_jax()
        from plm_jax.experiments import seeds as experiments
        from plm_jax.runs import loop

    for path, one in runs.items():
        loop.pretrain(one, path, _ALLOW_CHANGES.value, _REFUSE_DAMAGED.value, began)
        began = time.time()
    if seeds and progress.is_first():
        print("\n".join(experiments.lines(list(runs))))


if __name__ == "__main__":
    command_line.run(main)
