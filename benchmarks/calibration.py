"""Estimated seconds of a step beside those that others published for the same model, slice and batch.

    python benchmarks/calibration.py --programs=DIR            # compiles what is missing in DIR: minutes each
    python benchmarks/calibration.py --programs=DIR llama_70b  # only these
    python benchmarks/calibration.py --table                   # the saved results as a table

Every case is a decoder with the dimensions of the published one, compiled for the same slice. The constant
`products` of `planning.step_time` is fitted to the other cases that are judged, so no case is judged by a constant that
it has determined. Writes `results/calibration.json`.
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import time
from typing import Any, NamedTuple

import bench
import machine

ROOT = pathlib.Path(__file__).parents[1]
RESULT, PAGE = ROOT / "benchmarks/results/calibration.json", ROOT / "docs/tpu-pods.md"
BEGIN, END = "<!-- calibration: written by benchmarks/calibration.py -->", "<!-- end of calibration -->"
MAXTEXT, FUJI = "AI-Hypercomputer/maxtext", "apple/axlearn experiments/text/gpt/fuji.py"
# MaxText's names of v5p slices count cores: v5p-128 has 64 chips. `global_parameter_scale` in its `configs/base.yml`
# scales a width of 2,048, 16 heads of 128, a feed-forward width of 7,168 and 16 layers, as in
# `pyconfig.get_individual_scales`.
SIZES = {
    "16b": {"layers": 32, "width": 4096, "heads": 64, "feed_forward": 28672},
    "32b": {"layers": 32, "width": 8192, "heads": 64, "feed_forward": 28672},
    "64b": {"layers": 64, "width": 8192, "heads": 64, "feed_forward": 28672},
    "70b": {"layers": 80, "width": 8192, "heads": 64, "feed_forward": 28672},
    "7b": {"layers": 32, "width": 4096, "heads": 32, "feed_forward": 11008},
}
V5E_TABLE = f"{MAXTEXT} README.md, runtime performance, 1x v5e-256; MaxText/configs/v5e/"


class Case(NamedTuple):
    """Published run.

    Attributes:
      size: key of SIZES.
      config: config file of ours that is changed to these dimensions.
      topology: slice.
      rows: global batch.
      length: tokens of a row.
      remat: level of recomputation of ours; `projections` keeps the products of a layer except gate and up.
      mesh: axes that are not the default `fsdp`.
      kernel: implementation of attention.
      source: where the figures stand.
      tflops: published TFLOP/s per chip, by MaxText's count of FLOPs.
      tokens: published tokens/s per chip.
      seconds: published seconds of a step, or the ends of a range.
      note: difference from the published run; such cases are not judged.
    """

    size: str
    config: str
    topology: str
    rows: int
    length: int
    remat: str
    source: str
    mesh: str = ""
    kernel: str = "auto"
    tflops: float = 0.0
    tokens: float = 0.0
    seconds: tuple[float, ...] = ()
    note: str = ""


CASES = {
    "maxtext_16b": Case("16b", "llama:2-7b", "v5e:16x16", 6 * 256, 2048, "full", V5E_TABLE + "16b.sh", tflops=120),
    "maxtext_32b": Case("32b", "llama:2-7b", "v5e:16x16", 4 * 256, 2048, "full", V5E_TABLE + "32b.sh", tflops=132),
    "maxtext_64b": Case("64b", "llama:2-7b", "v5e:16x16", 2 * 256, 2048, "full", V5E_TABLE + "64b.sh", tflops=118),
    "llama_70b": Case(
        "70b",
        "llama:2-70b",
        "v5p:8x8x8",
        4 * 512,
        4096,
        "projections",
        f"{MAXTEXT} docs/reference/models/tiering.md: 512 chips, 65.4 %, 692 tokens/s per device; "
        "MaxText/configs/v5p/llama2_70b.sh: 4 rows per device, save_dot_except_mlpwi",
        tokens=692,
    ),
    "llama_7b": Case(
        "7b",
        "llama:2-7b",
        "v5p:4x8x8",
        1024,
        4096,
        "projections",
        f"arXiv 2507.05411, training performance: Llama2-7B on tpu-v5p-512 (256 chips) 2.5 s; {FUJI}, v2: 4M tokens, "
        "rows of 4,096, fsdp 8",
        mesh="data=32",
        seconds=(2.5,),
    ),
    "llama_7b_v1": Case(
        "7b",
        "llama:1-7b",
        "v5p:4x8x8",
        2048,
        2048,
        "projections",
        f"{FUJI}, v1 on tpu-v5p-512 (256 chips): 2.85 s",
        mesh="data=32",
        kernel="xla",
        seconds=(2.85,),
        note="of two configs named v1 we assume the one without flash attention",
    ),
    "llama_7b_v5e": Case(
        "7b",
        "llama:1-7b",
        "v5e:4x8",
        64,
        2048,
        "projections",
        f"{FUJI}, single-host v1 on tpu-v5litepod-32: 128K tokens in 1.93 s",
        mesh="data=2",
        seconds=(1.93,),
        note="of two configs named v1 we assume the one with flash attention, and a mesh of data 2 × fsdp 16",
    ),
    "maxtext_32b_v5p": Case(
        "32b",
        "llama:2-7b",
        "v5p:4x4x4",
        5 * 64,
        2048,
        "dots",
        f"{MAXTEXT} MaxText/configs/v5p/README.md and 32b.sh, 1x v5p-128: 328 TFLOP/s, 7 rows per device",
        mesh="tensor=4",
        tflops=328,
        note="5 rows per device instead of 7, which do not fit with what `dots` keeps",
    ),
}
JUDGED = [name for name, case in CASES.items() if not case.note]
COUNTS = ("kind", "devices", "parameters", "model_flops", "program_flops", "temporaries")
# Named in the same sources, but not rebuilt: q, k and v are offloaded to the host, which no `model.remat` does.
NOT_REBUILT = ("maxtext_128b on v5e:16x16", "llama:3.1-8b and 3.1-70b on v6e:16x16")


def main() -> None:
    """Compiles what is missing, then compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; none: all")
    parser.add_argument("--programs", type=pathlib.Path, help="folder of compiled programs, NAME.hlo and NAME.json")
    parser.add_argument("--compile", metavar="CASE", help="compile only this case, in this process")
    parser.add_argument("--table", action="store_true", help="compile nothing")
    flags = parser.parse_args()
    if flags.compile:
        compile_case(flags.compile, flags.programs)
        return
    if not flags.table:
        flags.programs.mkdir(parents=True, exist_ok=True)
        for name in flags.cases or CASES:
            if not (flags.programs / f"{name}.json").exists():
                bench.log(f"{name}: compiling")
                command = [sys.executable, __file__, f"--programs={flags.programs}", f"--compile={name}"]
                subprocess.run(command, check=False, cwd=ROOT)
        results = compare({name: path for name in CASES if (path := flags.programs / f"{name}.json").exists()})
        RESULT.write_text(json.dumps(machine.describe() | results, indent=2) + "\n")
    written = table(json.loads(RESULT.read_text()))
    block = f"{BEGIN}\n{written}\n{END}"
    text = PAGE.read_text()
    PAGE.write_text(re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: block, text, flags=re.DOTALL))
    print(written)


