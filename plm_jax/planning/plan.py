"""Memory and time of a training step on a TPU slice or NVIDIA GPUs, from the compiler, without the hardware.

The step is the training step of `pretrain`, with the same optimizer, donation and shardings.
"""

import dataclasses
import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.data import reader
from plm_jax.models import registry
from plm_jax.planning import estimate as estimates
from plm_jax.planning import gpus, hlo, search, step_time, tpus
from plm_jax.planning.operations import CostModel, core_of
from plm_jax.planning.slices import has_rings
from plm_jax.runs import phase_costs
from plm_jax.runs.compile_ahead import step_inputs
from plm_jax.runs.programs import Programs
from plm_jax.training import flops
from plm_jax.training import mesh as meshes

# A search ends when this many candidates fit, or this many have been compiled.
MAX_FITTING, MAX_COMPILED = 3, 8
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def plan(
    run: config.Run,
    topology: str,
    report: Callable[[str], None] = lambda line: None,
    *,
    slices: int = 1,
    price: float = 0.0,
    run_search: bool = False,
) -> dict[str, Any]:
    """Compiles the step of the phase from `costliest_phase`, and reports its memory, communication and time.

    Args:
      topology: topology of each TPU slice, such as `v5p:4x4x4`; or GPUs, such as `gpu:h100:8`; or `none`, which
        compiles nothing and reports sizes on one device. With `none`, `slices`, `price` and `run_search` are ignored.
      report: called with lines of progress.
      slices: number of TPU slices, connected by the data center's network.
      price: dollars per hour of a chip; 0 if the price is unknown.
      run_search: whether to try other meshes, microbatches and levels of recomputation.

    Returns:
      A dict that can be written as JSON. Bytes are per device; FLOPs and counts of collectives are per step. With the
      topology `none`, values that need the compiler are None or missing. With `run_search`, the dict describes the best
      candidate, and `tried` lists all candidates that were compiled. Without `run_search`, if the step does not fit,
      `suggestion` contains the settings of the first of `remedies` with which the step fits, or None if no remedy
      suffices. If rows are packed and their cache exists, `padding` describes their padding.

    Raises:
      UserError: the compiler is missing, the topology is unknown, or the mesh or batch does not fit the topology.
    """
    padding = _describe_padding(run, report)
    if topology == "none":
        run = dataclasses.replace(run, mesh=config.MeshConfig())
        phases = tuple(dataclasses.replace(phase, mesh=None) for phase in run.train.phases)
        run = dataclasses.replace(run, train=dataclasses.replace(run.train, phases=phases))
        return _shapes(_programs(run, jax.devices()[:1])) | padding
    devices = slice_devices(topology, slices)
    target = {"topology": topology, "slices": slices} | padding
    if devices[0].platform == "gpu":
        target |= {"unasked": gpus.UNASKED, "memory_is": f"JAX uses {gpus.memory_share():.0%} of the memory"}
    if run_search:
        return target | _search(run, devices, price, report)
    result = target | _compiled(_programs(run, devices), report, price)
    if not result["fits"]:
        result["suggestion"] = _suggestion(run, devices, result["bytes_per_device"]["total"], report)
    return result


def _describe_padding(run: config.Run, report: Callable[[str], None]) -> dict[str, Any]:
    """Returns a dict with the entry `padding` of the report.

    The dict is empty if the rows are not packed, or if their padding is unknown, for example without a cache.
    """
    if not isinstance(run.data.layout, config.Packed):
        return {}
    phase = costliest_phase(run)
    try:
        padding = reader.Reader(config.reader_config(run)).padding(phase)
    except UserError as error:
        report(f"the padding of packed rows is unknown: {error}")
        return {}
    return {"padding": padding.describe(phase.batch_size, phase.length)}


def slice_devices(topology: str, slices: int = 1) -> list[Any]:
    """Returns abstract devices, for which programs can be compiled without the hardware.

    Args:
      topology: as in `plan`, but not `none`.
      slices: number of TPU slices; 1 for GPUs.

    Raises:
      UserError: the compiler is missing, or the topology or the number of slices is invalid.
    """
    return gpus.devices(topology, slices) if topology.startswith("gpu:") else tpus.devices(topology, slices)


