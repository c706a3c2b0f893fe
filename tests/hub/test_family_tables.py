"""Round trips of each family's table of tensor names and of config.json."""

import operator
from dataclasses import replace

import numpy as np
import pytest

from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.hub import families, huggingface, tensor_layout
from tests import golden
from tests.support import tiny

ENCODER = {"hidden_size": 6, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 5}
T5 = {"d_model": 6, "num_heads": 2, "num_layers": 3, "num_decoder_layers": 2}
BART = {"d_model": 6, "encoder_layers": 3, "decoder_layers": 2}
BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
GROUPS = {"num_hidden_layers": 6, "num_hidden_groups": 3, "inner_group_num": 2}
SMALL = [
    ("gpt2", {"n_embd": 6, "n_head": 2, "n_layer": 3}),
    ("bert", ENCODER),
    ("ernie", ENCODER | {"use_task_id": True}),
    ("roberta", ENCODER),
    ("mpnet", ENCODER),
    ("albert", ENCODER | {"embedding_size": 4}),
    ("albert", ENCODER | {"embedding_size": 4} | GROUPS),
    ("distilbert", {"dim": 6, "n_heads": 2, "n_layers": 3, "hidden_dim": 5}),
    ("xlm", {"emb_dim": 6, "n_heads": 2, "n_layers": 3, "n_langs": 2}),
    ("xlm-roberta-xl", ENCODER),
    ("xlnet", {"d_model": 6, "n_head": 2, "n_layer": 3, "d_inner": 5}),
    ("electra", ENCODER | {"embedding_size": 4}),
    ("electra", ENCODER | {"embedding_size": 6}),
    ("modernbert", ENCODER | {"norm_bias": True}),
    ("eurobert", ENCODER | {"num_key_value_heads": 1}),
    ("cohere", ENCODER | {"num_key_value_heads": 1, "logit_scale": 1}),
    ("t5", T5),
    ("t5", T5 | {"feed_forward_proj": "gated-gelu"}),
    ("bart", BART),
]


def heads(name, model):
    """Returns the model with every head that its file may have in addition to those of its config."""
    if name in ("roberta", "mpnet", "xlm-roberta-xl"):
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
        layout = tensor_layout.layout(family.tensors, model)
        if not tied:  # BERT and its variants then have two names for the head's bias.
            twice = {key for key in family.copies.values() if key.endswith(".bias")}
            layout = {key: stored for key, stored in layout.items() if key not in twice}
        pieces = [piece for stored in layout.values() for piece in stored.pieces]
        assert len({(piece.path, piece.index) for piece in pieces}) == len(pieces)
        assert sum(np.prod(piece.shape) for piece in pieces) == sum(np.prod(shape) for shape in shapes.values())
        assert ("head" in shapes) != tied
        narrow = config.get("embedding_size") == 4
        assert ("embedding_projection/kernel" in shapes) == narrow


def test_group_blocks_are_stored_in_their_tensors():
    model, tensors = huggingface.read(golden.FOLDER / "albert").model, families.registered()["albert"].tensors
    layout = tensor_layout.layout(tensors, model)
    name = "albert.encoder.albert_layer_groups.1.albert_layers.0.ffn.weight"
    assert [(piece.path, piece.index) for piece in layout[name].pieces] == [("stack/blocks/feed_forward/up/kernel", 2)]


HEAD = models.VocabularyHead


