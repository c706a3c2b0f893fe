"""Meshes, microbatches and levels of recomputation for a run on given devices, ranked by a closed form.

The closed form is cheap and rough: it decides what is worth compiling, and what is compiled decides. B and L are a
step's rows and their length, D the width, P the parameters; all figures are those of one device.
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

# The share of the peak that products of a training step reach, and of a layer's products those computed twice.
PRODUCTS_SHARE = 0.6
RECOMPUTED = {"none": 0.0, "dots": 0.02, "minimal": 0.1, "attention": 0.25, "full": 0.32, "offload": 0.05}
# Of the activations that a layer's backward pass reads what is kept, besides the layer's input.
KEPT = {"none": 1.0, "dots": 0.6, "minimal": 0.35, "attention": 0.1, "full": 0.0, "offload": 0.05}
LARGEST_TENSOR = 16


class Guess(NamedTuple):
    """The closed form's seconds of a step and bytes of memory."""

    seconds: float
    memory: float


class MeshCandidate(NamedTuple):
    """A run with its settings changed, the changes as they are written on the command line, and what is guessed."""

    settings: dict[str, Any]
    run: config.Run
    guess: Guess


def candidates(
    run: config.Run, stage: config.Phase, parameters: int, chip: flops.Chip, devices: int
) -> list[MeshCandidate]:
    """All that divide the stage's rows and may fit the memory, the fastest guess first."""
    found = []
    for sizes in _meshes(run, stage, devices):
        shards = math.prod(sizes[axis] for axis in ("data", "fsdp", "stage") if axis in sizes)
        if stage.batch_size % shards:
            continue
        for microbatches in _divisors_in_twos(stage.batch_size // shards):
            for remat in run.model.remat_levels:
                guess = guessed(run, stage, parameters, chip, sizes, microbatches, remat)
                if guess.memory > 1.2 * chip.hbm_bytes:
                    continue
                settings = {f"mesh.{axis}": size for axis, size in sizes.items() if size != getattr(run.mesh, axis)}
                settings |= {"train.microbatches": microbatches} if microbatches != stage.microbatches else {}
                settings |= {"model.remat": remat} if remat != run.model.remat else {}
                if settings:
                    found.append(MeshCandidate(settings, changed(run, sizes, microbatches, remat), guess))
    return sorted(found, key=lambda candidate: (candidate.guess.seconds, candidate.guess.memory))


def changed(run: config.Run, sizes: Mapping[str, int], microbatches: int, remat: str) -> config.Run:
    """The run with another mesh, number of microbatches and recomputation, in all its phases."""
    phases = tuple(dataclasses.replace(phase, microbatches=None) for phase in run.train.phases)
    return dataclasses.replace(
        run,
        mesh=dataclasses.replace(run.mesh, **sizes),
        model=run.model.with_speed(remat=remat),
        train=dataclasses.replace(run.train, microbatches=microbatches, phases=phases),
    )


def guessed(
    run: config.Run,
    stage: config.Phase,
    parameters: int,
    chip: flops.Chip,
    sizes: Mapping[str, int],
    microbatches: int,
    remat: str,
) -> Guess:
    """The closed form: of products, memory and what is sent the longest, and a tenth of the others, as nothing overlaps
    wholly; and the bytes of state, two layers' weights and what is kept of activations."""
    data, fsdp, tensor = sizes["data"], sizes["fsdp"], sizes["tensor"]
    context, stages = sizes.get("context", 1), sizes.get("stage", 1)
    tokens, _, _ = phase_costs.row_lengths(run, stage)
    # What one device holds of a layer's activations at a time, [tokens, D], and how many layers it has.
    tokens_at_once = stage.batch_size / (data * fsdp * context * microbatches) * tokens
    width, layers, kept = _shape(run, tokens)
    layers, owned = layers / stages, parameters / stages
    compute = phase_costs.model_flops(run, stage) / math.prod(sizes.values()) * (1 + RECOMPUTED.get(remat, 0.2))
    compute /= chip.flops * PRODUCTS_SHARE
    compute *= 1 + (stages - 1) / microbatches  # Stages wait for the first microbatch and after the last.
    # Weights gathered forward and backward in two bytes, gradients scattered in two; of copies reduced once a step.
    sent = microbatches * 3 * 2 * owned / tensor * _share(fsdp) + 2 * 4 * owned / (fsdp * tensor) * _share(data)
    # Around each of a layer's two blocks one gather and one scatter, forward, backward and recomputed.
    layer_bytes = microbatches * tokens_at_once * layers * 2
    sent += layer_bytes * width * (8 + 4 * RECOMPUTED.get(remat, 0.2)) * _share(tensor)
    sent += layer_bytes * width * context * 6 * _share(context)
    # Gathered weights are read for each product, gradients added up, parameters and moments read and written once.
    moved = microbatches * (3 * 2 * owned / tensor + 12 * owned / (fsdp * tensor)) + 28 * owned / (fsdp * tensor)
    moved += microbatches * tokens_at_once * layers * 2 * 3 * (width + kept / tensor)
    # Parameters, moments and gradients in float32, two layers' weights, activations in two bytes.
    memory = 16 * owned / (fsdp * tensor) + 2 * 2 * 2 * owned / max(layers, 1) / tensor
    memory += tokens_at_once * layers * 2 * (width + kept * KEPT.get(remat, 0.5) / tensor)
    memory += tokens_at_once * 2 * kept / tensor
    seconds = (compute, moved / chip.hbm_bandwidth, sent / chip.network_bandwidth)
    return Guess(0.9 * max(seconds) + 0.1 * sum(seconds), memory)


def _shape(run: config.Run, tokens: int) -> tuple[int, int, int]:
    """Width, layers, and the numbers a token that the backward pass of a layer reads."""
    model = run.model
    if not isinstance(model, TransformerConfig):
        return 1024, 1, 8 * 1024
    layers = model.stack.blocks + (model.decoder_stack.blocks if isinstance(model, EncoderDecoderConfig) else 0)
    attention, feed_forward = model.attention, model.feed_forward
    joined = attention.head_dim * (2 * attention.heads + 2 * attention.num_kv_heads)
    kept = 4 * model.embedding.width + joined + feed_forward.width * (3 if feed_forward.gated else 2)
    return model.embedding.width, layers, kept


def _meshes(run: config.Run, stage: config.Phase, devices: int) -> Iterator[dict[str, int]]:
    """Meshes worth a guess: `tensor` within a layer's heads, `context` for rows longer than there are to cut up."""
    model = run.model
    heads = model.attention.num_kv_heads if isinstance(model, TransformerConfig) else 1
    tensors = [size for size in _powers(min(LARGEST_TENSOR, devices)) if heads % size == 0]
    contexts = [size for size in _powers(16) if stage.length % (2 * size) == 0 and (size == 1 or stage.length >= 8192)]
    stages = [size for size in _powers(16) if cuts(model.stacks, size)]
    for tensor, context, pipeline in itertools.product(tensors, contexts, stages):
        left, rest = divmod(devices, tensor * context * pipeline)
        if rest:
            continue
        for data in _divisors_in_twos(left):
            sizes = {"stage": pipeline, "data": data, "fsdp": left // data, "tensor": tensor, "context": context}
            yield {axis: sizes[axis] for axis in meshes.AXES}


def _powers(limit: int) -> list[int]:
    return [2**exponent for exponent in range(limit.bit_length())]


def _divisors_in_twos(number: int) -> list[int]:
    """1, 2, 4, … as far as they divide, and the number itself."""
    return sorted({size for size in _powers(number) if number % size == 0} | {number})


def _share(parts: int) -> float:
    return (parts - 1) / parts
