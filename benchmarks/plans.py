"""Plans of published models on slices and GPUs that are not here, by their compilers: memory, time and traffic.

    python benchmarks/plans.py                                  # all of them: hours on two cores
    python benchmarks/plans.py bert_large_v5e_4x4 elmo_v5e_2x4  # some
    python benchmarks/plans.py --table                          # the table of docs/tpu-pods.md from the saved results

Each row is a run of `plm_jax plan` on a shipped config with the flags of the row. Its result is written to
`results/plan_NAME.json` with commit, versions and CPU seconds of compilation. A row is only compiled again if the
package has changed since. At the end the table in docs/tpu-pods.md is updated.
"""

import argparse
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time
from typing import Any

import machine

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
PAGE = ROOT / "docs/tpu-pods.md"
# Encoders with a row in the batch for each of 512 chips, and those with fewer rows. A 512th of their widths is too
# small to shard: the weights are replicated.
MANY_ROWS = ("roberta:large", "electra:large", "albert:xxlarge", "albert:xlarge", "distilbert:base", "roberta:base")
MANY_ROWS += ("albert:large", "albert:base")
FEW_ROWS = ("bert:large", "spanbert:large", "bert:base", "electra:base", "electra:small", "spanbert:base")
ROWS_OF_512 = "--config.data.length=512 --config.train.phases=()"
# The most important first.
ROWS = {
    "bert_large_v5e_4x4": "bert:large v5e:4x4 --config.train.batch_size=1024 --config.train.microbatches=16",
    "bert_large_v5e_4x4_as_shipped": "bert:large v5e:4x4",
    "gpt2_xl_v5e_4x4": "gpt2:xl v5e:4x4",
    "llama_2_7b_v5p_4x4x4_as_maxtext": (
        "llama:2-7b v5p:4x4x4 --config.data.length=2048 --config.train.batch_size=256 --config.train.microbatches=1 "
        "--config.model.remat=full"
    ),
    "llama_2_7b_v5p_4x4x4": "llama:2-7b v5p:4x4x4",
    "llama_3.1_8b_v5p_4x4x4": "llama:3.1-8b v5p:4x4x4",
    "t5_1.1_xxl_v5p_4x4x8": "t5:1.1-xxl v5p:4x4x8",
    "llama_3.1_70b_v5p_8x8x8": "llama:3.1-70b v5p:8x8x8",
    "t5_11b_v5p_4x4x4": "t5:11b v5p:4x4x4",
    "gpt3_175b_v5p_8x8x16": "gpt3:175b v5p:8x8x16",
    "llama_3.1_405b_v5p_16x16x16": "llama:3.1-405b v5p:16x16x16",
    "llama_3.1_8b_128k_v5p_4x4x4": "llama:3.1-8b-128k v5p:4x4x4",
    "glm_10b_v6e_16x16": "glm:10b v6e:16x16",
    "elmo_original_v5e_2x4": "elmo:original v5e:2x4",
    "bert_large_two_v5e_4x4": "bert:large v5e:4x4 --slices=2 --config.mesh.data=2",
    **{f"{config.replace(':', '_')}_v5p_8x8x8": f"{config} v5p:8x8x8 --config.mesh.data=8" for config in MANY_ROWS},
    **{f"{config.replace(':', '_')}_v5p_4x4x4": f"{config} v5p:4x4x4" for config in FEW_ROWS},
    **{
        f"{name}_512_v5e_4x4": f"{config} v5e:4x4 --config.train.batch_size=1024 {ROWS_OF_512}"
        for name, config in (("bert_base", "bert:base"), ("bert_base_packed", "bert:base-packed"))
    },
    "bert_large_h100_1": (
        "bert:large gpu:h100:1 --config.train.batch_size=32 --config.train.microbatches=1 "
        "--config.model.scan_layers=no --config.model.remat=none"
    ),
    "bert_large_h100_8": "bert:large gpu:h100:8",
    "gpt2_small_h100_8": "gpt2:small gpu:h100:8",
    "llama_tiny_1.1b_h100_8": (
        "llama:tiny-1.1b gpu:h100:8 --config.data.length=4096 --config.train.batch_size=64 "
        "--config.train.microbatches=2"
    ),
    "t5_1.1_large_h100_8": "t5:1.1-large gpu:h100:8 --config.train.microbatches=8",
    "albert_xlarge_h100_8": "albert:xlarge gpu:h100:8 --config.train.microbatches=32",
    "bart_large_h100_8": "bart:large gpu:h100:8 --config.train.microbatches=50",
}
# AI-Hypercomputer/maxtext 0.2.5 with jax 0.12.0.1: its `train_compile` of llama2-7b on v5p-128, 4 × 2,048 tokens a
# chip, full rematerialisation, Splash attention.
MAXTEXT = {"row": "llama_2_7b_v5p_4x4x4_as_maxtext", "state": 1.26e9, "temporaries": 7.16e9}
BEGIN, END = "<!-- plans: written by benchmarks/plans.py -->", "<!-- end of plans -->"


