"""DeBERTa v1 to v3 (He et al. 2021, 2023) in Hugging Face's format: `DebertaForMaskedLM` and `DebertaV2ForMaskedLM`.

`transformers` has neither the enhanced mask decoder nor the head of replaced token detection. The tensors of these
parts have the names of Microsoft's checkpoints: `embeddings.position_embeddings` and `mask_predictions`.

Microsoft's checkpoints have a masked LM head, which `transformers` uses only if `legacy` is False. If `legacy` is True,
`transformers` uses a head with other tensor names. This module reads both heads.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from typing_extensions import override

from plm_jax import models
from plm_jax.common import strict_json
from plm_jax.common.errors import UserError, one_line
from plm_jax.hub import albert, bert
from plm_jax.hub.family import Family, TaskLayout, Tensor, dense, norm, task_layouts
from plm_jax.hub.fields import (
    ACTIVATIONS,
    Derived,
    Entry,
    Field,
    Fixed,
    Written,
    activation,
    changed,
    check,
    check_size,
    initializer_range,
    quotient,
)

SYMBOLS = bert.SYMBOLS | {"pad": "[PAD]", "unk": "[UNK]"}
LAYER, BLOCKS, HEAD = "deberta.encoder.layer.{layer}", "stack/blocks", "lm_predictions.lm_head"
SELF, ATTENTION = f"{LAYER}.attention.self", f"{BLOCKS}/attention"
# Names in `DebertaForMaskedLM` with `legacy` set to True.
OLD_HEAD, TRANSFORM = "cls.predictions", ("dense.weight", "dense.bias", "LayerNorm.weight", "LayerNorm.bias")


class RelativeAttention(Entry):
    """The fields of `config.json` that define the position scheme of DeBERTa v1."""

    @override
    def values(self, config):
        value = config.get("pos_att_type") or []
        terms = [term.strip() for term in (value.lower().split("|") if isinstance(value, str) else value)]
        is_known = len(set(terms)) == len(terms) and set(terms) <= {"c2p", "p2c"}
        check("pos_att_type", value, is_known, '"c2p", "p2c", both or neither')
        positions = config.get("max_position_embeddings", 512)
        check_size("max_position_embeddings", positions)
        reach = config.get("max_relative_positions", -1)
        check("max_relative_positions", reach, type(reach) is int and reach < 2**31, "an integer")
        return {
            "pos_att_type": tuple(sorted(terms)),
            "max_position_embeddings": positions,
            "max_relative_positions": reach if reach > 0 else positions,
            "relative_attention": bool(config.get("relative_attention", False)),
            "position_biased_input": bool(config.get("position_biased_input", True)),
        }

    @override
    def settings(self, values):
        terms, positions = values["pos_att_type"], values["max_position_embeddings"]
        is_biased, head_dim = values["position_biased_input"], values["hidden_size"] // values["num_attention_heads"]
        settings = {"attention.score_scale": None} | ({} if is_biased else {"head.positions": positions})
        if not values["relative_attention"]:
            scheme = models.LearnedPositions(positions, init_std=values["initializer_range"])
            settings["attention.position"] = scheme if is_biased else models.NoPositions()
            if terms:  # `transformers` divides by their number even if it does not add them.
                settings["attention.score_scale"] = ((1 + len(terms)) * head_dim) ** -0.5
            return settings
        scheme = self.scheme(
            values,
            length=values["max_relative_positions"],
            terms=terms,
            epsilon=values["layer_norm_eps"],
            input_positions=positions if is_biased else 0,
            num_tokens=0 if is_biased or positions == values["max_relative_positions"] else positions,
        )
        return settings | {"attention.position": scheme}

    @override
    def fields(self, model, fields):
        position, scale = model.attention.position, model.attention.score_scale
        is_relative = isinstance(position, models.Disentangled)
        terms = position.terms if is_relative else ()
        if scale is not None and not is_relative:
            terms = ("c2p", "p2c")[: max(0, round(scale**-2 / model.attention.head_dim) - 1)]
        reach = position.length if is_relative else 512
        positions = model.num_positions or (position.max_length if is_relative else reach)
        is_biased = isinstance(position, models.LearnedPositions) or (is_relative and position.input_positions > 0)
        return {
            "relative_attention": is_relative,
            "pos_att_type": list(terms),
            "max_position_embeddings": positions,
            "max_relative_positions": -1 if reach == positions else reach,
            "position_biased_input": is_biased,
        }

    def scheme(self, values, **settings) -> models.Disentangled:
        """Returns the position scheme.

        Args:
          values: values of the fields.
          settings: settings of the scheme that the caller has derived from `values`.
        """
        return models.Disentangled(buckets=0, shared=False, key_bias=False, norm=False, **settings)


class BucketedAttention(RelativeAttention):
    """The fields of `config.json` that define the position scheme of DeBERTa v2 and v3."""

    @override
    def values(self, config):
        buckets, norms = config.get("position_buckets", -1), str(config.get("norm_rel_ebd") or "none").lower()
        check("position_buckets", buckets, type(buckets) is int and buckets < 2**31, "an integer")
        check("norm_rel_ebd", norms, norms in ("none", "layer_norm"), '"none" or "layer_norm"')
        return super().values(config) | {
            "position_buckets": max(0, buckets),
            "share_att_key": bool(config.get("share_att_key", False)),
            "norm_rel_ebd": norms,
        }

    @override
    def fields(self, model, fields):
        position = model.attention.position
        is_relative = isinstance(position, models.Disentangled)
        return super().fields(model, fields) | {
            "position_buckets": (position.buckets if is_relative else 0) or -1,
            "share_att_key": is_relative and position.shared,
            "norm_rel_ebd": "layer_norm" if is_relative and position.norm else "none",
        }

    @override
    def scheme(self, values, **settings):
        buckets, has_norm = values["position_buckets"], values["norm_rel_ebd"] == "layer_norm"
        return models.Disentangled(buckets=buckets, shared=values["share_att_key"], norm=has_norm, **settings)


# Endings and defaults of the fields of the convolution.
DEFAULTS = {"kernel_size": 0, "act": "tanh", "groups": 1}


class ConvolutionFields(Entry):
    """The fields of the convolution after the first layer.

    If the fields are absent, `transformers` assumes that there is no convolution.
    """

    @override
    def values(self, config):
        width, name, groups = (config.get(f"conv_{key}", default) for key, default in DEFAULTS.items())
        is_odd = type(width) is int and 0 < width < 64 and width % 2 == 1
        check("conv_kernel_size", width, is_odd or width == 0, "an odd number below 64, or 0")
        check("conv_act", name, name in ACTIVATIONS, f"one of {', '.join(ACTIVATIONS)}")
        check("conv_groups", groups, groups == 1, "1, the only value that can be read")
        return {"conv_kernel_size": width, "conv_act": name}

    @override
    def settings(self, values):
        width, name = values["conv_kernel_size"], values["conv_act"]
        settings: Any = {"width": width, "activation": ACTIVATIONS[name]}
        return {"convolution": models.ConvolutionConfig(**settings) if width else None}

    @override
    def fields(self, model, fields):
        convolution = model.convolution
        if convolution is None:
            return {}
        names = [name for name, ours in ACTIVATIONS.items() if ours == convolution.activation]
        return {"conv_kernel_size": convolution.width, "conv_act": names[0]}


class TokenTypes(Entry):
    """The number of token types, which may be 0."""

    @override
    def values(self, config):
        value = config.get("type_vocab_size", 0)
        check("type_vocab_size", value, type(value) is int and 0 <= value < 2**31, "an integer of at least 0")
        return {"type_vocab_size": value}

    @override
    def settings(self, values):
        return {"embedding.token_types": values["type_vocab_size"]}

    @override
    def fields(self, model, fields):
        return {"type_vocab_size": model.embedding.token_types}


CONTEXT_POOLER = TaskLayout(
    "classifier", {"feature": "first", "transform": "gelu_exact"}, "pooler.dense", rate="cls_dropout"
)
TASKS = task_layouts(CONTEXT_POOLER, tags=TaskLayout("classifier"), span=TaskLayout("qa_outputs", default=0.0))


class DebertaFamily(Family):
    """DeBERTa v1, whose keys have no bias. The defaults of the fields are those of `DebertaConfig`."""

    kind = "deberta"
    name = "DeBERTa"
    base = models.EncoderConfig(
        embedding=models.EmbeddingConfig(1, 1, norm=True),
        attention=models.AttentionConfig(1, 1, models.Disentangled(), key_bias=False),
        feed_forward=models.FeedForwardConfig(1),
        stack=models.StackConfig(1),
        norm=models.NormConfig(1e-7, placement="post"),
        head=models.MaskDecoderHead(transform="gelu_exact", bias=True),
        discriminator=models.Discriminator(adds_first=True),
    )
    fields = (
        Field("vocab_size", "embedding.vocab_size", 50265),
        Field("hidden_size", "embedding.width", 768),
        Field("num_hidden_layers", "stack.layers", 12),
        Field("num_attention_heads", "attention.heads", 12),
        Derived("attention.head_dim", quotient("hidden_size", "num_attention_heads")),
        Field("intermediate_size", "feed_forward.width", 3072),
        activation("hidden_act", "gelu", "head.transform", "discriminator.activation"),
        Field("hidden_dropout_prob", "dropout.residual", 0.1, also=("dropout.embedding",)),
        Field("attention_probs_dropout_prob", "dropout.attention", 0.1),
        TokenTypes(),
        initializer_range("initializer_range"),
        Field("layer_norm_eps", "norm.epsilon", 1e-7),
        RelativeAttention(),
        Fixed("talking_head", False, is_written=False),
        Fixed("pooler_hidden_act", "gelu", is_written=False),
        Fixed("pooler_dropout", 0, is_written=False),
        Written("legacy", False),
    )
    prefix = "deberta."
    tensors = (
        Tensor("deberta.embeddings.word_embeddings.weight", ("token_embedding",)),
        Tensor("deberta.embeddings.token_type_embeddings.weight", ("token_type_embedding",)),
        Tensor("deberta.embeddings.position_embeddings.weight", ("position_embedding",)),
        Tensor("deberta.embeddings.position_embeddings.weight", ("stack/position_embedding",)),
        *norm("deberta.embeddings.LayerNorm", "embedding_norm"),
        Tensor("deberta.encoder.rel_embeddings.weight", ("stack/relative_embedding",)),
        Tensor(
            f"{SELF}.in_proj.weight",
            tuple(f"{ATTENTION}/{name}/kernel" for name in ("query", "key", "value")),
            transposed=True,
            groups=lambda model: model.attention.heads,
        ),
        Tensor(f"{SELF}.q_bias", (f"{ATTENTION}/query/bias",)),
        Tensor(f"{SELF}.v_bias", (f"{ATTENTION}/value/bias",)),
        Tensor(f"{SELF}.pos_proj.weight", (f"{ATTENTION}/distance_key",), transposed=True),
        Tensor(f"{SELF}.pos_q_proj.weight", (f"{ATTENTION}/distance_query",), transposed=True),
        Tensor(f"{SELF}.pos_q_proj.bias", (f"{ATTENTION}/distance_query_bias",)),
        *dense(f"{LAYER}.attention.output.dense", f"{ATTENTION}/out"),
        *norm(f"{LAYER}.attention.output.LayerNorm", f"{BLOCKS}/attention_norm"),
        *dense(f"{LAYER}.intermediate.dense", f"{BLOCKS}/feed_forward/up"),
        *dense(f"{LAYER}.output.dense", f"{BLOCKS}/feed_forward/down"),
        *norm(f"{LAYER}.output.LayerNorm", f"{BLOCKS}/feed_forward_norm"),
        *dense(f"{HEAD}.dense", "head_transform"),
        *norm(f"{HEAD}.LayerNorm", "head_norm"),
        Tensor(f"{HEAD}.bias", ("head_bias",)),
        *norm("mask_predictions.LayerNorm", "discriminator_norm"),
        *dense("mask_predictions.dense", "discriminator_transform"),
        *dense("mask_predictions.classifier", "discriminator"),
    )
    copies = {
        **{f"{OLD_HEAD}.transform.{name}": f"{HEAD}.{name}" for name in TRANSFORM},
        f"{OLD_HEAD}.bias": f"{HEAD}.bias",
        f"{OLD_HEAD}.decoder.bias": f"{HEAD}.bias",
        f"{OLD_HEAD}.decoder.weight": "deberta.embeddings.word_embeddings.weight",
    }
    buffers = r"embeddings\.position_ids"
    # The positions of a mask decoder in the file of a discriminator or of an encoder without a head.
    unused = r"embeddings\.position_embeddings\.weight"
    vocabulary_files = {"bpe": ("vocab.json", "merges.txt")}
    tokenizer_class = "DebertaTokenizer"
    tasks = TASKS
    task_class = "Deberta"
    other_heads = r"(pooler|classifier|qa_outputs)\..*"

    @override
    def architecture(self, model):
        return f"{self.task_class}{'ForMaskedLM' if bert.has_head(model) else 'Model'}"

    @override
    def special_ids(self, files, tokenizer_config):
        try:
            return _symbols(strict_json.loads(files[0]))
        except ValueError as error:
            raise UserError(f"vocab.json is damaged ({one_line(error)}): fetch it again") from error


def _symbols(ids: Mapping[str, int]) -> dict[str, Any]:
    """Returns the special ids of a vocabulary, given a mapping from its tokens to their ids."""
    return {f"{name}_token_id": ids[symbol] for name, symbol in SYMBOLS.items() if symbol in ids}


class DebertaV2Family(DebertaFamily):
    """DeBERTa v2, DeBERTa v3 and mDeBERTa. The defaults of the fields are those of `DebertaV2Config`."""

    kind = "deberta-v2"
    name = "DeBERTa-v2"
    base = replace(DebertaFamily.base, attention=models.AttentionConfig(1, 1, models.Disentangled()))
    fields = changed(
        tuple(entry for entry in DebertaFamily.fields if not isinstance(entry, RelativeAttention)),
        BucketedAttention(),
        ConvolutionFields(),
        without=("talking_head",),
        vocab_size=128100,
        hidden_size=1536,
        num_hidden_layers=24,
        num_attention_heads=24,
        intermediate_size=6144,
    )
    tensors = (
        *(tensor for tensor in DebertaFamily.tensors if not tensor.name.startswith(SELF)),
        Tensor("deberta.encoder.LayerNorm.weight", ("stack/relative_norm_scale",)),
        Tensor("deberta.encoder.LayerNorm.bias", ("stack/relative_norm_bias",)),
        Tensor(
            "deberta.encoder.conv.conv.weight",
            ("stack/convolve/dense/kernel",),
            transposed=True,
            shape=lambda model: (model.embedding.width, -1, model.convolution.width),
        ),
        Tensor("deberta.encoder.conv.conv.bias", ("stack/convolve/dense/bias",)),
        *norm("deberta.encoder.conv.LayerNorm", "stack/convolve/norm"),
        *(
            tensor
            for name in ("query", "key", "value")
            for tensor in dense(f"{SELF}.{name}_proj", f"{ATTENTION}/{name}")
        ),
        *(
            tensor
            for name in ("query", "key")
            for tensor in (
                Tensor(f"{SELF}.pos_{name}_proj.weight", (f"{ATTENTION}/distance_{name}",), transposed=True),
                Tensor(f"{SELF}.pos_{name}_proj.bias", (f"{ATTENTION}/distance_{name}_bias",)),
            )
        ),
    )
    # `transformers` has the norm of the distances even in a model without distances.
    unused = rf"{DebertaFamily.unused}|encoder\.LayerNorm\.(weight|bias)"
    vocabulary_files = {"sentencepiece": ("spm.model",)}
    tokenizer_class = "DebertaV2Tokenizer"
    tasks: Any = TASKS | {"choice": CONTEXT_POOLER}
    task_class = "DebertaV2"

    @override
    def special_ids(self, files, tokenizer_config):
        ids = albert.piece_ids(files)
        # Microsoft's files lack the mask, whose id follows those of the pieces.
        lowercase = bool(tokenizer_config.get("do_lower_case", False))
        return _symbols({SYMBOLS["mask"]: len(ids)} | ids) | {"lowercase": lowercase}
