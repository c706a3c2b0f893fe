"""Incidents: steps with a spike, or with a loss or gradient norm that is not finite.

They are counted, and written to `incidents/STEP.json` in the run directory. The step itself decides whether its update
is skipped (`training.spikes`). This module reports incidents and, with `roll_back`, replaces the state after a spike by
the state of an earlier checkpoint. All of this depends only on checkpoints and step numbers, so that an interrupted run
does the same as an uninterrupted one.
"""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from typing_extensions import override

from plm_jax import config
from plm_jax.common import storage
from plm_jax.common.errors import UserError, one_line
from plm_jax.data.reader import Reader, digest_hex
from plm_jax.runs import checkpoint_folders as folders
from plm_jax.runs import resume
from plm_jax.runs.callbacks import Callback, TrainingContext
from plm_jax.training import mesh as meshes
from plm_jax.training import norms, optimizers, spikes
from plm_jax.training.program import Program
from plm_jax.training.state import TrainState

FOLDER = "incidents"
# In incident files and rows of metrics, a step with non-finite values is called "lost".
_KINDS = {spikes.LOST: "lost", spikes.SPIKE: "spike"}
_DONE = {"record": "recorded", "skip": "skipped", "roll_back": "rolled back"}
# Maximum number of incident files of a run, since every other step may be a spike; rows of metrics report further
# incidents.
_MAX_FILES = 1000


