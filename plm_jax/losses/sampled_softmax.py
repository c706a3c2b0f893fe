"""Cross-entropy with a few sampled words of a large vocabulary."""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def log_uniform(ids, vocab_size: int):
    """Returns the probabilities of ids under the log-uniform (Zipfian) distribution over `vocab_size` ids."""
    return jnp.log1p(1 / (ids + 1.0)) / np.log(vocab_size + 1)


@functools.cache
def expected_draws(vocab_size: int, samples: int) -> float:
    """Returns the number of log-uniform draws after which the expected number of distinct words is `samples`."""
    log_not_drawn = np.log1p(-np.log1p(1 / np.arange(1.0, vocab_size + 1)) / np.log(vocab_size + 1))

    def different(draws):
        return -np.expm1(draws * log_not_drawn).sum()

    low = high = float(samples)
    while different(high) < samples:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if different(middle) < samples else (low, middle)
    return high


def sampled_softmax(features, unembedding, bias, targets, weights, key, samples: int):
    """Returns the weighted sum of cross-entropies with a sampled softmax (Jean et al. 2015 §3).

    Each softmax is over the target and `samples` sampled words. The whole batch shares the sampled words, which are
    drawn log-uniformly without replacement. The logarithm of the expected count of a word is subtracted from its logit,
    as in TensorFlow's `sampled_softmax_loss`. Samples that equal the target are ignored.

    Args:
      features: [B, T, D].
      unembedding: [V, D].
      bias: float32 [V].
      targets: int32 [B, T].
      weights: float32 [B, T].
      samples: number of sampled words, less than V.
    """
    vocab_size = unembedding.shape[0]
    shares_V = log_uniform(jnp.arange(vocab_size), vocab_size)
    # Gumbel top-k: the largest sums are a sample without replacement.
    _, drawn_S = jax.lax.top_k(jnp.log(shares_V) + jax.random.gumbel(key, (vocab_size,)), samples)
    draws = expected_draws(vocab_size, samples)

    def correction(ids):
        return bias[ids] - jnp.log(-jnp.expm1(draws * jnp.log1p(-log_uniform(ids, vocab_size))))

    def rows(ids):
        return unembedding[ids].astype(features.dtype)

    sampled_logits = jnp.einsum("btd,sd->bts", features, rows(drawn_S), preferred_element_type=jnp.float32)
    lowest = jnp.finfo(jnp.float32).min
    sampled_logits = jnp.where(drawn_S == targets[..., None], lowest, sampled_logits + correction(drawn_S))
    target_logits = jnp.einsum("btd,btd->bt", features, rows(targets), preferred_element_type=jnp.float32)
    target_logits = target_logits + correction(targets)
    log_z = jnp.logaddexp(target_logits, jax.nn.logsumexp(sampled_logits, axis=-1))
    return jnp.sum((log_z - target_logits) * weights)
