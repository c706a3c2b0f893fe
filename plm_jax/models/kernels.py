"""What an attention's queries see, and the kernels that compute it.

`xla` is written out below and takes everything. `splash` (Pallas, TPU) and `cudnn` (NVIDIA) are flash attention: they
never hold all scores, know causal masks, padding and segments by their structure, and leave out what nobody sees.

Shapes: B batch, Q queries, K keys, N heads, G groups (key/value heads; each serves N / G heads in a row), H head_dim.
Softmax runs in float32.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import PartitionSpec

from plm_jax.models import settings
from plm_jax.models.partitioning import partition_spec

logger = logging.getLogger(__name__)

# What `jax.checkpoint` policies call the output of a flash kernel and the sums of its softmax.
RESIDUALS = "attention"

# Splash works on tiles of queries × keys; 512 is what MaxText (base.yml, sa_block_*) trains with.
TILES = (512, 256, 128)


@struct.dataclass
class Context:
    """What an attention is to know besides its inputs.

    Attributes:
      causal: a query sees no key after its own place.
      mask: [B, K], 1 for real keys; None: all are. With a cache it is needed and K are the cache's slots.
      segment_ids: of the queries [B, Q] and of the keys [B, K], not negative; a query sees its own segment only. None:
        there is one.
      positions: of the queries and of the keys that this call makes, int32 [B or 1, Q], for rotary positions.
      block_positions: of the same, their places within blanks, int32 [B, Q]; None: 0 everywhere.
      rotation: what turns both by their positions, as `Position.rotation` gives it; None: nothing does.
      bias: added to the scores, float32 [1, N, Q, K], or a function of queries and keys, as `Position.bias` gives it.
      windows: in layer i a query sees keys less than windows[i % len(windows)] places away, 0: all; empty: all layers
        do.
      cache_index: where in the cache's slots the keys of this call go; None: there is no cache.
      prefix_lengths: [B], of a causal stack: all queries see the keys in the first so many places. None: there is none.
      kernel: what computes the attention; see `with_kernel`.
      visible: what of causality, mask and segments this kernel takes as a dense mask, bool [B or 1, 1, Q or 1, K].
    """

    causal: bool = struct.field(pytree_node=False, default=False)
    mask: jax.Array | None = None
    segment_ids: tuple[jax.Array, jax.Array] | None = None
    positions: jax.Array | None = None
    block_positions: jax.Array | None = None
    rotation: Callable | None = struct.field(pytree_node=False, default=None)
    bias: jax.Array | Callable | None = None
    windows: tuple[int, ...] = struct.field(pytree_node=False, default=())
    cache_index: jax.Array | int | None = None
    prefix_lengths: jax.Array | None = None
    kernel: Literal["xla", "cudnn", "splash"] = struct.field(pytree_node=False, default="xla")
    visible: jax.Array | None = None

    def with_kernel(self, kernel: str, queries: int, keys: int) -> "Context":
        """This context for a kernel, with the dense mask that it needs, made once for all layers."""
        dense = [] if kernel == "splash" else self._padding_and_segments()
        if self.causal and (kernel == "xla" or self.prefix_lengths is not None):
            seen = (self.places_back(queries, keys) >= 0)[None, None]
            if self.prefix_lengths is not None:
                seen = seen | (jnp.arange(keys) < self.prefix_lengths[:, None, None, None])
            dense.append(seen)
        visible = functools.reduce(jnp.logical_and, dense) if dense else None
        if visible is not None and kernel == "cudnn":
            visible = jnp.broadcast_to(visible, (visible.shape[0], 1, queries, keys))
        return self.replace(kernel=kernel, visible=visible)

    def places_back(self, queries: int, keys: int) -> jax.Array:
        """How many places each key is before each query, int32 [Q, K]; with a cache places are its slots."""
        first = 0 if self.cache_index is None else self.cache_index
        return (first + jnp.arange(queries))[:, None] - jnp.arange(keys)

    def _padding_and_segments(self) -> list[jax.Array]:
        dense = []
        if self.mask is not None:
            dense.append(self.mask[:, None, None, :] != 0)
        if self.segment_ids is not None:
            of_queries, of_keys = self.segment_ids
            dense.append(of_queries[:, None, :, None] == of_keys[:, None, None, :])
        return dense


def platform() -> str:
    """Where what is traced will run: `tpu`, `cuda` or what else jax calls a device.

    The mesh in force says it: a host may compile for devices that it does not have.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]
    return "cuda" if device.platform == "gpu" and "nvidia" in device.device_kind.lower() else device.platform


