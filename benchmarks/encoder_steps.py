"""Cost of a step of DeBERTa relative to BERT's on a TPU, by the compiler's own schedules: no TPU needed, but libtpu.

    python benchmarks/encoder_steps.py > benchmarks/results/encoder_steps.json

Compiles each step for the same slice of v5e with the same rows and the config's mesh, and adds the following, times the
trips of loops:

- products: fusions with a matrix product, the compiler's estimated cycles or the time to move their bytes if longer;
- kernels: Pallas kernels, the instruction bundles of the compiled schedule of a tile (about one cycle each, see
  `kernel_bundles.py`) times the tiles of their grid;
- memory: other instructions, the time to move their bytes;
- network: collectives, as if nothing overlapped them.

What kernels declare about their cost is not read. Prints JSON: the cycles of each part, and the ratio of the sums.
"""

import glob
import math
import os
import pathlib
import re
import tempfile
from typing import Any

import bench

from plm_jax.planning import hlo
from plm_jax.training import flops

# 197 TFLOP/s of a v5e over 4 matrix units of 128 × 128 multiply-adds: 1.5 GHz.
FLOPS_PER_CYCLE = 4 * 128 * 128 * 2
CONFIGS = {"bert": "bert:base", "deberta": "deberta:base"}


def run(
    topology: str = "v5e:4x4", batch: int = 256, length: int = 512, sizes: tuple[str, ...] = tuple(CONFIGS)
) -> dict:
    """Compares the steps, each compiled in a new process, because libtpu fixes its dump folder when it is loaded.

    Args:
      topology: TPU slice.
      batch: rows of a step on all chips.
      length: tokens of a row.
      sizes: names in `CONFIGS`; ratios are to the first.
    """
    results = {}
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            flags = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
            environment = {"LIBTPU_INIT_ARGS": flags, "TPU_SKIP_MDS_QUERY": "1", "JAX_PLATFORMS": "cpu", "DUMP": folder}
            environment |= {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
            results[size] = bench.fresh(of_size, CONFIGS[size], topology, batch, length, env=os.environ | environment)
    base = results[sizes[0]]["cycles"]["total"]
    ratios = {size: results[size]["cycles"]["total"] / base for size in sizes[1:]}
    return {"topology": topology, "batch": batch, "length": length, "steps": results, f"relative to {sizes[0]}": ratios}


def of_size(size: str, topology: str, batch: int, length: int) -> dict[str, Any]:
    """Returns the cycles of a step on one chip."""
    from plm_jax import config
    from plm_jax.config import files
    from plm_jax.planning import plan
    from plm_jax.runs.programs import Programs

    file = files.load(size)
    tree = file.config()
    tree.train.batch_size, tree.data.length, tree.train.phases, tree.train.microbatches = batch, length, (), 1
    tree.model.scan_layers = True
    programs = Programs(config.resolve(tree, file.file), plan.slice_devices(topology))
    phase = programs.phases[0]
    program = programs.at(phase)
    traced = program.phase_step(phase).trace(*plan.step_inputs(programs, phase))
    compiled = traced.lower().compile()
    chip = flops.chip(program.mesh.devices.flat[0].device_kind)
    assert chip is not None
    clock = chip.flops / FLOPS_PER_CYCLE
    bundles, kernels = bundles_of_tiles(os.environ["DUMP"]), {}
    for equation, times in flops.equations(traced.jaxpr.jaxpr):
        if equation.primitive.name == "pallas_call":
            name, grid = equation.params["name"], equation.params["grid_mapping"].grid
            tiles = times * math.prod(grid) // program.mesh.size
            kernels[name] = kernels.get(name, 0) + tiles * bundles[name]
    cycles = outside_of_kernels(hlo.HloModule(compiled.as_text()), chip, clock) | {"kernels": sum(kernels.values())}
    total = sum(cycles.values())
    return {
        "config": size,
        "bundles_of_a_tile": bundles,
        "kernels": kernels,
        "cycles": cycles | {"total": total},
        "milliseconds": 1e3 * total / clock,
        "temporaries": compiled.memory_analysis().temp_size_in_bytes,
    }


def bundles_of_tiles(folder: str) -> dict[str, int]:
    """Returns the bundles of a tile of each kernel in a dump of libtpu, by the kernel's name."""
    bundles: dict[str, int] = {}
    for path in glob.glob(f"{folder}/*schedule-analysis_final_bundles.txt"):
        if name := re.search(r"flash_[a-z]+", os.path.basename(path)):
            text = pathlib.Path(path).read_text()
            count = int(re.search(r"total scheduled bundles:\s+(\d+)", text)[1])
            bundles[name[0]] = max(count, bundles.get(name[0], 0))
    return bundles


def outside_of_kernels(module: hlo.HloModule, chip: flops.Chip, clock: float) -> dict[str, int]:
    """Returns the cycles of products, of moving other instructions' bytes, and of collectives."""
    cycles = {"products": 0.0, "memory": 0.0}
    for step in module.steps():
        if step.fused or step.instruction.target == "tpu_custom_call":
            continue
        moving = step.times * module.traffic(step) / chip.hbm_bandwidth * clock
        if estimated := re.search(r'"estimated_cycles":"(\d+)"', step.instruction.rest):
            cycles["products"] += max(step.times * int(estimated[1]), moving)
        else:
            cycles["memory"] += moving
    sent = sum(collective.sent * collective.times for collective in module.collectives())
    cycles["network"] = sent / chip.network_bandwidth * clock
    return {name: round(count) for name, count in cycles.items()}


if __name__ == "__main__":
    bench.main(run, sizes=tuple(CONFIGS))
