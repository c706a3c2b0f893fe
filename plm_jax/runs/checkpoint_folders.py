"""Folders of the checkpoints of a run: finding, verifying, locking and removing them.

    checkpoints/STEP            a checkpoint that `checkpoints.Checkpoints` saved, sealed by its manifest
    checkpoints/best            the best weights by `evaluation.select`
    checkpoints/STEP.damaged    a damaged checkpoint, which is neither used nor removed
    checkpoints/best.damaged    a damaged `best`

On a disk, a checkpoint is written to a temporary folder, which is renamed once it is sealed; in a bucket, the manifest
is written last. A process that reads a checkpoint on a local disk locks it, so that it is not removed.
"""

import contextlib
import fcntl
import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils

from plm_jax import config
from plm_jax.common import progress, sealing, storage
from plm_jax.common.errors import UserError, one_line
from plm_jax.runs import run_directory

FORMAT = 2
BEST = "best"
# Suffixes of the folders of checkpoints that are being written, that are being removed, and that are damaged.
UNSEALED, REMOVED, DAMAGED = ".unsealed", ".removed", ".damaged"
_META = ("meta", "metadata")


def of_run(workdir: str) -> epath.Path:
    """Returns the folder of the checkpoints of a run directory.

    Raises:
      UserError: this kind of store does not support checkpoints.
    """
    if storage.is_remote(workdir) and not workdir.startswith("gs://"):
        raise UserError(f"checkpoints cannot be saved in {workdir}: use a local --workdir or one in gs://")
    return absolute(workdir) / "checkpoints"


def absolute(path: str) -> epath.Path:
    """Returns an absolute path, which Orbax requires."""
    return epath.Path(storage.absolute(path))


def finished(directory: epath.Path) -> list[int]:
    """Returns the sorted steps of the finished checkpoints in a folder.

    In a bucket, a checkpoint without a manifest is unfinished.
    """
    steps = storage.numbers(str(directory))
    if storage.is_remote(str(directory)):
        steps = [step for step in steps if (directory / str(step) / sealing.MANIFEST).exists()]
    return steps


def finished_everywhere(directory: epath.Path) -> list[int]:
    """Returns the sorted steps of the finished checkpoints that the first process of the job sees.

    All processes of a job must call this function. A network disk may show a new checkpoint late to other machines.
    """
    return broadcast(finished(directory))


def newest(path: str) -> epath.Path:
    """Returns the folder of a run directory's newest checkpoint, or `path` itself if it is a checkpoint.

    Raises:
      UserError: there is no finished checkpoint.
    """
    checkpoint = absolute(path)
    if (checkpoint / "params").exists():
        return checkpoint
    steps = finished(checkpoint / "checkpoints")
    if not steps:
        raise UserError(f"{path} has no finished checkpoint: train first, or pass another path")
    return checkpoint / "checkpoints" / str(steps[-1])


def read_meta(checkpoint: epath.Path) -> dict[str, Any]:
    """Returns the `meta` of a checkpoint's folder without reading its other files.

    Raises:
      UserError: the `meta` is missing or damaged, or its format is unknown.
    """
    try:
        meta = dict(json.loads(storage.read(str(checkpoint.joinpath(*_META)))))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise damaged(checkpoint, one_line(error)) from error
    if meta.get("format") != FORMAT:
        raise UserError(
            f"checkpoint {checkpoint} has format {meta.get('format')}, but this version of plm_jax reads format "
            f"{FORMAT}: use the version that wrote it"
        )
    if "run_id" not in meta:
        raise UserError(
            f"checkpoint {checkpoint} was saved by an earlier version of plm_jax: use that version, or train again"
        )
    if type(meta.get("step")) is not int or not isinstance(meta.get("config"), dict):
        raise damaged(checkpoint, f"its {'/'.join(_META)} has no step or no config")
    return meta


def checked(checkpoint: epath.Path, below: Sequence[str] = ("",), outside: Sequence[str] = ()) -> dict[str, Any]:
    """Compares the files of a checkpoint with its manifest, and returns the checkpoint's `meta`.

    Each process of a job reads the files that it wrote. A checkpoint in a run directory must belong to that run.

    Args:
      below: prefixes of the paths to compare, by default all paths; `meta` is always compared.
      outside: prefixes of paths to skip.

    Raises:
      UserError: the checkpoint is damaged, belongs to another run or has an unknown format.
    """
    with progress.doing(f"verifying {checkpoint}"):
        manifest = manifest_of(checkpoint, (*below, "meta/"), outside)
    meta, is_in_run = read_meta(checkpoint), checkpoint.parent.name == "checkpoints"
    name = checkpoint.name.removesuffix(REMOVED) if is_in_run else manifest["checkpoint"]
    if (manifest["checkpoint"], manifest["step"], manifest["format"]) != (name, meta["step"], meta["format"]):
        raise damaged(checkpoint, f"it was saved as {manifest['checkpoint']}, of step {manifest['step']}")
    workdir = checkpoint.parent.parent
    run_id = run_directory.read_id(str(workdir)) if is_in_run else None
    if run_id not in (None, meta.get("run_id")):
        raise damaged(checkpoint, f"it belongs to run {meta.get('run_id')}, {workdir} to run {run_id}")
    return meta


