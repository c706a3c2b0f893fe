"""Which kernel computes an attention: the device's own wherever it can."""

import logging
from typing import Any

import jax.numpy as jnp

from plm_jax.models import partitioning
from plm_jax.models.kernels.context import Context
from plm_jax.models.kernels.over_mesh import cuts_queries

logger = logging.getLogger(__name__)

# What `attention_kernel=auto` tries, by platform, the first that can; XLA takes everything.
PREFERRED = {"tpu": ("flash",), "cuda": ("cudnn", "flash")}


def platform(device: Any = None) -> str:
    """Returns the platform of a device: `tpu`, `cuda` or JAX's name for another; None: that of the mesh in force."""
    device = device or partitioning.device()
    return "cuda" if device.platform == "gpu" and "nvidia" in device.device_kind.lower() else device.platform


def resolve(setting: str, platform: str) -> str:
    """Returns a setting for a platform: its kernel in place of `auto`, unless it has several to choose from."""
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
    cut: bool = False,
) -> tuple[str, str]:
    """(the kernel, what speaks against the one that was asked for, or "").

    Args:
      setting: `TransformerConfig.attention_kernel`; `auto` asks for the platform's own.
      platform: as `platform` gives it.
      dtype: of queries, keys and values.
      distance_bias: whether something that depends on distances alone is added to the scores.
      bias: whether something else is.
      dense: whether there is padding, or segments.
      prefix: whether some keys are seen by all queries of a causal stack.
      dropout: whether attention weights are dropped.
      windows: whether some layers see near keys only.
      cut: whether devices share the queries of a row.
    """
    obstacles = {
        "xla": {},
        "flash": {
            "flash adds to scores what depends on distances alone, not this bias": bias,
            f"flash takes a head_dim in eights, not {head_dim}": head_dim % 8 != 0,
        },
        # Limits of jax's cuDNN attention (jax/_src/cudnn/fused_attention_stablehlo.py); 128 holds before Hopper too.
        "cudnn": {
            f"cudnn needs an NVIDIA GPU, not a {platform}": platform != "cuda",
            f"cudnn computes in bfloat16, not {jnp.dtype(dtype)}": dtype not in (jnp.bfloat16, jnp.float16),
            f"cudnn takes a head_dim of 8 to 128 in eights, not {head_dim}": head_dim % 8 != 0 or head_dim > 128,
            f"cudnn takes masks of even lengths, not {queries} and {keys}": (
                (dense or prefix) and (queries % 2 or keys % 2)
            ),
            "cudnn would hold a bias of all scores": bias or distance_bias,
            # Its seed is in the program's text and its offset in the process: a resume would drop others.
            "cudnn's dropout does not repeat": dropout,
            "here cudnn sees alike in all layers, it takes no windows": windows,
            "here cudnn computes all queries of a row on each device": cut,
        },
    }
    preferred = PREFERRED.get(platform, ("xla",))
    wanted = preferred if setting == "auto" else (setting, *preferred)
    reasons = {name: [reason for reason, holds in obstacles[name].items() if holds] for name in (*wanted, "xla")}
    kernel = next(name for name, against in reasons.items() if not against)
    if setting == "auto":
        # That one kernel of a platform leaves something to another is no news; that none serves is.
        return kernel, "" if kernel in preferred else "; ".join(reasons[preferred[-1]])
    if kernel == "flash" and platform not in PREFERRED:
        return kernel, "interpreted, slow: there is no TPU and no NVIDIA GPU"
    return kernel, "; ".join(reasons[setting])


def pick(
    name: str, setting: str, context: Context, *, dtype: Any, head_dim: int, groups: int, queries: int, keys: int
) -> str:
    """The kernel of an attention, which the log names: a warning where something speaks against the wanted one."""
    kernel, reason = choose(
        setting,
        platform(),
        dtype=dtype,
        head_dim=head_dim,
        queries=queries,
        keys=keys,
        distance_bias=context.distance_bias is not None,
        bias=context.bias is not None,
        dense=context.mask is not None or context.segment_ids is not None,
        prefix=context.prefix_lengths is not None,
        dropout=context.dropout > 0,
        windows=bool(context.windows),
        cut=cuts_queries(groups, queries),
    )
    if reason:
        logger.warning("%s: kernel %s (%s)", name, kernel, reason)
    else:
        logger.info("%s: kernel %s", name, kernel)
    return kernel
