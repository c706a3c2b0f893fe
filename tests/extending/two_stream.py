"""A small XLNet (Yang et al. 2019), with its Hugging Face family: a second stream predicts tokens in a random order."""

from dataclasses import dataclass, fields, replace

import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from plm_jax import config, models, objectives
from plm_jax.common import ranges
from plm_jax.configs import demo
from plm_jax.hub.family import Family, Tensor, dense, norm
from plm_jax.hub.fields import Derived, Field, Fixed, activation, initializer_range, quotient
from plm_jax.models.encoder import Encoder
from plm_jax.models.kernels import Context
from plm_jax.models.positions import Position, Table


@dataclass(frozen=True)
class SinusoidalDistances(Position):
    """Scores with projected sinusoids of distances, and biases of queries (Dai et al. 2019 §3.3).

    Attributes:
      length: distance from which all distances are treated alike in each direction (XLNet's `clamp_len`).
      segments: whether scores also depend on whether query and key have the same token type (Yang et al. 2019 §2.5).
    """

    kind = "sinusoidal_distances"
    uses_absolute_positions = False
    length: ranges.Length = 512
    segments: bool = False

    @override
    def layer_tables(self, width, heads, head_dim, initializer):
        """Returns the projection `distance` [D, N · H] and a bias [N, H] of queries for each part of a score."""
        init = initializer.matrix()
        bias = Table((heads, head_dim), (None, None), init)
        tables = {"distance": Table((width, heads * head_dim), ("embed", "heads"), init)}
        tables |= {"content_bias": bias, "distance_bias": bias}
        if self.segments:
            tables |= {"segment_bias": bias, "segment": Table((2, heads, head_dim), (None, None, None), init)}
        return tables

    @override
    def layer_bias(self, layer, query, key):
        biases = {name: table * layer.scale for name, table in layer.tables.items() if name.endswith("_bias")}
        _, heads, _, head_dim = query.shape
        vectors_RD = layer.drop(sinusoids(self.length, len(layer.tables["distance"])))
        vectors_RNH = (vectors_RD @ layer.tables["distance"]).reshape(-1, heads, head_dim)
        scores = jnp.einsum("bnqh,rnh->bnqr", query + biases["distance_bias"][:, None], vectors_RNH)
        distances = layer.query_positions[:, None, :, None] - layer.key_positions[:, None, None, :]
        rows = jnp.clip(distances, -self.length, self.length) + self.length
        scores = jnp.take_along_axis(scores, rows, axis=3)
        scores += jnp.einsum("nh,bnkh->bnk", biases["content_bias"], key)[:, :, None]
        if self.segments and layer.arrays:
            queries = query + biases["segment_bias"][:, None]
            same, other = jnp.einsum("bnqh,snh->sbnq", queries, layer.tables["segment"])[..., None]
            of_queries, of_keys = layer.arrays["query_segments"], layer.arrays["key_segments"]
            scores += jnp.where(of_queries[:, None, :, None] == of_keys[:, None, None, :], same, other)
        return scores