def manifest_of(checkpoint: epath.Path, below: Sequence[str] = (), outside: Sequence[str] = ()) -> dict[str, Any]:
    """Compares some files of a checkpoint with its manifest, and returns the manifest.

    Args:
      below: prefixes of the paths to compare; by default, no files are compared.
      outside: prefixes of paths to skip.

    Raises:
      UserError: a file has changed, or the manifest is damaged.
    """
    try:
        manifest = sealing.verify(str(checkpoint), below, share(), outside)
    except (sealing.DamagedError, OSError) as error:
        raise damaged(checkpoint, one_line(error)) from error
    kinds = {"checkpoint": str, "step": int, "format": int, "sealed": float}
    if not all(type(manifest.get(name)) is kind for name, kind in kinds.items()) or not 0 <= manifest["sealed"] < 2**40:
        raise damaged(checkpoint, f"its {sealing.MANIFEST} does not belong to a checkpoint")
    return manifest


def damaged(checkpoint: epath.Path, reason: str) -> sealing.DamagedError:
    """Returns the error for a damaged checkpoint; its message suggests another checkpoint, or a copy of this one."""
    intact = [step for step in finished(checkpoint.parent) if str(step) != checkpoint.name]
    instead = f"another checkpoint, such as {checkpoint.parent / str(intact[-1])}" if intact else "a copy of it"
    return sealing.DamagedError(reason, f"checkpoint {checkpoint} is damaged ({reason}): use {instead}")


class IntactCheckpoint(NamedTuple):
    """A checkpoint without damage.

    Attributes:
      checkpoint: folder of the checkpoint.
      meta: contents of its `meta`.
      damaged: for each newer checkpoint, by step, the reason why it cannot be used.
    """

    checkpoint: epath.Path
    meta: dict[str, Any]
    damaged: dict[int, str]


def newest_intact(directory: epath.Path, refuse_damaged: bool) -> IntactCheckpoint | None:
    """Returns the newest checkpoint without damage, or None if there is no checkpoint.

    All processes of a job must call this function; all get the same result.

    Args:
      refuse_damaged: whether a damaged newest checkpoint is an error.

    Raises:
      UserError: every checkpoint is damaged, the newest one is damaged and `refuse_damaged` is set, or a format is
        unknown.
    """
    steps, damaged_steps = finished_everywhere(directory), {}
    for step in reversed(steps):
        checkpoint = directory / str(step)
        meta, damage = checked_everywhere(checkpoint)
        if meta is not None:
            return IntactCheckpoint(checkpoint, meta, damaged_steps)
        assert damage is not None
        if refuse_damaged or step == steps[0]:
            raise damage
        damaged_steps[step] = damage.reason
    return None


def checked_everywhere(checkpoint: epath.Path) -> tuple[dict[str, Any], None] | tuple[None, sealing.DamagedError]:
    """Returns `(meta, None)` for an intact checkpoint and `(None, error)` for a damaged one.

    All processes of a job must call this function; they agree on whether the checkpoint is damaged.

    Raises:
      UserError: the format is unknown.
    """
    meta: dict[str, Any] = {}
    damage = None
    try:
        meta = checked(checkpoint)
    except sealing.DamagedError as error:
        damage = error
    if anywhere(damage is not None):
        return None, damage or damaged(checkpoint, "a file that another process wrote has changed")
    return meta, None


def find_best(directory: epath.Path) -> epath.Path | None:
    """Returns the folder of the best weights, or None if there are none.

    All processes of a job must call this function; all get the same result. If a save of new best weights was
    interrupted, the previous best weights may have a temporary name. Their folder is then returned, and the next call
    of `clear` restores its name.
    """
    names = [name for name in (BEST, BEST + REMOVED) if (directory / name).exists()]
    name = broadcast(names[:1])
    return directory / name[0] if name else None


def anywhere(here: bool) -> bool:
    """Whether a condition holds in at least one process of the job. All processes must call this function."""
    if jax.process_count() == 1:
        return here
    return bool(np.any(multihost_utils.process_allgather(np.array(here))))


