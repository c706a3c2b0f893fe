"""A lower bound of a step's time: a roofline (Williams et al. 2009) of the work of its program, and its cost.

    seconds = max(compute, memory, network) + synchronous

`compute` is the products' FLOPs at the chip's peak and the kernels' time by the compiler's schedule, `memory` the bytes
to and from HBM, `network` the bytes sent while other work runs (asynchronous collectives, rings), `synchronous` those
that everything waits for. Each is at the hardware's full speed, and the maximum over the whole program assumes that
all of it overlaps, which no step reaches: by the compiler's own cycles BERT-large takes 1.4 to 2.8 times as long.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from plm_jax.planning import hlo
from plm_jax.training import flops


class KernelCost(NamedTuple):
    """How long a kernel takes, in FLOPs that the chip's peak would do meanwhile.

    Attributes:
      score: for each score of attention, whatever its head_dim.
      product: for each FLOP of its products.
      dropout: for each score besides, where weights are dropped.
    """

    score: float
    product: float
    dropout: float


# Lines through the bundles of the compiler's schedules of a tile of 512 × 512, head_dim 64 to 256, libtpu 0.0.42.1, as
# `benchmarks/kernel_bundles.py` counts them, at 128 FLOPs a cycle and 1,024 scores on v5e and v5p (131,072 a cycle) and
# 512 on v6e. Tiles of 128 take about twice as long; what waits for memory is not in it.
# A backward pass in two, of rows too long for one, takes 0.72 and 0.84 times as long, with 3 and 4 of its 5 products.
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
# Cycles that a multiprocessor takes to issue the instructions of the loops that ptxas 13.5 makes for sm_90a, at a
# head_dim of 64 and 4,096 FLOPs a cycle; backward those without dropout are those with it less the forward pass's
# difference. As if products and all else took turns; what waits for memory is not in it. None of it was timed.
_HOPPER = {
    "triton_forward": KernelCost(553, 1.0, 840),
    "triton_dq": KernelCost(537, 1.0, 840),
    "triton_dkv": KernelCost(647, 1.0, 840),
}
SCHEDULES = {"v4": _OLDER, "v5": _OLDER, "v6": _NEWER, "TPU7x": _NEWER, "H100": _HOPPER, "H200": _HOPPER}
# Of the peak what other kernels' products reach: Splash attention at a head_dim of 64, by its schedule on v5e.
OTHER_KERNELS = 0.375


@dataclass(frozen=True)
class Work:
    """What one device does in a step.

    Attributes:
      product_flops: of the program's products outside of kernels, recomputation included.
      kernel_flops, kernel_scores: of each Pallas kernel, as `flops.kernels` and `flops.scores` count them.
      drops: whether attention weights are dropped.
      hbm_bytes: read from and written to its memory.
      overlapped, synchronous: bytes sent within its slice, by whether other work runs meanwhile.
      between_slices: bytes sent to other slices, whatever their form.
    """

    product_flops: float
    hbm_bytes: float
    overlapped: float
    synchronous: float
    between_slices: float = 0.0
    kernel_flops: Mapping[str, float] = field(default_factory=dict)
    kernel_scores: Mapping[str, float] = field(default_factory=dict)
    drops: bool = False


def work(jaxpr, module: hlo.HloModule, slice_of: Sequence[int], drops: bool = False) -> Work:
    """One device's share of a step, of the traced program and the compiled one.

    Args:
      slice_of: the number of each device's slice, in the order of the mesh.
    """
    devices, collectives = len(slice_of), module.collectives()
    kernel_flops = flops.kernels(jaxpr)

    def sent(wanted: Iterable[hlo.Collective]) -> float:
        return sum(c.sent * c.times for c in wanted)

    within = [c for c in collectives if not crosses(c, slice_of)]
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


def crosses(collective: hlo.Collective, slice_of: Sequence[int]) -> bool:
    """Whether devices of several slices take part."""
    return not collective.groups or any(len({slice_of[device] for device in group}) > 1 for group in collective.groups)


def of_kernels(device_kind: str, work: Work) -> float:
    """The FLOPs that the chip would do at its peak while its kernels run."""
    schedules = next((table for part, table in SCHEDULES.items() if part in device_kind), {})
    total = 0.0
    for name, products in work.kernel_flops.items():
        if name in schedules:
            schedule, scores = schedules[name], work.kernel_scores[name]
            each = schedule.score + (schedule.dropout if work.drops else 0.0)
            total += max(products, scores * each + products * schedule.product)
        else:
            total += products / OTHER_KERNELS
    return total


def estimate(device_kind: str, work: Work) -> dict[str, Any]:
    """Returns the bound as a tree for JSON.

    Returns:
      `seconds`, of which only `optimistic` is known: everything overlaps; `bound`, the longest part; `seconds_alone`,
      by part. There is no MFU, since the bound would overstate it.
    """
    chip = flops.chip(device_kind)
    assert chip is not None  # Every kind that can be compiled for is known.
    overlapping = {
        "compute": (work.product_flops + of_kernels(device_kind, work)) / chip.flops,
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
    """What a token costs: `tokens` a step of so many seconds on chips that cost `price` dollars an hour each."""
    return seconds * chips * price / 3600 / tokens