@pytest.mark.parametrize(
    ("family", "config", "settings"),
    [
        ("gpt2", {}, {"stack.layers": 12, "embedding.width": 768, "attention.heads": 12, "head.tied": True}),
        ("gpt2", {}, {"feed_forward.width": 3072, "attention.position.length": 1024}),
        ("gpt2", {}, {"initializer": models.InitializerConfig(0.02, shrink_residual=True)}),
        (
            "roberta",
            {"max_position_embeddings": 40, "pad_token_id": 4},
            {"attention.position": models.LearnedPositions(35, offset=5, skips_padding=True)},
        ),
        ("roberta", {"hidden_act": "relu"}, {"head.transform": "gelu_exact"}),
        (
            "mpnet",
            {"max_position_embeddings": 40, "pad_token_id": 4},
            {"attention.position": models.LearnedRelativeBias(38, offset=2, skips_padding=True)},
        ),
        ("cohere", {"logit_scale": 1.0}, {"attention.position.theta": 500_000.0, "head.scale_by_width": False}),
        ("modernbert", {}, {"attention.windows": (0, 65, 65), "attention.position.thetas": (160_000.0, 1e4, 1e4)}),
        ("modernbert", {"local_rope_theta": 160_000.0}, {"attention.position.theta": 160_000.0}),
        ("eurobert", {}, {"attention.kv_heads": None, "head.tied": False, "norm.kind": "rms"}),
        ("albert", {}, {"stack": models.StackConfig(12, groups=1)}),
        ("albert", {"num_hidden_groups": 12}, {"stack": models.StackConfig(12)}),
        ("albert", {"embedding_size": 4096}, {"embedding.embedding_size": 4096}),
        ("distilbert", {"n_heads": 6}, {"embedding.token_types": 0, "attention.head_dim": 128}),
        ("xlm", {}, {"embedding.token_types": 0, "feed_forward.width": 8192, "head.transform": None}),
        ("xlm", {"n_words": 7, "n_langs": 15}, {"embedding.vocab_size": 7, "embedding.token_types": 15}),
        ("xlm", {"n_langs": 15, "use_lang_emb": False}, {"embedding.token_types": 0}),
        ("xlnet", {}, {"attention.position": models.RelativeSinusoids(), "memory_length": 512, "causal": False}),
        ("xlnet", {"mem_len": None, "clamp_len": 0}, {"memory_length": 0, "attention.position.clamp": None}),
        ("xlnet", {"dropout": 0.3}, {"dropout.attention": 0.3, "dropout.embedding": 0.3, "dropout.output": 0.3}),
        (
            "xlm-roberta-xl",
            {},
            {"attention.position": models.LearnedPositions(512, offset=2, skips_padding=True), "embedding.norm": False},
        ),
        (
            "electra",
            {"hidden_act": "relu"},
            {"discriminator": models.Discriminator("relu"), "head.transform": "gelu_exact"},
        ),
        ("electra", {}, {"embedding.width": 256, "embedding.embedding_size": 128}),
        ("electra", {"embedding_size": 256}, {"embedding.embedding_size": None}),
        ("ernie", {}, {"embedding.task_types": 0, "embedding.token_types": 2}),
        ("ernie", {"task_type_vocab_size": 16}, {"embedding.task_types": 0}),
        ("ernie", {"use_task_id": True}, {"embedding.task_types": 3}),
        ("bart", {}, {"stack.layers": 12, "decoder_stack.layers": 12, "embedding.width": 1024}),
        ("bart", {}, {"attention.heads": 16, "feed_forward.width": 4096, "embedding.vocab_size": 50265}),
        ("bart", {}, {"attention.position": models.LearnedPositions(1024, offset=2)}),
        ("mt5", {}, {"stack.layers": 8, "embedding.width": 512, "feed_forward.width": 1024}),
        ("mt5", {}, {"embedding.vocab_size": 250112, "attention.heads": 6, "feed_forward.gated": True}),
        ("t5", {}, {"head": HEAD(True, scale_by_width=True)}),
        ("t5", {"tie_word_embeddings": False}, {"head": HEAD(False, scale_by_width=False)}),
        ("t5", {"scale_decoder_outputs": False}, {"head": HEAD(True, scale_by_width=False)}),
        (
            "t5",
            {"tie_word_embeddings": False, "scale_decoder_outputs": True},
            {"head": HEAD(False, scale_by_width=True)},
        ),
    ],
)
def test_settings_follow_the_config(family, config, settings):
    model = families.registered()[family].to_settings(config)
    assert {name: operator.attrgetter(name)(model) for name in settings} == settings


def test_explicit_decoder_sizes_equal_those_of_the_encoder():
    sizes = {"d_model": 6, "encoder_ffn_dim": 4, "decoder_ffn_dim": 4}
    model = families.registered()["bart"].to_settings(BART | sizes)
    assert model.decoder_heads is model.decoder_head_dim is model.decoder_feed_forward is None
    explicit = replace(model, decoder_heads=2, decoder_head_dim=3, decoder_feed_forward=4)
    assert families.family_of(explicit).name == "BART"
    with pytest.raises(UserError, match=r"T5.*decoder_heads must be None"):
        families.family_of(replace(families.registered()["mt5"].to_settings({}), decoder_heads=2), "t5")


