"""Products of matrices in float32 on a CPU, XLA's against torch's, at the shapes of the models of `train_step.py`.

    python benchmarks/products.py

They are three quarters of a training step, and neither library's user can change them: what `train_step.py` finds on a
CPU is to be read beside these. Prints JSON: GFLOP/s of each, best of the interleaved rounds, and the ratio of times
ours / torch.
"""

import argparse
import json
import os
import time

# A thread of torch that waits must leave the core to XLA's.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import jax
import machine
import numpy as np
import torch

# Rows, inner width, columns: attention, feed-forward up and down, gradient of its weights, BERT's and GPT-2's heads.
SHAPES = (
    (1024, 768, 768),
    (1024, 768, 3072),
    (1024, 3072, 768),
    (768, 1024, 3072),
    (160, 768, 30_522),
    (1024, 768, 50_257),
)


def main() -> None:
    """Measures all shapes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print(json.dumps(machine.describe() | {"products": [measure(*shape, rounds) for shape in SHAPES]}, indent=2))


def measure(rows: int, inner: int, columns: int, rounds: int) -> dict:
    """The speed of [rows, inner] @ [inner, columns]."""
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal(shape, np.float32) for shape in ((rows, inner), (inner, columns)))
    product, ours = jax.jit(lambda a, b: a @ b), (jax.device_put(left), jax.device_put(right))
    theirs = torch.from_numpy(left), torch.from_numpy(right)
    contestants = {"xla": lambda: product(*ours).block_until_ready(), "torch": lambda: torch.matmul(*theirs)}
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(rounds):
        for name, multiply in contestants.items():
            began = time.perf_counter()
            multiply()
            best[name] = min(best[name], time.perf_counter() - began)
    flops = 2 * rows * inner * columns
    return {
        "shape": [rows, inner, columns],
        "gflops": {name: round(flops / seconds / 1e9) for name, seconds in best.items()},
        "ratio": best["xla"] / best["torch"],
    }


if __name__ == "__main__":
    main()
