"""Cycles of vector code: those that the TPU compiler estimates, those of its schedules, and those that `plan` counts.

    python benchmarks/vector_bundles.py > benchmarks/results/vector_bundles.json     # ten minutes and 2 GB of dumps

Compiles a step of BERT-large with two layers for v5e:4x4. Most instructions are one loop over windows of their arrays,
whose bundles the compiler schedules, about one a cycle; times the number of windows, they are the cycles without
waiting for memory. Instructions with matrix products and kernels are left out. Prints JSON: cycles of a step by kind of
operation, and the number of instructions.
"""

import glob
import math
import os
import pathlib
import re
import tempfile
from typing import Any

import bench

DUMP = "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true"
CHANGES = {"model.stack.layers": 2, "train.batch_size": 1024, "train.microbatches": 16}


def run(dump: str = "", program: str = "") -> dict:
    """Compares the cycles of each kind.

    Args:
      dump: folder of an earlier dump.
      program: text of the program of this dump.
    """
    if dump:
        return compared(pathlib.Path(dump), pathlib.Path(program).read_text())
    with tempfile.TemporaryDirectory() as folder:
        environment = {"LIBTPU_INIT_ARGS": DUMP.format(folder)}
        text = bench.fresh(compiled, env=os.environ | environment)
        return compared(pathlib.Path(folder), text)


def compiled() -> str:
    """Returns the text of the compiled step."""
    from plm_jax.common import command_line

    os.environ |= command_line.WITHOUT_TPU | {"JAX_PLATFORMS": "cpu"}
    from plm_jax import config
    from plm_jax.common import overrides
    from plm_jax.config import files
    from plm_jax.planning import plan

    base = config.from_dict(files.load("configs/bert.py:large").config())
    programs = plan.Programs(config.from_dict(overrides.overridden(base, CHANGES)), plan.slice_devices("v5e:4x4"))
    phase = plan.costliest_phase(programs.run)
    step = programs.at(phase).phase_step(phase)
    return step.trace(*plan.step_inputs(programs, phase)).lower().compile().as_text()


def compared(folder: pathlib.Path, text: str) -> dict[str, Any]:
    """Returns the cycles of the vector code of a step in three ways."""
    from plm_jax.planning import hlo, operations

    bundles = {}
    for path in glob.glob(f"{folder}/*schedule-analysis_final_bundles.txt"):
        if name := re.fullmatch(r"\d+-(.*)-\d+-schedule-analysis_final_bundles.txt", os.path.basename(path)):
            match = re.search(r"total scheduled bundles:\s+(\d+)", pathlib.Path(path).read_text())
            bundles[name[1]] = int(match[1]) if match else 0
    model = operations.CostModel(hlo.HloModule(text), "TPU v5 lite", [0] * 16, drops=True, rings=False)
    clock = model.chip.flops / model.core.flops_per_cycle
    kinds: dict[str, dict[str, float]] = {}
    for step in model.module.steps():
        cost, rest = model.cost(step) if not step.fused else None, step.instruction.rest
        cycles = re.search(r'"estimated_cycles":"(\d+)"', rest)
        windows = re.search(r'"iteration_bounds":\[([^\]]*)\]', rest)
        if cost is None or cost.product_flops or not cycles or step.instruction.name not in bundles:
            continue
        count = math.prod(int(size) for size in re.findall(r"\d+", windows[1])) if windows else 1
        sums = kinds.setdefault(cost.kind, dict.fromkeys(("estimated", "scheduled", "counted", "instructions"), 0.0))
        sums["estimated"] += step.times * int(cycles[1])
        sums["scheduled"] += step.times * count * bundles[step.instruction.name]
        sums["counted"] += step.times * cost.core * clock
        sums["instructions"] += 1
    total = {name: sum(sums[name] for sums in kinds.values()) for name in next(iter(kinds.values()))}
    shares = {name: total[name] / total["scheduled"] for name in ("estimated", "counted")}
    return {"kinds": kinds, "total": total, "as_multiple_of_scheduled": shares}


if __name__ == "__main__":
    bench.main(run)
