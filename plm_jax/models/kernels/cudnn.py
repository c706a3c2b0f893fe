"""Attention by NVIDIA's cuDNN."""

import jax
from jaxtyping import Array, Bool, Float

from plm_jax.common.errors import UserError, one_line


def attend(
    query_BNQH: Float[Array, "batch heads queries head_dim"],
    key_BGKH: Float[Array, "batch groups keys head_dim"],
    value_BGKH: Float[Array, "batch groups keys head_dim"],
    *,
    causal: bool,
    visible: Bool[Array, "rows 1 queries keys"] | None = None,
) -> Float[Array, "batch heads queries head_dim"]:
    """Returns the attention [B, N, Q, H] of the rows and heads of one device.

    Args:
      query_BNQH: scaled queries.
      causal: whether each query attends only to keys up to its own position.
      visible: bool [B or 1, 1, Q, K], an additional mask; None: no additional mask.

    Raises:
      UserError: jax reports that it finds no cuDNN that it can use.
    """
    query_BQNH, key_BKGH, value_BKGH = (x.swapaxes(1, 2) for x in (query_BNQH, key_BGKH, value_BGKH))
    try:
        mixed_BQNH = jax.nn.dot_product_attention(
            query_BQNH,
            key_BKGH,
            value_BKGH,
            mask=visible,
            scale=1.0,
            is_causal=causal,
            implementation="cudnn",
        )
    except RuntimeError as error:
        if "cudnn" not in str(error).lower():
            raise
        raise UserError(
            f"jax finds no cuDNN that it can use ({one_line(error)}): pip install nvidia-cudnn-cu13, or set "
            "config.model.attention_kernel=flash"
        ) from error
    return mixed_BQNH.swapaxes(1, 2)
