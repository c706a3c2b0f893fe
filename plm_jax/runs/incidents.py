"""Steps whose numbers are not finite, or spikes: written to `W/incidents/STEP.json`, counted, and gone on after.

Whether a step's update is left out the step itself decides, see `spikes`. Here it is told, and the state of an earlier
checkpoint put in the place of that after a spike where the config says so. All that this depends on is in checkpoints,
or decided by the number of a step: a run that was cut off does the same as one that was not.
"""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils

from plm_jax import config
from plm_jax.common import storage
from plm_jax.common.errors import UserError, one_line
from plm_jax.data.reader import Reader, digest_hex
from plm_jax.runs import checkpoint_folders as folders
from plm_jax.runs import resume
from plm_jax.training import mesh as meshes
from plm_jax.training import norms, optimizers, spikes
from plm_jax.training.state import TrainState

FOLDER = "incidents"
_KINDS = {spikes.LOST: "lost", spikes.SPIKE: "spike"}
_DONE = {"record": "recorded", "skip": "skipped", "roll_back": "rolled back"}
# A run whose every other step is a spike is to fill no disk: from then on only the rows of metrics tell of more.
_MOST = 1000


class Incidents:
    """What a run knows of its incidents, the same in every process; the first one writes.

    Attributes:
      rolls_back: whether a spike takes the run back to the weights of a checkpoint.
    """

    def __init__(self, run: config.Run, workdir: str, reader: Reader, names: Sequence[str], saved: Mapping[str, Any]):
        """`names` are those of tensors by layer, `saved` is what a checkpoint has of `saved`."""
        self._settings, self._reader, self._names = run.train.incidents, reader, names
        self._folder = os.path.join(workdir, FOLDER)
        self._skipped, self._in_a_row = saved.get("skipped", 0), saved.get("in_a_row", 0)
        self._targets: dict[int, int] = {}
        self.rolls_back = self._settings.spikes == "roll_back"

    def saved(self, recent: jax.Array) -> dict[str, Any]:
        """What a checkpoint is to keep, for JSON; `recent` as in the state."""
        values = [[float(value) for value in row if np.isfinite(value)] for row in np.asarray(recent)]
        return {"skipped": self._skipped, "in_a_row": self._in_a_row, "recent": values}

    def see(self, step: int, metrics: Mapping[str, Any], say: Callable[[str], None] | None) -> dict[str, Any]:
        """Takes note of a step; writes and says what it is if `say` is given.

        Returns:
          What the step's row of metrics says besides; nothing of a step that is no incident.

        Raises:
          UserError: it is one too many in a row.
        """
        kind = _KINDS.get(int(metrics.get("incident", spikes.NONE)))
        done = "skipped" if kind == "lost" else _DONE[self._settings.spikes]
        if kind is None or done == "recorded":
            self._in_a_row = 0
        if kind is None:
            return {}
        if done != "recorded":
            self._skipped, self._in_a_row = self._skipped + 1, self._in_a_row + 1
        told = {"kind": kind, "done": done}
        if step in self._targets:
            told["checkpoint"] = self._targets.pop(step)
        if say:
            self._write(step, metrics, told, say)
        if self._in_a_row > self._settings.most_in_a_row:
            raise UserError(
                f"the {_values(metrics)} of step {step} (batch digest {digest_hex(metrics['digest'])}): it is number "
                f"{self._in_a_row} in a row that changes nothing, {self._folder} has what each read: "
                "lower the learning rate or the gradient clipping and run again, which resumes from the last checkpoint"
            )
        return {"incident": f"{kind}, {done}", "train/skipped": self._skipped}

    def _write(self, step, metrics, told: dict[str, Any], say: Callable[[str], None]) -> None:
        path, what = os.path.join(self._folder, f"{step}.json"), f"step {step}: the {_values(metrics)}"
        what += f" is a spike, {told['done']}" if told["kind"] == "spike" else ": its update is left out"
        if "checkpoint" in told:
            what += f" to the weights of step {told['checkpoint']}"
        try:
            if len(storage.names(self._folder)) >= _MOST and not storage.exists(path):
                say(f"{what}; {self._folder} has {_MOST:,} others, and not this one")
                return
            storage.write(path, json.dumps(self._described(step, metrics, told), indent=1).encode("utf-8"))
        except (OSError, UserError) as error:  # A run goes on without: what it did is in its rows.
            say(f"{what}; {path} cannot be written ({one_line(error)})")
        else:
            say(f"{what}: {path}")

    def _described(self, step: int, metrics: Mapping[str, Any], told: dict[str, Any]) -> dict[str, Any]:
        """All of a step that helps to find out what it is."""
        losses = {name: _number(value) for name, value in metrics.items() if np.ndim(value) == 0 and name != "incident"}
        limits = zip(("loss", "grad_norm"), metrics["limits"], strict=True)
        found = {"step": step, **told, "digest": digest_hex(metrics["digest"]), "metrics": losses}
        found["limits"] = {name: float(limit) for name, limit in limits if np.isfinite(limit)}
        of_gradients = zip(self._names, metrics["norms"][0], strict=True)
        found["gradient_norms"] = {name: _number(norm) for name, norm in of_gradients}
        found["examples"] = [self._example(row, k) for row, k in enumerate(self._reader.numbers(step - 1))]
        return found

    def _example(self, row: int, k: int) -> dict[str, Any]:
        source, documents = self._reader.origin(k)
        return {"row": row, "example": k, "source": source, "documents": documents}

    def norms(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """What a row of metrics has of norms by layer, where they are logged."""
        found = metrics.get("norms", ())
        return (
            {name: x for name, x in norms.rows(self._names, found).items() if math.isfinite(x)}
            if len(found) > 1
            else {}
        )

    def roll_back(
        self, trainer, program, stage: config.Phase, state: TrainState, folder: epath.Path, restore: Callable
    ) -> TrainState:
        """The state to go on with after a spike: a checkpoint's, at the step and with the window of the one given.

        It is that of the last checkpoint before this step whose step is a multiple of `checkpoint.save_every`; without
        any, the one that the run began with. The state given is given up.

        Args:
          trainer: the run's.
          program: the trainer's of the stage.
          folder: where the checkpoints are, which `restore` reads.
        """
        step, recent = int(state.step), jax.device_get(state.recent)
        jax.tree.map(lambda leaf: leaf.delete(), state)  # Two of them may be more than a device holds.
        multihost_utils.sync_global_devices("the checkpoint that is rolled back to")
        target = rolled_back_to(folders.finished(folder), step, trainer.run.checkpoint.save_every)
        if target:
            meta = folders.checked(folder / str(target))
            state, _ = trainer.restored(resume.of(trainer.run, str(folder.parent), meta), restore)
        else:
            state, _ = trainer.beginning()
        self._targets[step] = target
        state = program.place(state, trainer, stage.batch_size)
        optimizer = optimizers.later(state.optimizer, step - target)
        recent = meshes.place(recent, program.shardings.recent)
        return state.replace(step=state.step + (step - target), optimizer=optimizer, recent=recent)


def rolled_back_to(saved: Sequence[int], step: int, every: int) -> int:
    """To which of the checkpoints a spike at a step takes a run back that saves every so many steps; 0: none.

    Others than such multiples, which a signal or a clock may have made, a run that was not cut off may not have: they
    are taken only where there is no other.
    """
    before = [other for other in saved if other < step]
    return max((other for other in before if other % every == 0), default=max(before, default=0))


def read(workdir: str, step: int) -> dict[str, Any] | None:
    """What was written of a step; None: it was no incident, or that is damaged."""
    try:
        return json.loads(storage.read(os.path.join(workdir, FOLDER, f"{step}.json")))
    except (OSError, ValueError, RecursionError):
        return None


def window(saved: Mapping[str, Any], size: int) -> np.ndarray:
    """The window of the state, of what a checkpoint has of it."""
    found = np.full((2, size), np.nan, np.float32)
    for row, values in zip(found, saved.get("recent", ()), strict=False):
        values = values[-size:]
        row[size - len(values) :] = values
    return found


def _values(metrics: Mapping[str, Any]) -> str:
    return f"loss {float(metrics['loss']):.4g} with the gradient norm {float(metrics['grad_norm']):.4g}"


def _number(value: Any) -> float | str:
    """A number for JSON, which has no others than finite ones."""
    return float(value) if math.isfinite(value) else str(float(value))
