"""Cross-entropy among a few words of a large vocabulary."""

import functools

import jax
import jax.numpy as jnp
import numpy as np


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