def compile_case(name: str, folder: pathlib.Path) -> None:
    """Compiles the step of a case and writes its text and what the estimate needs besides."""
    from plm_jax.common import command_line

    os.environ |= command_line.WITHOUT_TPU | {"JAX_PLATFORMS": "cpu"}
    import jax

    from plm_jax.models import stack
    from plm_jax.planning import plan
    from plm_jax.runs import phase_costs
    from plm_jax.training import flops

    projections = ("query", "key", "value", "out", "down")
    stack.REMAT_POLICIES["minimal"] = jax.checkpoint_policies.save_only_these_names(stack.RESIDUALS, *projections)
    programs = plan.Programs(run_of(CASES[name]), plan.slice_devices(CASES[name].topology))
    phase = plan.costliest_phase(programs.run)
    program = programs.at(phase)
    began = time.perf_counter()
    traced = program.phase_step(phase).trace(*plan.step_inputs(programs, phase))
    compiled = traced.lower().compile()
    (folder / f"{name}.hlo").write_text(compiled.as_text())
    facts = {
        "kind": program.mesh.devices.flat[0].device_kind,
        "devices": program.mesh.size,
        "parameters": sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(program.abstract_state.params)),
        "model_flops": phase_costs.model_flops(programs.run, phase),
        "program_flops": flops.of_program(traced.jaxpr.jaxpr),
        "temporaries": compiled.memory_analysis().temp_size_in_bytes,
        "compile_seconds": time.perf_counter() - began,
    }
    (folder / f"{name}.json").write_text(json.dumps(facts, indent=2))


def run_of(case: Case) -> Any:
    """Returns a run with the dimensions of a case."""
    from plm_jax import config
    from plm_jax.common import overrides
    from plm_jax.config import files

    size = SIZES[case.size]
    changes = {
        "model.stack.layers": size["layers"],
        "model.embedding.width": size["width"],
        "model.attention.heads": size["heads"],
        "model.feed_forward.width": size["feed_forward"],
        "model.attention_kernel": case.kernel,
        "model.remat": "minimal" if case.remat == "projections" else case.remat,
        "data.length": case.length,
        "train.batch_size": case.rows,
        "train.microbatches": 1,
    }
    if case.mesh:
        axis, value = case.mesh.split("=")
        changes[f"mesh.{axis}"] = int(value)
    page, _, name = case.config.partition(":")
    run = config.from_dict(
        overrides.overridden(config.from_dict(files.load(f"configs/{page}.py:{name}").config()), changes)
    )
    return dataclasses.replace(run, model=run.model.with_speed(scan_layers=True))