def sinusoids(reach: int, width: int) -> np.ndarray:
    """Returns the vectors of the distances from -reach to reach, float32 [2 · reach + 1, width], sines first."""
    angles = np.arange(-reach, reach + 1)[:, None] * 10_000.0 ** (-np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class TwoStreamConfig(models.EncoderConfig):
    """An encoder with a second stream, of queries without the tokens that they predict (Yang et al. 2019 §2.3).

    A task's model is the encoder alone, without scores of segments.
    """

    kind = "two_stream"
    architecture = "two_stream"
    inputs = (*models.EncoderConfig.inputs, "order", "target_positions")

    @override
    def with_task(self, head):
        encoder = models.EncoderConfig(**{f.name: getattr(self, f.name) for f in fields(models.EncoderConfig)})
        position = replace(self.attention.position, segments=False)
        return replace(encoder, attention=replace(self.attention, position=position)).with_task(head)

    @override
    def module(self, dtype):
        return TwoStream(self, dtype)

    @override
    def macs(self, length, targets, decoder_length=0, samples=0):
        queries = self.stack_macs(length, causal=False) * targets / length
        return super().macs(length, targets) + queries


class TwoStream(Encoder):
    """The model of `TwoStreamConfig`. Without targets, it is an encoder."""

    def setup(self):
        super().setup()
        table = Table((self.model.embedding.width,), ("embed",), self.model.initializer.table())
        self.query_embedding = table.declare(self, "query_embedding")

    @override
    def features(
        self,
        tokens,
        mask=None,
        token_types=None,
        positions=None,
        segment_ids=None,
        order=None,
        target_positions=None,
        *,
        deterministic=True,
    ):
        """Returns the features of the targets [B, T, D], or without targets those of the tokens [B, L, D].

        Args:
          order: int32 [B, L], rank of each target from 1 in the order of prediction; 0 for other tokens.
          target_positions: int32 [B, T].
        """
        if positions is None:
            positions = jnp.arange(tokens.shape[1])[None]
        x = self.embed(tokens, positions, deterministic=deterministic)
        self.sow("intermediates", "embedded", x)
        segments = None if segment_ids is None else (segment_ids, segment_ids)
        arrays = {} if token_types is None else {"query_segments": token_types, "key_segments": token_types}
        context = Context(mask=mask, segment_ids=segments, positions=positions, arrays=arrays)
        if target_positions is None:
            return self.stack(x, context, deterministic=deterministic)

        def at_targets(values):
            return jnp.take_along_axis(jnp.broadcast_to(values, tokens.shape), target_positions, axis=1)

        of_queries = context.replace(
            segment_ids=None if segment_ids is None else (at_targets(segment_ids), segment_ids),
            order=(at_targets(order), order),
            positions=at_targets(positions),
            source_positions=positions,
            arrays=arrays and arrays | {"query_segments": at_targets(token_types)},
        )
        of_contents = context.replace(order=(order + 1, order))
        queries = jnp.broadcast_to(self.query_embedding.astype(x.dtype), (*target_positions.shape, x.shape[2]))
        queries = self.embedding_dropout(queries, deterministic=deterministic)
        for layer in range(self.model.stack.layers):
            through = {"first": layer, "last": layer + 1, "deterministic": deterministic}
            queries = self.stack.layers(queries, of_queries, source=x, **through)
            x = self.stack.layers(x, of_contents, **through)
        return self.stack.finish(queries, deterministic=deterministic)


LAYER, BLOCKS = "transformer.layer.{layer}", "stack/blocks"


def heads_of(model):
    """Returns the shape of XLNet's projections, [embed, heads, head_dim]."""
    return -1, model.attention.heads, model.attention.head_dim


def projection(name, parameter, transposed=False):
    return Tensor(f"{LAYER}.rel_attn.{name}", (f"{BLOCKS}/attention/{parameter}",), transposed, shape=heads_of)


def score_tables(**names):
    return tuple(Tensor(f"{LAYER}.rel_attn.{name}", (f"{BLOCKS}/attention/{ours}",)) for ours, name in names.items())


class XlnetFamily(Family):
    """XLNet with a positive `clamp_len`. The defaults are those of `XLNetConfig`."""

    kind = "xlnet"
    name = "XLNet"
    base = TwoStreamConfig(
        embedding=models.EmbeddingConfig(1, 1),
        attention=models.AttentionConfig(1, 1, SinusoidalDistances(segments=True), bias=False),
        feed_forward=models.FeedForwardConfig(1),
        stack=models.StackConfig(1),
        norm=models.NormConfig(placement="post"),
        head=models.VocabularyHead(bias=True),
    )
    fields = (
        Field("vocab_size", "embedding.vocab_size", 32000),
        Field("d_model", "embedding.width", 1024),
        Field("n_layer", "stack.layers", 24),
        Field("n_head", "attention.heads", 16),
        Derived("attention.head_dim", quotient("d_model", "n_head")),
        Field("d_inner", "feed_forward.width", 4096),
        activation("ff_activation", "gelu"),
        Field(
            "dropout", "dropout.residual", 0.1, also=("dropout.embedding", "dropout.attention", "dropout.feed_forward")
        ),
        Field("clamp_len", "attention.position.length", -1),
        initializer_range("initializer_range"),
        Field("layer_norm_eps", "norm.epsilon", 1e-12),
        Fixed("attn_type", "bi"),
        Fixed("bi_data", False),
        Fixed("same_length", False),
        Fixed("untie_r", True),
    )
    prefix = "transformer."
    tensors = (
        Tensor("transformer.word_embedding.weight", ("token_embedding",)),
        Tensor("transformer.mask_emb", ("query_embedding",), shape=lambda model: (1, 1, -1)),
        projection("q", "query/kernel"),
        projection("k", "key/kernel"),
        projection("v", "value/kernel"),
        projection("o", "out/kernel", transposed=True),
        projection("r", "distance"),
        *score_tables(content_bias="r_w_bias", distance_bias="r_r_bias", segment_bias="r_s_bias", segment="seg_embed"),
        *norm(f"{LAYER}.rel_attn.layer_norm", f"{BLOCKS}/attention_norm"),
        *dense(f"{LAYER}.ff.layer_1", f"{BLOCKS}/feed_forward/up"),
        *dense(f"{LAYER}.ff.layer_2", f"{BLOCKS}/feed_forward/down"),
        *norm(f"{LAYER}.ff.layer_norm", f"{BLOCKS}/feed_forward_norm"),
        Tensor("lm_loss.bias", ("head_bias",)),
    )

    @override
    def architecture(self, model):
        return "XLNetLMHeadModel"


@dataclass(frozen=True)
class RandomOrderLM(objectives.Objective):
    """Prediction of tokens in a random order, each from all tokens that are no targets and from earlier targets.

    Unlike in XLNet, targets are single tokens instead of spans.

    Attributes:
      rate: share of a row's tokens that are targets.
    """

    kind = "random_order_lm"
    architectures = ("two_stream",)
    inputs = ("text", "row")
    separators = ("eos", "sep")
    targets = "a share of the tokens, in a random order"
    rate: ranges.ShareAboveZero = 1 / 6

    def target_length(self, length):
        return max(1, round(length * self.rate))

    def apply(self, example, special, rng):
        """Returns `tokens`, `mask` and `order` [L]; `targets`, `target_positions` and `target_weights` [T]."""
        tokens = np.asarray(example["tokens"], np.int32)
        mask = np.asarray(example.get("mask", np.ones(len(tokens))), np.int32)
        is_special = np.isin(tokens, [token for token in (special.cls, special.sep, special.eos) if token is not None])
        (candidates,) = np.nonzero((mask > 0) & ~is_special)
        num = min(self.target_length(int(mask.sum())), len(candidates))
        positions, order = rng.permutation(candidates)[:num], np.zeros(len(tokens), np.int32)
        order[positions] = np.arange(1, num + 1)
        unused = (0, self.target_length(len(tokens)) - num)
        row = {name: np.asarray(example[name], np.int32) for name in ("token_types", "segment_ids") if name in example}
        if "positions" in example:
            row["positions"] = np.asarray(example["positions"], np.int32)
        return row | {
            "tokens": tokens,
            "mask": mask,
            "order": order,
            "targets": np.pad(tokens[positions], unused),
            "target_positions": np.pad(positions, unused).astype(np.int32),
            "target_weights": np.pad(np.ones(num, np.float32), unused),
        }


def get_config():
    """Returns the demo's BERT with this model and objective."""
    run = demo.bert()
    model = TwoStreamConfig(
        embedding=models.EmbeddingConfig(run.model.vocab_size, 64),
        attention=models.AttentionConfig(8, 8, SinusoidalDistances(64), bias=False),
        feed_forward=models.FeedForwardConfig(256, "gelu_exact"),
        stack=models.StackConfig(3),
        norm=models.NormConfig(1e-12, placement="post"),
        head=models.VocabularyHead(bias=True),
        initializer=models.InitializerConfig(0.06),
    )
    return config.to_config_dict(replace(run, model=model, objective=RandomOrderLM()))
