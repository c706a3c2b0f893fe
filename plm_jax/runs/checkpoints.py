"""Checkpoints of a run: Orbax writes them asynchronously, a manifest seals them, and any mesh can restore them.

A checkpoint contains:

    params     the parameters, separate from the optimizer so that weights can be read without it
    average    the moving average of the parameters, if there is one
    training   the step, the state of the optimizer and the recurrent state
    meta       format, step, config, identities of run, vocabulary and caches, all phases of the run, next example,
               current phase, mesh, devices, versions, incidents, and the history of best weights
    manifest   hashes of all files (`common.sealing`)

The checkpoint `best` contains only params, meta and the manifest.
"""

import contextlib
import errno
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, Self

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from flax import traverse_util

from plm_jax import config
from plm_jax.common import progress, sealing, storage
from plm_jax.common.errors import UserError, one_line
from plm_jax.hub import files
from plm_jax.runs import checkpoint_folders as folders
from plm_jax.training.state import TrainState

# Reasons of failed saves that messages name without further text.
_REASONS = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


def _rest(state: TrainState) -> dict[str, Any]:
    return {"step": state.step, "optimizer": state.optimizer, "carry": state.carry}


def _items(state: TrainState) -> dict[str, Any]:
    """Returns the items of a checkpoint except `meta`."""
    average = {"average": state.average} if jax.tree.leaves(state.average) else {}
    return {"params": state.params, "training": _rest(state), **average}


class Loaded(NamedTuple):
    """Weights of a checkpoint: the parameters, the run that trained them, and the `meta`."""

    params: Any
    run: config.Run
    meta: dict[str, Any]


