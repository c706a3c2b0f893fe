"""Pretrain a language model, or resume a run.

usage: plm_jax pretrain --config=CONFIG --workdir=DIR [flags]

Data that is not prepared yet is prepared first. Running the command again with the same --workdir resumes the run from
its newest checkpoint and reports every setting that differs from the saved run. Changes that affect the batches or the
optimizer are rejected unless you pass --allow_changes. With --from, the model, the vocabulary and the special ids come
from a pretrained model.

example:
  plm_jax pretrain --config=demo:bert --workdir=runs/demo-bert-0
"""

import time

from absl import flags

from plm_jax.common import command_line, progress
from plm_jax.config.flags import ConfigFlag

_CONFIG = ConfigFlag()
_WORKDIR = flags.DEFINE_string("workdir", None, "run directory for config, checkpoints and metrics (required)")
_FROM = flags.DEFINE_string(
    "from",
    None,
    "model to train further: run, checkpoint, directory written by `convert`, Hugging Face directory, or "
    "hf:ORG/NAME[@REVISION]",
)
_ALLOW_CHANGES = flags.DEFINE_bool(
    "allow_changes", False, "resume even if the data, seed or optimizer differ from those of the saved run"
)
_REFUSE_DAMAGED = flags.DEFINE_bool(
    "refuse_damaged", False, "fail if the newest checkpoint is damaged, instead of resuming from the one before it"
)


def main() -> None:
    """Trains the run of `--config` in `--workdir`, or resumes it, and prints a summary."""
    began = time.time()
    run, workdir = _CONFIG.run(replaces_model=bool(_FROM.value)), command_line.required(_WORKDIR)
    with progress.doing("importing JAX"):
        from plm_jax.experiments import summary
        from plm_jax.runs import train

    result = train.pretrain(
        run,
        workdir,
        source=_FROM.value,
        allow_changes=_ALLOW_CHANGES.value,
        refuse_damaged=_REFUSE_DAMAGED.value,
        config_flags=_CONFIG.arguments(),
        began=began,
    )
    if progress.is_first():
        print("\n".join(summary.lines([result], time.time() - began)))


if __name__ == "__main__":
    command_line.run(main)
