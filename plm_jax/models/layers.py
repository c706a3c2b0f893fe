"""Layers that the model families share: dense layers, norms, dropout, activations and look-ups in tables.

Parameters are float32 and cast to `dtype` where they are used; norms are computed in float32.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Integer, Shaped

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.models.kernels.context import RESIDUALS
from plm_jax.models.kernels.dropout import keep
from plm_jax.models.partitioning import axes_of, current_spec, device, least_ring_rows, mesh_axes, partitioned
from plm_jax.models.tables import GatheredTable

# Activations, a memory that a decoder attends to, and the number of a layer.
Stream = Float[Array, "batch length dim"]
Memory = Float[Array, "batch memory dim"]
Depth = Integer[Array, ""] | int
Activation = Literal["gelu_tanh", "gelu_exact", "relu", "silu", "tanh"]


@jax.custom_vjp
def _gelu_tanh(x):
    """Returns x · (1 + tanh(z)) / 2, where z = sqrt(2 / π) · (x + 0.044715 · x³).

    The backward pass recomputes the result as x · sigmoid(2 · z), which is mathematically equal. If both passes used
    tanh, XLA would keep the result of tanh in memory.
    """
    return nn.gelu(x, approximate=True)


def _gelu_by_sigmoid(x):
    return x * jax.nn.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))


def _gelu_tanh_backward(x, gradient):
    _, pull_back = jax.vjp(_gelu_by_sigmoid, x.astype(jnp.float32))
    return (pull_back(gradient.astype(jnp.float32))[0].astype(x.dtype),)


_gelu_tanh.defvjp(lambda x: (_gelu_tanh(x), x), _gelu_tanh_backward)
ACTIVATIONS = {
    "gelu_tanh": _gelu_tanh,
    "gelu_exact": functools.partial(nn.gelu, approximate=False),
    "relu": nn.relu,
    "silu": nn.silu,
    "tanh": jnp.tanh,
}


class Dropout(nn.Module):
    """Dropout whose mask for a row depends on the index of the row in the batch, but not on the other rows.

    A hash computes the mask, as in attention (`kernels.dropout`). Drawing the mask with threefry would take a
    considerable part of a training step.

    Attributes:
      rate: probability of dropping a feature.
      broadcast: whether the same features are dropped at all positions of a row.
    """

    rate: float
    broadcast: bool = False

    @nn.compact
    def __call__(
        self, x: Float[Any, "batch length dim"], rows: Integer[Any, " batch"] | None = None, *, deterministic: bool
    ) -> Float[Array, "batch length dim"]:
        """Applies dropout to x [B, L, D], unless `deterministic` is True.

        `rows` are the indices of the rows in the batch, int32 [B]; by default arange(B).
        """
        if self.rate == 0 or deterministic:
            return x
        if self.rate == 1:  # x / 0 and its gradient are NaN.
            return jnp.zeros_like(x)
        numbers = jnp.arange(len(x)) if rows is None else jnp.asarray(rows)
        positions = jnp.arange(1 if self.broadcast else x.shape[1])
        seed = jax.random.bits(self.make_rng("dropout"), (2,), jnp.uint32)
        return _drop(self.rate, x, seed, numbers[:, None, None], positions[:, None])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _drop(rate, x, seed, rows, positions):
    """Applies dropout to x [B, L, D]. `rows` has shape [B, 1, 1], and `positions` has shape [L or 1, 1]."""
    mask = keep(seed, rows, 0, positions, jnp.arange(x.shape[2]), rate)
    return jnp.where(mask, x / (1 - rate), 0)


def _drop_backward(rate, residuals, gradient):
    # With the barrier, the backward pass computes the mask again instead of keeping it in memory.
    return _drop(rate, gradient, *jax.lax.optimization_barrier(residuals)), None, None, None


_drop.defvjp(
    lambda rate, x, seed, rows, positions: (_drop(rate, x, seed, rows, positions), (seed, rows, positions)),
    _drop_backward,
)


# Name of the results of dense layers in `jax.checkpoint` policies; they also have the names of their modules.
PRODUCTS = "product"
# Rows of a tile of a TPU's arrays with two bytes per number.
TILE = 16
# Substrings of jax's device_kind for which XLA overlaps the reduce-scatter of gradients of any shape with other work:
# on v6e by SparseCores, on v5e in rings, if the program has them.
SCATTERED_BY_SPARSE_CORES, SCATTERED_IN_RINGS = ("v6",), ("v5 lite", "v5e")


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def product(
    x: Float[Any, "*rows inputs"],
    kernel: Float[Any, "inputs outputs"],
    spec: PartitionSpec | None,
    of_rows: tuple[str, ...] = (),
) -> Float[Array, "*rows outputs"]:
    """Returns x [rows, ..., in] @ kernel [in, out] in the dtype of x; the kernel's gradient has the kernel's dtype.

    Args:
      spec: sharding of the kernel; None on a single device. The gradient is computed with the same sharding, so that no
        device holds the whole gradient.
      of_rows: mesh axes that shard the rows of x. The gradient is reduced over these axes with an explicit
        reduce-scatter if the shards of the kernel along one of these axes are not whole tiles. Must be () if a mesh
        axis other than `tensor` shards another dimension of x. It can also be () if XLA uses a reduce-scatter anyway.
    """
    return x @ kernel.astype(x.dtype)


def _axes_of_rows(shape: tuple[int, ...], spec: PartitionSpec) -> tuple[str, ...]:
    """Returns the argument `of_rows` of `product` for a kernel of this shape and sharding on the current mesh."""
    kind = device().device_kind
    shards = [size // _devices(axes_of(cut)) for size, cut in zip(shape, spec, strict=True) if cut]
    has_rings = min(shards, default=0) >= least_ring_rows(kind)
    by_xla = SCATTERED_BY_SPARSE_CORES + (SCATTERED_IN_RINGS if has_rings else ())
    if "context" in mesh_axes("length") or any(part in kind for part in by_xla):
        return ()
    return tuple(mesh_axes("batch"))


def _product_backward(spec, of_rows, residuals, d_y):
    x, kernel = residuals
    d_kernel = _outer(x, d_y, kernel.dtype) if spec is None else _kernel_gradient(spec, of_rows, x, kernel, d_y)
    return d_y @ kernel.astype(x.dtype).T, d_kernel


def _kernel_gradient(spec, of_rows, x, kernel, d_y):
    """Returns the gradient of a kernel, sharded by `spec` like the kernel."""
    cuts = [axes_of(cut) for cut in spec]
    uneven = [
        dimension
        for dimension, cut in enumerate(cuts)
        if cut and set(cut) <= set(of_rows) and kernel.shape[dimension] // _devices(cut) % TILE
    ]
    if uneven and len(x) % _devices(of_rows) == 0:
        d_kernel = _scattered(x, d_y, kernel.dtype, of_rows, uneven[0], cuts[uneven[0]])
    else:
        d_kernel = _outer(x, d_y, kernel.dtype)
    return jax.lax.with_sharding_constraint(d_kernel, spec)


product.defvjp(lambda x, kernel, spec, of_rows: (product(x, kernel, spec, of_rows), (x, kernel)), _product_backward)


def _devices(axes: tuple[str, ...]) -> int:
    """Returns the number of devices along mesh axes."""
    return math.prod(jax.sharding.get_abstract_mesh().shape[axis] for axis in axes)


def _outer(x, y, dtype):
    """Contracts x [rows, ..., m] and y [rows, ..., n] over all axes except the last: [m, n]."""
    summed = tuple(range(x.ndim - 1))
    return jax.lax.dot_general(x, y, ((summed, summed), ((), ())), preferred_element_type=dtype)


def _scattered(x, d_y, dtype, of_rows, dimension, cut):
    """Computes `_outer` and sums the results of all devices along the mesh axes `of_rows`.

    The result is sharded over the axes `cut` along `dimension`. The shards are put on a separate leading axis for the
    reduce-scatter. Without this axis, if the shards are not whole tiles, XLA's TPU backend would all-reduce the sums
    and then slice them.
    """
    other_axes = tuple(axis for axis in of_rows if axis not in cut)

    def scatter(first, second):
        sums = _outer(first, second, dtype)
        sums = jax.lax.psum_scatter(sums.reshape(_devices(cut), -1, sums.shape[-1]), cut)
        return jax.lax.psum(sums, other_axes)

    of_arrays, of_sums = PartitionSpec(of_rows), PartitionSpec(cut)
    run = jax.shard_map(scatter, in_specs=of_arrays, out_specs=of_sums, axis_names=set(of_rows), check_vma=False)
    return run(d_y, x).T if dimension else run(x, d_y)


class Dense(nn.Module):
    """A dense layer: x [..., in] @ kernel [in, out], plus a bias [out] if `bias` is set."""

    features: int
    axes: tuple[str | None, str | None]
    bias: bool
    initializer: Callable
    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Any, "*rows inputs"]) -> Float[Array, "*rows outputs"]:
        """Applies the layer, [..., in] → [..., out]."""
        kernel = self.param("kernel", partitioned(self.initializer, self.axes), (x.shape[-1], self.features))
        # Flattened: XLA's CPU backend would transpose a copy of a 3-D gradient, a quarter of the backward pass. Rows
        # and positions that are both sharded cannot be merged into one sharded dimension.
        flat = x if mesh_axes("length") else x.reshape(-1, x.shape[-1])
        # Computed here: other rules may be in force when the gradient is computed.
        spec = current_spec(kernel.shape, *self.axes)
        of_rows = () if spec is None else _axes_of_rows(kernel.shape, spec)
        y: jax.Array = product(flat, kernel, spec, of_rows)
        y = y.reshape(*x.shape[:-1], self.features)
        if self.bias:
            bias = partitioned(nn.initializers.zeros, self.axes[1:])
            y = y + self.param("bias", bias, (self.features,)).astype(self.dtype)
        return checkpoint_name(checkpoint_name(y, PRODUCTS), self.name)


@dataclass(frozen=True)
class NormConfig:
    """The normalization: LayerNorm, or RMSNorm without mean and bias (Zhang and Sennrich 2019).

    Attributes:
      epsilon: constant added to the variance or the mean square.
      kind: `layer`: LayerNorm; `rms`: RMSNorm.
      placement: positions of the norms. `pre`: before each sub-layer and after the stack. `post`: after each residual
        addition. `deep`: like `pre`, but the output of a sub-layer is added to the normalized input of the sub-layer
        times sqrt(2 · layers) (ChatGLM-6B's variant of Wang et al. 2022). `parallel`: like `pre`, but both sub-layers
        read the normalized input of the block, and both outputs are added to the input of the block (GPT-J, PaLM).
      scale: whether norms have a trained scale.
      bias: whether a LayerNorm has a trained bias; RMSNorm has none.
      shared: whether the two sub-layers of a `parallel` block share one norm.
      first: whether a norm precedes the attention of the first layer; must be True unless the placement is `pre`.
        ModernBERT has no such norm, because its embeddings are already normalized (Warner et al. 2024).
    """

    epsilon: ranges.Share = 1e-5
    kind: Literal["layer", "rms"] = "layer"
    placement: Literal["pre", "post", "deep", "parallel"] = "pre"
    scale: bool = True
    bias: bool = True
    shared: bool = False
    first: bool = True

    def __post_init__(self):
        if self.shared and self.placement != "parallel":
            raise UserError(f"norm.placement is '{self.placement}': set it to parallel, or norm.shared to False")
        if not self.first and self.placement != "pre":
            raise UserError(f"norm.placement is '{self.placement}': set it to pre, or norm.first to True")


class Norm(nn.Module):
    """Normalization of the last axis with float32 statistics.

    The parameters `scale` [D] and `bias` [D] exist only if the settings ask for them. RMSNorm never has a bias.

    Attributes:
      config: settings of the norm.
      axis: logical name of the last axis.
    """

    config: NormConfig
    dtype: Any
    axis: str | None = "embed"

    @nn.compact
    def __call__(self, x: Float[Any, "*rows dim"]) -> Float[Array, "*rows dim"]:
        """Normalizes x [..., D] and returns it in `dtype`."""

        def vector(name, init, is_used):
            return self.param(name, partitioned(init, (self.axis,)), x.shape[-1:]) if is_used else None

        centers = self.config.kind == "layer"
        scale = vector("scale", nn.initializers.ones, self.config.scale)
        bias = vector("bias", nn.initializers.zeros, centers and self.config.bias)
        return _normalize(self.config.epsilon, centers, self.dtype, x, scale, bias)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _normalize(epsilon, centers, dtype, x, scale, bias):
    """Returns (x - mean) / sqrt(variance + epsilon) · scale + bias, computed in float32.

    A `scale` or `bias` of None is left out. If `centers` is False (RMSNorm), the mean is 0.

    The backward pass reads x twice: once for sums over each row, and once for the gradient.
    """
    return _normalize_forward(epsilon, centers, dtype, x, scale, bias)[0]


def _normalize_forward(epsilon, centers, dtype, x, scale, bias):
    values = x.astype(jnp.float32)
    mean = checkpoint_name(values.mean(-1, keepdims=True), RESIDUALS) if centers else 0.0
    variance = jnp.square(values - mean).mean(-1, keepdims=True)
    inverse = checkpoint_name(jax.lax.rsqrt(variance + epsilon), RESIDUALS)
    y = (values - mean) * (inverse if scale is None else inverse * scale)
    return (y if bias is None else y + bias).astype(dtype), (x, mean, inverse, scale, bias)


def _normalize_backward(epsilon, centers, dtype, residuals, gradient):
    x, mean, inverse, scale, bias = residuals
    # Without the barrier, XLA's GPU backend would compute the statistics again, in a pass that stores float32 values.
    mean, inverse = jax.lax.optimization_barrier((mean, inverse))
    normalized, gradient = (x.astype(jnp.float32) - mean) * inverse, gradient.astype(jnp.float32)
    rows = tuple(range(x.ndim - 1))
    of_scale = None if scale is None else (gradient * normalized).sum(rows)
    of_bias = None if bias is None else gradient.sum(rows)
    gradient = gradient if scale is None else gradient * scale
    of_x = gradient - normalized * (gradient * normalized).mean(-1, keepdims=True)
    of_x = of_x - gradient.mean(-1, keepdims=True) if centers else of_x
    return (of_x * inverse).astype(x.dtype), of_scale, of_bias


_normalize.defvjp(_normalize_forward, _normalize_backward)


def norm(config: NormConfig, dtype: Any, name: str | None = None, axis: str | None = "embed") -> Norm:
    """Returns a norm over the last axis; `axis` is the logical name of that axis."""
    return Norm(config, dtype, axis, name=name)


def look_up(
    table: Float[Any, "vocab dim"] | GatheredTable,
    ids: Integer[Any, "_ length"],
    dtype: Any,
    rows: int | None = None,
) -> Float[Array, "batch length dim"]:
    """Returns the rows [B, L, E] of a table [V, E] for ids [B, L].

    Args:
      table: embeddings.
      ids: int32 [B, L], or [1, L] if all rows have the same ids.
      dtype: dtype of the result; ignored for a `GatheredTable`, which already has the dtype of activations.
      rows: batch size B; None: the number of rows of `ids`.
    """
    rows = len(ids) if rows is None else rows
    if isinstance(table, GatheredTable):
        return table.look_up(ids, rows)
    embeddings = table[ids]
    return jnp.broadcast_to(embeddings, (rows, *embeddings.shape[1:])).astype(dtype)


class ScalarMix(nn.Module):
    """Scalar mix γ · Σ softmax(w)_j · layer_j of layers j (Peters et al. 2018, equation 1), with trained w and γ.

    Attributes:
      layer_norm: whether each layer is first normalized over all non-padding positions and channels of a text.
    """

    layer_norm: bool = False

    @nn.compact
    def __call__(
        self, layers: Float[Any, "layers batch length *rest"], mask: Shaped[Any, "batch length"] | None = None
    ) -> Float[Array, "batch length *rest"]:
        """Mixes [layers, B, L, ...] into [B, L, ...].

        The statistics of `layer_norm` include the positions where `mask` [B, L] is 1. They include all positions if
        `mask` is None, or if it is 0 at all positions of a text.
        """
        weights = nn.softmax(self.param("weights", nn.initializers.zeros, (len(layers),)))
        scale = self.param("scale", nn.initializers.ones, ())
        if self.layer_norm:
            axes = tuple(range(2, layers.ndim))
            real = None if mask is None else mask.reshape(mask.shape + (1,) * (layers.ndim - 3)) > 0
            # A text of padding only would have no mean.
            real = real if real is None else real | ~real.any(axes[0] - 1, keepdims=True)
            layers = layers.astype(jnp.float32)
            mean = layers.mean(axes, where=real, keepdims=True)
            variance = layers.var(axes, where=real, keepdims=True)
            layers = (layers - mean) * jax.lax.rsqrt(variance + 1e-12)
        return scale * jnp.tensordot(weights, layers, axes=1)
