"""Blocks of attention and feed-forward layers, and stacks of blocks.

Shapes: B batch, L length, M length of the memory, Q queries, K keys, D width. The parameters of a stack's blocks are
stacked on a leading `layers` axis; blocks that share parameters have one entry together.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Integer

from plm_jax.models import kernels, pipeline
from plm_jax.models.attention import Attention
from plm_jax.models.kernels import RESIDUALS, Context
from plm_jax.models.kernels.context import add_biases
from plm_jax.models.layers import ACTIVATIONS, PRODUCTS, Dense, Depth, Dropout, Memory, Stream, norm
from plm_jax.models.partitioning import constrain, mesh_axes
from plm_jax.models.positions import Position
from plm_jax.models.transformer import StackConfig, TransformerConfig

LAYER_INPUT = "layer_input"
# Name of the sums of a sub-layer's input and output. With them, the backward pass does not need the output itself, from
# which it would recompute the dropout and the sum.
SUM = "sum"
# The residuals of a flash kernel are no larger than a product with weights, and more expensive to recompute.
_PRODUCTS = jax.checkpoint_policies.save_from_both_policies(
    jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    jax.checkpoint_policies.save_only_these_names(RESIDUALS, PRODUCTS, SUM),
)
# Checkpoint policies by `TransformerConfig.remat`. Products within modules have the modules' names.
REMAT_POLICIES = {
    "dots": _PRODUCTS,
    # Products of all stages have a batch axis, that of the stages, so they are selected by name.
    "dots of stages": jax.checkpoint_policies.save_only_these_names(
        RESIDUALS, SUM, "query", "key", "value", "gate", "up"
    ),
    "minimal": jax.checkpoint_policies.save_only_these_names(RESIDUALS, SUM),
    "attention": jax.checkpoint_policies.save_only_these_names(RESIDUALS),
    "full": None,
    "offload": jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=[LAYER_INPUT],
        offload_src="device",
        offload_dst="pinned_host",
    ),
}
# Name of the parameters of a stack's layers, which are stacked on the first axis.
STACKED = "blocks"
logger = logging.getLogger(__name__)


def is_stacked(path: Sequence[Any]) -> bool:
    """Returns whether the parameter at a `jax.tree_util` path has layers stacked on its first axis."""
    return any(getattr(entry, "key", None) == STACKED for entry in path)


class FeedForward(nn.Module):
    """Two dense layers with an activation between them, or three dense layers with a gated activation."""

    model: TransformerConfig
    dtype: Any
    deterministic: bool

    @nn.compact
    def __call__(self, x: Stream, rows: Integer[Array, " batch"] | None = None) -> Stream:
        """Returns the output [B, L, D]; `rows` are the indices of the rows, as in `Dropout`."""
        feed_forward, initializer = self.model.feed_forward, self.model.initializer

        def widen(name):
            dense = Dense(
                feed_forward.width, ("embed", "mlp"), feed_forward.bias, initializer.matrix(), self.dtype, name=name
            )
            return constrain(dense(x), "batch", "length", "mlp")

        activation = ACTIVATIONS[feed_forward.activation]
        hidden = activation(widen("gate")) * widen("up") if feed_forward.gated else activation(widen("up"))
        dropout = Dropout(self.model.dropout.feed_forward, self.model.dropout.broadcast)
        hidden = dropout(hidden, rows, deterministic=self.deterministic)
        init = initializer.residual(self.model.stack.blocks)
        return Dense(x.shape[-1], ("mlp", "embed"), feed_forward.bias, init, self.dtype, name="down")(hidden)


class Block(nn.Module):
    """Self-attention, optional attention to a memory, and feed-forward, with norms and residual connections."""

    model: TransformerConfig
    dtype: Any
    deterministic: bool

    @nn.compact
    def __call__(
        self,
        x: Stream,
        depth: Depth,
        context: Context,
        source: Memory | None = None,
        memory: Memory | None = None,
        memory_context: Context | None = None,
    ) -> Stream:
        """Returns the output of the block [B, L, D].

        Args:
          x: [B, L, D].
          depth: index of this block, from 0.
          context: context of the self-attention.
          source: [B, K, D], from which the self-attention computes keys and values, after the norm; None: x.
          memory: [B, M, D]; None if its keys and values are cached.
          memory_context: context of the attention to the memory; None: no such attention.
        """
        config = self.model.norm

        def normed(name):
            return norm(config, self.dtype, name=f"{name}_norm")

        def drop(name, x):
            rate = self.model.dropout.rates["residual" if name == "feed_forward" else "attention_output"]
            dropout = Dropout(rate, self.model.dropout.broadcast)
            return dropout(x, context.rows, deterministic=self.deterministic)

        def add(name, sublayer, x):
            normalize = normed(name)
            if config.placement == "post":
                return normalize(checkpoint_name(x + drop(name, sublayer(x, lambda x: x)), SUM))
            if name == "attention" and not config.first:
                normalize = _except_first(normalize, 0 if self.model.stack.layers == 1 else depth)
            inner = normalize(x)
            if config.placement == "deep":
                x = inner * (2 * self.model.stack.layers) ** 0.5
            return checkpoint_name(x + drop(name, sublayer(inner, normalize)), SUM)

        attention = Attention(self.model, self.dtype, self.deterministic, name="attention")
        feed_forward = FeedForward(self.model, self.dtype, self.deterministic, name="feed_forward")

        def attend(x, normalize):
            return attention(x, x if source is None else normalize(source), context, depth)

        if config.placement == "parallel":
            normalize = normed("attention")
            hidden = normalize(x) if config.shared else normed("feed_forward")(x)
            attended = drop("attention", attend(normalize(x), normalize))
            x = x + attended + drop("feed_forward", feed_forward(hidden, context.rows))
            return constrain(x, "batch", "length", "embed")
        x = add("attention", attend, x)
        if memory_context is not None:
            name, fields = "cross_attention", (self.model, self.dtype, self.deterministic)
            cross_attention = Attention(*fields, reads_memory=True, name=name)
            x = add(name, lambda x, _: cross_attention(x, memory, memory_context, depth), x)
        x = add("feed_forward", lambda x, _: feed_forward(x, context.rows), x)
        return constrain(x, "batch", "length", "embed")


def _except_first(normalize: Callable[[Stream], Stream], depth: Depth) -> Callable[[Stream], Stream]:
    """Returns a norm that leaves the input of the first layer unchanged."""
    if isinstance(depth, int):
        return normalize if depth else lambda x: x
    return lambda x: jnp.where(depth == 0, x, normalize(x))


class Stack(nn.Module):
    """A stack of blocks and, except with norms of placement `post`, a final norm.

    The blocks have the parameters `blocks` [stored_blocks, ...]. Parameters that the first layer lacks are in
    `blocks/1:LAYERS`, [layers - 1, ...]. Each block is a pure function of a slice of the stacked parameters. A scanned
    and an unrolled program therefore have the same parameters and dropout keys.

    Attributes:
      crosses: whether the blocks have attention to a memory. Calls without `memory_context` skip this attention.
    """

    model: TransformerConfig
    dtype: Any
    crosses: bool = False

    def setup(self):
        """Creates the tables that all layers share, `blocks` and `final_norm`.

        With norms of placement `post`, there is no `final_norm`.
        """
        attention, stack, width = self.model.attention, self.model.stack, self.model.embedding.width
        declared = attention.position.score_tables(width, attention.heads, attention.head_dim, self.model.initializer)
        self.tables = {name: table.declare(self, name) for name, table in declared.items()}
        if self.is_initializing():
            block = Block(self.model, self.dtype, deterministic=True, parent=None)
            x = jnp.zeros((1, 1, self.model.embedding.width), self.dtype)
            self.param("blocks", _stacked_init, block, stack.stored_blocks, x, self.crosses)
        if self.model.norm.placement != "post":
            self.final_norm = norm(self.model.norm, self.dtype)
        self.output_dropout = Dropout(self.model.dropout.output, self.model.dropout.broadcast)

    def __call__(
        self,
        x: Stream,
        context: Context,
        memory: Memory | None = None,
        memory_context: Context | None = None,
        *,
        deterministic: bool,
    ) -> Stream:
        """Returns the output [B, L, D]; sows `hidden`, the output of each layer [layers, B, L, D].

        Args:
          x: [B, L, D].
          context: context of the self-attention.
          memory: [B, M, D]; None if its keys and values are cached.
          memory_context: context of the attention to the memory; None: no such attention.
          deterministic: whether dropout is disabled.
        """
        stack, batch = self.model.stack, len(x)
        wants_hidden = self.is_mutable_collection("intermediates")
        context = self._with_kernel("attention", context, x, x, deterministic)
        if memory_context is not None:
            memory_context = self._with_kernel("cross_attention", memory_context, x, memory, deterministic)
        params = self._block_params()
        if self.crosses and memory_context is None:  # A loop would carry their gradients, which are 0.
            params = {name: leaf for name, leaf in params.items() if not name.startswith("cross_attention")}
        cache = self.get_variable("cache", "blocks")
        keys = None if deterministic else jax.random.split(self.make_rng("dropout"), stack.blocks)
        block = Block(self.model, self.dtype, deterministic, parent=None)

        def through(stack, x, of_rows, layers):
            memory, own_rows, cross_rows = of_rows
            within = self._prepare(context.replace(**own_rows), x, x)
            across = None if memory_context is None else self._prepare(memory_context.replace(**cross_rows), x, memory)

            def apply(x, one):
                params, (depth, cache, key) = one
                variables = {"params": params} if cache is None else {"params": params, "cache": cache}
                rngs = None if key is None else {"dropout": key}
                inputs = x, depth, within, None, memory, across
                x, updated = block.apply(variables, *inputs, rngs=rngs, mutable=["cache"])
                return x, (updated.get("cache"), x if wants_hidden else None)

            if context.cache_index is None:
                return through_layers(self.model, stack, apply, x, layers)
            return through_unrolled(stack, apply, x, layers)

        of_rows = memory, context.by_row(batch), {} if memory_context is None else memory_context.by_row(batch)
        layers = params, (jnp.arange(stack.blocks), cache, keys)
        if mesh_axes("layers") and not (wants_hidden or cache is not None or self.is_initializing()):
            x, hidden = pipeline.pipelined(self.model, stack, through, x, of_rows, layers), None
        else:
            x, (cache, hidden) = through(stack, x, of_rows, layers)
        if context.cache_index is not None:
            self.put_variable("cache", "blocks", cache)
        self.sow("intermediates", "hidden", hidden if hidden is None else hidden[stack.inner - 1 :: stack.inner])
        return self.finish(x, deterministic=deterministic)

    def layers(
        self,
        x: Stream,
        context: Context,
        first: int,
        last: int,
        source: Memory | None = None,
        *,
        deterministic: bool,
    ) -> Stream:
        """Applies the blocks in `[first, last)`, without the final norm, and returns [B, Q, D].

        With this method, an architecture can change the hidden states between layers, or apply a layer to queries that
        are not the source of its keys, as in the mask decoder of DeBERTa. This method sows no `hidden`, and uses no
        cache and no pipeline stages.

        Args:
          x: [B, Q, D].
          context: context of the self-attention.
          first: index of the first block, from 0.
          last: index of the last block plus 1.
          source: [B, K, D], from which every block computes keys and values; None: every block uses its own input.
          deterministic: whether dropout is disabled.

        Raises:
          ValueError: blocks share parameters, the stack lacks some of these blocks, the context lacks positions, or the
            attention does not support the source.
        """
        stack = self.model.stack
        if stack.stored_blocks < stack.blocks:
            raise ValueError("blocks that share parameters cannot be computed separately: leave out stack.groups")
        if not 0 <= first <= last <= stack.blocks:
            raise ValueError(f"there are no blocks from {first} up to {last}: the stack has {stack.blocks}")
        self._check_source(x, context, source)
        if first == last:
            return x
        keys = x if source is None else source
        context = self._prepare(self._with_kernel("attention", context, x, keys, deterministic), x, keys)
        block = Block(self.model, self.dtype, deterministic, parent=None)
        dropout_keys = None if deterministic else jax.random.split(self.make_rng("dropout"), last - first)

        def apply(x, one):
            params, (depth, key) = one
            rngs = None if key is None else {"dropout": key}
            return block.apply({"params": params}, x, depth, context, source, rngs=rngs), None

        scan = self.model.scan_layers
        params = jax.tree.map(lambda leaf: leaf[first:last], self._block_params())
        layers = params, (jnp.arange(first, last), dropout_keys)
        return loop(scan)(recomputed(apply, self.model.remat, scan), x, layers)[0]

    def _check_source(self, x, context, source):
        """Checks that the context has the necessary positions, and that the attention supports the source.

        Causal masks, windows and biases by distance require a source with the same positions as x.

        Raises:
          ValueError: positions are missing, or the attention does not support the source.
        """
        attention, position = self.model.attention, self.model.attention.position
        if context.positions is None and type(position).rotation is not Position.rotation:
            raise ValueError(f"positions of kind '{position.kind}' need Context.positions")
        if source is None or (source.shape[1] == x.shape[1] and context.source_positions is None):
            return
        if context.source_positions is None:
            raise ValueError("a source of another length needs Context.source_positions")
        by_distance = type(position).distance_bias is not Position.distance_bias
        if context.causal or any(attention.windows) or by_distance:
            raise ValueError("causal attention, windows and biases by distance need a source with the positions of x")

    def finish(self, x: Stream, *, deterministic: bool) -> Stream:
        """Applies the final norm, if there is one, and the output dropout to x [B, L, D]."""
        if self.model.norm.placement != "post":
            x = self.final_norm(x)
        return self.output_dropout(x, deterministic=deterministic)

    def _block_params(self):
        """Returns the parameters of the blocks; every leaf has one entry per stored block.

        A parameter that the first layer lacks gets an entry of zeros for this layer.
        """
        params = nn.unbox(self.get_variable("params", "blocks"))
        coverage = f"1:{self.model.stack.stored_blocks}"
        if coverage not in params:
            return params
        # The first layer ignores its row.
        later = jax.tree.map(lambda leaf: jnp.pad(leaf, [(1, 0)] + [(0, 0)] * (leaf.ndim - 1)), params[coverage])
        return {name: leaf for name, leaf in params.items() if name != coverage} | later

    def _with_kernel(self, attention, context, x, source, deterministic):
        """Returns the context with a kernel and dropout settings for attention from x [B, Q, D] to a source [B, K, D].

        For self-attention, also sets the bias, the tables and the windows. With a cache, the kernel is always `xla`;
        other kernels are not faster for a few queries per call.
        """
        queries, keys = _lengths(context, x, source)
        rate = 0.0 if deterministic else self.model.dropout.attention
        context = context.replace(rows=jnp.arange(len(x)), dropout=rate, broadcast=self.model.dropout.broadcast)
        if attention == "attention":
            windows = self.model.attention.windows
            context = context.replace(**self._bias(context, queries, keys), windows=windows if any(windows) else ())
        if self.is_initializing() or context.cache_index is not None:
            return context
        if self.model.attention_kernel == "xla":
            logger.info("%s of '%s' uses the xla kernel", attention, self.name)
            return context
        name, setting, config = f"{attention} of '{self.name}'", self.model.attention_kernel, self.model.attention
        sizes = {"head_dim": config.head_dim, "groups": config.num_kv_heads, "queries": queries, "keys": keys}
        adds_bias = attention == "attention" and config.position.has_layer_bias
        expanded = adds_bias and config.position.expands_scores(context.contiguous or context.source_positions is None)
        kernel = kernels.pick(name, setting, context, dtype=self.dtype, adds_bias=adds_bias, expanded=expanded, **sizes)
        return context.replace(kernel=kernel)

    def _prepare(self, context, x, source):
        """Returns the context with rotations for its positions, and the mask and bias that its kernel needs."""
        if context.positions is not None:
            position, head_dim = self.model.attention.position, self.model.attention.head_dim
            of_keys = of_queries = position.rotation(head_dim, context.positions, context.block_positions)
            if context.source_positions is not None:
                of_keys = position.rotation(head_dim, context.source_positions, None)
            context = context.replace(rotations=(of_queries, of_keys))
        return context.with_kernel(context.kernel, *_lengths(context, x, source))

    def _bias(self, context, queries, keys):
        """Returns the context's fields that the position scheme sets, by name: `distance_bias`, `bias` and `tables`."""
        attention, position, tables = self.model.attention, self.model.attention.position, dict(self.tables)
        of_queries, of_keys = context.token_positions(queries, keys)
        of_model = attention.heads, context.causal
        bias = position.bias(tables, of_queries, of_keys, *of_model)
        if context.slot_positions is not None:
            return {"bias": self._bias_out_of_order(context, tables, bias, queries, keys), "tables": tables}
        distances = jnp.arange(1 - queries, keys) - of_queries[0]
        by_distance = position.distance_bias(tables, distances, *of_model)
        return {"distance_bias": by_distance, "bias": bias, "tables": tables}

    def _bias_out_of_order(self, context, tables, bias, queries, keys):
        """Returns the bias [1, N, Q, K], or None, for cache slots that are not sorted by position.

        The bias is computed for every pair of a query and a slot, because the distance is not constant along a diagonal
        of the scores.
        """
        position, of_model = self.model.attention.position, (self.model.attention.heads, context.causal)
        distances = -context.distances_back(queries, keys).reshape(-1)
        by_distance = position.distance_bias(tables, distances, *of_model)
        return add_biases(bias, None if by_distance is None else by_distance.reshape(1, -1, queries, keys))


