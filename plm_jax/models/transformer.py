"""The parts that every family shares: dense layer, norm, attention, feed-forward, block, stack.

Shapes: B batch, L length, M memory's length, Q queries, K keys, D width, N heads, H head_dim. Parameters are float32
and cast to `dtype` where they are used; norms, scores and softmax run in float32. All blocks of a stack lie on a
leading `layers` axis.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from plm_jax.models import settings
from plm_jax.models.partitioning import constrain

ACTIVATIONS = {
    "gelu_tanh": lambda x: nn.gelu(x, approximate=True),
    "gelu_exact": lambda x: nn.gelu(x, approximate=False),
    "relu": nn.relu,
    "silu": nn.silu,
    "tanh": jnp.tanh,
}

REMAT_POLICIES = {"dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable, "full": None}


def kernel_init(model: settings.Transformer, role: Literal["", "query", "residual"] = "") -> Callable:
    """The initialiser of a matrix [in, out]; `residual`: it writes to the residual stream."""
    if isinstance(model.initializer, settings.FanIn):
        scale = 1 / model.attention.head_dim if role == "query" else 1.0
        return nn.initializers.variance_scaling(scale, "fan_in", "truncated_normal")
    shrinks = model.initializer.shrink_residual and role == "residual"
    return normal(model, model.initializer.std / (2 * model.stack.layers) ** 0.5 if shrinks else model.initializer.std)


def normal(model: settings.Transformer, std: float) -> Callable:
    """Normal, truncated where the model's initialisers are."""
    truncated = isinstance(model.initializer, settings.Initializer) and model.initializer.truncated
    return nn.initializers.truncated_normal(std) if truncated else nn.initializers.normal(std)


def dropout(model: settings.Transformer, place: str) -> nn.Module:
    """Dropout at the rate of a field of `settings.Dropout`, over [..., length, features]."""
    rate = getattr(model.dropout, place)
    return nn.Dropout(rate, broadcast_dims=(-2,) if model.dropout.broadcast else ())


class Dense(nn.Module):
    """x [..., in] @ kernel [in, out] + bias [out]."""

    features: int
    axes: tuple[str | None, str | None]
    bias: bool
    initializer: Callable
    dtype: Any

    @nn.compact
    def __call__(self, x):
        """[..., in] → [..., out]."""
        kernel = self.param(
            "kernel", nn.with_logical_partitioning(self.initializer, self.axes), (x.shape[-1], self.features)
        )
        # In two dimensions: XLA's CPU backend would transpose a copy of a 3-D gradient, a quarter of the backward pass.
        y = (x.reshape(-1, x.shape[-1]) @ kernel.astype(self.dtype)).reshape(*x.shape[:-1], self.features)
        if self.bias:
            bias = nn.with_logical_partitioning(nn.initializers.zeros, self.axes[1:])
            y = y + self.param("bias", bias, (self.features,)).astype(self.dtype)
        return y


def norm(model: settings.Transformer, dtype: Any, name: str | None = None) -> nn.Module:
    """The model's norm over the last axis, statistics in float32; parameters `scale` [D] and, in LayerNorm, `bias`."""
    scale_init = nn.with_logical_partitioning(nn.initializers.ones, ("embed",))
    if model.norm.kind == "rms":
        return nn.RMSNorm(model.norm.epsilon, dtype=dtype, use_fast_variance=False, scale_init=scale_init, name=name)
    bias_init = nn.with_logical_partitioning(nn.initializers.zeros, ("embed",))
    return nn.LayerNorm(
        model.norm.epsilon, dtype=dtype, use_fast_variance=False, scale_init=scale_init, bias_init=bias_init, name=name
    )


