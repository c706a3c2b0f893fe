"""Embeddings of texts: the hidden states of a layer, reduced to one vector per text."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from plm_jax.common.errors import UserError, nearest
from plm_jax.data.vocabularies import words
from plm_jax.generation.scoring import ignore_progress
from plm_jax.generation.strategies.strategy import Strategy
from plm_jax.inference import batches

Pooling = Literal["mean", "cls", "last", "max"]
POOLINGS: tuple[str, ...] = get_args(Pooling)


def embed(
    strategy: Strategy,
    limit: int | None,
    texts: Sequence[str],
    pooling: Pooling = "mean",
    layer: int = -1,
    normalize: bool = False,
    batch_size: int = 32,
    advance: Callable[[int], Any] = ignore_progress,
) -> Float32[np.ndarray, "texts width"]:
    """Returns the embeddings of texts. The arguments that are not listed are those of `LanguageModel.embed`.

    Args:
      strategy: strategy of the model.
      limit: maximum number of tokens in a row; None: no limit.
    """
    check_pooling(pooling)
    for number, text in enumerate(texts):
        check_text(number, text)
    encode = _encoder(strategy, limit)
    rows = [encode(text) for text in texts]

    def process(batch: list[Any]) -> Float32[np.ndarray, "rows width"]:
        length = batches.padded_length(max(map(len, batch)), limit)
        arrays = _arrays(strategy, batch, length)
        if layer == -1:
            states = strategy.last_states(arrays)
        else:
            layers = strategy.hidden_states(arrays)
            if not -len(layers) <= layer < len(layers):
                raise UserError(f"there is no layer {layer}: the model has layers 0 (embeddings) to {len(layers) - 1}")
            states = layers[layer]
        mask = jnp.asarray(_mask(batch, length))
        return np.asarray(_pool(states, mask, pooling, normalize))

    if not rows:
        return process([encode("")])[:0]
    return np.stack(batches.map_by_length(rows, batches.fitting_size(batch_size, len(rows)), process, advance))


def check_text(number: int, text: Any) -> None:
    """Raises a `UserError` if the item at index `number` is not a text."""
    if not isinstance(text, str):
        raise UserError(f"text {number} is a {type(text).__name__}: pass texts")


def check_pooling(pooling: str) -> None:
    """Raises a `UserError` for an unknown pooling."""
    if pooling not in POOLINGS:
        raise UserError(f"there is no pooling '{pooling}': {nearest(pooling, POOLINGS)}")


def similarity(first: Float[np.ndarray, "n width"], second: Float[np.ndarray, "m width"]) -> Float32[np.ndarray, "n m"]:
    """Returns the cosine similarity of each pair of vectors; 0 if one of the vectors is zero."""
    first, second = (each / np.maximum(np.linalg.norm(each, axis=1, keepdims=True), 1e-12) for each in (first, second))
    return (first @ second.T).astype(np.float32)


def _encoder(strategy: Strategy, limit: int | None) -> Callable[[str], list[Any]]:
    """Returns the function that converts a text to a row: words for an ELMo, ids for other models."""
    if strategy.config.max_characters:
        return lambda text: [words.BOS, *text.split(), words.EOS]
    vocabulary, (before, after) = strategy.text.vocabulary, strategy.frame

    def encode(text: str) -> list[int]:
        room = None if limit is None else max(0, limit - len(before) - len(after))
        return [*before, *list(vocabulary.encode(text))[:room], *after]

    return encode


def _mask(rows: Sequence[Sequence[Any]], length: int) -> Int[np.ndarray, "rows length"]:
    sizes = np.array([len(row) for row in rows])
    return (np.arange(length) < sizes[:, None]).astype(np.int32)


def _arrays(strategy: Strategy, rows: Sequence[Sequence[Any]], length: int) -> dict[str, np.ndarray]:
    """Returns the model's inputs for rows padded to `length`."""
    mask = _mask(rows, length)
    if strategy.config.max_characters:
        tokens = np.full((*mask.shape, strategy.config.max_characters), words.PADDING, np.int32)
        tokens[mask > 0] = words.characters([word for row in rows for word in row], strategy.config.max_characters)
    else:
        tokens = np.zeros(mask.shape, np.int32)
        tokens[mask > 0] = np.array([token for row in rows for token in row], np.int32)
    return strategy.read(tokens, mask)


@partial(jax.jit, static_argnames=("pooling", "normalize"))
def _pool(
    states: Float[Array, "rows length width"], mask: Int[Array, "rows length"], pooling: Pooling, normalize: bool
) -> Float32[Array, "rows width"]:
    """Reduces the states of non-padding tokens to one vector per row. A row without tokens gets a vector of zeros."""
    states, real = states.astype(jnp.float32), (mask > 0)[..., None]
    size = mask.sum(1)
    if pooling == "mean":
        pooled = jnp.sum(states * real, 1) / jnp.maximum(size, 1)[:, None]
    elif pooling == "max":
        pooled = jnp.where(size[:, None] > 0, jnp.where(real, states, -jnp.inf).max(1), 0.0)
    else:
        position = jnp.maximum(size - 1, 0) if pooling == "last" else jnp.zeros_like(size)
        pooled = jnp.take_along_axis(states, position[:, None, None], axis=1)[:, 0] * (size > 0)[:, None]
    if normalize:
        pooled /= jnp.maximum(jnp.linalg.norm(pooled, axis=1, keepdims=True), 1e-12)
    return pooled
