"""Text generation: greedy decoding, sampling, and beam search, over a key/value cache.

One jitted program: what is there in one call, then a loop of single tokens. A decoder has the left-padded prompts; an
encoder-decoder encodes them and its decoder has a start token. All answers to a prompt share a row of the model's batch
and its cache: each call adds a slot for each, and a mask says which slots are of its past, so that no beam's cache is
ever moved or repeated.

Shapes: B prompts, K answers or beams to each, P slots of what the decoder is given, M encoder slots, N new tokens, S
slots of the cache, V vocabulary.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.common import keys
from plm_jax.common.errors import UserError
from plm_jax.config import DecodingConfig
from plm_jax.generation import beams, infilling
from plm_jax.generation import sampling as drawing
from plm_jax.generation.constraints import Ends, Rules
from plm_jax.generation.sampling import END, Sampling
from plm_jax.models import stack
from plm_jax.models.protocol import ModelConfig

MAX_NEW_TOKENS = 50  # Where nothing says how many.


def generate(
    model: nn.Module,
    params: Any,
    prompts: Sequence[Sequence[int]],
    decoding: DecodingConfig | None = None,
    *,
    seed: int = 0,
    eos_ids: Sequence[int] = (),
    start_id: int = 0,
    vocab_size: int | None = None,
    marks: infilling.Marks | None = None,
    sees_prompt: bool = False,
    stops: np.ndarray | None = None,
    **options: Any,
) -> list[list[int]] | list[list[list[int]]]:
    """Continues each prompt; of an encoder-decoder: answers it.

    Args:
      model: a decoder or encoder-decoder; `params` are its parameters.
      prompts: token ids, at least one a prompt; lengths may differ.
      decoding: how; its `forced_prefix` are ids, and `stops` stands for its `stop_strings`.
      seed: of the samples.
      eos_ids: tokens that end a continuation; they are not part of it.
      start_id: what the decoder of an encoder-decoder begins with (T5: pad); not part of the answer.
      vocab_size: ids from here on are never chosen; None: all may be.
      marks: of a decoder that fills blanks: the prompts have their masks and end with what has been filled, and sop.
      sees_prompt: of a decoder that was trained on prefixes: each prompt sees all of itself.
      stops: what ends a continuation besides, see `constraints.stops`; its last token is part of it.
      options: fields of `decoding` to be set otherwise.

    Returns:
      The new tokens of each prompt; with `num_return_sequences` above 1 a list of answers of each, of beams the best
      first.

    Raises:
      UserError: an argument out of range, an id outside of the model's vocabulary, or prompt and new tokens beyond
        the position table.
    """
    decoding = (decoding or DecodingConfig()).changed(**options)
    limit = decoding.max_new_tokens or MAX_NEW_TOKENS
    rules = _rules(decoding, limit, tuple(eos_ids), vocab_size)
    _check(model.model, prompts, rules)
    slots = 8 << max(0, (max(map(len, prompts)) - 1).bit_length() - 3)  # Few lengths, so few compilations.
    if model.model.has_decoder:
        source, begun = padded(prompts, slots), padded([[start_id]] * len(prompts), 1)
    else:
        source, begun = None, padded(prompts, slots, left=True)
    new_BKN = _generate(
        model,
        params,
        source,
        begun,
        None if marks is None else infilling.places(*begun, marks),
        Sampling(decoding.temperature, decoding.top_p) if decoding.is_sampled else None,
        stops,
        keys.from_seed(seed),
        decoding=_static(decoding),
        rules=rules,
        sees_prompt=sees_prompt,
    )
    answers = [[[int(token) for token in row if token != END] for row in rows] for rows in np.asarray(new_BKN)]
    return answers if decoding.num_return_sequences > 1 else [first for (first,) in answers]


def padded(rows: Sequence[Sequence[int]], length: int, left: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Rows of tokens as one array int32 [B, length], padded with 0 on a side, and its mask, 1 for real tokens."""
    tokens, mask = np.zeros((2, len(rows), length), np.int32)
    for i, row in enumerate(rows):
        real = slice(length - len(row), None) if left else slice(len(row))
        tokens[i, real], mask[i, real] = row, 1
    return tokens, mask


def _static(decoding: DecodingConfig) -> DecodingConfig:
    """What of a decoding a program is compiled for."""
    sampling = {"temperature": 1.0 if decoding.is_sampled else None, "top_p": None}
    constraints = {"min_new_tokens": 0, "forced_prefix": (), "stop_strings": ()}  # The rules have them.
    return dataclasses.replace(decoding, **sampling, **constraints)


def _rules(decoding: DecodingConfig, limit: int, eos_ids: tuple[int, ...], vocab_size: int | None) -> Rules:
    if isinstance(decoding.forced_prefix, str) and decoding.forced_prefix:
        raise UserError(f"forced_prefix is '{decoding.forced_prefix}': give ids, where there is no vocabulary")
    if decoding.min_new_tokens > limit:
        raise UserError(f"min_new_tokens is {decoding.min_new_tokens}, max_new_tokens {limit}: give more of these")
    forced = (
        *([] if decoding.forced_bos_token_id is None else [decoding.forced_bos_token_id]),
        *decoding.forced_prefix,
    )
    if len(forced) > limit:
        raise UserError(f"{len(forced)} tokens are forced, max_new_tokens is {limit}: force fewer, or raise it")
    last = decoding.forced_eos_token_id
    return Rules(limit, decoding.min_new_tokens, decoding.no_repeat_ngram_size, last, forced, eos_ids, vocab_size)