@pytest.mark.parametrize(("extra_ids", "sentinels"), [({}, 3), ({"extra_ids": 0}, 3), ({"extra_ids": 2}, 5)])
def test_mt5_counts_sentinels_in_and_above_its_file(extra_ids, sentinels):
    family, file = families.registered()["mt5"], b"pieces <extra_id_2> <extra_id_1> <extra_id_0>"
    ids = family.special_ids([file], extra_ids)
    assert ids == {"sentinels": sentinels}
    assert family.tokenizer_config([file], ids)["extra_ids"] == extra_ids.get("extra_ids", 0)


@pytest.mark.parametrize(("tokenizer_config", "begins"), [({}, True), ({"add_bos_token": False}, False)])
def test_llama_begins_texts_with_bos_unless_its_tokenizer_does_not(tokenizer_config, begins):
    """`LlamaTokenizer` of transformers has `add_bos_token=True` by default."""
    assert families.registered()["llama"].special_ids([], tokenizer_config) == {"begins_with_bos": begins}


@pytest.mark.parametrize("name", ["bart", "mt5"])
def test_decoders_start_with_the_token_of_transformers(name):
    auto = pytest.importorskip("transformers.models.auto.configuration_auto")
    fields = auto.CONFIG_MAPPING[name]().to_dict()
    assert fields[families.registered()[name].start] == fields["decoder_start_token_id"]


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
GPT2 = {
    **{"vocab_size": 11, "n_positions": 13, "n_embd": 15, "n_layer": 3, "n_head": 5, "n_inner": 17},
    **{"resid_pdrop": 0.11, "embd_pdrop": 0.12, "attn_pdrop": 0.13, "layer_norm_epsilon": 1e-3},
    **{"initializer_range": 0.3, "scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
    **{"tie_word_embeddings": False},
}
FIELDS = [
    *(("gpt2", GPT2 | {"activation_function": name}) for name in ("gelu_new", "gelu", "relu", "silu", "tanh")),
    ("bert", {"hidden_act": "gelu_new", "type_vocab_size": 3, "max_position_embeddings": 7}),
    ("bert", {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "layer_norm_eps": 0.1}),
    ("bert", {"intermediate_size": 5, "initializer_range": 0.5, "tie_word_embeddings": False}),
    ("roberta", {"hidden_act": "gelu_new", "pad_token_id": 5, "max_position_embeddings": 9, "type_vocab_size": 3}),
    ("roberta", {"tie_word_embeddings": False, "layer_norm_eps": 0.1, "hidden_dropout_prob": 0.2}),
    ("albert", {"embedding_size": 7, "hidden_act": "relu", "num_hidden_groups": 3, "inner_group_num": 2}),
    ("albert", {"attention_probs_dropout_prob": 0.2, "num_attention_heads": 32, "max_position_embeddings": 9}),
    ("distilbert", {"dim": 24, "n_heads": 8, "n_layers": 5, "hidden_dim": 7, "activation": "silu"}),
    ("distilbert", {"dropout": 0.2, "attention_dropout": 0.3, "max_position_embeddings": 9}),
    ("xlm", {"vocab_size": 11, "emb_dim": 24, "n_heads": 8, "n_langs": 3, "gelu_activation": False}),
    ("xlm", {"dropout": 0.2, "attention_dropout": 0.3, "max_position_embeddings": 9, "embed_init_std": 0.5}),
    ("xlnet", {"clamp_len": 9, "mem_len": 7, "reuse_len": 3, "bi_data": True, "ff_activation": "relu"}),
    ("xlnet", {"attn_type": "uni", "mem_len": None, "dropout": 0.2, "tie_word_embeddings": False, "n_head": 8}),
    ("xlm-roberta-xl", {"pad_token_id": 5, "max_position_embeddings": 9, "num_hidden_layers": 48}),
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
    ("modernbert", {"local_attention": 64, "num_hidden_layers": 7, "norm_bias": True, "decoder_bias": False}),
    ("modernbert", {"global_attn_every_n_layers": 2, "global_rope_theta": 5e5, "local_rope_theta": 2e4}),
    ("modernbert", {"attention_dropout": 0.1, "mlp_dropout": 0.2, "embedding_dropout": 0.3, "mlp_bias": True}),
    ("eurobert", {"num_key_value_heads": 4, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 32}),
    ("cohere", {"num_key_value_heads": 1, "logit_scale": 8192**-0.5, "head_dim": 256, "layer_norm_eps": 0.1}),
]


@pytest.mark.parametrize(("name", "config"), FIELDS)
def test_settings_survive_config_json_round_trip(name, config):
    family = families.registered()[name]
    model, written = family.to_settings(config), family.to_config(family.to_settings(config))
    assert {key: written[key] for key in config} == config
    assert family.to_settings(written) == model
    if name not in ("chatglm", "cohere"):  # Their empty configs are not supported.
        assert model != family.to_settings({})


DEFAULTS = (
    *("albert", "bart", "bert", "deberta", "deberta-v2", "distilbert", "electra", "ernie", "eurobert", "glm", "gpt2"),
    *("llama", "modernbert", "mpnet", "mt5", "openai-gpt", "roberta", "t5", "xlm", "xlnet"),
    "xlm-roberta-xl",
)


@pytest.mark.parametrize("name", DEFAULTS)
def test_fields_that_a_file_lacks_have_the_defaults_of_transformers(name):
    auto = pytest.importorskip("transformers.models.auto.configuration_auto")
    family = families.registered()[name]
    assert family.to_settings({"model_type": name}) == family.to_settings(auto.CONFIG_MAPPING[name]().to_dict())


def test_scaling_without_further_fields_is_that_of_llama_3_1():
    """The values are those of `apply_scaling` in meta-llama/llama-models, llama3/model.py."""
    model = families.registered()["llama"].to_settings({"rope_scaling": {"rope_type": "llama3"}})
    assert vars(model.attention.position.scaling) == {
        "factor": 8.0,
        "low_frequency_factor": 1.0,
        "high_frequency_factor": 4.0,
        "original_length": 8192,
    }


@pytest.mark.parametrize("name", golden.ALL)
def test_models_are_saved_as_the_family_that_they_were_read_as(name):
    pretrained = huggingface.read(golden.FOLDER / name)
    assert families.family_of(pretrained.model, pretrained.family).kind == pretrained.family
    if name in ("gpt2", "bert", *golden.ENCODERS, *golden.ELECTRA):
        assert families.family_of(pretrained.model).kind == pretrained.family


def test_first_family_that_supports_the_model_is_chosen():
    """The preferred family comes first, if it supports the model."""
    gpt2, bert, mt5 = (families.registered()[name].to_settings({}) for name in ("gpt2", "bert", "mt5"))
    assert families.family_of(mt5).kind == "t5" and families.family_of(mt5, "mt5").kind == "mt5"
    for preferred in (None, "openai-gpt", "bert"):
        assert families.family_of(gpt2, preferred).kind == "gpt2"
    assert families.family_of(replace(bert, pooler=models.NoHead())).kind == "bert"
    with pytest.raises(UserError, match=r"GPT-2 cannot store .*norm\.kind must be layer.*format plm_jax"):
        families.family_of(replace(gpt2, norm=models.NormConfig(kind="rms")))
    with pytest.raises(UserError, match="no family for a model of kind 'elmo': save it in format plm_jax"):
        families.family_of(tiny.ELMO)


def test_equivalent_settings_are_not_refused():
    modernbert = families.registered()["modernbert"].to_settings({"num_hidden_layers": 5})
    attention, layers = modernbert.attention, range(modernbert.stack.layers)
    assert (attention.windows, attention.position.thetas) == ((0, 65, 65), (160_000.0, 10_000.0, 10_000.0))
    by_layer = {
        name: tuple(each[layer % 3] for layer in layers)
        for name, each in (("windows", attention.windows), ("thetas", attention.position.thetas))
    }
    position = replace(attention.position, thetas=by_layer["thetas"])
    written_out = replace(modernbert, attention=replace(attention, windows=by_layer["windows"], position=position))
    assert families.family_of(written_out).kind == "modernbert"
    # The sixth layer of six would be global, but the fifth is the last one.
    longer = replace(attention, windows=(0, 65, 65, 0, 65, 0))
    assert families.family_of(replace(modernbert, attention=longer)).kind == "modernbert"
    shifted = replace(attention, windows=(65, 0, 65))
    with pytest.raises(UserError, match="cannot store this model"):
        families.family_of(replace(modernbert, attention=shifted))

    llama = families.registered()["llama"].to_settings({})
    assert families.family_of(replace(llama, norm=replace(llama.norm, bias=False))).kind == "llama"
    bert = families.registered()["bert"].to_settings({})
    assert families.family_of(replace(bert, attention=replace(bert.attention, windows=(0, 0)))).kind == "bert"
    with pytest.raises(UserError, match="cannot store this model"):
        families.family_of(replace(bert, norm=replace(bert.norm, bias=False)))
