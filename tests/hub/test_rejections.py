"""Configs that no family supports, and settings that no `config.json` can describe."""

from dataclasses import replace

import pytest

from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.hub import families, huggingface
from plm_jax.hub.pretrained import Pretrained
from tests.hub.test_family_tables import CHATGLM2
from tests.support import tiny

FAMILIES = {family.kind: family() for family in families.PUBLISHED}
GLM = {"hidden_size": 12, "num_layers": 2, "num_attention_heads": 3}


@pytest.fixture(autouse=True)
def _published_families(monkeypatch):
    """Leaves out the families of users' files that other tests import."""
    monkeypatch.setattr(families, "registered", lambda: FAMILIES)


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
        ("gpt2", {"activation_function": "gelu_newer"}, "'gelu_newer'.*did you mean 'gelu_new'"),
        ("gpt2", {"n_head": 5}, "n_head 5 does not divide n_embd 768"),
        ("gpt2", {"n_layer": 0}, "n_layer is 0.*positive integer"),
        ("gpt2", {"n_embd": "24"}, "n_embd is '24'.*positive integer"),
        ("gpt2", {"n_inner": -1}, "n_inner is -1"),
        ("gpt2", {"layer_norm_epsilon": "small"}, "layer_norm_epsilon is 'small'.*number"),
        ("bert", {"num_attention_heads": 5}, "num_attention_heads 5 does not divide hidden_size 768"),
        ("bert", {"is_decoder": True}, "is_decoder"),
        ("bert", {"position_embedding_type": "relative_key"}, "relative_key"),
        ("bert", {"hidden_act": "gelu_newer"}, "did you mean 'gelu_new'"),
        ("modernbert", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "rope_type is 'linear'"),
        ("modernbert", {"num_hidden_layers": 2, "layer_types": ["full_attention"]}, "layer_types is .*a list of 2"),
        ("modernbert", {"local_attention": 1}, "local_attention is 1: must be an integer above 1"),
        ("cohere", {"use_qk_norm": True, "logit_scale": 1}, "use_qk_norm is True"),
        ("cohere", {"logit_scale": 0.5}, r"logit_scale is 0.5: must be 1, or hidden_size \*\* -0.5"),
        ("roberta", {"pad_token_id": None}, "pad_token_id is None: must be an id from 0 to 510"),
        ("roberta", {"pad_token_id": 9, "max_position_embeddings": 10}, "pad_token_id is 9"),
        ("albert", {"num_hidden_groups": 5}, "num_hidden_groups 5 does not divide num_hidden_layers 12"),
        ("albert", {"embedding_size": 0}, "embedding_size is 0"),
        ("albert", {"hidden_size": 100}, "num_attention_heads 64 does not divide hidden_size 100"),
        ("distilbert", {"dim": "768"}, "dim is '768'"),
        ("distilbert", {"activation": "gelo"}, "did you mean 'gelu'"),
        ("xlm", {"causal": True}, "causal is True: must be false"),
        ("xlm", {"asm": True}, "asm is True: must be false"),
        ("xlm", {"sinusoidal_embeddings": True}, "sinusoidal_embeddings is True: must be false"),
        ("xlm", {"n_langs": 0}, "n_langs is 0: must be a positive integer"),
        ("xlm", {"n_heads": 5}, "n_heads 5 does not divide emb_dim 2048"),
        ("xlnet", {"same_length": True}, "same_length is True: must be false"),
        ("xlnet", {"summary_type": "mean"}, "summary_type is 'mean': must be \"last\""),
        ("xlnet", {"mem_len": "512"}, "mem_len is '512': must be an integer or null"),
        ("xlnet", {"attn_type": "both"}, "attn_type is 'both'"),
        ("t5", {"architectures": ["T5EncoderModel"]}, "T5EncoderModel has no decoder"),
        ("t5", {"num_decoder_layers": 0}, "num_decoder_layers is 0"),
        ("t5", {"feed_forward_proj": "gated-gelo"}, "did you mean 'gated-gelu'"),
        ("t5", {"dropout_rate": "0.1"}, "dropout_rate is '0.1'"),
        ("bart", {"d_model": 6, "encoder_attention_heads": 3}, "decoder_attention_heads 16 does not divide d_model 6"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type is 'linear'"),
        ("llama", {"rope_scaling": "llama3"}, "rope_scaling is 'llama3'"),
        ("llama", {"num_attention_heads": 5}, "5 does not divide hidden_size 4096"),
        ("llama", {"num_key_value_heads": 5}, "divisor of the 32 heads"),
        ("llama", {"head_dim": 0}, "head_dim is 0"),
        ("llama", {"hidden_act": "silly"}, "hidden_act is 'silly'"),
        ("openai-gpt", {"afn": "tanh"}, "afn is 'tanh'"),
        ("glm", {"partial_rotary_factor": 0}, "fraction 0.0"),
        ("chatglm", {}, "multi_query_attention is False"),
        ("chatglm", CHATGLM2 | {"rmsnorm": False}, "rmsnorm is False: must be true"),
        ("glm_original", GLM | {"relative_encoding": True}, "relative_encoding is True: must be false"),
        ("glm_original", GLM | {"block_position_encoding": False}, "block_position_encoding is False: must be true"),
        ("glm_original", GLM | {"num_attention_heads": 5}, "5 does not divide hidden_size 12"),
        ("chatglm_6b", GLM | {"position_encoding_2d": False}, "position_encoding_2d is False"),
        ("chatglm_6b", GLM | {"quantization_bit": 4}, "quantization_bit is 4"),
    ],
)
def test_unsupported_configs_are_rejected(family, fields, message):
    with pytest.raises(UserError, match=message) as error:
        FAMILIES[family].to_settings(fields)
    assert "\n" not in str(error.value)


