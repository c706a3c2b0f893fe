"""The chunked cross-entropy against the plain one, written out with all logits."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import losses, models, objectives
from plm_jax.losses import cross_entropy, means
from plm_jax.models import registry
from tests.support import tiny

ROWS, LENGTH, WIDTH, VOCAB = 3, 7, 5, 11


def make(seed=0, rows=ROWS, length=LENGTH):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(rows, length, WIDTH)).astype(np.float32)
    unembedding = rng.normal(size=(VOCAB, WIDTH)).astype(np.float32)
    targets = rng.integers(0, VOCAB, (rows, length)).astype(np.int32)
    weights = (rng.random((rows, length)) * (rng.random((rows, length)) > 0.3)).astype(np.float32)
    bias = rng.normal(size=VOCAB).astype(np.float32)
    return features, unembedding, bias, targets, weights


def plain(features, unembedding, bias, targets, weights, z_loss, label_smoothing):
    """Mean over classes is the smoothed part, as in torch's `cross_entropy(label_smoothing=…)`."""
    logits = jnp.einsum("bld,vd->blv", features, unembedding)
    logits = logits if bias is None else logits + bias
    log_p = jax.nn.log_softmax(logits)
    hard = -jnp.sum(jax.nn.one_hot(targets, VOCAB) * log_p, -1)
    loss = (1 - label_smoothing) * hard - label_smoothing * log_p.mean(-1)
    loss += z_loss * jax.nn.logsumexp(logits, axis=-1) ** 2
    return jnp.sum(weights * loss)


def chunked(features, unembedding, bias, targets, weights, z_loss, label_smoothing, chunk):
    """Computes the loss in chunks of `chunk` positions."""
    compute, at_once = cross_entropy.CrossEntropy(z_loss, label_smoothing), chunk * len(features) * len(unembedding)
    return cross_entropy.sum_over_vocabulary(compute, features, unembedding, bias, (targets, weights), (), at_once)


def test_missing_bias_equals_a_bias_of_zero():
    features, unembedding, bias, *targets = make(3)
    without = chunked(features, unembedding, None, *targets, 0.1, 0.0, 3).loss
    np.testing.assert_allclose(without, plain(features, unembedding, 0 * bias, *targets, 0.1, 0.0), rtol=1e-6)


@pytest.mark.parametrize(
    ("chunk", "z_loss", "label_smoothing"), [(1, 0.0, 0.0), (3, 0.1, 0.2), (7, 0.1, 0.0), (100, 0.0, 0.2)]
)
def test_value_and_gradients_equal_the_plain_loss(chunk, z_loss, label_smoothing):
    arrays = make()

    def three_times(*head):
        return 3 * chunked(*head, *arrays[3:], z_loss, label_smoothing, chunk).loss

    def three_times_plain(*head):
        return 3 * plain(*head, *arrays[3:], z_loss, label_smoothing)

    got, got_grads = jax.value_and_grad(three_times, (0, 1, 2))(*arrays[:3])
    want, want_grads = jax.value_and_grad(three_times_plain, (0, 1, 2))(*arrays[:3])
    np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_allclose(3 * chunked(*arrays, z_loss, label_smoothing, chunk).loss, want, rtol=1e-6)
    for one, other in zip(got_grads, want_grads, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_nll_and_hits_are_weighted_and_unregularized():
    features, unembedding, bias, targets, weights = make(1)
    logits = features @ unembedding.T + bias
    nll = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, targets[..., None], -1)[..., 0]
    hits = (logits.argmax(-1) == targets).astype(float)
    for chunk in (2, 7):
        sums = chunked(features, unembedding, bias, targets, weights, 0.1, 0.2, chunk)
        np.testing.assert_allclose(sums.nll, (nll * weights).sum(), rtol=1e-6)
        np.testing.assert_allclose(sums.correct, (hits * weights).sum(), rtol=1e-6)


@pytest.mark.parametrize("chunk", [3, 7])
def test_ties_are_no_hits(chunk):
    """Neither constant logits nor those of a target that shares the first place, wherever that lies."""
    features, unembedding, bias, targets, weights = make(1)
    arrays = features, unembedding, bias
    for head in (jax.tree.map(np.zeros_like, arrays), (0 * features, 0 * unembedding, bias.max() + 0 * bias)):
        assert chunked(*head, targets, weights, 0.0, 0.0, chunk).correct == 0
        # What training computes.
        assert jax.vjp(lambda *head: chunked(*head, targets, weights, 0.0, 0.0, chunk), *head)[0].correct == 0
    order = np.sort(features @ unembedding.T + bias, -1)
    first = (features @ unembedding.T + bias).argmax(-1).astype(np.int32)
    assert (order[..., -1] > order[..., -2]).all()
    np.testing.assert_allclose(chunked(*arrays, first, weights, 0.0, 0.0, chunk).correct, weights.sum(), rtol=1e-6)
    # Each token once more: whatever is first is so twice.
    twice = features, np.concatenate([unembedding, unembedding]), np.concatenate([bias, bias])
    for target in (first, first + VOCAB):
        assert chunked(*twice, target, weights, 0.0, 0.0, chunk).correct == 0


