"""Setup of a run: its programs, the data, and the state that training starts from."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax import config
from plm_jax.common import progress, users
from plm_jax.common.errors import UserError
from plm_jax.data.reader import Reader, blank_batch
from plm_jax.losses.loss import untrained_heads
from plm_jax.runs import references, resume, run_directory, warm_start
from plm_jax.runs.callbacks import TrainingContext
from plm_jax.runs.incidents import Incidents, window
from plm_jax.runs.programs import Programs, build_optimizer
from plm_jax.runs.validation import Validation
from plm_jax.training import mesh as meshes
from plm_jax.training.program import Program, fitted
from plm_jax.training.state import TrainState

# Function from a step and the abstract state to the state of the step's checkpoint.
ReadState = Callable[[int, TrainState], TrainState]


@dataclass(frozen=True)
class TrainingSetup:
    """A run that is ready to train.

    Attributes:
      run: config of the run.
      programs: programs of the phases; phases with the same mesh share one.
      reader: training data.
      validation: validation on held-out rows.
      resumed: checkpoint that the run resumes from, or None.
      changes: differences between this run and the run that saved `resumed`; empty if `resumed` is None.
    """

    run: config.Run
    programs: Programs
    reader: Reader
    validation: Validation
    resumed: resume.Resumed | None
    changes: Sequence[resume.Change]

    @property
    def program(self) -> Program:
        """Program of the first phase that is still to be trained; if the run is finished, of its last phase."""
        return self.programs.first

    @property
    def first_step(self) -> int:
        """Number of steps that are finished when training starts."""
        return self.resumed.step if self.resumed else 0

    @property
    def caches(self) -> dict[str, str]:
        """Identities of the caches by source, and of the table of similar words if an objective reads this table."""
        return self.reader.identities


def build(
    run: config.Run, resumed: resume.Resumed | None = None, devices: Sequence[Any] | None = None
) -> TrainingSetup:
    """Builds the programs of a run and opens its caches.

    Args:
      resumed: checkpoint that the run resumes from; None for a new run.
      devices: devices to train on; all of them by default.

    Raises:
      UserError: a cache or a reference cannot be read, or the config does not fit the devices, the caches or the
        references.
    """
    phases = config.resolve_phases(run)
    if resumed:
        phases = resumed.plan(phases)
    programs = Programs(run, devices, phases, resumed.step if resumed else 0)
    programs.check_parameters()
    programs.load_references()
    program = programs.first
    with progress.doing("opening the caches"):
        share = len(_local_rows(program.mesh, program.batch_size)) / program.batch_size
        reader = Reader(config.reader_config(run, programs.phases), share)
        validation = Validation(run.evaluation, run.objective, run.model, programs, reader)
        validation.check_select()
        references.check_vocabularies(run, reader.vocabulary["id"])
    changes = _find_changes(run, programs, reader, resumed) if resumed else []
    return TrainingSetup(run, programs, reader, validation, resumed, changes)


def starting_state(setup: TrainingSetup, read_state: ReadState) -> tuple[TrainState, list[str]]:
    """Returns a pair: the state to start from, and lines that report where the state comes from.

    Raises:
      UserError: the run is new, and the model has a head that no update trains. Also raised if the checkpoint, or the
        weights of `train.init_from`, cannot be read or do not fit the model.
    """
    if setup.resumed is None:
        _check_heads(setup)
        return initial_state(setup)
    return restored_state(setup, setup.resumed, read_state)


def initial_state(setup: TrainingSetup) -> tuple[TrainState, list[str]]:
    """Returns a pair: the state before the first step, and lines that report which weights were loaded.

    Without `train.init_from`, there are no lines.

    Raises:
      UserError: the weights of `train.init_from` cannot be read or do not fit the model.
    """
    run, program = setup.run, setup.program
    with progress.doing("drawing the parameters"):
        state = program.new_state(run.train.seed)
    if not run.train.init_from:
        return state, []
    published = fitted(state, program.published_state, meshes.refitted)
    params, notes = warm_start.load_weights(published.params, run.train, run.model)
    published = _with_average(published.replace(params=params), run)
    return fitted(published, program.abstract_state, meshes.refitted), notes


def restored_state(
    setup: TrainingSetup, checkpoint: resume.Resumed, read_state: ReadState
) -> tuple[TrainState, list[str]]:
    """Returns a pair: the state of a checkpoint, and lines that report what was restored.

    If the optimizer or the trained parameters have changed, the optimizer starts with fresh moments. If the checkpoint
    has no average of the parameters but the run needs one, the average is a copy of the parameters.

    Args:
      read_state: function that reads the state of a checkpoint.

    Raises:
      UserError: the checkpoint cannot be read.
    """
    program, saved_run = setup.program, checkpoint.saved_run
    # The recurrent state has the batch size of the checkpoint, and the moments belong to the optimizer of the
    # checkpoint.
    batch_size = checkpoint.meta.get("batch_size", program.batch_size)
    optimizer = build_optimizer(saved_run)
    like = program.state_like(batch_size, optimizer)
    saved, is_averaged = program.state_like(batch_size, optimizer, padded=False), saved_run.train.average is not None
    state = read_state(checkpoint.step, saved if is_averaged else saved.replace(average=()))
    state, notes = state if is_averaged else _with_average(state, setup.run), [f"resumed after step {checkpoint.step}"]
    state = fitted(state, like, meshes.refitted)
    recent = window(checkpoint.meta.get("incidents", {}), setup.run.train.incidents.window)
    state = state.replace(recent=meshes.place(recent, program.shardings.recent))
    if _moments(saved_run) == _moments(setup.run) and _have_equal_shapes(
        like.optimizer, program.abstract_state.optimizer
    ):
        return state.replace(optimizer=_cast(state.optimizer, program.abstract_state.optimizer)), notes
    notes.append(
        "the optimizer or the trained parameters have changed: the moments start from zero, weights and step are kept"
    )
    return state.replace(optimizer=program.new_moments(setup.run.train.seed, state.step)), notes


def _moments(run: config.Run) -> list[tuple[str, str, tuple[str, ...]]]:
    """Returns a triple for each update: its name, the kind of its optimizer, and the patterns of its parameters.

    Saved moments are restored only if the triples of the saved run are the same.
    """
    return [(update.name, run.optimizer_of(update).kind, update.trainable) for update in run.updates]


def _with_average(state: TrainState, run: config.Run) -> TrainState:
    """Returns a state whose average is a copy of the parameters, or the unchanged state if the run has no average."""
    return state.replace(average=jax.tree.map(jnp.copy, state.params)) if run.train.average else state


def new_incidents(setup: TrainingSetup, workdir: str) -> Incidents:
    """Returns the `Incidents` of a run.

    Their counts continue from the checkpoint that the run resumes from. In a new run, they start from 0.
    """
    saved = setup.resumed.meta.get("incidents", {}) if setup.resumed else {}
    return Incidents(setup.run.train.incidents, workdir, setup.reader, setup.program.tensor_names(), saved)


def global_batches(programs: Programs, reader: Reader, first_step: int) -> Iterator[tuple[Any, float]]:
    """Yields pairs: a global batch, and the seconds that this host waited for its rows.

    Args:
      first_step: number of finished steps; the batches of these steps are left out.
    """

    def rows_of(phase: config.Phase) -> np.ndarray:
        return _local_rows(programs.at(phase).mesh, phase.batch_size)

    local_batches = reader.batches(first_step, lambda phase: rows_of(phase).tolist())
    for phase in programs.phases:
        if phase.end_step <= first_step:
            continue
        mesh, rows = programs.at(phase).mesh, rows_of(phase)
        for _ in range(max(first_step, phase.first_step), phase.end_step):
            began = time.perf_counter()
            batch = next(local_batches)
            waited = time.perf_counter() - began
            yield meshes.to_global(batch, rows, phase.batch_size, mesh), waited


def load_state(setup: TrainingSetup, read_state: ReadState, checkpoint: resume.Resumed | None) -> TrainState:
    """Returns the state of a checkpoint of the run, or the initial state if `checkpoint` is None."""
    state, _ = restored_state(setup, checkpoint, read_state) if checkpoint else initial_state(setup)
    return state


def checkpoint_meta(setup: TrainingSetup, incidents: Incidents, context: TrainingContext) -> dict[str, Any]:
    """Returns the `meta` of a checkpoint of the current step, without the fields that are added when it is saved."""
    phase = context.phase
    return {
        "config": config.to_dict(setup.run),
        "modules": users.used(setup.run),
        "versions": run_directory.versions(),
        "vocabulary_id": setup.reader.vocabulary["id"],
        "caches": setup.caches,
        "references": dict(setup.programs.reference_hashes),
        "stages": [dataclasses.asdict(each) for each in setup.programs.phases],
        "batch_size": phase.batch_size,
        "next_example": phase.first_example + (context.step - phase.first_step) * phase.batch_size,
        "phase": setup.programs.phases.index(phase),
        "mesh": dict(context.program.mesh.shape),
        "devices": run_directory.devices(),
        "incidents": incidents.state(context.state.recent),
    }


def _find_changes(run: config.Run, programs: Programs, reader: Reader, resumed: resume.Resumed) -> list[resume.Change]:
    # The `meta` of a checkpoint records the mesh of its last step.
    last = next(phase for phase in config.resolve_phases(run) if resumed.step <= phase.end_step)
    program = programs.first
    try:
        mesh = meshes.build(config.mesh_of(run, last), list(program.mesh.devices.flat))
    except UserError:  # A finished phase need not fit these devices.
        mesh = program.mesh
    hashes = programs.reference_hashes
    return resumed.changes(run, reader.identities, reader.vocabulary["id"], mesh.shape, hashes)


def _local_rows(mesh: jax.sharding.Mesh, batch_size: int) -> np.ndarray:
    return meshes.local_rows(meshes.batch_sharding(mesh), batch_size)


def _check_heads(setup: TrainingSetup) -> None:
    """Raises `UserError` if the model of a new run has a head that no update trains."""
    program, objective = setup.program, setup.run.objective
    phase = setup.programs.phases[0]
    blank = blank_batch(config.reader_config(config.in_phase(setup.run, phase)), phase.length)
    batch = {name: jnp.asarray(array) for name, array in blank.items()}
    untrained = [untrained_heads(update.loss, program.module(), batch) for update in program.updates]
    for head in untrained[0]:
        if not all(head in heads for heads in untrained):
            continue
        raise UserError(
            f"the {head} head of config.model is not trained by objective '{objective.kind}' on "
            "config.data: leave the head out, or choose another objective or layout"
        )


def _have_equal_shapes(tree: Any, other: Any) -> bool:
    """Whether two trees have the same structure and shapes."""
    shapes, other_shapes = ([leaf.shape for leaf in jax.tree.leaves(one)] for one in (tree, other))
    return jax.tree.structure(tree) == jax.tree.structure(other) and shapes == other_shapes


def _cast(tree: Any, like: Any) -> Any:
    """Casts the arrays of a tree to the dtypes of `like`."""
    return jax.tree.map(lambda leaf, other: leaf if leaf.dtype == other.dtype else leaf.astype(other.dtype), tree, like)
