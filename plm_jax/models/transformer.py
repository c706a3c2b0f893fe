"""The parts that every family shares: dense layer, attention, feed-forward, block, stack.

Shapes: B batch, L length, Q queries, K keys, D width, N heads, H head_dim. Parameters are float32 and cast to `dtype`
where they are used; norms, scores and softmax run in float32. All blocks of a stack lie on a leading `layers` axis.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

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


def residual_std(model: settings.Decoder) -> float:
    """The σ of projections that write to the residual stream (GPT-2: σ / sqrt(2 · layers))."""
    std = model.initializer.std
    return std / (2 * model.stack.layers) ** 0.5 if model.initializer.shrink_residual else std


class Dense(nn.Module):
    """x [..., in] @ kernel [in, out] + bias [out]."""

    features: int
    axes: tuple[str, str]
    bias: bool
    std: float
    dtype: Any

    @nn.compact
    def __call__(self, x):
        """[..., in] → [..., out]."""
        kernel = self.param(
            "kernel",
            nn.with_logical_partitioning(nn.initializers.normal(self.std), self.axes),
            (x.shape[-1], self.features),
        )
        # In two dimensions: XLA's CPU backend would transpose a copy of a 3-D gradient, a quarter of the backward pass.
        y = (x.reshape(-1, x.shape[-1]) @ kernel.astype(self.dtype)).reshape(*x.shape[:-1], self.features)
        if self.bias:
            bias = nn.with_logical_partitioning(nn.initializers.zeros, self.axes[1:])
            y = y + self.param("bias", bias, (self.features,)).astype(self.dtype)
        return y


def norm(model: settings.Decoder, dtype: Any, name: str | None = None) -> nn.Module:
    """LayerNorm over the last axis, statistics in float32; parameters `scale` [D] and `bias` [D]."""
    return nn.LayerNorm(
        epsilon=model.norm.epsilon,
        dtype=dtype,
        use_fast_variance=False,
        scale_init=nn.with_logical_partitioning(nn.initializers.ones, ("embed",)),
        bias_init=nn.with_logical_partitioning(nn.initializers.zeros, ("embed",)),
        name=name,
    )


class Attention(nn.Module):
    """Multi-head attention of x [B, Q, D] over itself or over a key/value cache."""

    model: settings.Decoder
    dtype: Any
    deterministic: bool

    @nn.compact
    def __call__(self, x, visible, depth, cache_index=None):
        """Attends.

        Args:
          x: [B, Q, D].
          visible: bool [B or 1, 1, Q, K], which keys a query may see.
          depth: this block's number, from 0.
          cache_index: where in the cache's K slots this call's keys go; None means no cache, K = Q.
        """
        attention = self.model.attention

        def project(name):
            joined = attention.heads * attention.head_dim
            dense = Dense(joined, ("embed", "heads"), attention.bias, self.model.initializer.std, self.dtype, name=name)
            heads = dense(x).reshape(*x.shape[:-1], attention.heads, attention.head_dim)
            return constrain(heads.swapaxes(1, 2), "batch", "heads", "length", None)

        query_BNQH, key_BNKH, value_BNKH = project("query"), project("key"), project("value")
        if cache_index is not None:
            key_BNKH = self._cached("key", key_BNKH, visible.shape[-1], cache_index)
            value_BNKH = self._cached("value", value_BNKH, visible.shape[-1], cache_index)

        scale = attention.head_dim**-0.5 if attention.score_scale is None else attention.score_scale
        if attention.scale_by_inverse_depth:
            scale = scale / (depth + 1)
        query_BNQH = (query_BNQH * scale).astype(self.dtype)
        scores_BNQK = jnp.einsum("bnqh,bnkh->bnqk", query_BNQH, key_BNKH, preferred_element_type=jnp.float32)
        scores_BNQK = jnp.where(visible, scores_BNQK, jnp.finfo(jnp.float32).min)
        weights_BNQK = jax.nn.softmax(scores_BNQK, axis=-1).astype(self.dtype)
        weights_BNQK = nn.Dropout(self.model.dropout.attention, deterministic=self.deterministic)(weights_BNQK)
        mixed_BNQH = jnp.einsum("bnqk,bnkh->bnqh", weights_BNQK, value_BNKH)
        mixed = constrain(mixed_BNQH.swapaxes(1, 2).reshape(*x.shape[:-1], -1), "batch", "length", "heads")
        std = residual_std(self.model)
        return Dense(x.shape[-1], ("heads", "embed"), attention.bias, std, self.dtype, name="out")(mixed)

    def _cached(self, name, new_BNQH, slots, cache_index):
        """Writes the new keys or values into the cache [B, N, slots, H] at `cache_index`; returns all of it."""
        batch, heads, _, head_dim = new_BNQH.shape
        cache = self.variable("cache", f"cached_{name}", jnp.zeros, (batch, heads, slots, head_dim), new_BNQH.dtype)
        cache.value = jax.lax.dynamic_update_slice_in_dim(cache.value, new_BNQH, cache_index, axis=2)
        return cache.value


class FeedForward(nn.Module):
    """Two dense layers around an activation."""

    model: settings.Decoder
    dtype: Any

    @nn.compact
    def __call__(self, x):
        """[B, L, D] → [B, L, D]."""
        feed_forward, std = self.model.feed_forward, self.model.initializer.std
        hidden = Dense(feed_forward.width, ("embed", "mlp"), feed_forward.bias, std, self.dtype, name="up")(x)
        hidden = ACTIVATIONS[feed_forward.activation](constrain(hidden, "batch", "length", "mlp"))
        std = residual_std(self.model)
        return Dense(x.shape[-1], ("mlp", "embed"), feed_forward.bias, std, self.dtype, name="down")(hidden)


class Block(nn.Module):
    """Attention and feed-forward, each on the normed stream and added to it."""

    model: settings.Decoder
    dtype: Any
    deterministic: bool

    @nn.compact
    def __call__(self, x, depth, visible, cache_index=None):
        """[B, L, D] → [B, L, D]; the other arguments as `Attention`."""
        dropout = nn.Dropout(self.model.dropout.residual, deterministic=self.deterministic)
        attention = Attention(self.model, self.dtype, self.deterministic, name="attention")
        feed_forward = FeedForward(self.model, self.dtype, name="feed_forward")
        normed = norm(self.model, self.dtype, name="attention_norm")(x)
        x = x + dropout(attention(normed, visible, depth, cache_index))
        normed = norm(self.model, self.dtype, name="feed_forward_norm")(x)
        x = x + dropout(feed_forward(normed))
        return constrain(x, "batch", "length", "embed")


class Stack(nn.Module):
    """All blocks, scanned or unrolled over one layout of parameters, `blocks` [layers, ...].

    The blocks are pure functions of a slice of the stacked parameters, so a loop and an unrolled program see the same
    parameters and the same dropout keys.
    """

    model: settings.Decoder
    dtype: Any
    deterministic: bool

    @nn.compact
    def __call__(self, x, visible, cache_index=None):
        """[B, L, D] → [B, L, D], not yet normed; sows `hidden` [layers, B, L, D], each block's output."""
        layers = self.model.stack.layers
        block = Block(self.model, self.dtype, self.deterministic, parent=None)
        params = self.param("blocks", _stacked_init, block, layers, x[:1, :1])
        cache = self.get_variable("cache", "blocks")
        keys = None if self.deterministic else jax.random.split(self.make_rng("dropout"), layers)
        wants_hidden = self.is_mutable_collection("intermediates")

        def apply(x, layer):
            depth, params, cache, key = layer
            variables = {"params": params} if cache is None else {"params": params, "cache": cache}
            rngs = None if key is None else {"dropout": key}
            x, updated = block.apply(variables, x, depth, visible, cache_index, rngs=rngs, mutable=["cache"])
            return x, (updated.get("cache"), x if wants_hidden else None)

        if self.model.remat != "none":
            # Inside a compiled loop XLA cannot merge the two computations, so the costly barrier is not needed there.
            policy = REMAT_POLICIES[self.model.remat]
            apply = jax.checkpoint(apply, policy=policy, prevent_cse=not self.model.scan_layers)
        loop = jax.lax.scan if self.model.scan_layers else _unrolled
        x, (cache, hidden) = loop(apply, x, (jnp.arange(layers), params, cache, keys))
        if cache_index is not None:
            self.put_variable("cache", "blocks", cache)
        self.sow("intermediates", "hidden", hidden)
        return x


def _stacked_init(key, block, layers, x):
    """Parameters of `layers` blocks, each leaf with a leading axis of that name; x [1, 1, D] gives the width."""
    visible = jnp.ones((1, 1, 1, 1), bool)
    init = jax.vmap(lambda key: block.init(key, x, 0, visible)["params"])(jax.random.split(key, layers))
    return jax.tree.map(
        lambda leaf: leaf.replace(names=("layers", *leaf.names)),
        init,
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
