"""Text generation: greedy decoding, sampling, and beam search, over a key/value cache.

One jitted program: what is there in one call, then a loop of single tokens. A decoder has the left-padded prompts; an
encoder-decoder encodes them and its decoder has a start token. Shapes: B prompts, K beams, R = B · K rows of the
model's batch, P slots of what the decoder is given, M encoder slots, N new tokens, V vocabulary, C candidates.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.common.errors import UserError
from plm_jax.inference import infilling
from plm_jax.models.protocol import Model

END = -1  # Stands in the output from the end token on.
NEVER = -1e9  # A score that loses to every real one.


class Sampling(NamedTuple):
    """How the next token is drawn; traced, so that a new value compiles nothing."""

    temperature: Any
    top_k: Any
    top_p: Any


def generate(
    model: nn.Module,
    params: Any,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    num_beams: int = 1,
    seed: int = 0,
    eos_ids: Sequence[int] = (),
    start_id: int = 0,
    vocab_size: int | None = None,
    marks: infilling.Marks | None = None,
    sees_prompt: bool = False,
) -> list[list[int]]:
    """Continues each prompt; of an encoder-decoder: answers it.

    Args:
      model: a decoder or encoder-decoder; `params` are its parameters.
      prompts: token ids, at least one a prompt; lengths may differ.
      max_new_tokens: at most so many tokens are added.
      temperature: 0 or None takes the most probable token (the lowest of equals); else samples from
        softmax(logits / temperature).
      top_k: samples among the k most probable tokens.
      top_p: samples among the fewest most probable tokens that together have probability top_p (Holtzman et al. 2020),
        after top_k.
      num_beams: above 1: beam search, hypotheses scored by mean log-probability, end token included.
      seed: of the samples.
      eos_ids: tokens that end a continuation; they are not part of it.
      start_id: what the decoder of an encoder-decoder begins with (T5: pad); not part of the answer.
      vocab_size: ids from here on are never chosen; None: all may be.
      marks: of a decoder that fills blanks: the prompts have their masks and end with what has been filled, and sop.
      sees_prompt: of a decoder that was trained on prefixes: each prompt sees all of itself.

    Returns:
      The new tokens of each prompt.

    Raises:
      UserError: an argument out of range, an id outside of the model's vocabulary, or prompt and new tokens beyond
        the position table.
    """
    sampling = _sampling(temperature, top_k, top_p, num_beams)
    _check(model.model, prompts, max_new_tokens, num_beams)
    slots = 8 << max(0, (max(map(len, prompts)) - 1).bit_length() - 3)  # Few lengths, so few compilations.
    if model.model.has_decoder:
        source, begun = padded(prompts, slots), padded([[start_id]] * len(prompts), 1)
    else:
        source, begun = None, padded(prompts, slots, left=True)
    new_BN = _generate(
        model,
        params,
        source,
        begun,
        None if marks is None else infilling.places(*begun, marks),
        sampling,
        jax.random.key(seed),
        max_new_tokens=max_new_tokens,
        num_beams=num_beams,
        eos_ids=tuple(eos_ids),
        vocab_size=vocab_size,
        sees_prompt=sees_prompt,
    )
    return [[int(token) for token in row if token != END] for row in np.asarray(new_BN)]


def padded(rows: Sequence[Sequence[int]], length: int, left: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Rows of tokens as one array int32 [B, length], padded with 0 on a side, and its mask, 1 for real tokens."""
    tokens, mask = np.zeros((2, len(rows), length), np.int32)
    for i, row in enumerate(rows):
        real = slice(length - len(row), None) if left else slice(len(row))
        tokens[i, real], mask[i, real] = row, 1
    return tokens, mask


def _sampling(temperature, top_k, top_p, num_beams) -> Sampling | None:
    if temperature is not None and not 0 <= temperature < float("inf"):
        raise UserError(f"temperature is {temperature}: give 0 (the most probable token) or more")
    if top_k is not None and top_k < 1:
        raise UserError(f"top_k is {top_k}: give at least 1, or leave it out")
    if top_p is not None and not 0 < top_p <= 1:
        raise UserError(f"top_p is {top_p}: give above 0 up to 1, or leave it out")
    if not temperature:
        return None
    if num_beams > 1:
        raise UserError("beam search does not sample: leave out temperature or num_beams")
    largest = jnp.iinfo(jnp.int32).max
    return Sampling(temperature, largest if top_k is None else top_k, 1.0 if top_p is None else top_p)


