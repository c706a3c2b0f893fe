"""Attention: its masks and biases (`context`), the choice of a kernel (`choice`), and the kernels.

`plain` is XLA and supports everything. `tpu` (Pallas) and `gpu` (Pallas, Triton) are flash attention for two kinds of
devices, `cudnn` is NVIDIA's: they never hold all scores, and skip tiles that are not visible. Dropout masks (`dropout`)
are the same in all kernels but `cudnn`, which is not used with dropout.

Shapes: B batch, Q queries, K keys, N heads, G groups (key/value heads; each serves N / G consecutive heads), H
head_dim. Softmax is computed in float32.
"""

from plm_jax.models.kernels.choice import choose, pick, platform, resolve
from plm_jax.models.kernels.context import RESIDUALS, Context

__all__ = ["RESIDUALS", "Context", "choose", "pick", "platform", "resolve"]
