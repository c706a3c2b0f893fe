"""Description of the machine, which is part of every result."""

import importlib.metadata
import os
import pathlib
import platform
import re
import subprocess
from typing import Any

PACKAGES = re.compile(
    r"jax|jaxlib|libtpu|jax-cuda\d+-plugin|flax|optax|orbax-checkpoint|grain|numpy|torch|triton|transformers"
    r"|nvidia-(cuda-runtime|cudnn|cublas)(-cu\d+)?"
)

# Instruction sets, as Linux names them, on which the speed of matrix products depends.
VECTOR_SETS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")


def describe(source: str = "") -> dict[str, Any]:
    """Returns the device, processor, versions of driver and packages, XLA flags, and commit of the source.

    Args:
      source: commit of a copy of the source without history; by default git provides it.
    """
    return {
        "gpu": gpu(),
        "cpu": f"{cpu()}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version()} | versions(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "commit": source or commit(os.path.dirname(os.path.abspath(__file__))),
    }


def commit(folder: str) -> str | None:
    """Returns the commit of a git checkout."""
    return _output("git", "-C", folder, "rev-parse", "HEAD")


def cpu() -> str:
    """Returns the name, family and vector instructions of the processor on Linux, otherwise its architecture."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
    if "model name" not in fields:
        return platform.machine()
    sets = [name for name in VECTOR_SETS if name in fields.get("flags", "").split()]
    family = f"family {fields.get('cpu family')} model {fields.get('model')}"
    return f"{fields['model name']} ({', '.join([family, *sets])})"


def gpu() -> dict[str, str] | None:
    """Returns name, driver and memory of the first NVIDIA GPU, or None."""
    fields = ("name", "driver_version", "memory.total")
    row = _output("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
    return dict(zip(fields, row.splitlines()[0].split(", "), strict=True)) if row else None


def versions() -> dict[str, str]:
    """Returns the versions of the installed packages that affect speed."""
    installed = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    return {name: installed[name] for name in sorted(installed) if PACKAGES.fullmatch(name)}


def _output(*command: str) -> str | None:
    """Returns the output of a command, or None if it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
