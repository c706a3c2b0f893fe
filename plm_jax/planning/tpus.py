"""Abstract TPU slices, for which XLA compiles without the hardware."""

import fnmatch
from importlib import metadata
from typing import Any

import jax
from jax.experimental import topologies

from plm_jax.common.errors import UserError
from plm_jax.planning.slices import check, wraps


def devices(topology: str, slices: int = 1) -> list[Any]:
    """Returns abstract devices of TPU slices. A TPU7x chip is two devices; any other chip is one device.

    Args:
      topology: topology of each slice, such as `v5p:4x4x4`.
      slices: number of slices.

    Raises:
      UserError: libtpu is missing or does not fit the installed JAX; Google offers no such slice, or the compiler
        rejects it; or `slices` is below 1.
    """
    check(topology)
    if slices < 1:
        raise UserError(f"--slices={slices}: pass at least 1")
    _check_compiler()
    options: dict[str, Any] = {"wrap": wraps(topology)}
    if slices > 1:
        options["num_slices"] = slices
    if topology.startswith("v4:"):
        options["chip_config_name"] = "megacore"  # Both cores of a chip form one device, as on the hardware.
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=topology, **options).devices
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        reason = " ".join((str(error).partition(": ")[2] or str(error)).split())
        raise UserError(f"--topology={topology}: the TPU compiler rejects it: {reason}") from error


def _check_compiler() -> None:
    """Raises a `UserError` unless libtpu is installed in the version that the installed JAX requires."""
    (required,) = (line.partition(";")[0].strip() for line in metadata.requires("jax") or () if "libtpu" in line)
    fix = f"run pip install '{required}', or pass --topology=none"
    try:
        installed = metadata.version("libtpu")
    except metadata.PackageNotFoundError as error:
        raise UserError(f"the TPU compiler is missing: {fix}") from error
    if not fnmatch.fnmatch(f"libtpu=={installed}", required):
        raise UserError(f"libtpu {installed} does not fit jax {metadata.version('jax')}: {fix}")
