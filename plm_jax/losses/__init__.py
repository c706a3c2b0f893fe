"""What is minimised: pure functions `(model, params, batch, rngs, carry) → (loss_sum, weight_sum, metrics, carry)`.

Sums over the batch, not means, so that microbatches and hosts add up and are divided once. Metrics are sums too.
`carry` is a tree of arrays [B, ...], a state that each row takes on to the next batch; for most losses it is empty.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.models import electra, settings
from plm_jax.models.partitioning import constrain
from plm_jax.training.state import named_key

# Logits that one device holds at a time; 2**25 in float32 are 128 MiB.
LOGITS_AT_ONCE = 2**25


class Sums(NamedTuple):
    """Sums over target tokens: the loss to minimise, the plain negative log-likelihood (nats), and hits.

    A hit is a target whose logit is above all others; a tie is none, so that constant logits hit nothing.
    """

    loss: jax.Array
    nll: jax.Array
    correct: jax.Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7))
def linear_cross_entropy(features, unembedding, bias, targets, weights, z_loss, label_smoothing, chunk) -> Sums:
    """Cross-entropy of features @ unembedding.T + bias without ever holding all logits.

    The forward pass walks over `chunk` positions at a time; when it is differentiated it leaves the gradients instead
    of the logits, so nothing is computed twice. Only `loss` has a gradient.

    Args:
      features: [B, L, D].
      unembedding: [V, D].
      bias: float32 [V], or None.
      targets: int32 [B, L].
      weights: float32 [B, L].
      z_loss: factor of log(Z)² per token (Chowdhery et al. 2022 §5).
      label_smoothing: share of the target's mass spread evenly over the vocabulary.
      chunk: positions of L at a time.
    """
    return _walk(features, unembedding, bias, targets, weights, z_loss, label_smoothing, chunk, with_gradients=False)[0]


def _forward(features, unembedding, bias, targets, weights, z_loss, label_smoothing, chunk):
    return _walk(features, unembedding, bias, targets, weights, z_loss, label_smoothing, chunk, with_gradients=True)


def _backward(z_loss, label_smoothing, chunk, gradients, cotangents):
    scaled = jax.tree.map(lambda gradient: gradient * cotangents.loss.astype(gradient.dtype), gradients)
    return *scaled, None, None


linear_cross_entropy.defvjp(_forward, _backward)


def _walk(features, unembedding, bias, targets, weights, z_loss, label_smoothing, chunk, *, with_gradients):
    """(Sums, (d loss / d features [B, L, D], … / d unembedding [V, D], … / d bias) or None), chunk by chunk."""
    length = features.shape[1]
    matrix = unembedding.astype(features.dtype)

    def one(features_BCD, targets_BC, weights_BC):
        logits = jnp.einsum("bcd,vd->bcv", features_BCD, matrix, preferred_element_type=jnp.float32)
        logits = logits if bias is None else logits + bias
        # No argmax, which costs as much as a softmax on a CPU.
        of_target, of_others = _own_and_largest_other(logits, targets_BC)
        largest = jnp.maximum(of_target, of_others)
        exp = jnp.exp(logits - largest[..., None])
        z = exp.sum(-1)
        log_z = largest + jnp.log(z)
        nll = log_z - of_target
        loss = nll + z_loss * log_z**2
        if label_smoothing:
            loss = loss + label_smoothing * (of_target - logits.mean(-1))
        correct = (of_target > of_others).astype(jnp.float32)
        sums = Sums(*(jnp.sum(x * weights_BC) for x in (loss, nll, correct)))
        if not with_gradients:
            return sums, None
        vocab_size = logits.shape[-1]
        hard = jnp.where(jnp.arange(vocab_size) == targets_BC[..., None], 1 - label_smoothing, 0.0)
        soft = exp * ((1 + 2 * z_loss * log_z) / z)[..., None]
        d_logits = weights_BC[..., None] * (soft - hard - label_smoothing / vocab_size)
        d_bias = None if bias is None else d_logits.sum((0, 1))
        d_logits = d_logits.astype(features.dtype)
        d_features = jnp.einsum("bcv,vd->bcd", d_logits, matrix)
        flat_logits, flat_features = d_logits.reshape(-1, vocab_size), features_BCD.reshape(-1, features.shape[-1])
        d_matrix = jnp.einsum("nv,nd->vd", flat_logits, flat_features, preferred_element_type=jnp.float32)
        # Laid out as the parameter is: else every device would hold and add up all of it.
        d_matrix = constrain(d_matrix, "vocab", "embed")
        return sums, (d_features, (d_matrix, d_bias))

    if chunk >= length:
        sums, gradients = one(features, targets, weights)
        return sums, gradients and _flat(*gradients, unembedding.dtype)

    padding = -length % chunk
    arrays = [jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2)) for x in (features, targets, weights)]

    def step(carry, start):
        sums, gradients = one(*(jax.lax.dynamic_slice_in_dim(x, start, chunk, axis=1) for x in arrays))
        sums = jax.tree.map(jnp.add, carry[0], sums)
        if not with_gradients:
            return (sums, None), None
        return (sums, jax.tree.map(jnp.add, carry[1], gradients[1])), gradients[0]

    zero_sums = Sums(*[jnp.zeros(())] * 3)
    shapes = (unembedding.shape, None if bias is None else bias.shape)
    zeros = tuple(None if shape is None else jnp.zeros(shape) for shape in shapes) if with_gradients else None
    starts = jnp.arange(0, length + padding, chunk)
    (sums, d_head), d_features = jax.lax.scan(step, (zero_sums, zeros), starts)
    if not with_gradients:
        return sums, None
    d_features = jnp.moveaxis(d_features, 0, 1).reshape(features.shape[0], length + padding, -1)[:, :length]
    return sums, _flat(d_features, d_head, unembedding.dtype)


def _own_and_largest_other(logits, targets):
    """The targets' logits [...], and the largest of the others' [...], of logits [..., V] and targets [...]."""
    is_target = jnp.arange(logits.shape[-1]) == targets[..., None]
    own = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return own, jnp.where(is_target, -jnp.inf, logits).max(-1)


def _flat(d_features, d_head, dtype):
    return d_features, d_head[0].astype(dtype), d_head[1]


def chunk_length(rows: int, length: int, vocab_size: int, batch_shards: int = 1) -> int:
    """Into which even parts to cut [rows, length] so that each device holds at most about LOGITS_AT_ONCE."""
    chunks = -(-rows * length * vocab_size // (LOGITS_AT_ONCE * batch_shards))
    return -(-length // min(chunks, length))


def _vocabulary_head(model, params, features):
    """The head by its parts: what is multiplied for features [B, T, D], [B, T, E], the matrix [V, E], the bias [V]."""
    features = model.apply({"params": params}, features, method="head_features")
    return features, *model.apply({"params": params}, method="unembedding")


def _head_loss(head, batch, z_loss, label_smoothing, batch_shards):
    """(loss sum, weight sum, metrics) of a head's parts against `targets` [B, T] under `target_weights`."""
    features, unembedding, bias = head
    chunk = chunk_length(*features.shape[:2], unembedding.shape[0], batch_shards)
    targets, weights = batch["targets"], batch["target_weights"]
    sums = linear_cross_entropy(features, unembedding, bias, targets, weights, z_loss, label_smoothing, chunk)
    return sums.loss, weights.sum(), {"nll": sums.nll, "accuracy": sums.correct}


