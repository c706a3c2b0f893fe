"""LLaMA 1 to 3.2 (Touvron et al. 2023) as Hugging Face keeps it: `LlamaForCausalLM`, and `LlamaModel`.

Its dense layers are torch's `Linear`, stored [out, in]. Its queries and keys are laid out for rotation by halves, like
ours; Meta's own files (consolidated.*.pth), laid out for rotation by neighbours, are not read.
"""

from collections.abc import Mapping
from typing import Any

from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.hub import rope
from plm_jax.hub.family import ACTIVATIONS, Family, TaskLayout, Tensor, check_size, known, name_of, task_layouts, values

BLOCKS = "stack/blocks"


def dense(name: str, *paths: str, by_head: bool = False) -> tuple[Tensor, Tensor]:
    """The tensors of a `Linear` that holds our layers side by side; that of its bias applies where they have one."""
    return (
        Tensor(f"{name}.weight", tuple(f"{path}/kernel" for path in paths), transposed=True, by_head=by_head),
        Tensor(f"{name}.bias", tuple(f"{path}/bias" for path in paths), by_head=by_head),
    )


def separate_attention(name: str) -> tuple[Tensor, ...]:
    """The tensors of an attention whose four projections lie by themselves."""
    parts = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "out"}
    return tuple(tensor for a, b in parts.items() for tensor in dense(f"{name}.{a}", f"{BLOCKS}/attention/{b}"))


LAYER = "model.layers.{layer}"
TENSORS = (
    Tensor("model.embed_tokens.weight", ("token_embedding",)),
    Tensor(f"{LAYER}.input_layernorm.weight", (f"{BLOCKS}/attention_norm/scale",)),
    *separate_attention(f"{LAYER}.self_attn"),
    Tensor(f"{LAYER}.post_attention_layernorm.weight", (f"{BLOCKS}/feed_forward_norm/scale",)),
    *dense(f"{LAYER}.mlp.gate_proj", f"{BLOCKS}/feed_forward/gate"),
    *dense(f"{LAYER}.mlp.up_proj", f"{BLOCKS}/feed_forward/up"),
    *dense(f"{LAYER}.mlp.down_proj", f"{BLOCKS}/feed_forward/down"),
    Tensor("model.norm.weight", ("stack/final_norm/scale",)),
    Tensor("lm_head.weight", ("head",)),
)

# What `LlamaConfig` takes where `config.json` says nothing.
DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}
LENGTH = 2048


def heads_of(value: dict[str, Any]) -> tuple[int, int, int | None]:
    """Returns heads, head_dim and key/value heads, as in `models.AttentionConfig`, from a `config.json`.

    Raises:
      UserError: a size that is no positive integer, heads that do not divide the width.
    """
    width, heads = value["hidden_size"], value["num_attention_heads"]
    head_dim, groups = value["head_dim"], value["num_key_value_heads"]
    if head_dim is None:
        if width % heads:
            raise UserError(f"config.json: num_attention_heads {heads} does not divide hidden_size {width}: change one")
        head_dim = width // heads
    check_size("head_dim", head_dim)
    if groups is None or groups == heads:
        return heads, head_dim, None
    check_size("num_key_value_heads", groups)
    return heads, head_dim, groups


def to_settings(config: Mapping[str, Any]) -> models.DecoderConfig:
    """The settings that a LLaMA `config.json` describes.

    Raises:
      UserError: a size that is no positive integer, a rate that is no number, heads that do not divide the width, a
        scaling of the positions other than LLaMA 3.1's, or an activation that we lack.
    """
    value = values(config, DEFAULTS)
    heads, head_dim, kv_heads = heads_of(value)
    return models.DecoderConfig(
        embedding=models.EmbeddingConfig(value["vocab_size"], value["hidden_size"]),
        attention=models.AttentionConfig(
            heads,
            head_dim,
            rope.to_settings(config, fraction=1.0, interleaved=False, length=LENGTH),
            bias=bool(value["attention_bias"]),
            kv_heads=kv_heads,
        ),
        feed_forward=models.FeedForwardConfig(
            value["intermediate_size"],
            known("hidden_act", value["hidden_act"], ACTIVATIONS),
            bias=bool(value["mlp_bias"]),
            gated=True,
        ),
        stack=models.StackConfig(value["num_hidden_layers"]),
        norm=models.NormConfig(value["rms_norm_eps"], kind="rms"),
        head=models.VocabularyHead(bool(value["tie_word_embeddings"])),
        dropout=models.DropoutConfig(attention=value["attention_dropout"]),
        initializer=models.InitializerConfig(value["initializer_range"]),
    )


def to_config(model: models.DecoderConfig) -> dict[str, Any]:
    """The `config.json` of a LLaMA with these settings; of the dropout rates it keeps that of attention."""
    attention, feed_forward = model.attention, model.feed_forward
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.embedding.vocab_size,
        "hidden_size": model.embedding.width,
        "intermediate_size": feed_forward.width,
        "num_hidden_layers": model.stack.layers,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "hidden_act": name_of(feed_forward.activation),
        "initializer_range": getattr(model.initializer, "std", DEFAULTS["initializer_range"]),
        "rms_norm_eps": model.norm.epsilon,
        "attention_bias": attention.bias,
        "attention_dropout": model.dropout.attention,
        "mlp_bias": feed_forward.bias,
        "tie_word_embeddings": model.head.tied,
        **rope.to_config(attention.position),
    }


def tokenizer_config(files: list[bytes], special_ids: Mapping[str, Any]) -> dict[str, Any]:
    """Whether texts begin with the beginning token; padding is before them, as in `LlamaTokenizer`."""
    described = {"tokenizer_class": "LlamaTokenizer", "padding_side": "left"}
    if special_ids.get("begins_with"):  # More than it can say; tokenizer.json does.
        return described
    return described | {"add_bos_token": special_ids.get("begins_with_bos", False)}


def special_ids(files: list[bytes], tokenizer_config: Mapping[str, Any]) -> dict[str, Any]:
    """Whether texts begin with the beginning token; where nothing is said they do, as in `LlamaTokenizer`."""
    return {"begins_with_bos": tokenizer_config.get("add_bos_token", True)}


FAMILY = Family(
    name="LLaMA",
    model_type="llama",
    kind=models.DecoderConfig.kind,
    prefix="model.",
    tensors=TENSORS,
    buffers=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
    to_settings=to_settings,
    to_config=to_config,
    vocabulary_files={"sentencepiece": ("tokenizer.model",), "tiktoken": ("tokenizer.model",)},
    tokenizer_config=tokenizer_config,
    special_ids=special_ids,
    tasks=task_layouts(TaskLayout("score", {"feature": "last", "bias": False}, default=0.0)),
    task_class="Llama",
    other_heads=r"score\.weight",
)
