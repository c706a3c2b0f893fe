"""Train and evaluate the runs of a sweep, and print a table of their results.

usage: plm_jax sweep --sweep=SWEEP --workdir=DIR [flags] [-- LAUNCHER_FLAGS]

Running the same command again resumes unfinished runs and skips finished ones. --launcher=slurm queues one job per run;
--launcher=gke trains each run on its own TPU slice. Flags after -- are passed to sbatch or launch/gke.py.

example:
  plm_jax sweep --sweep=ablations/objectives_demo --workdir=runs/objectives --seeds=0,1
"""

import signal
from types import FrameType

from absl import flags

from plm_jax.common import command_line
from plm_jax.common.errors import UserError
from plm_jax.config.flags import ModulesFlag

_SWEEP = flags.DEFINE_string("sweep", None, "sweep file, or a name such as ablations/positions (required)")
_WORKDIR = flags.DEFINE_string("workdir", None, "directory for the runs and the table (required)")
_SEEDS = flags.DEFINE_list("seeds", [], "seeds of each run, such as 0,1,2 (default: the seed of its config)")
_LAUNCHER = flags.DEFINE_enum("launcher", "local", ["local", "slurm", "gke"], "where the runs are trained")
_PARALLEL = flags.DEFINE_integer(
    "parallel",
    None,
    "number of concurrent runs (default: 1 with local, all with gke); not available with slurm",
    lower_bound=1,
)
_RUN = flags.DEFINE_string(
    "run",
    None,
    "train only the run DIR/RUN, in this process; if it starts from another run, that run must be finished",
)
_MODULES = ModulesFlag()


def main() -> None:
    """Trains the unfinished runs, or queues them with Slurm, and prints the table; with `--run`, trains one run."""
    path, workdir = command_line.required(_SWEEP), command_line.required(_WORKDIR)
    options, here = command_line.options(), _LAUNCHER.value == "local"
    if here and options:
        raise UserError(f"'{options[0]}' after -- is a flag of a launcher: add --launcher=slurm or gke before it")
    if _PARALLEL.value and (_LAUNCHER.value == "slurm" or _RUN.value):
        raise UserError(f"--parallel={_PARALLEL.value} cannot be combined with --launcher=slurm or --run: leave it out")
    if _RUN.value and not here:
        raise UserError(f"--run={_RUN.value} trains on this machine: leave out --launcher")
    _MODULES.load()
    seeds = command_line.seed_list(_SEEDS)
    # A signal that stops this process also stops the processes that it waits for.
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
    signal.signal(number, signal.SIG_IGN)  # A launcher and its parent may both send the signal.
    raise KeyboardInterrupt(number)  # The runs receive it too.


if __name__ == "__main__":
    command_line.run(main, accepts_options=True)