def relative_buckets(distances, position: settings.RelativeBias, causal: bool):
    """The bucket of each distance key - query, of any shape (Raffel et al. 2020 §2.1; google-research/t5x).

    Both directions split the buckets between them, the upper half for keys after the query; a causal stack gives all
    to keys before it. The first half of a side are single distances, the others grow to `max_distance`.
    """
    buckets = position.buckets if causal else position.buckets // 2
    first = 0 if causal else jnp.where(distances > 0, buckets, 0)
    distances = jnp.maximum(-distances, 0) if causal else jnp.abs(distances)
    exact = buckets // 2
    share = jnp.log(jnp.maximum(distances, 1) / exact + jnp.finfo(jnp.float32).eps)
    share = share / math.log(position.max_distance / exact)
    far = exact + (share * (buckets - exact)).astype(jnp.int32)
    return first + jnp.where(distances < exact, distances, jnp.minimum(far, buckets - 1))


@struct.dataclass
class Context:
    """What an attention is to know besides its inputs.

    Attributes:
      visible: bool [B or 1, 1, Q or 1, K], which keys a query may see; None: all.
      bias: added to the scores, float32 [1, N, Q, K].
      cache_index: where in the cache's K slots the keys of this call go; None: there is no cache.
    """

    visible: jax.Array | None = None
    bias: jax.Array | None = None
    cache_index: jax.Array | int | None = None


def causal(length, slots, cache_index=None, mask=None, segment_ids=None):
    """The keys that queries in slots cache_index … cache_index + length - 1 see: bool [B or 1, 1, length, slots].

    A key is visible if it stands no later, is not padding (`mask` [B, slots]) and is of the same segment
    (`segment_ids` [B, length], only where slots = length).
    """
    query_slots = (0 if cache_index is None else cache_index) + jnp.arange(length)
    visible = (query_slots[:, None] >= jnp.arange(slots))[None, None]
    other = bidirectional(mask, segment_ids, segment_ids)
    return visible if other is None else visible & other


def causal_positions(length, mask=None, cache_index=None):
    """Positions [B or 1, length] of a causal stack's tokens: cumsum(mask) - 1, with a cache or no mask the slots."""
    if mask is None or cache_index is not None:
        return (0 if cache_index is None else cache_index) + jnp.arange(length)[None]
    return jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)


def bidirectional(mask=None, query_segment_ids=None, key_segment_ids=None):
    """The keys that are no padding (`mask` [B, K]) and of the query's segment: bool [B, 1, Q or 1, K], None for all."""
    visible = None if mask is None else mask[:, None, None, :] != 0
    if query_segment_ids is None:
        return visible
    same = query_segment_ids[:, None, :, None] == key_segment_ids[:, None, None, :]
    return same if visible is None else visible & same


class Attention(nn.Module):
    """Multi-head attention of x [B, Q, D] over itself, over a key/value cache, or over a memory."""

    model: settings.Transformer
    dtype: Any
    deterministic: bool

    @nn.compact
    def __call__(self, x, source, context, depth):
        """Attends.

        Args:
          x: [B, Q, D], what asks.
          source: what keys and values are made of: x, or a memory [B, M, D]; None: the cached keys of one seen before.
          context: the `Context` of this attention.
          depth: this block's number, from 0.
        """
        attention = self.model.attention
        scale = attention.head_dim**-0.5 if attention.score_scale is None else attention.score_scale
        if attention.scale_by_inverse_depth:
            scale = scale / (depth + 1)

        def project(name, x):
            init = kernel_init(self.model, "query" if name == "query" else "")
            joined = attention.heads * attention.head_dim
            heads = Dense(joined, ("embed", "heads"), attention.bias, init, self.dtype, name=name)(x)
            heads = heads.reshape(*x.shape[:-1], attention.heads, attention.head_dim)
            return constrain(heads.swapaxes(1, 2), "batch", "heads", "length", None)

        query_BNQH = (project("query", x) * scale).astype(self.dtype)
        if source is None:
            key_BNKH, value_BNKH = (self.get_variable("cache", f"cached_{name}") for name in ("key", "value"))
        else:
            key_BNKH, value_BNKH = (self._remember(name, project(name, source), context) for name in ("key", "value"))
        scores_BNQK = jnp.einsum("bnqh,bnkh->bnqk", query_BNQH, key_BNKH, preferred_element_type=jnp.float32)
        if context.bias is not None:
            scores_BNQK = scores_BNQK + context.bias
        if context.visible is not None:
            scores_BNQK = jnp.where(context.visible, scores_BNQK, jnp.finfo(jnp.float32).min)
        weights_BNQK = jax.nn.softmax(scores_BNQK, axis=-1).astype(self.dtype)
        weights_BNQK = dropout(self.model, "attention")(weights_BNQK, deterministic=self.deterministic)
        mixed_BNQH = jnp.einsum("bnqk,bnkh->bnqh", weights_BNQK, value_BNKH)
        mixed = constrain(mixed_BNQH.swapaxes(1, 2).reshape(*x.shape[:-1], -1), "batch", "length", "heads")
        init = kernel_init(self.model, "residual")
        return Dense(x.shape[-1], ("heads", "embed"), attention.bias, init, self.dtype, name="out")(mixed)

    def _remember(self, name, new_BNLH, context):
        """With a cache: writes new keys or values to its slots from `cache_index` on and returns all of them."""
        if context.cache_index is None:
            return new_BNLH
        batch, heads, _, head_dim = new_BNLH.shape
        slots = context.visible.shape[-1]
        cache = self.variable("cache", f"cached_{name}", jnp.zeros, (batch, heads, slots, head_dim), new_BNLH.dtype)
        cache.value = jax.lax.dynamic_update_slice_in_dim(cache.value, new_BNLH, context.cache_index, axis=2)
        return cache.value