class Checkpoints:
    """Checkpoints of one run directory; a context manager whose exit waits until the current save has finished.

    If a save fails, `failure` returns the reason. On a disk, the checkpoints are then as they were before. In a bucket,
    a failed save of the best weights may destroy the previous best weights.
    """

    def __init__(self, workdir: str, settings: config.CheckpointConfig, base: int = 0, run_id: str | None = None):
        """Opens the checkpoints of a run; the first process also creates their folder and cleans it up.

        Args:
          base: the newest checkpoint at a multiple of this number of steps is also kept; 0: no such checkpoint.
          run_id: identity of the run, which each checkpoint records.

        Raises:
          UserError: this kind of store does not support checkpoints, or the store cannot be reached.
        """
        self.directory = folders.of_run(workdir)
        self._settings, self._base, self._run_id = settings, base, run_id
        self._is_remote = storage.is_remote(str(self.directory))
        self._saver = ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler())
        self._saving: threading.Thread | None = None
        self._failure: str | None = None
        self._warning: str | None = None
        if jax.process_index() == 0:
            with storage.reaching(workdir):
                self.directory.mkdir(parents=True, exist_ok=True)
                folders.clear(self.directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with progress.doing("writing the last checkpoint"):
            self.wait()
            self._saver.close()

    def save(self, step: int, state: TrainState, meta: dict[str, Any]) -> None:
        """Begins to save the state after `step` steps; returns once the arrays are copied.

        It first waits until the current save has finished.

        Raises:
          UserError: the save cannot begin in this process, and the job has several processes.
        """
        self._begin(str(step), step, meta, **_items(state))

    def save_best(self, step: int, params: Any, meta: dict[str, Any]) -> bool:
        """Saves weights in place of the previous best weights, and waits; returns whether the save succeeded.

        `warning` returns the reason of a failure, because only failed saves of numbered checkpoints are retried.

        Raises:
          UserError: the save cannot begin in this process, and the job has several processes.
        """
        with progress.doing("writing the best checkpoint"):
            self.wait()
            before, self._failure = self._failure, None
            self._begin(folders.BEST, step, meta, params=params)
            self.wait()
            failure, self._failure = self._failure, before
            self._warning = failure or self._warning
        return failure is None

    def wait(self) -> None:
        """Waits until the current save has finished, if there is one."""
        if self._saving:
            self._saving.join()
            self._saving = None

    def failure(self) -> str | None:
        """Returns a line about a failed save of a numbered checkpoint since the last call, or None."""
        failure, self._failure = self._failure, None
        return failure

    def warning(self) -> str | None:
        """Returns a line about a failure since the last call that needs no retry, or None.

        Best weights could not be saved, or an old checkpoint could not be removed.
        """
        warning, self._warning = self._warning, None
        return warning

    def restore(self, step: int, abstract: TrainState) -> TrainState:
        """Returns the state of a checkpoint with the shapes and shardings of `abstract`.

        `recent` is not restored, because the checkpoint's `meta` records it.

        Raises:
          UserError: the checkpoint cannot be read.
        """
        return read_state(self.directory / str(step), abstract)

    def _begin(self, name: str, step: int, meta: dict[str, Any], **trees: Any) -> None:
        self.wait()
        path = self.directory / (name if self._is_remote else name + folders.UNSEALED)
        items: dict[str, Any] = {key: ocp.args.StandardSave(tree) for key, tree in trees.items()}
        about = {"format": folders.FORMAT, "step": step, "run_id": self._run_id}
        items["meta"] = ocp.args.JsonSave(about | meta)
        try:
            self._saver.save(path, args=ocp.args.Composite(**items), force=True)
        except Exception as error:  # Orbax, TensorStore and each store have errors of their own.
            failure = _describe_failure(name, error)
            if jax.process_count() == 1:
                self._failure = failure
                return
            if isinstance(error, jax.errors.JaxRuntimeError):  # Another process is lost.
                raise
            # The other processes wait in Orbax for this one, which would compute the next step instead.
            raise UserError(
                f"{failure}: make sure that {self.directory} can be written, and run the same command again, which "
                "resumes from the last checkpoint"
            ) from error
        self._saving = threading.Thread(target=self._finish, args=(path, name, step), name="saving")
        self._saving.start()

    def _finish(self, path: epath.Path, name: str, step: int) -> None:
        """Waits for Orbax, seals and renames the checkpoint, and removes old checkpoints; runs on a thread."""
        with self._recording_failure(name):
            self._saver.wait_until_finished()
            about = {"format": folders.FORMAT, "checkpoint": name, "step": step, "sealed": time.time()}
            sealing.seal(str(path), about, folders.share())
            if jax.process_index():
                return
            if not self._is_remote:
                folders.replace(path, self.directory / name)
        if self._failure is None:
            self._prune()

    def _prune(self) -> None:
        """Removes old checkpoints; if this fails, stores the reason for `warning` and raises no error."""
        settings = self._settings
        try:
            steps = folders.finished(self.directory)
            folders.prune(self.directory, folders.retained(steps, settings.keep_last, settings.keep_every, self._base))
        except (UserError, OSError) as error:
            self._warning = f"an old checkpoint could not be removed ({one_line(error)})"

    @contextlib.contextmanager
    def _recording_failure(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._failure = _describe_failure(name, error)


def _describe_failure(name: str, error: Exception) -> str:
    # TensorStore's message does not begin with the reason.
    reason = next(
        (text for text in _REASONS if text in f"{error} {error.__cause__}"), one_line(error.__cause__ or error)
    )
    return f"checkpoint {name} could not be saved ({reason})"


def read_state(checkpoint: epath.Path, abstract: TrainState) -> TrainState:
    """Returns the state of a checkpoint's folder with the shapes and shardings of `abstract`; writes no files.

    `recent` is not restored, because the checkpoint's `meta` records it.

    Raises:
      UserError: the checkpoint is damaged.
    """
    items = ocp.args.Composite(**{name: ocp.args.StandardRestore(tree) for name, tree in _items(abstract).items()})
    with (
        progress.doing(f"restoring {checkpoint}"),
        _reporting_damage(checkpoint),
        ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer,
    ):
        restored = checkpointer.restore(checkpoint, args=items)
    return TrainState(params=restored.params, average=restored.get("average", ()), **restored.training)


@contextlib.contextmanager
def _reporting_damage(checkpoint: epath.Path) -> Iterator[None]:
    """Converts the errors of Orbax on a damaged checkpoint to a `UserError`."""
    try:
        yield
    except Exception as error:
        # Orbax wraps some errors into a bare Exception.
        if type(error) is Exception or isinstance(
            error, ValueError | KeyError | TypeError | OSError | AttributeError | RecursionError
        ):
            raise folders.damaged(checkpoint, one_line(error.__cause__ or error)) from error
        raise


class Saved(files.LazyArray):
    """A parameter in a checkpoint.

    Indexing it calls `read`, which reads the whole parameter. Because callers read one layer at a time, `read` caches
    the last few parameters.
    """

    def __init__(self, path: tuple[str, ...], shape: tuple[int, ...], dtype: np.dtype, read: Callable):
        self._path, self.shape, self.dtype, self._read = path, tuple(shape), np.dtype(dtype), read

    def __getitem__(self, index: Any) -> np.ndarray:
        return self._read(self._path)[index]


def load_params(path: str, average: bool = False) -> Loaded:
    """Opens the newest checkpoint of a run directory, or a single checkpoint; each parameter is read when it is used.

    As long as the parameters exist, processes of this machine do not remove the checkpoint, unless it is in a bucket.

    Args:
      path: a run directory or a checkpoint.
      average: whether to read the moving average of the parameters instead of the parameters.

    Raises:
      UserError: there is no checkpoint, it is damaged, or `average` is set and it has no average.
    """
    checkpoint = folders.newest(path)
    try:
        return _loaded(checkpoint, folders.lock(checkpoint), "average" if average else "params")
    except (UserError, FileNotFoundError):
        # The run may have removed it meanwhile; then there is a newer one.
        if checkpoint.exists() or folders.newest(path) == checkpoint:
            raise
    return load_params(path, average)


def _loaded(checkpoint: epath.Path, hold: Any, name: Literal["params", "average"]) -> Loaded:
    unread = {"params", "average", "training"} - {name}
    manifest = folders.manifest_of(checkpoint)
    meta = folders.checked(checkpoint, outside=[f"{item}/" for item in sorted(unread)])
    run = config.from_saved(meta["config"], meta.get("modules"))
    if not (checkpoint / name).exists():
        reason = "its run was trained without config.train.average"
        if run.train.average is not None:
            reason = "the best weights are saved without it: name the run or one of its numbered checkpoints"
        raise UserError(f"{checkpoint} has no average of the weights: {reason}")
    # A checkpointer would log that `params` lacks the metadata of a checkpoint.
    with _reporting_damage(checkpoint), contextlib.closing(ocp.StandardCheckpointHandler()) as handler:
        tree = handler.metadata(checkpoint / name).tree

    # Query, key and value, which some families of Hugging Face's keep in one tensor, are read once each.
    @functools.lru_cache(maxsize=3)
    def read(names: tuple[str, ...], _hold: Any = hold) -> np.ndarray:  # The lock lasts as long as this function.
        item = traverse_util.unflatten_dict({names: ocp.RestoreArgs(restore_type=np.ndarray)})
        args = ocp.args.PyTreeRestore(item=item, restore_args=item, partial_restore=True)
        with (
            _rejecting_replacement(checkpoint, manifest),
            _reporting_damage(checkpoint),
            ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer,
        ):
            restored: dict[Any, Any] = traverse_util.flatten_dict(checkpointer.restore(checkpoint / name, args))
            return restored[names]

    flat: dict[Any, Any] = traverse_util.flatten_dict(tree)
    leaves = {names: Saved(names, leaf.shape, leaf.dtype, read) for names, leaf in flat.items()}
    return Loaded(traverse_util.unflatten_dict(leaves), run, meta)


@contextlib.contextmanager
def _rejecting_replacement(checkpoint: epath.Path, manifest: Mapping[str, Any]) -> Iterator[None]:
    """Raises a `UserError` if a checkpoint no longer has this manifest when the context ends.

    A run replaces its best weights even while another process reads them, which would mix the weights of two steps.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    is_same = False
    with contextlib.suppress(sealing.DamagedError, OSError):
        is_same = sealing.read(str(checkpoint)) == manifest
    if not is_same:
        raise UserError(
            f"{checkpoint} was replaced or removed while it was read: run the same command again"
        ) from failure
    if failure is not None:
        raise failure
