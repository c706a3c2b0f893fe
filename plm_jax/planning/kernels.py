"""Time of Pallas kernels, estimated from the compilers' schedules."""

from typing import NamedTuple


class KernelCost(NamedTuple):
    """Time of a kernel in FLOPs: the time in seconds multiplied by the chip's peak FLOP/s.

    Attributes:
      score: time per attention score, for any head_dim.
      product: time per FLOP of the matrix products.
      dropout: additional time per attention score if attention weights are dropped.
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
    "flash_forward": KernelCost(397, 0.66, 180),
    "flash_backward": KernelCost(384, 0.83, 169),
    "flash_dq": KernelCost(276, 1.0, 169),
    "flash_dkv": KernelCost(323, 0.87, 169),
}
_NEWER = {
    "flash_forward": KernelCost(1690, 0.75, 430),
    "flash_backward": KernelCost(1792, 0.77, 778),
    "flash_dq": KernelCost(1290, 0.92, 778),
    "flash_dkv": KernelCost(1505, 0.81, 778),
}
# Cycles in which a multiprocessor issues the instructions of the loops that ptxas 13.5 compiles for sm_90a, at a
# head_dim of 64 and 4,096 FLOPs a cycle, as `benchmarks/kernel_instructions.py` counts them. Matrix products and other
# instructions are assumed not to overlap; waiting for memory is not included. None of these numbers was measured.
_HOPPER = {
    "triton_forward": KernelCost(529, 1.0, 473),
    "triton_dq": KernelCost(472, 1.0, 584),
    "triton_dkv": KernelCost(604, 1.0, 504),
}
SCHEDULES = {"v4": _OLDER, "v5": _OLDER, "v6": _NEWER, "TPU7x": _NEWER, "H100": _HOPPER, "H200": _HOPPER}
# Share of the peak that matrix products of other kernels reach: Splash attention at a head_dim of 64 on v5e.
OTHER_KERNELS = 0.375


def flops_at_peak(device_kind: str, name: str, product_flops: float, scores: float, drops: bool) -> float:
    """Returns the time of a kernel in FLOPs: the time in seconds multiplied by the chip's peak FLOP/s.

    If `SCHEDULES` has no entry for the device and the kernel, the kernel's matrix products are assumed to reach the
    share `OTHER_KERNELS` of the peak.

    Args:
      device_kind: JAX's name of the kind of device.
      name: name of the kernel.
      product_flops: FLOPs of the kernel's matrix products.
      scores: number of attention scores.
      drops: whether attention weights are dropped.
    """
    schedules = next((table for part, table in SCHEDULES.items() if part in device_kind), {})
    if name not in schedules:
        return product_flops / OTHER_KERNELS
    schedule = schedules[name]
    flops_per_score = schedule.score + (schedule.dropout if drops else 0.0)
    return max(product_flops, scores * flops_per_score + product_flops * schedule.product)
