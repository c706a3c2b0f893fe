"""What a run's step takes on a TPU slice or on NVIDIA GPUs, from the real compiler, without them.

The step is the one that `pretrain` runs, with its optimizer, donation and shardings; layers are always scanned.
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
from plm_jax.planning import gpus, hlo, search, tpus
from plm_jax.runs import phase_costs
from plm_jax.runs.programs import Programs
from plm_jax.training import flops
from plm_jax.training import mesh as meshes

# A search compiles until so many fit, or so many have been compiled.
FITTING, COMPILED = 3, 8
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def plan(
    run: config.Run,
    topology: str,
    say: Callable[[str], None] = lambda line: None,
    *,
    slices: int = 1,
    price: float = 0.0,
    searched: bool = False,
) -> dict[str, Any]:
    """Compiles the costliest stage's step and counts what it takes.

    Args:
      topology: of each slice, as in `v5p:4x4x4`, or GPUs, as in `gpu:h100:8`; `none`: nothing is compiled, shapes alone
        are counted, of one device.
      say: takes lines of progress.
      slices: how many TPU slices there are, joined by the data centre's network.
      price: dollars for an hour of a chip; 0: not known.
      searched: whether other meshes, microbatches and levels of recomputation are tried, see `_search`.

    Returns:
      A tree for JSON. Bytes are those of one device, FLOPs and collectives' counts those of one step. Without a
      topology what is not known is None. If the step does not fit, `suggestion` holds the settings of the cheapest
      change in `remedies` that makes it fit, or None.

    Raises:
      UserError: no compiler, no such topology, or a mesh or batch that does not fit it.
    """
    run = dataclasses.replace(run, model=run.model.with_speed(scan_layers=True))
    if topology == "none":
        run = dataclasses.replace(run, mesh=config.MeshConfig())
        phases = tuple(dataclasses.replace(phase, mesh=None) for phase in run.train.phases)
        run = dataclasses.replace(run, train=dataclasses.replace(run.train, phases=phases))
        return _shapes(_programs(run, jax.devices()[:1]))
    devices = slice_devices(topology, slices)
    where = {"topology": topology, "slices": slices}
    if devices[0].platform == "gpu":
        where |= {"unasked": gpus.UNASKED, "memory_is": f"JAX takes {gpus.memory_share():.0%} of a device,"}
    if searched:
        return where | _search(run, devices, price, say)
    report = where | _compiled(_programs(run, devices), say, price)
    if not report["fits"]:
        report["suggestion"] = _suggestion(run, devices, report["bytes_per_device"]["total"], say)
    return report


def slice_devices(topology: str, slices: int = 1) -> list[Any]:
    """Devices that need not be there.

    Raises:
      UserError: their compiler is missing, or there are no such devices.
    """
    return gpus.devices(topology, slices) if topology.startswith("gpu:") else tpus.devices(topology, slices)


def _programs(run: config.Run, devices: Sequence[Any]) -> Programs:
    """Returns the programs of a run whose parameters are checked."""
    programs = Programs(run, devices)
    programs.check_parameters()
    return programs


def _chip(devices: Sequence[Any]) -> flops.Chip:
    """What each device can do, with the memory that JAX takes of it."""
    chip = flops.chip(devices[0].device_kind)
    assert chip is not None  # Every kind that can be compiled for is known.
    if devices[0].platform != "gpu":
        return chip
    return dataclasses.replace(chip, hbm_bytes=int(chip.hbm_bytes * gpus.memory_share()))


def _suggestion(
    run: config.Run, devices: list[Any], wanted: int | None, say: Callable[[str], None]
) -> dict[str, Any] | None:
    """The first of `remedies` that fits, but for those that by `search.guessed` save far too little of `wanted`."""
    stage, chip = costliest(config.resolve_phases(run)), _chip(devices)
    parameters = _count(run)

    def guessed(programs: Programs) -> float:
        phase, remat = costliest(programs.phases), programs.run.model.remat
        mesh = programs.at(phase).mesh
        return search.guessed(run, stage, parameters, chip, mesh.shape, phase.microbatches, remat).memory

    before = guessed(_programs(run, devices))
    for change, changed in remedies(run, len(devices)):
        try:
            programs = _programs(changed, devices)
        except UserError:  # It does not divide the rows of some phase.
            continue
        if wanted and wanted * guessed(programs) / before > 1.3 * chip.hbm_bytes:
            continue
        say("it does not fit; trying " + _as_flags(change))
        if _compiled(programs, say)["fits"]:
            return change
    return None


def _search(run: config.Run, devices: list[Any], price: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Compiles what `search.candidates` ranks first until a few fit, and the run as it is.

    Returns:
      The report of the fastest by its estimate, with `settings` that differ from the run's; `tried` holds settings,
      memory and estimate of each that was compiled, the fastest first, those that do not fit last.
    """
    stage, chip = costliest(config.resolve_phases(run)), _chip(devices)
    ranked = search.candidates(run, stage, _count(run), chip, len(devices))
    say(f"{len(ranked):,} meshes, microbatches and levels of recomputation may fit by a rough guess")
    reports: list[dict[str, Any]] = []
    for settings, changed in [({}, run), *((candidate.settings, candidate.run) for candidate in ranked)]:
        if sum(report["fits"] for report in reports[1:]) >= FITTING or len(reports) > COMPILED:
            break
        try:
            programs = _programs(changed, devices)
        except UserError as error:
            say(f"{_as_flags(settings) or 'as configured'}: {error}")
            continue
        say(_as_flags(settings) or "as configured")
        reports.append(_compiled(programs, say, price) | {"settings": settings})
    if not reports:
        raise UserError("no mesh of these devices divides the batch: change train.batch_size or take another slice")
    reports.sort(key=lambda report: report["estimate"]["seconds"]["optimistic"] if report["fits"] else math.inf)
    kept = ("settings", "mesh", "fits", "bytes_per_device", "estimate", "dollars_per_token")
    tried = [{name: report[name] for name in kept if name in report} for report in reports]
    return reports[0] | {"candidates": len(ranked), "tried": tried}


