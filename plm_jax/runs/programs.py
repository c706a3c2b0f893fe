"""The train steps of a run: one program for each mesh that its phases are trained on."""

import functools
import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import optax
from jax.sharding import Mesh

from plm_jax import config, losses, objectives
from plm_jax.common import keys
from plm_jax.common.errors import UserError
from plm_jax.common.phases import Phase
from plm_jax.models import ModelConfig, pipeline, registry
from plm_jax.models.stack import is_stacked
from plm_jax.training import compiler, flops, layer_decay, optimizers, schedules, spikes, trainable
from plm_jax.training import mesh as meshes
from plm_jax.training.program import Program, ReferenceModel
from plm_jax.training.updates import Update, joined

# The float32 logits of a loss take at most 1 / _LOGITS_SHARE of a device's memory. This is enough for efficiency: each
# time that the vocabulary matrix is read, it is multiplied by enough tokens to hide the time of reading it.
_LOGITS_SHARE = 128


class Programs:
    """The programs of a run: one for each mesh that its remaining phases are trained on.

    Attributes:
      run: config of the run.
      phases: phases of the run.
      first: program of the first phase that is still to be trained; if the run is finished, of its last phase.
      reference_hashes: hash of the parameters of each reference, by name; empty before `load_references`.
      batch_shards: a batch whose number of rows is a multiple of this number can be sharded on the mesh of each phase
        of the config. Finished phases are included, so that a resumed run validates in the same batches as an
        uninterrupted run. Finished phases whose mesh does not fit the devices are not included.
    """

    def __init__(
        self,
        run: config.Run,
        devices: Sequence[Any] | None = None,
        phases: Sequence[Phase] | None = None,
        first_step: int = 0,
    ):
        """Builds the program of the first phase that is still to be trained, and checks that the run fits the devices.

        Args:
          devices: devices to train on; all by default.
          phases: phases of the run; by default the phases of the config.
          first_step: number of finished steps.

        Raises:
          UserError: the devices or the batch do not fit the mesh, the model lacks a head that the loss needs, or a
            reference cannot be read or does not fit the run.
        """
        self.run = run
        self.phases = config.resolve_phases(run) if phases is None else tuple(phases)
        self.reference_hashes: Mapping[str, str] = {}
        self._references: tuple[Program, Any] | None = None
        self._reference_models = _references().describe(run) if run.train.references else {}
        self._rate = run.schedule.rate(run.train.steps, self.phases)
        self._programs: dict[tuple[int, ...], Program] = {}
        remaining = [phase for phase in self.phases if phase.end_step > first_step] or self.phases[-1:]
        self._batch_sizes = {self._sizes(phase): phase.batch_size for phase in reversed(remaining)}
        self._meshes = {self._sizes(phase): meshes.build(config.mesh_of(run, phase), devices) for phase in remaining}
        self.first = self.at(remaining[0])
        for phase in remaining:
            length = config.in_phase(run, phase).objective.row_length(phase.length)
            _check_divides(run.model, phase, length, self._meshes[self._sizes(phase)])
        num_devices = self.first.mesh.size
        of_phases = [config.mesh_of(run, phase) for phase in config.resolve_phases(run)]
        self.batch_shards = math.lcm(*(_batch_shards(mesh, num_devices) for mesh in of_phases))

    def at(self, phase: Phase) -> Program:
        """Returns the program of a phase; phases that have the same mesh share a program.

        A finished phase has no program, unless a remaining phase has the same mesh.
        """
        sizes = self._sizes(phase)
        if sizes not in self._programs:
            mesh, batch_size = self._meshes[sizes], self._batch_sizes[sizes]
            self._programs[sizes] = build(self.run, mesh, batch_size, self._reference_models)
        return self._programs[sizes]

    def check_parameters(self) -> None:
        """Checks the settings of the parameters against the shapes of the model.

        Raises:
          UserError: a pattern of trainable parameters or a group of an optimizer matches no parameter, `layer_decay` is
            set for a model without a stack, or a stacked parameter does not fit its layers or `mesh.stage`.
        """
        run, stages = self.run, max(mesh.shape["stage"] for mesh in self._meshes.values())
        trainable.check_layers(run.model, stages)
        for settings, update in zip(run.updates, self.first.updates, strict=True):
            optimizer, shapes = run.optimizer_of(settings), registry.shapes(run.model)
            if not update.trained.is_all:
                field = f"update '{update.name}' of config.train.updates" if update.name else "config.train.trainable"
                update.trained.check(shapes, stages, field)
            field = "config.optimizer" if settings.optimizer is None else f"the optimizer of update '{update.name}'"
            optimizers.check_groups(optimizer, shapes, field)
            if optimizer.layer_decay != 1.0:
                layer_decay.check(run.model, optimizer.layer_decay)

    def load_references(self) -> None:
        """Reads the parameters of the references, if the run has any, onto the devices of the first program.

        Raises:
          UserError: a reference cannot be read.
        """
        if self.first.references:
            params, self.reference_hashes = _references().load(self.run.train.references, self.first)
            self._references = self.first, params

    def _references_of(self, program: Program) -> dict[str, Any]:
        """Returns the references' parameters on the mesh of a program; only their shapes if they are not loaded."""
        if self._references is None:
            return program.reference_shapes
        loaded_by, params = self._references
        if loaded_by is not program:
            params = jax.device_put(params, jax.tree.map(lambda leaf: leaf.sharding, program.reference_shapes))
            self._references = program, params
        return params

    def inputs(self, step: int) -> tuple[Any, ...]:
        """Returns the inputs that a compiled step takes after the state and the batch.

        These are the run's key, the learning rate and, if there are references, a dict from their names to their
        parameters. Before `load_references`, this dict contains only shapes.

        Args:
          step: number of finished steps.

        Raises:
          UserError: the schedule does not return a finite number.
        """
        key, rate = keys.data(self.run.train.seed, self.run.train.prng), schedules.at(self._rate, step)
        if not self._reference_models:
            return key, rate
        phase = next((phase for phase in self.phases if step < phase.end_step), self.phases[-1])
        return key, rate, self._references_of(self.at(phase))

    def notes(self) -> list[str]:
        """Returns lines that report which parameters are trained, and which layers share a learning rate.

        There are no lines if a single update trains all parameters and no layers share a rate.
        """
        model, lines = self.run.model, []
        for settings, update in zip(self.run.updates, self.first.updates, strict=True):
            notes = [
                *update.trained.notes(registry.shapes(model), getattr(model, "scan_layers", False)),
                *layer_decay.notes(model, self.run.optimizer_of(settings).layer_decay),
            ]
            lines += [f"update '{update.name}': {note}" if update.name else note for note in notes]
        trained = {name for update in self.first.updates for name in update.trained.names(registry.shapes(model))}
        untrained = [name for name in trainable.ALL.names(registry.shapes(model)) if name not in trained]
        if untrained and self.run.train.updates:
            lines.append(f"no update trains {len(untrained):,} of the tensors, such as {untrained[0]}")
        return lines

    def _sizes(self, phase: Phase) -> tuple[int, ...]:
        return meshes.sizes(config.mesh_of(self.run, phase))