def recomputed(layer: Callable, remat: str, scan_layers: bool, staged: bool = False) -> Callable:
    """Returns a function that computes the same as `layer`, and whose backward pass recomputes activations.

    Args:
      layer: function of a carry and the parameters of one layer.
      remat: activations to recompute, as in `TransformerConfig`; "none" returns `layer` itself.
      scan_layers: whether the layer is called in a compiled loop.
      staged: whether the layer is part of a pipeline stage.
    """
    if remat == "none":
        return layer
    if remat == "offload":
        inner = layer

        def offloaded(x, one):
            return inner(checkpoint_name(x, LAYER_INPUT), one)

        layer = offloaded

    # Within a compiled loop XLA cannot merge the two computations, so the expensive barrier is not needed.
    name = "dots of stages" if staged and remat == "dots" else remat
    return jax.checkpoint(layer, policy=REMAT_POLICIES[name], prevent_cse=not scan_layers)


def loop(scan_layers: bool) -> Callable:
    """Returns `jax.lax.scan` if `scan_layers` is True, otherwise `unrolled`."""
    return jax.lax.scan if scan_layers else unrolled


def unrolled(function, carry, stacked):
    """Computes `jax.lax.scan(function, carry, stacked)` without a compiled loop."""
    results = []
    for layer in unstack_layers(stacked):
        carry, result = function(carry, layer)
        results.append(result)
    return carry, jax.tree.map(lambda *parts: jnp.stack(parts), *results)