@pytest.mark.parametrize("kind", ["masked_lm", "replaced_token"])
def test_model_of_zeros_has_no_hits(kind):
    model = registry.build({"masked_lm": tiny.BERT, "replaced_token": tiny.ELECTRA}[kind])
    params = nn.unbox(jax.jit(functools.partial(registry.init_params, model))(jax.random.key(0)))
    rng = np.random.default_rng(0)
    batch = {
        "tokens": rng.integers(0, 256, (4, 16)).astype(np.int32),
        "mask": np.ones((4, 16), np.int32),
        "targets": rng.integers(0, 256, (4, 3)).astype(np.int32),
        "target_positions": np.tile(np.array([1, 5, 9], np.int32), (4, 1)),
        "target_weights": np.ones((4, 3), np.float32),
    }
    if kind == "masked_lm":
        batch["pair_label"] = np.array([0, 1, 0, 1], np.int32)
    silent = jax.tree.map(np.zeros_like, params)
    for given, hits in ((params, True), (silent, False)):
        _, metrics, _ = losses.get(kind)(model, given, batch, None, {})
        found = {name: float(value) for own in metrics.values() for name, value in own.items() if "accuracy" in name}
        assert found.keys() == {"accuracy", "pair_accuracy" if kind == "masked_lm" else "discriminator_accuracy"}
        assert (max(found.values()) > 0) == hits, found


@pytest.mark.parametrize("chunk", [3, 7])
def test_bfloat16_features_stay_within_their_precision(chunk):
    arrays = make(2, rows=8, length=16)
    want = jax.grad(plain, (0, 1))(*arrays, 0.0, 0.0)
    half = jnp.asarray(arrays[0], jnp.bfloat16)
    loss = lambda *head: chunked(*head, *arrays[2:], 0.0, 0.0, chunk).loss  # noqa: E731
    got = jax.grad(loss, (0, 1))(half, arrays[1])
    assert [g.dtype for g in got] == [jnp.bfloat16, jnp.float32]
    for one, other in zip(got, want, strict=True):
        difference = np.linalg.norm(np.asarray(one, np.float32) - other) / np.linalg.norm(other)
        assert difference < 0.01, difference  # bfloat16 keeps 8 bits.


def test_peak_memory_is_below_half_of_the_plain_loss():
    rows, length, width, vocab = 8, 512, 64, 50257
    shapes = [
        jax.ShapeDtypeStruct((rows, length, width), jnp.float32),
        jax.ShapeDtypeStruct((vocab, width), jnp.float32),
        jax.ShapeDtypeStruct((rows, length), jnp.int32),
        jax.ShapeDtypeStruct((rows, length), jnp.float32),
    ]
    assert 1 <= cross_entropy.chunk_length(rows, length, vocab, cross_entropy.LOGITS_AT_ONCE) < length

    def plain_loss(features, unembedding, targets, weights):
        log_p = jax.nn.log_softmax(features @ unembedding.T)
        return -jnp.sum(weights * jnp.take_along_axis(log_p, targets[..., None], -1)[..., 0])

    def chunked_loss(features, unembedding, *targets):
        compute, at_once = cross_entropy.CrossEntropy(), cross_entropy.LOGITS_AT_ONCE
        return cross_entropy.sum_over_vocabulary(compute, features, unembedding, None, targets, (), at_once).loss

    def peak(loss):
        analysis = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(*shapes).compile().memory_analysis()
        return analysis.temp_size_in_bytes + analysis.output_size_in_bytes

    unoptimised = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        chunked_peak, plain_peak = peak(chunked_loss), peak(plain_loss)
    finally:
        jax.config.update("jax_disable_most_optimizations", unoptimised)
    assert chunked_peak < plain_peak / 2, (chunked_peak, plain_peak)


def test_chunks_are_even_and_bounded():
    for rows, length, vocab, most in (
        (8, 512, 50257, 2**25),
        (64, 1024, 50257, 2**28),
        (4, 256, 50257, 2**25),
        (3, 97, 9999, 2**20),
    ):
        chunk = cross_entropy.chunk_length(rows, length, vocab, most)
        chunks = -(-length // chunk)
        assert chunks * chunk - length < chunks  # Less than one position of padding a chunk.
        assert (chunk - 1) * rows * vocab < most
        assert chunks == 1 or 2 * chunk * rows * vocab > most
    assert cross_entropy.chunk_length(2, 100, 300, 2**25) == 100
    assert cross_entropy.chunk_length(10**6, 512, 50257, 2**25) == 1


def sums(loss, model, params, batch):
    """Returns the sum, the metrics and the weight of a loss with one term."""
    found, _ = means.sums(loss, model, params, batch, {})
    return tuple(*zip(*(part.values() for part in found), strict=True))


def test_loss_of_blanks_equals_the_weighted_loss_of_whole_rows():
    """The head sees part B alone; the loss is that of next tokens over whole rows."""
    special = objectives.Special(pad=0, eos=1, cls=2, mask=3, sop=4, eop=5, vocab_size=40)
    objective = objectives.get("blank_infilling", special, rate=0.3)
    example = {"tokens": np.arange(10, 10 + objective.input_length(32))}
    rows = [objective(example, np.random.default_rng(seed)) for seed in range(3)]
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    model = registry.build(dataclasses.replace(tiny.GLM, embedding=models.EmbeddingConfig(40, 32)))
    params = nn.unbox(jax.jit(functools.partial(registry.init_params, model))(jax.random.key(0)))
    got = sums(losses.MaskedLMLoss(), model, params, batch)
    whole = {name: np.zeros(batch["tokens"].shape, batch[name].dtype) for name in ("targets", "target_weights")}
    for row, at in enumerate(batch["target_positions"]):
        real = batch["target_weights"][row] > 0
        for name in whole:
            whole[name][row, at[real]] = batch[name][row, real]
    want = sums(losses.NextTokenLoss(), model, params, batch | whole)
    assert got[2] == want[2] > 20
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), got, want)
