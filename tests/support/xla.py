"""XLA flags of the tests: fake devices and fast compilation."""

import importlib.metadata


def flags(devices: int) -> str:
    """Returns XLA_FLAGS for `devices` fake CPU devices."""
    # Tests compile much and compute little: splitting small programs for LLVM does not pay off.
    quick = f"--xla_force_host_platform_device_count={devices} --xla_cpu_parallel_codegen_split_count=1"
    # Disabling these emitters saves a third of the time. XLA does not start with unknown flags.
    version = tuple(int(part) for part in importlib.metadata.version("jaxlib").split(".")[:2])
    return quick if version >= (0, 12) else f"{quick} --xla_cpu_use_fusion_emitters=false"
