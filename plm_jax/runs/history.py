"""State of a run at one of its steps, read from its run directory."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from plm_jax import config
from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.runs import checkpoint_folders as folders
from plm_jax.runs import resume, run_directory
from plm_jax.runs.telemetry import read_lines


class History(NamedTuple):
    """State of a run at a step.

    Attributes:
      run: config of the run at the step.
      phases: phases that the run trained up to the first checkpoint at or after the step, followed by the remaining
        phases of `run`. If there is no such checkpoint, the last checkpoint is used. Without checkpoints, these are the
        phases of `run`.
      computed_with: `versions`, `mesh`, `devices`, users' `modules` and hashes of `references`, as far as they were
        recorded.
      saved: steps of all finished checkpoints, ascending.
      rows: all rows of metrics.jsonl by step; rows of the same step are merged.
    """

    run: config.Run
    phases: tuple[config.Phase, ...]
    computed_with: dict[str, Any]
    saved: list[int]
    rows: dict[int, dict[str, Any]]

    @property
    def last_step(self) -> int:
        """Last step that is known to be finished, or 0."""
        return max([0, *self.saved, *self.rows])


def read_history(workdir: str, step: int) -> History:
    """Reads the state of a run at a step.

    The config comes from the first checkpoint at or after the step. If there is no such checkpoint, it comes from
    config.json.

    Args:
      step: number of the step, from 1.

    Raises:
      UserError: `workdir` is not a run directory, the run has no such step, or a file is damaged.
    """
    with storage.reaching(workdir):
        folder = folders.of_run(workdir)
        saved = folders.finished(folder)
    described = run_directory.read(workdir)
    if described is None:
        raise UserError(f"{workdir} has no config.json: pass the directory of a run")
    later = [other for other in saved if other >= step]
    if later:
        described = folders.checked(folder / str(later[0]), ["meta/"])
    run = config.from_saved(described["config"], described.get("modules"))
    if not 1 <= step <= run.train.steps:
        raise UserError(f"{workdir} has no step {step}: choose one from 1 to {run.train.steps}")
    phases = config.resolve_phases(run)
    if nearest := later[:1] or saved[-1:]:
        meta = folders.checked(folder / str(nearest[0]), ["meta/"])
        phases = resume.from_meta(workdir, meta).plan(phases)
    rows: dict[int, dict[str, Any]] = {}
    for row in read_lines(os.path.join(workdir, "metrics.jsonl")):  # A failed save has a row of its own.
        rows.setdefault(row["step"], {}).update(row)
    return History(run, phases, _computed_with(described), saved, rows)


def _computed_with(described: Mapping[str, Any]) -> dict[str, Any]:
    names = "versions", "mesh", "devices", "modules", "references"
    return {name: described[name] for name in names if name in described}
