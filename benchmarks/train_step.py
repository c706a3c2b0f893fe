"""A training step of plm_jax compared with a peer's: same shapes, same precision, on the same machine.

    python benchmarks/train_step.py --model=gpt2_small --peer=torch     # on a CPU, in float32
    python benchmarks/train_step.py --device=gpu                        # on an NVIDIA GPU, in bfloat16: see on_gpu.py

On a CPU each contestant is a process that builds its model, warms up, and then takes one step on request, so that no
two run at once. Prints JSON: seconds per step (medians over the interleaved rounds) and ratios ours / peer. The peers
are Hugging Face's PyTorch models with fused AdamW, eager and compiled; BERT's twice: unchanged, with the head on every
position (`torch_default`), and tuned, with the head on masked positions only. Each runs as its users run it: torch in
the plain environment, ours with the memory settings of `launch/environment.sh` and `pretrain`. `--same_memory` uses
these settings for torch, too. With `--before`, another checkout of plm_jax is one of the contestants.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import contestants
import machine
import on_gpu

CONFIGS = {
    "gpt2_small": "gpt2.py:small",
    "gpt2_medium": "gpt2.py:medium",
    "bert_base": "bert.py:base",
    "bert_large": "bert.py:large",
    "t5_base": "t5.py:base",
    "t5_small": "t5.py:small",
    "t5_1.1_large": "t5.py:1.1-large",
    "bert_large_128": "bert.py:large",
    "llama_1.1b": "llama.py:tiny-1.1b",
    "albert_xlarge": "albert.py:xlarge",
    "bart_large": "bart.py:large",
}
# Rows, length and targets per row by device and model; on a GPU published lengths and rows for 80 GB, the most
# important first.
SHAPES = {
    "cpu": {
        "gpt2_small": (4, 256, 256),
        "gpt2_medium": (2, 256, 256),
        "bert_base": (8, 128, 20),
        "bert_large": (4, 128, 20),
        "t5_base": (4, 256, 58),
        "t5_small": (8, 256, 58),
    },
    "gpu": {
        "bert_large": (32, 512, 76),
        "gpt2_small": (32, 1024, 1024),
        "llama_1.1b": (4, 4096, 4096),
        "bert_large_128": (128, 128, 20),
        "t5_1.1_large": (32, 512, 114),
        "albert_xlarge": (32, 512, 76),
        "bart_large": (16, 512, 512),
    },
}
# Models trained with the dropout of their config, which is the paper's; the others have none.
DROPOUT = {"gpu": ("bert_large", "bert_large_128")}
TINY = {"rows": 2, "length": 64, "layers": 2, "pairs": 2, "rounds": 2, "steps": 2}
TUNED = ("torch_eager", "torch_compile")
# Name of another checkout of plm_jax.
BEFORE = "plm_jax_before"


def main() -> None:
    """Measures all contestants, or runs one of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--device", choices=SHAPES, default="cpu")
    parser.add_argument("--model", choices=CONFIGS, help="default: gpt2_small; on a GPU all that are measured there")
    parser.add_argument("--peer", choices=("torch", "none"), default="torch")
    parser.add_argument("--rows", type=int, default=0, help="rows of the batch; 0: the model's own")
    parser.add_argument("--length", type=int, default=0, help="tokens a row; 0: the model's own")
    parser.add_argument("--layers", type=int, default=0, help="for a quick try; 0: the model's own")
    parser.add_argument("--tiny", action="store_true", help="a narrow model of two layers, few short steps")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    on_cpu = parser.add_argument_group("with --device=cpu")
    on_cpu.add_argument("--pairs", type=int, default=7)
    on_cpu.add_argument("--same_memory", action="store_true", help="torch with our memory settings")
    on_cpu.add_argument("--before", default="", help="directory of another checkout to compare, such as a git worktree")
    on_gpu.add_flags(parser.add_argument_group("with --device=gpu"))
    arguments = parser.parse_args()
    shapes = SHAPES[arguments.device]
    models = [arguments.model] if arguments.model else list(shapes) if arguments.device == "gpu" else ["gpt2_small"]
    if models[0] not in shapes:
        parser.error(f"{models[0]} is not measured on a {arguments.device}: choose --model from {', '.join(shapes)}")
    if arguments.tiny:
        vars(arguments).update(TINY)
    cases = {model: make_case(arguments, model) for model in models}
    if arguments.contestant:
        replies = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        answer = serve if arguments.device == "cpu" else on_gpu.serve
        answer(arguments, cases[models[0]], replies)
    elif arguments.device == "gpu" and not arguments.tiny and machine.gpu() is None:
        parser.error("there is no NVIDIA GPU here: add --tiny to try the benchmark out")
    else:
        compare_all = compare if arguments.device == "cpu" else on_gpu.compare
        print(json.dumps(compare_all(arguments, cases), indent=2))


