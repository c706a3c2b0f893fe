"""A small DeBERTa-v3 (He et al. 2021, 2023): disentangled attention, its Hugging Face family, and the mask decoder."""

from dataclasses import dataclass, fields, replace
from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from plm_jax import config, models
from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.configs import demo
from plm_jax.hub.bert import has_head
from plm_jax.hub.family import Family, Tensor, attention, dense, norm
from plm_jax.hub.fields import Derived, Entry, Field, Fixed, Written, activation, check, initializer_range, quotient
from plm_jax.models.encoder import Encoder
from plm_jax.models.kernels import Context
from plm_jax.models.layers import look_up
from plm_jax.models.positions import Position, Table


@dataclass(frozen=True)
class Disentangled(Position):
    """Scores of contents with distances in both directions (He et al. 2021 §3.1), with the buckets of DeBERTa-v2.

    All layers share a normalized table of distances. Each layer projects it to keys and to queries as it projects its
    contents. `attention.score_scale` should be (3 · head_dim) ** -0.5, because a score has three terms.

    Attributes:
      length: number of distances in each direction that buckets distinguish.
      buckets: number of buckets in each direction, an even number.
      epsilon: constant added to the variance in the norm of the table.
    """

    kind = "disentangled"
    uses_absolute_positions = False
    length: ranges.Length = 512
    buckets: Annotated[int, ranges.Range(4, 2**16)] = 256
    epsilon: ranges.Share = 1e-7

    def __post_init__(self):
        if self.buckets % 2 or self.length <= self.buckets // 2 + 1:
            raise UserError(
                f"disentangled positions with {self.buckets} buckets for {self.length} distances: set buckets to an "
                "even number, and length above half of it plus 1"
            )

    @override
    def score_tables(self, width, heads, head_dim, initializer):
        """Returns `relative_embedding` [2 · buckets, D], and `relative_norm_scale` and `relative_norm_bias` [D]."""
        return {
            "relative_embedding": Table((2 * self.buckets, width), (None, "embed"), initializer.table()),
            "relative_norm_scale": Table((width,), ("embed",), nn.initializers.ones),
            "relative_norm_bias": Table((width,), ("embed",), nn.initializers.zeros),
        }

    def bucket_of_distance(self) -> np.ndarray:
        """Returns the bucket of each distance from 0 to `length`, int32 [length + 1].

        Half of the buckets are single distances, the others grow up to `length` - 1 (microsoft/DeBERTa,
        DeBERTa/deberta/da_utils.py).
        """
        half, distances = self.buckets // 2, np.arange(self.length + 1)
        far = np.log(np.maximum(distances, half) / half) / np.log((self.length - 1) / half)
        return np.where(distances <= half, distances, half + np.ceil(far * (half - 1))).astype(np.int32)

    @override
    def layer_bias(self, layer, query, key):
        distances = layer.query_positions[:, :, None] - layer.key_positions[:, None, :]
        buckets = jnp.asarray(self.bucket_of_distance())[jnp.minimum(jnp.abs(distances), self.length)]
        rows = jnp.clip(jnp.sign(distances) * buckets + self.buckets, 0, 2 * self.buckets - 1)[:, None]
        tables = layer.shared_tables
        table = jax.nn.standardize(tables["relative_embedding"], epsilon=self.epsilon)
        table = layer.drop(table * tables["relative_norm_scale"] + tables["relative_norm_bias"])
        keys, queries = layer.project("key", table), layer.project("query", table) * layer.scale
        of_queries = jnp.einsum("bnqh,nrh->bnqr", query, keys, preferred_element_type=jnp.float32)
        of_keys = jnp.einsum("bnkh,nrh->bnkr", key, queries, preferred_element_type=jnp.float32)
        of_keys = jnp.take_along_axis(of_keys, rows.swapaxes(2, 3), axis=3).swapaxes(2, 3)
        return jnp.take_along_axis(of_queries, rows, axis=3) + of_keys


@dataclass(frozen=True, kw_only=True)
class DebertaConfig(models.EncoderConfig):
    """An encoder with DeBERTa's mask decoder in place of its last layer; a task's model is the encoder alone."""

    kind = "deberta"
    uses_absolute_positions = True

    @property
    @override
    def num_positions(self):
        return self.attention.position.length

    @override
    def with_task(self, head):
        encoder = models.EncoderConfig(**{f.name: getattr(self, f.name) for f in fields(models.EncoderConfig)})
        return encoder.with_task(head)

    @override
    def module(self, dtype):
        return Deberta(self, dtype)

    @override
    def macs(self, length, targets, decoder_length=0, samples=0):
        return super().macs(length, targets) + self.stack_macs(length, causal=False) / self.stack.layers


class Deberta(Encoder):
    """The model of `DebertaConfig`, whose decoder applies the last layer twice (microsoft/DeBERTa, apps/models).

    Keys and values are the output of the last but one layer. The first queries are this output plus vectors for
    absolute positions, the second queries the result of the first.
    """

    def setup(self):
        super().setup()
        shape = self.model.num_positions, self.model.embedding.width
        table = Table(shape, ("positions", "embed"), self.model.initializer.table())
        self.position_embedding = table.declare(self, "position_embedding")

    @override
    def features(self, tokens, mask=None, token_types=None, positions=None, segment_ids=None, *, deterministic=True):
        if positions is None:
            positions = jnp.arange(tokens.shape[1])[None]
        x = self.embed(tokens, positions, token_types, deterministic=deterministic)
        segments = None if segment_ids is None else (segment_ids, segment_ids)
        context, last = Context(mask=mask, segment_ids=segments, positions=positions), self.model.stack.layers - 1
        x = self.stack.layers(x, context, 0, last, deterministic=deterministic)
        queries = x + look_up(self.position_embedding, positions, x.dtype, len(x))
        for _ in range(2):
            queries = self.stack.layers(queries, context, last, last + 1, source=x, deterministic=deterministic)
        return self.stack.finish(queries, deterministic=deterministic)


