"""Kills a pretraining run repeatedly and compares it with an uninterrupted run.

    python -m tests.support.resume --kills=10

Every other kill happens while a checkpoint is saved, the rest at random times. Prints JSON and exits with status 1 if a
digest or a loss differs in any bit, or a step is missing or duplicated.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

from tests.support import tiny, verbs, xla


def command(folder: pathlib.Path, name: str, workdir: pathlib.Path, *overrides: str) -> list[str]:
    """Returns the command of a run of `tiny.py` with this Python."""
    config = f"--config={folder}/tiny.py:{name}"
    return [sys.executable, "-m", "plm_jax", "pretrain", config, f"--workdir={workdir}", *overrides]


def environment(devices: int = 1) -> dict[str, str]:
    """Returns the environment of a run on `devices` fake devices."""
    return os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla.flags(devices)}


def rows(workdir: pathlib.Path) -> list[dict]:
    """Returns the complete rows of metrics.jsonl."""
    return json_lines(workdir / "metrics.jsonl")


def json_lines(path: pathlib.Path) -> list[dict]:
    """Returns the complete rows of a .jsonl file."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def last_step(workdir: pathlib.Path) -> int:
    """Returns the step of the last row, or 0."""
    metrics = rows(workdir)
    return metrics[-1]["step"] if metrics else 0


def unfinished(workdir: pathlib.Path, first_step: int) -> list[pathlib.Path]:
    """Returns the checkpoints from `first_step` on that are being written."""
    names = (workdir / "checkpoints").glob("*.unsealed*")
    steps = ((path, path.name.partition(".")[0]) for path in names)
    return [path for path, step in steps if step.isdecimal() and int(step) >= first_step]


def kill_at(
    process: subprocess.Popen | verbs.Started, workdir: pathlib.Path, step: int, in_save: bool, delay: float
) -> bool:
    """Sends SIGKILL once a run has passed `step`, or saves a checkpoint from there on.

    Returns whether the signal interrupted a save. A run that ended before has its own status in `process.returncode`.
    """
    while process.poll() is None:
        if unfinished(workdir, step) if in_save else last_step(workdir) >= step:
            time.sleep(0 if in_save else delay)
            break
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return bool(unfinished(workdir, step))


def train_with_kills(
    verb: verbs.Server, folder: pathlib.Path, name: str, workdir: pathlib.Path, kills: int, seed: int = 0
) -> int:
    """Trains to the end with `kills` kills. Returns the number of kills that interrupted a save."""
    words = ("pretrain", f"--config={folder}/tiny.py:{name}", f"--workdir={workdir}")
    rng = random.Random(seed)
    total, cut_off = tiny.RUNS[name].train.steps, 0
    for number in range(kills):
        process = verb.start(*words)
        step = max(1, round((number + rng.random()) * (total - 4) / kills))
        cut_off += kill_at(process, workdir, step, in_save=number % 2 == 0, delay=rng.random() / 20)
        status = process.returncode
        assert status == -signal.SIGKILL, f"the run ended with {status} before it was killed"
    finished = verb(*words)
    assert finished.status == 0, finished.err
    return cut_off


def differences(workdir: pathlib.Path, reference: pathlib.Path) -> list[str]:
    """Returns the differences between two runs, compared bitwise."""
    metrics, expected = rows(workdir), rows(reference)
    steps = [row["step"] for row in metrics]
    if steps != [row["step"] for row in expected] or steps != list(range(1, len(steps) + 1)):
        return [f"the steps are {steps}"]
    return [
        f"step {one['step']}: {name} is {one[name]} and not {other[name]}"
        for one, other in zip(metrics, expected, strict=True)
        for name in ("train/batch_digest", "train/loss")
        if one[name] != other[name]
    ]


def main() -> None:
    """Parses the command line, trains and compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", nargs="*", default=["everything", "separate"])
    arguments = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as temporary, verbs.Server(temporary) as verb:
        folder = pathlib.Path(temporary)
        tiny.write(folder)
        for name in arguments.runs:
            reference, killed = folder / f"{name}-reference", folder / name
            subprocess.run(command(folder, name, reference), env=environment(), check=True, capture_output=True)
            cut_off = train_with_kills(verb, folder, name, killed, arguments.kills, arguments.seed)
            different = differences(killed, reference)
            failed |= bool(different)
            figures = {"run": name, "kills": arguments.kills, "cut_off_saves": cut_off, "steps": last_step(killed)}
            print(json.dumps(figures | {"differences": different}), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