CHATGLM_ATTENTION = {"position": models.Rotary(fraction=0.5, scaling=models.RotaryScaling()), "out_bias": True}


@pytest.mark.parametrize(
    ("family", "section", "changes", "message"),
    [
        ("gpt2", "attention", {"position": models.NoPositions()}, "attention.position"),
        ("gpt2", "attention", {"bias": False}, "attention.bias"),
        ("gpt2", "attention", {"head_dim": 7}, "attention.head_dim"),
        ("gpt2", "attention", {"score_scale": 0.5}, "attention.score_scale"),
        ("gpt2", "feed_forward", {"bias": False}, "feed_forward.bias"),
        ("bert", "norm", {"placement": "pre"}, "BERT.*norm.placement must be post"),
        ("bert", "head", {"transform": "relu"}, "head.transform must be gelu_exact"),
        ("bert", "pooler", {"classes": 3}, "pooler.classes must be 2"),
        ("bert", "embedding", {"token_types": 0}, "embedding.token_types must be 1"),
        ("roberta", "pooler", {"classes": 2}, "RoBERTa.*pooler.classes must be 0"),
        ("roberta", "head", {"transform": "gelu_tanh"}, "head.transform must be gelu_exact"),
        ("albert", "embedding", {"norm": False}, "ALBERT.*embedding.norm must be True"),
        ("albert", "stack", {"groups": 12}, "stack.groups must be None"),
        ("distilbert", "attention", {"bias": False}, "DistilBERT.*attention.bias must be True"),
        ("xlm", "embedding", {"token_types": 1}, r"XLM.*embedding\.token_types must be 0"),
        ("xlm", "feed_forward", {"width": 7}, "feed_forward.width must be 8192"),
        (
            "xlnet",
            "attention",
            {"position": models.RelativeSinusoids(segments=False)},
            r"segments must be True",
        ),
        ("xlnet", "attention", {"bias": True}, r"XLNet.*attention\.bias must be False"),
        ("electra", "discriminator", {"activation": "tanh"}, r"ELECTRA.*discriminator\.activation must be gelu_exact"),
        ("t5", "attention", {"score_scale": None}, "T5.*attention.score_scale must be 1.0"),
        ("t5", "attention", {"position": models.NoPositions()}, "position.kind must be relative_bias"),
        ("t5", "norm", {"kind": "layer"}, "norm.kind must be rms"),
        ("t5", "feed_forward", {"activation": "gelu_exact", "gated": True}, "feed_forward"),
        ("bart", "embedding", {"norm": False}, "BART.*embedding.norm must be True"),
        ("bart", "attention", {"bias": False}, "attention.bias must be True"),
        ("bart", "attention", {"position": models.LearnedPositions(1024)}, "position.offset must be 2"),
        ("bart", "norm", {"epsilon": 0.1}, "norm.epsilon must be 1e-05"),
        ("bart", "norm", {"placement": "pre"}, "norm.placement must be post"),
        ("bart", "head", {"scale_by_width": True}, "head.scale_by_width must be False"),
        ("chatglm", "attention", CHATGLM_ATTENTION, "cannot store this model"),
    ],
)
def test_unsupported_settings_are_rejected_before_writing(family, section, changes, message, tmp_path):
    model = FAMILIES[family].to_settings(CHATGLM2 if family == "chatglm" else {})
    if family == "electra":
        model = replace(model, head=models.NoHead())
    model = replace(model, **{section: replace(getattr(model, section), **changes)})
    with pytest.raises(UserError, match=message):
        huggingface.write(tmp_path / "out", Pretrained(model, {}, family=family))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (models.ClassesHead(labels=("a", "b"), feature="mean"), "heads.task.feature must be pooler"),
        (
            models.TagsHead(labels=("a",), layers=models.ConcatenatedLayers((-2, -1))),
            "task.layers.kind must be last",
        ),
        (models.TagsHead(labels=("a",), recurrent=models.BiLstmConfig()), "heads.task.recurrent must be None"),
        (models.SpanHead(transform="tanh"), "heads.task.transform must be None"),
    ],
)
def test_unsupported_task_heads_are_rejected(head, message):
    with pytest.raises(UserError, match=rf"Hugging Face's .* cannot store this model \(.*{message}.*\): change"):
        families.family_of(replace(tiny.BERT, heads=(("task", head),)))


