"""Log-probabilities of target tokens. Batches have few different shapes because each shape is compiled separately.

Shapes: B rows, L tokens per row, T targets per row, D width, V vocabulary, C positions with logits in memory.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from plm_jax.common.errors import UserError
from plm_jax.generation import decoding, inputs
from plm_jax.generation.scoring_rows import ScoringRow
from plm_jax.generation.strategies.strategy import Strategy
from plm_jax.losses.cross_entropy import LOGITS_AT_ONCE
from plm_jax.models.protocol import Module

# Maximum number of tokens in a batch of several rows, including padding.
TOKENS_AT_ONCE = 2**12


class ContinuationScore(NamedTuple):
    """Log-likelihood of a continuation in nats, and whether greedy decoding would produce the continuation."""

    log_likelihood: float
    is_greedy: bool


class TokenScores(NamedTuple):
    """Log-probability of each target of a row, and whether the target is the most probable token."""

    log_probabilities: Float[np.ndarray, " targets"]
    is_greedy: Bool[np.ndarray, " targets"]

    @property
    def score(self) -> ContinuationScore:
        """Score of all targets together."""
        return ContinuationScore(float(self.log_probabilities.sum(dtype=np.float64)), bool(self.is_greedy.all()))


def ignore_progress(rows: int) -> None:
    """Does nothing. This function is the default of `advance` in `score_rows`."""


def score_rows(
    strategy: Strategy, rows: Sequence[ScoringRow], advance: Callable[[int], Any] = ignore_progress
) -> list[TokenScores]:
    """Scores the targets of rows. Rows of similar length share a batch and are padded to one length.

    Args:
      advance: function that is called after each batch with the number of its rows.

    Returns:
      The scores of each row, in the order of the rows.

    Raises:
      UserError: a row has no targets or is longer than the model's position table, an id is outside the vocabulary, or
        the model has no head for tokens.
    """
    if not all(row.targets for row in rows):
        raise UserError("a continuation adds no token to its context: pass one that is not empty")
    scores: list[Any] = [None] * len(rows)
    for shape, numbers in _batches(strategy, rows):
        batch = [rows[i] for i in numbers]
        log_probabilities, is_greedy = _score_batch(strategy, batch, shape)
        for i, row in enumerate(batch[: len(set(numbers))]):
            size = len(row.targets)
            scores[numbers[i]] = TokenScores(log_probabilities[i, :size], is_greedy[i, :size])
        advance(len(set(numbers)))
    return scores


class _Shape(NamedTuple):
    """The padded shape of the rows of a batch.

    Attributes:
      length: number of tokens.
      decoder_length: number of decoder tokens; 0 without a decoder.
      targets: number of targets.
    """

    length: int
    decoder_length: int
    targets: int


def _batches(strategy: Strategy, rows: Sequence[ScoringRow]) -> Iterator[tuple[_Shape, list[int]]]:
    """Yields pairs: the shape of a batch, and the indices of its rows. A batch is filled up by repeating its rows."""
    limit = strategy.config.num_positions

    def slots(tokens: Sequence[int]) -> int:
        size = decoding.num_slots(len(tokens))
        return size if limit is None else max(len(tokens), min(size, limit))

    def shape_of_row(i: int) -> _Shape:
        row, bits = rows[i], max(0, len(rows[i].targets) - 1).bit_length()
        decoder_length = slots(row.decoder_tokens) if row.decoder_tokens else 0
        return _Shape(slots(row.tokens), decoder_length, 1 << (bits + bits % 2))  # Powers of four: fewer shapes.

    for shape, group in itertools.groupby(sorted(range(len(rows)), key=shape_of_row), shape_of_row):
        numbers = list(group)
        size = _power_below(max(1, TOKENS_AT_ONCE // (shape.length + shape.decoder_length)))
        if len(numbers) < size:
            size = 1 << (len(numbers) - 1).bit_length()
        for first in range(0, len(numbers), size):
            yield shape, list(itertools.islice(itertools.cycle(numbers[first : first + size]), size))


def _power_below(number: int) -> int:
    return 1 << (number.bit_length() - 1)


def _score_batch(strategy: Strategy, batch: Sequence[ScoringRow], shape: _Shape) -> tuple[np.ndarray, np.ndarray]:
    """Returns a pair of arrays [B, T]: log-probabilities, and whether each target is the most probable token."""
    tokens, mask = decoding.pad([row.tokens for row in batch], shape.length)
    if shape.decoder_length:
        decoder_inputs = decoding.pad([row.decoder_tokens for row in batch], shape.decoder_length)
        arrays = strategy.read(tokens, mask, None, *decoder_inputs)
    else:
        arrays = strategy.read(tokens, mask)
    if strategy.has_prefix:
        arrays["prefix_lengths"] = np.array([row.prefix for row in batch], np.int32)
    positions, _ = decoding.pad([row.positions for row in batch], shape.targets)
    targets, _ = decoding.pad([row.targets for row in batch], shape.targets)
    inputs.ids("targets", targets, strategy.config.vocab_size)
    model, params = strategy.token_model
    log_probabilities, is_greedy = _target_scores(model, params, arrays, positions, targets)
    return np.asarray(log_probabilities), np.asarray(is_greedy)


@functools.partial(jax.jit, static_argnames="model")
def _target_scores(
    model: Module, params: Any, inputs: dict[str, Any], positions_BT: jax.Array, targets_BT: jax.Array
) -> tuple[Float[Array, "batch targets"], Bool[Array, "batch targets"]]:
    features_BLD = model.apply({"params": params}, **inputs, method="features")
    features_BTD = jnp.take_along_axis(features_BLD, positions_BT[..., None], axis=1)
    at_once = min(positions_BT.size, _power_below(max(1, LOGITS_AT_ONCE // model.model.vocab_size)))

    def score_block(block: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        features_CD, targets_C = block
        logits_CV = model.apply({"params": params}, features_CD[None], method="logits")[0].astype(jnp.float32)
        target_logits_C = jnp.take_along_axis(logits_CV, targets_C[:, None], axis=1)[:, 0]
        log_probabilities_C = target_logits_C - jax.nn.logsumexp(logits_CV, axis=1)
        return log_probabilities_C, jnp.argmax(logits_CV, axis=1) == targets_C

    blocks = (features_BTD.reshape(-1, at_once, features_BTD.shape[-1]), targets_BT.reshape(-1, at_once))
    return jax.tree.map(lambda x: x.reshape(targets_BT.shape), jax.lax.map(score_block, blocks))