def _vocabulary_loss(model, params, features, batch, z_loss, label_smoothing, batch_shards):
    """(loss sum, weight sum, metrics) of features [B, T, D] against `targets` [B, T] under `target_weights`."""
    return _head_loss(_vocabulary_head(model, params, features), batch, z_loss, label_smoothing, batch_shards)


# What of a batch a model reads, each architecture some of it; the rest is for the loss.
INPUTS = (
    *("tokens", "mask", "token_types", "positions", "segment_ids", "block_positions", "prefix_lengths"),
    *("decoder_tokens", "decoder_positions", "decoder_segment_ids"),
)


def _dropout_keys(rngs):
    return {name: key for name, key in (rngs or {}).items() if name == "dropout"}


def _features(model, params, batch, rngs):
    """The model's features of a batch; no key `dropout` among `rngs`: no dropout."""
    inputs = {name: batch[name] for name in INPUTS if name in batch}
    keys = _dropout_keys(rngs)
    return model.apply({"params": params}, **inputs, deterministic=not keys, rngs=keys, method="features")


def _at_targets(features, batch):
    """Features [B, L, D] at `target_positions`: [B, T, D]."""
    return jnp.take_along_axis(features, batch["target_positions"][..., None], axis=1)


def next_token(model, params, batch, rngs, carry, *, z_loss=0.0, label_smoothing=0.0, batch_shards=1):
    """Cross-entropy of `tokens`, of `decoder_tokens` where there are some, against `targets` under `target_weights`."""
    features = _features(model, params, batch, rngs)
    loss, weight, metrics = _vocabulary_loss(model, params, features, batch, z_loss, label_smoothing, batch_shards)
    return loss, weight, metrics, carry


