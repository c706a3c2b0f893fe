"""Replay of a step: computes it again from an earlier state, and compares the result with the run's records.

The earlier state is that of the last checkpoint before the step or, if there is none, the initial state.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
from typing_extensions import override

from plm_jax import config
from plm_jax.common import users
from plm_jax.common.errors import UserError
from plm_jax.data.reader import digest_hex
from plm_jax.runs import checkpoint_folders as folders
from plm_jax.runs import checkpoints, incidents, loop, resume, run_directory, setup
from plm_jax.runs.callbacks import Callback, TrainingContext
from plm_jax.runs.history import History, read_history
from plm_jax.runs.incidents import RollBack
from plm_jax.runs.setup import TrainingSetup
from plm_jax.training import mesh as meshes
from plm_jax.training.state import TrainState

# Relative tolerance of loss and gradient norm, by the type of activations. Other devices, meshes or versions round
# differently, and each step begins with the result of the one before.
TOLERANCE = {"float32": 1e-3, "bfloat16": 3e-2}
_COMPARED = {"train/loss": "loss", "train/grad_norm": "grad_norm"}


def replay(workdir: str, step: int, report: Callable[[str], None]) -> None:
    """Computes a step of a run again, and reports how loss, gradient norm and digest compare with the recorded values.

    The loss and the gradient norm must be equal if devices, mesh, versions, code and references are known to be those
    of the run. Otherwise, they may differ by `TOLERANCE`.

    Args:
      step: number of the step, from 1.
      report: function that is called with each line to print.

    Raises:
      UserError: the values differ by more than the tolerance, the step read another batch, the step was not recorded,
        or the run cannot be read.
    """
    history = read_history(workdir, step)
    recorded = _recorded(workdir, step, history)
    run = _on_these_devices(history.run)
    first_step = max((saved for saved in history.saved if saved < step), default=0)
    start = f"checkpoint {first_step}" if first_step else "the initial state"
    num_steps = step - first_step
    report(f"step {step} of {workdir}: {num_steps:,} step{'s' * (num_steps > 1)} from {start}")
    metrics, job = _compute(run, workdir, first_step, step)
    values = {key: float(metrics[name]) for key, name in _COMPARED.items()}
    digest = digest_hex(metrics["digest"])
    if digest != recorded["train/batch_digest"]:
        raise UserError(
            f"step {step} read another batch, with digest {digest} instead of {recorded['train/batch_digest']}: check "
            "that config.data.cache_dir contains the caches that the run was trained on"
        )
    line = ", ".join(f"{name} {values[key]!r} (recorded: {float(recorded[key])!r})" for key, name in _COMPARED.items())
    if all(_is_close(values[key], float(recorded[key])) for key in _COMPARED):
        report(f"bit-identical: {line}, digest {digest}")
        return
    differences = _differences(history.computed_with, job)
    tolerance = TOLERANCE[run.precision.compute] if differences else 0.0
    if not all(_is_close(values[key], float(recorded[key]), tolerance) for key in _COMPARED):
        reason = "devices, mesh, versions and code are the same as in the run, so check the hardware and XLA's flags"
        if differences:
            reason = f"different from the run: {'; '.join(differences)}"
        raise UserError(f"step {step} differs by more than {tolerance:g}: {line}; {reason}")
    report(f"equal within {tolerance:g}: {line}, digest {digest}; different from the run: {'; '.join(differences)}")


def _recorded(workdir: str, step: int, history: History) -> dict[str, Any]:
    """Returns the row of metrics of a step.

    Loss and gradient norm, which the row leaves out if they are not finite, then come from the incident file of the
    step.

    Raises:
      UserError: there is no such row, or it lacks a value to compare with.
    """
    row = history.rows.get(step)
    if row is None:
        near = sorted(history.rows, key=lambda other: abs(other - step))[:2]
        nearest = f"the nearest are {' and '.join(map(str, sorted(near)))}" if near else "it has no rows"
        raise UserError(f"{workdir}/metrics.jsonl has no row of step {step} to compare with: {nearest}")
    if not isinstance(row.get("train/batch_digest"), str):
        raise UserError(f"{workdir}/metrics.jsonl has no digest of the batch of step {step}: its row is damaged")
    if all(isinstance(row.get(key), int | float) for key in _COMPARED):
        return row
    values = (incidents.read(workdir, step) or {}).get("metrics", {})
    if not values.keys() >= set(_COMPARED.values()):
        raise UserError(f"step {step} was not finite, and {workdir}/{incidents.FOLDER} does not record its values")
    return {key: values[name] for key, name in _COMPARED.items()} | row


def _on_these_devices(run: config.Run) -> config.Run:
    """Returns the run; if the mesh of a phase does not fit these devices, all phases get the nearest one that does."""
    count = jax.device_count()
    try:
        for phase in config.resolve_phases(run):
            meshes.resolved(config.mesh_of(run, phase), count)
        return run
    except UserError:
        sizes: dict[str, int] = dict(zip(meshes.AXES, meshes.sizes(run.mesh), strict=True))
        nearest = meshes.nearest(sizes, count)
        assert nearest is not None  # Every number of devices has a mesh.
        mesh = dataclasses.replace(run.mesh, **nearest)
        phases = tuple(dataclasses.replace(phase, mesh=None) for phase in run.train.phases)
        return dataclasses.replace(run, mesh=mesh, train=dataclasses.replace(run.train, phases=phases))


def _compute(run: config.Run, workdir: str, first_step: int, step: int) -> tuple[dict[str, Any], TrainingSetup]:
    """Returns a pair: the metrics of a step, computed from the state after `first_step`, and the setup used for it."""
    folder, save_every = folders.of_run(workdir), run.checkpoint.save_every

    def read_state(step: int, abstract: TrainState) -> TrainState:
        return checkpoints.read_state(folder / str(step), abstract)

    with folders.lock(folder / str(first_step)) if first_step else contextlib.nullcontext():
        resumed = None
        if first_step:
            resumed = resume.from_meta(workdir, folders.checked(folder / str(first_step)))
        job = setup.build(run, resumed)
        state = setup.load_state(job, read_state, resumed)
    callbacks: list[Callback] = []
    if run.train.incidents.spikes == "roll_back":
        load_state = functools.partial(setup.load_state, job, read_state)
        callbacks = [_ReplayRollBack(setup.new_incidents(job, workdir), job.program, folder, save_every, load_state)]
    context = TrainingContext(job.programs.phases[0], job.program, state, first_step, step)
    loop.train(context, job.programs, setup.global_batches(job.programs, job.reader, first_step), callbacks)
    return jax.device_get(context.metrics), job


class _ReplayRollBack(RollBack):
    """Callback that rolls back to the same checkpoint as the run did, but not after the last step.

    `find_target` raises `UserError` if that checkpoint no longer exists.
    """

    @override
    def after_step(self, context: TrainingContext) -> None:
        if not context.is_last_step:
            super().after_step(context)

    @override
    def find_target(self, step: int) -> int:
        target = super().find_target(step)
        recorded = (incidents.read(self.workdir, step) or {}).get("checkpoint", target)
        if recorded != target:
            raise UserError(
                f"step {step} was rolled back to checkpoint {recorded}, which no longer exists: replay an earlier step"
            )
        return target


def _is_close(value: float, other: float, tolerance: float = 0.0) -> bool:
    if math.isnan(value) or math.isnan(other):
        return math.isnan(value) and math.isnan(other)
    return math.isclose(value, other, rel_tol=tolerance, abs_tol=0.0)


def _differences(computed_with: dict[str, Any], job: TrainingSetup) -> list[str]:
    """Returns a line for each difference from the recorded computation, and for each property that was not recorded.

    The properties are devices, mesh, versions, the user's code and the weights of reference models. Code that was not
    recorded is not compared.
    """
    code = users.changed(computed_with.get("modules", {}), job.run)
    mesh = dict(job.program.mesh.shape)
    here = {"devices": run_directory.devices(), "mesh": mesh, "versions": run_directory.versions()}
    unknown = [f"the {name} of the run were not recorded" for name in here if name not in computed_with]
    was, now = ({name: of[name] for name in here if name in computed_with} for of in (computed_with, here))
    changes = [*config.differences(was, now), *((f"the code in {file}", *hashes) for file, hashes in code.items())]
    recorded = computed_with.get("references", {})
    for name, weights in job.programs.reference_hashes.items():
        field = f"the weights of reference '{name}'"
        if name not in recorded:
            unknown.append(f"{field} were not recorded")
        elif recorded[name] != weights:
            changes.append((field, recorded[name][:12], weights[:12]))
    return [f"{field} was {before} and is {after}" for field, before, after in changes] + unknown