def choose(
    setting: str,
    platform: str,
    *,
    dtype: Any,
    head_dim: int,
    queries: int,
    keys: int,
    bias: bool = False,
    of_text: bool = False,
    dense: bool = False,
    prefix: bool = False,
    dropout: bool = False,
    windows: bool = False,
) -> tuple[str, str]:
    """(the kernel, what speaks against the one that was asked for, or "").

    Args:
      setting: `settings.Transformer.attention_kernel`; `auto` asks for the platform's own.
      platform: as `platform` gives it.
      dtype: of queries, keys and values.
      bias: whether something is added to the scores.
      of_text: whether that depends on queries and keys.
      dense: whether there is padding, or segments.
      prefix: whether some keys are seen by all queries of a causal stack.
      dropout: whether attention weights are dropped.
      windows: whether some layers see near keys only.
    """
    wanted = {"tpu": "splash", "cuda": "cudnn"}.get(platform, "xla") if setting == "auto" else setting
    obstacles = {
        "xla": {},
        "splash": {
            "splash adds no bias to scores": bias,
            "splash drops no attention weights": dropout,
            "splash knows no prefix": prefix,
        },
        # Limits of jax's cuDNN attention (jax/_src/cudnn/fused_attention_stablehlo.py); 128 holds before Hopper too.
        "cudnn": {
            f"cudnn needs an NVIDIA GPU, not a {platform}": platform != "cuda",
            f"cudnn computes in bfloat16, not {jnp.dtype(dtype)}": dtype not in (jnp.bfloat16, jnp.float16),
            f"cudnn takes a head_dim of 8 to 128 in eights, not {head_dim}": head_dim % 8 != 0 or head_dim > 128,
            f"cudnn takes a bias or mask of even lengths, not {queries} and {keys}": (
                (bias or dense or prefix) and (queries % 2 or keys % 2)
            ),
            "cudnn takes a bias that is the same for all texts": of_text,
            "jax's cudnn drops no attention weights": dropout,
            "here cudnn sees alike in all layers, it takes no windows": windows,
        },
    }[wanted]
    reasons = [reason for reason, holds in obstacles.items() if holds]
    if reasons:
        return "xla", "; ".join(reasons)
    return wanted, "interpreted, slow: there is no TPU" if wanted == "splash" and platform != "tpu" else ""


def pick(
    name: str, model: settings.Transformer, context: Context, dtype: Any, queries: int, keys: int, dropout: bool
) -> str:
    """The kernel of an attention, which the log names: a warning where something speaks against the wanted one."""
    kernel, reason = choose(
        model.attention_kernel,
        platform(),
        dtype=dtype,
        head_dim=model.attention.head_dim,
        queries=queries,
        keys=keys,
        bias=context.bias is not None,
        of_text=callable(context.bias),
        dense=context.mask is not None or context.segment_ids is not None,
        prefix=context.prefix_lengths is not None,
        dropout=dropout,
        windows=bool(context.windows),
    )
    if reason:
        logger.warning("%s: kernel %s (%s)", name, kernel, reason)
    else:
        logger.info("%s: kernel %s", name, kernel)
    return kernel


def attend(query_BNQH, key_BGKH, value_BGKH, context: Context, drop, depth: jax.Array | int = 0) -> jax.Array:
    """softmax(query · key + bias) · value over the keys that each query sees: [B, N, Q, H].

    A query that sees none gets some mean of the values: of no use, but finite, and so are its gradients.

    Args:
      query_BNQH: scaled already.
      context: with a kernel.
      drop: the dropout of attention weights, a function of [B, N, Q, K]; only `xla` applies it.
      depth: the layer's number, from 0, which chooses its window.
    """
    if context.kernel == "xla":
        return _xla(query_BNQH, key_BGKH, value_BGKH, context, drop, depth)
    if context.kernel == "cudnn":
        return _cudnn(query_BNQH, key_BGKH, value_BGKH, context)
    # What a kernel sees is settled when it is compiled: one for each window.
    splash = [functools.partial(_splash, context=context, window=window) for window in context.windows or (0,)]
    return jax.lax.switch(depth % len(splash), splash, query_BNQH, key_BGKH, value_BGKH)


def _xla(query_BNQH, key_BGKH, value_BGKH, context, drop, depth):
    batch, heads, queries, head_dim = query_BNQH.shape
    groups, keys = key_BGKH.shape[1:3]
    # The heads of a group are so many more queries of its keys.
    query_BGRH = query_BNQH.reshape(batch, groups, -1, head_dim)
    scores_BGRK = jnp.einsum("bgrh,bgkh->bgrk", query_BGRH, key_BGKH, preferred_element_type=jnp.float32)
    scores_BNQK = scores_BGRK.reshape(batch, heads, queries, keys)
    if context.bias is not None:
        bias = context.bias(query_BNQH, key_BGKH) if callable(context.bias) else context.bias
        scores_BNQK = scores_BNQK + bias
    if context.visible is not None:
        scores_BNQK = jnp.where(context.visible, scores_BNQK, jnp.finfo(jnp.float32).min)
    if context.windows:
        window = jnp.array(context.windows)[depth % len(context.windows)]
        near = (jnp.abs(context.places_back(queries, keys)) < window) | (window == 0)
        scores_BNQK = jnp.where(near, scores_BNQK, jnp.finfo(jnp.float32).min)
    weights_BNQK = drop(jax.nn.softmax(scores_BNQK, axis=-1).astype(query_BNQH.dtype))
    weights_BGRK = weights_BNQK.reshape(batch, groups, -1, keys)
    return jnp.einsum("bgrk,bgkh->bgrh", weights_BGRK, value_BGKH).reshape(query_BNQH.shape)


