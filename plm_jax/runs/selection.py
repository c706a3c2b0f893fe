"""The best weights of a run by `evaluation.select`, in `checkpoints/best`.

While `evaluation.select` is set, every checkpoint of the run, `best` included, records the history of the best values:
the step and the value of each improvement. A run that resumes from a checkpoint therefore knows which weights `best`
must contain. If `best` is damaged, missing or has other weights, the best recorded value still counts, so that worse
weights are not saved as `best` after better weights were lost. Values are comparable only within the same validation:
if the metric, the objective or the rows change, the selection starts again.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from etils import epath

from plm_jax import config
from plm_jax.common import storage
from plm_jax.data.reader import Reader
from plm_jax.runs import checkpoint_folders as folders
from plm_jax.runs import resume
from plm_jax.runs.checkpoints import Checkpoints
from plm_jax.runs.resume import Resumed
from plm_jax.runs.validation import Validation

# Step and value of each new best, in order; the last one is the best. JSON turns the pairs into lists.
BestHistory = Sequence[Sequence[float]]


class Start(NamedTuple):
    """State of the best weights when a run starts or resumes.

    Attributes:
      validation_hash: `hash_validation` of the run; "" if the run selects no weights.
      history: history of the best values up to the current step.
      is_saved: whether `checkpoints/best` contains the weights of the last entry of the history.
      damaged: folder of damaged best weights, or None.
      notes: lines to print.
    """

    validation_hash: str = ""
    history: BestHistory = ()
    is_saved: bool = False
    damaged: epath.Path | None = None
    notes: Sequence[str] = ()


def hash_validation(run: config.Run, reader: Reader) -> str:
    """Returns a hash of the settings and the rows that determine the values of validation metrics."""
    settings = config.to_dict(config.in_validation(run))
    rows = {
        name: value
        for name, value in settings["data"].items()
        if resume.meaning(f"data.{name}", run.optimizer) not in ("free", "cache")
    }
    measured = {
        "objective": settings["objective"],
        "evaluation": [settings["evaluation"][name] for name in ("max_batches", "decoding")],
        "rows": rows,
        "length": config.resolve_phases(run)[-1].length,
        "caches": reader.identities,
        "vocabulary": reader.vocabulary["id"],
    }
    return hashlib.sha256(json.dumps(measured, sort_keys=True).encode()).hexdigest()


def read_start(
    select: str, workdir: str, resumed: Resumed | None, validation_hash: str, refuse_damaged: bool = False
) -> Start:
    """Compares `checkpoints/best` with the checkpoint that the run resumes from, and returns the state of `best`.

    All processes of a job must call this function.

    Args:
      select: `evaluation.select` of the run; if it is empty, an empty `Start` is returned.
      resumed: checkpoint that the run resumes from; None for a new run.
      validation_hash: `hash_validation` of the run.
      refuse_damaged: whether damaged best weights are an error. Weights of another run count as damaged.

    Raises:
      UserError: `best` has an unknown format or, with `refuse_damaged`, is damaged.
    """
    if not select:
        return Start()
    before = resumed.meta.get("selected", {}) if resumed else {}
    is_comparable = before.get("by") == select and before.get("validation") == validation_hash
    history = before["history"] if is_comparable else []
    with storage.reaching(workdir):
        best = folders.find_best(folders.of_run(workdir))
        meta, damage = folders.checked_everywhere(best) if best else (None, None)
    if damage and refuse_damaged:
        raise damage
    if meta is None:
        state = f"damaged ({damage.reason})" if damage else "missing"
        note = f"checkpoints/best is {state}{_only_better(select, history)}"
        return Start(validation_hash, history, False, best, [note] * bool(damage or history))
    saved, step = meta.get("selected", {}), resumed.step if resumed else 0
    is_same = saved.get("by") == select and saved.get("validation") == validation_hash
    # The checkpoint has no history if the run selected by another metric, or by none, when it was saved.
    if is_same and (saved["history"] == history or (not history and meta["step"] <= step)):
        return Start(validation_hash, saved["history"], True)
    note = (
        f"checkpoints/best contains the weights of {_described(saved.get('by'), [[meta['step'], saved.get('value')]])}"
    )
    if saved.get("by") == select and not is_same:
        note += ", measured by another validation: the weights of the next one replace them"
    elif meta["step"] > step:
        better = f" that are better than those of {_described(select, history)}" if history else ""
        note += f", and the run resumes from step {step}: the next best weights{better} replace them"
    else:
        note += _only_better(select, history) or f": the first weights that {select} selects replace them"
    return Start(validation_hash, history, notes=[note])


def set_aside(start: Start) -> list[str]:
    """Renames damaged best weights, and returns lines to print.

    Only the first process of a job renames the folder and returns a line.
    """
    if start.damaged is None or jax.process_index():
        return []
    return [f"the damaged checkpoints/best is kept as {folders.set_aside(start.damaged).name}"]


def has_stopped(settings: config.EvaluationConfig, step: int, history: BestHistory) -> bool:
    """Whether training ends at a step because the last `evaluation.patience` validations did not improve the metric.

    Training never ends in this way if `evaluation.patience` is 0 or the history is empty.
    """
    if not settings.patience or not history:
        return False
    return step - int(history[-1][0]) >= settings.patience * settings.every


class Selection:
    """Selection of the best weights by the metric of `evaluation.select`.

    The best weights are saved before the checkpoint of their step. If they are from a later step than the checkpoint
    that a run resumes from, they do not count, because the run reaches that step again.
    """

    def __init__(
        self, validation: Validation, checkpoints: Checkpoints, settings: config.EvaluationConfig, start: Start
    ):
        self._validation, self._checkpoints, self._settings = validation, checkpoints, settings
        self._select, self._validation_hash = settings.select, start.validation_hash
        self._history, self._is_saved = [list(best) for best in start.history], start.is_saved

    def update(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Returns whether the weights of a step are the best so far, and if so, records the value of their metric.

        Weights for which the metric is not finite are never the best.

        Raises:
          UserError: the metric is not in `metrics`.
        """
        value = self._validation.selected(metrics)
        best = self._history[-1][1] if self._history else None
        if not math.isfinite(value) or not (best is None or self._validation.is_better(value, best)):
            return False
        self._history.append([step, value])
        self._is_saved = False
        return True

    def has_stopped(self, step: int) -> bool:
        """Whether training ends after a validated step, because the metric has not improved for long enough."""
        return has_stopped(self._settings, step, self._history)

    def state(self) -> dict[str, Any]:
        """Returns the state that each checkpoint records as `selected`.

        It contains the metric, the best value so far (None without history), the history of best values, and the hash
        of the validation.
        """
        value = self._history[-1][1] if self._history else None
        history, validation = list(self._history), self._validation_hash
        return {"by": self._select, "value": value, "history": history, "validation": validation}

    def save(self, step: int, params: Any, meta: dict[str, Any]) -> None:
        """Saves the weights of a step for which `update` returned True; `meta["selected"]` is the result of `state`."""
        self._is_saved = self._checkpoints.save_best(step, params, meta)

    def describe_lost(self) -> str | None:
        """Returns a line to print at the end of the run if the best weights are not in `checkpoints/best`, or None."""
        if self._is_saved or not self._history:
            return None
        return (
            f"{_lost(self._select, self._history)}, and no later ones were better: put a copy of "
            "checkpoints/best back, or train again in another --workdir"
        )


def _only_better(select: str, history: BestHistory) -> str:
    return f": {_lost(select, history)}, and only better ones replace them" if history else ""


def _lost(select: str, history: BestHistory) -> str:
    return f"the best weights, of {_described(select, history)}, are lost"


def _described(select: str | None, history: Sequence[Sequence[Any]]) -> str:
    step, value = history[-1]
    return f"step {step}" if value is None else f"step {step} ({select} {value:.6g})"
