"""Abstract TPU slices, for which XLA compiles without the hardware."""

import importlib.util
from typing import Any

import jax
from jax.experimental import topologies

from plm_jax.common.errors import UserError
from plm_jax.planning.slices import check, wraps

LIBTPU = "libtpu==0.0.42.1"


def devices(topology: str, slices: int = 1) -> list[Any]:
    """Returns the devices of TPU slices; a v4 or v5p chip is one device, a TPU7x chip two.

    Args:
      topology: topology of each slice, such as `v5p:4x4x4`.
      slices: number of slices.

    Raises:
      UserError: libtpu is missing, or there is no such slice.
    """
    check(topology)
    if slices < 1:
        raise UserError(f"--slices={slices}: pass at least 1")
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(f"the TPU compiler is missing: run pip install '{LIBTPU}', or pass --topology=none")
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
