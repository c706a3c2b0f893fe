"""What `plm_jax checkpoints` shows and removes."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from plm_jax import config
from plm_jax.common import sealing
from plm_jax.common.errors import UserError
from plm_jax.training import checkpoint_folders as folders


class Entry(NamedTuple):
    """A checkpoint: its name, step, when it was sealed (seconds since 1970; None: unknown), size in bytes, damage."""

    name: str
    step: int | None
    sealed: float | None
    size: int
    damage: str | None
    note: str


def entries(path: str, verify: bool) -> list[Entry]:
    """The checkpoints of a run directory, or the one at a path; without `verify` only their manifests are read.

    Raises:
      UserError: there are none.
    """
    one = folders.absolute(path)
    if (one / "params").exists():
        return [_entry(one, verify)]
    directory = folders.of_run(path)
    names = [str(step) for step in folders.finished(directory)]
    names += [folders.BEST] * (directory / folders.BEST).exists()
    if not names:
        raise UserError(f"{path} has no finished checkpoint: give a run directory, or one of its checkpoints")
    return [_entry(directory / name, verify) for name in names]


def _entry(checkpoint, verify: bool) -> Entry:
    step, sealed, size, damage, note = None, None, 0, None, ""
    try:
        meta = folders.checked(checkpoint, [""] if verify else ["meta/"])
        step = meta["step"]
        if meta["format"] == 1:
            note = "format 1, without checksums"
        else:
            manifest = folders.manifest_of(checkpoint)
            size, sealed = sum(length for length, _ in manifest["files"].values()), manifest["sealed"]
    except sealing.DamagedError as error:
        damage = f"damaged: {error.reason}"
    except UserError as error:
        damage = str(error)
    return Entry(checkpoint.name, step, sealed, size, damage, note)


def table(found: Sequence[Entry]) -> str:
    """A line for each."""
    lines = []
    for entry in found:
        when = "" if entry.sealed is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(entry.sealed))
        step = "" if entry.step is None or entry.name == str(entry.step) else f"step {entry.step}"
        told = entry.damage or entry.note or f"{entry.size / 1e6:,.1f} MB"
        lines.append("  ".join(cell for cell in (f"{entry.name:>10}", step, when, told) if cell))
    return "\n".join(lines)


def pruned(workdir: str, keep_last: int | None, keep_every: int | None) -> str:
    """Removes what is not kept; says what.

    Raises:
      UserError: there are no checkpoints, the newest one that stays is damaged, or a flag is no such number.
    """
    directory = folders.of_run(workdir)
    steps = folders.finished(directory)
    if not steps:
        raise UserError(f"{workdir} has no finished checkpoint: give a run directory")
    newest = directory / str(steps[-1])
    meta = folders.checked(newest)
    settings = config.from_saved(meta["config"], meta.get("modules")).checkpoint
    keep_last = settings.keep_last if keep_last is None else keep_last
    keep_every = settings.keep_every if keep_every is None else keep_every
    if keep_last < 1 or keep_every < 0:
        raise UserError(f"--keep_last={keep_last} --keep_every={keep_every}: give 1 or more, and 0 or more")
    removed = folders.prune(directory, folders.retained(steps, keep_last, keep_every))
    left = [step for step in steps if step not in removed]
    return f"removed {', '.join(map(str, removed)) or 'none'}; kept {', '.join(map(str, left))}"
