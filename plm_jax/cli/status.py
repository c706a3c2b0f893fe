"""Print the status of a run: step, speed, last checkpoint, errors and goodput.

usage: plm_jax status DIR

DIR may be in a bucket. Goodput is the share of the time from the first start until now, or until the end of a finished
run, that was spent on training steps. Steps that had to be repeated after a restart count only once. Exit status:

  0  the run is running or finished
  1  the run has stopped before its end; run its command again to resume it
  2  there is no run

example:
  plm_jax status runs/demo-bert-0
"""

import sys

from plm_jax.common import command_line
from plm_jax.runs import run_status


def main(workdir: str) -> None:
    """Prints the status of the run in `workdir`, and exits with status 0 or 1."""
    status = run_status.of_run(workdir)
    print("\n".join(status.lines))
    sys.exit(0 if status.fine else 1)


if __name__ == "__main__":
    command_line.run(main, positionals=("DIR",))
