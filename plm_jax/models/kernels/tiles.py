"""Tile sizes of attention kernels on TPUs and GPUs.

Tiles of TPUs are chosen by the bundles in the compiler's schedules, as counted by benchmarks/kernel_bundles.py.
"""

from typing import NamedTuple

# Memory budget of a kernel in a core's VMEM, by a substring of jax's device_kind: v4 has 16 MiB, v5p 64, v5e and v6e
# 128 (jax's tpu_info).
_VMEM_BYTES = {"v4": 14 * 2**20, "": 48 * 2**20}


def vmem_bytes(device_kind: str) -> int:
    """Returns the memory budget of a kernel in a core's VMEM."""
    return next(size for part, size in _VMEM_BYTES.items() if part in device_kind)


class Tile(NamedTuple):
    """Tile of a TPU program: numbers of queries, of keys and of key heads."""

    queries: int
    keys: int
    groups: int


def choose(groups: int, repeats: int, head_dim: int, queries: int, keys: int, biased: bool) -> Tile:
    """Returns the tile for G key heads, each of which serves `repeats` heads of queries.

    Larger tiles take fewer cycles per score, but skip less of a causal row. Small tiles have several heads at a time,
    to amortize the start of a program; with very many heads they are smaller, as the size of the program grows with its
    heads.

    Args:
      biased: whether tiles must be square.
    """
    of_queries, of_keys = (_tile_length(length, many=repeats > 8) for length in (queries, keys))
    if biased:
        of_queries = of_keys = min(of_queries, of_keys)
    # Blocks must be whole registers of 128 lanes, or all heads.
    together = next((n for n in range(1, groups) if n * head_dim % 128 == 0), groups)
    while together < groups and of_queries * of_keys * together * repeats < 2**18:
        together = min(2 * together, groups)
    return Tile(of_queries, of_keys, together)


def _tile_length(length: int, many: bool) -> int:
    """Returns the tile length with the fewest cycles per row, padding and the overhead of small tiles included.

    A tile of length t takes about 1 + 128 / t times the cycles per score of a large one.
    """
    largest = 256 if many else 640 if length <= 640 else 512
    return min(range(128, largest + 1, 128), key=lambda tile: -(-length // tile) * tile * (1 + 128 / tile))


def queries_fit(queries: int, lanes: int, itemsize: int, device_kind: str) -> bool:
    """Returns whether the gradients of a row's queries fit in VMEM: once in float32, twice in the output's dtype."""
    return queries * lanes * (4 + 2 * itemsize) <= vmem_bytes(device_kind) // 2


class GpuTile(NamedTuple):
    """Tile of a GPU program: numbers of queries and of keys, and Triton's numbers of warps and stages."""

    queries: int
    keys: int
    warps: int
    stages: int


# Tiles by kernel and maximum head_dim. Chosen by the output of ptxas 13.5 for sm_90a and published families: no
# register spills at 64 and 128 (gradients at 256, which no family has, do spill), and if possible two programs per
# multiprocessor, so that one computes weights while the other multiplies. They have not been timed on a GPU.
_GPU = {
    "triton_forward": {64: GpuTile(128, 64, 4, 3), 128: GpuTile(128, 64, 8, 2), 256: GpuTile(64, 64, 4, 2)},
    "triton_dq": {64: GpuTile(64, 64, 4, 2), 128: GpuTile(64, 64, 4, 2), 256: GpuTile(128, 32, 8, 1)},
    "triton_dkv": {64: GpuTile(64, 64, 4, 2), 128: GpuTile(64, 64, 8, 2), 256: GpuTile(64, 64, 8, 1)},
    "triton_dbias": {64: GpuTile(64, 64, 4, 2), 128: GpuTile(64, 64, 4, 2), 256: GpuTile(32, 32, 4, 1)},
    # The kernels that multiply with vectors by distance, and those of the gradients of these vectors, which spill above
    # a head_dim of 64.
    "triton_relative": {256: GpuTile(32, 32, 4, 2)},
    "triton_dvectors": {256: GpuTile(32, 32, 8, 1)},
}


def on_gpu(kernel: str, head_dim: int) -> GpuTile:
    """Returns the tile of a kernel of `gpu`; a head_dim above 256 uses the tile for 256."""
    return next((tile for limit, tile in _GPU[kernel].items() if head_dim <= limit), _GPU[kernel][256])
