"""Cost of saves: the demo's encoder with saves every 50 steps, with and without their hashes, and without saves.

    python benchmarks/saving.py [--steps=300] [--rounds=2]

Each round trains three times, in turn, each time in a new process. Prints JSON: seconds per step of the loop, including
saves and waiting for them, from the first save to the last step, for each kind the minimum over all rounds; the ratios
to the run without saves and to the run without hashes; and the median seconds of a save, with and without hashes.
"""

import statistics
import tempfile
import time

import bench

EVERY = 50
KINDS = ("without saves", "without hashes", "as they are")


def run(config: str = "demo:bert", steps: int = 300, rounds: int = 2) -> dict:
    """Trains each kind in turn, each run in a new process."""
    bench.verb("prepare", f"--config={config}")
    results: dict[str, list[dict]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind, runs in results.items():
            runs.append(bench.fresh(trained, config, steps, kind))
    seconds = {kind: min(run["step_seconds"] for run in runs) for kind, runs in results.items()}
    saves = {kind: statistics.median(one for run in results[kind] for one in run["saves"]) for kind in KINDS[1:]}
    none, unsealed, sealed = KINDS
    return {
        "step_seconds": seconds,
        "loop_with_saves": seconds[sealed] / seconds[none],
        "loop_with_hashes": seconds[sealed] / seconds[unsealed],
        "save_seconds": saves,
        "save_with_hashes": saves[sealed] / saves[unsealed],
    }


def trained(page: str, steps: int, kind: str) -> dict:
    """Returns the seconds per step from the first save on, and the seconds of each save."""
    from plm_jax import config
    from plm_jax.common import command_line, overrides, sealing
    from plm_jax.config import files as pages
    from plm_jax.runs import checkpoints, coordination, loop

    command_line.start_jax()
    none, unsealed, _ = KINDS
    if kind == unsealed:
        sealing.seal = lambda *_: None
    at = pages.load(page)
    every = 10**9 if kind == none else EVERY
    changes = [("train.steps", steps), ("checkpoint.save_every", every), ("evaluation.every", 0)]
    changes += [("train.log_every", 1), ("train.phases", ())]
    run_config = config.resolve(
        overrides.apply(config.to_dict(config.from_dict(at.config())), changes, config.Run), at.file
    )
    saves, began = [], {}
    begin, finish = checkpoints.Checkpoints._begin, checkpoints.Checkpoints._finish
    marks: list[tuple[int, float]] = []
    decide = coordination.Coordinator.decide

    def beginning(self, name, *arguments, **trees):
        began[name] = time.perf_counter()
        begin(self, name, *arguments, **trees)

    def finishing(self, folder, name, step):
        finish(self, folder, name, step)
        saves.append(time.perf_counter() - began[name])

    def marking(self, step):
        marks.append((step, time.perf_counter()))
        return decide(self, step)

    checkpoints.Checkpoints._begin, checkpoints.Checkpoints._finish = beginning, finishing
    coordination.Coordinator.decide = marking
    with tempfile.TemporaryDirectory() as folder:
        loop.pretrain(run_config, f"{folder}/run")
    times = dict(marks)
    return {"step_seconds": (times[steps] - times[EVERY]) / (steps - EVERY), "saves": saves[:-1] or saves}


if __name__ == "__main__":
    bench.main(run)
