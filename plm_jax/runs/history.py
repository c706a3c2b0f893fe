"""What a run was when it took a step, from its run directory, in which nothing is written."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from plm_jax import config
from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.runs import checkpoint_folders as folders
from plm_jax.runs import resume, run_directory
from plm_jax.runs.telemetry import read_lines


class Past(NamedTuple):
    """A run at a step.

    Attributes:
      run: its config.
      stages: what it had read up to a checkpoint near the step, and from there on what the config says.
      made_by: `versions`, `mesh`, `devices` and users' `modules` that computed it, as far as they were recorded.
      saved: the steps of the finished checkpoints, ascending.
      rows: those of metrics.jsonl, by step.
    """

    run: config.Run
    stages: tuple[config.Phase, ...]
    made_by: dict[str, Any]
    saved: list[int]
    rows: dict[int, dict[str, Any]]

    @property
    def reached(self) -> int:
        """The last step that is known to have been taken."""
        return max([0, *self.saved, *self.rows])


def at(workdir: str, step: int) -> Past:
    """A run at a step: as the first checkpoint from that step on tells, which it was trained for, else its config.json.

    Raises:
      UserError: it is no run directory, or has no such step.
    """
    with storage.reaching(workdir):
        folder = folders.of_run(workdir)
        saved = folders.finished(folder)
    described = run_directory.read(workdir)
    if described is None:
        raise UserError(f"{workdir} has no config.json: give the directory of a run")
    later = [other for other in saved if other >= step]
    if later:
        described = folders.checked(folder / str(later[0]), ["meta/"])
    run = config.from_saved(described["config"], described.get("modules"))
    if not 1 <= step <= run.train.steps:
        raise UserError(f"{workdir} has no step {step}: give one from 1 to {run.train.steps}")
    near, stages = later[:1] or saved[-1:], config.resolve_phases(run)
    if near:
        stages = resume.of(run, workdir, folders.checked(folder / str(near[0]), ["meta/"])).stages
    rows: dict[int, dict[str, Any]] = {}
    for row in read_lines(os.path.join(workdir, "metrics.jsonl")):  # That a save failed is a row of its own.
        rows.setdefault(row["step"], {}).update(row)
    return Past(run, stages, _made_by(described), saved, rows)


def _made_by(described: Mapping[str, Any]) -> dict[str, Any]:
    return {name: described[name] for name in ("versions", "mesh", "devices", "modules") if name in described}
