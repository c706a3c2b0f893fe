"""LLaMA, GLM-4 and GPT-1 side by side with transformers, on random weights."""

import io
import json

import numpy as np
import pytest
import sentencepiece

import plm_jax
from plm_jax.models import settings

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from tests.support import theirs  # noqa: E402

SIZES = {
    "vocab_size": 37,
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "initializer_range": 0.3,
}
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 2.0,
    "original_max_position_embeddings": 16,
}
LLAMA = {
    "odd_heads": {},
    "grouped_scaled_tied": {
        "num_attention_heads": 4,
        "head_dim": 4,
        "num_key_value_heads": 2,
        "rope_parameters": SCALED,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    },
    "all_biases_wide_heads": {
        "head_dim": 6,
        "num_key_value_heads": 1,
        "attention_bias": True,
        "mlp_bias": True,
        "hidden_act": "relu",
        "rms_norm_eps": 0.1,
    },
}
GLM_SIZES = {**SIZES, "head_dim": 8, "num_key_value_heads": 1, "pad_token_id": 0}
GLM = {
    "usual": {},
    "three_quarters_no_bias_tied": {
        "attention_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.75},
        "tie_word_embeddings": True,
        "rms_norm_eps": 0.1,
    },
}
GPT1_SIZES = {"vocab_size": 37, "n_positions": 12, "n_embd": 12, "n_layer": 2, "n_head": 3, "initializer_range": 0.3}
GPT1 = {"usual": {}, "relu_large_epsilon": {"afn": "relu", "layer_norm_epsilon": 0.1, "n_head": 1}}
CASES = [
    *(("llama", name, {**SIZES, **fields}) for name, fields in LLAMA.items()),
    *(("glm", name, {**GLM_SIZES, **fields}) for name, fields in GLM.items()),
    *(("openai-gpt", name, {**GPT1_SIZES, **fields}) for name, fields in GPT1.items()),
]


def make(family, fields):
    config = transformers.AutoConfig.for_model(family, **{"bos_token_id": 1, "eos_token_id": 2, **fields})
    return theirs.randomised(transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], config)


def outputs(model, tokens):
    """Logits and hidden states; GPT-1 there does not derive positions from the mask."""
    mask = torch.tensor(theirs.MASK)
    positions = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)} if model.config.model_type == "openai-gpt" else {}
    with torch.no_grad():
        output = model(torch.tensor(tokens), attention_mask=mask, **positions, output_hidden_states=True)
    return output.logits.numpy(), torch.stack(output.hidden_states).numpy()


@pytest.mark.parametrize(("family", "name", "fields"), CASES, ids=[f"{family}-{name}" for family, name, _ in CASES])
def test_logits_and_hidden_states_are_equal_and_what_we_save_opens_there(family, name, fields, tmp_path):
    model = make(family, fields)
    model.save_pretrained(tmp_path / "theirs")
    lm = plm_jax.load(tmp_path / "theirs")
    tokens, real = np.random.default_rng(0).integers(0, 37, theirs.MASK.shape), theirs.MASK == 1
    want, want_hidden = outputs(model, tokens)
    np.testing.assert_allclose(lm.logits(tokens, theirs.MASK)[real], want[real], atol=1e-4)
    hidden = np.asarray(lm.hidden_states(tokens, theirs.MASK))
    np.testing.assert_allclose(hidden[:, real], want_hidden[:, real], atol=1e-4)
    assert lm.num_parameters == model.num_parameters()

    lm.save(tmp_path / "ours")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert type(again) is type(model)
    np.testing.assert_allclose(outputs(again, tokens)[0], want, atol=1e-5)
    theirs.assert_same_state(model, again)
    kept = again.config.to_dict()
    for field, value in model.config.to_dict().items():
        if field in fields or field in ("rope_parameters", "head_dim", "max_position_embeddings", "eos_token_id"):
            assert kept[field] == value, field


def test_older_files_of_llama_say_their_positions_otherwise(tmp_path):
    model = make("llama", {**SIZES, "rope_parameters": SCALED})
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    scaling = config.pop("rope_parameters")
    path.write_text(json.dumps({**config, "rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}))
    lm = plm_jax.load(tmp_path)
    assert lm.config.attention.position == settings.Rotary(
        1000.0, scaling=settings.RotaryScaling(4.0, 1.0, 2.0, 16), length=2048
    )
    tokens, real = np.random.default_rng(0).integers(0, 37, theirs.MASK.shape), theirs.MASK == 1
    np.testing.assert_allclose(lm.logits(tokens, theirs.MASK)[real], outputs(model, tokens)[0][real], atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "glm", "openai-gpt"])
def test_the_bare_model_in_shards_loads(family, tmp_path):
    fields = {"llama": SIZES, "glm": GLM_SIZES, "openai-gpt": GPT1_SIZES}[family]
    model = make(family, {**fields, "tie_word_embeddings": True})
    model.base_model.save_pretrained(tmp_path, max_shard_size="4KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    tokens, real = np.random.default_rng(0).integers(0, 37, theirs.MASK.shape), theirs.MASK == 1
    got = plm_jax.load(tmp_path).logits(tokens, theirs.MASK)
    np.testing.assert_allclose(got[real], outputs(model, tokens)[0][real], atol=1e-4)


@pytest.mark.parametrize("begins", [True, False])
def test_a_vocabulary_travels_along_and_says_whether_texts_begin_with_bos(begins, tmp_path):
    pieces = io.BytesIO()
    texts = iter(["the state of the union is strong and we the people stand"] * 30)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=texts, model_writer=pieces, vocab_size=37, model_type="bpe", minloglevel=2
    )
    make("llama", SIZES).save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "tokenizer.model").write_bytes(pieces.getvalue())
    (tmp_path / "theirs" / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": begins}))
    lm = plm_jax.load(tmp_path / "theirs")
    lm.save(tmp_path / "ours")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    want = tokenizer("the state").input_ids
    assert (want[0] == 1) == begins
    assert lm._encode("the state") == want
