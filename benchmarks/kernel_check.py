"""Values and gradients of the flash kernel, compared with plain attention on the same device.

    python benchmarks/kernel_check.py          # one JSON object; run by `train_step.py --device=gpu` before it measures

Compares bfloat16 kernels with plain attention in float32. An error is the largest difference over the largest value;
bfloat16 alone causes about 0.01.
"""

from dataclasses import replace

import bench
import jax
import jax.numpy as jnp

from plm_jax.models.attention import attend
from plm_jax.models.kernels import Context, platform

TOLERANCE = 0.03
SEED = jnp.array([5, 7], jnp.uint32)


def cases(length: int) -> dict[str, tuple[int, int, bool, Context]]:
    """Returns cases by name: groups of keys, head_dim, whether there is a bias, and the context."""
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
    """Returns the largest error of the output and all gradients."""
    shapes = [(2, 4, length, head_dim), *[(2, groups, length, head_dim)] * 2, (2, 4, length, head_dim)]
    shapes += [(4, 2 * length - 1)] if biased else []
    query, key, value, weights, *bias = (
        jax.random.normal(jax.random.key(i), shape).astype(jnp.bfloat16) for i, shape in enumerate(shapes)
    )
    # Queries of padding do not count.
    is_query = 1.0 if context.mask is None else context.mask[:, None, :, None]

    def with_gradients(kernel, dtype):
        def weighed(query, key, value, *bias):
            known = replace(context, distance_bias=bias[0].astype(jnp.float32) if bias else None)
            ready = known.with_kernel(kernel, length, length)
            out = attend(query, key, value, ready, seed=SEED if context.dropout else None)
            return jnp.sum(out.astype(jnp.float32) * weights * is_query), out * is_query

        inputs = [x.astype(dtype) for x in (query * head_dim**-0.5, key, value, *bias)]
        with jax.default_matmul_precision("highest" if dtype == jnp.float32 else "default"):
            gradients, out = jax.jit(jax.grad(weighed, argnums=tuple(range(len(inputs))), has_aux=True))(*inputs)
        return [x.astype(jnp.float32) for x in (out, *gradients)]

    pairs = zip(with_gradients("flash", jnp.bfloat16), with_gradients("xla", jnp.float32), strict=True)
    errors = [jnp.abs(got - want).max() / jnp.abs(want).max() for got, want in pairs]
    return float(jnp.max(jnp.array(errors)))


def run(length: int = 592) -> dict:
    """Checks all cases; a kernel that fails to compile counts as different.

    Args:
      length: number of tokens in a row; tiles do not divide the default.
    """
    errors = {}
    for name, case in cases(length).items():
        try:
            errors[name] = error(length, *case)
        except Exception as problem:
            errors[name] = f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"
    # NaN is not below the tolerance.
    equal = all(isinstance(value, float) and value < TOLERANCE for value in errors.values())
    return {"platform": platform(), "equal": equal, "tolerance": TOLERANCE, "errors": errors}


if __name__ == "__main__":
    bench.main(run)
