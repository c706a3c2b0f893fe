"""List, verify or prune the checkpoints of a run.

usage: plm_jax checkpoints {list,verify,prune} DIR [flags]

  list    print the step, size and time of each checkpoint, and the metric of the best one
  verify  read every file and report damaged checkpoints
  prune   verify the newest checkpoint, then remove the checkpoints that neither --keep_last nor --keep_every retains;
          the best weights are kept, as is the checkpoint to which the run would return after a spike of the loss

DIR is a run directory; list and verify also accept a single checkpoint. Their exit status is 2 if they find a damaged
checkpoint.

example:
  plm_jax checkpoints verify runs/demo-bert-0
"""

from absl import flags

from plm_jax.common import command_line, progress
from plm_jax.common.errors import UserError

_KEEP_LAST = flags.DEFINE_integer(
    "keep_last", None, "prune: number of newest checkpoints to keep (default: checkpoint.keep_last of the run)"
)
_KEEP_EVERY = flags.DEFINE_integer(
    "keep_every",
    None,
    "prune: also keep checkpoints at multiples of this number of steps; 0: keep only the newest ones "
    "(default: checkpoint.keep_every of the run)",
)


def main(action: str, directory: str) -> None:
    """Runs `list`, `verify` or `prune` on the checkpoints in `directory`.

    Raises:
      UserError: there is no checkpoint, or one is damaged.
    """
    command_line.start_jax_on_host()
    with progress.doing("loading JAX"):
        from plm_jax.runs import checkpoint_lists as lists
    if action == "prune":
        print(lists.pruned(directory, _KEEP_LAST.value, _KEEP_EVERY.value))
        return
    entries = lists.entries(directory, verify=action == "verify")
    print(lists.verified(entries) if action == "verify" else lists.listed(entries))
    if damaged := [entry.name for entry in entries if entry.damage]:
        raise UserError(
            f"{len(damaged)} of {len(entries)} checkpoints are damaged: {', '.join(damaged)}; a run resumes "
            "from the newest undamaged one"
        )


if __name__ == "__main__":
    command_line.run(main, positionals=("{list,verify,prune}", "DIR"))