def _programs(run: config.Run, devices: Sequence[Any]) -> Programs:
    """Builds the programs of a run and checks its parameters."""
    programs = Programs(run, devices)
    programs.check_parameters()
    return programs


def _chip(devices: Sequence[Any]) -> flops.Chip:
    """Returns the chip of the devices, with the memory that JAX may use."""
    chip = flops.chip(devices[0].device_kind)
    assert chip is not None  # Every device kind with a compiler is known.
    if devices[0].platform != "gpu":
        return chip
    return dataclasses.replace(chip, hbm_bytes=int(chip.hbm_bytes * gpus.memory_share()))


def _suggestion(
    run: config.Run, devices: list[Any], required_bytes: int | None, report: Callable[[str], None]
) -> dict[str, Any] | None:
    """Returns the settings of the first of `remedies` with which the step fits, or None.

    A remedy is skipped if it does not divide the rows of some phase. If `required_bytes` is known, a remedy is also
    skipped if the step would need more than 1.3 times the memory of a device, scaled by `search.estimate_cost`.
    """
    run_phase, chip = costliest_phase(run), _chip(devices)
    parameters = _count(run)

    def estimate_memory(programs: Programs) -> float:
        phase, remat = costliest_phase(programs.run), programs.run.model.remat
        mesh = programs.at(phase).mesh
        return search.estimate_cost(run, run_phase, parameters, chip, mesh.shape, phase.microbatches, remat).memory

    before = estimate_memory(_programs(run, devices))
    for settings, candidate in remedies(run, len(devices)):
        try:
            programs = _programs(candidate, devices)
        except UserError:  # The settings do not divide the rows of some phase.
            continue
        if required_bytes and required_bytes * estimate_memory(programs) / before > 1.3 * chip.hbm_bytes:
            continue
        report("it does not fit; trying " + _as_flags(settings))
        if _compiled(programs, report)["fits"]:
            return settings
    return None


def _search(run: config.Run, devices: list[Any], price: float, report: Callable[[str], None]) -> dict[str, Any]:
    """Compiles the run as configured, and then `search.candidates` in order.

    The search ends after `MAX_FITTING` candidates that fit, or after `MAX_COMPILED` candidates.

    Returns:
      The report of the best candidate: the one that fits and has the lowest estimated time or, if none fits, the one
      that was compiled first. `settings` contains the settings in which the best candidate differs from the run, and
      `candidates` the number of candidates. `tried` contains the settings, memory and estimate of each compiled
      candidate: first the candidates that fit, in order of estimated time, and then the remaining candidates.

    Raises:
      UserError: no candidate can be built, because no mesh divides the batch.
    """
    phase, chip = costliest_phase(run), _chip(devices)
    ranked = search.candidates(run, phase, _count(run), chip, len(devices))
    report(f"{len(ranked):,} combinations of mesh, microbatches and recomputation may fit by a rough estimate")
    reports: list[dict[str, Any]] = []
    for settings, candidate_run in [({}, run), *((candidate.settings, candidate.run) for candidate in ranked)]:
        fitting = [result["fits"] for result in reports if result["settings"]]
        if sum(fitting) >= MAX_FITTING or len(fitting) >= MAX_COMPILED:
            break
        try:
            programs = _programs(candidate_run, devices)
        except UserError as error:
            report(f"{_as_flags(settings) or 'as configured'}: {error}")
            continue
        report(_as_flags(settings) or "as configured")
        reports.append(_compiled(programs, report, price) | {"settings": settings})
    if not reports:
        raise UserError("no mesh of these devices divides the batch: change train.batch_size or use another slice")
    reports.sort(key=lambda result: step_time.ranking_seconds(result["estimate"]) if result["fits"] else math.inf)
    fields = ("settings", "mesh", "fits", "bytes_per_device", "estimate", "dollars_per_token")
    tried = [{name: result[name] for name in fields if name in result} for result in reports]
    for other in tried[1:]:
        if other["fits"]:
            other["differs_from_best"] = step_time.differ(tried[0]["estimate"], other["estimate"])
    return reports[0] | {"candidates": len(ranked), "tried": tried}


