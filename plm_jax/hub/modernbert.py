"""ModernBERT (Warner et al. 2024) in Hugging Face's format: `ModernBertForMaskedLM` and the other ModernBERT classes.

Dense layers are torch's `Linear`, stored [out, in]. The first layer has no norm before its attention.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from plm_jax import models
from plm_jax.hub.bert import TIED, has_head
from plm_jax.hub.family import Family, TaskLayout, Tensor, dense, norm, task_layouts
from plm_jax.hub.fields import (
    ACTIVATIONS,
    Derived,
    Entry,
    Field,
    activation,
    check,
    initializer_range,
    quotient,
    shortest_period,
)

GLOBAL, LOCAL = "full_attention", "sliding_attention"
THETAS = {GLOBAL: ("global_rope_theta", 160_000.0), LOCAL: ("local_rope_theta", 10_000.0)}


@dataclass(frozen=True)
class LayerTypes(Entry):
    """The fields that describe global and local attention.

    They define the layers with local attention, the window of these layers, and the base of the rotary frequencies of
    each kind of layer. transformers 5 lists the kind of each layer in `layer_types`. In earlier versions, every
    `global_attn_every_n_layers`-th layer has global attention, and the other layers have local attention.
    """

    name: str = "layer_types"

    @override
    def values(self, config):
        every, layers = config.get("global_attn_every_n_layers", 3), config["num_hidden_layers"]
        check("global_attn_every_n_layers", every, type(every) is int and every > 0, "a positive integer")
        kinds = config.get(self.name) or [LOCAL if layer % every else GLOBAL for layer in range(layers)]
        is_known = len(kinds) == layers and set(kinds) <= {GLOBAL, LOCAL}
        check(self.name, kinds, is_known, f"a list of {layers} of '{GLOBAL}' and '{LOCAL}'")
        width = config.get("local_attention", 128)
        check("local_attention", width, type(width) is int and width > 1, "an integer above 1")
        return {self.name: kinds, "local_attention": width}

    @override
    def settings(self, values):
        kinds = values[self.name]
        thetas = {kind: _theta(values, kind) for kind in kinds}
        windows = [0 if kind == GLOBAL else values["local_attention"] // 2 + 1 for kind in kinds]
        by_layer = shortest_period([thetas[kind] for kind in kinds])
        settings: dict[str, Any] = {"attention.windows": shortest_period(windows) if any(windows) else ()}
        if len(by_layer) == 1:
            return settings | {"attention.position.theta": by_layer[0]}
        return settings | {"attention.position.thetas": by_layer}

    @override
    def fields(self, model, fields):
        position, windows = model.attention.position, model.attention.windows or (0,)
        if not isinstance(position, models.Rotary):
            return {}
        bases, layers = position.thetas or (position.theta,), range(model.stack.layers)
        kinds = [LOCAL if windows[layer % len(windows)] else GLOBAL for layer in layers]
        thetas = {kinds[layer]: bases[layer % len(bases)] for layer in layers}
        thetas = {kind: thetas.get(kind, default) for kind, (_, default) in THETAS.items()}
        pattern = shortest_period(kinds)
        is_regular = pattern[0] == GLOBAL and set(pattern[1:]) <= {LOCAL}
        return {
            self.name: kinds,
            **({"global_attn_every_n_layers": len(pattern)} if is_regular else {}),
            "local_attention": 2 * (max(windows) - 1) if any(windows) else 128,
            "rope_parameters": {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()},
            **{name: thetas[kind] for kind, (name, _) in THETAS.items()},
        }


def _theta(config: Mapping[str, Any], kind: str) -> float:
    """Returns the base of the rotary frequencies for a kind of layer."""
    name, default = THETAS[kind]
    parameters = config.get("rope_parameters") or {}
    check("rope_parameters", parameters, isinstance(parameters, Mapping), f"a mapping of '{GLOBAL}' and '{LOCAL}'")
    parameters = {**(parameters.get(kind) or {}), **(config.get("rope_scaling") or {})}
    scaling = parameters.get("rope_type", parameters.get("type", "default"))
    check(
        f"rope_parameters.{kind}.rope_type", scaling, scaling == "default", '"default", the only one that can be read'
    )
    theta = parameters.get("rope_theta", config.get(name, default))
    check(name, theta, type(theta) in (int, float) and theta > 0, "a positive number")
    return float(theta)


POOLING = {"cls": "first", "mean": "mean"}
HEAD = (
    Field("classifier_activation", "transform", "gelu", choices=ACTIVATIONS),
    Field("classifier_bias", "transform_bias", False),
)
LAYER, BLOCKS = "model.layers.{layer}", "stack/blocks"


def _task(*entries: Entry) -> TaskLayout:
    fields = {"transform": "gelu_exact", "transform_bias": False, "transform_norm": True}
    return TaskLayout(
        "classifier", fields, "head.dense", "classifier_dropout", norm="head.norm", entries=(*HEAD, *entries)
    )


class ModernBertFamily(Family):
    """ModernBERT. In `config.json`, one dropout rate applies to both the attention weights and the attention output."""

    kind = "modernbert"
    name = "ModernBERT"
    base = models.EncoderConfig(
        embedding=models.EmbeddingConfig(1, 1, norm=True),
        attention=models.AttentionConfig(1, 4, models.Rotary()),
        feed_forward=models.FeedForwardConfig(1, gated=True),
        stack=models.StackConfig(2),
        norm=models.NormConfig(first=False),
        head=models.VocabularyHead(),
        initializer=models.InitializerConfig(truncated=True, shrink_residual=True),
    )
    fields = (
        Field("vocab_size", "embedding.vocab_size", 50368),
        Field("hidden_size", "embedding.width", 768),
        Field("intermediate_size", "feed_forward.width", 1152),
        Field("num_hidden_layers", "stack.layers", 22),
        Field("num_attention_heads", "attention.heads", 12),
        Derived("attention.head_dim", quotient("hidden_size", "num_attention_heads")),
        activation("hidden_activation", "gelu"),
        Field("max_position_embeddings", "attention.position.length", 8192),
        initializer_range("initializer_range"),
        Field("norm_eps", "norm.epsilon", 1e-5),
        Field("norm_bias", "norm.bias", False),
        Field("attention_bias", "attention.bias", False),
        Field("attention_dropout", "dropout.attention", 0.0, also=("dropout.attention_output",)),
        Field("mlp_bias", "feed_forward.bias", False),
        Field("mlp_dropout", "dropout.feed_forward", 0.0),
        Field("embedding_dropout", "dropout.embedding", 0.0),
        Field("decoder_bias", "head.bias", True, write=lambda model: not has_head(model) or model.head.bias),
        Field("classifier_activation", "head.transform", "gelu", choices=ACTIVATIONS),
        Field("classifier_bias", "head.transform_bias", False),
        TIED,
        LayerTypes(),
    )
    prefix = "model."
    tensors = (
        Tensor("model.embeddings.tok_embeddings.weight", ("token_embedding",)),
        *norm("model.embeddings.norm", "embedding_norm"),
        *norm(f"{LAYER}.attn_norm", f"{BLOCKS}/attention_norm"),
        *dense(f"{LAYER}.attn.Wqkv", *(f"{BLOCKS}/attention/{name}" for name in ("query", "key", "value"))),
        *dense(f"{LAYER}.attn.Wo", f"{BLOCKS}/attention/out"),
        *norm(f"{LAYER}.mlp_norm", f"{BLOCKS}/feed_forward_norm"),
        *dense(f"{LAYER}.mlp.Wi", f"{BLOCKS}/feed_forward/gate", f"{BLOCKS}/feed_forward/up"),
        *dense(f"{LAYER}.mlp.Wo", f"{BLOCKS}/feed_forward/down"),
        *norm("model.final_norm", "stack/final_norm"),
        *dense("head.dense", "head_transform"),
        *norm("head.norm", "head_norm"),
        Tensor("decoder.weight", ("head",)),
        Tensor("decoder.bias", ("head_bias",)),
    )
    ids = {"cls": "cls_token_id", "sep": "sep_token_id"}
    tokenizer_class = "PreTrainedTokenizerFast"
    tasks = task_layouts(
        _task(Field("classifier_pooling", "feature", "cls", choices=POOLING)),
        _task(),
        _task(),
        _task(Field("classifier_pooling", "feature", "cls", choices=POOLING)),
    )
    task_class = "ModernBert"
    other_heads = r"(head|classifier)\..*"

    @override
    def architecture(self, model):
        return f"ModernBert{'ForMaskedLM' if has_head(model) else 'Model'}"
