"""`train_step.py --device=gpu`: training steps on one NVIDIA GPU in bfloat16, one contestant at a time.

    python benchmarks/train_step.py --device=gpu --results=train_step_h100.json --commit=$(git rev-parse HEAD)
    python benchmarks/train_step.py --device=gpu --tiny         # to its end on any machine, without a GPU too

First `kernel_check.py` compares the flash kernel with plain attention. Then each contestant runs in a process that has
the GPU to itself: ours with its layers scanned and unrolled, and Hugging Face's PyTorch model (SDPA, fused AdamW, TF32,
autocast) compiled and eager. Blocks of steps are timed after a warm-up. A contestant that fails, runs out of memory on
a single row, or takes too long is reported with its error; the others continue. One that is out of memory is repeated
with half of the rows. `--results` saves every figure at once, and figures in it are not measured again, so the same
command resumes after an interruption.

MFU counts the model's FLOPs (`plm_jax/training/flops.py`) for both. Compile time is the first step minus a later one.
Peak memory is that of each framework's allocator. `speed_ratio` is the tokens per second of the faster one of ours over
the peer's. Needs jax, flax, optax and ml_collections; the peer torch and transformers.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import contestants
import machine

from plm_jax.training import flops

# The most important first, so that they are measured before the time is up.
OURS, PEERS = ("plm_jax_scan", "plm_jax"), ("torch_compile", "torch_eager")
ORDER = ("plm_jax_scan", "torch_compile", "plm_jax", "torch_eager")
WARM_UP_STEPS = 3
# Goals on one H100, none reached yet: figures of ours, and for each model the ratio to torch_compile.
GOALS = {
    "bert_large": {"sequences_per_second": 530},
    "gpt2_small": {"tokens_per_second": 550_000},
    "llama_1.1b": {"mfu": 0.55},
    "t5_1.1_large": {"mfu": 0.45},
}
GOAL_RATIO = 1.15


def add_flags(group) -> None:
    """Adds the flags of this benchmark."""
    group.add_argument("--contestants", nargs="+", choices=ORDER, default=ORDER)
    group.add_argument("--rounds", type=int, default=5, help="blocks of steps; the median counts")
    group.add_argument("--steps", type=int, default=10, help="steps a block")
    group.add_argument("--minutes", type=float, default=24.0, help="when this is over nothing more is begun")
    group.add_argument("--results", help="a JSON file of what is measured, also by calls before")
    group.add_argument("--seconds", type=float, default=240.0, help="the longest that one contestant may take")
    group.add_argument("--commit", default="", help="of a copy of the source without its history")


def compare(arguments, cases: dict[str, contestants.Case]) -> dict[str, Any]:
    """Returns the figures of all contestants on all models, and the check of the kernel."""
    deadline = time.monotonic() + 60 * arguments.minutes
    saved = before(arguments.results)
    results = {model: dict(saved.get("models", {}).get(model, {}).get("contestants", {})) for model in cases}
    kernels = saved.get("kernels", {})
    if not kernels.get("equal"):
        kernels = check_kernels(arguments) if machine.gpu() else {"equal": None, "error": "there is no GPU"}
    names = [name for name in arguments.contestants if arguments.peer != "none" or name not in PEERS]

    def report():
        return {
            "benchmark": "train_step",
            **machine.describe(arguments.commit),
            "precision": "bfloat16 over float32 parameters",
            "kernels": kernels,
            "models": saved.get("models", {})
            | {model: summary(model, cases[model], results[model]) for model in cases},
        }

    # First the main contestant of each side on every model, then the others.
    for model, name in sorted(((m, n) for m in cases for n in names), key=lambda pair: ORDER.index(pair[1]) > 1):
        if "error" not in results[model].get(name, {"error": "not measured"}):
            continue
        result = results[model][name] = measure_apart(arguments, model, cases[model], name, deadline)
        print(f"{model} {name}: {json.dumps(result)}", file=sys.stderr, flush=True)
        if arguments.results:
            with open(arguments.results, "w") as file:
                json.dump(report(), file, indent=2)
    return report()


def before(path: str | None) -> dict[str, Any]:
    """Returns the saved figures of earlier calls."""
    if path is None or not os.path.exists(path):
        return {}
    with open(path) as file:
        return json.load(file)


def check_kernels(arguments) -> dict[str, Any]:
    """Returns the result of `kernel_check.py`."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernel_check.py")
    try:
        done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, timeout=arguments.seconds)
    except subprocess.TimeoutExpired:
        return {"equal": False, "error": f"took more than {arguments.seconds:.0f} seconds"}
    result = json.loads(done.stdout) if done.stdout else {"equal": False, "error": f"died with {done.returncode}"}
    print(f"flash compared with plain attention: {json.dumps(result)}", file=sys.stderr, flush=True)
    return result


