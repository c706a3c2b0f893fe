"""Compilations of runs that differ in seeds or learning rates: members of a sweep, one process each, one empty cache.

    python benchmarks/compiling.py [--config=demo:gpt2]

Prints JSON: for each member, in order, the numbers of misses and hits of JAX's persistent cache, the losses of its
first steps, and the seconds from the start of training to the end of the first step; the ratio of the slowest later
member to the first; and whether the last member, a repetition of the first one, has bit-identical losses.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections import Counter

import machine

STEPS = 3
MEMBERS = {
    "first": {},
    "seed 1": {"train.seed": 1},
    "seed 2^32": {"train.seed": 2**32},
    "half the rate": {"schedule.learning_rate": 0.5},
    "twice the rate": {"schedule.learning_rate": 2.0},
    "first again": {},
}


def main() -> None:
    """Trains the members and prints their compilations; as a child process, trains one member."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="demo:gpt2")
    parser.add_argument("--child", choices=MEMBERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(trained(arguments.config, MEMBERS[arguments.child])))
        return
    prepare = [sys.executable, "-m", "plm_jax", "prepare", f"--config={arguments.config}"]
    subprocess.run(prepare, check=True, stdout=sys.stderr)
    members = {}
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": cache}
        for name in MEMBERS:
            command = [sys.executable, __file__, f"--config={arguments.config}", f"--child={name}"]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
            members[name] = json.loads(done.stdout.splitlines()[-1])
            print(f"{name}: {members[name]}", file=sys.stderr, flush=True)
    first, *later = members.values()
    summary = {
        "members": members,
        "later_to_first": max(member["seconds"] for member in later) / first["seconds"],
        "equal_to_the_bit": first["losses"] == later[-1]["losses"],
    }
    print(json.dumps(machine.describe() | {"config": arguments.config} | summary, indent=2))


def trained(page: str, changes: dict[str, float]) -> dict:
    """Trains a member for a few steps; `schedule.learning_rate` is relative to the config's."""
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
    from plm_jax.common import command_line

    command_line.start_jax()
    import jax

    from plm_jax import config
    from plm_jax.config import files as pages
    from plm_jax.config import overrides
    from plm_jax.runs import loop
    from plm_jax.training.program import Program

    at, counts = pages.load(page), Counter()
    tree = config.to_dict(config.from_dict(at.config()))
    if rate := changes.get("schedule.learning_rate"):
        changes = changes | {"schedule.learning_rate": rate * tree["schedule"]["learning_rate"]}
    fixed = {"train.steps": STEPS, "train.log_every": 1, "train.phases": (), "evaluation.every": 0}
    run = config.resolve(overrides.apply(tree, list((fixed | changes).items()), config.Run), at.file)
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
        loop.pretrain(run, f"{folder}/run")
        rows = [json.loads(line) for line in pathlib.Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    return {"missed": counts["misses"], "had": counts["hits"], "seconds": ends[0] - began, "losses": losses}


if __name__ == "__main__":
    main()
