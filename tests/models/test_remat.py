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
from tests.support.random_models import random_params

TOKENS = np.arange(24, dtype=np.int32).reshape(2, 12)


def gradient(model):
    """A function of parameters."""
    module = registry.build(model)
    return jax.grad(lambda params: (module.apply({"params": params}, TOKENS, method="features") ** 3).sum())


def test_remat_levels_increase_computation():
    model, params = tiny.LLAMA, random_params(tiny.LLAMA)
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


@functools.cache
def gradients(remat):
    return jax.jit(gradient(dataclasses.replace(tiny.LLAMA, remat=remat)))(random_params(tiny.LLAMA))


@pytest.mark.parametrize("remat", ["minimal", "attention", "offload"])
def test_remat_keeps_gradients(remat):
    assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-3)
    jax.tree.map(assert_close, gradients(remat), gradients("none"))


def test_layer_inputs_are_offloaded():
    model = dataclasses.replace(tiny.LLAMA, remat="offload")
    program = str(jax.make_jaxpr(gradient(model))(random_params(model)))
    assert "<host>" in program and isinstance(model, models.DecoderConfig)