def make_case(arguments, model: str) -> contestants.Case:
    """Returns the case that the flags describe."""
    rows, length, targets = SHAPES[arguments.device][model]
    longer = arguments.length or length
    return contestants.Case(
        config=CONFIGS[model],
        rows=arguments.rows or rows,
        length=longer,
        targets=targets * longer // length,
        layers=arguments.layers,
        device=arguments.device,
        narrow=arguments.tiny,
        dropout=model in DROPOUT.get(arguments.device, ()),
    )


def compare(arguments, cases: dict[str, contestants.Case]) -> dict:
    """Returns the figures of all contestants on a CPU."""
    ((model, case),) = cases.items()
    peers = (*(["torch_default"] if model.startswith("bert") else []), *TUNED)
    before = [BEFORE] if arguments.before else []
    names = ("plm_jax", *before, *(peers if arguments.peer == "torch" else ()))
    workers = {name: start(name, arguments) for name in names}
    seconds = {name: [] for name in names}
    for name, worker in workers.items():
        ask(name, worker)
    for number in range(arguments.pairs):
        for name, worker in workers.items():
            seconds[name].append(ask(name, worker))
        print(f"round {number + 1} of {arguments.pairs}", file=sys.stderr)
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "model": model,
        "rows": case.rows,
        "length": case.length,
        "targets": case.targets,
        "precision": "float32",
        "same_memory": arguments.same_memory,
        "machine": machine.describe(),
        "before": machine.commit(arguments.before) if arguments.before else None,
        "median_seconds": medians,
        "all_seconds": seconds,
        "ratio": {name: medians["plm_jax"] / medians[name] for name in names[1:]},
        "median_of_paired_ratios": {
            name: statistics.median(a / b for a, b in zip(seconds["plm_jax"], seconds[name], strict=True))
            for name in names[1:]
        },
    }


# Settings of `launch/environment.sh` and `command_line.keep_freed_memory`.
MEMORY = ":".join(
    f"glibc.malloc.{setting}" for setting in ("hugetlb=1", "mmap_max=0", "trim_threshold=1000000000000", "arena_max=1")
)


def start(name: str, arguments: argparse.Namespace) -> subprocess.Popen:
    """Starts the process of a contestant."""
    root, flags = os.path.dirname(os.path.dirname(os.path.abspath(__file__))), list(sys.argv[1:])
    if arguments.before:  # A flag that the other checkout may not have.
        at = next(number for number, flag in enumerate(flags) if flag.startswith("--before"))
        del flags[at : at + (1 if "=" in flags[at] else 2)]
    if name == BEFORE:
        name, root = "plm_jax", os.path.abspath(arguments.before)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if name == "plm_jax" or arguments.same_memory:
        environment["GLIBC_TUNABLES"] = MEMORY
    script = os.path.join(root, "benchmarks", "train_step.py")
    command = [sys.executable, script, *flags, f"--contestant={name}"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def ask(name: str, worker: subprocess.Popen) -> float:
    """Requests a step from a contestant; returns its seconds."""
    worker.stdin.write("step\n")
    worker.stdin.flush()
    reply = worker.stdout.readline()
    if not reply:
        sys.exit(f"contestant {name} died")
    return float(reply)


def serve(arguments, case: contestants.Case, replies) -> None:
    """Takes a step for each input line and prints its seconds; the first three, which compile, are the warm-up."""
    contestant = contestants.make(arguments.contestant, case)

    def step():
        contestant.step()
        contestant.wait()

    for _ in range(3):
        step()
    for _ in sys.stdin:
        began = time.perf_counter()
        step()
        print(time.perf_counter() - began, file=replies, flush=True)


if __name__ == "__main__":
    main()
