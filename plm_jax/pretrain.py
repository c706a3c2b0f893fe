"""`python -m plm_jax.pretrain --config=FILE.py:SIZE --workdir=W`: trains; the same command again goes on.

What differs from the run so far is told; what the batches or the optimizer depend on may only with `--allow_changes`.
"""

from absl import flags

from plm_jax.common import command_line, progress
from plm_jax.config import checks
from plm_jax.config.flags import ConfigFlag

_CONFIG = ConfigFlag()
_WORKDIR = flags.DEFINE_string("workdir", None, "the run directory: config, checkpoints, metrics")
_ALLOW_CHANGES = flags.DEFINE_bool(
    "allow_changes", False, "go on, too, where the config's data, seed or optimizer are not those that the run had"
)


def main() -> None:
    """Trains what `--config` says in `--workdir`."""
    run, workdir = _CONFIG.run(), command_line.required(_WORKDIR)
    from plm_jax.data import preparation
    from plm_jax.training import run_directory

    goes_on = run_directory.has_checkpoint(workdir)
    if not goes_on:
        checks.refuse_unused(run)
    keeps = not _ALLOW_CHANGES.value and goes_on
    preparation.prepare_if_needed(run, _CONFIG.arguments(), trained=workdir if keeps else "")
    with progress.doing("loading JAX"):
        command_line.start_jax()
        from plm_jax.training import loop

    loop.pretrain(run, workdir, _ALLOW_CHANGES.value)


if __name__ == "__main__":
    command_line.run(main)
