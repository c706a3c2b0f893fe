"""A stack's layers in stages, each on devices of its own, through which rows go a microbatch at a time (GPipe).

It is written for all stages at once, over arrays [stages, …] of which each device holds its stage's: the compiler makes
of the step to the next stage a `collective-permute`, and nothing else crosses from stage to stage within the loop.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from plm_jax.models import partitioning
from plm_jax.models.partitioning import constrain
from plm_jax.models.transformer import StackConfig, TransformerConfig


def stage_axes() -> dict[str, int]:
    """The axes of the mesh in force, and their sizes above 1, that cut layers into stages."""
    return partitioning.mesh_axes("layers")


def cuts(stacks: Sequence[StackConfig], stages: int) -> bool:
    """Whether each of a model's stacks has so many parts alike, with no layers that share parameters split between two.

    Where there are more stages than groups of such layers, each of them has the parameters of its group.
    """

    def divides(stack):
        groups = stack.layers if stack.groups is None else stack.groups
        return stack.layers % stages == 0 and (groups % stages == 0 or stages % groups == 0)

    return stages == 1 or (bool(stacks) and all(map(divides, stacks)))


def num_microbatches(wanted: int, stages: int, rows: int) -> int:
    """Into how many microbatches a pipeline cuts so many rows, a multiple of its stages.

    It is the most that divide them, up to `wanted` (0: four a stage), but at least one a stage.
    """
    most = max(wanted or 4 * stages, stages)
    return max(count for count in range(stages, most + 1, stages) if rows % count == 0)


def pipelined(model: TransformerConfig, stack: StackConfig, through: Callable, x, of_rows, layers):
    """As `through(stack, x, of_rows, layers)[0]`, by stages.

    At tick t stage s works on microbatch t - s. Before its first and after its last one it works on zeros, which go
    nowhere and take no gradient. For the length of a step the devices of a stage hold its weights whole, but for what
    is cut over other axes than those of the batch: these are gathered once, and their gradients are summed up in place
    and reduced once.

    Args:
      model: says into how many microbatches rows are cut.
      through: a pure function; x [b, L, D] of any rows, with what is of them, through the layers of a stack.
      x: [B, L, D].
      of_rows: a tree of arrays [B, …], which go with their rows.
      layers: as of `stack.through_layers`.
    """
    axes = tuple(stage_axes())
    stages = math.prod(stage_axes().values())
    groups = stack.groups and max(stack.groups // stages, 1)
    part = dataclasses.replace(stack, layers=stack.layers // stages, groups=groups)
    # A pipeline is a device of each stage; there are as many as the rows have parts.
    batch_axes = tuple(name for name in partitioning.mesh_axes("batch") if name not in axes)
    pipelines = math.prod(partitioning.mesh_axes("batch")[name] for name in batch_axes)
    microbatches = num_microbatches(model.pipeline_microbatches, stages, len(x) // pipelines)

    def of_pipeline(x, of_rows, params):
        all_stages = jax.vmap(lambda *args: through(part, *args)[0], spmd_axis_name=axes)
        of_stages = params, jax.tree.map(lambda leaf: _cut(leaf, stages), others)

        def tick(held, new):
            held = jax.tree.map(next_stage, held, new)
            x = _placed(all_stages(*held, of_stages), axes)
            return (x, held[1]), x

        new = jax.tree.map(entering, (x, of_rows))
        _, x = jax.lax.scan(tick, jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), new), new)
        return leaving(x)

    def at(stage, leaf):
        """Which of [stages, …] is that stage's."""
        return (jnp.arange(stages) == stage).reshape(-1, *[1] * (leaf.ndim - 1))

    def entering(leaf):
        """[R, …] → [ticks, stages, b, …]: what comes to the first stage at each tick."""
        leaf = _placed(_cut(leaf, microbatches), axes)[:, None]
        leaf = _placed(jnp.where(at(0, leaf[0]), leaf, jnp.zeros_like(leaf)), None, axes)
        return jnp.pad(leaf, [(0, stages - 1)] + [(0, 0)] * (leaf.ndim - 1))

    def leaving(leaf):
        """[ticks, stages, b, …], of which what left the last stage counts → [R, …]."""
        leaf = leaf[stages - 1 :]
        leaf = _placed(jnp.where(at(stages - 1, leaf[0]), leaf, 0).sum(1), axes)
        return leaf.reshape(-1, *leaf.shape[2:])

    def next_stage(old, new):
        moved = jnp.pad(old, [(1, 0)] + [(0, 0)] * (old.ndim - 1))[:-1]
        return _placed(jnp.where(at(0, old), new, moved), axes)

    def of_pipelines(leaf):
        """[B, …] → [pipelines, B / pipelines, …]: outside, rows are cut by stages first. None leaves its device."""
        leaf = leaf.reshape(stages, pipelines, -1, *leaf.shape[1:]).swapaxes(0, 1)
        return leaf.reshape(pipelines, -1, *leaf.shape[3:])

    def of_batch(leaf):
        """The inverse of `of_pipelines`."""
        leaf = leaf.reshape(pipelines, stages, -1, *leaf.shape[2:]).swapaxes(0, 1)
        return leaf.reshape(-1, *leaf.shape[3:])

    def of_each_pipeline(leaf):
        """[layers, …] → [pipelines, stages, layers of one, …]."""
        held = min(stages, stack.groups or stages)
        leaf = jnp.repeat(_cut(leaf, held), stages // held, axis=0)
        return _placed(jnp.broadcast_to(leaf, (pipelines, *leaf.shape)), batch_axes, axes)

    params, others = layers
    params = jax.tree.map(of_each_pipeline, params)
    x, of_rows = jax.tree.map(of_pipelines, (x, of_rows))
    with partitioning.without((*batch_axes, *axes)):
        x = jax.vmap(of_pipeline, spmd_axis_name=batch_axes or None)(x, of_rows, params)
    return constrain(of_batch(x), "batch", "length", "embed")


def _cut(leaf, parts: int):
    """[N, …] → [parts, N / parts, …]."""
    return leaf.reshape(parts, -1, *leaf.shape[1:])


def _placed(leaf, *axes):
    """Cuts the first dimensions along these axes of the mesh, where they divide them; the others as may be."""
    mesh = jax.sharding.get_abstract_mesh()
    cut = [
        names if names and size % math.prod(mesh.shape[name] for name in names) == 0 else None
        for names, size in zip(axes, leaf.shape, strict=False)
    ]
    rest = [PartitionSpec.UNCONSTRAINED] * (leaf.ndim - len(axes))
    return jax.lax.with_sharding_constraint(leaf, PartitionSpec(*cut, *rest))
