"""Choice of the attention kernel: the requested kernel, a preferred kernel of the platform, or XLA.

The first of these kernels that supports the attention is chosen.
"""

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
    """Returns `cuda` for an NVIDIA GPU, otherwise JAX's name of the platform, such as `tpu` or `cpu`.

    Args:
      device: the device; None: a device of the current mesh or, without a mesh, the first JAX device.
    """
    device = device or partitioning.device()
    return "cuda" if device.platform == "gpu" and "nvidia" in device.device_kind.lower() else device.platform


def resolve(setting: str, platform: str) -> str:
    """Resolves the setting `auto` to the preferred kernel of a platform, or to `xla` if the platform has none.

    If the platform has several preferred kernels, `auto` is returned unchanged, and so is any other setting.
    """
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
    """Returns a kernel's name, and a warning if this is not the requested kernel or is interpreted, otherwise "".

    Args:
      setting: `TransformerConfig.attention_kernel`; `auto` requests any of the preferred kernels of the platform.
      dtype: dtype of queries, keys and values.
      distance_bias: whether scores have a bias by distance, or a bias that each layer adds.
      bias: whether scores have any other bias.
      dense: whether the attention has a mask, segments or an order of prediction.
      prefix: whether a causal stack has a prefix that all queries attend to.
      windows: whether some layers have a window.
      by_query: whether each query has its own mask.
      cut: whether the queries of a row are sharded over devices.
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
    adds_bias: bool,
    expanded: bool,
) -> str:
    """Selects the kernel of an attention with `choose`, logs it, and returns its name.

    The log message is a warning if `choose` returns a warning. The arguments not listed here are those of `choose`.

    Args:
      name: name of the attention in the log.
      context: masks and biases of the attention.
      groups: number of key/value heads.
      adds_bias: whether each layer adds a bias, which is not in `context` yet.
      expanded: whether the bias of the layers must be expanded to all scores.
    """
    kernel, reason = choose(
        setting,
        platform(),
        dtype=dtype,
        head_dim=head_dim,
        queries=queries,
        keys=keys,
        distance_bias=context.distance_bias is not None or adds_bias,
        bias=context.bias is not None or expanded,
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
