"""Lower bound of the time of a step by a roofline model of its program (Williams et al. 2009), and the cost per token.

    seconds = max(compute, memory, network) + synchronous

All terms are times at the hardware's full speed:

- `compute`: matrix products at the chip's peak, and kernels as the compiler schedules them.
- `memory`: traffic to and from HBM.
- `network`: communication while other work runs (asynchronous collectives, rings).
- `synchronous`: communication during which all other work waits.

If there is communication between slices, its time is another argument of the maximum. The bound assumes that all work
of the program overlaps. Real steps take longer: for BERT-large, the more realistic estimate of `step_time` is about
twice as long.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plm_jax.planning import hlo, kernels
from plm_jax.training import flops


@dataclass(frozen=True)
class Work:
    """Work of one device in a step.

    Attributes:
      product_flops: FLOPs of matrix products outside of kernels, including recomputation.
      hbm_bytes: bytes read from and written to HBM.
      overlapped: bytes sent within the slice while other work runs.
      synchronous: bytes sent within the slice while other work waits.
      between_slices: bytes sent to other slices, whether or not other work runs.
      kernel_flops: FLOPs by name of the Pallas kernel, from `flops.kernels`.
      kernel_scores: numbers of attention scores by name of the Pallas kernel, from `flops.scores`.
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
    """Returns the work of one device in a step that was traced and compiled.

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

    within = [c for c in collectives if not hlo.crosses_slices(c, slice_of)]
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


def kernel_flops_at_peak(device_kind: str, work: Work) -> float:
    """Returns the time of all kernels as FLOPs: the time multiplied by the chip's peak FLOP/s.

    The result can be added to the FLOPs of other operations.
    """
    return sum(
        kernels.flops_at_peak(device_kind, name, product_flops, work.kernel_scores.get(name, 0.0), work.drops)
        for name, product_flops in work.kernel_flops.items()
    )


def estimate(device_kind: str, work: Work) -> dict[str, Any]:
    """Returns the lower bound of a step's time, in a form that can be written as JSON.

    Args:
      device_kind: name of a device with an entry in `flops.CHIPS`.

    Returns:
      A dict with three entries: `seconds`, a dict in which `optimistic` is the lower bound; `bound`, the name of the
      longest part of the bound; and `seconds_alone`, the seconds of each part. There is no MFU, because the bound would
      overstate it.
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
    """Returns the cost of a token in dollars.

    Args:
      seconds: time of a step.
      chips: number of chips.
      tokens: number of tokens in a step.
      price: dollars per hour of a chip.
    """
    return seconds * chips * price / 3600 / tokens