class DisentangledScores(Entry):
    """The terms of a score, a list or a string such as `p2c|c2p`. Only both terms of distances can be read."""

    name = "pos_att_type"

    @override
    def values(self, config):
        value = config.get(self.name) or []
        terms = value.lower().split("|") if isinstance(value, str) else value
        check(self.name, value, sorted(term.strip() for term in terms) == ["c2p", "p2c"], '["p2c", "c2p"]')
        return {}

    @override
    def fields(self, model, fields):
        return {self.name: ["p2c", "c2p"]}


LAYER, BLOCKS, HEAD = "deberta.encoder.layer.{layer}", "stack/blocks", "lm_predictions.lm_head"


class DebertaFamily(Family):
    """DeBERTa-v2 and v3, without convolutions. The defaults are those of `DebertaV2Config`.

    `transformers` has no mask decoder. Its masked LM head is the published one only with `legacy` set to False.
    """

    kind = "deberta-v2"
    name = "DeBERTa-v2"
    base = models.EncoderConfig(
        embedding=models.EmbeddingConfig(1, 1, norm=True),
        attention=models.AttentionConfig(1, 1, Disentangled()),
        feed_forward=models.FeedForwardConfig(1),
        stack=models.StackConfig(1),
        norm=models.NormConfig(1e-7, placement="post"),
        head=models.VocabularyHead(transform="gelu_exact", bias=True),
    )
    fields = (
        Field("vocab_size", "embedding.vocab_size", 128100),
        Field("hidden_size", "embedding.width", 1536),
        Field("num_hidden_layers", "stack.layers", 24),
        Field("num_attention_heads", "attention.heads", 24),
        Derived("attention.head_dim", quotient("hidden_size", "num_attention_heads")),
        Derived(
            "attention.score_scale",
            lambda values: (3 * quotient("hidden_size", "num_attention_heads")(values)) ** -0.5,
        ),
        Field("intermediate_size", "feed_forward.width", 6144),
        activation("hidden_act", "gelu", "head.transform"),
        Field("hidden_dropout_prob", "dropout.residual", 0.1, also=("dropout.embedding",)),
        Field("attention_probs_dropout_prob", "dropout.attention", 0.1),
        Field("max_position_embeddings", "attention.position.length", 512),
        Field("position_buckets", "attention.position.buckets", -1),
        initializer_range("initializer_range"),
        Field("layer_norm_eps", "norm.epsilon", 1e-7, also=("attention.position.epsilon",)),
        DisentangledScores(),
        Fixed("relative_attention", True, default=False),
        Fixed("max_relative_positions", -1),
        Fixed("position_biased_input", False, default=True),
        Fixed("share_att_key", True, default=False),
        Fixed("norm_rel_ebd", "layer_norm", default="none"),
        Fixed("type_vocab_size", 0),
        Fixed("conv_kernel_size", 0, is_written=False),
        Written("legacy", False),
    )
    prefix = "deberta."
    tensors = (
        Tensor("deberta.embeddings.word_embeddings.weight", ("token_embedding",)),
        *norm("deberta.embeddings.LayerNorm", "embedding_norm"),
        Tensor("deberta.encoder.rel_embeddings.weight", ("stack/relative_embedding",)),
        Tensor("deberta.encoder.LayerNorm.weight", ("stack/relative_norm_scale",)),
        Tensor("deberta.encoder.LayerNorm.bias", ("stack/relative_norm_bias",)),
        *attention(
            f"{LAYER}.attention",
            f"{BLOCKS}/attention",
            *(f"self.{name}_proj" for name in ("query", "key", "value")),
            out="output.dense",
        ),
        *norm(f"{LAYER}.attention.output.LayerNorm", f"{BLOCKS}/attention_norm"),
        *dense(f"{LAYER}.intermediate.dense", f"{BLOCKS}/feed_forward/up"),
        *dense(f"{LAYER}.output.dense", f"{BLOCKS}/feed_forward/down"),
        *norm(f"{LAYER}.output.LayerNorm", f"{BLOCKS}/feed_forward_norm"),
        *dense(f"{HEAD}.dense", "head_transform"),
        *norm(f"{HEAD}.LayerNorm", "head_norm"),
        Tensor(f"{HEAD}.bias", ("head_bias",)),
    )
    buffers = r"embeddings\.position_(ids|embeddings\.weight)"
    other_heads = r"(pooler|classifier|qa_outputs|mask_predictions)\..*"
    tokenizer_class = "PreTrainedTokenizerFast"

    @override
    def architecture(self, model):
        return f"DebertaV2{'ForMaskedLM' if has_head(model) else 'Model'}"


def get_config(decoder: str = "none"):
    """Returns the demo's BERT with the architecture of a small DeBERTa; with `emd`, it has the mask decoder."""
    run = demo.bert()
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8}
    scheme = {"max_position_embeddings": 64, "position_buckets": 32, "pos_att_type": "p2c|c2p"}
    scheme |= {"relative_attention": True, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
    sizes |= {"vocab_size": run.model.vocab_size, "position_biased_input": False, "initializer_range": 0.06}
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = DebertaFamily().to_settings(sizes | scheme | rates)
    if decoder == "emd":
        model = DebertaConfig(**{f.name: getattr(model, f.name) for f in fields(model)})
    return config.to_config_dict(replace(run, model=model))
