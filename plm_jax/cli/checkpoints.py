"""`python -m plm_jax checkpoints verify|list|prune DIR`: the checkpoints of a run directory, or one of them.

verify reads every file and reports which checkpoints, `best` included, are as they were saved (exit status 2 if one is
not). list prints the step, size and time of each, and the value of the best weights. prune removes the checkpoints that
the run's settings, or the flags, do not keep, after it has verified the newest one.
"""

from absl import flags

from plm_jax.common import command_line, progress
from plm_jax.common.errors import UserError, nearest

_KEEP_LAST = flags.DEFINE_integer("keep_last", None, "prune: how many of the newest stay; by default as the run has it")
_KEEP_EVERY = flags.DEFINE_integer("keep_every", None, "prune: multiples of so many steps stay, too (0: none)")


def main(command: str, directory: str) -> None:
    """Does as `command` says with the checkpoints in `directory`."""
    commands = ("verify", "list", "prune")
    if command not in commands:
        raise UserError(f"there is no command '{command}': {nearest(command, commands)}")
    command_line.start_jax_on_host()
    with progress.doing("loading JAX"):
        from plm_jax.runs import checkpoint_lists as lists
    if command == "prune":
        print(lists.pruned(directory, _KEEP_LAST.value, _KEEP_EVERY.value))
        return
    found = lists.entries(directory, verify=command == "verify")
    print(lists.verified(found) if command == "verify" else lists.listed(found))
    if damaged := [entry.name for entry in found if entry.damage]:
        raise UserError(
            f"{len(damaged)} of {len(found)} checkpoints cannot be used: {', '.join(damaged)}; a run goes on from the "
            "newest one that is whole"
        )


if __name__ == "__main__":
    command_line.run(main, words=("verify|list|prune", "DIR"))
