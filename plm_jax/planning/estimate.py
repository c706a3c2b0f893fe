"""Lower bound of the time of a step, a roofline (Williams et al. 2009) of the work of its program, and its cost.

    seconds = max(compute, memory, network) + synchronous

`compute` is the FLOPs of matrix products at the chip's peak plus the time of kernels by the compiler's schedule,
`memory` the bytes to and from HBM, `network` the bytes sent while other work runs (asynchronous collectives, rings),
and `synchronous` the bytes that all other work waits for. Each is at the hardware's full speed, and the maximum over
the whole program assumes that everything overlaps, which no step reaches: by the compiler's own cycle counts
BERT-large takes 1.4 to 2.8 times as long.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from plm_jax.planning import hlo
from plm_jax.training import flops


class KernelCost(NamedTuple):
    """Time of a kernel, in FLOPs that the chip would execute at its peak in the same time.

    Attributes:
      score: time per score of attention, for any head_dim.
      product: time per FLOP of the matrix products.
      dropout: additional time per score with dropout of attention weights.
    """

    score: float
    product: float
    dropout: float


# Linear fits to the bundle counts of the compiler's schedules of a 512 × 512 tile, head_dim 64 to 256, libtpu 0.0.42.1,
# as `benchmarks/kernel_bundles.py` counts them, at 128 FLOPs a cycle and 1,024 scores on v5e and v5p (131,072 a cycle)
# and 512 on v6e. Tiles of 128 take about twice as long; waiting for memory is not included.
# A backward pass in two kernels, for rows too long for one, takes 0.72 and 0.84 times as long, with 3 and 4 of the 5
# products.
_OLDER = {
    "flash_forward": KernelCost(397, 0.66, 282),
    "flash_backward": KernelCost(384, 0.83, 333),
    "flash_dq": KernelCost(276, 1.0, 333),
    "flash_dkv": KernelCost(323, 0.87, 333),
}
_NEWER = {
    "flash_forward": KernelCost(1690, 0.75, 900),
    "flash_backward": KernelCost(1792, 0.77, 1434),
    "flash_dq": KernelCost(1290, 0.92, 1434),
    "flash_dkv": KernelCost(1505, 0.81, 1434),
}
# Cycles in which a multiprocessor issues the instructions of the loops that ptxas 13.5 compiles for sm_90a, at a
# head_dim of 64 and 4,096 FLOPs a cycle. Backward counts without dropout are those with dropout minus the difference in
# the forward pass. Matrix products and other instructions are assumed not to overlap; waiting for memory is not
# included. None of these numbers was measured.
_HOPPER = {
    "triton_forward": KernelCost(553, 1.0, 840),
    "triton_dq": KernelCost(537, 1.0, 840),
    "triton_dkv": KernelCost(647, 1.0, 840),
}
SCHEDULES = {"v4": _OLDER, "v5": _OLDER, "v6": _NEWER, "TPU7x": _NEWER, "H100": _HOPPER, "H200": _HOPPER}
# Share of the peak that matrix products of other kernels reach: Splash attention at a head_dim of 64 on v5e.
OTHER_KERNELS = 0.375


@dataclass(frozen=True)
class Work:
    """Work of one device in a step.

    Attributes:
      product_flops: FLOPs of matrix products outside of kernels, including recomputation.
      hbm_bytes: bytes read from and written to HBM.
      overlapped: bytes sent within the slice while other work runs.
      synchronous: bytes sent within the slice while other work waits.
      between_slices: bytes sent to other slices, in any form.
      kernel_flops: FLOPs of each Pallas kernel, from `flops.kernels`.
      kernel_scores: scores of each Pallas kernel, from `flops.scores`.
      drops: whether attention weights are dropped.
    """

    product_flops: float
    hbm_bytes: float
    overlapped: float
    synchronous: float
    between_slices: float = 0.0
    kernel_flops: Mapping[str, float] = field(default_factory=dict)
    kernel_scores: Mapping[str, float] = field(default_factory=dict)
    drops: bool = False


def measure_work(jaxpr, module: hlo.HloModule, slice_of: Sequence[int], drops: bool = False) -> Work:
    """Returns one device's share of the work of a traced and compiled step.

    Args:
      jaxpr: traced program.
      module: compiled program.
      slice_of: index of each device's slice, in the order of the mesh.
      drops: whether attention weights are dropped.
    """
    devices, collectives = len(slice_of), module.collectives()
    kernel_flops = flops.kernels(jaxpr)

    def sent(selected: Iterable[hlo.Collective]) -> float:
        return sum(c.sent * c.times for c in selected)

    within = [c for c in collectives if not crosses_slices(c, slice_of)]
    synchronous = [c for c in within if c.form == "synchronous"]
    return Work(
        product_flops=(flops.of_program(jaxpr) - sum(kernel_flops.values())) / devices,
        hbm_bytes=module.hbm_bytes(),
        overlapped=sent(within) - sent(synchronous),
        synchronous=sent(synchronous),
        between_slices=sent(collectives) - sent(within),
        kernel_flops={name: count / devices for name, count in kernel_flops.items()},
        kernel_scores={name: count / devices for name, count in flops.scores(jaxpr).items()},
        drops=drops,
    )


def crosses_slices(collective: hlo.Collective, slice_of: Sequence[int]) -> bool:
    """Whether a collective involves devices of several slices."""
    return not collective.groups or any(len({slice_of[device] for device in group}) > 1 for group in collective.groups)


def kernel_flops_at_peak(device_kind: str, work: Work) -> float:
    """Returns the time of the kernels, in FLOPs that the chip would execute at its peak in the same time."""
    schedules = next((table for part, table in SCHEDULES.items() if part in device_kind), {})
    total = 0.0
    for name, product_flops in work.kernel_flops.items():
        if name in schedules:
            schedule, scores = schedules[name], work.kernel_scores[name]
            flops_per_score = schedule.score + (schedule.dropout if work.drops else 0.0)
            total += max(product_flops, scores * flops_per_score + product_flops * schedule.product)
        else:
            total += product_flops / OTHER_KERNELS
    return total


def estimate(device_kind: str, work: Work) -> dict[str, Any]:
    """Returns the lower bound as a tree for JSON.

    Returns:
      `seconds`, with the key `optimistic`, if everything overlaps; `bound`, the longest part; `seconds_alone`, by part.
      There is no MFU, because the bound would overstate it.
    """
    chip = flops.chip(device_kind)
    assert chip is not None  # Every device kind with a compiler is known.
    overlapping = {
        "compute": (work.product_flops + kernel_flops_at_peak(device_kind, work)) / chip.flops,
        "memory": work.hbm_bytes / chip.hbm_bandwidth,
        "network": work.overlapped / chip.network_bandwidth,
    }
    if work.between_slices:
        overlapping["between slices"] = work.between_slices / chip.slice_bandwidth
    alone = overlapping | {"synchronous": work.synchronous / chip.network_bandwidth}
    seconds = max(overlapping.values()) + alone["synchronous"]
    return {
        "seconds": {"optimistic": seconds},
        "bound": max(alone, key=lambda part: alone[part]),
        "seconds_alone": alone,
    }


def dollars_per_token(seconds: float, chips: float, tokens: int, price: float) -> float:
    """Returns the cost of a token, from the seconds and tokens of a step and the hourly price of a chip in dollars."""
    return seconds * chips * price / 3600 / tokens