def _references() -> Any:
    """Imports and returns the module `references`, which imports Orbax."""
    return importlib.import_module("plm_jax.runs.references")


def build(run: config.Run, mesh: Mesh, batch_size: int, reference_models: Mapping[str, ReferenceModel] = {}) -> Program:
    """Returns the program of a run over a mesh.

    Raises:
      UserError: the loss does not fit the model or the references.
    """
    train, incidents = run.train, run.train.incidents
    loss = build_loss(run.objective, run.model, mesh, z_loss=train.z_loss, label_smoothing=train.label_smoothing)
    models = {name: reference.model for name, reference in reference_models.items()}
    return Program(
        model=run.model,
        updates=tuple(_build_update(run, update, loss, models) for update in run.updates),
        mesh=mesh,
        batch_size=batch_size,
        rules=run.mesh.rules,
        gathers_once=run.mesh.gather == "step",
        compiler_options=compiler.options(
            mesh,
            run.mesh.compiler_preset,
            run.mesh.compiler_options,
            functools.partial(_shard_rows, run, mesh),
        ),
        precision=run.precision,
        watch=spikes.Watch(incidents.deviations, incidents.spikes != "record", window=incidents.window),
        log_norms=train.log_norms,
        prng=train.prng,
        references=reference_models,
        average=train.average,
    )


def _shard_rows(run: config.Run, mesh: Mesh) -> int | None:
    """Returns the smallest size of a sharded axis in a shard of the layers' kernels; None if no kernel is sharded."""
    shapes = meshes.stored(registry.boxed_shapes(run.model), mesh, run.mesh.rules)
    sizes = [
        shard
        for path, leaf in jax.tree.leaves_with_path(shapes)
        if is_stacked(path) and path[-1].key == "kernel"
        for size, shard in zip(leaf.shape[1:], leaf.sharding.shard_shape(leaf.shape)[1:], strict=True)
        if shard < size
    ]
    return min(sizes, default=None)


def _build_update(run: config.Run, update: config.UpdateConfig, loss: losses.Loss, models: Mapping[str, Any]) -> Update:
    """Returns one of the updates of a step, given the objective's loss and the models of the references."""
    if update.loss is not None:
        loss = update.loss.wrap(loss)
    loss.check_references(run.model, models)
    trained = trainable.Trainable(update.trainable)
    return Update(loss, _build_optimizer(run, update), trained, update.name)


def _build_optimizer(run: config.Run, update: config.UpdateConfig) -> optax.GradientTransformationExtraArgs:
    trained = trainable.Trainable(update.trainable)
    return optimizers.build(run.optimizer_of(update), None if trained.is_all else trained, run.model)