def _count(run: config.Run) -> int:
    """Counts the parameters of a run."""
    params = registry.shapes(run.model)
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def costliest_phase(run: config.Run) -> config.Phase:
    """Returns the phase with the longest rows.

    Among phases with equally long rows, the largest batch decides, and then the largest number of targets per row.
    """

    def cost(phase: config.Phase) -> tuple[int, int, int]:
        return phase.length, phase.batch_size, config.target_length(config.in_phase(run, phase), phase.length)

    return max(config.resolve_phases(run), key=cost)


def device_bytes(tree) -> int:
    """Returns the number of bytes of a tree of sharded shapes on one device."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def remedies(run: config.Run, num_devices: int) -> Iterator[tuple[dict[str, Any], config.Run]]:
    """Yields changes that save memory, in ascending order of the loss of speed.

    Each change is a pair: a dict of changed settings, and the changed run. Each change gives all phases the same mesh,
    that of the costliest phase. If its axis `data` is larger than 1, the first change moves these devices to the axis
    `fsdp`, and all later changes include this change. Sharding over all devices, or using up to four times as many
    microbatches, costs some bandwidth. Recomputing cheap operations costs little time; recomputing whole blocks costs a
    quarter of the time of a step. The last change uses microbatches of one row per shard.
    """
    phase = costliest_phase(run)
    change, run = search.with_one_mesh(run, phase)
    sizes = meshes.resolved(run.mesh, num_devices)
    if sizes["data"] != 1:
        sizes |= {"data": 1, "fsdp": sizes["data"] * sizes["fsdp"]}
        change |= {f"mesh.{axis}": size for axis, size in sizes.items() if size != getattr(run.mesh, axis)}
        run = dataclasses.replace(run, mesh=dataclasses.replace(run.mesh, **sizes))
        yield dict(change), run
    shards = math.prod(sizes[axis] for axis in meshes.BATCH_AXES)
    rows = phase.batch_size // shards
    counts = [count for count in (phase.microbatches * factor for factor in (1, 2, 4)) if rows % count == 0]
    levels = run.model.remat_levels[run.model.remat_levels.index(run.model.remat) :]
    levels = [level for level in levels if level in (run.model.remat, "dots", "full")]  # Each takes minutes to compile.
    tried = [(remat, count) for remat in levels for count in counts]
    for remat, count in (*tried[1:], (levels[-1], rows)):
        settings = change | ({"model.remat": remat} if len(run.model.remat_levels) > 1 else {})
        counts, changed = search.with_settings(run, phase, {}, shards, count, remat)
        yield settings | counts, changed


def _shapes(programs: Programs) -> dict[str, Any]:
    """Returns the entries of the report that follow from shapes and shardings alone."""
    phase = costliest_phase(programs.run)
    program = programs.at(phase)
    state = program.abstract_state
    device_sizes = {"parameters": device_bytes(state.params), "optimizer": device_bytes(state.optimizer)}
    if program.average:
        device_sizes["average"] = device_bytes(state.average)
    if program.references:
        device_sizes["references"] = device_bytes(program.reference_shapes)
    device_sizes |= {"temporaries": None, "total": None}
    return {
        "mesh": dict(program.mesh.shape),
        "stage": {name: getattr(phase, name) for name in ("first_step", "length", "batch_size", "microbatches")},
        "remat": programs.run.model.remat,
        "scan_layers": getattr(programs.run.model, "scan_layers", False),
        "parameters": _count(programs.run),
        "bytes_per_device": device_sizes,
        "fits": None,
        "model_flops_per_step": phase_costs.model_flops(programs.run, phase),
    }


def _compiled(programs: Programs, report: Callable[[str], None], price: float = 0.0) -> dict[str, Any]:
    """Returns the entries of `_shapes`, the results of the compiler and, with a price, the cost of a token.

    If the compiler reports that the memory does not suffice, most of these results are missing.
    """
    result, phase = _shapes(programs), costliest_phase(programs.run)
    program = programs.at(phase)
    num_devices = program.mesh.size
    chip = _chip(list(program.mesh.devices.flat))
    result |= {"devices": num_devices, "hbm_bytes": chip.hbm_bytes}
    report(f"compiling for {num_devices} devices, {result['mesh']}, rows of {phase.length}; this takes minutes")
    start = time.perf_counter()
    traced = program.phase_step(phase).trace(*step_inputs(programs, phase))
    try:
        compiled = traced.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        result["bytes_per_device"]["total"] = _requested_bytes(str(error))
        return result | {"fits": False, "compile_seconds": time.perf_counter() - start}
    memory = compiled.memory_analysis()
    total = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    total += memory.temp_size_in_bytes + memory.generated_code_size_in_bytes
    result["bytes_per_device"] |= {"temporaries": memory.temp_size_in_bytes, "total": total}
    result |= {"fits": total <= chip.hbm_bytes, "compile_seconds": time.perf_counter() - start}
    module = hlo.HloModule(compiled.as_text())
    jaxpr, dropout = traced.jaxpr.jaxpr, getattr(program.module(phase.dropout).model, "dropout", None)
    drops = getattr(dropout, "attention", 0.0) > 0
    work = estimates.measure_work(jaxpr, module, _slices(program.mesh), drops)
    result |= {
        "program_flops_per_step": flops.of_program(jaxpr),
        "kernel_flops_per_step": flops.kernels(jaxpr),
        "hbm_bytes_per_step": work.hbm_bytes,
        "collectives": _by_kind(module.collectives()),
        "sent_between_slices_per_step": int(work.between_slices),
        "tokens_per_step": phase_costs.num_tokens(programs.run, phase),
    }
    result["estimate"] = _estimate(result, program.mesh, module, work)
    if price:
        chips, seconds = num_devices / chip.devices, step_time.ranking_seconds(result["estimate"])
        result["dollars_per_token"] = estimates.dollars_per_token(seconds, chips, result["tokens_per_step"], price)
    return result


def _slices(mesh: jax.sharding.Mesh) -> list[int]:
    """Returns the index of the TPU slice or GPU host of each device, in the order of the mesh."""
    return [d.process_index if d.platform == "gpu" else getattr(d, "slice_index", 0) for d in mesh.devices.flat]


def _estimate(
    result: dict[str, Any], mesh: jax.sharding.Mesh, module: hlo.HloModule, work: estimates.Work
) -> dict[str, Any]:
    """Returns the lower bound of the time of a step, and the estimated time with its parts.

    The entries of the estimated time are None for devices whose instructions cannot be timed.
    """
    device = mesh.devices.flat[0]
    bound = estimates.estimate(device.device_kind, work)
    bound |= {"bound_seconds": bound["seconds"]["optimistic"]}
    if core_of(device.device_kind) is None:
        unknown = dict.fromkeys(("mfu", "seconds_by_kind", "product_share", "savings"))
        return bound | {"seconds": bound["seconds"] | {"middle": None, "pessimistic": None}} | unknown
    rings = has_rings([max(axis) + 1 for axis in zip(*(d.coords for d in mesh.devices.flat), strict=True)])
    model = CostModel(module, device.device_kind, _slices(mesh), drops=work.drops, rings=rings)
    model_flops, program_flops = result["model_flops_per_step"], result["program_flops_per_step"]
    recomputed = max(0.0, 1 - model_flops / program_flops)
    return bound | step_time.describe(step_time.time_step(model), model, model_flops / mesh.size, recomputed)


def _requested_bytes(message: str) -> int | None:
    """Returns the number of bytes that the step needs according to the compiler's error message, or None."""
    match = re.search(r"\((\d+(?:\.\d+)?)([KMG])\) exceeds", message) or re.search(
        r"Used (\d+(?:\.\d+)?)([KMG]) of", message
    )
    return int(float(match[1]) * _UNITS[match[2]]) if match else None


