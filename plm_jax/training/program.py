"""What a run compiles: mesh, model, optimizer, shardings, step. It reads no data."""

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from plm_jax import config, losses, objectives
from plm_jax.common import keys
from plm_jax.common.errors import UserError
from plm_jax.models import pipeline, registry
from plm_jax.models.protocol import ModelConfig, Module
from plm_jax.training import compiler, flops, layer_decay, optimizers, schedules, spikes, trainable
from plm_jax.training import mesh as meshes
from plm_jax.training import state as states
from plm_jax.training import step as steps

# One in so many bytes of a device's memory is for the logits that a loss holds at once, in float32: more save nothing,
# since a matrix is then read for as many tokens as hide the reading.
_LOGITS_SHARE = 128


class Program:
    """The step of a run and the state that it takes, over the mesh of the first stage that is to be trained.

    Stages with another mesh have a program of their own, see `at`.

    Attributes:
      batch_shards: what a batch's rows must be a multiple of to fit the mesh of every phase, those that are over too,
        so that a run that goes on validates in the batches of one that was never cut off.
      batch_size: of the first stage that is to be trained.
      part: of the parameters, what is trained.
    """

    def __init__(
        self,
        run: config.Run,
        devices=None,
        stages: Sequence[config.Phase] | None = None,
        first_step: int = 0,
        rate: Callable | None = None,
    ):
        """Builds the mesh and the state's shapes.

        Args:
          devices: all by default.
          stages: those of the config by default.
          first_step: from where on they are to be trained.
          rate: function from the step to the learning rate; the schedule's over these stages by default.

        Raises:
          UserError: the devices or the batch do not fit the mesh; the model lacks a head that the loss needs.
        """
        self.run, self._devices, self._first_step = run, devices, first_step
        self.stages = config.resolve_phases(run) if stages is None else tuple(stages)
        coming = [stage for stage in self.stages if stage.end_step > first_step] or self.stages[-1:]
        built = {meshes.sizes(mesh := config.mesh_of(run, stage)): meshes.build(mesh, devices) for stage in coming}
        for stage in coming:
            _check_divides(run, stage, built[meshes.sizes(config.mesh_of(run, stage))])
        first, self.batch_size = meshes.sizes(config.mesh_of(run, coming[0])), coming[0].batch_size
        self.mesh = built[first]
        self.options = compiler.options(self.mesh, run.mesh.compiler_preset, run.mesh.compiler_options)
        num_devices = self.mesh.size
        all_meshes = [config.mesh_of(run, stage) for stage in config.resolve_phases(run)]
        self.batch_shards = math.lcm(*(_batch_shards(mesh, num_devices) for mesh in all_meshes))
        self._programs = {first: self}
        _check_heads(run.model, run.objective, self.loss())
        self._key = keys.data(run.train.seed, run.train.prng)
        self.rate = rate or run.schedule.rate(run.train.steps, self.stages)
        self.part = trainable.Trainable(run.train.trainable)
        most_stages = max(mesh.shape["stage"] for mesh in built.values())
        trainable.check_layers(run.model, most_stages)
        self.part.check(registry.shapes(run.model), most_stages)
        layer_decay.check(run.model, run.optimizer.layer_decay)
        self.optimizer = optimizers.build(run.optimizer, self.part, run.model)
        self.abstract_state = self.state_like(self.batch_size)
        self.published_state = self.state_like(self.batch_size, padded=False)
        self.shardings = jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state)

    def notes(self) -> list[str]:
        """Lines that say what is trained, where that is not all, and what shares a rate."""
        shapes = registry.shapes(self.run.model)
        return [
            *self.part.notes(shapes, getattr(self.run.model, "scan_layers", False)),
            *layer_decay.notes(self.run.model, self.run.optimizer.layer_decay),
        ]

    def at(self, stage: config.Phase) -> "Program":
        """The program over the mesh of a stage to come: this one, or one of the stages with that mesh."""
        sizes = meshes.sizes(config.mesh_of(self.run, stage))
        if sizes not in self._programs:
            alike = [other for other in self.stages if meshes.sizes(config.mesh_of(self.run, other)) == sizes]
            # The rate may go by the tokens of all stages, whichever their meshes.
            self._programs[sizes] = Program(self.run, self._devices, alike, self._first_step, self.rate)
        return self._programs[sizes]

    def place(self, state: states.TrainState, before: "Program", batch_size: int) -> states.TrainState:
        """A state as it is in the program `before`, over the same devices, as it is in this one.

        The state given is given up. What is carried of batches of another size than this begins afresh.
        """
        if not all(len(leaf) == batch_size for leaf in jax.tree.leaves(state.carry)):
            state = state.replace(carry=self.new_carry(batch_size))
        if before is self:
            return state
        state = fitted(state, before.published_state, meshes.refitted)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.state_like(batch_size, padded=False))
        with warnings.catch_warnings():
            # A part of another shape cannot take the place of the one given up, whose memory is free all the same.
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            state = jax.device_put(state, shardings, donate=True)
        return fitted(state, self.abstract_state, meshes.refitted)

    def model(self, dropout: float | None = None) -> Module:
        """The module, with all dropout rates at `dropout` unless it is None."""
        model = self.run.model if dropout is None else self.run.model.with_dropout(dropout)
        return registry.build(model, jnp.dtype(self.run.precision.compute), self.mesh.devices.flat[0])

    def _init(self, key: jax.Array) -> states.TrainState:
        """Returns a fresh state, whose parameters, their optimizer state and the carry are boxed with logical axes.

        Args:
          key: words of the run's key.
        """
        root = keys.wrapped(key, self.run.train.prng)
        return self._around(states.init_params(self.model(), root), self.batch_size, self.optimizer)

    def _around(self, params, batch_size: int, optimizer) -> states.TrainState:
        carry = registry.new_carry(self.model(), batch_size)
        return states.new_state(params, optimizer, carry, self.run.train.incidents.window)

    def state_like(self, batch_size: int, optimizer=None, *, padded: bool = True) -> states.TrainState:
        """The shapes, types and shardings of a state whose carry is that of batches of this size.

        Its moments are those of `optimizer`, an optax transformation; by default the run's. Not `padded`, it is as
        checkpoints hold it, see `meshes.stored`.
        """
        around = functools.partial(self._around, batch_size=batch_size, optimizer=optimizer or self.optimizer)
        boxed = jax.eval_shape(around, registry.boxed_shapes(self.run.model))
        return meshes.stored(boxed, self.mesh, self.run.mesh.rules, padded=padded)

    def _whole_kernels(self):
        """The shardings of the parameters where no axis cuts them that tokens alone are spread over."""
        boxed = registry.boxed_shapes(self.run.model)
        rules = meshes.whole_over_tokens(self.run.mesh.rules)
        return jax.tree.map(lambda leaf: leaf.sharding, meshes.stored(boxed, self.mesh, rules))

    def new_state(self) -> states.TrainState:
        """A fresh state, made in its place on the mesh."""
        return self._make(self._init, self._key)

    def new_carry(self, batch_size: int):
        """What the loss carries before the first batch of this size, made in its place on the mesh."""
        return self._make(functools.partial(registry.new_carry, self.model(), batch_size))

    def new_moments(self, step: jax.Array):
        """The optimizer's state before its first update, which is that after `step` steps, made in its place."""
        fresh = self._make(lambda key: self._init(key).optimizer, self._key)
        return optimizers.later(fresh, step)

    def _make(self, make, *arguments: np.ndarray):
        """Returns the boxed tree that `make(*arguments)` returns, unboxed and sharded over the mesh."""
        rules = self.run.mesh.rules
        like = meshes.stored(jax.eval_shape(make, *arguments), self.mesh, rules)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, like)
        made = steps.over_mesh(
            lambda *arguments: meshes.fitted(nn.unbox(make(*arguments)), like),
            self.mesh,
            rules,
            self.options,
            in_shardings=meshes.replicated(self.mesh),
            out_shardings=shardings,
        )
        return made(*arguments)

    def loss(self, **options: Any) -> losses.Loss:
        """What the run minimises; `options` are further fields of it."""
        objective = self.run.objective
        chip = flops.chip(self.mesh.devices.flat[0].device_kind)
        if chip and chip.hbm_bytes:
            options["logits_at_once"] = chip.hbm_bytes // _LOGITS_SHARE // 4
        return losses.get(objective.loss, **objective.loss_settings, **options)

    def inputs(self, step: int) -> tuple[np.ndarray, np.float32]:
        """Returns the inputs of a compiled step other than state and batch: the run's key and the learning rate.

        Args:
          step: number of finished steps.

        Raises:
          UserError: the schedule does not return a finite number.
        """
        return self._key, schedules.at(self.rate, step)

    def stage_step(self, stage: config.Phase):
        """Returns the jitted train step of a stage: `(state, batch, *inputs(step)) → (state, metrics)`."""
        train, model = self.run.train, self.model(stage.dropout)
        step = steps.train_step(
            self.loss(z_loss=train.z_loss, label_smoothing=train.label_smoothing),
            model,
            self.optimizer,
            stage.microbatches,
            dropout=model.model.drops,
            part=self.part,
            watch=spikes.Watch(train.incidents.deviations, train.incidents.spikes != "record", stage.first_step),
            log_norms=train.log_norms,
            gradients=jnp.result_type(*{self.run.precision.compute, self.run.precision.gradients}),
            layouts=self._whole_kernels() if self.run.mesh.gather == "step" else None,
        )

        def of_stored(state, batch, key, learning_rate):
            # Only where a state lies is the vocabulary padded: what a step computes is of the published size.
            root = keys.wrapped(key, train.prng)
            state, metrics = step(fitted(state, self.published_state), batch, root, learning_rate)
            return fitted(state, self.abstract_state), metrics

        return steps.jit_step(of_stored, self.mesh, self.run.mesh.rules, self.shardings, self.options)