def _count(run: config.Run) -> int:
    """A run's parameters, whatever its devices."""
    params = registry.shapes(run.model)
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def step_inputs(programs: Programs, phase: config.Phase) -> tuple[Any, ...]:
    """Returns the inputs of a phase's step; the state and the global batch are shapes, types and shardings only."""
    program = programs.at(phase)

    def placed(row):
        shape = (phase.batch_size, *row.shape[1:])
        return jax.ShapeDtypeStruct(shape, row.dtype, sharding=meshes.batch_sharding(program.mesh, shape[1:]))

    blank = reader.blank_batch(config.reader_config(programs.run), phase.length)
    batch = {name: placed(row) for name, row in blank.items()}
    return program.abstract_state, batch, *programs.inputs(0)


def costliest(stages: tuple[config.Phase, ...]) -> config.Phase:
    """Of the stages with the longest rows the one with the largest batch."""
    return max(stages, key=lambda stage: (stage.length, stage.batch_size))


def device_bytes(tree) -> int:
    """Bytes of a tree of shapes on one device, by its shardings."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def remedies(run: config.Run, num_devices: int) -> Iterator[tuple[dict[str, Any], config.Run]]:
    """Changes that save memory, the cheapest in speed first, each as settings and as the run that it makes.

    Everything sharded over all devices and up to four times the microbatches cost some bandwidth, recomputing cheap
    operations a little time and whole blocks a quarter of the step; the last is one row of a device at a time.
    """
    change: dict[str, Any] = {}
    sizes = meshes.resolved(run.mesh, num_devices)
    if sizes["data"] != 1:
        sizes |= {"data": 1, "fsdp": sizes["data"] * sizes["fsdp"]}
        change |= {f"mesh.{axis}": size for axis, size in sizes.items() if size != getattr(run.mesh, axis)}
        run = dataclasses.replace(run, mesh=dataclasses.replace(run.mesh, **sizes))
        yield dict(change), run
    stage = costliest(config.resolve_phases(run))
    rows = stage.batch_size // math.prod(sizes[axis] for axis in meshes.BATCH_AXES)
    counts = [count for count in (stage.microbatches * factor for factor in (1, 2, 4)) if rows % count == 0]
    levels = run.model.remat_levels[run.model.remat_levels.index(run.model.remat) :]
    levels = [level for level in levels if level in (run.model.remat, "dots", "full")]  # Each compiles for minutes.
    tried = [(remat, count) for remat in levels for count in counts]
    for remat, count in (*tried[1:], (levels[-1], rows)):
        settings = change | ({"model.remat": remat} if len(run.model.remat_levels) > 1 else {})
        settings["train.microbatches"] = count
        yield settings, search.changed(run, {}, count, remat)


def _shapes(programs: Programs) -> dict[str, Any]:
    """What shapes and shardings alone tell."""
    stage = costliest(programs.phases)
    program = programs.at(stage)
    state = program.abstract_state
    known = {"parameters": device_bytes(state.params), "optimizer": device_bytes(state.optimizer)}
    known |= {"temporaries": None, "total": None}
    return {
        "mesh": dict(program.mesh.shape),
        "stage": {name: getattr(stage, name) for name in ("first_step", "length", "batch_size", "microbatches")},
        "remat": programs.run.model.remat,
        "parameters": _count(programs.run),
        "bytes_per_device": known,
        "fits": None,
        "model_flops_per_step": phase_costs.model_flops(programs.run, stage),
    }


def _compiled(programs: Programs, say: Callable[[str], None], price: float = 0.0) -> dict[str, Any]:
    """`_shapes`, and what the compiler tells; with a price also what a token costs."""
    report, stage = _shapes(programs), costliest(programs.phases)
    program = programs.at(stage)
    num_devices = program.mesh.size
    chip = _chip(list(program.mesh.devices.flat))
    report |= {"devices": num_devices, "hbm_bytes": chip.hbm_bytes}
    say(f"compiling for {num_devices} devices, {report['mesh']}, rows of {stage.length}; this takes minutes")
    began = time.perf_counter()
    traced = program.phase_step(stage).trace(*step_inputs(programs, stage))
    try:
        compiled = traced.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        report["bytes_per_device"]["total"] = _wanted(str(error))
        return report | {"fits": False, "compile_seconds": time.perf_counter() - began}
    memory = compiled.memory_analysis()
    total = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    total += memory.temp_size_in_bytes + memory.generated_code_size_in_bytes
    report["bytes_per_device"] |= {"temporaries": memory.temp_size_in_bytes, "total": total}
    report |= {"fits": total <= chip.hbm_bytes, "compile_seconds": time.perf_counter() - began}
    module = hlo.HloModule(compiled.as_text())
    jaxpr, dropout = traced.jaxpr.jaxpr, getattr(program.module(stage.dropout).model, "dropout", None)
    drops = getattr(dropout, "attention", 0.0) > 0
    work = estimates.work(jaxpr, module, _slices(program.mesh), drops)
    report |= {
        "program_flops_per_step": flops.of_program(jaxpr),
        "kernel_flops_per_step": flops.kernels(jaxpr),
        "hbm_bytes_per_step": work.hbm_bytes,
        "collectives": _by_kind(module.collectives()),
        "sent_between_slices_per_step": int(work.between_slices),
        "tokens_per_step": phase_costs.num_tokens(programs.run, stage),
        "estimate": estimates.estimate(program.mesh.devices.flat[0].device_kind, work),
    }
    if price:
        chips, seconds = num_devices / chip.devices, report["estimate"]["seconds"]["optimistic"]
        report["dollars_per_token"] = estimates.dollars_per_token(seconds, chips, report["tokens_per_step"], price)
    return report


def _slices(mesh: jax.sharding.Mesh) -> list[int]:
    """The number of each device's TPU slice or, of GPUs, host, in the order of the mesh: these have a network each."""
    return [d.process_index if d.platform == "gpu" else getattr(d, "slice_index", 0) for d in mesh.devices.flat]