@pytest.mark.parametrize(
    "model",
    [
        replace(
            FAMILIES["gpt2"].to_settings({}),
            attention=models.AttentionConfig(3, 7, models.NoPositions(), bias=False, score_scale=0.3),
            feed_forward=models.FeedForwardConfig(10, "relu", bias=False, gated=True),
            norm=models.NormConfig(1e-3, "rms", "post"),
            initializer=models.FanInConfig(),
        ),
        replace(
            FAMILIES["bert"].to_settings({}),
            head=models.NoHead(),
            attention=models.AttentionConfig(5, 7, models.RelativeBias()),
        ),
        replace(FAMILIES["t5"].to_settings({}), attention=models.AttentionConfig(3, 7, models.LearnedPositions(9))),
    ],
    ids=lambda model: model.kind,
)
def test_unusual_models_are_rejected_by_every_family(model):
    with pytest.raises(UserError, match=r"cannot store this model \("):
        families.family_of(model)


@pytest.mark.parametrize(
    ("architecture", "fields", "nearest", "missing"),
    [
        ("Mistral", {"num_key_value_heads": 1}, r"LLaMA \('llama'\)", "fields sliding_window"),
        (
            "Qwen3",
            {"num_key_value_heads": 1, "head_dim": 8},
            r"LLaMA \('llama'\)",
            r"layers\.N\.self_attn\.q_norm\.weight",
        ),
        ("ConvBert", {}, ".*", "fields .*conv_kernel_size"),
    ],
)
def test_unknown_families_are_compared_with_the_nearest_one(architecture, fields, nearest, missing, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 37, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = getattr(transformers, f"{architecture}Config")(**sizes, intermediate_size=20, **fields)
    form = "ForCausalLM" if "num_key_value_heads" in fields else "ForMaskedLM"
    getattr(transformers, f"{architecture}{form}")(config).save_pretrained(tmp_path)
    message = f"is not supported. The nearest supported family is {nearest}, without the .*{missing}.* --module"
    with pytest.raises(UserError, match=message):
        huggingface.read(tmp_path)
    for weights in tmp_path.glob("*.safetensors"):
        weights.unlink()
    with pytest.raises(UserError, match=f"The nearest supported family is {nearest}"):
        huggingface.read(tmp_path)
