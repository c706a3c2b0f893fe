"""Attention: its masks and biases (`context`), the choice of a kernel (`choice`), and the kernels.

`plain` is compiled by XLA and supports everything. The other kernels are flash attention, which never stores all
scores: `tpu` (Pallas), `gpu` (Pallas with Triton) and `cudnn` (NVIDIA's library). `plain`, `tpu` and `gpu` draw equal
dropout masks (module `dropout`). Attention with dropout never uses `cudnn`.

Shapes: B batch, Q queries, K keys, N heads, G groups (key/value heads; each serves N / G consecutive heads), H
head_dim. Softmax is computed in float32.
"""

from plm_jax.models.kernels.choice import choose, pick, platform, resolve
from plm_jax.models.kernels.context import RESIDUALS, Context

__all__ = ["RESIDUALS", "Context", "choose", "pick", "platform", "resolve"]