def _wanted(message: str) -> int | None:
    """The bytes that a step asked for, from the compiler's message."""
    found = re.search(r"\((\d+(?:\.\d+)?)([KMG])\) exceeds", message) or re.search(
        r"Used (\d+(?:\.\d+)?)([KMG]) of", message
    )
    return int(float(found[1]) * _UNITS[found[2]]) if found else None


def _by_kind(collectives: list[hlo.Collective]) -> dict[str, dict[str, int]]:
    """How often each kind starts in a step, and the bytes that a device sends, all and by their form."""
    counts: Counter[str] = Counter()
    sent: dict[tuple[str, str], float] = defaultdict(float)
    for collective in collectives:
        counts[collective.kind] += collective.times
        for name in ("bytes", collective.form):
            sent[collective.kind, name] += collective.times * collective.sent
    names = ("bytes", *hlo.FORMS)
    return {kind: {"count": counts[kind]} | {name: int(sent[kind, name]) for name in names} for kind in sorted(counts)}


def table(report: dict[str, Any]) -> str:
    """The report to read."""
    stage, own = report["stage"], report["bytes_per_device"]
    rows = {
        "mesh": " × ".join(f"{axis} {size}" for axis, size in report["mesh"].items()),
        "step": f"from step {stage['first_step']}: {stage['batch_size']} rows of {stage['length']}, "
        f"{stage['microbatches']} microbatches, layers scanned, remat {report['remat']}",
        "parameters": f"{report['parameters']:,}",
        "model FLOPs a step": f"{report['model_flops_per_step']:.4g}",
    }
    rows |= {f"GB a device, {name}": f"{value / 1e9:.3f}" for name, value in own.items() if value is not None}
    if report["fits"] is not None:
        fits = "yes"
        if not report["fits"]:
            fits = "no" if own["total"] is None else f"no, by {(own['total'] - report['hbm_bytes']) / 1e9:.1f} GB"
        rows["fits"] = f"{fits}, {report.get('memory_is', 'a device has')} {report['hbm_bytes'] / 1e9:.1f} GB"
        rows["compiled in"] = f"{report['compile_seconds']:.0f} s"
    if "estimate" in report:
        guess = report["estimate"]
        rows["FLOPs of the program"] = f"{report['program_flops_per_step']:.4g}, recomputation included"
        rows |= {
            kind: f"{of['count']:,} a step, {of['bytes'] / 1e9:.3f} GB sent a device"
            + "".join(f", {of[form] / 1e9:.3f} {form}" for form in hlo.FORMS if of[form])
            for kind, of in report["collectives"].items()
        }
        alone = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in guess["seconds_alone"].items())
        seconds = guess["seconds"]["optimistic"]
        rows["at best, if everything overlaps"] = f"{seconds:.3g} s a step, bound by {guess['bound']}"
        rows["each part alone"] = alone
    if "unasked" in report:
        rows["not known"] = report["unasked"]
    if "dollars_per_token" in report:
        rows["at best, dollars a billion tokens"] = f"{report['dollars_per_token'] * 1e9:,.2f}"
    if "suggestion" in report:
        change = report["suggestion"] and _as_flags(report["suggestion"])
        rows["would fit with"] = change or "nothing that was tried: take a larger slice or a smaller batch"
    for place, line in enumerate(_tried_lines(report), start=1):
        rows[f"{place}. at best"] = line
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())


def _tried_lines(report: dict[str, Any]) -> list[str]:
    """Of each run that a search has compiled a line."""

    def told(tried: dict[str, Any]) -> str:
        if not tried["fits"]:
            return "does not fit"
        total, guess = tried["bytes_per_device"]["total"] / 1e9, tried["estimate"]
        cost = f", ${tried['dollars_per_token'] * 1e9:,.2f} a billion tokens" if "dollars_per_token" in tried else ""
        return f"{guess['seconds']['optimistic']:.3g} s, {total:.1f} GB{cost}"

    return [f"{told(tried)}: {_as_flags(tried['settings']) or 'as configured'}" for tried in report.get("tried", ())]


def _as_flags(settings: dict[str, Any]) -> str:
    return " ".join(f"--config.{name}={value}" for name, value in settings.items())
