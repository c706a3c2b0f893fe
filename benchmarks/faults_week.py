"""A simulated week of a run on machines that fail. Prints one JSON object.

    python benchmarks/faults_week.py
    python benchmarks/faults_week.py --steps=2000 --restart_every=200 --save_every=20

Real runs of a tiny model are killed by SIGKILL after some steps and resume from the last checkpoint. Their clock is
simulated: starts, compilation, steps, saves and validation take fixed times. Each run logs what it did and how long it
took; the goodput from these logs is compared with that of `status` from the heartbeats. At each save a run also logs
its memory, threads and open files; the disk is measured after each kill.
"""

import argparse
import itertools
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import machine

# Seconds on the simulated clock; a step takes between two values.
DOWN, START, COMPILE, FIRST_BATCH, SAVE, VALIDATION, STEP = 600.0, 90.0, 120.0, 30.0, 15.0, 200.0, (20.0, 40.0)
BEGINNING = 1.7e9
CONFIG = (
    "--config=demo:gpt2",
    "--config.model.embedding.width=32",
    "--config.model.attention.heads=2",
    "--config.model.attention.head_dim=16",
    "--config.model.feed_forward.width=64",
    "--config.model.stack.layers=1",
    "--config.data.length=32",
    "--config.train.batch_size=8",
    "--config.train.log_every=50",
    "--config.checkpoint.save_minutes=0",
    "--config.evaluation.every=1000",
    "--config.evaluation.max_batches=2",
)


def week(steps: int = 20_000, restart_every: int = 500, save_every: int = 50) -> dict[str, Any]:
    """Simulates a week; kills each start after about `restart_every` steps.

    Returns:
      goodput: goodput by `status`.
      counted: goodput by the logs.
      error: largest difference of a part from the logs, as a share of the whole.
      parts: shares of all parts.
      memory_mb, threads, handles: medians over all starts of the first and last quarter of a start, and the largest
        increase within a start.
      disk_mb: largest size of the checkpoints.
      heartbeat_kb: size of the heartbeats at the end.
    """
    from plm_jax.runs import run_status

    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        workdir, starts, disk, clock = folder / "run", [], [], BEGINNING
        while True:
            notes = folder / f"notes-{len(starts)}"
            stop = restart_every + rng.randrange(save_every)
            settings = [f"--config.train.steps={steps}", f"--config.checkpoint.save_every={save_every}"]
            command = [sys.executable, __file__, "--run", str(workdir), str(notes), str(clock), str(stop)]
            with open(folder / "log", "w") as log:
                status = subprocess.run([*command, *CONFIG, *settings], stdout=log, stderr=log).returncode
            if status not in (0, -signal.SIGKILL) or not notes.exists():
                raise SystemExit((folder / "log").read_text())
            starts.append([json.loads(line) for line in notes.read_text().splitlines()])
            disk.append(_bytes(workdir / "checkpoints"))
            print(f"start {len(starts)} ended at step {starts[-1][-1]['step']}", file=sys.stderr, flush=True)
            if status == 0:
                break
            clock = starts[-1][-1]["clock"] + DOWN
        counted = _counted(starts)
        accounted = run_status.account(run_status.read(str(workdir)))
        whole = sum(counted.values())
        return {
            "steps": steps,
            "starts": len(starts),
            "days": whole / 86400,
            "goodput": accounted["steps"] / sum(accounted.values()),
            "counted": counted["steps"] / whole,
            "error": max(abs(accounted[part] - counted[part]) for part in counted) / whole,
            "parts": {part: spent / sum(accounted.values()) for part, spent in accounted.items()},
            **_resources(starts),
            "disk_mb": max(disk) / 1e6,
            "heartbeat_kb": _bytes(workdir / "heartbeat") / 1e3,
        }


def _counted(starts: list[list[dict]]) -> dict[str, float]:
    """Returns the seconds of each part by the logs; a step is lost if a later start resumed before it."""
    seconds = dict.fromkeys(("start", "compile", "data", "steps", "saves", "validation", "lost", "down"), 0.0)
    seconds["down"] = DOWN * (len(starts) - 1)
    for number, notes in enumerate(starts):
        later = itertools.chain(*starts[number + 1 :])
        went_on = min((note["went_on"] for note in later if "went_on" in note), default=float("inf"))
        for note in notes:
            lost = note["part"] == "steps" and note["step"] > went_on
            seconds["lost" if lost else note["part"]] += note["seconds"]
    return seconds