def unstack_layers(stacked):
    """Splits a tree of arrays with a leading axis of layers into a tuple of trees, one per layer."""
    leaves, structure = jax.tree.flatten(stacked)
    # Split rather than indexed: the transpose of one split is one concatenation of all layers' gradients.
    columns = [leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else _split(leaf) for leaf in leaves]
    return tuple(jax.tree.unflatten(structure, layer) for layer in zip(*columns, strict=True))


def _split(leaf):
    return [part[0] for part in jax.lax.split(leaf, [1] * leaf.shape[0])]


def through_unrolled(stack: StackConfig, layer: Callable, x, layers):
    """Computes `through_layers` without a loop and without recomputation, and returns a separate cache for each block.

    In a loop over tokens, a separate cache is updated in place, whereas a stacked cache would be copied for each token.
    Slices of stacked parameters would also be copied. Callers may therefore pass the result of `unstack_layers` as
    parameters.
    """
    params, (_, caches, keys) = layers
    params = params if isinstance(params, tuple) else unstack_layers(params)
    in_group = stack.blocks // stack.stored_blocks * stack.inner
    results = []
    for depth in range(stack.blocks):
        group, index = divmod(depth, in_group)
        stored = group * stack.inner + index % stack.inner
        rest = depth, None if caches is None else caches[depth], None if keys is None else keys[depth]
        x, result = layer(x, (params[stored], rest))
        results.append(result)
    caches, hidden = zip(*results, strict=True)
    return x, (caches, None if hidden[0] is None else jnp.stack(hidden))