class FeedForward(nn.Module):
    """Two dense layers around an activation, or three around a gated one."""

    model: settings.Transformer
    dtype: Any
    deterministic: bool

    @nn.compact
    def __call__(self, x):
        """[B, L, D] → [B, L, D]."""
        feed_forward = self.model.feed_forward

        def widen(name):
            dense = Dense(
                feed_forward.width, ("embed", "mlp"), feed_forward.bias, kernel_init(self.model), self.dtype, name=name
            )
            return constrain(dense(x), "batch", "length", "mlp")

        activation = ACTIVATIONS[feed_forward.activation]
        hidden = activation(widen("gate")) * widen("up") if feed_forward.gated else activation(widen("up"))
        hidden = dropout(self.model, "feed_forward")(hidden, deterministic=self.deterministic)
        init = kernel_init(self.model, "residual")
        return Dense(x.shape[-1], ("mlp", "embed"), feed_forward.bias, init, self.dtype, name="down")(hidden)


class Block(nn.Module):
    """Attention, attention to a memory if there is one, and feed-forward: each one normed and added to the stream."""

    model: settings.Transformer
    dtype: Any
    deterministic: bool

    @nn.compact
    def __call__(self, x, depth, context, memory=None, memory_context=None):
        """[B, L, D] → [B, L, D].

        Args:
          x: [B, L, D].
          depth: this block's number, from 0.
          context: of the attention of x to itself.
          memory: [B, M, D], or None if its keys are cached.
          memory_context: of the attention to the memory; None: the block has none.
        """

        def add(name, sublayer, x):
            drop = dropout(self.model, "residual")
            normed = norm(self.model, self.dtype, name=f"{name}_norm")
            if self.model.norm.placement == "post":
                return normed(x + drop(sublayer(x), deterministic=self.deterministic))
            return x + drop(sublayer(normed(x)), deterministic=self.deterministic)

        attention = Attention(self.model, self.dtype, self.deterministic, name="attention")
        x = add("attention", lambda x: attention(x, x, context, depth), x)
        if memory_context is not None:
            cross_attention = Attention(self.model, self.dtype, self.deterministic, name="cross_attention")
            x = add("cross_attention", lambda x: cross_attention(x, memory, memory_context, depth), x)
        x = add("feed_forward", FeedForward(self.model, self.dtype, self.deterministic, name="feed_forward"), x)
        return constrain(x, "batch", "length", "embed")


