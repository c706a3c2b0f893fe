"""NVIDIA GPUs that need not be there: devices that XLA compiles for.

What a GPU is to the compiler stands in `targets/KIND.txtpb`, XLA's `GpuTargetConfigProto` as text.
"""

import importlib.util
import os
import pathlib
import re
from typing import Any

from jax.experimental import topologies

from plm_jax.common.errors import UserError

# An HGX or DGX host has so many, joined by NVLink.
GPUS_A_HOST = 8
# What a compiler without a GPU cannot know.
UNASKED = "whether cuDNN takes these shapes, and which products are fastest: only a GPU can be asked"
# What JAX takes of a GPU's memory unless it is told otherwise (docs.jax.dev/en/latest/gpu_memory_allocation.html).
MEMORY_SHARE = 0.75
_TARGETS = pathlib.Path(__file__).parent / "targets"


def devices(topology: str, slices: int = 1) -> list[Any]:
    """The GPUs of hosts of eight, or of one host with fewer.

    Args:
      topology: `gpu:KIND:COUNT`, as in `gpu:h100:8`.

    Raises:
      UserError: the compiler is missing, or there are no such GPUs.
    """
    if slices != 1:
        raise UserError(f"--slices={slices} is of TPUs; give the number of all GPUs, as in gpu:h100:16")
    found = re.fullmatch(r"gpu:(\w+):(\d+)", topology)
    kinds = sorted(path.stem for path in _TARGETS.glob("*.txtpb"))
    count = int(found[2]) if found else 0
    hosts = max(1, count // GPUS_A_HOST)
    if found is None or found[1] not in kinds or count == 0 or count % hosts or count // hosts > GPUS_A_HOST:
        raise UserError(
            f"--topology={topology}: give gpu:KIND:COUNT, KIND {' or '.join(kinds)}, COUNT up to {GPUS_A_HOST} or a "
            f"multiple of it, as in gpu:h100:{GPUS_A_HOST}"
        )
    if importlib.util.find_spec("jax_cuda13_plugin") is None:
        raise UserError("the compiler for NVIDIA GPUs is missing: pip install 'plm_jax[gpu-plan]', or --topology=none")
    return topologies.get_topology_desc(
        platform="cuda",
        target_config=(_TARGETS / f"{found[1]}.txtpb").read_text(),
        topology=f"1x{hosts}x{count // hosts}",
    ).devices


def memory_share() -> float:
    """The share of a GPU's memory that JAX takes, as the environment of here tells it to.

    Raises:
      UserError: what it is told is no share.
    """
    names = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
    name, told = next(((name, os.environ[name]) for name in names if os.environ.get(name)), ("", MEMORY_SHARE))
    try:
        share = float(told)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise UserError(f"{name}={told}: give the share of a GPU's memory that JAX is to take, such as 0.9")
    return share
