"""A small XLNet (Yang et al. 2019) in one file: a second stream of queries predicts tokens in a random order."""

from dataclasses import dataclass, fields, replace

import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from plm_jax import config, models, objectives
from plm_jax.common import ranges
from plm_jax.configs import demo
from plm_jax.models.encoder import Encoder
from plm_jax.models.kernels import Context
from plm_jax.models.positions import Table


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

        query_context = context.replace(
            segment_ids=None if segment_ids is None else (at_targets(segment_ids), segment_ids),
            order=(at_targets(order), order),
            positions=at_targets(positions),
            source_positions=positions,
            arrays=arrays and arrays | {"query_segments": at_targets(token_types)},
        )
        content_context = context.replace(order=(order + 1, order))
        queries = jnp.broadcast_to(self.query_embedding.astype(x.dtype), (*target_positions.shape, x.shape[2]))
        queries = self.embedding_dropout(queries, deterministic=deterministic)
        for layer in range(self.model.stack.layers):
            one_layer = {"first": layer, "last": layer + 1, "deterministic": deterministic}
            queries = self.stack.layers(queries, query_context, source=x, **one_layer)
            x = self.stack.layers(x, content_context, **one_layer)
        return self.stack.finish(queries, deterministic=deterministic)


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
        attention=models.AttentionConfig(8, 8, models.RelativeSinusoids(64, segments=False), bias=False),
        feed_forward=models.FeedForwardConfig(256, "gelu_exact"),
        stack=models.StackConfig(3),
        norm=models.NormConfig(1e-12, placement="post"),
        head=models.VocabularyHead(bias=True),
        initializer=models.InitializerConfig(0.06),
    )
    return config.to_config_dict(replace(run, model=model, objective=RandomOrderLM()))
