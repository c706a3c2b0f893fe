"""Tile sizes of attention kernels on TPUs and GPUs.

TPU tiles were chosen by the number of instruction bundles in the compiler's schedules. benchmarks/kernel_bundles.py
counts these bundles.
"""

from typing import NamedTuple

# Memory budget of a kernel in a core's VMEM, by a substring of jax's device_kind: v4 has 16 MiB, v5p 64, v5e and v6e
# 128 (jax's tpu_info).
_VMEM_BYTES = {"v4": 14 * 2**20, "": 48 * 2**20}


def vmem_bytes(device_kind: str) -> int:
    """Returns the number of bytes of a core's VMEM that a kernel may use.

    Args:
      device_kind: JAX's name of the kind of device, such as `TPU v4`.
    """
    return next(size for part, size in _VMEM_BYTES.items() if part in device_kind)


class Tile(NamedTuple):
    """Tile of a TPU program.

    Attributes:
      queries: number of queries.
      keys: number of keys.
      groups: number of key heads.
    """

    queries: int
    keys: int
    groups: int


def choose(groups: int, repeats: int, head_dim: int, queries: int, keys: int, biased: bool) -> Tile:
    """Returns the tile for `groups` key heads, each of which serves `repeats` query heads.

    Larger tiles take fewer cycles per score, but skip less of a causal row. A program with small tiles has several key
    heads, to amortize the cost of its start. If a key head serves more than 8 query heads, a tile has at most 256
    queries and keys, because the size of a program grows with its number of heads.

    Args:
      queries, keys: numbers of queries and keys in a row.
      biased: whether scores have a bias or vectors by distance. Tiles must then be square.
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
    """Returns the tile length with the fewest cycles per row, by an estimate that includes padding.

    Per score, a tile of length t takes about 1 + 128 / t times as many cycles as a large tile.

    Args:
      length: number of queries or keys in a row.
      many: whether a key head serves more than 8 query heads.
    """
    largest = 256 if many else 640 if length <= 640 else 512
    return min(range(128, largest + 1, 128), key=lambda tile: -(-length // tile) * tile * (1 + 128 / tile))


def queries_fit(queries: int, lanes: int, itemsize: int, device_kind: str) -> bool:
    """Returns whether the gradients of a row's queries fit in half of the VMEM that a kernel may use.

    The gradients are stored once in float32 and twice in the dtype of the output.

    Args:
      queries: number of queries in a row.
      lanes: number of query heads in a program times head_dim.
      itemsize: bytes per element of the output.
    """
    return queries * lanes * (4 + 2 * itemsize) <= vmem_bytes(device_kind) // 2


class GpuTile(NamedTuple):
    """Tile of a GPU program.

    Attributes:
      queries: number of queries.
      keys: number of keys.
      warps: number of warps, for Triton.
      stages: number of pipeline stages, for Triton.
    """

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
    """Returns the tile of a kernel; a head_dim above 256 uses the tile for 256.

    Args:
      kernel: a name from `gpu_terms.tile_name`.
      head_dim: dimension of a head.
    """
    return next((tile for limit, tile in _GPU[kernel].items() if head_dim <= limit), _GPU[kernel][256])
