"""TPU slices that need not be there: devices that XLA compiles for."""

import importlib.util
from typing import Any

import jax
from jax.experimental import topologies

from plm_jax.common.errors import UserError
from plm_jax.planning.slices import check, wraps

LIBTPU = "libtpu==0.0.42.1"


def devices(topology: str, slices: int = 1) -> list[Any]:
    """The devices of a TPU slice, or of several; a v4 or v5p chip is one device, a TPU7x chip two.

    Args:
      topology: of each slice, as in `v5p:4x4x4`.

    Raises:
      UserError: libtpu is missing, or Google offers no such slice.
    """
    check(topology)
    if slices < 1:
        raise UserError(f"--slices={slices}: give at least 1")
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(f"the TPU compiler is missing: pip install '{LIBTPU}', or give --topology=none")
    options: dict[str, Any] = {"wrap": wraps(topology)}
    if slices > 1:
        options["num_slices"] = slices
    if topology.startswith("v4:"):
        options["chip_config_name"] = "megacore"  # Both cores of a chip are one device, as in a job on it.
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=topology, **options).devices
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        reason = " ".join((str(error).partition(": ")[2] or str(error)).split())
        raise UserError(f"--topology={topology}: the TPU compiler does not know it: {reason}") from error
