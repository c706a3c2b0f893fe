"""`python -m plm_jax replay W --step=N`: computes a step of a run again and compares it with what metrics.jsonl has.

Exit status 0 where loss, gradient norm and batch are equal: to the bit on the same devices and versions, else to a
tolerance that is told; 2 where they are not. Nothing is written.
"""

from absl import flags

from plm_jax.common import command_line, progress
from plm_jax.common.errors import UserError
from plm_jax.config.flags import ModulesFlag

_STEP = flags.DEFINE_integer("step", None, "the step, of which the first is 1")
_MODULES = ModulesFlag()


def main(workdir: str) -> None:
    """Computes the step and says how it compares."""
    if _STEP.value is None:
        raise UserError("--step is missing: set it")
    _MODULES.load()
    with progress.doing("loading JAX"):
        command_line.start_jax()
        from plm_jax.runs import replay

    replay.replay(workdir, _STEP.value, lambda line: print(line, flush=True))


if __name__ == "__main__":
    command_line.run(main, words=("W",))
