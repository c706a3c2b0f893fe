"""Log-probabilities of given tokens: rows of any lengths in batches of few shapes, each computed by one jitted program.

Shapes: B rows, L tokens a row, T targets a row, D width, V vocabulary, C places whose logits are there at once.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.common.errors import UserError
from plm_jax.generation import decoding
from plm_jax.generation import inputs as given_ids
from plm_jax.losses.cross_entropy import LOGITS_AT_ONCE

if TYPE_CHECKING:
    from plm_jax.generation.strategies import Strategy

# Tokens of a batch, its padding included.
TOKENS_AT_ONCE = 2**12


class ContinuationScore(NamedTuple):
    """Of a continuation the sum of its tokens' log-probabilities, nats, and whether greedy decoding would give it."""

    log_likelihood: float
    is_greedy: bool


class ScoringRow(NamedTuple):
    """A row of tokens that a model reads, and what is to be told of it.

    Attributes:
      tokens: what it reads; of an encoder-decoder its input.
      places: where the features are that predict the targets, in what is read last.
      targets: the token at each.
      decoder_tokens: of an encoder-decoder what its decoder reads.
      prefix: how many of the first tokens see each other, of a decoder that was trained so.
    """

    tokens: Sequence[int]
    places: Sequence[int]
    targets: Sequence[int]
    decoder_tokens: Sequence[int] = ()
    prefix: int = 0


class TokenScores(NamedTuple):
    """Of each target of a row its log-probability, float32 [T], and whether no token is more probable, bool [T]."""

    log_probabilities: np.ndarray
    is_greedy: np.ndarray

    @property
    def score(self) -> ContinuationScore:
        """Of all targets together."""
        return ContinuationScore(float(self.log_probabilities.sum(dtype=np.float64)), bool(self.is_greedy.all()))


def ignore(rows: int) -> None:
    """Progress that nobody watches."""


def tell(strategy: "Strategy", rows: Sequence[ScoringRow], advance: Callable[[int], Any] = ignore) -> list[TokenScores]:
    """What a model says of rows, in their order; those of about one length share a batch.

    Lengths are filled up to powers of two, so few programs are compiled however many calls there are.

    Args:
      advance: is told how many more rows are done.

    Raises:
      UserError: a row without targets, an id out of the vocabulary, more tokens than the model has positions.
    """
    if not all(row.targets for row in rows):
        raise UserError("a continuation has no token of its own: give one that is not empty")
    found: list[Any] = [None] * len(rows)
    for shape, numbers in _batches(strategy, rows):
        batch = [rows[i] for i in numbers]
        log_probabilities, is_greedy = _told(strategy, batch, shape)
        for i, row in enumerate(batch[: len(set(numbers))]):
            size = len(row.targets)
            found[numbers[i]] = TokenScores(log_probabilities[i, :size], is_greedy[i, :size])
        advance(len(set(numbers)))
    return found


class _Shape(NamedTuple):
    """Tokens a row, those of a decoder (0: there is none), targets."""

    length: int
    decoder_length: int
    targets: int