def _by_kind(collectives: list[hlo.Collective]) -> dict[str, dict[str, int]]:
    """Counts the collectives of each kind in a step, and the bytes that they send.

    Returns:
      A dict from each kind to a dict with these entries: `count`, the number of runs; `bytes`, the bytes that a device
      sends; and, for each form in `hlo.FORMS`, the bytes that a device sends in collectives of this form.
    """
    counts: Counter[str] = Counter()
    sent_bytes: dict[tuple[str, str], float] = defaultdict(float)
    for collective in collectives:
        counts[collective.kind] += collective.times
        for name in ("bytes", collective.form):
            sent_bytes[collective.kind, name] += collective.times * collective.sent
    names = ("bytes", *hlo.FORMS)
    return {
        kind: {"count": counts[kind]} | {name: int(sent_bytes[kind, name]) for name in names} for kind in sorted(counts)
    }


def table(result: dict[str, Any]) -> str:
    """Formats the result of `plan` as a table."""
    phase = result["stage"]
    rows = {
        "mesh": " × ".join(f"{axis} {size}" for axis, size in result["mesh"].items()),
        "batch": f"{phase['batch_size']:,} rows of {phase['length']:,} tokens, in the phase from step "
        f"{phase['first_step']:,}",
        "step": f"{phase['microbatches']} microbatch{'es' * (phase['microbatches'] > 1)}, layers "
        f"{'scanned' if result['scan_layers'] else 'unrolled'}, remat {result['remat']}",
        "parameters": f"{result['parameters']:,}",
        "model FLOPs per step": f"{result['model_flops_per_step']:.4g}",
    }
    if "padding" in result:
        rows["padding"] = result["padding"]
    known_bytes = {name: value for name, value in result["bytes_per_device"].items() if value is not None}
    rows |= {f"GB per device, {name}": f"{value / 1e9:.3f}" for name, value in known_bytes.items()}
    if result["fits"] is not None:
        rows["fits"] = _describe_fit(result)
        rows["compiled in"] = f"{result['compile_seconds']:.0f} s"
    if "estimate" in result:
        rows["program FLOPs per step"] = f"{result['program_flops_per_step']:.4g}, including recomputation"
        rows |= {
            kind: f"{collective['count']:,} per step, {collective['bytes'] / 1e9:.3f} GB sent per device"
            + "".join(f", {collective[form] / 1e9:.3f} {form}" for form in hlo.FORMS if collective[form])
            for kind, collective in result["collectives"].items()
        }
        rows |= step_time.rows(result["estimate"])
    if "unasked" in result:
        rows["unknown"] = result["unasked"]
    if "dollars_per_token" in result:
        rows["dollars per billion tokens"] = f"{result['dollars_per_token'] * 1e9:,.2f}"
    if "suggestion" in result:
        settings = dict(result["suggestion"] or {})
        if settings.get("model.remat") == result["remat"]:
            del settings["model.remat"]
        flags = _as_flags(settings)
        rows["would fit with"] = flags or "none of the changes tried: use a larger slice or a smaller batch"
    for number, line in enumerate(_tried_lines(result), start=1):
        rows[f"option {number}"] = line
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())


