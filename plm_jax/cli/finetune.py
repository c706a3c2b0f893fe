"""Fine-tune a pretrained model on the task of a config, or resume a run.

usage: plm_jax finetune --config=CONFIG --checkpoint=MODEL --workdir=DIR [flags]

The model, the vocabulary and the special ids come from the checkpoint. Everything else comes from the config. Running
the same command again resumes the run. With --seeds=0,1,2, one model per seed is trained in DIR/seed-0, DIR/seed-1 and
DIR/seed-2, and the mean ± standard deviation of their held-out metrics is printed.

example:
  plm_jax finetune --config=tasks/sentiment --checkpoint=runs/demo-bert-0 --workdir=runs/demo-sentiment
"""

import time

from absl import flags

from plm_jax.common import command_line, progress
from plm_jax.config.flags import ConfigFlag

_CONFIG = ConfigFlag()
_CHECKPOINT = flags.DEFINE_string(
    "checkpoint", None, "run, checkpoint, converted or Hugging Face directory, or hf:ORG/NAME[@REVISION] (required)"
)
_WORKDIR = flags.DEFINE_string("workdir", None, "run directory for config, checkpoints and metrics (required)")
_SEEDS = flags.DEFINE_list("seeds", [], "train one model per seed, such as 0,1,2 (default: the seed of the config)")
_ALLOW_CHANGES = flags.DEFINE_bool(
    "allow_changes", False, "resume even if the data, seed or optimizer differ from those of the saved run"
)
_REFUSE_DAMAGED = flags.DEFINE_bool(
    "refuse_damaged", False, "fail if the newest checkpoint is damaged, instead of resuming from the one before it"
)


def main() -> None:
    """Fine-tunes the model of `--checkpoint` with the settings of `--config` in `--workdir`."""
    began = time.time()
    run, source = _CONFIG.run(replaces_model=True), command_line.required(_CHECKPOINT)
    workdir, seeds = command_line.required(_WORKDIR), command_line.seed_list(_SEEDS)
    with progress.doing("importing JAX"):
        from plm_jax.experiments import seeds as experiments
        from plm_jax.runs import train

    results = train.finetune(
        run,
        source,
        workdir,
        seeds=seeds,
        allow_changes=_ALLOW_CHANGES.value,
        refuse_damaged=_REFUSE_DAMAGED.value,
        config_flags=_CONFIG.arguments(),
        began=began,
    )
    if seeds and progress.is_first():
        print("\n".join(experiments.lines([result.workdir for result in results])))


if __name__ == "__main__":
    command_line.run(main)