def _check(model: Model, prompts, max_new_tokens, num_beams) -> None:
    if max_new_tokens < 1 or num_beams < 1:
        raise UserError(f"max_new_tokens is {max_new_tokens}, num_beams {num_beams}: give at least 1")
    if not prompts or not all(len(prompt) for prompt in prompts):
        raise UserError("there is an empty prompt: give at least one token")
    ids = [token for prompt in prompts for token in prompt]
    if min(ids) < 0 or max(ids) >= model.vocab_size:
        raise UserError(
            f"a prompt has token {max(ids) if min(ids) >= 0 else min(ids)}, the model's vocabulary "
            f"{model.vocab_size}: use the vocabulary that the model was trained with"
        )
    most, longest = model.num_positions, max(map(len, prompts))
    if most is None:
        return
    together = not model.has_decoder and not model.attention.position.counts_blanks
    if (longest + max_new_tokens if together else max(longest, max_new_tokens)) > most:
        raise UserError(
            f"{longest} prompt tokens and {max_new_tokens} new ones exceed the model's {most} positions: "
            "shorten the prompt or lower max_new_tokens"
        )


def _forward(model, params, vocab_size, tokens, filled, places, index, source_mask, memory=None, cache=None):
    """The last position's logits [rows, V] and the new cache.

    Args:
      tokens: [rows, L], of the decoder.
      places: its `positions` [rows, L] and, where blanks are filled, what else `infilling.places` gives.
      filled: [rows, slots], 1 for slots that hold a token after this call.
      index: the first slot that it fills.
      source_mask: [rows, M] of an encoder-decoder; None: a decoder.
      memory: [rows, M, D], of an encoder-decoder in the first call.
      cache: of the call before.
    """

    def last_logits(module):
        if source_mask is None:
            features = module.features(tokens, filled, cache_index=index, **places)
        else:
            features = module.decode(tokens, memory, source_mask, filled, places["positions"], cache_index=index)
        return module.logits(features[:, -1:])[:, 0]

    variables = {"params": params} if cache is None else {"params": params, "cache": cache}
    logits, updated = model.apply(variables, mutable=["cache"], method=last_logits)
    return logits.at[:, vocab_size:].set(-jnp.inf) if vocab_size else logits, updated["cache"]


@partial(jax.jit, static_argnames=("model", "max_new_tokens", "num_beams", "eos_ids", "vocab_size", "sees_prompt"))
def _generate(
    model, params, source, begun, places, sampling, key, *, max_new_tokens, num_beams, eos_ids, vocab_size, sees_prompt
) -> jax.Array:
    """New tokens [B, N], END from the end token on; `source` and `begun` are tokens and mask, [B, M] and [B, P]; places
    are those of `begun` where blanks are filled.
    """
    tokens_BP, mask_BP = begun
    batch, slots = tokens_BP.shape
    source_mask = None if source is None else source[1]
    memory = None if source is None else model.apply({"params": params}, *source, method="encode")
    filled_BS = jnp.pad(mask_BP, ((0, 0), (0, max_new_tokens)))
    blanks = places is not None
    if not blanks:
        places = {"positions": jnp.maximum(jnp.cumsum(mask_BP, axis=1) - 1, 0)}
    if sees_prompt:
        places["prefix_lengths"] = jnp.full(batch, slots)
    forward = partial(_forward, model, params, vocab_size)
    logits, cache = forward(tokens_BP, filled_BS, places, 0, source_mask, memory)
    last = {name: place[:, -1:] if place.ndim == 2 else place for name, place in places.items()}
    of_rows = (logits, filled_BS, last, source_mask)
    logits, filled_RS, last, source_mask = jax.tree.map(lambda x: jnp.repeat(x, num_beams, axis=0), of_rows)
    cache = jax.tree.map(lambda x: jnp.repeat(x, num_beams, axis=1), cache)  # [layers, R, …]

    eos = jnp.array(eos_ids, jnp.int32)
    if num_beams == 1:
        strategy = partial(_draw, sampling=sampling, key=key, eos=eos)
        state = _drawn_nothing(batch, max_new_tokens)
    else:
        strategy = partial(_extend_beams, eos=eos)
        state = _no_beams(batch, num_beams, max_new_tokens)

    def body(carry):
        step, state, tokens_R, filled_RS, cache = carry
        index = slots + step - 1
        filled_RS = filled_RS.at[:, index].set(1)
        moving = "block_positions" if blanks else "positions"
        places = last | {moving: last[moving] + step}
        logits, cache = forward(tokens_R[:, None], filled_RS, places, index, source_mask, cache=cache)
        state, tokens_R, rows_R = strategy(state, logits, step)
        if rows_R is not None:
            cache = jax.tree.map(lambda x: x[:, rows_R], cache)
        return step + 1, state, tokens_R, filled_RS, cache

    state, tokens_R, _ = strategy(state, logits, 0)  # All beams of a prompt are alike here: no rows to reorder.
    carry = (1, state, tokens_R, filled_RS, cache)
    carry = jax.lax.while_loop(lambda carry: (carry[0] < max_new_tokens) & carry[1].open_B.any(), body, carry)
    return carry[1].best()


class _Drawn(NamedTuple):
    """One continuation a prompt: its tokens, and whether it still grows."""

    tokens_BN: jax.Array
    open_B: jax.Array

    def best(self):
        return self.tokens_BN


def _drawn_nothing(batch, max_new_tokens) -> _Drawn:
    return _Drawn(jnp.full((batch, max_new_tokens), END), jnp.ones(batch, bool))