def broadcast(value: Any) -> Any:
    """Returns the `value` of the job's first process, in every process. All processes must call this function.

    Args:
      value: value that JSON can represent; ignored in all processes except the first.
    """
    if jax.process_count() == 1:
        return value
    data = np.frombuffer(json.dumps(value).encode("utf-8"), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
    data = multihost_utils.broadcast_one_to_all(np.resize(data, size))
    return json.loads(np.asarray(data, np.uint8).tobytes())


def share() -> sealing.Share:
    """Returns this process's share of the files to hash.

    A file with `process_N` in its path belongs to process N, which wrote it; every other file belongs to process 0. If
    the job has fewer processes now, N is taken modulo their number.
    """

    def owner(path: str) -> int:
        match = re.search(r"process_(\d+)(?:/|$)", path)
        return int(match[1]) if match else 0

    return sealing.Share(jax.process_index(), jax.process_count(), owner)


def retained(steps: Sequence[int], keep_last: int, keep_every: int, base: int = 0) -> set[int]:
    """Returns the steps of the checkpoints to keep.

    Args:
      steps: sorted steps of the finished checkpoints.
      keep_last: number of newest checkpoints to keep.
      keep_every: checkpoints at multiples of this number of steps are also kept; 0: no such checkpoints.
      base: the newest checkpoint at a multiple of this number of steps is also kept; 0: no such checkpoint.
    """
    of_base = [step for step in steps if base and step % base == 0]
    return {*steps[-keep_last:], *of_base[-1:], *(step for step in steps if keep_every and step % keep_every == 0)}


def rollback_base(run: config.Run) -> int:
    """Returns the argument `base` for `retained`: `checkpoint.save_every` if spikes roll the run back, otherwise 0."""
    return run.checkpoint.save_every if run.train.incidents.spikes == "roll_back" else 0


def prune(directory: epath.Path, retained_steps: set[int]) -> list[int]:
    """Removes the checkpoints of steps that are not in `retained_steps`.

    Local checkpoints that a process of this machine is reading are kept. The best weights and damaged checkpoints are
    not touched.

    Returns:
      The steps of the removed checkpoints.

    Raises:
      UserError, OSError: a checkpoint could not be removed; all other checkpoints are removed before this error is
        raised.
    """
    removed, failure = [], None
    for step in finished(directory):
        try:
            if step not in retained_steps and _remove(directory / str(step)):
                removed.append(step)
        except (UserError, OSError) as error:
            failure = failure or error
    if failure:
        raise failure
    return removed


def _remove(checkpoint: epath.Path) -> bool:
    """Removes a checkpoint unless it is local and a process of this machine is reading it.

    Returns:
      Whether the checkpoint was removed.
    """
    if storage.is_remote(str(checkpoint)):
        storage.remove(str(checkpoint / sealing.MANIFEST))  # Without its manifest it is unfinished.
        storage.remove(str(checkpoint))
        return True
    removed = checkpoint.parent / (checkpoint.name + REMOVED)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(FileNotFoundError, UserError):  # A damaged checkpoint may have no `meta`.
            meta = stack.enter_context(storage.open_for_lock(str(checkpoint.joinpath(*_META))))
            if not storage.try_lock(meta):
                return False
        if not checkpoint.exists():  # Another process has removed it.
            return False
        # Renamed first, since half a checkpoint would look damaged.
        storage.rename(str(checkpoint), str(removed))
    storage.remove(str(removed))
    return True


def lock(checkpoint: epath.Path) -> contextlib.AbstractContextManager:
    """Locks a checkpoint, so that runs on this machine do not remove it until the lock is closed or deleted.

    A checkpoint in a bucket or on a disk without locks is not locked.

    Raises:
      FileNotFoundError: the checkpoint does not exist, or has been removed.
      UserError: the checkpoint is damaged.
    """
    if storage.is_remote(str(checkpoint)):
        return contextlib.nullcontext()
    try:
        file = storage.open_binary(str(checkpoint.joinpath(*_META)))
    except FileNotFoundError as error:
        if checkpoint.exists():
            raise damaged(checkpoint, one_line(error)) from error
        raise
    with contextlib.suppress(OSError):  # Some network disks have no locks.
        fcntl.flock(file, fcntl.LOCK_SH)
    if not checkpoint.exists():
        file.close()
        raise FileNotFoundError(checkpoint)
    return file


def set_aside(checkpoint: epath.Path) -> epath.Path:
    """Renames a damaged checkpoint, so that nothing uses or removes it; returns its new path."""
    numbers = ("", *(f"-{number}" for number in range(2, 1000)))
    names = (checkpoint.parent / f"{checkpoint.name}{DAMAGED}{number}" for number in numbers)
    aside = next(path for path in names if not path.exists())
    storage.rename(str(checkpoint), str(aside))
    return aside


def replace(sealed: epath.Path, final: epath.Path) -> None:
    """Renames a sealed checkpoint to its final path, and removes the previous checkpoint at that path.

    If the replacement is interrupted, the next call of `clear` cleans up.
    """
    replaced = final.parent / (final.name + REMOVED)
    storage.remove(str(replaced))
    if final.exists():
        storage.rename(str(final), str(replaced))
    storage.rename(str(sealed), str(final))
    storage.remove(str(replaced))


def clear(directory: epath.Path) -> None:
    """Removes the remains of interrupted saves; restores the previous `best` if no new one has taken its place."""
    best, replaced = directory / BEST, directory / (BEST + REMOVED)
    if replaced.exists() and not best.exists():
        storage.rename(str(replaced), str(best))
    for name in storage.names(str(directory)):
        if name.endswith((UNSEALED, REMOVED)) or ".orbax-checkpoint-tmp" in name:
            storage.remove(str(directory / name))