def summary(model: str, case: contestants.Case, results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns a model's shapes, the figures of its contestants and the ratios of speed."""
    speeds = {name: result["tokens_per_second"] for name, result in results.items() if "error" not in result}
    ours = max((speed for name, speed in speeds.items() if name in OURS), default=None)
    return {
        "length": case.length,
        "decoder_length": case.decoder_length,
        "targets": case.targets,
        "layers": case.run.model.stack.layers,
        "dropout": case.run.model.dropout.residual,
        "contestants": results,
        "speed_ratio": {name: ours / speed for name, speed in speeds.items() if name in PEERS and ours},
        "goals": GOALS.get(model, {}) | {"speed_ratio": {"torch_compile": GOAL_RATIO}},
    }


def measure_apart(arguments, model: str, case: contestants.Case, name: str, deadline: float) -> dict[str, Any]:
    """Returns the figures of a contestant, measured in a new process on as many rows as fit."""
    rows = case.rows
    while True:
        result = ask(arguments, model, rows, name, min(arguments.seconds, deadline - time.monotonic()))
        if rows == 1 or not out_of_memory(result.get("error", "")):
            return {"rows": rows, **result}
        rows //= 2


def out_of_memory(error: str) -> bool:
    """Whether an error of jax or torch reports missing memory."""
    return "RESOURCE_EXHAUSTED" in error or "out of memory" in error.lower()


def ask(arguments, model: str, rows: int, name: str, seconds: float) -> dict[str, Any]:
    """Returns the answer of a contestant's process, or an error if it takes too long."""
    if seconds <= 0:
        return {"error": f"not begun: the {arguments.minutes:g} minutes were over"}
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "train_step.py")
    flags = (f"--{flag}={getattr(arguments, flag)}" for flag in ("device", "length", "layers", "rounds", "steps"))
    command = [sys.executable, script, *flags, f"--model={model}", f"--rows={rows}", f"--contestant={name}"]
    command += ["--tiny"] * arguments.tiny
    # By default jax takes three quarters of the memory.
    environment = {"XLA_CLIENT_MEM_FRACTION": "0.92", **os.environ}
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {seconds:.0f} seconds"}
    return json.loads(done.stdout) if done.stdout else {"error": f"died with status {done.returncode}"}


def serve(arguments, case: contestants.Case, replies) -> None:
    """Measures a contestant and prints its figures or its error."""
    try:
        result = measure(contestants.make(arguments.contestant, case), arguments.rounds, arguments.steps)
        result |= speed(case, result)
        if not math.isfinite(result["last_loss"]):
            result = {"error": f"the loss is {result['last_loss']}", **result}
    except Exception as error:  # The other contestants continue after any error.
        result = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
    print(json.dumps(result), file=replies, flush=True)


def measure(contestant: contestants.Contestant, rounds: int, steps: int) -> dict[str, Any]:
    """Returns the seconds per step in `rounds` blocks of `steps`, those of the first step, two losses and the facts."""
    began = time.perf_counter()
    contestant.step()
    first_loss = contestant.wait()
    first_seconds = time.perf_counter() - began
    for _ in range(WARM_UP_STEPS):
        contestant.step()
    contestant.wait()
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(steps):
            contestant.step()
        last_loss = contestant.wait()
        seconds.append((time.perf_counter() - began) / steps)
    median = statistics.median(seconds)
    return {
        **contestant.facts(),
        "step_seconds": median,
        "all_step_seconds": seconds,
        "compile_seconds": first_seconds - median,
        "first_loss": first_loss,
        "last_loss": last_loss,
    }


def speed(case: contestants.Case, result: dict[str, Any]) -> dict[str, Any]:
    """Returns the tokens per second of encoder and decoder, and the MFU if the device's peak is known."""
    step = flops.per_step(case.run.model, case.rows, case.length, case.targets, case.decoder_length)
    chip = flops.chip(result["device"])
    return {
        "sequences_per_second": case.rows / result["step_seconds"],
        "tokens_per_second": case.rows * (case.length + case.decoder_length) / result["step_seconds"],
        "model_flops_per_step": step,
        "mfu": step / result["step_seconds"] / chip.flops if chip else None,
    }
