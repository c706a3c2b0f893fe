"""Products of matrices in float32 on a CPU, XLA's against torch's, at the shapes of the models of `train_step.py`.

    python benchmarks/products.py

These products are three quarters of a training step, and a user cannot change them: compare the results of
`train_step.py` on a CPU with these. Prints JSON: GFLOP/s of each, best of the interleaved rounds, and the ratio of
times ours / torch.
"""

import os

# A thread of torch that waits must leave the core to XLA's.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import bench
import jax
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


def run(rounds: int = 15) -> dict:
    """Measures all shapes."""
    return {"products": [measure(*shape, rounds) for shape in SHAPES]}


def measure(rows: int, inner: int, columns: int, rounds: int) -> dict:
    """Returns the speeds of [rows, inner] @ [inner, columns]."""
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal(shape, np.float32) for shape in ((rows, inner), (inner, columns)))
    product, ours = jax.jit(lambda a, b: a @ b), (jax.device_put(left), jax.device_put(right))
    theirs = torch.from_numpy(left), torch.from_numpy(right)
    calls = {"xla": lambda: product(*ours).block_until_ready(), "torch": lambda: torch.matmul(*theirs)}
    best = {name: min(seconds) for name, seconds in bench.in_turn(calls, rounds).items()}
    flops = 2 * rows * inner * columns
    return {
        "shape": [rows, inner, columns],
        "gflops": {name: round(flops / seconds / 1e9) for name, seconds in best.items()},
        "ratio": best["xla"] / best["torch"],
    }


if __name__ == "__main__":
    bench.main(run)
