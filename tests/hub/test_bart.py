"""BART side by side with transformers, on random weights."""

import json
from functools import partial

import numpy as np
import pytest

import plm_jax
from plm_jax.inference import decoding

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from tests.support import theirs  # noqa: E402

CONFIGS = {
    "odd_heads_tanh_gelu_scaled": {
        **{"d_model": 21, "encoder_attention_heads": 7, "decoder_attention_heads": 7},
        **{"activation_function": "gelu_new", "scale_embedding": True},
    },
    "untied_shallow_encoder_deep_decoder_silu": {
        **{"encoder_layers": 1, "decoder_layers": 3, "activation_function": "silu"},
        **{"attention_dropout": 0.3, "activation_dropout": 0.2},
    },
    "head_bias_relu_narrow": {"activation_function": "relu", "encoder_ffn_dim": 5, "decoder_ffn_dim": 5},
    "halves_of_different_heads_widths_and_layers": {
        **{"encoder_attention_heads": 3, "decoder_attention_heads": 2, "encoder_layers": 3, "decoder_layers": 1},
        **{"encoder_ffn_dim": 20, "decoder_ffn_dim": 7, "encoder_layerdrop": 0.1, "decoder_layerdrop": 0.2},
    },
}


def make(architecture="BartForConditionalGeneration", untied=False, **fields):
    config = transformers.BartConfig(**{**theirs.SIZES["bart"], **fields})
    return theirs.randomised(getattr(transformers, architecture), config, untied)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_hidden_states_are_equal_and_what_we_save_opens_there(name, tmp_path):
    model = make(untied=name.startswith("untied"), **CONFIGS[name])
    has_bias = name.startswith("head_bias")
    if has_bias:
        torch.nn.init.normal_(model.final_logits_bias)
    model.save_pretrained(tmp_path / "theirs")
    lm, (inputs, want) = plm_jax.load(tmp_path / "theirs"), theirs.run(model)
    assert lm.num_parameters == model.num_parameters() + (37 if has_bias else 0)
    real, decoder_real = theirs.MASK == 1, theirs.RIGHT_MASK == 1
    np.testing.assert_allclose(lm.logits(**inputs)[decoder_real], want["logits"][decoder_real], atol=1e-4)
    encoded = np.asarray(lm.hidden_states(inputs["tokens"], inputs["mask"]))
    np.testing.assert_allclose(encoded[:, real], want["encoder_hidden_states"][:, real], atol=1e-4)
    decoded, wanted = np.asarray(lm.hidden_states(**inputs)), want["decoder_hidden_states"]
    np.testing.assert_allclose(decoded[:, decoder_real], wanted[:, decoder_real], atol=1e-4)

    lm.save(tmp_path / "ours")
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").eval()
    np.testing.assert_array_equal(theirs.run(again)[1]["logits"], want["logits"])
    theirs.assert_same_state(model, again)
    for field in ("activation_function", "dropout", "attention_dropout", "activation_dropout", "scale_embedding"):
        assert getattr(again.config, field) == getattr(model.config, field)
    for field in ("bos_token_id", "pad_token_id", "eos_token_id"):
        assert getattr(again.config, field) == getattr(model.config, field)
    assert again.generation_config.decoder_start_token_id == 2


def test_the_bare_model_loads(tmp_path):
    model = make("BartModel")
    model.save_pretrained(tmp_path)
    lm, (inputs, want) = plm_jax.load(tmp_path), theirs.run(model)
    real = theirs.RIGHT_MASK == 1
    np.testing.assert_allclose(
        np.asarray(lm.hidden_states(**inputs))[:, real], want["decoder_hidden_states"][:, real], atol=1e-4
    )
    assert lm.num_parameters == model.num_parameters() and lm.config.head.tied


def test_the_stacks_of_a_fine_tuned_model_load_and_its_head_is_named_as_left_out(tmp_path):
    make("BartForSequenceClassification", num_labels=2).save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"left out: .*classification_head\.dense\.bias"):
        plm_jax.load(tmp_path)


@pytest.mark.parametrize("beams", [1, 3])
def test_continuations_are_equal(beams, tmp_path):
    model = make(max_position_embeddings=40)
    model.save_pretrained(tmp_path)
    lm = plm_jax.load(tmp_path)
    prompts = [[0, 8, 15, 16, 2], [0, 23, 2], [0, 3, 4, 20, 31, 6, 9, 8, 7, 6, 11, 2]]
    tokens, mask = decoding.padded(prompts, 12)

    def generate(eos):
        with torch.no_grad():
            rows = model.generate(
                input_ids=torch.tensor(tokens).long(),
                attention_mask=torch.tensor(mask).long(),
                max_new_tokens=10,
                num_beams=beams,
                do_sample=False,
                eos_token_id=eos,
                forced_eos_token_id=None,
            )[:, 1:].tolist()
        return [row[: row.index(eos)] if eos in row else row for row in rows]

    ours = partial(decoding.generate, lm.model, lm.params, prompts, max_new_tokens=10, num_beams=beams, start_id=2)
    got = ours(eos_ids=[2])
    assert got == generate(2)
    end = got[0][3]
    got = ours(eos_ids=[end])
    assert got == generate(end)
    assert len({*map(len, got), 10}) > 1


def test_a_byte_level_vocabulary_travels_along_and_frames_texts(tmp_path):
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = ["<s>", "<pad>", "</s>", "<unk>", *sorted(ByteLevel.alphabet()), "<mask>"]
    make(vocab_size=len(tokens)).save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (tmp_path / "theirs" / "merges.txt").write_text("#version: 0.2\n")
    lm = plm_jax.load(tmp_path / "theirs")
    lm.save(tmp_path / "ours")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    text = list(lm.vocabulary.encode("the state"))
    assert tokenizer("the state").input_ids == [0, *text, 2] == lm._encode("the state")
    assert tokenizer("the<mask>").input_ids == [0, *text[:3], len(tokens) - 1, 2] == lm._encode("the [MASK]")
