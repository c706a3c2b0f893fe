"""Model FLOPs of a step, and peak figures of devices, from which the MFU is computed."""

import dataclasses
import math
from collections.abc import Callable, Iterator

from jax.extend import core

from plm_jax.models.protocol import ModelConfig


@dataclasses.dataclass(frozen=True)
class Chip:
    """Peak figures of one JAX device.

    For some GPUs only `flops` is known. Their `hbm_bytes` is 0, and their bandwidths are NaN.

    Attributes:
      flops: peak dense bfloat16 FLOP/s.
      hbm_bytes: size of the memory.
      hbm_bandwidth: bandwidth of the memory, in bytes/s.
      network_bandwidth: bytes/s sent to other chips of the slice, over all links together; a host of GPUs counts as a
        slice.
      slice_bandwidth: bytes/s sent to other slices, over the network between them.
      devices: number of JAX devices per chip.
    """

    flops: float
    hbm_bytes: int = 0
    hbm_bandwidth: float = math.nan
    network_bandwidth: float = math.nan
    slice_bandwidth: float = math.nan
    devices: int = 1


# Keys are substrings of JAX's device_kind; the first match counts. TPUs: tables in docs.cloud.google.com/tpu/docs/v4 to
# /v6e and /tpu7x. Their network bandwidth is half of the bidirectional one. Between slices, a v5e has its share of the
# 6.4 Tbit/s of a pod of 256 chips; for v4 no figure is published, so it has that of v5p. GPUs: NVIDIA's data sheets,
# NVLink in one direction. Between hosts, a GPU has all eight 400 Gbit/s adapters of its host, because in a ring over
# hosts only one GPU of each host sends to another host.
_V5E, _V5P, _V6E = (
    Chip(197e12, 16 * 2**30, 819e9, 200e9, 25e9 / 8),
    Chip(459e12, 95 * 2**30, 2765e9, 600e9, 50e9 / 8),
    Chip(918e12, 32 * 2**30, 1640e9, 400e9, 100e9 / 8),
)
CHIPS = {
    "TPU7x": Chip(2307e12 / 2, 96 * 2**30, 7380e9 / 2, 600e9 / 2, 100e9 / 8 / 2, devices=2),
    "v4": Chip(275e12, 32 * 2**30, 1228e9, 300e9, 50e9 / 8),
    "v5 lite": _V5E,
    "v5e": _V5E,
    "v5p": _V5P,
    "v5": _V5P,
    "v6 lite": _V6E,
    "v6e": _V6E,
    "A100": Chip(312e12),
    "H100 PCIe": Chip(756e12),
    "H100 NVL": Chip(835e12),
    "H100": Chip(989e12, 80 * 10**9, 3350e9, 450e9, 400e9),
    "H200": Chip(989e12, 141 * 10**9, 4800e9, 450e9, 400e9),
    "B200": Chip(2250e12),
}


def per_step(
    model: ModelConfig, rows: int, length: int, targets: int, decoder_length: int = 0, samples: int = 0
) -> int:
    """Returns the FLOPs of one training step on `rows` × `length` tokens.

    The FLOPs are three times those of the matrix products in the forward pass. Causal attention counts half, attention
    with a window counts only the keys within the window, and a vocabulary head counts only target positions.
    Recomputation, embedding look-ups and the forward passes of references such as a teacher do not count. The other
    arguments are those of `ModelConfig.macs`.
    """
    return int(3 * 2 * rows * model.macs(length, targets, decoder_length, samples))


def of_program(jaxpr) -> int:
    """Returns the FLOPs of the matrix products of a traced program, on all devices together.

    Every iteration of a `scan` is counted, and so is recomputation. The body of a `while` loop is counted once, because
    its number of iterations is unknown. The FLOPs of a Pallas kernel come from its `cost_estimate` or, without one, are
    the FLOPs of the products in its body times the number of cells in its grid. The FLOPs of cuDNN's attention are
    computed from the shapes, and halved if the attention is causal.
    """
    return sum(times * _products(equation) for equation, times in equations(jaxpr))


def kernels(jaxpr) -> dict[str, int]:
    """Returns the FLOPs of a program's Pallas kernels, by name. `of_program` includes these FLOPs."""
    return _by_kernel(jaxpr, _products)


def scores(jaxpr) -> dict[str, int]:
    """Returns a dict from the name of each Pallas kernel to its number of attention scores.

    The number is that of transcendental operations in the kernel's cost estimate, one per score.
    """
    return _by_kernel(jaxpr, lambda kernel: getattr(kernel.params["cost_estimate"], "transcendentals", 0))


def _by_kernel(jaxpr, counted: Callable[[core.JaxprEqn], int]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for equation, times in equations(jaxpr):
        if equation.primitive.name == "pallas_call":
            name = equation.params["name"] or "unnamed"
            totals[name] = totals.get(name, 0) + times * counted(equation)
    return totals


def equations(jaxpr, times: int = 1) -> Iterator[tuple[core.JaxprEqn, int]]:
    """Yields pairs: an equation of a traced program, and the number of times that it runs on all devices together.

    Only the costliest branch of a `cond` is included. The body of a `while` loop counts as if it ran once.

    Args:
      times: number of times that the program runs.
    """
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        inner = [] if name == "pallas_call" else list(core.jaxprs_in_params(params))
        if not inner:
            yield equation, times
        elif name == "cond":
            yield from equations(max(inner, key=of_program), times)
        else:
            again = {"scan": _trips, "shard_map": _shards}.get(name, lambda _: 1)(params)
            for called in inner:
                yield from equations(called, times * again)


def _trips(params) -> int:
    return params["length"]


def _shards(params) -> int:
    """Returns the number of devices on which a `shard_map` runs its function, each on its own shard."""
    mesh = params["mesh"]
    manual = params.get("newly_manual_axes", params.get("manual_axes", mesh.axis_names))
    return math.prod(mesh.shape[axis] for axis in manual)


def _products(equation: core.JaxprEqn) -> int:
    """Returns the FLOPs of an equation from `equations`; 0 unless it is a matrix product, a convolution or a kernel."""
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        ((contracted, _), _) = params["dimension_numbers"]
        shape = _shape(equation.invars[0])
        return 2 * math.prod(_shape(equation.outvars[0])) * math.prod(shape[axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel, features = _shape(equation.invars[1]), params["dimension_numbers"].rhs_spec[0]
        return 2 * math.prod(_shape(equation.outvars[0])) * math.prod(kernel) // kernel[features]
    if name == "pallas_call":
        if params["cost_estimate"] is not None:
            return params["cost_estimate"].flops
        return math.prod(params["grid_mapping"].grid) * of_program(params["jaxpr"])
    if name.startswith("dot_product_attention_"):
        # The forward pass has two products. The backward pass has five: the scores again, and the gradients of the
        # attention weights, queries, keys and values.
        query_BQNH, key_BKGH = map(_shape, equation.invars[:2])
        products = 2 if "fwd" in name else 5
        divisor = 2 if "CAUSAL" in params["mask_type"].name else 1
        return products * 2 * math.prod(query_BQNH) * key_BKGH[1] // divisor
    return 0


def _shape(operand: core.Var | core.Literal) -> tuple[int, ...]:
    return operand.aval.shape  # pyright: ignore[reportAttributeAccessIssue]


def chip(device_kind: str) -> Chip | None:
    """Returns the figures of a kind of device (JAX's `device_kind`), or None if the kind is unknown."""
    return next((chip for part, chip in CHIPS.items() if part.lower() in device_kind.lower()), None)