def through_layers(model: TransformerConfig, stack: StackConfig, layer: Callable, x, layers):
    """Computes `jax.lax.scan(layer, x, layers)`, where `layers` is a pair (parameters, other arrays).

    The parameters have one entry per stored block, and the other arrays have one entry per block. The settings `model`
    determine whether activations are recomputed and whether the layers are unrolled. The parameters that a group of
    layers shares are constants of the loop over the group. The loop therefore stores no copy per layer.
    """
    go = loop(model.scan_layers)
    layer = recomputed(layer, model.remat, model.scan_layers, staged=stack.layers < model.stack.layers)
    if stack.stored_blocks == stack.blocks:
        return go(layer, x, layers)

    def of_group(x, group):
        params, rest = group
        return go(lambda x, rest: unrolled(layer, x, (params, rest)), x, rest)

    def reshape(tree, *shape):
        return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), tree)

    params, rest = layers
    num_groups = stack.stored_blocks // stack.inner
    repeats = stack.layers // num_groups
    groups = reshape(params, num_groups, stack.inner), reshape(rest, num_groups, repeats, stack.inner)
    x, results = go(of_group, x, groups)
    return x, jax.tree.map(lambda leaf: leaf.reshape(stack.blocks, *leaf.shape[3:]), results)


def unstack(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a model's parameters with a separate tree for each stored block, for calls with a cache.

    These trees are in a tuple `blocks`. A stack is left unchanged if some of its layers lack a parameter that other
    layers have.
    """

    def of(name, value):
        if name == "blocks" and len({len(leaf) for leaf in jax.tree.leaves(value)}) == 1:
            return unstack_layers(value)
        return unstack(value) if isinstance(value, Mapping) else value

    return {name: of(name, value) for name, value in params.items()}


def _lengths(context, x, source):
    """Returns a pair: the number of queries in x [B, Q, D], and the number of keys in a source [B, K, D] or a cache."""
    return x.shape[1], source.shape[1] if context.cache_index is None else context.mask.shape[-1]


@functools.partial(jax.jit, static_argnums=(1, 2, 4))  # Traced once, although Flax asks for the shapes in every call.
def _stacked_init(key, block, layers, x, crosses):
    """Returns initial parameters of blocks, stacked on a leading axis `layers`.

    Args:
      x: [1, 1, D], an example of the input.
      crosses: whether the blocks have attention to a memory.
    """
    context = Context()

    def init_one(key):
        return block.init(key, x, 1, context, None, *((x, context) if crosses else ()))["params"]

    params = jax.tree.map(
        lambda leaf: leaf.replace(names=("layers", *leaf.names)),
        jax.vmap(init_one)(jax.random.split(key, layers)),
        is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned),
    )
    if block.model.norm.first or "attention_norm" not in params:
        return params
    # The first layer has no norm.
    later = {"attention_norm": jax.tree.map(lambda leaf: leaf[1:], params.pop("attention_norm"))}
    return params | ({f"1:{layers}": later} if layers > 1 else {})
