"""Recompute a training step and compare it with the recorded metrics.

usage: plm_jax replay DIR --step=N

The check passes if the batch is the same and the loss and the gradient norm match. With the same devices and software
versions as the run, both numbers must be bit-identical. Otherwise, they must agree within a tolerance, which is
printed. The exit status is 0 if the check passes and 2 if it fails. DIR is not changed.

example:
  plm_jax replay runs/demo-bert-0 --step=10
"""

from absl import flags

from plm_jax.common import command_line, progress
from plm_jax.common.errors import UserError
from plm_jax.config.flags import ModulesFlag

_STEP = flags.DEFINE_integer("step", None, "training step, counted from 1 (required)")
_MODULES = ModulesFlag()


def main(workdir: str) -> None:
    """Recomputes the step and prints how the results compare with the recorded metrics.

    Raises:
      UserError: the check fails, or the step was not recorded.
    """
    if _STEP.value is None:
        raise UserError("--step is missing: set it")
    _MODULES.load()
    with progress.doing("loading JAX"):
        command_line.start_jax()
        from plm_jax.runs import replay

    replay.replay(workdir, _STEP.value, lambda line: print(line, flush=True))


if __name__ == "__main__":
    command_line.run(main, positionals=("DIR",))