def masked_lm(model, params, batch, rngs, carry, *, z_loss=0.0, label_smoothing=0.0, batch_shards=1):
    """Cross-entropy at `target_positions` alone, and of `pair_label` where the batch has pairs (see `whole_batch`).

    With SpanBERT's head also that of each target from its span's boundaries, as far as the head counts.
    """
    features = _features(model, params, batch, rngs)
    masked = _at_targets(features, batch)
    loss, weight, metrics = _vocabulary_loss(model, params, masked, batch, z_loss, label_smoothing, batch_shards)
    boundary = getattr(model.model, "span_boundary", None)
    if "target_offsets" in batch and isinstance(boundary, settings.SpanBoundary):
        spans = [batch[f"target_{name}"] for name in ("left", "right", "offsets")]
        head = model.apply({"params": params}, features, *spans, method="boundary_head")
        counted = batch["target_weights"] * (batch["target_offsets"] < boundary.positions)
        spans = batch | {"target_weights": counted}
        boundary_loss, _, of_spans = _head_loss(head, spans, z_loss, label_smoothing, batch_shards)
        metrics |= {"boundary_loss": of_spans["nll"], "boundary_accuracy": of_spans["accuracy"]}
        loss = loss + boundary_loss
    if "pair_label" in batch:
        logits = model.apply({"params": params}, features, method="pair_logits")
        own, other = _own_and_largest_other(logits, batch["pair_label"])
        nll = jax.nn.logsumexp(logits, axis=-1) - own
        pair_loss, hits = (jnp.sum(x * batch["pair_weights"]) for x in (nll, own > other))
        metrics |= {"pair_loss": pair_loss, "pair_accuracy": hits}
        loss = loss + pair_loss
    return loss, weight, metrics, carry


def replaced_token(
    model,
    params,
    batch,
    rngs,
    carry,
    *,
    discriminator_weight=50.0,
    z_loss=0.0,
    label_smoothing=0.0,
    batch_shards=1,
):
    """Cross-entropy of the generator at `target_positions`, and the discriminator's at all real tokens."""
    of_generator, logits, replaced = discriminate(model, params, batch, rngs, z_loss, label_smoothing, batch_shards)
    loss, weight, metrics = of_generator
    weights = batch["token_weights"]
    discriminator_loss = jnp.sum(weights * (jax.nn.softplus(logits) - replaced * logits))
    metrics |= {
        "discriminator_loss": discriminator_loss,
        "discriminator_accuracy": jnp.sum(weights * (jnp.where(replaced > 0, logits, -logits) > 0)),
        "replaced": jnp.sum(weights * replaced),
    }
    return loss + discriminator_weight * discriminator_loss, weight, metrics, carry