def _resources(starts: list[list[dict]]) -> dict[str, Any]:
    growth = {}
    for name in ("memory_mb", "threads", "handles"):
        series = [[note[name] for note in notes if name in note] for notes in starts]
        # The first saves fill pools of memory and threads.
        series = [values[2:] for values in series if len(values) >= 6]
        ends = [(statistics.median(v[: -(-len(v) // 4)]), statistics.median(v[-(-len(v) // 4) * -1 :])) for v in series]
        if ends:
            first, last = (statistics.median(values) for values in zip(*ends, strict=True))
            growth[name] = {"first": first, "last": last, "grew_at_most": max(late - soon for soon, late in ends)}
    return growth


def _bytes(folder: pathlib.Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class Week:
    """The clock of a start, and its log."""

    perf_counter = staticmethod(time.perf_counter)  # The loop measures real speeds.

    def __init__(self, notes: str, now: float, stop: int):
        self.now, self.step, self._stop, self._num_steps = now, 0, stop, 0
        self._file = open(notes, "a", buffering=1)  # noqa: SIM115
        self._rng = random.Random(now)

    def time(self) -> float:
        """Replaces the functions of the module `time`."""
        return self.now

    monotonic = time

    def take(self, part: str, seconds: float, **more: Any) -> None:
        """Advances the clock and logs it."""
        self.now += seconds
        self._file.write(
            json.dumps({"part": part, "seconds": seconds, "step": self.step, "clock": self.now, **more}) + "\n"
        )

    def finish_step(self, step: int, heartbeat: Any) -> None:
        """Counts a step, and kills the process after `stop` steps."""
        self.step = step
        self.take("steps", self._rng.uniform(*STEP))
        self._num_steps += 1
        if self._num_steps == self._stop:
            heartbeat.write()  # A real one is at most ten seconds old.
            os.kill(os.getpid(), signal.SIGKILL)

    def save(self) -> None:
        """Counts a save, which blocks the loop."""
        with open("/proc/self/status") as file:
            fields = dict(line.split(":", 1) for line in file)
        memory, threads = int(fields["VmRSS"].split()[0]) / 1e3, int(fields["Threads"])
        handles = len(os.listdir("/proc/self/fd"))
        self.take("saves", SAVE, memory_mb=memory, threads=threads, handles=handles)


def run(workdir: str, notes: str, now: float, stop: int, flags: list[str]) -> None:
    """Runs one start with the simulated clock."""
    from plm_jax.cli import pretrain
    from plm_jax.common import command_line
    from plm_jax.runs import goodput, heartbeat, loop, metrics_logger, setup

    clock = Week(notes, now, stop)
    for module in (pretrain, loop, setup, metrics_logger, heartbeat, goodput):
        module.time = clock
    _simulate(clock)
    sys.argv[1:] = [*flags, f"--workdir={workdir}"]
    command_line.run(pretrain.main)


def _simulate(clock: Week) -> None:
    """Makes each part of a run take its simulated time; its real time does not count."""
    from plm_jax.runs import heartbeat, loop, saving, setup, validation
    from plm_jax.runs.goodput import Goodput
    from plm_jax.training.program import Program

    beats: list[Any] = []
    loop.Goodput = lambda before: Goodput(before, clock.time)

    def noting(original, *parts):
        def call(*words, **named):
            result = original(*words, **named)
            for part, seconds in parts:
                clock.take(part, seconds)
            return result

        return call

    def begin(self, step, original=Goodput.begin):
        original(self, step)
        clock.take("start", 0.0, went_on=step)

    def finish_step(self, step, original=Goodput.finish_step):
        clock.finish_step(step, beats[-1])
        original(self, step)

    def save(self, *words, original=saving.Save.save, **named):
        clock.save()
        original(self, *words, **named)

    def compiled(self, stage, original=Program.phase_step):
        step, calls = original(self, stage), []

        def call(*words):
            if not calls:
                calls.append(1)
                clock.take("compile", COMPILE)
            return step(*words)

        return call

    def batches(*words, original=setup.global_batches):
        clock.take("data", FIRST_BATCH)
        yield from original(*words)

    def entered(self, original=heartbeat.Heartbeat.__enter__):
        beats.append(self)
        return original(self)

    Goodput.begin, Goodput.finish_step, saving.Save.save = begin, finish_step, save
    Program.phase_step, setup.global_batches, heartbeat.Heartbeat.__enter__ = compiled, batches, entered
    setup.starting_state = noting(setup.starting_state, ("start", START))
    validation.Validation.__call__ = noting(validation.Validation.__call__, ("validation", VALIDATION))


def main() -> None:
    """Parses the command line and simulates."""
    if sys.argv[1:2] == ["--run"]:
        workdir, notes, now, stop, *flags = sys.argv[2:]
        run(workdir, notes, float(now), int(stop), flags)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--restart_every", type=int, default=500)
    parser.add_argument("--save_every", type=int, default=50)
    arguments = parser.parse_args()
    print(json.dumps(machine.describe() | week(**vars(arguments)), indent=1))


if __name__ == "__main__":
    main()
