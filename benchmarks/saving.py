"""What saves cost a run: the demo's encoder with saves each 50 steps, with and without their hashes, and without saves.

    python benchmarks/saving.py [--steps=300] [--rounds=2]

Each round trains three times, in turn, in processes of their own. Prints JSON: seconds a step of the loop, saves and
their waits included, from the first save to the last step, of each kind the least of all rounds; the ratios to the run
without saves and to that without hashes; and how long saves took from their begin to their name, median, with and
without.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import machine

EVERY = 50
KINDS = ("without saves", "without hashes", "as they are")


def main() -> None:
    """Trains and prints what it took; as a child, one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="demo:bert")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--child", choices=KINDS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(trained(given.config, given.steps, given.child)))
        return
    prepare = [sys.executable, "-m", "plm_jax", "prepare", f"--config={given.config}"]
    subprocess.run(prepare, check=True, stdout=sys.stderr)
    found: dict[str, list[dict]] = {kind: [] for kind in KINDS}
    for _ in range(given.rounds):
        for kind, runs in found.items():
            command = [sys.executable, __file__, f"--config={given.config}", f"--steps={given.steps}"]
            done = subprocess.run([*command, f"--child={kind}"], check=True, stdout=subprocess.PIPE, text=True)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
            print(f"{kind}: {runs[-1]}", file=sys.stderr, flush=True)
    seconds = {kind: min(run["step_seconds"] for run in runs) for kind, runs in found.items()}
    saves = {kind: statistics.median(one for run in found[kind] for one in run["saves"]) for kind in KINDS[1:]}
    none, unsealed, sealed = KINDS
    summary = {
        "step_seconds": seconds,
        "loop_with_saves": seconds[sealed] / seconds[none],
        "loop_with_hashes": seconds[sealed] / seconds[unsealed],
        "save_seconds": saves,
        "save_with_hashes": saves[sealed] / saves[unsealed],
    }
    print(json.dumps(machine.describe() | {"config": given.config, "steps": given.steps} | summary, indent=2))


def trained(page: str, steps: int, kind: str) -> dict:
    """Seconds a step from the first save on, and those of each save."""
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
    from plm_jax import config
    from plm_jax.common import command_line, sealing
    from plm_jax.config import files as pages
    from plm_jax.config import overrides
    from plm_jax.runs import checkpoints, coordination, loop

    command_line.start_jax()
    none, unsealed, _ = KINDS
    if kind == unsealed:
        sealing.seal = lambda *_: None
    at = pages.load(page)
    every = 10**9 if kind == none else EVERY
    changes = [("train.steps", steps), ("checkpoint.save_every", every), ("evaluation.every", 0)]
    changes += [("train.log_every", 1), ("train.phases", ())]
    run = config.resolve(overrides.apply(config.to_dict(config.from_dict(at.config())), changes, config.Run), at.file)
    saves, began = [], {}
    begin, finish = checkpoints.Checkpoints._begin, checkpoints.Checkpoints._finish
    marks: list[tuple[int, float]] = []
    decide = coordination.Coordinator.decide

    def beginning(self, name, *arguments, **trees):
        began[name] = time.perf_counter()
        begin(self, name, *arguments, **trees)

    def finishing(self, place, name, step):
        finish(self, place, name, step)
        saves.append(time.perf_counter() - began[name])

    def marking(self, step):
        marks.append((step, time.perf_counter()))
        return decide(self, step)

    checkpoints.Checkpoints._begin, checkpoints.Checkpoints._finish = beginning, finishing
    coordination.Coordinator.decide = marking
    with tempfile.TemporaryDirectory() as folder:
        loop.pretrain(run, f"{folder}/run")
    times = dict(marks)
    return {"step_seconds": (times[steps] - times[EVERY]) / (steps - EVERY), "saves": saves[:-1] or saves}


if __name__ == "__main__":
    main()