def main() -> None:
    """Compiles the rows without a result, then writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; none: all")
    parser.add_argument("--table", action="store_true", help="compile nothing")
    parser.add_argument("--minutes", type=float, default=60, help="after which a row is given up (default: 60)")
    flags = parser.parse_args()
    for name in () if flags.table else flags.rows or ROWS:
        if name not in ROWS:
            parser.error(f"'{name}' is not a row: choose from {', '.join(ROWS)}")
        if (before := read(name)) and "plan" in before and unchanged(before["commit"]):
            print(f"{name}: there", file=sys.stderr, flush=True)
            continue
        print(f"{name}: {ROWS[name]}", file=sys.stderr, flush=True)
        result = planned(ROWS[name], flags.minutes)
        path(name).write_text(json.dumps({"row": name} | result, indent=2) + "\n")
        print(f"{name}: {result.get('error') or describe(result)}", file=sys.stderr, flush=True)
    results = {name: result for name in ROWS if (result := read(name))}
    text = PAGE.read_text()
    new_table = f"{BEGIN}\n{table(results)}\n{END}"
    PAGE.write_text(re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: new_table, text, flags=re.DOTALL))
    print(json.dumps({name: summary(result) for name, result in results.items()}, indent=2))


def unchanged(commit: str) -> bool:
    """Whether the package is the same as at a commit."""
    command = ["git", "-C", str(ROOT), "diff", "--quiet", commit, "--", "plm_jax", "configs"]
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


def path(name: str) -> pathlib.Path:
    """Returns the path of a row's result."""
    return RESULTS / f"plan_{name}.json"


def read(name: str) -> dict[str, Any] | None:
    """Returns a row's result, or None."""
    return json.loads(path(name).read_text()) if path(name).exists() else None


