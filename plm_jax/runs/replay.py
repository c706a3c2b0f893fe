"""A step of a run computed again, from the checkpoint before it, and compared with what was noted of it."""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax

from plm_jax import config
from plm_jax.common import users
from plm_jax.common.errors import UserError
from plm_jax.data.reader import digest_hex
from plm_jax.runs import checkpoint_folders as folders
from plm_jax.runs import checkpoints, incidents, resume, run_directory
from plm_jax.runs import history as past
from plm_jax.runs.loop import Trainer
from plm_jax.training import mesh as meshes
from plm_jax.training import spikes

# Of loss and gradient norm, relative, by the type of activations: on other devices, meshes or versions numbers are
# rounded otherwise, and each step begins with what the one before left.
TOLERANCE = {"float32": 1e-3, "bfloat16": 3e-2}
_COMPARED = {"train/loss": "loss", "train/grad_norm": "grad_norm"}


def replay(workdir: str, step: int, say: Callable[[str], None]) -> None:
    """Computes a step of a run again, compares its loss, gradient norm and digest, and says how they compare.

    Raises:
      UserError: they differ, or the step was not noted.
    """
    known = past.at(workdir, step)
    noted = _noted(workdir, step, known)
    run = _on_these_devices(known.run)
    begin = max((saved for saved in known.saved if saved < step), default=0)
    where = f"checkpoint {begin}" if begin else "the initial state"
    say(f"step {step} of {workdir}: {step - begin:,} step{'s' * (step - begin > 1)} from {where}")
    metrics, trainer = _computed(run, workdir, begin, step)
    found = {key: float(metrics[name]) for key, name in _COMPARED.items()}
    digest = digest_hex(metrics["digest"])
    if digest != noted["train/batch_digest"]:
        raise UserError(
            f"step {step} read another batch: its digest is {digest}, it was {noted['train/batch_digest']}: are the "
            "caches in config.data.cache_dir those that it was trained on?"
        )
    told = ", ".join(f"{name} {found[key]!r} ({float(noted[key])!r})" for key, name in _COMPARED.items())
    if all(_same(found[key], float(noted[key])) for key in _COMPARED):
        say(f"equal to the bit: {told}, digest {digest}")
        return
    others = _differences(known.made_by, trainer)
    tolerance = TOLERANCE[run.precision.compute] if others else 0.0
    if not all(_same(found[key], float(noted[key]), tolerance) for key in _COMPARED):
        what = f"what differs here: {'; '.join(others)}" if others else "nothing is known to differ here"
        raise UserError(f"step {step} comes out otherwise, beyond {tolerance:g}: {told}; {what}")
    say(f"equal to {tolerance:g}: {told}, digest {digest}; what differs here: {'; '.join(others)}")


def _noted(workdir: str, step: int, known: past.Past) -> dict[str, Any]:
    """The row of a step, with the numbers of an incident that no row can hold.

    Raises:
      UserError: there is none.
    """
    row = known.rows.get(step)
    if row is None:
        near = sorted(known.rows, key=lambda other: abs(other - step))[:2]
        others = f"the nearest are {' and '.join(map(str, sorted(near)))}" if near else "there is none of any"
        raise UserError(f"{workdir}/metrics.jsonl has no row of step {step} to compare with: {others}")
    if not isinstance(row.get("train/batch_digest"), str):
        raise UserError(f"{workdir}/metrics.jsonl has no digest of the batch of step {step}: its row is damaged")
    if all(isinstance(row.get(key), int | float) for key in _COMPARED):
        return row
    values = (incidents.read(workdir, step) or {}).get("metrics", {})
    if not values.keys() >= set(_COMPARED.values()):
        raise UserError(f"step {step} had no finite numbers, and {workdir}/{incidents.FOLDER} does not tell which")
    return {key: values[name] for key, name in _COMPARED.items()} | row


def _on_these_devices(run: config.Run) -> config.Run:
    """The run, on the nearest mesh of the devices that are here where its own does not fit them."""
    count = jax.device_count()
    try:
        for stage in config.resolve_phases(run):
            meshes.resolved(config.mesh_of(run, stage), count)
        return run
    except UserError:
        asked = dict(zip(meshes.AXES, meshes.sizes(run.mesh), strict=True))
        mesh = dataclasses.replace(run.mesh, **meshes.nearest(asked, count))
        phases = tuple(dataclasses.replace(phase, mesh=None) for phase in run.train.phases)
        return dataclasses.replace(run, mesh=mesh, train=dataclasses.replace(run.train, phases=phases))


def _computed(run: config.Run, workdir: str, begin: int, step: int) -> tuple[dict[str, Any], Trainer]:
    """The metrics of a step, from the state after step `begin` on, and what computed them."""
    folder = folders.of_run(workdir)

    def restore(step: int, like):
        return checkpoints.read_state(folder / str(step), like)

    with folders.held(folder / str(begin)) if begin else contextlib.nullcontext():
        resumed = resume.of(run, workdir, folders.checked(folder / str(begin))) if begin else None
        trainer = Trainer(run, resumed=resumed)
        state, _ = trainer.restored(resumed, restore) if resumed else trainer.beginning()
    seen, program, batches = trainer.incidents(workdir), trainer, trainer.batches(begin)
    every = run.checkpoint.save_every
    for stage in trainer.stages:
        first = max(begin, stage.first_step)
        if stage.end_step <= first or first >= step:
            continue
        before, program = program, trainer.at(stage)
        train_step, state = program.stage_step(stage), program.place(state, before, stage.batch_size)
        for number, (batch, _) in enumerate(itertools.islice(batches, min(stage.end_step, step) - first), first + 1):
            state, metrics = train_step(state, batch, *program.inputs(number - 1))
            if seen.rolls_back and number < step and int(metrics["incident"]) == spikes.SPIKE:
                _check_target(workdir, number, incidents.rolled_back_to(folders.finished(folder), number, every))
                state = seen.roll_back(trainer, program, stage, state, folder, restore)
    return jax.device_get(metrics), trainer


def _check_target(workdir: str, step: int, target: int) -> None:
    """Refuses to roll back to another checkpoint than the run did."""
    then = (incidents.read(workdir, step) or {}).get("checkpoint", target)
    if then != target:
        raise UserError(f"step {step} was rolled back to checkpoint {then}, which is no more: replay a step before it")


def _same(value: float, other: float, tolerance: float = 0.0) -> bool:
    if math.isnan(value) or math.isnan(other):
        return math.isnan(value) and math.isnan(other)
    return math.isclose(value, other, rel_tol=tolerance, abs_tol=0.0)


def _differences(made_by: dict[str, Any], trainer: Trainer) -> list[str]:
    """Returns the differences in devices, mesh, versions and users' code from those that computed a step."""
    code = users.changed(made_by.get("modules", {}), trainer.run)
    here = {"devices": run_directory.devices(), "mesh": dict(trainer.mesh.shape), "versions": run_directory.versions()}
    unknown = [f"{name} of then are not noted" for name in here if name not in made_by]
    then, here = ({name: of[name] for name in here if name in made_by} for of in (made_by, here))
    changes = [*config.differences(then, here), *((f"the code in {file}", *hashes) for file, hashes in code.items())]
    return [f"{field} was {was} and is {now}" for field, was, now in changes] + unknown
