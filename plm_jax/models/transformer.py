"""The parts that every family shares: dense layer, norm, attention, feed-forward, block, stack.

Shapes: B batch, L length, M memory's length, Q queries, K keys, D width, N heads, G heads of keys and values,
H head_dim. Parameters are float32 and cast to `dtype` where they are used; norms, scores and softmax run in float32.
All blocks of a stack lie on a leading `layers` axis; those that layers share lie there once.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.models import kernels, settings
from plm_jax.models.activations import ACTIVATIONS
from plm_jax.models.initializers import kernel_init
from plm_jax.models.kernels import Context
from plm_jax.models.partitioning import constrain
from plm_jax.models.positions import Table

# What a flash kernel leaves is no larger than a product of weights, and costs more.
_PRODUCTS = jax.checkpoint_policies.save_from_both_policies(
    jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    jax.checkpoint_policies.save_only_these_names(kernels.RESIDUALS),
)
REMAT_POLICIES = {"dots": _PRODUCTS, "full": None}


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


def declared(module: nn.Module, name: str, table: Table) -> jax.Array:
    """The parameter of a module that a position scheme asks for."""
    return module.param(name, nn.with_logical_partitioning(table.init, table.axes), table.shape)


def norm(model: settings.Transformer, dtype: Any, name: str | None = None) -> nn.Module:
    """The model's norm over the last axis, statistics in float32; parameters `scale` [D] and, in LayerNorm, `bias`."""
    scale_init = nn.with_logical_partitioning(nn.initializers.ones, ("embed",))
    if model.norm.kind == "rms":
        return nn.RMSNorm(model.norm.epsilon, dtype=dtype, use_fast_variance=False, scale_init=scale_init, name=name)
    bias_init = nn.with_logical_partitioning(nn.initializers.zeros, ("embed",))
    return nn.LayerNorm(
        model.norm.epsilon, dtype=dtype, use_fast_variance=False, scale_init=scale_init, bias_init=bias_init, name=name
    )


def causal_positions(length, mask=None, cache_index=None):
    """Positions [B or 1, length] of a causal stack's tokens: cumsum(mask) - 1, with a cache or no mask the slots."""
    if mask is None or cache_index is not None:
        return (0 if cache_index is None else cache_index) + jnp.arange(length)[None]
    return jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)


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

        def project(name, x, heads):
            init = kernel_init(self.model, "query" if name == "query" else "")
            joined = heads * attention.head_dim
            projected = Dense(joined, ("embed", "heads"), attention.bias, init, self.dtype, name=name)(x)
            projected = projected.reshape(*x.shape[:-1], heads, attention.head_dim)
            return constrain(projected.swapaxes(1, 2), "batch", "heads", "length", None)

        rotate = context.rotation or (lambda x: x)
        query_BNQH = (rotate(project("query", x, attention.heads)) * scale).astype(self.dtype)
        if source is None:
            key_BGKH, value_BGKH = (self.get_variable("cache", f"cached_{name}") for name in ("key", "value"))
        else:
            key_BGKH = self._remember("key", rotate(project("key", source, attention.num_kv_heads)), context)
            value_BGKH = self._remember("value", project("value", source, attention.num_kv_heads), context)
        drop = functools.partial(dropout(self.model, "attention"), deterministic=self.deterministic)
        mixed_BNQH = kernels.attend(query_BNQH, key_BGKH, value_BGKH, context, drop, depth)
        mixed = constrain(mixed_BNQH.swapaxes(1, 2).reshape(*x.shape[:-1], -1), "batch", "length", "heads")
        init = kernel_init(self.model, "residual")
        return Dense(x.shape[-1], ("heads", "embed"), attention.bias_after, init, self.dtype, name="out")(mixed)

    def _remember(self, name, new_BGLH, context):
        """With a cache: writes new keys or values to its slots from `cache_index` on and returns all of them."""
        if context.cache_index is None:
            return new_BGLH
        batch, groups, _, head_dim = new_BGLH.shape
        shape = batch, groups, context.mask.shape[1], head_dim
        cache = self.variable("cache", f"cached_{name}", jnp.zeros, shape, new_BGLH.dtype)
        cache.value = jax.lax.dynamic_update_slice_in_dim(cache.value, new_BGLH, context.cache_index, axis=2)
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
            inner = normed(x)
            if self.model.norm.placement == "deep":
                x = inner * (2 * self.model.stack.layers) ** 0.5
            return x + drop(sublayer(inner), deterministic=self.deterministic)

        attention = Attention(self.model, self.dtype, self.deterministic, name="attention")
        x = add("attention", lambda x: attention(x, x, context, depth), x)
        if memory_context is not None:
            cross_attention = Attention(self.model, self.dtype, self.deterministic, name="cross_attention")
            x = add("cross_attention", lambda x: cross_attention(x, memory, memory_context, depth), x)
        x = add("feed_forward", FeedForward(self.model, self.dtype, self.deterministic, name="feed_forward"), x)
        return constrain(x, "batch", "length", "embed")


