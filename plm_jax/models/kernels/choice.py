"""The choice of a kernel for an attention: the device's own if it supports the attention."""

import logging
from typing import Any

import jax.numpy as jnp

from plm_jax.models import partitioning
from plm_jax.models.kernels.context import Context
from plm_jax.models.kernels.over_mesh import shards_queries

logger = logging.getLogger(__name__)

# Kernels that `attention_kernel=auto` tries, by platform; XLA is the fallback.
PREFERRED = {"tpu": ("flash",), "cuda": ("cudnn", "flash")}


def platform(device: Any = None) -> str:
    """Returns the platform of a device, by default of the current mesh: `tpu`, `cuda` or JAX's name for another."""
    device = device or partitioning.device()
    return "cuda" if device.platform == "gpu" and "nvidia" in device.device_kind.lower() else device.platform


def resolve(setting: str, platform: str) -> str:
    """Returns the setting for a platform: `auto` is replaced by its kernel, unless the platform has several."""
    preferred = PREFERRED.get(platform, ("xla",))
    return preferred[0] if setting == "auto" and len(preferred) == 1 else setting


def choose(
    setting: str,
    platform: str,
    *,
    dtype: Any,
    head_dim: int,
    queries: int,
    keys: int,
    distance_bias: bool = False,
    bias: bool = False,
    dense: bool = False,
    prefix: bool = False,
    dropout: bool = False,
    windows: bool = False,
    by_query: bool = False,
    cut: bool = False,
) -> tuple[str, str]:
    """Returns the kernel, and the reason why it is not the requested one, or "".

    Args:
      setting: `TransformerConfig.attention_kernel`; `auto` requests the best kernel of the platform.
      platform: result of `platform`.
      dtype: dtype of queries, keys and values.
      distance_bias, bias: whether scores have a bias by distance or `RelativeScores`, or another bias.
      dense: whether there is padding, or segments.
      prefix: whether a causal stack has a prefix that all queries attend to.
      dropout: whether attention weights are dropped.
      windows, cut: whether some layers have a window, and whether the queries of a row are sharded over devices.
      by_query: whether each query has a mask of its own.
    """
    flash = {
        "flash supports only a bias that depends on distances": bias,
        "flash does not support a mask for each query": by_query,
        f"flash needs a head_dim divisible by 8, not {head_dim}": head_dim % 8 != 0,
    }
    # Limits of jax's cuDNN attention (jax/_src/cudnn/fused_attention_stablehlo.py); 128 holds before Hopper too.
    cudnn = {
        f"cudnn needs an NVIDIA GPU, not a {platform}": platform != "cuda",
        f"cudnn needs bfloat16 or float16, not {jnp.dtype(dtype)}": dtype not in (jnp.bfloat16, jnp.float16),
        f"cudnn needs a head_dim divisible by 8 and at most 128, not {head_dim}": head_dim % 8 != 0 or head_dim > 128,
        f"cudnn needs masks of even lengths, not {queries} and {keys}": (
            (dense or prefix) and (queries % 2 or keys % 2)
        ),
        "cudnn would hold a bias of all scores in memory": bias or distance_bias,
        # Its seed is part of the program and its offset of the process, so a resumed run would drop other weights.
        "dropout of cudnn is not reproducible": dropout,
        "windows are not implemented for cudnn": windows,
        "sharding of queries is not implemented for cudnn": cut,
    }
    obstacles = {"xla": {}, "flash": flash, "cudnn": cudnn}
    reasons = {name: [reason for reason, holds in checks.items() if holds] for name, checks in obstacles.items()}
    preferred = PREFERRED.get(platform, ("xla",))
    candidates = preferred if setting == "auto" else (setting, *preferred)
    kernel = next((name for name in candidates if not reasons[name]), "xla")
    if setting == "auto":
        # Falling back from one kernel of a platform to another needs no reason.
        return kernel, "" if kernel in preferred else "; ".join(reasons[preferred[-1]])
    if kernel == "flash" and platform not in PREFERRED:
        return kernel, "interpreted and slow: there is no TPU or NVIDIA GPU"
    return kernel, "; ".join(reasons[setting])


def pick(
    name: str,
    setting: str,
    context: Context,
    *,
    dtype: Any,
    head_dim: int,
    groups: int,
    queries: int,
    keys: int,
    layer_bias: bool,
) -> str:
    """Returns the kernel of an attention and logs it, as a warning if it is not the requested one.

    `layer_bias` is whether layers will add their own biases to the scores; the other arguments are those of `choose`.
    """
    kernel, reason = choose(
        setting,
        platform(),
        dtype=dtype,
        head_dim=head_dim,
        queries=queries,
        keys=keys,
        distance_bias=context.distance_bias is not None or context.relative is not None,
        bias=context.bias is not None or layer_bias,
        dense=any(each is not None for each in (context.mask, context.segment_ids, context.order)),
        prefix=context.prefix_lengths is not None,
        dropout=context.dropout > 0,
        windows=bool(context.windows),
        by_query=context.mask is not None and context.mask.ndim == 3,
        cut=shards_queries(groups, queries),
    )
    if reason:
        logger.warning("%s uses the %s kernel (%s)", name, kernel, reason)
    else:
        logger.info("%s uses the %s kernel", name, kernel)
    return kernel