class Incidents:
    """Incidents of a run. Every process counts the same incidents; the first process writes them."""

    def __init__(
        self,
        settings: config.IncidentsConfig,
        workdir: str,
        reader: Reader,
        names: Sequence[str],
        saved: Mapping[str, Any],
    ):
        """Continues the counts of a checkpoint.

        Args:
          names: names of the trained tensors, by layer.
          saved: result of `state` that the checkpoint recorded; empty for a new run.
        """
        self._settings, self._reader, self._names = settings, reader, names
        self._folder = os.path.join(workdir, FOLDER)
        self._skipped, self._in_a_row = saved.get("skipped", 0), saved.get("in_a_row", 0)
        self._targets: dict[int, int] = {}

    def state(self, recent: jax.Array) -> dict[str, Any]:
        """Returns the state that a checkpoint records, as JSON values.

        Args:
          recent: `recent` of the train state.
        """
        values = [[float(value) for value in row if np.isfinite(value)] for row in np.asarray(recent)]
        return {"skipped": self._skipped, "in_a_row": self._in_a_row, "recent": values}

    def note_target(self, step: int, checkpoint: int) -> None:
        """Notes the checkpoint to which a step was rolled back, before `record` is called for the step."""
        self._targets[step] = checkpoint

    def record(self, step: int, metrics: Mapping[str, Any], report: Callable[[str], None] | None) -> dict[str, Any]:
        """Counts a step if its update was skipped or if the run is rolled back.

        A spike is not counted if the setting `spikes` is `record`. If `report` is not None, every incident is also
        written to a file and reported.

        Returns:
          Entries for the step's row of metrics; empty if the step is not an incident.

        Raises:
          UserError: more than `incidents.max_consecutive` steps in a row were skipped or rolled back.
        """
        kind = _KINDS.get(int(metrics.get("incident", spikes.NONE)))
        action = "skipped" if kind == "lost" else _DONE[self._settings.spikes]
        if kind is None or action == "recorded":
            self._in_a_row = 0
        if kind is None:
            return {}
        if action != "recorded":
            self._skipped, self._in_a_row = self._skipped + 1, self._in_a_row + 1
        incident: dict[str, Any] = {"kind": kind, "done": action}
        if step in self._targets:
            incident["checkpoint"] = self._targets.pop(step)
        if report:
            self._write(step, metrics, incident, report)
        if self._in_a_row > self._settings.max_consecutive:
            raise UserError(
                f"the {_values(metrics)} of step {step} (batch digest {digest_hex(metrics['digest'])}): it is step "
                f"{self._in_a_row} in a row without an update, {self._folder} records the data of each: "
                "lower the learning rate or the gradient clipping and run again, which resumes from the last checkpoint"
            )
        return {"incident": f"{kind}, {action}", "train/skipped": self._skipped}

    def norms(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Returns the finite norms by layer for a row of metrics; empty if these norms are not logged."""
        by_kind = metrics.get("norms", ())
        if len(by_kind) <= 1:
            return {}
        return {name: norm for name, norm in norms.rows(self._names, by_kind).items() if math.isfinite(norm)}

    def _write(
        self, step: int, metrics: Mapping[str, Any], incident: Mapping[str, Any], report: Callable[[str], None]
    ) -> None:
        path, line = os.path.join(self._folder, f"{step}.json"), f"step {step}: the {_values(metrics)}"
        line += f" is a spike, {incident['done']}" if incident["kind"] == "spike" else ": its update is skipped"
        if "checkpoint" in incident:
            line += f" to the weights of step {incident['checkpoint']}"
        try:
            if len(storage.names(self._folder)) >= _MAX_FILES and not storage.exists(path):
                report(f"{line}; {self._folder} already has {_MAX_FILES:,} others, so this one is not recorded")
                return
            storage.write(path, json.dumps(self._describe(step, metrics, incident), indent=1).encode("utf-8"))
        except (OSError, UserError) as error:  # The run continues: its rows of metrics record the incident.
            report(f"{line}; {path} cannot be written ({one_line(error)})")
        else:
            report(f"{line}: {path}")

    def _describe(self, step: int, metrics: Mapping[str, Any], incident: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the contents of an incident file."""
        scalars = {
            name: _number(value) for name, value in metrics.items() if np.ndim(value) == 0 and name != "incident"
        }
        limits = zip(("loss", "grad_norm"), metrics["limits"], strict=True)
        gradients = zip(self._names, metrics["norms"][0], strict=True)
        return {
            "step": step,
            **incident,
            "digest": digest_hex(metrics["digest"]),
            "metrics": scalars,
            "limits": {name: float(limit) for name, limit in limits if np.isfinite(limit)},
            "gradient_norms": {name: _number(norm) for name, norm in gradients},
            "examples": [self._example(row, k) for row, k in enumerate(self._reader.numbers(step - 1))],
        }

    def _example(self, row: int, k: int) -> dict[str, Any]:
        source, documents = self._reader.origin(k)
        return {"row": row, "example": k, "source": source, "documents": documents}


class RollBack(Callback):
    """Callback that restores the state of an earlier checkpoint after a spike.

    The step counts and the recent losses and gradient norms are not restored. The checkpoint is the last one before the
    step at a multiple of `checkpoint.save_every`. If there is no such checkpoint, it is the last one at any earlier
    step. If there is none either, the initial state of the run is restored.

    Attributes:
      workdir: run directory of the checkpoints.
    """

    def __init__(
        self,
        incidents: Incidents,
        program: Program,
        folder: epath.Path,
        save_every: int,
        load_state: Callable[[resume.Resumed | None], TrainState],
        wait: Callable[[], None] = lambda: None,
    ):
        """Prepares to roll back to the checkpoints in a folder.

        Args:
          incidents: incidents of the run.
          program: program whose state `load_state` returns.
          folder: folder of the checkpoints.
          save_every: `checkpoint.save_every` of the run.
          load_state: function that returns the state of a checkpoint, or the initial state if its argument is None.
          wait: function that returns once the current save has finished.
        """
        self._incidents, self._program, self._folder = incidents, program, folder
        self.workdir = str(folder.parent)
        self._save_every, self._load_state, self._wait = save_every, load_state, wait

    @override
    def after_step(self, context: TrainingContext) -> None:
        if int(context.metrics["incident"]) == spikes.SPIKE:
            self._wait()
            context.state = self._roll_back(context)

    def find_target(self, step: int) -> int:
        """Returns the step of the checkpoint to which a run at `step` rolls back; 0 for the initial state.

        All processes of a job must call this method.
        """
        return rolled_back_to(folders.finished_everywhere(self._folder), step, self._save_every)

    def _roll_back(self, context: TrainingContext) -> TrainState:
        step, recent = int(context.state.step), jax.device_get(context.state.recent)
        target = self.find_target(step)
        jax.tree.map(lambda leaf: leaf.delete(), context.state)  # Two states may exceed a device's memory.
        self._incidents.note_target(step, target)
        checkpoint = None
        if target:
            meta = folders.checked(self._folder / str(target))
            checkpoint = resume.from_meta(self.workdir, meta)
        state = context.program.place(self._load_state(checkpoint), self._program, context.phase.batch_size)
        optimizer = optimizers.later(state.optimizer, step - target)
        recent = meshes.place(recent, context.program.shardings.recent)
        return state.replace(step=state.step + (step - target), optimizer=optimizer, recent=recent)


def rolled_back_to(saved: Sequence[int], step: int, save_every: int) -> int:
    """Returns the step of the checkpoint that a run restores after a spike at `step`; 0 for the initial state.

    A signal or the clock may have caused saves at steps that are not multiples of `save_every`. An uninterrupted run
    may lack these checkpoints, so they count only if there is no other checkpoint.

    Args:
      saved: steps of the finished checkpoints.
    """
    earlier = [other for other in saved if other < step]
    return max((other for other in earlier if other % save_every == 0), default=max(earlier, default=0))


def read(workdir: str, step: int) -> dict[str, Any] | None:
    """Returns the contents of the file of an incident, or None if it does not exist or is damaged."""
    try:
        return json.loads(storage.read(os.path.join(workdir, FOLDER, f"{step}.json")))
    except (OSError, ValueError, RecursionError):
        return None


def window(saved: Mapping[str, Any], size: int) -> np.ndarray:
    """Returns `TrainState.recent`, float32 [2, size], from the recorded state of incidents.

    If more than `size` values were recorded, the newest are returned. Missing values are NaN.

    Args:
      saved: result of `Incidents.state`, or an empty dict.
    """
    recent = np.full((2, size), np.nan, np.float32)
    for row, values in zip(recent, saved.get("recent", ()), strict=False):
        values = values[-size:]
        row[size - len(values) :] = values
    return recent


def _values(metrics: Mapping[str, Any]) -> str:
    return f"loss {float(metrics['loss']):.4g} with the gradient norm {float(metrics['grad_norm']):.4g}"


def _number(value: Any) -> float | str:
    """Returns a number for JSON; numbers that are not finite become strings, because JSON cannot represent them."""
    return float(value) if math.isfinite(value) else str(float(value))