class Stack(nn.Module):
    """All blocks, scanned or unrolled over one layout of parameters, `blocks` [layers, ...], and the norm after them.

    Where layers share parameters, `blocks` are the stored ones, [groups · inner, ...].

    The blocks are pure functions of a slice of the stacked parameters, so a loop and an unrolled program see the same
    parameters and the same dropout keys.
    """

    model: settings.Transformer
    dtype: Any
    causal: bool

    @nn.compact
    def __call__(self, x, context, memory=None, memory_context=None, *, deterministic):
        """[B, L, D] → [B, L, D]; sows `hidden` [layers, B, L, D], each layer's output; arguments as `Block`."""
        stack = self.model.stack
        context = self._with_kernel("attention", context, x, x, deterministic)
        if memory_context is not None:
            memory_context = self._with_kernel("cross_attention", memory_context, x, memory, deterministic)
        block = Block(self.model, self.dtype, deterministic, parent=None)
        params = self.param("blocks", _stacked_init, block, stack.stored_blocks, x[:1, :1], memory_context is not None)
        cache = self.get_variable("cache", "blocks")
        keys = None if deterministic else jax.random.split(self.make_rng("dropout"), stack.blocks)
        wants_hidden = self.is_mutable_collection("intermediates")

        def apply(x, one):
            params, (depth, cache, key) = one
            variables = {"params": params} if cache is None else {"params": params, "cache": cache}
            rngs = None if key is None else {"dropout": key}
            x, updated = block.apply(variables, x, depth, context, memory, memory_context, rngs=rngs, mutable=["cache"])
            return x, (updated.get("cache"), x if wants_hidden else None)

        if self.model.remat != "none":
            # Inside a compiled loop XLA cannot merge the two computations, so the costly barrier is not needed there.
            policy = REMAT_POLICIES[self.model.remat]
            apply = jax.checkpoint(apply, policy=policy, prevent_cse=not self.model.scan_layers)
        loop = jax.lax.scan if self.model.scan_layers else _unrolled
        if stack.stored_blocks < stack.blocks:
            loop = functools.partial(_over_groups, loop, stack)
        x, (cache, hidden) = loop(apply, x, (params, (jnp.arange(stack.blocks), cache, keys)))
        if context.cache_index is not None:
            self.put_variable("cache", "blocks", cache)
        self.sow("intermediates", "hidden", hidden if hidden is None else hidden[stack.inner - 1 :: stack.inner])
        if self.model.norm.placement != "post":
            x = norm(self.model, self.dtype, name="final_norm")(x)
        return dropout(self.model, "output")(x, deterministic=deterministic)

    def _with_kernel(self, attention, context, x, source, deterministic):
        """The context of an attention of x [B, Q, D] to a source [B, K, D] with its kernel, and its bias.

        A cache is left to `xla` without a word: its few queries a call are no work for the others.
        """
        queries = x.shape[1]
        keys = source.shape[1] if context.cache_index is None else context.mask.shape[1]
        if attention == "attention":
            windows, position = self.model.attention.windows, self.model.attention.position
            context = context.replace(
                bias=self._bias(queries, keys, context.cache_index),
                rotation=position.rotation(self.model.attention.head_dim, context.positions, context.block_positions),
                windows=windows if any(windows) else (),
            )
        if self.is_initializing() or context.cache_index is not None:
            return context.with_kernel("xla", queries, keys)
        dropped = not deterministic and self.model.dropout.attention > 0
        kernel = kernels.pick(f"{self.name} {attention}", self.model, context, self.dtype, queries, keys, dropped)
        return context.with_kernel(kernel, queries, keys)

    def _bias(self, queries, keys, cache_index):
        """What the position scheme adds to scores, as its `bias` says."""
        position = self.model.attention.position
        tables = {name: declared(self, name, table) for name, table in position.score_tables(self.model).items()}
        first = 0 if cache_index is None else cache_index
        places = first + jnp.arange(queries), jnp.arange(keys)
        return position.bias(tables, *places, self.model.attention.heads, self.causal)


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


def _over_groups(loop, stack, function, carry, stacked):
    """As `loop(function, carry, (params, others))`, params being those of the stored blocks and others of all.

    To the loop over the layers of a group its parameters are constants: nothing keeps them once for each layer.
    """

    def of_group(carry, group):
        params, others = group
        return loop(lambda carry, others: _unrolled(function, carry, (params, others)), carry, others)

    def cut(tree, *shape):
        return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), tree)

    params, others = stacked
    repeats = stack.layers // stack.groups
    groups = cut(params, stack.groups, stack.inner), cut(others, stack.groups, repeats, stack.inner)
    carry, results = loop(of_group, carry, groups)
    return carry, jax.tree.map(lambda leaf: leaf.reshape(stack.blocks, *leaf.shape[3:]), results)


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
