"""`python -m plm_jax status W`: how a run is: alive or not, step, rate, last checkpoint, errors, goodput.

W may be in a bucket. Goodput is the time of steps that were kept over all the time since the first start. Exit status:
0, the run is alive or finished; 1, it is neither, and the same command of its would go on; 2, there is no run.
"""

import sys

from plm_jax.common import command_line
from plm_jax.runs import run_status


def main(workdir: str) -> None:
    """Prints how the run in `workdir` is."""
    found = run_status.of_run(workdir)
    print("\n".join(found.lines))
    sys.exit(0 if found.fine else 1)


if __name__ == "__main__":
    command_line.run(main, words=("W",))
