"""Presets of XLA's compiler options, by kind of device.

`config.mesh.compiler_preset` names a preset; `auto` chooses a preset for the devices and the shards of the weights.
`config.mesh.compiler_options` are applied after the preset. The effects of the options were read from compiled
programs: `python -m plm_jax plan` prints the bytes that are gathered, scattered and reduced, and how many of them
overlap with other work.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar, cast

import jax
from jax.sharding import Mesh

from plm_jax.common.errors import UserError, nearest, one_line
from plm_jax.models.partitioning import least_ring_rows

Function = TypeVar("Function", bound=Callable[..., Any])


class Option(NamedTuple):
    """Option of XLA: its name, its value and the effect of that value."""

    name: str
    value: str
    effect: str


# Names and values: AI-Hypercomputer/maxtext, benchmarks/xla_flags_library.py, unless another source is given. Effects:
# libtpu 0.0.42.1, LLaMA 2 7B over 64 chips of v5p.
_OVERLAP = (
    Option("xla_enable_async_all_gather", "true", "all-gathers start before their results are needed"),
    Option("xla_tpu_enable_async_collective_fusion", "true", "collectives run within fusions of matrix products"),
    Option("xla_tpu_enable_async_collective_fusion_fuse_all_gather", "true", "so do 15 of 17 all-gathers of a layer"),
    Option("xla_tpu_enable_async_collective_fusion_multiple_steps", "true", "a collective may span several fusions"),
    Option("xla_tpu_overlap_compute_collective_tc", "true", "fusions share the core with their collectives"),
)
_SCATTER = (
    Option(
        "xla_tpu_use_minor_sharding_for_major_trivial_input",
        "true",
        "with the next two options: gradients are reduced by a reduce-scatter in the layout of their shards",
    ),
    Option("xla_tpu_relayout_group_size_threshold_for_reduce_scatter", "1", "see above"),
    Option("xla_tpu_assign_all_reduce_scatter_layout", "true", "see above"),
)
_TPU = (
    # Measured by us: with dropout between the two products of attention, this fusion reads dozens of arrays of the size
    # of the scores from memory (17 times the temporary memory and 6 times the traffic of a GPT-2 layer on v5e). With
    # T5's shapes the compiler crashes.
    Option("xla_tpu_nested_dot_fusion", "false", "attention's products are not fused with operations between them"),
    Option("xla_tpu_dot_dot_fusion", "false", "see above"),
    # Chips without SparseCores ignore these options.
    Option(
        "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter",
        "true",
        "SparseCores reduce-scatter gradients over all chips of a slice, instead of an all-reduce",
    ),
    Option("xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter", "true", "see above"),
)
# Measured by us: BERT-large on 16 chips of v5e, whose shards of weights have 64 rows, takes 0.66 instead of 0.75 s per
# step by the estimate of `plan`, and GPT-2 XL, with 100 rows, 3.6 instead of 5.3 s.
_WITHOUT_RINGS = Option(
    "xla_jf_spmd_threshold_for_windowed_einsum_mib",
    "1000000",
    "products with small shards of weights are not cut into rings, which would fill half of the matrix units",
)
# NVIDIA/JAX-Toolbox, rosetta/docs/GPU_performance.md. XLA's GPU options accept "True" but not "true".
_CUDA = (
    Option("xla_gpu_enable_latency_hiding_scheduler", "True", "collectives overlap with computation"),
    Option(
        "xla_gpu_enable_pipelined_all_gather",
        "True",
        "a loop gathers the weights of the next layer during the current one",
    ),
    Option("xla_gpu_enable_pipelined_reduce_scatter", "True", "and reduce-scatters the previous layer's gradients"),
    Option("xla_gpu_enable_pipelined_all_reduce", "True", "or all-reduces them"),
    Option("xla_gpu_enable_while_loop_double_buffering", "True", "the loop does not copy the weights that it uses"),
)
PRESETS: dict[str, tuple[Option, ...]] = {
    "none": (),
    "tpu": _TPU,
    "tpu_without_rings": (*_TPU, _WITHOUT_RINGS),
    "tpu_overlap": (*_TPU, *_OVERLAP, *_SCATTER),
    "cuda": _CUDA,
}
# Options of a program whose results are compared bit by bit with those of a second run. By default, XLA's GPU backend
# adds up scattered gradients, such as those of a token table, in any order.
_REPEATABLE = {"NVIDIA": {"xla_gpu_deterministic_ops": "True"}}
# libtpu's own checker of silent data corruption: every instruction of the program runs twice, and differences are
# logged. Names and values: apple/axlearn, axlearn/common/compiler_options.py, `infer_xsc_compiler_options`.
_LIBTPU_CHECKER = {
    "xla_tpu_enable_sdc_checker": "true",
    "xla_tpu_sdc_check_repeat_count": "1",
    "xla_tpu_sdc_check_halt_on_detection": "false",
    "xla_tpu_sdc_checker_alternate_megacore_cores": "true",
    "xla_tpu_ici_sdc_test_run_on_program_start": "false",
}
# Substrings of the kinds of chips with one core, on which the checker needs a second copy of the instructions.
_SINGLE_CORE = ("v5 lite", "v5e", "v6")
# Measured by us with BERT base on two cores of an AMD EPYC of Zen 4: without fusions by YNNPACK, predictions for 8 rows
# of 512 tokens take 7 % less time. The steps of small models take up to 20 % more, so training uses the default.
_CPU_INFERENCE = {"xla_cpu_experimental_ynn_fusion_type": ""}
# Presets by substrings of the device kind; the first match counts. On v5e and v6e, the options that `tpu_overlap` adds
# are the default.
_OF_DEVICES = {"TPU v5 lite": "tpu", "TPU v5e": "tpu", "TPU v6": "tpu", "TPU": "tpu_overlap", "NVIDIA": "cuda"}


def options(
    mesh: Mesh,
    preset: str = "auto",
    overrides: dict[str, str] | None = None,
    shard_rows: Callable[[], int | None] = lambda: None,
) -> dict[str, str]:
    """Returns XLA's options for a program over a mesh, as a dict from names to values.

    Args:
      preset: `config.mesh.compiler_preset`.
      overrides: `config.mesh.compiler_options`, applied after the preset.
      shard_rows: function that returns the minimum number of rows or columns in a shard of a weight matrix, or None if
        no matrix is sharded. It is only called if the preset is `auto` and the device's preset is `tpu`, for devices on
        which XLA uses rings.

    Raises:
      UserError: there is no such preset.
    """
    if preset == "auto":
        kind = mesh.devices.flat[0].device_kind
        preset = preset_of(kind)
        least = least_ring_rows(kind)
        if preset == "tpu" and least and (shard_rows() or least) < least:
            preset = "tpu_without_rings"
    if preset not in PRESETS:
        known = ["auto", *PRESETS]
        raise UserError(f"there is no config.mesh.compiler_preset '{preset}': {nearest(preset, known)}")
    return {option.name: option.value for option in PRESETS[preset]} | (overrides or {})


def audit_options(device_kind: str, libtpu_checker: bool) -> dict[str, str]:
    """Returns XLA's options, by name, for a program whose results are compared with those of a second run.

    Args:
      libtpu_checker: whether libtpu's own checker checks the program as well; it only affects TPUs.
    """
    options = next((options for part, options in _REPEATABLE.items() if part in device_kind), {})
    if libtpu_checker and "TPU" in device_kind:
        copies = any(part in device_kind for part in _SINGLE_CORE)
        options = {**_LIBTPU_CHECKER, "xla_tpu_sdc_replicate_llo": str(copies).lower()}
    return dict(options)


@contextlib.contextmanager
def option_errors() -> Iterator[None]:
    """Context manager that raises `UserError` if XLA rejects an option or its value."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not any(part in str(error) for part in ("No such compile option", "While setting option")):
            raise
        raise UserError(f"config.mesh.compiler_options or its preset: {one_line(error)}") from error


def preset_of(device_kind: str) -> str:
    """Returns the name of the preset for a kind of device; `none` if the kind has no preset."""
    return next((preset for part, preset in _OF_DEVICES.items() if part in device_kind), "none")


def jit_inference(function: Function, **arguments: Any) -> Function:
    """Returns a function that is compiled for inference on the default device.

    Args:
      function: function of arrays. The returned function must not be called within another compiled function.
      arguments: further arguments of `jax.jit`.
    """

    @functools.cache
    def jitted():
        options = _CPU_INFERENCE if jax.default_backend() == "cpu" else None
        return jax.jit(function, compiler_options=options, **arguments)

    @functools.wraps(function)
    def call(*args, **keywords):
        return jitted()(*args, **keywords)

    return cast(Function, call)
