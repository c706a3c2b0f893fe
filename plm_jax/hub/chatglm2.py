"""ChatGLM2, ChatGLM3 and GLM-4-9B (Zeng et al. 2024) in both published formats.

The three models have the same architecture. `GlmFamily` reads Hugging Face's format: `GlmForCausalLM`, as in
zai-org/glm-4-9b-hf. `ChatGlmFamily` reads the format of the original repositories (THUDM/chatglm2-6b, chatglm3-6b,
glm-4-9b), which contain code and weights. In the original format, one `Linear` holds the projections of attention,
[queries; keys; values]. In both formats, one `Linear` holds the gate and the up projection of the feed-forward, [gate;
up], and dense layers are stored [out, in].
"""

import os

from typing_extensions import override

from plm_jax import models
from plm_jax.common import sentence_models
from plm_jax.hub import llama
from plm_jax.hub.family import Family, Tensor, attention, dense
from plm_jax.hub.fields import Derived, Field, Fixed, Written, activation, check, initializer_range
from plm_jax.hub.llama import BLOCKS, LAYER
from plm_jax.hub.rope import RotaryFields

ORIGINAL = "transformer.encoder.layers.{layer}"
GATE_AND_UP = f"{BLOCKS}/feed_forward/gate", f"{BLOCKS}/feed_forward/up"
BASE = llama.decoder_base(models.Rotary(fraction=0.5, interleaved=True))


class GlmFamily(Family):
    """GLM-4 in Hugging Face's format. `config.json` has only one dropout rate, for the attention weights."""

    kind = "glm"
    name = "GLM-4"
    base = BASE
    fields = (
        Field("vocab_size", "embedding.vocab_size", 151552),
        Field("hidden_size", "embedding.width", 4096),
        Field("intermediate_size", "feed_forward.width", 13696),
        Field("num_hidden_layers", "stack.layers", 40),
        Field("num_attention_heads", "attention.heads", 32),
        Field("num_key_value_heads", "attention.kv_heads", 2, same_as="num_attention_heads"),
        Field("head_dim", "attention.head_dim", 128),
        activation("hidden_act", "silu"),
        initializer_range("initializer_range"),
        Field("rms_norm_eps", "norm.epsilon", 1.5625e-7),
        Field("attention_bias", "attention.bias", True),
        Derived("attention.out_bias", lambda values: False if values["attention_bias"] else None),
        Field("attention_dropout", "dropout.attention", 0.0),
        Field("tie_word_embeddings", "head.tied", False),
        Field("max_position_embeddings", "attention.position.length", 131_072),
        RotaryFields(fraction=0.5),
    )
    prefix = "model."
    tensors = (
        *llama.EMBEDDINGS,
        *llama.norms(LAYER),
        *attention(f"{LAYER}.self_attn", f"{BLOCKS}/attention", "q_proj", "k_proj", "v_proj", "o_proj"),
        *dense(f"{LAYER}.mlp.gate_up_proj", *GATE_AND_UP),
        *dense(f"{LAYER}.mlp.down_proj", f"{BLOCKS}/feed_forward/down"),
    )
    other_heads = r"score\..*"

    @override
    def architecture(self, model):
        return "GlmForCausalLM"


