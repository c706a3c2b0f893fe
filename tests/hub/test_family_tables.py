"""Round trips of each family's table of tensor names and of config.json."""

from dataclasses import replace

import numpy as np
import pytest

from plm_jax import models
from plm_jax.hub import families, tensor_layout

ENCODER = {"hidden_size": 6, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 5}
T5 = {"d_model": 6, "num_heads": 2, "num_layers": 3, "num_decoder_layers": 2}
BART = {"d_model": 6, "encoder_layers": 3, "decoder_layers": 2}
BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
GROUPS = {"num_hidden_layers": 6, "num_hidden_groups": 3, "inner_group_num": 2}
SMALL = [
    ("gpt2", {"n_embd": 6, "n_head": 2, "n_layer": 3}),
    ("bert", ENCODER),
    ("roberta", ENCODER),
    ("albert", ENCODER | {"embedding_size": 4}),
    ("albert", ENCODER | {"embedding_size": 4} | GROUPS),
    ("distilbert", {"dim": 6, "n_heads": 2, "n_layers": 3, "hidden_dim": 5}),
    ("electra", ENCODER | {"embedding_size": 4}),
    ("electra", ENCODER | {"embedding_size": 6}),
    ("t5", T5),
    ("t5", T5 | {"feed_forward_proj": "gated-gelu"}),
    ("bart", BART),
]


def heads(name, model):
    """Returns the model with every head that its file may have in addition to those of its config."""
    if name == "roberta":
        return [replace(model, pooler=models.Pooler(0))]  # The family has no classifier of pairs.
    if name == "bart":
        return [replace(model, head=replace(model.head, bias=bias)) for bias in (False, True)]
    return [model]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("name", "config"), SMALL)
def test_table_covers_every_parameter_once(name, config, tied):
    family = families.registered()[name]
    for model in heads(name, family.to_settings({"vocab_size": 5, "tie_word_embeddings": tied, **config})):
        shapes = tensor_layout.shapes_of(model)
        layout = tensor_layout.layout(family.tensors, shapes, model.stack.inner)
        if not tied:  # BERT and its variants then have two names for the head's bias.
            twice = {key for key in family.copies.values() if key.endswith(".bias")}
            layout = {key: parts for key, parts in layout.items() if key not in twice}
        pieces = [piece for parts in layout.values() for piece in parts]
        assert len({(piece.path, piece.index) for piece in pieces}) == len(pieces)
        assert sum(np.prod(piece.shape) for piece in pieces) == sum(np.prod(shape) for shape in shapes.values())
        assert ("head" in shapes) != tied
        narrow = config.get("embedding_size") == 4
        assert ("embedding_projection/kernel" in shapes) == narrow


LLAMA_3_1 = {
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 2.0,
        "high_freq_factor": 5.0,
        "original_max_position_embeddings": 512,
    },
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": True,
}
CHATGLM2 = {
    **{"padded_vocab_size": 29, "hidden_size": 12, "ffn_hidden_size": 10, "num_layers": 2, "num_attention_heads": 4},
    **{"kv_channels": 8, "multi_query_attention": True, "multi_query_group_num": 2, "add_qkv_bias": True},
    **{"add_bias_linear": False, "rmsnorm": True, "post_layer_norm": True, "layernorm_epsilon": 0.01},
    **{"apply_residual_connection_post_layernorm": False, "seq_length": 64, "rope_ratio": 0.002},
}
FIELDS = [
    ("bert", {"hidden_act": "gelu_new", "type_vocab_size": 3, "max_position_embeddings": 7}),
    ("bert", {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "layer_norm_eps": 0.1}),
    ("bert", {"intermediate_size": 5, "initializer_range": 0.5, "tie_word_embeddings": False}),
    ("roberta", {"hidden_act": "gelu_new", "pad_token_id": 5, "max_position_embeddings": 9, "type_vocab_size": 3}),
    ("roberta", {"tie_word_embeddings": False, "layer_norm_eps": 0.1, "hidden_dropout_prob": 0.2}),
    ("albert", {"embedding_size": 7, "hidden_act": "relu", "num_hidden_groups": 3, "inner_group_num": 2}),
    ("albert", {"attention_probs_dropout_prob": 0.2, "num_attention_heads": 32, "max_position_embeddings": 9}),
    ("distilbert", {"dim": 24, "n_heads": 8, "n_layers": 5, "hidden_dim": 7, "activation": "silu"}),
    ("distilbert", {"dropout": 0.2, "attention_dropout": 0.3, "max_position_embeddings": 9}),
    ("electra", {"embedding_size": 7, "hidden_act": "relu", "type_vocab_size": 3, "layer_norm_eps": 0.1}),
    ("electra", {"embedding_size": 256, "hidden_dropout_prob": 0.2, "tie_word_embeddings": False}),
    *(
        ("t5", {"feed_forward_proj": name, "d_kv": 7, "num_decoder_layers": 2, "dropout_rate": 0.3})
        for name in ("relu", "gated-gelu", "gated-silu", "gelu", "gated-relu", "gelu_new")
    ),
    ("t5", {"relative_attention_num_buckets": 6, "relative_attention_max_distance": 9, "layer_norm_epsilon": 0.1}),
    ("mt5", {"d_ff": 7, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 5, "vocab_size": 11}),
    ("mt5", {"feed_forward_proj": "gated-silu", "dropout_rate": 0.3, "tie_word_embeddings": False}),
    ("bart", {"activation_function": "gelu_new", "encoder_layers": 2, "decoder_layers": 3, "scale_embedding": True}),
    ("bart", {"dropout": 0.2, "attention_dropout": 0.3, "activation_dropout": 0.4, "init_std": 0.5}),
    ("bart", {"d_model": 21, "encoder_attention_heads": 7, "decoder_attention_heads": 7, "vocab_size": 11}),
    ("bart", {"encoder_ffn_dim": 5, "decoder_ffn_dim": 5, "max_position_embeddings": 9}),
    ("bart", {"d_model": 12, "encoder_attention_heads": 3, "decoder_attention_heads": 2, "decoder_ffn_dim": 5}),
    ("llama", {"num_key_value_heads": 8, "mlp_bias": True, "rms_norm_eps": 1e-5}),
    ("llama", LLAMA_3_1),
    ("glm", {"attention_bias": False, "num_key_value_heads": 4}),
    ("chatglm", CHATGLM2),
    ("openai-gpt", {"afn": "relu", "n_embd": 24, "resid_pdrop": 0.3}),
]


@pytest.mark.parametrize(("name", "config"), FIELDS)
def test_settings_survive_config_json_round_trip(name, config):
    family = families.registered()[name]
    model, written = family.to_settings(config), family.to_config(family.to_settings(config))
    assert {key: written[key] for key in config} == config
    assert family.to_settings(written) == model
    if name != "chatglm":  # An empty config of ChatGLM is not supported.
        assert model != family.to_settings({})
