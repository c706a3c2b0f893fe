"""How XLA compiles for the tests: for fake devices, and quickly."""

import importlib.metadata


def flags(devices: int) -> str:
    """XLA_FLAGS for so many fake CPU devices."""
    # Tests compile much and compute little: a small program is not worth being cut into parts for LLVM.
    quick = f"--xla_force_host_platform_device_count={devices} --xla_cpu_parallel_codegen_split_count=1"
    # Without these emitters a third of their time is gone. An XLA that lacks a flag refuses to start.
    version = tuple(int(part) for part in importlib.metadata.version("jaxlib").split(".")[:2])
    return quick if version >= (0, 12) else f"{quick} --xla_cpu_use_fusion_emitters=false"