def _batches(strategy: "Strategy", rows: Sequence[ScoringRow]) -> Iterator[tuple[_Shape, list[int]]]:
    """The rows of each batch by their numbers, the first ones again where it is filled up, and its shape."""
    most = strategy.lm.config.num_positions

    def slots(tokens: Sequence[int]) -> int:
        filled = 8 << max(0, (len(tokens) - 1).bit_length() - 3)
        return filled if most is None else max(len(tokens), min(filled, most))

    def shape(i: int) -> _Shape:
        row, places = rows[i], max(0, len(rows[i].targets) - 1).bit_length()
        decoder = slots(row.decoder_tokens) if row.decoder_tokens else 0
        return _Shape(slots(row.tokens), decoder, 1 << (places + places % 2))  # Fewer: powers of four.

    for of, group in itertools.groupby(sorted(range(len(rows)), key=shape), shape):
        numbers = list(group)
        size = _power_below(max(1, TOKENS_AT_ONCE // (of.length + of.decoder_length)))
        if len(numbers) < size:
            size = 1 << (len(numbers) - 1).bit_length()
        for first in range(0, len(numbers), size):
            yield of, list(itertools.islice(itertools.cycle(numbers[first : first + size]), size))


def _power_below(number: int) -> int:
    return 1 << (number.bit_length() - 1)


def _told(strategy: "Strategy", batch: Sequence[ScoringRow], shape: _Shape) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities float32 [B, T] and whether each target is the most probable token, bool [B, T]."""
    given = decoding.padded([row.tokens for row in batch], shape.length)
    if shape.decoder_length:
        read_last = decoding.padded([row.decoder_tokens for row in batch], shape.decoder_length)
        inputs = strategy.read(*given, None, *read_last)
    else:
        inputs = strategy.read(*given)
    if strategy.sees_prompt:
        inputs["prefix_lengths"] = np.array([row.prefix for row in batch], np.int32)
    places, _ = decoding.padded([row.places for row in batch], shape.targets)
    targets, _ = decoding.padded([row.targets for row in batch], shape.targets)
    given_ids.ids("targets", targets, strategy.lm.config.vocab_size)
    model, params = strategy.of_tokens
    return tuple(map(np.asarray, _of_rows(model, params, inputs, places, targets)))


@functools.partial(jax.jit, static_argnames="model")
def _of_rows(model, params, inputs, places_BT, targets_BT):
    features_BLD = model.apply({"params": params}, **inputs, method="features")
    at_BTD = jnp.take_along_axis(features_BLD, places_BT[..., None], axis=1)
    at_once = min(places_BT.size, _power_below(max(1, LOGITS_AT_ONCE // model.model.vocab_size)))

    def of_some(given):
        at_CD, targets_C = given
        logits_CV = model.apply({"params": params}, at_CD[None], method="logits")[0].astype(jnp.float32)
        of_targets_C = jnp.take_along_axis(logits_CV, targets_C[:, None], axis=1)[:, 0]
        log_probabilities_C = of_targets_C - jax.nn.logsumexp(logits_CV, axis=1)
        return log_probabilities_C, jnp.argmax(logits_CV, axis=1) == targets_C

    some = (at_BTD.reshape(-1, at_once, at_BTD.shape[-1]), targets_BT.reshape(-1, at_once))
    return jax.tree.map(lambda x: x.reshape(targets_BT.shape), jax.lax.map(of_some, some))


def continuation(
    context: Sequence[int], continued: Sequence[int], most: int | None, prefixed: bool = False
) -> ScoringRow:
    """The row in which a decoder predicts a continuation of at least one token; `context` has one, too.

    Args:
      most: tokens that it reads at most, the last ones; None: any number.
      prefixed: whether the context sees all of itself.

    Raises:
      UserError: the continuation alone is longer.
    """
    if most is not None and len(continued) > most:
        raise UserError(f"a continuation has {len(continued)} tokens, the model {most} positions: shorten it")
    kept = len(context) if most is None else min(len(context), most + 1 - len(continued))
    tokens = [*context[len(context) - kept :], *continued[:-1]]
    return ScoringRow(tokens, range(kept - 1, len(tokens)), continued, prefix=kept if prefixed else 0)


def masked(tokens: Sequence[int], begin: int, end: int, mask: int, word_of: Sequence[int] | None) -> list[ScoringRow]:
    """A row for each of the tokens from `begin` up to `end`, which it hides and asks for.

    Args:
      mask: stands for a hidden one.
      word_of: of each token the number of its word: those of the same word behind it are hidden, too; None: no others.
    """
    rows = []
    for place in range(begin, end):
        hidden = [place]
        if word_of is not None:
            hidden += [i for i in range(place + 1, end) if word_of[i] == word_of[place]]
        read = list(tokens)
        for i in hidden:
            read[i] = mask
        rows.append(ScoringRow(read, [place], [tokens[place]]))
    return rows
