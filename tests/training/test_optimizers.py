"""Schedules against their closed forms, optimizers against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plm_jax import config
from plm_jax.training import optimizers, schedules

STEPS = np.array([0, 1, 5, 9, 10, 11, 55, 99, 100, 150])


def rates(total=100, **fields):
    rate = schedules.learning_rate(config.Schedule(learning_rate=0.5, **fields), total)
    return np.array([float(rate(jnp.int32(n))) for n in STEPS])


def test_constant_after_a_linear_warm_up():
    np.testing.assert_allclose(rates(kind="constant"), 0.5 * np.ones(len(STEPS)))
    np.testing.assert_allclose(rates(kind="constant", warmup_steps=10), 0.5 * np.minimum(1, STEPS / 10), rtol=1e-6)


def test_linear_falls_to_the_floor_and_stays():
    progress = np.clip((STEPS - 10) / 90, 0, 1)
    want = 0.5 * np.minimum(1, STEPS / 10) * (1 - 0.8 * progress)
    np.testing.assert_allclose(rates(kind="linear", warmup_steps=10, final_fraction=0.2), want, rtol=1e-6)


def test_cosine_falls_to_the_floor_by_its_own_number_of_steps():
    progress = np.clip((STEPS - 10) / 40, 0, 1)
    want = 0.5 * np.minimum(1, STEPS / 10) * (0.1 + 0.9 * (1 + np.cos(np.pi * progress)) / 2)
    got = rates(kind="cosine", warmup_steps=10, decay_steps=50, final_fraction=0.1)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert got[-1] == got[-2] == np.float32(0.05)


def test_rsqrt_is_flat_until_the_warm_up_ends():
    rate = schedules.learning_rate(config.Schedule("rsqrt", 1.0, warmup_steps=10_000), 1)
    for n in (0, 1, 9_999, 10_000, 10_001, 40_000, 2**20):
        np.testing.assert_allclose(float(rate(n)), 1 / np.sqrt(max(n, 1e4)), rtol=1e-6)


def tree(seed):
    rng = np.random.default_rng(seed)
    shapes = {"kernel": (4, 3), "bias": (3,)}, {"scale": (4,), "bias": (4,)}
    dense, norm = ({k: rng.normal(size=s).astype(np.float32) for k, s in group.items()} for group in shapes)
    return {"dense": dense, "norm": norm, "token_embedding": rng.normal(size=(5, 4)).astype(np.float32)}


@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize("clip_norm", [0.0, 1.0, 1e3])
def test_adamw_is_the_published_update(bias_correction, clip_norm):
    settings = config.AdamW(0.8, 0.9, 1e-3, weight_decay=0.1, bias_correction=bias_correction, clip_norm=clip_norm)
    rate = lambda step: 0.01 * (1.0 + step)  # noqa: E731
    optimizer = optimizers.build(settings, rate)
    params = tree(0)
    state = optimizer.init(params)
    want = jax.tree.map(np.float64, params)
    mean = jax.tree.map(np.zeros_like, want)
    square = jax.tree.map(np.zeros_like, want)
    for step in range(5):
        grads = tree(10 + step)
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in jax.tree.leaves(grads)))
        factor = min(1.0, clip_norm / norm) if clip_norm else 1.0
        correction = (1 - 0.8 ** (step + 1), 1 - 0.9 ** (step + 1)) if bias_correction else (1, 1)

        def leaf(p, g, m, v, decay, step=step, factor=factor, correction=correction):
            m[...] = 0.8 * m + 0.2 * factor * g
            v[...] = 0.9 * v + 0.1 * (factor * g) ** 2
            direction = m / correction[0] / (np.sqrt(v / correction[1]) + 1e-3)
            p[...] -= 0.01 * (1 + step) * (direction + 0.1 * decay * p)

        decayed = {"dense": {"kernel": 1, "bias": 0}, "norm": {"scale": 0, "bias": 0}, "token_embedding": 1}
        jax.tree.map(leaf, want, grads, mean, square, decayed)
    jax.tree.map(lambda got, w: np.testing.assert_allclose(got, w, rtol=1e-4, atol=1e-6), params, want)
