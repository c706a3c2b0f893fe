"""Compilations of runs that differ in seeds or learning rates: members of a sweep, one process each, one empty cache.

    python benchmarks/compiling.py [--config=demo:gpt2]

Prints JSON: for each member, in order, the numbers of misses and hits of JAX's persistent cache, the losses of its
first steps, and the seconds from the start of training to the end of the first step; the ratio of the slowest later
member to the first; and whether the last member, a repetition of the first one, has bit-identical losses.
"""

import os
import pathlib
import tempfile
import time
from collections import Counter

import bench

STEPS = 3
MEMBERS = {
    "first": {},
    "seed 1": {"train.seed": 1},
    "seed 2^32": {"train.seed": 2**32},
    "half the rate": {"schedule.learning_rate": 0.5},
    "twice the rate": {"schedule.learning_rate": 2.0},
    "first again": {},
}


def run(config: str = "demo:gpt2") -> dict:
    """Trains the members in new processes with one compilation cache."""
    bench.verb("prepare", f"--config={config}")
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": cache}
        members = {name: bench.fresh(trained, config, changes, env=environment) for name, changes in MEMBERS.items()}
    first, *later = members.values()
    return {
        "members": members,
        "later_to_first": max(member["seconds"] for member in later) / first["seconds"],
        "equal_to_the_bit": first["losses"] == later[-1]["losses"],
    }


def trained(page: str, changes: dict[str, float]) -> dict:
    """Trains a member for a few steps; `schedule.learning_rate` is relative to the config's."""
    from plm_jax.common import command_line

    command_line.start_jax()
    import jax

    from plm_jax import config
    from plm_jax.common import overrides
    from plm_jax.config import files as pages
    from plm_jax.runs import loop
    from plm_jax.training.program import Program

    at, counts = pages.load(page), Counter()
    tree = config.to_dict(config.from_dict(at.config()))
    if rate := changes.get("schedule.learning_rate"):
        changes = changes | {"schedule.learning_rate": rate * tree["schedule"]["learning_rate"]}
    fixed = {"train.steps": STEPS, "train.log_every": 1, "train.phases": (), "evaluation.every": 0}
    member = config.resolve(overrides.apply(tree, list((fixed | changes).items()), config.Run), at.file)
    prefix = "/jax/compilation_cache/cache_"

    def count(event: str, **_) -> None:
        if event.startswith(prefix):
            counts[event.removeprefix(prefix)] += 1

    def waiting(step):
        def call(*inputs):
            state, metrics = jax.block_until_ready(step(*inputs))
            ends.append(time.perf_counter())
            return state, metrics

        return call

    jax.monitoring.register_event_listener(count)
    phase_step, ends = Program.phase_step, []
    Program.phase_step = lambda self, phase: waiting(phase_step(self, phase))
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        loop.pretrain(member, f"{folder}/run")
        rows = bench.json_lines(pathlib.Path(folder, "run", "metrics.jsonl"))
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    return {"missed": counts["misses"], "had": counts["hits"], "seconds": ends[0] - began, "losses": losses}


if __name__ == "__main__":
    bench.main(run)