def published(case: Case, parameters: int, chips: int) -> tuple[float, str]:
    """Returns the published seconds of a step and how they follow from the source."""
    tokens = case.rows * case.length / chips
    if case.seconds:
        middle = math.sqrt(case.seconds[0] * case.seconds[-1])
        return middle, " to ".join(f"{value:g} s" for value in case.seconds)
    if case.tokens:
        return tokens / case.tokens, f"{tokens:,.0f} tokens per chip / {case.tokens:g} tokens/s"
    size = SIZES[case.size]
    # `maxtext_utils.calculate_tflops_training_per_device` of that time: causal attention counts half.
    weights = 6 * parameters * tokens
    attention = 12 * size["heads"] * size["layers"] * 128 * case.length * tokens / 2
    text = f"(6 × {parameters:,} × {tokens:,.0f} + {attention:.4g}) FLOPs / {case.tflops:g} TFLOP/s"
    return (weights + attention) / case.tflops / 1e12, text


def compare(paths: dict[str, pathlib.Path]) -> dict[str, Any]:
    """Returns the estimates of compiled cases beside the published seconds."""
    from plm_jax.planning import step_time
    from plm_jax.planning.timeline import Assumptions, Timeline

    models, rows, seconds = {}, {}, {}
    for name, path in paths.items():
        facts = json.loads(path.read_text())
        models[name] = model_of(CASES[name], facts, path.with_suffix(".hlo").read_text())
        seconds[name], text = published(CASES[name], facts["parameters"], facts["devices"])
        counts = {count: facts[count] for count in COUNTS if count in facts}
        rows[name] = CASES[name]._asdict() | {"published_seconds": seconds[name], "arithmetic": text} | counts
    ends = (0.8, 1.2)
    at_ends = {
        name: [Timeline(model, step_time.MIDDLE._replace(products=end)).run().now for end in ends]
        for name, model in models.items()
    }

    def fitted(names: list[str]) -> float:
        """Returns the factor of products with the least squares of logarithms; times are linear in it."""

        def error(factor: float) -> float:
            share = (factor - ends[0]) / (ends[1] - ends[0])
            times = {name: at_ends[name][0] + share * (at_ends[name][1] - at_ends[name][0]) for name in names}
            return sum(math.log(times[name] / seconds[name]) ** 2 for name in names)

        return min((number / 200 for number in range(160, 241)), key=error)

    judged = [name for name in models if name in JUDGED]
    for name, model in models.items():
        factor = fitted([other for other in judged if other != name])
        time_ = step_time.time_step(model, step_time.MIDDLE._replace(products=factor))
        by_cycles = Timeline(model, Assumptions(vector=1.0)).run().now
        rows[name] |= {"products_of_others": factor, "optimistic": time_.optimistic, "middle": time_.middle}
        rows[name] |= {"pessimistic": time_.pessimistic, "error": time_.middle / seconds[name] - 1}
        rows[name] |= {"by_compilers_cycles": by_cycles, "seconds_by_kind": dict(time_.clock.by_kind)}
    within = [name for name in judged if abs(rows[name]["error"]) <= 0.15]
    inside = [name for name in judged if rows[name]["optimistic"] <= seconds[name] <= rows[name]["pessimistic"]]
    summary: dict[str, float] = {"judged": len(judged), "within_15_percent": len(within), "within_bracket": len(inside)}
    summary |= {"products_of_all": fitted(judged)}
    return {"summary": summary, "cases": rows, "not_rebuilt": NOT_REBUILT}


def model_of(case: Case, facts: dict[str, Any], text: str) -> Any:
    """Returns the costs of a compiled case."""
    from plm_jax.planning import hlo, operations, slices

    sizes = [int(size) for size in case.topology.partition(":")[2].split("x")]
    return operations.CostModel(
        hlo.HloModule(text), facts["kind"], [0] * facts["devices"], rings=slices.has_rings([*sizes, 1][:3])
    )


def table(results: dict[str, Any]) -> str:
    """Formats the comparison as a Markdown table."""
    lines = [
        "| case | slice, rows × length, remat | published | estimate without this case | error | compiler's cycles |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in results["cases"].items():
        label = "" if name in JUDGED else " (not fitted)"
        bracket = f"{row['middle']:.2f} s ({row['optimistic']:.2f} to {row['pessimistic']:.2f})"
        lines.append(
            f"| {name.replace('_', ' ')}{label} "
            f"| {row['topology']}, {row['rows']:,} × {row['length']:,}, {row['remat']} "
            f"| {row['published_seconds']:.2f} s | {bracket} | {row['error']:+.1%} "
            f"| {row['by_compilers_cycles']:.2f} s |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
