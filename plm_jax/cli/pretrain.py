"""`python -m plm_jax pretrain --config=FILE.py:SIZE --workdir=W`: trains; the same command again goes on.

What differs from the run so far is told; what the batches or the optimizer depend on may only with `--allow_changes`.
With `--from=SRC` a model that was trained before is trained on: model, vocabulary and special ids are its.
"""

import time

from absl import flags

from plm_jax.common import command_line, progress
from plm_jax.config.flags import ConfigFlag

_CONFIG = ConfigFlag()
_WORKDIR = flags.DEFINE_string("workdir", None, "the run directory: config, checkpoints, metrics")
_FROM = flags.DEFINE_string(
    "from", None, "whose model and vocabulary it trains on: a run, a checkpoint, a converted or Hugging Face directory"
)
_ALLOW_CHANGES = flags.DEFINE_bool(
    "allow_changes", False, "go on, too, where the config's data, seed or optimizer are not those that the run had"
)
_REFUSE_DAMAGED = flags.DEFINE_bool(
    "refuse_damaged", False, "end where the newest checkpoint is damaged; else the run goes on from the one before"
)


def main() -> None:
    """Trains what `--config` says in `--workdir`."""
    began = time.time()
    run, workdir = _CONFIG.run(replaces_model=bool(_FROM.value)), command_line.required(_WORKDIR)
    with progress.doing("importing JAX"):
        from plm_jax.runs import train

    train.pretrain(
        run,
        workdir,
        source=_FROM.value,
        allow_changes=_ALLOW_CHANGES.value,
        refuse_damaged=_REFUSE_DAMAGED.value,
        config_flags=_CONFIG.arguments(),
        began=began,
    )


if __name__ == "__main__":
    command_line.run(main)
