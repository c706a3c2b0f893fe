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
        y = x @ kernel.astype(self.dtype)
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
        heads_by_dim = (attention.heads, attention.head_dim)

        def project(name):
            joined = attention.heads * attention.head_dim
            dense = Dense(joined, ("embed", "heads"), attention.bias, self.model.initializer.std, self.dtype, name=name)
            return constrain(dense(x).reshape(*x.shape[:-1], *heads_by_dim), "batch", "length", "heads", None)

        query_BQNH, key_BKNH, value_BKNH = project("query"), project("key"), project("value")
        if cache_index is not None:
            key_BKNH = self._cached("key", key_BKNH, visible.shape[-1], cache_index)
            value_BKNH = self._cached("value", value_BKNH, visible.shape[-1], cache_index)

        scale = attention.head_dim**-0.5 if attention.score_scale is None else attention.score_scale
        if attention.scale_by_inverse_depth:
            scale = scale / (depth + 1)
        query_BQNH = (query_BQNH * scale).astype(self.dtype)
        scores_BNQK = jnp.einsum("bqnh,bknh->bnqk", query_BQNH, key_BKNH, preferred_element_type=jnp.float32)
        scores_BNQK = jnp.where(visible, scores_BNQK, jnp.finfo(jnp.float32).min)
        weights_BNQK = jax.nn.softmax(scores_BNQK, axis=-1).astype(self.dtype)
        weights_BNQK = nn.Dropout(self.model.dropout.attention, deterministic=self.deterministic)(weights_BNQK)
        mixed_BQNH = jnp.einsum("bnqk,bknh->bqnh", weights_BNQK, value_BKNH)
        mixed = constrain(mixed_BQNH.reshape(*x.shape[:-1], -1), "batch", "length", "heads")
        std = residual_std(self.model)
        return Dense(x.shape[-1], ("heads", "embed"), attention.bias, std, self.dtype, name="out")(mixed)

    def _cached(self, name, new_BQNH, slots, cache_index):
        """Writes the new keys or values into the cache [B, slots, N, H] at `cache_index`; returns all of it."""
        batch, _, *heads_by_dim = new_BQNH.shape
        cache = self.variable("cache", f"cached_{name}", jnp.zeros, (batch, slots, *heads_by_dim), new_BQNH.dtype)
        cache.value = jax.lax.dynamic_update_slice_in_dim(cache.value, new_BQNH, cache_index, axis=1)
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
    def __call__(self, x, depth, visible, cache_index):
        """One step of the scan over layers: (x [B, L, D], depth, …) → (x, None); sows x as `hidden`."""
        dropout = nn.Dropout(self.model.dropout.residual, deterministic=self.deterministic)
        attention = Attention(self.model, self.dtype, self.deterministic, name="attention")
        feed_forward = FeedForward(self.model, self.dtype, name="feed_forward")
        normed = norm(self.model, self.dtype, name="attention_norm")(x)
        x = x + dropout(attention(normed, visible, depth, cache_index))
        normed = norm(self.model, self.dtype, name="feed_forward_norm")(x)
        x = x + dropout(feed_forward(normed))
        x = constrain(x, "batch", "length", "embed")
        self.sow("intermediates", "hidden", x)
        return x, None


class Stack(nn.Module):
    """All blocks, scanned or unrolled over one layout of parameters [layers, ...]."""

    model: settings.Decoder
    dtype: Any
    deterministic: bool

    @nn.compact
    def __call__(self, x, visible, cache_index=None):
        """[B, L, D] → [B, L, D], not yet normed."""
        layers = self.model.stack.layers
        block = Block
        if self.model.remat != "none":
            # Inside a compiled loop XLA cannot merge the two computations, so the costly barrier is not needed there.
            block = nn.remat(Block, policy=REMAT_POLICIES[self.model.remat], prevent_cse=not self.model.scan_layers)
        scan = nn.scan(
            block,
            variable_axes={"params": 0, "cache": 0, "intermediates": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=(0, nn.broadcast, nn.broadcast),
            length=layers,
            unroll=1 if self.model.scan_layers else layers,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        blocks = scan(self.model, self.dtype, self.deterministic, name="blocks")
        return blocks(x, jnp.arange(layers), visible, cache_index)[0]
