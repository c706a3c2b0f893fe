"""Checkpoints of a run: Orbax, asynchronous, sharded, restorable on any mesh.

A checkpoint holds `params` alone, so that a reader of weights need not know the optimizer; `training` (the rest of the
train state); and `meta`: format, step, config, the identities of vocabulary and caches, the stages as they were read
and the next example, phase, mesh, versions.
"""

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import flax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from plm_jax import config
from plm_jax.common import progress, storage
from plm_jax.common.errors import UserError
from plm_jax.hub import files
from plm_jax.training.state import TrainState

FORMAT = 1
# The folder of the weights that `evaluation.select` keeps.
BEST = "best"


def _rest(state: TrainState) -> dict[str, Any]:
    return {"step": state.step, "optimizer": state.optimizer, "carry": state.carry}


class Loaded(NamedTuple):
    """Weights for use: the parameters, the run that trained them, what the checkpoint says of itself."""

    params: Any
    run: config.Run
    meta: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run directory; use as a context manager, leaving it waits for a save under way."""

    def __init__(self, workdir: str, settings: config.Checkpoint):
        options = ocp.CheckpointManagerOptions(
            max_to_keep=settings.keep_last,
            keep_period=settings.keep_every or None,
            cleanup_tmp_directories=True,
            create=True,
        )
        self.directory = folder(workdir)
        with storage.reaching(workdir):
            self._manager = ocp.CheckpointManager(
                self.directory, item_names=("params", "training", "meta"), options=options
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with progress.doing("writing the last checkpoint"):
            self._manager.close()

    def save(self, step: int, state: TrainState, meta: dict[str, Any]) -> None:
        """Begins to save the state after `step` steps; the arrays are copied before this returns."""
        items = ocp.args.Composite(
            params=ocp.args.StandardSave(state.params),
            training=ocp.args.StandardSave(_rest(state)),
            meta=ocp.args.JsonSave({"format": FORMAT, "step": step, **meta}),
        )
        self._manager.save(step, args=items)

    def save_best(self, step: int, params: Any, meta: dict[str, Any]) -> None:
        """Saves weights in the place of the best ones so far, and waits for it; `meta` as of `save`."""
        items = ocp.args.Composite(
            params=ocp.args.StandardSave(params), meta=ocp.args.JsonSave({"format": FORMAT, "step": step, **meta})
        )
        # Orbax removes what killed saves have left on a thread, which would take what is being written for that; its
        # manager's own saves wait for it, too.
        self._manager._maybe_await_cleanup_tmp_directory()
        with progress.doing("writing the best checkpoint"), ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as saver:
            saver.save(self.directory / BEST, items, force=True)

    def best(self) -> dict[str, Any] | None:
        """The `meta` of the best weights so far; None: there are none, or they are damaged."""
        try:
            return read_meta(self.directory / BEST)
        except UserError:
            return None

    def restore(self, step: int, abstract: TrainState) -> TrainState:
        """The state of a checkpoint, laid out as `abstract` (shapes with shardings) says.

        Raises:
          UserError: it is damaged.
        """
        items = ocp.args.Composite(
            params=ocp.args.StandardRestore(abstract.params), training=ocp.args.StandardRestore(_rest(abstract))
        )
        with progress.doing(f"restoring checkpoint {step}"), _damage_named(self.directory / str(step)):
            restored = self._manager.restore(step, args=items)
        return TrainState(params=restored.params, **restored.training)


def folder(workdir: str) -> epath.Path:
    """Where the checkpoints of a run directory are.

    Raises:
      UserError: they cannot be in this kind of store.
    """
    if storage.is_remote(workdir) and not workdir.startswith("gs://"):
        raise UserError(f"checkpoints cannot go to {workdir}: give a local --workdir or one in gs://")
    return _absolute(workdir) / "checkpoints"


def _absolute(path: str) -> epath.Path:
    """Orbax takes no relative paths."""
    return epath.Path(storage.absolute(path))


def _unreadable(path, error: Exception) -> str:
    reason = str(error).strip().split("\n")[0][:200]
    return f"checkpoint {path} cannot be read ({reason}): delete it to go on from the one before"


@contextlib.contextmanager
def _damage_named(path: epath.Path) -> Iterator[None]:
    """What Orbax raises on a damaged checkpoint becomes a `UserError`."""
    try:
        yield
    except Exception as error:
        # Orbax wraps what its parts say into a bare Exception.
        if type(error) is Exception or isinstance(error, ValueError | KeyError | TypeError | OSError | AttributeError):
            raise UserError(_unreadable(path, error.__cause__ or error)) from error
        raise


def read_meta(checkpoint: epath.Path) -> dict[str, Any]:
    """The `meta` of a checkpoint's folder.

    Raises:
      UserError: there is none, it is damaged, or its format is unknown.
    """
    path = checkpoint / "meta" / "metadata"
    try:
        meta = dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(_unreadable(checkpoint, error)) from error
    if meta.get("format") != FORMAT:
        raise UserError(
            f"checkpoint {checkpoint} has format {meta.get('format')}: this version reads {FORMAT}, upgrade plm_jax"
        )
    return meta


def finished(directory: epath.Path) -> list[int]:
    """The steps of the finished checkpoints in a folder, ascending; in a bucket, unfinished ones lie beside them."""
    if not directory.exists():
        return []
    steps = (path for path in directory.iterdir() if path.name.isdigit())
    return sorted(int(path.name) for path in steps if ocp.utils.is_checkpoint_finalized(path))


class Saved(files.InFiles):
    """A parameter in a checkpoint. `read` gives all of it and remembers the last ones: layers are asked for singly."""

    def __init__(self, path: tuple[str, ...], shape: tuple[int, ...], dtype: np.dtype, read: Callable):
        self._path, self.shape, self.dtype, self._read = path, tuple(shape), np.dtype(dtype), read

    def __getitem__(self, index: Any) -> np.ndarray:
        return self._read(self._path)[index]


def newest(path: str) -> epath.Path:
    """The folder of the newest checkpoint of a run directory, or of the one checkpoint at a path.

    Raises:
      UserError: there is none.
    """
    checkpoint = _absolute(path)
    if (checkpoint / "params").exists():
        return checkpoint
    steps = finished(checkpoint / "checkpoints")
    if not steps:
        raise UserError(f"{path} has no finished checkpoint: train first, or give another path")
    return checkpoint / "checkpoints" / str(steps[-1])


def load_params(path: str) -> Loaded:
    """The newest checkpoint of a run directory, or one checkpoint; its parameters are read when they are asked for.

    Raises:
      UserError: there is no checkpoint, or it is damaged.
    """
    checkpoint = newest(path)
    meta = read_meta(checkpoint)
    run = config.from_saved(meta["config"], meta.get("modules"))
    with _damage_named(checkpoint), ocp.StandardCheckpointer() as checkpointer:
        tree = checkpointer.metadata(checkpoint / "params").item_metadata.tree

    # Query, key and value, which some families of Hugging Face's keep in one tensor, are read once each.
    @functools.lru_cache(maxsize=3)
    def read(names: tuple[str, ...]) -> np.ndarray:
        item = flax.traverse_util.unflatten_dict({names: ocp.RestoreArgs(restore_type=np.ndarray)})
        args = ocp.args.PyTreeRestore(item=item, restore_args=item, partial_restore=True)
        with _damage_named(checkpoint), ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            return flax.traverse_util.flatten_dict(checkpointer.restore(checkpoint / "params", args))[names]

    flat = flax.traverse_util.flatten_dict(tree)
    leaves = {names: Saved(names, leaf.shape, leaf.dtype, read) for names, leaf in flat.items()}
    return Loaded(flax.traverse_util.unflatten_dict(leaves), run, meta)