def discriminate(model, params, batch, rngs, z_loss=0.0, label_smoothing=0.0, batch_shards=1):
    """An ELECTRA's generator and what its discriminator says of the generator's samples.

    The discriminator sees the text with a sample of the generator's in each target's place, drawn with the key `sample`
    of `rngs`, and has to say which tokens are not the text's; a sample may be (Clark et al. 2020 §3.1). No gradient
    passes through samples. Without keys, as in validation, each batch draws with the same one.

    Returns:
      The generator's (loss sum, weight sum, metrics); the discriminator's logits [B, L]; `replaced` float32 [B, L], 1
      where a token is not the text's.
    """
    generator, generator_params = electra.generator(model, params)
    keys = rngs or {"sample": jax.random.key(0)}
    own_keys = {name: named_key(key, "generator") for name, key in keys.items()}
    features = _at_targets(_features(generator, generator_params, batch, own_keys), batch)
    head = _vocabulary_head(generator, generator_params, features)
    of_generator = _head_loss(head, batch, z_loss, label_smoothing, batch_shards)
    chunk = chunk_length(*features.shape[:2], head[1].shape[0], batch_shards)
    sampled = _sample(*jax.lax.stop_gradient(head), keys["sample"], chunk)

    text, corrupted = _filled(batch, batch["targets"]), _filled(batch, sampled)
    replaced = (text != corrupted).astype(jnp.float32)
    features = _features(model, params, batch | {"tokens": corrupted}, keys)
    return of_generator, model.apply({"params": params}, features, method="discriminator_logits"), replaced


def _sample(features, unembedding, bias, key, chunk):
    """A token from each softmax of features [B, T, E] @ unembedding.T + bias, int32 [B, T]; `chunk` of T at a time.

    Each of the T has a key of its own, so that neither chunks nor meshes change what is drawn.
    """
    matrix = unembedding.astype(features.dtype)

    def one(slot):
        features_BE, key = slot
        logits = jnp.einsum("be,ve->bv", features_BE, matrix, preferred_element_type=jnp.float32)
        return jax.random.categorical(key, logits if bias is None else logits + bias)

    slots = features.swapaxes(0, 1), jax.random.split(key, features.shape[1])
    return jax.lax.map(one, slots, batch_size=chunk).swapaxes(0, 1)


def _filled(batch, values):
    """`tokens` [B, L] with values [B, T] at the target positions."""

    def of_row(tokens, positions, values, weights):
        # Added, since unused slots all name one position.
        return tokens.at[positions].add(jnp.where(weights > 0, values - tokens[positions], 0))

    return jax.vmap(of_row)(batch["tokens"], batch["target_positions"], values, batch["target_weights"])


def log_uniform(ids, vocab_size: int):
    """The share of a word in log-uniform draws: ids that fall in frequency, as Zipf's law has it."""
    return jnp.log1p(1 / (ids + 1.0)) / np.log(vocab_size + 1)


@functools.cache
def expected_draws(vocab_size: int, samples: int) -> float:
    """How many log-uniform draws it takes until `samples` different words have come, all words being as many."""
    log_others = np.log1p(-np.log1p(1 / np.arange(1.0, vocab_size + 1)) / np.log(vocab_size + 1))

    def different(draws):
        return -np.expm1(draws * log_others).sum()

    low = high = float(samples)
    while different(high) < samples:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if different(middle) < samples else (low, middle)
    return high