class ChatGlmFamily(Family):
    """ChatGLM2, ChatGLM3 and GLM-4-9B in the original format, for the code of THUDM/chatglm3-6b.

    `rope_ratio` multiplies theta, as in the code of ChatGLM3 and GLM-4. The code of ChatGLM2-6B-32K divides the
    positions by `rope_ratio` instead. A `config.json` that names ChatGLM2 in `_name_or_path` or `auto_map` is therefore
    rejected if `rope_ratio` is not 1.
    """

    kind = "chatglm"
    name = "ChatGLM"
    base = BASE
    fields = (
        Written(
            "auto_map",
            {
                "AutoConfig": "THUDM/chatglm3-6b--configuration_chatglm.ChatGLMConfig",
                "AutoModelForCausalLM": "THUDM/chatglm3-6b--modeling_chatglm.ChatGLMForConditionalGeneration",
            },
        ),
        Field("padded_vocab_size", "embedding.vocab_size", 65024),
        Field("hidden_size", "embedding.width", 4096),
        Field("ffn_hidden_size", "feed_forward.width", 13696),
        Field("num_layers", "stack.layers", 28),
        Field("num_attention_heads", "attention.heads", 32),
        Field("multi_query_group_num", "attention.kv_heads", 1, same_as="num_attention_heads"),
        Field("kv_channels", "attention.head_dim", 128),
        Field("layernorm_epsilon", "norm.epsilon", 1e-5),
        Field("add_qkv_bias", "attention.bias", False),
        Derived("attention.out_bias", lambda values: False if values["add_qkv_bias"] else None),
        Field("attention_dropout", "dropout.attention", 0.0),
        Written("hidden_dropout", 0.0),
        Field("seq_length", "attention.position.length", 2048),
        Field(
            "rope_ratio",
            "attention.position.theta",
            1.0,
            read=lambda ratio: 10_000.0 * ratio,
            write=lambda model: getattr(model.attention.position, "theta", 10_000.0) / 10_000.0,
        ),
        Field("tie_word_embeddings", "head.tied", False),
        # The defaults are those of `ChatGLMConfig`. Every published model has the fixed values.
        Fixed("multi_query_attention", True, default=False),
        Fixed("rmsnorm", True),
        Fixed("add_bias_linear", False),
        Fixed("post_layer_norm", True),
        Fixed("apply_residual_connection_post_layernorm", False),
    )
    prefix = "transformer."
    tensors = (
        Tensor("transformer.embedding.word_embeddings.weight", ("token_embedding",)),
        *llama.norms(ORIGINAL),
        *dense(
            f"{ORIGINAL}.self_attention.query_key_value",
            *(f"{BLOCKS}/attention/{projection}" for projection in ("query", "key", "value")),
        ),
        *dense(f"{ORIGINAL}.self_attention.dense", f"{BLOCKS}/attention/out"),
        *dense(f"{ORIGINAL}.mlp.dense_h_to_4h", *GATE_AND_UP),
        *dense(f"{ORIGINAL}.mlp.dense_4h_to_h", f"{BLOCKS}/feed_forward/down"),
        Tensor("transformer.encoder.final_layernorm.weight", ("stack/final_norm/scale",)),
        Tensor("transformer.output_layer.weight", ("head",)),
    )
    buffers = r"rotary_pos_emb\.inv_freq"
    vocabulary_files = {"sentencepiece": ("tokenizer.model",), "tiktoken": ("tokenizer.model",)}
    other_heads = r"classifier_head\..*|prefix_encoder\..*"

    @override
    def to_settings(self, config):
        names = f"{os.path.basename(str(config.get('_name_or_path')))} {config.get('auto_map')}".lower()
        ratio = config.get("rope_ratio", 1.0)
        accepted = "1.0 for ChatGLM2, whose code divides the positions by it, which is not supported"
        check("rope_ratio", ratio, ratio == 1.0 or "chatglm2" not in names, accepted)
        return super().to_settings(config)

    @override
    def architecture(self, model):
        return "ChatGLMModel"

    @override
    def special_ids(self, files, tokenizer_config):
        """Returns the ids of `[gMASK] sop`, with which each text begins, as the entry `begins_with`.

        The ids come from `tokenizer_config.json`. If that file does not list both tokens, the ids follow from the
        number of pieces in the SentencePiece model. They are then the number of pieces + 1 and the number of pieces + 3
        (THUDM/chatglm3-6b, tokenization_chatglm.py; glm-4-9b). If the vocabulary is not a SentencePiece model, the
        result is empty.
        """
        added = tokenizer_config.get("added_tokens_decoder", {}).items()
        ids = {token.get("content"): int(number) for number, token in added}
        sop = ids.get("<sop>", ids.get("sop"))
        if "[gMASK]" in ids and sop is not None:
            return {"begins_with": [ids["[gMASK]"], sop]}
        try:
            size = len(sentence_models.parse(files[0]).pieces)
        except ValueError:  # The file is tiktoken's.
            return {}
        return {"begins_with": [size + 1, size + 3]}
