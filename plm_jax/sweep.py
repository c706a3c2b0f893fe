"""`python -m plm_jax.sweep --sweep=configs/ablations/X.py --workdir=W [--seeds=0,1,2]`: several runs, one table.

The same command again goes on: finished runs are left as they are.
"""

import signal

from absl import flags

from plm_jax.common import command_line
from plm_jax.config.flags import ModulesFlag

_SWEEP = flags.DEFINE_string("sweep", None, "a file with `base` and `overrides`, such as configs/ablations/X.py")
_WORKDIR = flags.DEFINE_string("workdir", None, "where each run gets a directory of its name, and the table goes")
_SEEDS = flags.DEFINE_list("seeds", [], "seeds of each run; by default its config's")
_LAUNCHER = flags.DEFINE_enum("launcher", "local", ["local"], "where runs go: one after another on this machine")
_MODULES = ModulesFlag()


def main() -> None:
    """Runs what is not finished and prints the table."""
    path, workdir = command_line.required(_SWEEP), command_line.required(_WORKDIR)
    _MODULES.load()
    seeds = command_line.integers(_SEEDS)
    # Whoever stops this process stops the one that it waits for.
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.default_int_handler)
    from plm_jax.experiments import sweep

    sweep.run(path, workdir, seeds)


if __name__ == "__main__":
    command_line.run(main)
