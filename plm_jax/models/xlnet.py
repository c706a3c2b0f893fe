"""XLNet (Yang et al. 2019): an encoder with a second stream of queries, and with a memory of earlier batches.

Shapes: B batch, L length, T targets, Q = L + T queries, M length of the memory, K = M + L keys, D width.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer, Shaped
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.models.encoder import Encoder, EncoderConfig
from plm_jax.models.heads import MaskDecoderHead, NoHead
from plm_jax.models.kernels import Context
from plm_jax.models.kernels.context import FIRST
from plm_jax.models.layers import Stream
from plm_jax.models.partitioning import constrain
from plm_jax.models.positions import Table
from plm_jax.models.stack import Block, Stack, loop, recomputed

Memory = Float[Array, "batch layers memory dim"]


@dataclass(frozen=True, kw_only=True)
class XlnetConfig(EncoderConfig):
    """An encoder with two streams: the content of all tokens, and queries, which predict targets without reading them.

    A model that is fine-tuned for a task has only the content stream, and no memory.

    Attributes:
      memory_length: number of positions that each layer remembers from earlier batches; 0: no memory. A loss such as
        `permutation_lm` passes the memory from batch to batch.
      reuse_length: number of tokens at the start of each row that the memory stores; 0: all tokens.
      causal: whether tokens attend only to themselves, earlier tokens and the memory (`attn_type` "uni", as in
        Transformer-XL).
      reverses_half: whether the rows in the second half of a batch contain text that runs backward (`bi_data`). The
        distances between tokens of these rows are then negated. Ignored if the batch has `positions`.
    """

    kind: ClassVar[str] = "xlnet"
    architecture: ClassVar[str] = "xlnet"
    inputs = (*EncoderConfig.inputs, "order", "target_positions")
    discriminator: NoHead = NoHead()
    span_boundary: NoHead = NoHead()
    memory_length: ranges.LengthOrZero = 0
    reuse_length: ranges.LengthOrZero = 0
    causal: bool = False
    reverses_half: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.stack.stored_blocks < self.stack.blocks:
            raise UserError("a model of kind 'xlnet' needs layers that share no parameters: leave out stack.groups")
        if self.embedding.token_types or not self.attention.position.has_layer_bias:
            raise UserError(
                "a model of kind 'xlnet' has positions and segments in its attention scores only: leave out "
                "embedding.token_types, and set attention.position.kind to relative_sinusoids"
            )
        if self.convolution is not None or isinstance(self.head, MaskDecoderHead):
            raise UserError("a model of kind 'xlnet' has no convolution and no mask decoder: leave them out")

    @property
    @override
    def token_types(self) -> int:
        """Number of token types: one for each of two texts, and one for the classification token.

        The number is 0 if scores do not depend on segments.
        """
        return 3 if getattr(self.attention.position, "segments", False) else self.embedding.token_types

    @property
    @override
    def has_stages(self):
        return isinstance(self.head, NoHead)  # Only the content stream is split.

    @override
    def with_task(self, head):
        model = dataclasses.replace(self, memory_length=0, reuse_length=0, reverses_half=False)
        return super(XlnetConfig, model).with_task(head)

    @override
    def module(self, dtype):
        """Returns an `Xlnet`."""
        return Xlnet(self, dtype)

    @override
    def new_carry(self, rows):
        """Returns a `memory` of zeros [rows, layers, M, D]; empty if `memory_length` is 0."""
        if not self.memory_length:
            return {}
        memory = jnp.zeros((rows, self.stack.blocks, self.memory_length, self.embedding.width))
        return {"memory": nn.LogicallyPartitioned(memory, ("batch", "layers", None, "embed"))}

    @override
    def macs(self, length, targets, decoder_length=0, samples=0):
        """Counts the operations of both streams and of the heads.

        In a causal model, attention to the tokens counts half; attention to the memory, and the products of the
        position scheme, count in full.
        """
        width, joined = self.embedding.width, self.attention.heads * self.attention.head_dim
        queries = length + (0 if isinstance(self.head, NoHead) else targets)
        keys, position = length + self.memory_length, self.attention.position
        products = (3 if self.feed_forward.gated else 2) * width * self.feed_forward.width * queries
        attended = self.memory_length + length / (2 if self.causal else 1)
        products += 2 * joined * (width * (queries + keys) + queries * attended)
        products += position.macs(queries, keys, joined)
        return self.stack.blocks * products + self.projection_macs(length) + self.heads_macs(length, targets)


class TwoStreamStack(Stack):
    """A stack for the tokens of a row and additional queries. Keys come from the tokens and from a memory."""

    model: XlnetConfig

    def through(
        self,
        x: Stream,
        context: Context,
        length: int,
        memory: Memory | None = None,
        *,
        deterministic: bool,
    ) -> tuple[Stream, Memory | None]:
        """Returns a pair: the output [B, Q, D], and the memory after this batch or None. Sows no `hidden`.

        Args:
          x: [B, Q, D], the L tokens of each row followed by the queries at the targets, if there are any.
          context: context of the self-attention, with the positions of Q queries and K keys.
          length: number of tokens L; the first L positions of `x` are also keys.
          memory: [B, layers, M, D], inputs of the layers in earlier batches; None: no memory.
          deterministic: whether dropout is disabled.
        """
        model = self.model
        remembered = model.reuse_length or length

        def keys_of(x, memory):
            tokens = x[:, :length]
            return tokens if memory is None else jnp.concatenate([memory.astype(x.dtype), tokens], axis=1)

        by_layer = None if memory is None else jnp.moveaxis(jax.lax.stop_gradient(memory), 1, 0)
        like_source = keys_of(x, None if by_layer is None else by_layer[0])
        self._check_source(x, context, like_source)
        context = self._with_kernel("attention", context, x, like_source, deterministic)
        context = self._prepare(context, x, like_source)
        block = Block(model, self.dtype, deterministic, parent=None)
        keys = None if deterministic else jax.random.split(self.make_rng("dropout"), model.stack.blocks)

        def apply(x, one):
            params, (depth, memory, key) = one
            rngs = None if key is None else {"dropout": key}
            output = block.apply({"params": params}, x, depth, context, keys_of(x, memory), rngs=rngs)
            if memory is None:
                return output, None
            inputs = jax.lax.stop_gradient(x[:, :remembered]).astype(memory.dtype)
            return output, jnp.concatenate([memory, inputs], axis=1)[:, -memory.shape[1] :]

        layers = self._block_params(), (jnp.arange(model.stack.blocks), by_layer, keys)
        x, after = loop(model.scan_layers)(recomputed(apply, model.remat, model.scan_layers), x, layers)
        return self.finish(x, deterministic=deterministic), None if memory is None else jnp.moveaxis(after, 0, 1)


class Xlnet(Encoder):
    """The model of `XlnetConfig`."""

    stack_class = TwoStreamStack
    model: XlnetConfig

    def setup(self):
        """Creates the modules of `Encoder`, and `query_embedding` [D], the initial query of every target."""
        super().setup()
        table = Table((self.model.embedding.width,), ("embed",), self.model.initializer.table())
        self.query_embedding = table.declare(self, "query_embedding")

    @override
    def features(self, tokens, *inputs, deterministic=True, **named_inputs):
        """Returns the features that `streams` computes without a memory."""
        return self.streams({}, tokens, *inputs, deterministic=deterministic, **named_inputs)[0]

    def streams(
        self,
        carry: dict[str, Any],
        tokens: Integer[Array, "batch length"],
        mask: Shaped[Array, "batch length"] | None = None,
        token_types: Integer[Array, "batch length"] | None = None,
        positions: Integer[Array, "rows length"] | None = None,
        segment_ids: Integer[Array, "batch length"] | None = None,
        order: Integer[Array, "batch length"] | None = None,
        target_positions: Integer[Array, "batch targets"] | None = None,
        *,
        deterministic: bool = True,
    ) -> tuple[Float[Array, "batch queries dim"], dict[str, Any]]:
        """Returns a pair: the features, and the new carry.

        The features belong to the targets, [B, T, D], or, if there are no targets, to the tokens, [B, L, D].

        Args:
          carry: dict with the `memory` [B, layers, M, D] after the previous batch; empty: no memory. The positions of
            the memory have token type 0 and are visible to all queries.
          tokens: int32 [B, L].
          mask: [B, L], 1 for tokens, 0 for padding; None: no padding.
          token_types: int32 [B, L]. Attention uses only whether two tokens have the same type. None: scores do not
            depend on segments.
          positions: int32 [B or 1, L], which count down in rows whose text runs backward. By default, 0, 1, 2, …; with
            `reverses_half`, 0, -1, -2, … in the second half of the rows. Only differences between positions of a
            segment matter. Flash kernels assume that the positions of a segment are consecutive. If the last position
            of a row is below the first position, they assume that all segments of the row count down.
          segment_ids: int32 [B, L]; tokens attend only to their own segment. None: a single segment. Not supported with
            a memory.
          order: int32 [B, L], rank of each token in the order of prediction. A token attends to tokens of its own rank
            or a lower rank. The query of a target attends to tokens of a lower rank than the target. None: tokens and
            queries attend to all tokens.
          target_positions: int32 [B, T], indices of the targets in the row; None: no targets.
          deterministic: whether dropout is disabled.

        Raises:
          ValueError: there are both segments and a memory.
        """
        memory, length = carry.get("memory"), tokens.shape[1]
        if positions is None:
            positions = jnp.arange(length)[None]
            if self.model.reverses_half:
                is_reversed = jnp.arange(len(tokens))[:, None] >= (len(tokens) + 1) // 2
                positions = jnp.where(is_reversed, -positions, positions)
        context = self._context(tokens, mask, token_types, positions, segment_ids, order, target_positions, memory)
        x = self.embed(tokens, positions, deterministic=deterministic)
        self.sow("intermediates", "embedded", x)
        if target_positions is None and memory is None:
            return self.stack(x, context, deterministic=deterministic), carry
        if target_positions is not None:
            queries = jnp.broadcast_to(self.query_embedding.astype(x.dtype), (*target_positions.shape, x.shape[2]))
            queries = self.embedding_dropout(queries, deterministic=deterministic)
            x = constrain(jnp.concatenate([x, queries], axis=1), "batch", "length", "embed")
        x, memory = self.stack.through(x, context, length, memory, deterministic=deterministic)
        return x if target_positions is None else x[:, length:], carry if memory is None else {"memory": memory}

    def _context(self, tokens, mask, token_types, positions, segment_ids, order, target_positions, memory):
        """Returns the context of the tokens and, if there are targets, of the queries at the targets."""
        shape, remembered = tokens.shape, 0 if memory is None else memory.shape[2]

        def of_queries(values, at_targets=None):
            if target_positions is None:
                return values
            at_targets = values if at_targets is None else at_targets
            values, at_targets = (jnp.broadcast_to(each, shape) for each in (values, at_targets))
            return jnp.concatenate([values, jnp.take_along_axis(at_targets, target_positions, axis=1)], axis=1)

        def of_keys(values, of_memory):
            if not remembered:
                return values
            of_memory = jnp.broadcast_to(of_memory, (len(values), remembered)).astype(values.dtype)
            return jnp.concatenate([of_memory, values], axis=1)

        slots = jnp.arange(shape[1])[None]
        first, last = positions[:, :1], positions[:, -1:]
        key_positions = of_keys(positions, first + jnp.arange(-remembered, 0) * jnp.where(last < first, -1, 1))
        mask = None if mask is None else of_keys(mask, 1)
        if self.model.causal:
            is_earlier = of_keys(slots, -1)[:, None] <= of_queries(slots)[..., None]
            mask = is_earlier if mask is None else is_earlier & (mask[:, None] > 0)
        arrays = {}
        if token_types is not None:
            arrays = {"query_segments": of_queries(token_types), "key_segments": of_keys(token_types, 0)}
        if segment_ids is not None and remembered:
            raise ValueError("rows of several segments have no memory: leave out segment_ids, or the memory")
        return Context(
            mask=mask,
            segment_ids=None if segment_ids is None else (of_queries(segment_ids), segment_ids),
            order=None if order is None else (of_queries(order + 1, order), of_keys(order, FIRST)),
            positions=of_queries(positions),
            source_positions=key_positions if remembered or target_positions is not None else None,
            contiguous=True,
            targets=target_positions,
            arrays=arrays,
        )