def _check(model: ModelConfig, prompts: Sequence[Sequence[int]], rules: Rules) -> None:
    if not prompts or not all(len(prompt) for prompt in prompts):
        raise UserError("there is an empty prompt: give at least one token")
    forced = [*rules.forced, *([] if rules.forced_eos_token_id is None else [rules.forced_eos_token_id])]
    for what, ids in (("a prompt has", [token for prompt in prompts for token in prompt]), ("answers have", forced)):
        if ids and (min(ids) < 0 or max(ids) >= model.vocab_size):
            raise UserError(
                f"{what} token {max(ids) if min(ids) >= 0 else min(ids)}, the model's vocabulary "
                f"{model.vocab_size}: use the vocabulary that the model was trained with"
            )
    most, longest, limit = model.num_positions, max(map(len, prompts)), rules.max_new_tokens
    if most is None:
        return
    together = not model.has_decoder and not model.attention.position.counts_blanks
    if (longest + limit if together else max(longest, limit)) > most:
        raise UserError(
            f"{longest} prompt tokens and {limit} new ones exceed the model's {most} positions: "
            "shorten the prompt or lower max_new_tokens"
        )


def _forward(model, params, vocab_size, tokens, seen, places, index, source_mask, memory=None, cache=None):
    """Logits [B, L, V], in the first call the last token's, and the new cache.

    Args:
      tokens: [B, L], of the decoder.
      seen: [B, S] or [B, L, S], 1 for slots that hold a token after this call and, of those, that a token sees.
      places: its `positions` [B, L] and what else says where they are.
      index: the first slot that it fills.
      source_mask: [B, M] of an encoder-decoder; None: a decoder.
      memory: [B, M, D], of an encoder-decoder in the first call.
      cache: of the call before.
    """

    def logits(module):
        if source_mask is None:
            features = module.features(tokens, seen, cache_index=index, **places)
        else:
            where = {("decoder_positions" if name == "positions" else name): place for name, place in places.items()}
            features = module.decode(tokens, memory, source_mask, seen, cache_index=index, **where)
        return module.logits(features if cache else features[:, -1:])

    variables = {"params": params} if cache is None else {"params": params, "cache": cache}
    found, updated = model.apply(variables, mutable=["cache"], method=logits)
    return found.at[..., vocab_size:].set(-jnp.inf) if vocab_size else found, updated["cache"]


@partial(jax.jit, static_argnames=("model", "decoding", "rules", "sees_prompt"))
def _generate(model, params, source, begun, places, sampling, stops, key, *, decoding, rules, sees_prompt) -> jax.Array:
    """New tokens [B, number, N], END from the end token on; `source` and `begun` are tokens and mask, [B, M] and
    [B, P]; places are those of `begun` where blanks are filled.
    """
    tokens_BP, mask_BP = begun
    batch, slots = tokens_BP.shape
    limit, rows = rules.max_new_tokens, max(decoding.num_beams, decoding.num_return_sequences)
    source_mask = None if source is None else source[1]
    memory = None if source is None else model.apply({"params": params}, *source, method="encode")
    filled_BS = jnp.pad(mask_BP, ((0, 0), (0, limit * rows))) > 0
    moving = "positions" if places is None else "block_positions"
    if places is None:
        places = {"positions": jnp.maximum(jnp.cumsum(mask_BP, axis=1) - 1, 0)}
    if sees_prompt:
        places["prefix_lengths"] = jnp.full(batch, slots)
    forward = partial(_forward, model, stack.apart(params), rules.vocab_size)
    logits_B1V, cache = forward(tokens_BP, filled_BS, places, 0, source_mask, memory)
    last = {name: place[:, -1:] if place.ndim == 2 else place for name, place in places.items()}
    if rows > 1:
        last["slot_places"] = jnp.append(jnp.arange(slots), slots + jnp.repeat(jnp.arange(limit), rows))

    ends = Ends(jnp.array(rules.eos_ids, jnp.int32), stops)
    if decoding.num_beams > 1:
        strategy, extend = beams, partial(beams.extend, decoding=decoding)
    else:
        strategy = drawing
        extend = partial(drawing.extend, sampling=sampling, top_k=decoding.top_k, key=key)
    extend = partial(extend, begun=begun, rules=rules, ends=ends)

    def body(carry):
        step, state, tokens_BK, seen_BKS, cache = carry
        index = slots + (step - 1) * rows
        seen_BKS |= jnp.arange(seen_BKS.shape[-1]) == index + jnp.arange(rows)[:, None]
        at_BK = jnp.broadcast_to(last[moving] + step, (batch, rows))
        of_rows = {name: jnp.broadcast_to(last[name], (batch, rows)) for name in last if last[name].ndim == 2}
        logits_BKV, cache = forward(
            tokens_BK, seen_BKS, last | of_rows | {moving: at_BK}, index, source_mask, cache=cache
        )
        state, tokens_BK, parents_BK = extend(state, logits_BKV, step)
        if parents_BK is not None:
            seen_BKS = jnp.take_along_axis(seen_BKS, parents_BK[..., None], axis=1)
        return step + 1, state, tokens_BK, seen_BKS, cache

    logits_BKV = jnp.broadcast_to(logits_B1V, (batch, rows, logits_B1V.shape[-1]))  # All are alike before a token.
    state, tokens_BK, _ = extend(strategy.nothing(batch, rows, limit, ends), logits_BKV, 0)
    seen_BKS = jnp.broadcast_to(filled_BS[:, None], (batch, rows, filled_BS.shape[-1]))
    carry = (1, state, tokens_BK, seen_BKS, cache)
    carry = jax.lax.while_loop(lambda carry: (carry[0] < limit) & carry[1].open_BK.any(), body, carry)
    return carry[1].best(decoding.num_return_sequences)