class Stack(nn.Module):
    """All blocks, scanned or unrolled over one layout of parameters, `blocks` [layers, ...], and the norm after them.

    The blocks are pure functions of a slice of the stacked parameters, so a loop and an unrolled program see the same
    parameters and the same dropout keys.
    """

    model: settings.Transformer
    dtype: Any
    causal: bool

    @nn.compact
    def __call__(self, x, context, memory=None, memory_context=None, *, deterministic):
        """[B, L, D] → [B, L, D]; sows `hidden` [layers, B, L, D], each block's output; arguments as `Block`."""
        layers = self.model.stack.layers
        context = context.replace(bias=self._relative_bias(x.shape[1], context))
        block = Block(self.model, self.dtype, deterministic, parent=None)
        params = self.param("blocks", _stacked_init, block, layers, x[:1, :1], memory_context is not None)
        cache = self.get_variable("cache", "blocks")
        keys = None if deterministic else jax.random.split(self.make_rng("dropout"), layers)
        wants_hidden = self.is_mutable_collection("intermediates")

        def apply(x, layer):
            depth, params, cache, key = layer
            variables = {"params": params} if cache is None else {"params": params, "cache": cache}
            rngs = None if key is None else {"dropout": key}
            x, updated = block.apply(variables, x, depth, context, memory, memory_context, rngs=rngs, mutable=["cache"])
            return x, (updated.get("cache"), x if wants_hidden else None)

        if self.model.remat != "none":
            # Inside a compiled loop XLA cannot merge the two computations, so the costly barrier is not needed there.
            policy = REMAT_POLICIES[self.model.remat]
            apply = jax.checkpoint(apply, policy=policy, prevent_cse=not self.model.scan_layers)
        loop = jax.lax.scan if self.model.scan_layers else _unrolled
        x, (cache, hidden) = loop(apply, x, (jnp.arange(layers), params, cache, keys))
        if context.cache_index is not None:
            self.put_variable("cache", "blocks", cache)
        self.sow("intermediates", "hidden", hidden)
        if self.model.norm.placement == "pre":
            x = norm(self.model, self.dtype, name="final_norm")(x)
        return dropout(self.model, "output")(x, deterministic=deterministic)

    def _relative_bias(self, queries, context):
        """What is added to scores for the distance of key and query, float32 [1, N, Q, K]; None: nothing."""
        position = self.model.attention.position
        if not isinstance(position, settings.RelativeBias):
            return None
        init = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
        if isinstance(self.model.initializer, settings.Initializer):
            init = normal(self.model, self.model.initializer.std)
        shape = position.buckets, self.model.attention.heads
        table = self.param("relative_bias", nn.with_logical_partitioning(init, (None, "heads")), shape)
        first = 0 if context.cache_index is None else context.cache_index
        keys = queries if context.visible is None else context.visible.shape[-1]
        distances = jnp.arange(keys)[None, :] - (first + jnp.arange(queries))[:, None]
        # A product, not a look-up: its gradient is one too, instead of a scatter of every score.
        one_hot_QKB = jax.nn.one_hot(relative_buckets(distances, position, self.causal), position.buckets)
        return jnp.einsum("qkb,bn->nqk", one_hot_QKB, table)[None]


def _stacked_init(key, block, layers, x, crosses):
    """Parameters of `layers` blocks, each leaf with a leading axis of that name; x [1, 1, D] gives the width."""
    context = Context()

    def init_one(key):
        return block.init(key, x, 0, context, *((x, context) if crosses else ()))["params"]

    return jax.tree.map(
        lambda leaf: leaf.replace(names=("layers", *leaf.names)),
        jax.vmap(init_one)(jax.random.split(key, layers)),
        is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned),
    )


def _unrolled(function, carry, stacked):
    """As `jax.lax.scan(function, carry, stacked)`, written out."""
    leaves, structure = jax.tree.flatten(stacked)
    # Split, not indexed: the transpose of one split is one concatenation of all layers' gradients.
    columns = [leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else _split(leaf) for leaf in leaves]
    results = []
    for layer in zip(*columns, strict=True):
        carry, result = function(carry, jax.tree.unflatten(structure, layer))
        results.append(result)
    return carry, jax.tree.map(lambda *parts: jnp.stack(parts), *results)


def _split(leaf):
    """The slices of the leading axis."""
    return [part[0] for part in jax.lax.split(leaf, [1] * leaf.shape[0])]
