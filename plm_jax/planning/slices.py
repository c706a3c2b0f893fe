"""TPU slices that Google offers. Launchers import this file, so it uses no third-party packages."""

import math
import re
from collections.abc import Sequence

from plm_jax.common.errors import UserError

# Slices of v5e and v6e: docs.cloud.google.com/tpu/docs/v5e and /v6e.
_FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
# Slices smaller than a cube of 64 chips. Larger ones are any A ≤ B ≤ C in multiples of 4
# (docs.cloud.google.com/tpu/docs/v4, /v5p, /tpu7x and cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus).
_SMALL = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
# Largest number of chips of a slice, from the same pages.
_LARGEST = {"v4": 4096, "v5p": 6144, "tpu7x": 9216}
GENERATIONS = ("v4", "v5e", "v5p", "v6e", "tpu7x")


def check(topology: str) -> None:
    """Checks that Google offers a slice. The compiler would also accept other slices.

    Raises:
      UserError: the topology is malformed, or Google offers no such slice. In the second case, the message names the
        nearest slice.
    """
    generation, sizes = _parts(topology)
    if generation not in GENERATIONS or not sizes:
        raise UserError(
            f"--topology={topology} is not a TPU slice: pass one such as v5e:4x4, of {', '.join(GENERATIONS)}"
        )
    available = available_slices(generation)
    if sizes not in available:
        chips = math.prod(sizes)

        def distance(other: Sequence[int]) -> tuple[float, int]:
            return abs(math.log(math.prod(other) / max(chips, 1))), sum(other)

        nearest = "x".join(map(str, min(available, key=distance)))
        raise UserError(f"--topology={topology}: there is no such slice; the nearest is {generation}:{nearest}")


def available_slices(generation: str) -> list[tuple[int, ...]]:
    """Returns the slices of a generation, each as a tuple of the numbers of chips along its dimensions."""
    if generation not in _LARGEST:
        return list(_FLAT)
    cubes = _LARGEST[generation] // 64
    return list(_SMALL) + [
        (4 * a, 4 * b, 4 * c)
        for a in range(1, cubes + 1)
        for b in range(a, cubes // a + 1)
        for c in range(b, cubes // (a * b) + 1)
    ]


def wraps(topology: str) -> tuple[bool, ...]:
    """Returns, for each of three dimensions, whether a slice wraps around: whether its last and first chip are linked.

    A v4, v5p or TPU7x slice wraps around in all dimensions if all sizes are multiples of 4, and otherwise in no
    dimension. A v5e or v6e slice wraps around in each dimension of size 16.

    Source: the pages on slice configurations at docs.cloud.google.com/tpu/docs.
    """
    generation, sizes = _parts(topology)
    return (*_wrapped(sizes, generation not in _LARGEST), False, False, False)[:3]


def has_rings(sizes: Sequence[int]) -> bool:
    """Returns whether a slice wraps around in every dimension with more than one chip.

    Args:
      sizes: numbers of chips along x, y and z. Slices of v5e and v6e have one chip along z.
    """
    wrapped = _wrapped(sizes, sizes[2] == 1)
    return all(wrap for size, wrap in zip(sizes, wrapped, strict=True) if size > 1)


def _wrapped(sizes: Sequence[int], is_flat: bool) -> list[bool]:
    return [size == 16 if is_flat else all(size % 4 == 0 for size in sizes) for size in sizes]


def _parts(topology: str) -> tuple[str, tuple[int, ...]]:
    """Parses a topology: `v5p:4x4x8` becomes ("v5p", (4, 4, 8)). Malformed sizes become ()."""
    generation, _, dimensions = topology.partition(":")
    match = re.fullmatch(r"\d+(x\d+)+", dimensions)
    return generation, tuple(int(size) for size in dimensions.split("x")) if match else ()