def planned(row: str, minutes: float) -> dict[str, Any]:
    """Runs `plan` for a row; returns its result and the machine."""
    config, topology, *flags = shlex.split(row)
    arguments = [f"--config={config}", f"--topology={topology}", *flags]
    result = machine.describe() | {"command": shlex.join(["plm_jax", "plan", *arguments])}
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "plan.json"
        command = [sys.executable, "-m", "plm_jax", "plan", *arguments, f"--output={output}"]
        before, began = os.times(), time.perf_counter()
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60 * minutes)
            error = done.stderr.strip().splitlines()[-1] if done.returncode else None
        except subprocess.TimeoutExpired:
            error = f"given up after {minutes:g} minutes"
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        result |= {"wall_seconds": time.perf_counter() - began, "processor_seconds": used}
        return result | ({"error": error} if error else {"plan": json.loads(output.read_text())})


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures that are compared between rows."""
    plan = result.get("plan")
    if plan is None:
        return {"error": result["error"]}
    memory = plan["bytes_per_device"]
    figures = {"mesh": {axis: size for axis, size in plan["mesh"].items() if size > 1}, "remat": plan["remat"]}
    figures |= {"microbatches": plan["stage"]["microbatches"], "fits": plan["fits"]}
    figures |= {
        "state_gb": (memory["parameters"] + memory["optimizer"]) / 1e9,
        "total_gb": memory["total"] and memory["total"] / 1e9,
    }
    figures |= {"processor_seconds": result["processor_seconds"]}
    if "estimate" not in plan:
        return figures | {"suggestion": plan.get("suggestion")}
    alone = plan["estimate"]["seconds_alone"]
    network = sum(seconds for name, seconds in alone.items() if name not in ("compute", "memory"))
    sent = {form: sum(of[form] for of in plan["collectives"].values()) for form in ("bytes", "synchronous")}
    return figures | {
        "temporaries_gb": memory["temporaries"] / 1e9,
        "program_over_model_flops": plan["program_flops_per_step"] / plan["model_flops_per_step"],
        "memory_over_compute": alone["memory"] / alone["compute"],
        "network_over_compute": network / alone["compute"],
        "sent_gb": sent["bytes"] / 1e9,
        "synchronous_share": sent["synchronous"] / sent["bytes"] if sent["bytes"] else 0.0,
        "all_reduced_gb": plan["collectives"].get("all-reduce", {"bytes": 0})["bytes"] / 1e9,
        "seconds_at_best": plan["estimate"].get("bound_seconds", plan["estimate"]["seconds"]["optimistic"]),
        "bound": plan["estimate"]["bound"],
        "seconds": plan["estimate"]["seconds"] if plan["estimate"].get("mfu") else None,
        "mfu": plan["estimate"].get("mfu"),
    }


def describe(result: dict[str, Any]) -> str:
    """Formats a result in a line."""
    return ", ".join(f"{name} {value}" for name, value in summary(result).items())


def table(results: dict[str, dict[str, Any]]) -> str:
    """Formats the results as a Markdown table, with MaxText's figures below ours."""
    lines = [
        "| config and topology | mesh, microbatches, remat | state + temporary buffers (GB) "
        "| memory time, transfer time (compute = 1) | GB sent per step (synchronous share) | lower bound of a step "
        "| estimate of a step, MFU | compilation |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        lines.append(_line(result))
        if name == MAXTEXT["row"]:
            state, temporaries = MAXTEXT["state"] / 1e9, MAXTEXT["temporaries"] / 1e9
            lines.append(f"| the same by MaxText 0.2.5 | fsdp 64 | {state:.2f} + {temporaries:.2f} | | | | | |")
    return "\n".join(lines)


def _line(result: dict[str, Any]) -> str:
    short = summary(result)
    run = result["command"].removeprefix("plm_jax plan ").replace("--config=", "").replace("--topology=", "")
    run = f"`{run.replace('--config.', '')}`"
    if "error" in short:
        return f"| {run} | {short['error']} | | | | | | |"
    mesh = " × ".join(f"{axis} {size}" for axis, size in short["mesh"].items()) or "one"
    layout = f"{mesh}, {short['microbatches']}, {short['remat']}"
    compiling = f"{short['processor_seconds']:.0f} s"
    if "seconds_at_best" not in short:
        verdict = f"does not fit: {short['total_gb']:.1f}" if short["total_gb"] else "does not fit"
        return f"| {run} | {layout} | {verdict} | | | | | {compiling} |"
    return (
        f"| {run} | {layout} | {short['state_gb']:.2f} + {short['temporaries_gb']:.2f} "
        f"| {short['memory_over_compute']:.2f}, {short['network_over_compute']:.2f} "
        f"| {short['sent_gb']:.1f} ({short['synchronous_share']:.1%}) "
        f"| {short['seconds_at_best']:.3g} s, {short['bound']} | {_estimate(short)} | {compiling} |"
    )


def _estimate(short: dict[str, Any]) -> str:
    """Formats the bracket of a step's time and its MFU; results of older commits and GPUs have none."""
    if short["mfu"] is None:
        return ""
    ends = [short["seconds"][name] for name in ("middle", "optimistic", "pessimistic")]
    return "{:.3g} s ({:.3g} to {:.3g}), ".format(*ends) + f"{short['mfu']['middle']:.0%}"


if __name__ == "__main__":
    main()
