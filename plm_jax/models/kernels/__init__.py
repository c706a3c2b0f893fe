"""Attention: what its queries see (`context`), which kernel computes it (`choice`), and the kernels.

`plain` is written out for XLA and takes everything. `tpu` (Pallas) and `gpu` (Pallas, Triton) are one flash attention
on two kinds of devices, `cudnn` is NVIDIA's own: they never hold all scores, and leave out what nobody sees. What is
dropped (`dropout`) is the same in all.

Shapes: B batch, Q queries, K keys, N heads, G groups (key/value heads; each serves N / G heads in a row), H head_dim.
Softmax runs in float32.
"""

from plm_jax.models.kernels.choice import choose, pick, platform, resolve
from plm_jax.models.kernels.context import RESIDUALS, Context

__all__ = ["RESIDUALS", "Context", "choose", "pick", "platform", "resolve"]