def _describe_fit(result: dict[str, Any]) -> str:
    total = result["bytes_per_device"]["total"]
    capacity = f"{result['hbm_bytes'] / 1e9:.1f} GB per device"
    if "memory_is" in result:
        capacity = f"{capacity} ({result['memory_is']})"
    if result["fits"]:
        return f"yes, {capacity} available"
    excess = "" if total is None else f"{(total - result['hbm_bytes']) / 1e9:.1f} GB "
    return f"no, {excess}more than the {capacity}"


def _tried_lines(result: dict[str, Any]) -> list[str]:
    """Returns a line for each candidate that a search has compiled."""

    def describe(tried: dict[str, Any]) -> str:
        if not tried["fits"]:
            return "does not fit"
        total, seconds = tried["bytes_per_device"]["total"] / 1e9, tried["estimate"]["seconds"]
        price = f", ${tried['dollars_per_token'] * 1e9:,.2f} per billion tokens" if "dollars_per_token" in tried else ""
        bracket = f" ({seconds['optimistic']:.3g} to {seconds['pessimistic']:.3g})" if seconds["pessimistic"] else ""
        note = "" if tried.get("differs_from_best", True) else ", no clear difference from option 1"
        return f"{step_time.ranking_seconds(tried['estimate']):.3g} s{bracket}{note}, {total:.1f} GB{price}"

    return [
        f"{describe(tried)}: {_as_flags(tried['settings']) or 'as configured'}" for tried in result.get("tried", ())
    ]


def _as_flags(settings: dict[str, Any]) -> str:
    return " ".join(f"--config.{name}={value}" for name, value in settings.items())
