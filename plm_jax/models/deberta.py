"""DeBERTa's additions to a stack: a convolution after the first layer, and the enhanced mask decoder.

Sources: He et al. 2021 (arXiv:2006.03654) §3.2; microsoft/DeBERTa, DeBERTa/deberta/bert.py (`ConvLayer`) and
DeBERTa/apps/models/masked_language_model.py (`EnhancedMaskDecoder`).
"""

import itertools
from dataclasses import dataclass
from typing import Annotated, Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.models.kernels import Context
from plm_jax.models.layers import ACTIVATIONS, Activation, Dense, Dropout, Stream, look_up, norm
from plm_jax.models.positions import Table
from plm_jax.models.stack import Stack
from plm_jax.models.transformer import TransformerConfig


@dataclass(frozen=True)
class ConvolutionConfig:
    """A convolution over the embeddings; the result is added to the output of the first layer (DeBERTa-v2 xlarge).

    Attributes:
      width: width of the convolution in positions; must be odd.
      activation: activation of the convolution.
    """

    width: Annotated[int, ranges.Range(1, 63)] = 3
    activation: Activation = "gelu_exact"

    def __post_init__(self):
        if self.width % 2 == 0:
            raise UserError(f"model.convolution.width is {self.width}: set it to an odd number")


class Convolution(nn.Module):
    """A convolution over positions; the parameters are `dense` [D · width, D] and `norm`."""

    model: TransformerConfig
    config: ConvolutionConfig
    dtype: Any

    @nn.compact
    def __call__(self, embedded: Stream, x: Stream, context: Context, *, deterministic: bool) -> Stream:
        """Returns norm(x + activation(dropout(convolution(embedded)))), [B, L, D], with 0 at padding.

        The convolution reads 0 in place of padding and of tokens of other segments.

        Args:
          embedded: input of the stack [B, L, D].
          x: output of the first layer [B, L, D].
        """
        real = _real(context, embedded)
        half, length = self.config.width // 2, embedded.shape[1]
        padded = jnp.pad(jnp.where(real[..., None], embedded, 0), ((0, 0), (half, half), (0, 0)))
        neighbors = jnp.stack([padded[:, shift : shift + length] for shift in range(self.config.width)], axis=-1)
        if context.segment_ids is not None:
            neighbors = jnp.where(_shares_segment(context.segment_ids[0], half)[:, :, None], neighbors, 0)
        axes, init = (None, "embed"), self.model.initializer.matrix()
        mixed = Dense(embedded.shape[2], axes, True, init, self.dtype, name="dense")(
            neighbors.reshape(*embedded.shape[:2], -1)
        )
        dropout = Dropout(self.model.dropout.residual, self.model.dropout.broadcast)
        mixed = dropout(jnp.where(real[..., None], mixed, 0), context.rows, deterministic=deterministic)
        output = norm(self.model.norm, self.dtype, name="norm")(x + ACTIVATIONS[self.config.activation](mixed))
        return jnp.where(real[..., None], output, 0)


def _real(context: Context, x: Stream) -> Bool[Array, "batch length"]:
    """Returns whether each token is not padding. With a mask [B, Q, L], a token is padding if no query sees it."""
    mask = jnp.ones(x.shape[:2], jnp.int32) if context.mask is None else context.mask
    return (mask if mask.ndim == 2 else mask.max(axis=1)) != 0


def _shares_segment(segment_ids, half):
    """Returns whether each token shares a segment with each neighbor at distance up to `half`, [B, L, 2 half + 1]."""
    padded, length = jnp.pad(segment_ids, ((0, 0), (half, half)), constant_values=-1), segment_ids.shape[1]
    return jnp.stack([padded[:, shift : shift + length] == segment_ids for shift in range(2 * half + 1)], axis=-1)


class DebertaStack(Stack):
    """A stack with a convolution, a mask decoder, or both.

    The mask decoder applies the last layer twice. Both times, keys and values come from the output of the layer before
    it. The first time, queries come from the same output plus embeddings of absolute positions. The second time,
    queries come from the result of the first time.

    Attributes:
      convolution: the convolution after the first layer; None: no convolution.
      positions: number of absolute positions of the mask decoder; 0: no mask decoder.
    """

    convolution: ConvolutionConfig | None = None
    positions: int = 0

    @override
    def setup(self):
        """Creates the parameters of `Stack`, and those of the convolution and of the mask decoder.

        The convolution is the module `convolve`. The mask decoder has a table `position_embedding` [positions, D].
        """
        super().setup()
        if self.convolution is not None:
            self.convolve = Convolution(self.model, self.convolution, self.dtype)
        if self.positions:
            shape = self.positions, self.model.embedding.width
            table = Table(shape, ("positions", "embed"), self.model.initializer.table())
            self.position_embedding = table.declare(self, "position_embedding")

    @override
    def __call__(self, x, context, memory=None, memory_context=None, *, deterministic):
        depth, hidden, embedded = self.model.stack.layers, [], x
        last = depth - 1 if self.positions else depth
        # Layers between which nothing happens are computed in one loop, unless the outputs of all are needed.
        wants_hidden = self.is_mutable_collection("intermediates")
        bounds = range(last + 1) if wants_hidden else sorted({0, min(1, last), last})
        for first, end in itertools.pairwise(bounds):
            x = self.layers(x, context, first, end, deterministic=deterministic)
            if first == 0 and self.convolution is not None:
                x = self.convolve(embedded, x, context, deterministic=deterministic)
            hidden.append(x)
        if self.positions:
            queries = x + look_up(self.position_embedding, context.positions, x.dtype, len(x))
            for _ in range(2):
                queries = self.layers(queries, context, last, depth, source=x, deterministic=deterministic)
            x = queries
            hidden.append(x)
        self.sow("intermediates", "hidden", jnp.stack(hidden) if wants_hidden else None)
        return self.finish(x, deterministic=deterministic)
