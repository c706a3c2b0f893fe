"""Norms and activations with gradients of their own, compared with automatic differentiation."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import models
from plm_jax.models.layers import ACTIVATIONS, norm

SHAPE = (2, 5, 24)


def drawn(seed, shape=SHAPE):
    return jnp.asarray(np.random.default_rng(seed).normal(0.5, 2.0, shape), jnp.float32)


def values_and_gradients(module, params, x):
    """Returns the output, and the gradients of the parameters and of x for random cotangents."""
    y, pull_back = jax.vjp(lambda params, x: module.apply({"params": params}, x), params, x)
    return y, pull_back(drawn(3).astype(y.dtype))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize(("kind", "bias"), [("layer", True), ("layer", False), ("rms", False)])
def test_norms_equal_those_of_flax(kind, bias, scale, dtype):
    config = models.NormConfig(epsilon=1e-3, kind=kind, scale=scale, bias=bias)
    fields = {"dtype": dtype, "use_fast_variance": False, "use_scale": scale}
    theirs = nn.RMSNorm(1e-3, **fields) if kind == "rms" else nn.LayerNorm(1e-3, use_bias=bias, **fields)
    shapes = jax.eval_shape(theirs.init, jax.random.key(0), drawn(0)).get("params", {})
    params = {name: drawn(seed, leaf.shape) for seed, (name, leaf) in enumerate(shapes.items(), start=1)}
    x = drawn(0).astype(dtype)
    expected, actual = (values_and_gradients(module, params, x) for module in (theirs, norm(config, dtype)))
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == jnp.float32 else {"rtol": 2e-2, "atol": 2e-2}
    jax.tree.map(functools.partial(np.testing.assert_allclose, **tolerance), actual, expected)
    assert jax.tree.map(lambda leaf: leaf.dtype, actual) == jax.tree.map(lambda leaf: leaf.dtype, expected)


def test_gelu_has_its_derivative():
    x = np.linspace(-8.0, 8.0, 1001)

    def in_float64(x):
        return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2

    expected = (in_float64(x + 1e-6) - in_float64(x - 1e-6)) / 2e-6
    gelu, x = ACTIVATIONS["gelu_tanh"], x.astype(np.float32)
    np.testing.assert_allclose(jax.vmap(jax.grad(gelu))(x), expected, atol=2e-6)
    np.testing.assert_array_equal(gelu(x), nn.gelu(x, approximate=True))
    assert jax.grad(gelu)(jnp.bfloat16(0.5)).dtype == jnp.bfloat16
