"""The train step: randomness by step, microbatch and name; sums over microbatches divided once."""

import zlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plm_jax import losses
from plm_jax.common import keys
from plm_jax.models.decoder import Decoder
from plm_jax.training import state, step
from tests.support import tiny

ROOT = keys.from_seed(7)


def expected_key(number, microbatch):
    """fold_in(seed, step), then microbatch, then name."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(7), number), microbatch)
    return jax.random.fold_in(key, zlib.crc32(b"dropout"))


@pytest.mark.parametrize("microbatches", [1, 3])
def test_keys_fold_in_step_microbatch_and_name(microbatches):
    class Noisy(losses.Loss):
        def weights(self, model, batch):
            return {"noise": batch["x"].sum()}

        def __call__(self, model, params, batch, rngs, carry):
            return {"noise": jnp.sum(params["bias"] * jax.random.normal(rngs["dropout"], (4,)))}, {}, carry

    run = step.train_step(Noisy(), None, optax.sgd(1.0), microbatches, dropout=True)
    current = state.new_state({"bias": jnp.zeros(4)}, optax.sgd(1.0))
    batch = {"x": jnp.ones(6), "digest": jnp.zeros((6, 2), jnp.uint32)}
    params = np.zeros(4)
    for number in range(3):
        current, _ = jax.jit(run)(current, batch, ROOT, 1.0)
        noise = sum(jax.random.normal(expected_key(number, m), (4,)) for m in range(microbatches))
        params -= np.asarray(noise) / 6
        np.testing.assert_allclose(current.params["bias"], params, rtol=1e-5, atol=1e-6)
    assert int(current.step) == 3


def model_and_batch(rows=8, length=16):
    model = Decoder(tiny.MODEL)
    params = nn.unbox(state.init_params(model, ROOT))
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 257, (rows, length + 1), dtype=np.int32)
    # Rows differ in targets by far, and so do the microbatches.
    weights = (np.arange(length) < np.array([16, 1, 2, 3, 13, 0, 7, 1])[:, None]).astype(np.float32)
    batch = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "target_weights": weights}
    return model, params, batch | {"digest": np.arange(2 * rows, dtype=np.uint32).reshape(rows, 2)}


def test_microbatches_with_unequal_targets_equal_one_batch():
    model, params, batch = model_and_batch()
    loss = losses.NextTokenLoss(label_smoothing=0.1, z_loss=0.01)
    optimizer = optax.sgd(1.0)

    def once(count):
        run = step.train_step(loss, model, optimizer, count)
        return jax.jit(run)(state.new_state(params, optimizer), batch, ROOT, 1.0)

    whole, whole_metrics = once(1)
    for microbatches in (2, 8):
        parts, metrics = once(microbatches)
        for name in whole_metrics:
            # The gradients of keys' biases are rounding alone.
            np.testing.assert_allclose(metrics[name], whole_metrics[name], rtol=1e-6, atol=1e-9, err_msg=name)
        np.testing.assert_array_equal(metrics["digest"], batch["digest"].sum(0))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=3e-7), parts.params, whole.params)


def test_metrics_are_means_over_target_tokens():
    model, params, batch = model_and_batch()
    logits = np.asarray(model.apply({"params": params}, batch["tokens"]), np.float64)
    nll = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, batch["targets"][..., None], -1)[..., 0]
    weights = batch["target_weights"]
    run = step.train_step(losses.NextTokenLoss(), model, optax.sgd(1.0))
    after, metrics = jax.jit(run)(state.new_state(params, optax.sgd(1.0)), batch, ROOT, 0.25)
    np.testing.assert_allclose(metrics["loss"], (nll * weights).sum() / weights.sum(), rtol=1e-6)
    hits = (logits.argmax(-1) == batch["targets"]) * weights
    np.testing.assert_allclose(metrics["accuracy"], hits.sum() / weights.sum(), rtol=1e-6)
    moved = jax.tree.map(lambda a, b: ((a - b) ** 2).sum(), after.params, params)
    np.testing.assert_allclose(metrics["grad_norm"], np.sqrt(sum(jax.tree.leaves(moved))), rtol=1e-4)
    assert metrics["learning_rate"] == 0.25