def _cudnn(query_BNQH, key_BGKH, value_BGKH, context):
    # A prefix is in the dense mask, and causality with it.
    causal = context.causal and context.prefix_lengths is None

    def kernel(*query_key_value, visible, bias):
        query_BQNH, key_BKGH, value_BKGH = (x.swapaxes(1, 2) for x in query_key_value)
        mixed_BQNH = jax.nn.dot_product_attention(
            query_BQNH, key_BKGH, value_BKGH, bias, visible, scale=1.0, is_causal=causal, implementation="cudnn"
        )
        return mixed_BQNH.swapaxes(1, 2)

    bias = None if context.bias is None else context.bias.astype(query_BNQH.dtype)
    axes = {"visible": ("batch", None), "bias": (None, "heads")}
    return _over_mesh(kernel, axes, query_BNQH, key_BGKH, value_BGKH, visible=context.visible, bias=bias)


def _splash(query_BNQH, key_BGKH, value_BGKH, context, window):
    # Imported here: Pallas takes a second, and only TPUs (and tests, interpreted) need it.
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    queries, keys = query_BNQH.shape[2], key_BGKH.shape[2]
    shape = tuple(length + -length % TILES[-1] for length in (queries, keys))
    query_tile, key_tile = (next(tile for tile in TILES if length % tile == 0) for length in shape)
    tiles = splash.BlockSizes(
        **dict.fromkeys(("block_q", "block_q_dkv", "block_q_dq"), query_tile),
        **dict.fromkeys(("block_kv", "block_kv_compute"), key_tile),
        **dict.fromkeys(("block_kv_dkv", "block_kv_dkv_compute", "block_kv_dq"), key_tile),
    )
    if window:
        mask = splash.LocalMask(shape, (window - 1, 0 if context.causal else window - 1), offset=0)
    else:
        mask = splash.CausalMask(shape) if context.causal else splash.FullMask(shape)
    interpret = platform() != "tpu"

    def kernel(query, key, value, query_ids, key_ids):
        one_row = splash.make_splash_mha(
            splash.MultiHeadMask([mask] * query.shape[1]),
            block_sizes=tiles,
            head_shards=1,
            q_seq_shards=1,
            residual_checkpoint_name=RESIDUALS,
            interpret=interpret,
        )
        ids = None if query_ids is None else splash.SegmentIds(query_ids, key_ids)
        return jax.vmap(one_row)(query, key, value, ids)

    query, key, value = (
        jnp.pad(x, ((0, 0), (0, 0), (0, length - x.shape[2]), (0, 0)))
        for x, length in ((query_BNQH, shape[0]), (key_BGKH, shape[1]), (value_BGKH, shape[1]))
    )
    query_ids, key_ids = _splash_ids(context, query_BNQH.shape[0], queries, keys, shape)
    axes = {"query_ids": ("batch",), "key_ids": ("batch",)}
    return _over_mesh(kernel, axes, query, key, value, query_ids=query_ids, key_ids=key_ids)[:, :, :queries]


def _splash_ids(context, batch, queries, keys, shape):
    """Segments and padding in one: ids of the queries and of the keys, equal where they see each other; -1: unseen."""
    if context.mask is None and context.segment_ids is None and (context.causal or keys == shape[1]):
        return None, None
    one_segment = jnp.zeros((batch, queries), jnp.int32), jnp.zeros((batch, keys), jnp.int32)
    query_ids, key_ids = one_segment if context.segment_ids is None else context.segment_ids
    if context.mask is not None:
        key_ids = jnp.where(context.mask != 0, key_ids, -1)
    widths = [((0, 0), (0, wanted - length)) for wanted, length in zip(shape, (queries, keys), strict=True)]
    return jnp.pad(query_ids, widths[0]), jnp.pad(key_ids, widths[1], constant_values=-1)


def _over_mesh(kernel, axes, query, key, value, **arrays):
    """`kernel(query, key, value, **arrays)`, each device of the mesh in force on its own rows and heads.

    The compiler cannot cut a kernel up by itself. `axes` are the leading logical axes of each further array.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return kernel(query, key, value, **arrays)
    # Of the keys: where their groups do not divide, the queries' heads are left whole too.
    spec = partition_spec(key.shape, ("batch", "heads", None, None), nn.get_logical_axis_rules(), dict(mesh.shape))
    placed = {"batch": spec[0], "heads": spec[1], None: None}
    further = {name: PartitionSpec(*(placed[axis] for axis in axes[name])) for name in arrays}
    run = jax.shard_map(
        lambda arrays, *query_key_value: kernel(*query_key_value, **arrays),
        in_specs=(further, spec, spec, spec),
        out_specs=spec,
        check_vma=False,  # Pallas kernels do not say over which axes their results vary.
    )
    return run(arrays, query, key, value)
