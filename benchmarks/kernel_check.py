"""Whether the flash kernel of a device gives on it what plain attention gives, in values and gradients.

    python benchmarks/kernel_check.py          # one JSON object; run by `train_step.py --device=gpu` before it measures

Compares bfloat16 kernels with plain attention in float32 on the same numbers. An error is the largest difference over
the largest number; what bfloat16 leaves is about 0.01.
"""

import argparse
import json
from dataclasses import replace

import jax
import jax.numpy as jnp

from plm_jax.models.attention import attend
from plm_jax.models.kernels import Context, platform

TOLERANCE = 0.03
SEED = jnp.array([5, 7], jnp.uint32)


def cases(length: int) -> dict[str, tuple[int, int, bool, Context]]:
    """By name: groups of keys, head_dim, whether there is a bias, the context; two rows, four heads."""
    padded = (jnp.arange(length) < jnp.array([[length], [length * 2 // 3]])).astype(jnp.int32)
    documents = (jnp.arange(length) >= jnp.array([[length // 5], [length // 2]])).astype(jnp.int32)
    prefixes = jnp.array([length // 4, 3])
    return {
        "plain": (4, 64, False, Context()),
        "bert": (4, 64, False, Context(mask=padded, dropout=0.1)),
        "gpt2": (4, 64, False, Context(causal=True, dropout=0.1)),
        "llama": (2, 64, False, Context(causal=True, segment_ids=(documents, documents))),
        "llama_128": (1, 128, False, Context(causal=True)),
        "gpt3": (4, 80, False, Context(causal=True, windows=(length // 4,))),
        "t5_encoder": (4, 64, True, Context(mask=padded, dropout=0.1, broadcast=True)),
        "t5_decoder": (4, 64, True, Context(causal=True)),
        "glm": (4, 96, False, Context(True, padded, prefix_lengths=prefixes, dropout=0.1)),
    }


def error(length: int, groups: int, head_dim: int, biased: bool, context: Context) -> float:
    """The largest of the errors of the output and of all gradients."""
    shapes = [(2, 4, length, head_dim), *[(2, groups, length, head_dim)] * 2, (2, 4, length, head_dim)]
    shapes += [(4, 2 * length - 1)] if biased else []
    query, key, value, weights, *bias = (
        jax.random.normal(jax.random.key(i), shape).astype(jnp.bfloat16) for i, shape in enumerate(shapes)
    )
    # What is padding asks nothing.
    asking = 1.0 if context.mask is None else context.mask[:, None, :, None]

    def with_gradients(kernel, dtype):
        def weighed(query, key, value, *bias):
            known = replace(context, distance_bias=bias[0].astype(jnp.float32) if bias else None)
            ready = known.with_kernel(kernel, length, length)
            out = attend(query, key, value, ready, seed=SEED if context.dropout else None)
            return jnp.sum(out.astype(jnp.float32) * weights * asking), out * asking

        inputs = [x.astype(dtype) for x in (query * head_dim**-0.5, key, value, *bias)]
        with jax.default_matmul_precision("highest" if dtype == jnp.float32 else "default"):
            gradients, out = jax.jit(jax.grad(weighed, argnums=tuple(range(len(inputs))), has_aux=True))(*inputs)
        return [x.astype(jnp.float32) for x in (out, *gradients)]

    pairs = zip(with_gradients("flash", jnp.bfloat16), with_gradients("xla", jnp.float32), strict=True)
    errors = [jnp.abs(got - want).max() / jnp.abs(want).max() for got, want in pairs]
    return float(jnp.max(jnp.array(errors)))


def main() -> None:
    """Checks all cases; a kernel that fails to compile is one that differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=592, help="tokens a row; tiles do not divide the default")
    length = parser.parse_args().length
    found = {}
    for name, case in cases(length).items():
        try:
            found[name] = error(length, *case)
        except Exception as problem:
            found[name] = f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"
    # A NaN is no number below the tolerance.
    equal = all(isinstance(value, float) and value < TOLERANCE for value in found.values())
    print(json.dumps({"platform": platform(), "equal": equal, "tolerance": TOLERANCE, "errors": found}))


if __name__ == "__main__":
    main()
