"""`python -m plm_jax sweep --sweep=configs/ablations/X.py --workdir=W [--seeds=0,1,2]`: several runs, one table.

The same command again goes on: finished runs are left as they are. `--launcher=slurm` queues a job for each other run,
`--launcher=gke` has each on a slice of its own; what follows after `--` are options of sbatch, or of launch/gke.py.
"""

import signal
from types import FrameType

from absl import flags

from plm_jax.common import command_line
from plm_jax.common.errors import UserError
from plm_jax.config.flags import ModulesFlag

_SWEEP = flags.DEFINE_string("sweep", None, "a file with `base` and `overrides`, such as configs/ablations/X.py")
_WORKDIR = flags.DEFINE_string("workdir", None, "where each run gets a directory of its name, and the table goes")
_SEEDS = flags.DEFINE_list("seeds", [], "seeds of each run; by default its config's")
_LAUNCHER = flags.DEFINE_enum("launcher", "local", ["local", "slurm", "gke"], "where runs go: here, or as jobs")
_PARALLEL = flags.DEFINE_integer("parallel", None, "runs at once; by default one here, all on gke", lower_bound=1)
_RUN = flags.DEFINE_string("run", None, "does the run in W/RUN alone, without its parent: what a launcher's job does")
_MODULES = ModulesFlag()


def main() -> None:
    """Runs what is not finished and prints the table."""
    path, workdir = command_line.required(_SWEEP), command_line.required(_WORKDIR)
    options, here = command_line.options(), _LAUNCHER.value == "local"
    if here and options:
        raise UserError(f"'{options[0]}' is an option of another program: add --launcher=slurm or gke before the --")
    if _PARALLEL.value and (_LAUNCHER.value == "slurm" or _RUN.value):
        raise UserError(f"--parallel={_PARALLEL.value} is for runs that this process waits for: leave it out")
    if _RUN.value and not here:
        raise UserError(f"--run={_RUN.value} is done here: leave --launcher out")
    _MODULES.load()
    seeds = command_line.seed_list(_SEEDS)
    # Whoever stops this process stops those that it waits for.
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, _stop)
    from plm_jax.experiments import launchers, sweep

    command = launchers.job_command(path, workdir, seeds, _MODULES.arguments())
    if _RUN.value:
        sweep.run_one(path, workdir, seeds, _RUN.value)
    elif _LAUNCHER.value == "slurm":
        sweep.enqueue(path, workdir, seeds, launchers.Slurm(command, options))
    elif _LAUNCHER.value == "gke":
        sweep.run(path, workdir, seeds, launchers.Kubernetes(command, options, _PARALLEL.value))
    else:
        sweep.run(path, workdir, seeds, launchers.Local(_PARALLEL.value or 1))


def _stop(number: int, frame: FrameType | None) -> None:
    del frame
    signal.signal(number, signal.SIG_IGN)  # A launcher and its parent may both send it.
    raise KeyboardInterrupt(number)  # Which the runs are sent, too.


if __name__ == "__main__":
    command_line.run(main, takes_options=True)