def fitted(state: states.TrainState, like: states.TrainState, fit: Callable = meshes.fitted) -> states.TrainState:
    """A state in the shapes of another, as `fit` does it; what is carried has no vocabulary, and stays."""
    return state.replace(params=fit(state.params, like.params), optimizer=fit(state.optimizer, like.optimizer))


def _batch_shards(mesh: config.MeshConfig, num_devices: int) -> int:
    """Into how many parts the mesh of a phase cuts rows; 1 where it is over and so many devices do not fit it."""
    try:
        found = meshes.resolved(mesh, num_devices)
    except UserError:
        return 1
    return math.prod(found[axis] for axis in meshes.BATCH_AXES)


def _check_heads(model: ModelConfig, objective: objectives.Objective, loss: losses.Loss) -> None:
    for head in loss.heads:
        if head not in model.named_heads:
            raise UserError(
                f"objective '{objective.kind}' trains the {head} head, which config.model has not: give it one, or "
                "choose another objective"
            )


def _check_divides(run: config.Run, stage: config.Phase, mesh: Mesh) -> None:
    """Refuses a mesh that does not divide a stage's rows or their length, with the nearest mesh and batch that fit."""
    rows, length = stage.batch_size // stage.microbatches, run.objective.row_length(stage.length)
    shards, sizes, over = meshes.batch_shards(mesh), dict(mesh.shape), " × ".join(meshes.BATCH_AXES)

    def fits(sizes):
        return (
            rows % math.prod(sizes[axis] for axis in meshes.BATCH_AXES) == 0
            and pipeline.cuts(run.model.stacks, sizes["stage"])
            and run.model.attention_heads % sizes["tensor"] == 0
            and (sizes["context"] == 1 or (run.model.any_order and length % (2 * sizes["context"]) == 0))
        )

    fitting = meshes.nearest(sizes, mesh.size, fits)
    nearest_mesh = f"take {meshes.told(fitting)}" if fitting else "no mesh of so many devices divides it"
    if rows % shards:
        at_once = shards * stage.microbatches
        batch_size = at_once * max(1, round(stage.batch_size / at_once))
        raise UserError(
            f"a batch of {stage.batch_size} in {stage.microbatches} microbatches has {rows} rows at a time, which the "
            f"mesh's {shards} ({over}) do not divide: {nearest_mesh}, or a train.batch_size of "
            f"{batch_size:,}"
        )
    if sizes["context"] > 1 and not run.model.any_order:
        raise UserError(
            f"a model of kind '{run.model.kind}' reads a row from its one end to the other, so mesh.context cannot cut "
            f"it: {nearest_mesh}"
        )
    if length % sizes["context"]:
        raise UserError(
            f"rows of {length:,} tokens are not divided by mesh.context={sizes['context']}: {nearest_mesh}, or change "
            "data.length"
        )
    stages, wanted = sizes["stage"], run.model.pipeline_microbatches
    if not pipeline.cuts(run.model.stacks, stages):
        layers = " and ".join(str(stack.layers) for stack in run.model.stacks) or "no"
        raise UserError(
            f"mesh.stage={stages} does not divide the {layers} layers of a model of kind '{run.model.kind}', or the "
            f"groups that share parameters: {nearest_mesh}"
        )
    rows = rows // shards * stages
    if wanted and stages > 1 and pipeline.num_microbatches(wanted, stages, rows) != wanted:
        fitting = [str(count) for count in range(stages, rows + 1, stages) if rows % count == 0]
        raise UserError(
            f"config.model.pipeline_microbatches is {wanted}, and {stages} stages have {rows} rows at a time: give one "
            f"of {', '.join(fitting)}, or 0"
        )