def sampled_softmax(features, unembedding, bias, targets, weights, key, samples: int):
    """Cross-entropy among the target and `samples` other words, the same for the whole batch (Jean et al. 2015 §3).

    The words are drawn log-uniformly without replacement, and each logit is corrected by the logarithm of how often its
    word was to be expected, as in TensorFlow's `sampled_softmax_loss`; one that is the target does not count twice.

    Args:
      features: [B, T, D].
      unembedding, bias: [V, D] and float32 [V].
      targets, weights: int32 and float32 [B, T].
      samples: fewer than V.

    Returns:
      The sum of weighted losses.
    """
    vocab_size = unembedding.shape[0]
    shares_V = log_uniform(jnp.arange(vocab_size), vocab_size)
    # The largest of these sums are draws without replacement.
    _, drawn_S = jax.lax.top_k(jnp.log(shares_V) + jax.random.gumbel(key, (vocab_size,)), samples)
    draws = expected_draws(vocab_size, samples)

    def correction(ids):
        return bias[ids] - jnp.log(-jnp.expm1(draws * jnp.log1p(-log_uniform(ids, vocab_size))))

    def rows(ids):
        return unembedding[ids].astype(features.dtype)

    others = jnp.einsum("btd,sd->bts", features, rows(drawn_S), preferred_element_type=jnp.float32)
    lowest = jnp.finfo(jnp.float32).min
    others = jnp.where(drawn_S == targets[..., None], lowest, others + correction(drawn_S))
    own = jnp.einsum("btd,btd->bt", features, rows(targets), preferred_element_type=jnp.float32) + correction(targets)
    log_z = jnp.logaddexp(own, jax.nn.logsumexp(others, axis=-1))
    return jnp.sum((log_z - own) * weights)


def bidirectional_lm(
    model, params, batch, rngs, carry, *, negative_samples=0, z_loss=0.0, label_smoothing=0.0, batch_shards=1
):
    """Cross-entropy of both directions of streams [B, 2, L], weighed alike; `carry` is the state of the LSTMs.

    With `rngs` and `negative_samples` it is that of `sampled_softmax`, and there are no metrics. No gradient reaches
    the batches before: they are data.
    """
    keys = _dropout_keys(rngs)
    features, carry = model.apply(
        {"params": params}, batch["characters"], carry, deterministic=not keys, rngs=keys, method="streams"
    )
    rows = len(features)
    flat = {name: batch[name].reshape(rows, -1) for name in ("targets", "target_weights")}
    features = features.reshape(rows, -1, features.shape[-1])
    if rngs is None or not negative_samples:
        return *_vocabulary_loss(model, params, features, flat, z_loss, label_smoothing, batch_shards), carry
    head = model.apply({"params": params}, method="unembedding")
    loss = sampled_softmax(features, *head, flat["targets"], flat["target_weights"], rngs["sample"], negative_samples)
    return loss, flat["target_weights"].sum(), {}, carry


def whole_batch(batch):
    """The batch with what its microbatches must know of the whole.

    The loss of pairs is a mean over rows, as in BERT, that of a discriminator one over real tokens, as in ELECTRA, that
    of tokens one over targets. With `pair_weights` [B], targets / rows, and `token_weights` [B, L], targets / tokens,
    all may be divided by the number of targets at once. Padding weighs nothing.
    """
    if not {"mask", "target_positions"} <= batch.keys():
        return batch
    mask, num_targets = batch["mask"].astype(jnp.float32), batch["target_weights"].sum()
    batch = batch | {"token_weights": mask * num_targets / jnp.maximum(mask.sum(), 1.0)}
    if "pair_label" not in batch:
        return batch
    real = mask.max(1)
    return batch | {"pair_weights": real * num_targets / jnp.maximum(real.sum(), 1.0)}


LOSSES = {
    **dict.fromkeys(("blank_infilling", "masked_lm", "span_masked_lm"), masked_lm),
    **{"replaced_token": replaced_token, "bidirectional_lm": bidirectional_lm},
    **dict.fromkeys(("causal", "decoder_prefix_lm", "prefix_lm", "full_lm", "span_corruption", "ul2"), next_token),
    **dict.fromkeys(("denoising", "replace_spans", "drop_tokens", "mask_tokens", "deshuffling"), next_token),
}
# Those that draw samples, with a key of that name.
SAMPLING = ("bidirectional_lm", "replaced_token")