def _draw(state: _Drawn, logits_BV, step, *, sampling, key, eos):
    """Adds a token to each open continuation."""
    tokens_B = next_tokens(logits_BV, sampling, jax.random.fold_in(key, step))
    open_B = state.open_B & ~jnp.isin(tokens_B, eos)
    tokens_BN = state.tokens_BN.at[:, step].set(jnp.where(open_B, tokens_B, END))
    return _Drawn(tokens_BN, open_B), tokens_B, None


def next_tokens(logits_BV: jax.Array, sampling: Sampling | None, key: jax.Array) -> jax.Array:
    """The most probable tokens [B], or samples if there is a `sampling`; of equal logits the lower id ranks first."""
    if sampling is None:
        return jnp.argmax(logits_BV, axis=-1)
    order_BV = jnp.argsort(logits_BV, axis=-1, descending=True)
    ranked_BV = jnp.take_along_axis(logits_BV, order_BV, axis=-1) / sampling.temperature
    ranked_BV = jnp.where(jnp.arange(ranked_BV.shape[-1]) < sampling.top_k, ranked_BV, -jnp.inf)
    probability_BV = jax.nn.softmax(ranked_BV, axis=-1)
    likelier_BV = jnp.cumsum(probability_BV, axis=-1) - probability_BV
    # The first always stays, also where rounding makes top_p as small as 0.
    kept_BV = (likelier_BV < sampling.top_p) | (jnp.arange(ranked_BV.shape[-1]) == 0)
    rank_B1 = jax.random.categorical(key, jnp.where(kept_BV, ranked_BV, -jnp.inf))[:, None]
    return jnp.take_along_axis(order_BV, rank_B1, axis=-1)[:, 0]


class _Beams(NamedTuple):
    """Of each prompt the K best hypotheses that still grow, by total log-probability, and the K best finished ones,
    by mean log-probability; both best first.
    """

    growing_BKN: jax.Array
    growing_scores_BK: jax.Array
    finished_BKN: jax.Array
    finished_scores_BK: jax.Array
    open_B: jax.Array

    def best(self):
        return self.finished_BKN[:, 0]


def _no_beams(batch, beams, max_new_tokens) -> _Beams:
    """Before the first token all beams are one, so all but one have no chance."""
    empty_BKN = jnp.full((batch, beams, max_new_tokens), END)
    never_BK = jnp.full((batch, beams), NEVER)
    return _Beams(empty_BKN, never_BK.at[:, 0].set(0.0), empty_BKN, never_BK, jnp.ones(batch, bool))


def _extend_beams(state: _Beams, logits_RV, step, *, eos):
    """One step of beam search: the state, the rows' next tokens, and which rows they continue.

    As Hugging Face's default (length penalty 1, no early stopping): a hypothesis finishes when its end token ranks
    among the best K candidates, or with the last token; a prompt is done once the best growing hypothesis, at its
    present length, is no better than the worst of K finished ones.
    """
    batch, beams, max_new_tokens = state.growing_BKN.shape
    vocab = logits_RV.shape[-1]
    log_probs_BKV = jax.nn.log_softmax(logits_RV).reshape(batch, beams, vocab) + state.growing_scores_BK[..., None]
    candidates = min(beams * (1 + len(eos)), beams * vocab)
    scores_BC, flat_BC = jax.lax.top_k(log_probs_BKV.reshape(batch, -1), candidates)
    parents_BC, tokens_BC = flat_BC // vocab, flat_BC % vocab
    ended_BC = jnp.isin(tokens_BC, eos)
    hypotheses_BCN = jnp.take_along_axis(state.growing_BKN, parents_BC[..., None], axis=1)
    hypotheses_BCN = hypotheses_BCN.at[:, :, step].set(jnp.where(ended_BC, END, tokens_BC))

    finishing_BC = (ended_BC | (step == max_new_tokens - 1)) & (jnp.arange(candidates) < beams) & state.open_B[:, None]
    finished_scores, chosen = jax.lax.top_k(
        jnp.concatenate([state.finished_scores_BK, jnp.where(finishing_BC, scores_BC / (step + 1), NEVER)], axis=1),
        beams,
    )
    finished = jnp.concatenate([state.finished_BKN, hypotheses_BCN], axis=1)
    finished = jnp.take_along_axis(finished, chosen[..., None], axis=1)

    growing_scores, chosen = jax.lax.top_k(jnp.where(ended_BC, NEVER, scores_BC), beams)
    growing = jnp.take_along_axis(hypotheses_BCN, chosen[..., None], axis=1)
    open_B = state.open_B & (growing_scores[:, 0] / (step + 1) > finished_scores[:, -1])
    tokens_R = jnp.take_along_axis(tokens_BC, chosen, axis=1).reshape(-1)
    rows_BK = jnp.take_along_axis(parents_BC, chosen, axis=1) + beams * jnp.arange(batch)[:, None]
    return _Beams(growing, growing_scores, finished, finished_scores, open_B), tokens_R, rows_BK.reshape(-1)
