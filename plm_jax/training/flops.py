"""Model FLOPs, counted, and what devices can do: together the MFU."""

import dataclasses
import math

from jax.extend import core

from plm_jax import config
from plm_jax.models.protocol import Model


@dataclasses.dataclass(frozen=True)
class Chip:
    """What one device can do; None where only its peak was of interest.

    Attributes:
      flops: peak dense bfloat16 FLOP/s.
      hbm_bytes: its memory.
      hbm_bandwidth: bytes a second to and from it.
      network_bandwidth: bytes a second that it sends to the other chips of its slice, all links together.
    """

    flops: float
    hbm_bytes: int | None = None
    hbm_bandwidth: float | None = None
    network_bandwidth: float | None = None


# By a part of jax's device_kind, the first that fits. TPUs: the tables of docs.cloud.google.com/tpu/docs/v4 to /v6e
# (interconnect: half of the bandwidth of both directions); GPUs: NVIDIA's data sheets.
_V5E, _V5P, _V6E = (
    Chip(197e12, 16 * 2**30, 819e9, 200e9),
    Chip(459e12, 95 * 2**30, 2765e9, 600e9),
    Chip(918e12, 32 * 2**30, 1640e9, 400e9),
)
CHIPS = {
    "v4": Chip(275e12, 32 * 2**30, 1228e9, 300e9),
    "v5 lite": _V5E,
    "v5e": _V5E,
    "v5p": _V5P,
    "v5": _V5P,
    "v6 lite": _V6E,
    "v6e": _V6E,
    "A100": Chip(312e12),
    "H100 PCIe": Chip(756e12),
    "H100 NVL": Chip(835e12),
    "H100": Chip(989e12),
    "H200": Chip(989e12),
    "B200": Chip(2250e12),
}


def per_step(model: Model, rows: int, length: int, targets: int, decoder_length: int = 0, samples: int = 0) -> int:
    """FLOPs of one training step on `rows` × `length` tokens; further arguments as `Model.products`.

    Matrix products of the forward pass × 3, causal attention halved, of layers with windows the keys within them, no
    recomputation, no embedding look-up, the head at target positions only.
    """
    return int(3 * 2 * rows * model.products(length, targets, decoder_length, samples))


def of_stage(run: config.Run, stage: config.Stage) -> int:
    """FLOPs of one training step of a stage, counted as in `per_step`."""
    tokens, targets, decoder_length = row_lengths(run, stage)
    return per_step(
        run.model, stage.batch_size, tokens - decoder_length, targets, decoder_length, run.objective.negative_samples
    )


def row_lengths(run: config.Run, stage: config.Stage) -> tuple[int, int, int]:
    """Of a row of a stage: its tokens, target positions, and how many of the tokens are an encoder-decoder's second."""
    targets = config.target_length(run, stage.length)
    decoder_length = targets if run.model.has_decoder else 0
    return run.objective.row_length(stage.length) + decoder_length, targets, decoder_length


def of_program(jaxpr) -> int:
    """FLOPs of the matrix products of a traced program: loops as often as they run, recomputation as written."""
    total = 0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            ((contracted, _), _) = params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            total += 2 * equation.outvars[0].aval.size * math.prod(shape[axis] for axis in contracted)
        elif name == "conv_general_dilated":
            kernel, features = equation.invars[1].aval, params["dimension_numbers"].rhs_spec[0]
            total += 2 * equation.outvars[0].aval.size * kernel.size // kernel.shape[features]
        elif name == "pallas_call":
            total += int(getattr(params["cost_estimate"], "flops", 0))
        else:
            times = {"scan": lambda p: p["length"], "shard_map": lambda p: p["mesh"].size}.get(name, lambda _: 1)
            inner = [of_program(j) for j in core.jaxprs_in_params(params)]
            total += times(params) * (max(inner, default=0) if name == "cond" else sum(inner))
    return total


def chip(device_kind: str) -> Chip | None:
    """What a device of this kind can do, None where it is not known."""
    return next((chip for part, chip in CHIPS.items() if part.lower() in device_kind.lower()), None)
