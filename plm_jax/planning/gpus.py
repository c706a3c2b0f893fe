"""Abstract NVIDIA GPUs, for which XLA compiles without the hardware.

`targets/KIND.txtpb` describes a GPU to the compiler: XLA's `GpuTargetConfigProto` as text.
"""

import importlib.util
import os
import pathlib
import re
from typing import Any

from jax.experimental import topologies

from plm_jax.common import extras
from plm_jax.common.errors import UserError

# Number of GPUs in an HGX or DGX host, connected by NVLink.
GPUS_PER_HOST = 8
# Properties that cannot be determined without a GPU.
UNASKED = "whether cuDNN supports these shapes, and which matrix products are fastest; this needs a GPU"
# Share of a GPU's memory that JAX uses by default (docs.jax.dev/en/latest/gpu_memory_allocation.html).
MEMORY_SHARE = 0.75
_TARGETS = pathlib.Path(__file__).parent / "targets"


def devices(topology: str, slices: int = 1) -> list[Any]:
    """Returns abstract GPUs: several hosts of eight GPUs, or one host of at most eight GPUs.

    Args:
      topology: `gpu:KIND:COUNT`, such as `gpu:h100:8`.
      slices: number of slices, which must be 1.

    Raises:
      UserError: the compiler is missing, the topology is invalid, or `slices` is not 1.
    """
    if slices != 1:
        raise UserError(f"--slices={slices} applies to TPUs only: pass the total number of GPUs, such as gpu:h100:16")
    match = re.fullmatch(r"gpu:(\w+):(\d+)", topology)
    kinds = sorted(path.stem for path in _TARGETS.glob("*.txtpb"))
    count = int(match[2]) if match else 0
    hosts = max(1, count // GPUS_PER_HOST)
    if match is None or match[1] not in kinds or count == 0 or count % hosts or count // hosts > GPUS_PER_HOST:
        raise UserError(
            f"--topology={topology}: pass gpu:KIND:COUNT, such as gpu:h100:{GPUS_PER_HOST}, with KIND "
            f"{' or '.join(kinds)} and COUNT at most {GPUS_PER_HOST} or a multiple of it"
        )
    if importlib.util.find_spec("jax_cuda13_plugin") is None:
        raise UserError(f"the compiler for NVIDIA GPUs is missing: {extras.fix('gpu-plan')}, or pass --topology=none")
    return topologies.get_topology_desc(
        platform="cuda",
        target_config=(_TARGETS / f"{match[1]}.txtpb").read_text(),
        topology=f"1x{hosts}x{count // hosts}",
    ).devices


def memory_share() -> float:
    """Returns the share of a GPU's memory that JAX uses, 0.75 by default.

    The environment variables XLA_CLIENT_MEM_FRACTION and XLA_PYTHON_CLIENT_MEM_FRACTION override the default; the first
    one that is set decides.

    Raises:
      UserError: the variable is not a number above 0 and at most 1.
    """
    names = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
    name, value = next(((name, os.environ[name]) for name in names if os.environ.get(name)), ("", MEMORY_SHARE))
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise UserError(f"{name}={value}: set the share of a GPU's memory that JAX may use, such as 0.9")
    return share
