"""`python -m plm_jax pretrain --config=FILE.py:SIZE --workdir=W`: trains; the same command again goes on.

What differs from the run so far is told; what the batches or the optimizer depend on may only with `--allow_changes`.
With `--from=SRC` a model that was trained before is trained on: model, vocabulary and special ids are its.
"""

import time

from absl import flags

from plm_jax.common import command_line, progress
from plm_jax.config import checks
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
    run, workdir, arguments = (
        _CONFIG.run(replaces_model=bool(_FROM.value)),
        command_line.required(_WORKDIR),
        _CONFIG.arguments(),
    )
    if _FROM.value:
        with progress.doing(f"looking at {_FROM.value}"):
            from plm_jax.runs import transfer

            run, arguments = transfer.resolve(run, _FROM.value), [*arguments, f"--from={_FROM.value}"]
    from plm_jax.runs import preparation, run_directory

    goes_on = run_directory.has_checkpoint(workdir)
    if not goes_on:
        checks.refuse_unused(run)
    keeps = not _ALLOW_CHANGES.value and goes_on
    preparation.prepare_if_needed(run, arguments, trained=workdir if keeps else "")
    with progress.doing("loading JAX"):
        command_line.start_jax()
        from plm_jax.runs import loop

    loop.pretrain(run, workdir, _ALLOW_CHANGES.value, _REFUSE_DAMAGED.value, began)


if __name__ == "__main__":
    command_line.run(main)
