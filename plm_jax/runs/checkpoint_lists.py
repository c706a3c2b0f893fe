"""The checkpoints that `plm_jax checkpoints` lists, verifies and removes."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from etils import epath

from plm_jax import config
from plm_jax.common import sealing
from plm_jax.common.errors import UserError
from plm_jax.runs import checkpoint_folders as folders


class CheckpointEntry(NamedTuple):
    """A checkpoint in a list.

    Attributes:
      name: name of the checkpoint's folder.
      step: step of the checkpoint; None if it is damaged.
      sealed: time when its manifest was written, in seconds since 1970; None if it is damaged.
      size: number of bytes; 0 if it is damaged.
      files: number of files; 0 if it is damaged.
      selected: metric that selected the best weights, and its value; empty for other checkpoints.
      damage: reason why the checkpoint cannot be used; None if no damage was found.
    """

    name: str
    step: int | None = None
    sealed: float | None = None
    size: int = 0
    files: int = 0
    selected: str = ""
    damage: str | None = None


def entries(path: str, verify: bool) -> list[CheckpointEntry]:
    """Returns the checkpoints of a run directory, or the single checkpoint at a path.

    Args:
      path: a run directory or a checkpoint.
      verify: whether all files of each checkpoint are compared with its manifest; if not, only the files of its `meta`
        are compared.

    Raises:
      UserError: there are no checkpoints.
    """
    checkpoint = folders.absolute(path)
    if (checkpoint / "params").exists():
        return [_entry(checkpoint, verify)]
    directory = folders.of_run(path)
    names = [str(step) for step in folders.finished(directory)]
    names += [folders.BEST] * (directory / folders.BEST).exists()
    if not names:
        raise UserError(f"{path} has no finished checkpoint: pass a run directory or one of its checkpoints")
    return [_entry(directory / name, verify) for name in names]


def _entry(checkpoint: epath.Path, verify: bool) -> CheckpointEntry:
    try:
        meta = folders.checked(checkpoint, [""] if verify else ["meta/"])
        manifest = folders.manifest_of(checkpoint)
    except sealing.DamagedError as error:
        return CheckpointEntry(checkpoint.name, damage=f"damaged: {error.reason}")
    except UserError as error:
        return CheckpointEntry(checkpoint.name, damage=str(error))
    selected = meta.get("selected") if checkpoint.name == folders.BEST else None
    return CheckpointEntry(
        checkpoint.name,
        meta["step"],
        manifest["sealed"],
        sum(size for size, _ in manifest["files"].values()),
        len(manifest["files"]),
        f"{selected['by']} {selected['value']:.6g}" if selected else "",
    )


def listed(checkpoints: Sequence[CheckpointEntry]) -> str:
    """Returns one line per checkpoint with its name, followed by its damage or by its properties.

    The properties are the step, the size, the time when the manifest was written and, for `best`, the metric.
    """
    lines = []
    for entry in checkpoints:
        cells = [f"{entry.name:>10}"]
        if entry.damage is None:
            sealed = time.strftime("sealed %Y-%m-%d %H:%M:%S UTC", time.gmtime(entry.sealed))
            cells += [f"step {entry.step}", f"{entry.size / 1e6:,.1f} MB", sealed, entry.selected]
        lines.append("  ".join(filter(None, [*cells, entry.damage])))
    return "\n".join(lines)


def verified(checkpoints: Sequence[CheckpointEntry]) -> str:
    """Returns one line per checkpoint, which reports whether the checkpoint is complete and undamaged."""
    intact = (f"intact: {entry.files:,} files match the checksums in their manifest" for entry in checkpoints)
    lines = (f"{entry.name:>10}  {entry.damage or line}" for entry, line in zip(checkpoints, intact, strict=True))
    return "\n".join(lines)


def pruned(workdir: str, keep_last: int | None, keep_every: int | None) -> str:
    """Removes checkpoints of a run, and returns a line that lists the removed and the kept ones.

    Checkpoints that the run needs to roll back after a spike, and checkpoints that a process of this machine is
    reading, are kept.

    Args:
      keep_last: number of newest checkpoints to keep; None: the setting of the run.
      keep_every: checkpoints at multiples of this number of steps are also kept; 0: no such checkpoints; None: the
        setting of the run.

    Raises:
      UserError: there are no checkpoints, the newest one is damaged, an argument is out of range, or a checkpoint in a
        bucket cannot be removed.
      OSError: a checkpoint on a local disk cannot be removed.
    """
    directory = folders.of_run(workdir)
    steps = folders.finished(directory)
    if not steps:
        raise UserError(f"{workdir} has no finished checkpoint: pass a run directory")
    newest = directory / str(steps[-1])
    meta = folders.checked(newest)
    run = config.from_saved(meta["config"], meta.get("modules"))
    keep_last = run.checkpoint.keep_last if keep_last is None else keep_last
    keep_every = run.checkpoint.keep_every if keep_every is None else keep_every
    if keep_last < 1 or keep_every < 0:
        raise UserError(f"--keep_last={keep_last} --keep_every={keep_every}: must be at least 1 and at least 0")
    removed = folders.prune(directory, folders.retained(steps, keep_last, keep_every, folders.rollback_base(run)))
    left = [step for step in steps if step not in removed]
    return f"removed {', '.join(map(str, removed)) or 'none'}; kept {', '.join(map(str, left))}"
