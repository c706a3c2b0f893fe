"""GPT-2 124M trained on real text for five minutes on one NVIDIA GPU: loss against wall time.

    python benchmarks/gpu_pretrain.py --prepare                     # where TensorFlow is: writes the cache, 8 MB
    python benchmarks/gpu_pretrain.py --plot=gpu_pretrain.png       # with that cache, where the GPU is

Runs `pretrain` on `configs/gpt2.py:small` with the overrides below: a batch of 64 × 1,024 tokens, no dropout, and a
constant learning rate, so that the run may end at any time. It is interrupted by SIGINT once the minutes since its
first row of metrics are over. Prints one JSON object with a row for each row of metrics; `seconds` count from the start
of the process, including compilation. The text is small (2.3 million tokens): within five minutes every token is read
many times and the validation loss rises again.
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import machine

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = "webtext"
INTERRUPTED = 75
OVERRIDES = {
    "model.dropout.embedding": 0.0,
    "model.dropout.attention": 0.0,
    "model.dropout.residual": 0.0,
    "data.validation_fraction": 0.05,
    "schedule.kind": "constant",
    "schedule.warmup_steps": 100,
    "train.steps": 1_000_000,
    "train.batch_size": 64,
    "train.microbatches": 2,
    "evaluation.every": 100,
    "evaluation.max_batches": 4,
    "checkpoint.save_every": 1_000_000,
}
TINY = {
    "model.embedding.width": 64,
    "model.attention.heads": 2,
    "model.attention.head_dim": 32,
    "model.feed_forward.width": 128,
    "model.stack.layers": 2,
    "data.length": 64,
    "train.batch_size": 2,
    "train.log_every": 1,
    "evaluation.every": 1,
    "evaluation.batch_size": 2,
}
COLUMNS = {
    "train/loss": "loss",
    "validation/loss": "validation_loss",
    "train/tokens_per_second": "tokens_per_second",
    "train/mfu": "mfu",
    "train/data_wait_seconds": "data_wait_seconds",
}


def parse(flags: list[str] | None = None) -> argparse.Namespace:
    """Parses flags, by default those of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", action="store_true", help="write the cache and stop")
    parser.add_argument("--cache", default=str(ROOT / ".cache" / "gpu_pretrain"), help="the cache's folder")
    parser.add_argument("--corpus", default=str(ROOT / "plm_jax/data/corpora/*.jsonl.gz"), help="JSON lines, a glob")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--plot", help="where to draw the curve, a PNG file")
    parser.add_argument("--commit", default="", help="of a copy of the source without its history")
    parser.add_argument("--tiny", action="store_true", help="a narrow model on few short rows, to try it out")
    arguments = parser.parse_args(flags)
    if not arguments.prepare and not manifest(arguments).exists():
        parser.error(f"there is no cache in {arguments.cache}: run with --prepare first, where TensorFlow is installed")
    return arguments


def manifest(arguments) -> pathlib.Path:
    """Returns the path of the cache's manifest."""
    return pathlib.Path(arguments.cache) / SOURCE / "manifest.json"


def main() -> None:
    """Prepares the cache, or trains and prints the result."""
    arguments = parse()
    if arguments.prepare:
        sys.exit(subprocess.run(command("prepare", arguments), cwd=ROOT, stdout=sys.stderr).returncode)
    with tempfile.TemporaryDirectory() as workdir:
        rows, status = train(arguments, pathlib.Path(workdir))
    if not rows:
        sys.exit(f"pretrain ended with status {status} before its first row of metrics")
    print(json.dumps(result(arguments, rows), indent=2))
    if arguments.plot:
        plot(rows, arguments.plot)
    if status != INTERRUPTED:
        sys.exit(f"pretrain ended by itself with status {status}")


def overrides(arguments) -> dict:
    """Returns the overrides of the config file."""
    paths = {f"data.sources.{SOURCE}.path": os.path.abspath(arguments.corpus)}
    paths |= {"data.cache_dir": os.path.abspath(arguments.cache)}
    return OVERRIDES | paths | (TINY if arguments.tiny else {})


def command(verb: str, arguments, *rest: str) -> list[str]:
    """Returns the command line of a plm_jax command on the benchmark's config."""
    changed = (f"--config.{field}={value}" for field, value in overrides(arguments).items())
    return [sys.executable, "-m", "plm_jax", verb, "--config=configs/gpt2.py:small", *changed, *rest]


def train(arguments, workdir: pathlib.Path) -> tuple[list[dict], int]:
    """Trains until the minutes are over; returns rows of metrics with their seconds, and the exit status."""
    # By default jax takes three quarters of the memory.
    environment = {"XLA_CLIENT_MEM_FRACTION": "0.92", **os.environ}
    began, now, rows = time.monotonic(), 0.0, []
    # A shell's background job ignores the interrupt that is to end the run, and so would its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        command("pretrain", arguments, f"--workdir={workdir}"), cwd=ROOT, stdout=sys.stderr, env=environment
    )
    while process.poll() is None and (not rows or now - rows[0]["seconds"] < 60 * arguments.minutes):
        time.sleep(0.05)
        now = time.monotonic() - began
        rows += [{"seconds": round(now, 2), **row} for row in metrics(workdir)[len(rows) :]]
    process.send_signal(signal.SIGINT)
    return rows, process.wait()


def metrics(workdir: pathlib.Path) -> list[dict]:
    """Returns the complete rows of a run's metrics so far, with the columns of this benchmark."""
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return [{"step": row["step"]} | {new: row[old] for old, new in COLUMNS.items() if old in row} for row in rows]


def result(arguments, rows: list[dict]) -> dict:
    """Returns the result: machine, run, figures and rows."""

    def column(name):
        return [row[name] for row in rows if name in row]

    def median(name):
        return statistics.median(column(name)) if column(name) else None

    return {
        "benchmark": "gpu_pretrain",
        **machine.describe(arguments.commit),
        "config": "configs/gpt2.py:small",
        "overrides": {name: value for name, value in overrides(arguments).items() if not name.startswith("data.")},
        "training_tokens": json.loads(manifest(arguments).read_text())["splits"]["train"]["tokens"],
        "minutes": arguments.minutes,
        "seconds_to_first_row": rows[0]["seconds"],
        "steps": rows[-1]["step"],
        "median_tokens_per_second": median("tokens_per_second"),
        "median_mfu": median("mfu"),
        "median_data_wait_seconds": median("data_wait_seconds"),
        "last_loss": rows[-1]["loss"],
        "best_validation_loss": min(column("validation_loss"), default=None),
        "rows": rows,
    }


def plot(rows: list[dict], path: str) -> None:
    """Draws training and validation loss over seconds, if matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"no {path}: matplotlib is not installed", file=sys.stderr)
        return
    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    for name, label in (("loss", "training"), ("validation_loss", "validation")):
        points = [(row["seconds"], row[name]) for row in rows if name in row]
        axes.plot(*zip(*points, strict=True), label=label) if points else None
    axes.set(xlabel="seconds since the start", ylabel="loss, nats a token", title="GPT-2 124M")
    axes.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
