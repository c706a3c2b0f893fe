"""Meshes, microbatches and levels of recomputation for a run on some devices, ranked by a closed-form estimate.

The estimate is cheap and rough. It only selects the candidates to compile; the compiled programs decide.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from plm_jax import config
from plm_jax.models import EncoderDecoderConfig, TransformerConfig
from plm_jax.models.pipeline import cuts
from plm_jax.runs import phase_costs
from plm_jax.training import flops
from plm_jax.training import mesh as meshes

# Share of the peak that matrix products of a training step reach, and share of a layer's products that is recomputed.
PRODUCTS_SHARE = 0.6
RECOMPUTED = {"none": 0.0, "dots": 0.02, "minimal": 0.1, "attention": 0.25, "full": 0.32, "offload": 0.05}
# Share of the activations of a layer's backward pass that is stored, not counting the layer's input.
STORED_ACTIVATIONS = {"none": 1.0, "dots": 0.6, "minimal": 0.35, "attention": 0.1, "full": 0.0, "offload": 0.05}
LARGEST_TENSOR = 16


class CostEstimate(NamedTuple):
    """Estimated cost of a step.

    Attributes:
      seconds: seconds of a step.
      memory: bytes of memory of a device.
    """

    seconds: float
    memory: float


class MeshCandidate(NamedTuple):
    """A run with changed settings.

    Attributes:
      settings: changed settings by config field.
      run: the changed run.
      cost: estimated cost of a step of the changed run.
    """

    settings: dict[str, Any]
    run: config.Run
    cost: CostEstimate


def candidates(
    run: config.Run, phase: config.Phase, parameters: int, chip: flops.Chip, devices: int
) -> list[MeshCandidate]:
    """Returns changes of the mesh, microbatches and recomputation of a run, in ascending order of estimated time.

    In each candidate, the batch size of the phase is a multiple of the number of shards of a batch. Candidates with an
    estimated memory of more than 1.2 times the memory of a device are left out; the factor is above 1 because the
    estimate is rough. The unchanged run is left out, unless its phases have meshes of their own.

    Args:
      phase: phase of the run for which costs are estimated.
      parameters: number of parameters.
      devices: number of devices.
    """
    ranked = []
    mesh_changes, run = with_one_mesh(run, phase)
    for sizes in _meshes(run, phase, devices):
        shards = math.prod(sizes[axis] for axis in ("data", "fsdp", "stage") if axis in sizes)
        if phase.batch_size % shards:
            continue
        for microbatches in _divisors(phase.batch_size // shards):
            for remat in run.model.remat_levels:
                cost = estimate_cost(run, phase, parameters, chip, sizes, microbatches, remat)
                if cost.memory > 1.2 * chip.hbm_bytes:
                    continue
                settings = {f"mesh.{axis}": size for axis, size in sizes.items() if size != getattr(run.mesh, axis)}
                settings = mesh_changes | settings
                counts, changed = with_settings(run, phase, sizes, shards, microbatches, remat)
                settings |= counts if microbatches != phase.microbatches else {}
                settings |= {"model.remat": remat} if remat != run.model.remat else {}
                if settings:
                    ranked.append(MeshCandidate(settings, changed, cost))
    return sorted(ranked, key=lambda candidate: (candidate.cost.seconds, candidate.cost.memory))


def with_one_mesh(run: config.Run, phase: config.Phase) -> tuple[dict[str, Any], config.Run]:
    """Gives all phases of a run the mesh of `phase`.

    Returns:
      A pair: the changed settings by config field, which are empty if no phase has a mesh of its own; and the run.
    """
    mesh = config.mesh_of(run, phase)
    changes = config.differences(config.to_dict(run.mesh), config.to_dict(mesh), "mesh")
    settings: dict[str, Any] = {change.field: change.now for change in changes}
    settings |= {f"train.phases.{index}.mesh": None for index, each in enumerate(run.train.phases) if each.mesh}
    phases = tuple(dataclasses.replace(each, mesh=None) for each in run.train.phases)
    return settings, dataclasses.replace(run, mesh=mesh, train=dataclasses.replace(run.train, phases=phases))


def with_settings(
    run: config.Run, phase: config.Phase, sizes: Mapping[str, int], shards: int, microbatches: int, remat: str
) -> tuple[dict[str, int], config.Run]:
    """Changes the mesh, the number of microbatches and the level of recomputation of a run.

    Args:
      phase: phase of the run that gets `microbatches` microbatches. Every other phase gets the smallest number of
        microbatches for which a microbatch has at most as many tokens as a microbatch of `phase`. If there is no such
        number, its microbatches have one row per shard.
      sizes: sizes of axes of the mesh, by name; other axes do not change.
      shards: number of shards over which the rows of a batch are divided.

    Returns:
      A pair: the numbers of microbatches by config field, which is `train.microbatches` or fields such as
      `train.phases.0.microbatches`; and the changed run.
    """
    run = dataclasses.replace(run, mesh=dataclasses.replace(run.mesh, **sizes), model=run.model.with_speed(remat=remat))
    tokens = phase.batch_size // microbatches * phase.length

    def count(other: config.Phase) -> int:
        rows = max(1, other.batch_size // shards)
        fitting = (n for n in range(1, rows) if rows % n == 0 and other.batch_size // n * other.length <= tokens)
        return next(fitting, rows)

    counts = [microbatches if other == phase else count(other) for other in config.resolve_phases(run)]
    if len(set(counts)) == 1 and all(each.microbatches is None for each in run.train.phases):
        train = dataclasses.replace(run.train, microbatches=microbatches)
        return {"train.microbatches": microbatches}, dataclasses.replace(run, train=train)
    phases = [dataclasses.replace(each, microbatches=n) for each, n in zip(run.train.phases, counts, strict=True)]
    settings = {f"train.phases.{index}.microbatches": n for index, n in enumerate(counts)}
    return settings, dataclasses.replace(run, train=dataclasses.replace(run.train, phases=tuple(phases)))


def estimate_cost(
    run: config.Run,
    phase: config.Phase,
    parameters: int,
    chip: flops.Chip,
    sizes: Mapping[str, int],
    microbatches: int,
    remat: str,
) -> CostEstimate:
    """Estimates the cost of a step in closed form.

    The time is the longest of three times (computation, memory traffic and communication), plus a tenth of the two
    other times, because overlap is imperfect. The memory is the sum of the state, the weights of two layers, the stored
    activations, and all activations of one layer.

    Args:
      sizes: sizes of the axes of the mesh, by name; `context` and `stage` are 1 if they are missing.
    """
    data, fsdp, tensor = sizes["data"], sizes["fsdp"], sizes["tensor"]
    context, pipeline_stages = sizes.get("context", 1), sizes.get("stage", 1)
    tokens, _, _ = phase_costs.row_lengths(run, phase)
    # Tokens of a microbatch on one device.
    tokens_at_once = phase.batch_size / (data * fsdp * context * microbatches) * tokens
    width, layers, activations = _shape(run, tokens)
    layers, weights = layers / pipeline_stages, parameters / pipeline_stages
    compute = phase_costs.model_flops(run, phase) / math.prod(sizes.values()) * (1 + RECOMPUTED.get(remat, 0.2))
    compute /= chip.flops * PRODUCTS_SHARE
    compute *= 1 + (pipeline_stages - 1) / microbatches  # Pipeline bubble at the first and last microbatch.
    # Two-byte weights gathered forward and backward, two-byte gradients scattered; gradients of replicas reduced once.
    sent = microbatches * 3 * 2 * weights / tensor * _share(fsdp) + 2 * 4 * weights / (fsdp * tensor) * _share(data)
    # One gather and one scatter around each of a layer's two blocks: forward, backward and recomputed.
    layer_bytes = microbatches * tokens_at_once * layers * 2
    sent += layer_bytes * width * (8 + 4 * RECOMPUTED.get(remat, 0.2)) * _share(tensor)
    sent += layer_bytes * width * context * 6 * _share(context)
    # Gathered weights read by each product, gradients accumulated, parameters and moments read and written once.
    moved = microbatches * (3 * 2 * weights / tensor + 12 * weights / (fsdp * tensor)) + 28 * weights / (fsdp * tensor)
    moved += microbatches * tokens_at_once * layers * 2 * 3 * (width + activations / tensor)
    # Parameters, moments and gradients in float32, weights of two layers and activations in two bytes.
    memory = 16 * weights / (fsdp * tensor) + 2 * 2 * 2 * weights / max(layers, 1) / tensor
    memory += tokens_at_once * layers * 2 * (width + activations * STORED_ACTIVATIONS.get(remat, 0.5) / tensor)
    memory += tokens_at_once * 2 * activations / tensor
    seconds = (compute, moved / chip.hbm_bandwidth, sent / chip.network_bandwidth)
    return CostEstimate(0.9 * max(seconds) + 0.1 * sum(seconds), memory)


def _shape(run: config.Run, tokens: int) -> tuple[int, int, int]:
    """Returns three numbers: the width, the number of layers, and the number of activations per token and layer.

    Only activations that the backward pass of a layer reads are counted. The numbers of a model that is not a
    transformer are guesses.
    """
    model = run.model
    if not isinstance(model, TransformerConfig):
        return 1024, 1, 8 * 1024
    layers = model.stack.blocks + (model.decoder_stack.blocks if isinstance(model, EncoderDecoderConfig) else 0)
    attention, feed_forward = model.attention, model.feed_forward
    projections = attention.head_dim * (2 * attention.heads + 2 * attention.num_kv_heads)
    activations = 4 * model.embedding.width + projections + feed_forward.width * (3 if feed_forward.gated else 2)
    return model.embedding.width, layers, activations


def _meshes(run: config.Run, phase: config.Phase, devices: int) -> Iterator[dict[str, int]]:
    """Yields plausible meshes, as dicts from axes to sizes.

    The size of `tensor` divides the number of key/value heads. The axis `context` is only used for rows of at least
    8192 tokens.
    """
    model = run.model
    heads = model.attention.num_kv_heads if isinstance(model, TransformerConfig) else 1
    tensors = [size for size in _powers(min(LARGEST_TENSOR, devices)) if heads % size == 0]
    length = config.in_phase(run, phase).objective.row_length(phase.length)
    contexts = [size for size in _powers(16) if size == 1 or (length >= 8192 and length % (2 * size) == 0)]
    pipeline_sizes = [size for size in _powers(16) if cuts(model, size)]
    for tensor, context, pipeline in itertools.product(tensors, contexts, pipeline_sizes):
        remaining, rest = divmod(devices, tensor * context * pipeline)
        if rest:
            continue
        for data in _divisors(remaining):
            sizes = {"stage": pipeline, "data": data, "fsdp": remaining // data, "tensor": tensor, "context": context}
            yield {axis: sizes[axis] for axis in meshes.AXES}


def _powers(limit: int) -> list[int]:
    return [2**exponent for exponent in range(limit.bit_length())]


def _divisors(number: int) -> list[int]:
    """Returns the powers of two that divide a number, and the number itself, in ascending order."""
    return sorted({size for size in _powers(number) if number % size == 0} | {number})


def _share(parts: int) -> float:
    return (parts - 1) / parts