def build_optimizer(run: config.Run) -> optax.GradientTransformationExtraArgs:
    """Returns the optimizer of a run; its state contains the optimizer states of all updates of a step."""
    return joined({update.name: _build_optimizer(run, update) for update in run.updates})


def build_loss(objective: objectives.Objective, model: ModelConfig, mesh: Mesh, **settings: Any) -> losses.Loss:
    """Returns the loss of an objective; `settings` are further fields of the loss.

    Raises:
      UserError: the model lacks a head that the loss needs.
    """
    chip = flops.chip(mesh.devices.flat[0].device_kind)
    if chip and chip.hbm_bytes:
        settings["logits_at_once"] = chip.hbm_bytes // _LOGITS_SHARE // 4
    loss = losses.get(objective.loss, **objective.loss_settings, **settings)
    for head in loss.heads:
        if head not in model.named_heads:
            raise UserError(
                f"objective '{objective.kind}' trains the {head} head, which config.model does not have: add it, or "
                "choose another objective"
            )
    return loss


def _batch_shards(mesh: config.MeshConfig, num_devices: int) -> int:
    """Returns the number of shards of a batch on a mesh; 1 if the mesh does not fit the devices.

    Finished phases may have a mesh that does not fit the devices.
    """
    try:
        sizes = meshes.resolved(mesh, num_devices)
    except UserError:
        return 1
    return math.prod(sizes[axis] for axis in meshes.BATCH_AXES)


def _check_divides(model: ModelConfig, phase: Phase, length: int, mesh: Mesh) -> None:
    """Rejects a mesh that cannot divide the rows of a phase, their length or the layers of the model."""
    rows = phase.batch_size // phase.microbatches
    shards, sizes, over = meshes.batch_shards(mesh), dict(mesh.shape), " × ".join(meshes.BATCH_AXES)
    nearest_mesh = functools.partial(_nearest_mesh, model, rows, length, mesh)
    if rows % shards:
        at_once = shards * phase.microbatches
        batch_size = at_once * max(1, round(phase.batch_size / at_once))
        raise UserError(
            f"a microbatch of {rows:,} rows (train.batch_size {phase.batch_size:,} / train.microbatches "
            f"{phase.microbatches}) cannot be divided among the {shards} shards of the mesh ({over}): "
            f"{nearest_mesh()}, or set config.train.batch_size to {batch_size}"
        )
    if sizes["context"] > 1 and not model.any_order:
        raise UserError(
            f"a model of kind '{model.kind}' reads a row sequentially, so mesh.context cannot split "
            f"it: {nearest_mesh()}"
        )
    if length % sizes["context"]:
        raise UserError(
            f"mesh.context={sizes['context']} does not divide the row length of {length:,} tokens: {nearest_mesh()}, "
            "or change data.length"
        )
    stages, pipeline_microbatches = sizes["stage"], model.pipeline_microbatches
    if stages > 1 and not model.has_stages:
        raise UserError(
            f"mesh.stage={stages} cannot split a convolution, a mask decoder or two streams, and this model of kind "
            f"'{model.kind}' has one of them: {nearest_mesh()}"
        )
    if not pipeline.cuts(model, stages):
        layers = " and ".join(str(stack.layers) for stack in model.stacks) or "no"
        raise UserError(
            f"mesh.stage={stages} does not divide the {layers} layers of a model of kind '{model.kind}', or the "
            f"groups that share parameters: {nearest_mesh()}"
        )
    rows = rows // shards * stages
    is_cut = pipeline_microbatches and stages > 1
    if is_cut and pipeline.num_microbatches(pipeline_microbatches, stages, rows) != pipeline_microbatches:
        fitting = [str(count) for count in range(stages, rows + 1, stages) if rows % count == 0]
        raise UserError(
            f"config.model.pipeline_microbatches is {pipeline_microbatches}, and {stages} stages have {rows} rows at a "
            f"time: choose one of {', '.join(fitting)}, or 0"
        )


def _nearest_mesh(model: ModelConfig, rows: int, length: int, mesh: Mesh) -> str:
    """Returns advice on the mesh to use, for an error message.

    The advice names the nearest mesh for the same number of devices that fits the rows and the model. If there is none,
    it is to use another number of devices.
    """

    def fits(sizes):
        return (
            rows % math.prod(sizes[axis] for axis in meshes.BATCH_AXES) == 0
            and pipeline.cuts(model, sizes["stage"])
            and model.attention_heads % sizes["tensor"] == 0
            and (sizes["context"] == 1 or (model.any_order and length % (2 * sizes["context"]) == 0))
        )

    nearest = meshes.nearest(mesh.shape, mesh.size, fits)
    if nearest is None:
        return "use another number of devices (no mesh of this number fits)"
    return f"use {meshes.describe(nearest)}"
