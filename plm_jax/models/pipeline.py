"""Pipeline parallelism over a stack's layers: stages on different devices process one microbatch at a time (GPipe).

The code is written for all stages at once, with arrays [stages, …] sharded by stage. The compiler turns the step to the
next stage into a `collective-permute`. Nothing else moves between stages within the loop.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from plm_jax.models import partitioning
from plm_jax.models.partitioning import constrain
from plm_jax.models.protocol import ModelConfig
from plm_jax.models.transformer import StackConfig, TransformerConfig


def stage_axes() -> dict[str, int]:
    """Returns the sizes, by name, of the mesh axes that split layers into stages. Axes of size 1 are left out."""
    return partitioning.mesh_axes("layers")


def cuts(model: ModelConfig, stages: int) -> bool:
    """Returns whether every stack of a model splits into equal stages; always True for one stage.

    If groups of layers share parameters, either each stage must consist of whole groups, or each group must consist of
    whole stages. In the second case, all stages of a group have the parameters of the group. Several stages require a
    model with stacks and with `has_stages`.
    """

    def divides(stack):
        groups = stack.layers if stack.groups is None else stack.groups
        return stack.layers % stages == 0 and (groups % stages == 0 or stages % groups == 0)

    return stages == 1 or (model.has_stages and bool(model.stacks) and all(map(divides, model.stacks)))


def num_microbatches(limit: int, stages: int, rows: int) -> int:
    """Returns the number of microbatches of a pipeline.

    The number is the largest multiple of `stages` that divides `rows` and is at most `limit`. A `limit` of 0 means four
    microbatches per stage. Any other `limit` below `stages` means `stages`.

    Raises:
      ValueError: `rows` is not divisible by `stages`.
    """
    largest = max(limit or 4 * stages, stages)
    return max(count for count in range(stages, largest + 1, stages) if rows % count == 0)


class _Pipelines(NamedTuple):
    """Layout of pipelines on a mesh. Each pipeline processes a part of the rows.

    Shapes: B rows of the batch, R rows of a pipeline, b rows of a microbatch.

    Attributes:
      axes: mesh axes of the stages.
      batch_axes: mesh axes of the pipelines.
      stages: number of stages.
      pipelines: number of pipelines, over which the rows are split.
      microbatches: number of microbatches of each pipeline.
    """

    axes: tuple[str, ...]
    batch_axes: tuple[str, ...]
    stages: int
    pipelines: int
    microbatches: int

    def is_stage(self, stage, leaf):
        """Returns a mask that is True for one stage of a leaf [stages, …]."""
        return (jnp.arange(self.stages) == stage).reshape(-1, *[1] * (leaf.ndim - 1))

    def inputs(self, leaf):
        """Converts an input [R, …] to the inputs of all stages at each tick, [ticks, stages, b, …].

        The first stage gets a microbatch at each tick, and zeros after the last microbatch. All other stages get zeros.
        """
        leaf = _constrain(_split(leaf, self.microbatches), self.axes)[:, None]
        leaf = _constrain(jnp.where(self.is_stage(0, leaf[0]), leaf, jnp.zeros_like(leaf)), None, self.axes)
        return jnp.pad(leaf, [(0, self.stages - 1)] + [(0, 0)] * (leaf.ndim - 1))

    def outputs(self, leaf):
        """Selects the outputs [R, …] of the last stage from the outputs [ticks, stages, b, …] of all stages."""
        leaf = leaf[self.stages - 1 :]
        leaf = _constrain(jnp.where(self.is_stage(self.stages - 1, leaf[0]), leaf, 0).sum(1), self.axes)
        return leaf.reshape(-1, *leaf.shape[2:])

    def advance(self, old, new):
        """Moves each microbatch in `old` to the next stage, and a microbatch from `new` to the first stage."""
        moved = jnp.pad(old, [(1, 0)] + [(0, 0)] * (old.ndim - 1))[:-1]
        return _constrain(jnp.where(self.is_stage(0, old), new, moved), self.axes)

    def split_rows(self, leaf):
        """Splits [B, …] into [pipelines, R, …].

        No row moves between devices, because rows are sharded by stages first.
        """
        leaf = leaf.reshape(self.stages, self.pipelines, -1, *leaf.shape[1:]).swapaxes(0, 1)
        return leaf.reshape(self.pipelines, -1, *leaf.shape[3:])

    def join_rows(self, leaf):
        """Joins [pipelines, R, …] into [B, …]; the inverse of `split_rows`."""
        leaf = leaf.reshape(self.pipelines, self.stages, -1, *leaf.shape[2:]).swapaxes(0, 1)
        return leaf.reshape(-1, *leaf.shape[3:])

    def split_layers(self, groups, leaf):
        """Splits [layers, …] into [pipelines, stages, layers per stage, …].

        If there are fewer `groups` of shared layers than stages, all stages of a group get copies of the group's
        parameters.
        """
        parts = min(self.stages, groups or self.stages)
        leaf = jnp.repeat(_split(leaf, parts), self.stages // parts, axis=0)
        return _constrain(jnp.broadcast_to(leaf, (self.pipelines, *leaf.shape)), self.batch_axes, self.axes)


def _pipelines(model: TransformerConfig, rows: int) -> _Pipelines:
    """Returns the pipelines of the current mesh for a batch with this number of rows."""
    axes = tuple(stage_axes())
    stages = math.prod(stage_axes().values())
    batch_axes = tuple(name for name in partitioning.mesh_axes("batch") if name not in axes)
    pipelines = math.prod(partitioning.mesh_axes("batch")[name] for name in batch_axes)
    microbatches = num_microbatches(model.pipeline_microbatches, stages, rows // pipelines)
    return _Pipelines(axes, batch_axes, stages, pipelines, microbatches)


def pipelined(model: TransformerConfig, stack: StackConfig, through: Callable, x, of_rows, layers):
    """Computes `through(stack, x, of_rows, layers)[0]` by pipeline stages.

    At tick t, stage s processes microbatch t - s. Before its first microbatch and after its last microbatch, a stage
    processes zeros; the results are discarded and have no gradient. During a training step, the devices of a stage hold
    its weights unsharded over the batch axes. The weights are gathered once per step. Their gradients are accumulated
    in place and reduced once per step.

    Args:
      model: settings with the number of microbatches.
      stack: settings of the whole stack.
      through: pure function of a stack, x [b, L, D], `of_rows` [b, …] and `layers`, for any number of rows b.
      x: [B, L, D].
      of_rows: tree of arrays [B, …] with one entry per row.
      layers: as in `stack.through_layers`.
    """
    pipelines = _pipelines(model, len(x))
    axes, stages = pipelines.axes, pipelines.stages
    groups = stack.groups and max(stack.groups // stages, 1)
    stage_stack = dataclasses.replace(stack, layers=stack.layers // stages, groups=groups)
    params, per_layer = layers

    def run_pipeline(x, of_rows, params):
        all_stages = jax.vmap(lambda *args: through(stage_stack, *args)[0], spmd_axis_name=axes)
        stage_layers = params, jax.tree.map(lambda leaf: _split(leaf, stages), per_layer)

        def tick(current, new):
            current = jax.tree.map(pipelines.advance, current, new)
            x = _constrain(all_stages(*current, stage_layers), axes)
            return (x, current[1]), x

        inputs = jax.tree.map(pipelines.inputs, (x, of_rows))
        _, x = jax.lax.scan(tick, jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), inputs), inputs)
        return pipelines.outputs(x)

    params = jax.tree.map(functools.partial(pipelines.split_layers, stack.groups), params)
    x, of_rows = jax.tree.map(pipelines.split_rows, (x, of_rows))
    with partitioning.without((*pipelines.batch_axes, *axes)):
        x = jax.vmap(run_pipeline, spmd_axis_name=pipelines.batch_axes or None)(x, of_rows, params)
    return constrain(pipelines.join_rows(x), "batch", "length", "embed")


def _split(leaf, parts: int):
    """Splits [N, …] into [parts, N / parts, …]."""
    return leaf.reshape(parts, -1, *leaf.shape[1:])


def _constrain(leaf, *axes):
    """Shards each leading dimension over the given mesh axes, and lets XLA shard the remaining dimensions.

    A leading dimension is not sharded if it has no mesh axes, or if its size is not divisible by their number of
    devices.
    """
    mesh = jax.sharding.get_abstract_mesh()
    cut = [
        names if names and size % math.prod(mesh.shape[name] for name in names) == 0 else None
        for names, size in zip(axes, leaf.shape, strict=False)
    ]
    rest = [PartitionSpec.UNCONSTRAINED] * (leaf.ndim - len(axes))
    return jax.lax.with_sharding_constraint(leaf, PartitionSpec(*cut, *rest))
