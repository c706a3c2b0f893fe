"""Text generation: greedy decoding, sampling, and beam search, over a key/value cache.

One jitted program reads the prompt in one call and then runs a loop of single tokens. A decoder reads left-padded
prompts. In an encoder-decoder, the encoder reads the prompts, and the decoder reads a start token. All answers to a
prompt share one row of the model's batch and of the cache. Each call adds one slot per answer, and a mask marks the
slots that belong to the history of each answer. The cache of a beam is therefore not moved or copied.

Shapes: B prompts, K answers or beams to each, P slots of the decoder's prompt, M encoder slots, N new tokens, S slots
of the cache, V vocabulary.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32, Integer

from plm_jax.common import keys
from plm_jax.common.errors import UserError
from plm_jax.generation import beams, infilling, sampling
from plm_jax.generation.constraints import Ends, Rules
from plm_jax.generation.decoding_config import DecodingConfig
from plm_jax.generation.sampling import END, Sampling
from plm_jax.models import TransformerConfig, stack
from plm_jax.models.protocol import ModelConfig, Module

# Ids and mask of padded rows.
_Padded = tuple[np.ndarray, np.ndarray]
MAX_NEW_TOKENS = 50  # Default of `DecodingConfig.max_new_tokens` for a continuation.


def generate(
    model: Module,
    params: Any,
    prompts: Sequence[Sequence[int]],
    decoding: DecodingConfig | None = None,
    *,
    seed: int = 0,
    eos_ids: Sequence[int] = (),
    start_id: int = 0,
    vocab_size: int | None = None,
    marks: infilling.Marks | None = None,
    has_prefix: bool = False,
    stops: Int32[np.ndarray, "states vocab"] | None = None,
    **options: Any,
) -> list[Any]:
    """Continues each prompt, or answers it with an encoder-decoder.

    Args:
      model: a decoder or encoder-decoder; `params` are its parameters.
      prompts: at least one prompt; each prompt has at least one id, and lengths may differ.
      decoding: decoding settings. `forced_prefix` must be ids. `stop_strings` is ignored in favor of `stops`.
      seed: seed of the samples.
      eos_ids: ids that end a continuation and are not part of it.
      start_id: first id of the decoder of an encoder-decoder (T5: pad), which is not part of the answer.
      vocab_size: ids at or above this number are chosen only if they are forced; None allows every id.
      marks: special ids of a decoder that fills blanks; None: the decoder continues its prompts. With `marks`, a prompt
        is a text with masks, followed by the earlier fillings, each after a sop, and one more sop.
      has_prefix: whether the tokens of a prompt attend to each other in both directions.
      stops: automaton of stop strings, as returned by `constraints.stops`; None: no stop strings. The token that
        completes a stop string is part of the answer.
      options: fields of `decoding` to replace.

    Returns:
      A list with the new ids for each prompt. With `num_return_sequences` above 1, each entry is a list of answers.
      Beam search sorts these answers by descending score.

    Raises:
      UserError: a prompt or the list of prompts is empty, an option is invalid, an id is outside the model's
        vocabulary, or the tokens exceed the position table.
    """
    decoding = (decoding or DecodingConfig()).changed(**options)
    limit = decoding.max_new_tokens or MAX_NEW_TOKENS
    rules = _rules(decoding, limit, tuple(eos_ids), vocab_size)
    _check(model.model, prompts, rules)
    source, prompt = _padded_inputs(prompts, start_id if model.model.has_decoder else None)
    new_BKN = _generate(
        model,
        params,
        source,
        prompt,
        None if marks is None else infilling.positions(*prompt, marks),
        Sampling(decoding.temperature, decoding.top_p) if decoding.is_sampled else None,
        stops,
        keys.from_seed(seed),
        decoding=_static(decoding),
        rules=rules,
        has_prefix=has_prefix,
    )
    answers = [[_without_end(row) for row in rows] for rows in np.asarray(new_BKN)]
    return answers if decoding.num_return_sequences > 1 else [first for (first,) in answers]


def _padded_inputs(prompts: Sequence[Sequence[int]], start_id: int | None) -> tuple[_Padded | None, _Padded]:
    """Returns a pair: the padded inputs of the encoder, and those of the decoder. Each consists of ids and a mask.

    Without a `start_id`, the model has no encoder, and the first item is None.
    """
    slots = num_slots(max(map(len, prompts)))
    if start_id is None:
        return None, pad(prompts, slots, left=True)
    return pad(prompts, slots), pad([[start_id]] * len(prompts), 1)


def _without_end(row: np.ndarray) -> list[int]:
    return [int(token) for token in row if token != END]


def num_slots(length: int) -> int:
    """Returns a length rounded up to a power of two, at least 8.

    Rounded lengths keep the number of compiled programs small.
    """
    return 8 << max(0, (length - 1).bit_length() - 3)


def pad(
    rows: Sequence[Sequence[int]], length: int, left: bool = False
) -> tuple[Int32[np.ndarray, "rows length"], Int32[np.ndarray, "rows length"]]:
    """Returns a pair: the rows padded with 0 to `length`, and a mask with 1 for tokens and 0 for padding.

    Padding is on the right, or on the left if `left` is true. No row may be longer than `length`.
    """
    tokens, mask = np.zeros((2, len(rows), length), np.int32)
    for i, row in enumerate(rows):
        real = slice(length - len(row), None) if left else slice(len(row))
        tokens[i, real], mask[i, real] = row, 1
    return tokens, mask


def _static(decoding: DecodingConfig) -> DecodingConfig:
    """Returns the settings with fixed values for the fields that `_generate` receives in other arguments.

    A new temperature or a new value of `top_p` therefore compiles no new program.
    """
    return dataclasses.replace(
        decoding,
        temperature=1.0 if decoding.is_sampled else None,
        top_p=None,
        min_new_tokens=0,
        forced_prefix=(),
        stop_strings=(),
    )


def _rules(decoding: DecodingConfig, limit: int, eos_ids: tuple[int, ...], vocab_size: int | None) -> Rules:
    if isinstance(decoding.forced_prefix, str):
        if decoding.forced_prefix:
            raise UserError(f"forced_prefix is '{decoding.forced_prefix}', but there is no vocabulary: pass ids")
        prefix = ()
    else:
        prefix = decoding.forced_prefix
    if decoding.min_new_tokens > limit:
        raise UserError(f"min_new_tokens is {decoding.min_new_tokens}, max_new_tokens {limit}: raise max_new_tokens")
    forced = (
        *([] if decoding.forced_bos_token_id is None else [decoding.forced_bos_token_id]),
        *prefix,
    )
    if len(forced) > limit:
        raise UserError(f"{len(forced)} tokens are forced, max_new_tokens is {limit}: force fewer, or raise it")
    last = decoding.forced_eos_token_id
    return Rules(limit, decoding.min_new_tokens, decoding.no_repeat_ngram_size, last, forced, eos_ids, vocab_size)


def _check(model: ModelConfig, prompts: Sequence[Sequence[int]], rules: Rules) -> None:
    if not prompts or not all(len(prompt) for prompt in prompts):
        raise UserError("there is an empty prompt: pass at least one token")
    forced = [*rules.forced, *([] if rules.forced_eos_token_id is None else [rules.forced_eos_token_id])]
    prompt_ids = [token for prompt in prompts for token in prompt]
    for subject, ids in (("a prompt has", prompt_ids), ("answers have", forced)):
        if ids and (min(ids) < 0 or max(ids) >= model.vocab_size):
            raise UserError(
                f"{subject} token {max(ids) if min(ids) >= 0 else min(ids)}, the model's vocabulary size is "
                f"{model.vocab_size}: use the vocabulary that the model was trained with"
            )
    positions, longest, limit = model.num_positions, max(map(len, prompts)), rules.max_new_tokens
    if positions is None:
        return
    counts_blanks = isinstance(model, TransformerConfig) and model.attention.position.counts_blanks
    together = not model.has_decoder and not counts_blanks
    if (longest + limit if together else max(longest, limit)) > positions:
        raise UserError(
            f"{longest} prompt tokens and {limit} new ones exceed the model's {positions} positions: "
            "shorten the prompt or lower max_new_tokens"
        )


def _forward(
    model: Module,
    params: Any,
    vocab_size: int | None,
    tokens: Int[Array, "batch length"],
    visible: Bool[Array, "batch slots"] | Bool[Array, "batch length slots"],
    positions: dict[str, jax.Array],
    index: Any,
    source_mask: jax.Array | None,
    memory: jax.Array | None = None,
    cache: Any = None,
) -> tuple[Float[Array, "batch steps vocab"], Any]:
    """Returns a pair: the logits, and the new cache. The first call returns only the logits of the last token.

    Args:
      vocab_size: logits of ids at or above this number are -inf; None: all logits are those of the model.
      tokens: inputs of the decoder.
      visible: whether each cache slot is visible to all tokens [B, S], or to each token [B, L, S].
      positions: dict with `positions` [B, L], and the model's other inputs about positions, such as `prefix_lengths`.
      index: first slot that this call fills.
      source_mask: [B, M] for an encoder-decoder; None for a decoder.
      memory: [B, M, D] in the first call of an encoder-decoder, otherwise None.
      cache: cache after the previous call; None in the first call.
    """

    def logits(module: Any) -> jax.Array:
        if source_mask is None:
            features = module.features(tokens, visible, cache_index=index, **positions)
        else:
            names = {"positions": "decoder_positions"}
            where = {names.get(name, name): value for name, value in positions.items()}
            features = module.decode(tokens, memory, source_mask, visible, cache_index=index, **where)
        return module.logits(features if cache else features[:, -1:])

    variables = {"params": params} if cache is None else {"params": params, "cache": cache}
    logits_BLV, updated = model.apply(variables, mutable=["cache"], method=logits)
    return logits_BLV.at[..., vocab_size:].set(-jnp.inf) if vocab_size else logits_BLV, updated["cache"]


def _last_positions(positions: dict[str, jax.Array], slots: int, limit: int, rows: int) -> dict[str, jax.Array]:
    """Returns the position inputs for the last token of each prompt. Inputs without a length axis stay as they are.

    With several answers per prompt, `slot_positions` is added, the position of each cache slot.
    """
    last = {name: value[:, -1:] if value.ndim == 2 else value for name, value in positions.items()}
    if rows > 1:
        last["slot_positions"] = jnp.append(jnp.arange(slots), slots + jnp.repeat(jnp.arange(limit), rows))
    return last


@partial(jax.jit, static_argnames=("model", "decoding", "rules", "has_prefix"))
def _generate(
    model: Module,
    params: Any,
    source: tuple[jax.Array, jax.Array] | None,
    prompt: tuple[jax.Array, jax.Array],
    positions: dict[str, jax.Array] | None,
    sampler: Sampling | None,
    stops: jax.Array | None,
    key: jax.Array,
    *,
    decoding: DecodingConfig,
    rules: Rules,
    has_prefix: bool,
) -> Integer[Array, "batch answers new"]:
    """Returns new tokens, with END from the end token on. `positions` is None unless the decoder fills blanks."""
    tokens_BP, mask_BP = prompt
    batch, slots = tokens_BP.shape
    limit, rows = rules.max_new_tokens, max(decoding.num_beams, decoding.num_return_sequences)
    source_mask = None if source is None else source[1]
    memory = None if source is None else model.apply({"params": params}, *source, method="encode")
    filled_BS = jnp.pad(mask_BP, ((0, 0), (0, limit * rows))) > 0
    counter = "positions" if positions is None else "block_positions"
    if positions is None:
        positions = {"positions": jnp.maximum(jnp.cumsum(mask_BP, axis=1) - 1, 0)}
    if has_prefix:
        positions["prefix_lengths"] = jnp.full(batch, slots)
    forward = partial(_forward, model, stack.unstack(params), rules.vocab_size)
    logits_B1V, cache = forward(tokens_BP, filled_BS, positions, 0, source_mask, memory)
    last = _last_positions(positions, slots, limit, rows)

    ends = Ends(jnp.array(rules.eos_ids, jnp.int32), stops)
    if decoding.num_beams > 1:
        first_state, extend = beams.initial(batch, rows, limit, ends), partial(beams.extend, decoding=decoding)
    else:
        first_state = sampling.initial(batch, rows, limit, ends)
        extend = partial(sampling.extend, sampling=sampler, top_k=decoding.top_k, key=key)
    extend = partial(extend, prompt=prompt, rules=rules, ends=ends)

    def body(carry: Any) -> Any:
        step, state, tokens_BK, visible_BKS, cache = carry
        index = slots + (step - 1) * rows
        visible_BKS |= jnp.arange(visible_BKS.shape[-1]) == index + jnp.arange(rows)[:, None]
        next_BK = jnp.broadcast_to(last[counter] + step, (batch, rows))
        of_rows = {name: jnp.broadcast_to(last[name], (batch, rows)) for name in last if last[name].ndim == 2}
        logits_BKV, cache = forward(
            tokens_BK, visible_BKS, last | of_rows | {counter: next_BK}, index, source_mask, cache=cache
        )
        state, tokens_BK, parents_BK = extend(state, logits_BKV, step)
        if parents_BK is not None:
            visible_BKS = jnp.take_along_axis(visible_BKS, parents_BK[..., None], axis=1)
        return step + 1, state, tokens_BK, visible_BKS, cache

    logits_BKV = jnp.broadcast_to(logits_B1V, (batch, rows, logits_B1V.shape[-1]))  # Equal before the first token.
    state, tokens_BK, _ = extend(first_state, logits_BKV, 0)
    visible_BKS = jnp.broadcast_to(filled_BS[:, None], (batch, rows, filled_BS.shape[-1]))
    carry = (1, state, tokens_BK, visible_BKS, cache)
    carry = jax.lax.while_loop(lambda carry: (carry[0] < limit) & carry[1].open_BK.any(), body, carry)
    return carry[1].best(decoding.num_return_sequences)
