"""Rematerialization levels change the amount of computation but no number."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from plm_jax import models
from plm_jax.models import registry
from plm_jax.training import flops
from tests.support import tiny

TOKENS = np.arange(24, dtype=np.int32).reshape(2, 12)


def gradient(model):
    """A function of parameters."""
    module = registry.build(model)
    return jax.grad(lambda params: (module.apply({"params": params}, TOKENS, method="features") ** 3).sum())


def params_of(model):
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32) / 4, registry.shapes(model))


def test_remat_levels_increase_computation():
    model, params = tiny.LLAMA, params_of(tiny.LLAMA)
    counted = [
        flops.of_program(jax.make_jaxpr(gradient(dataclasses.replace(model, remat=remat)))(params).jaxpr)
        for remat in model.remat_levels
    ]
    none, dots, minimal, attention, full, offload = counted
    # Without a flash kernel, nothing of attention is saved.
    assert none < dots < minimal < attention == full == offload
    # Widths of a layer: queries, gate and up, and keys and values of half the width.
    wide = 2 * TOKENS.size * 32 * (32 + 2 * 16 + 2 * 64)
    assert minimal - dots == model.stack.layers * wide


@pytest.mark.parametrize("remat", ["minimal", "attention", "offload"])
def test_remat_keeps_gradients(remat):
    model, params = tiny.LLAMA, params_of(tiny.LLAMA)
    want, got = (jax.jit(gradient(dataclasses.replace(model, remat=level)))(params) for level in ("none", remat))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-3), got, want)


def test_layer_inputs_are_offloaded():
    model = dataclasses.replace(tiny.LLAMA, remat="offload")
    program = str(jax.make_jaxpr(gradient(model))(params_of(model)))
    assert "<host>" in program and isinstance(model, models.DecoderConfig)
