"""T5 side by side with transformers, on random weights."""

import io

import numpy as np
import pytest
import sentencepiece

import plm_jax

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from tests.support import theirs  # noqa: E402

CONFIGS = {
    "odd_heads_shallow_decoder": {"d_kv": 3, "num_heads": 5, "num_decoder_layers": 1},
    "1.1_few_buckets_deep_decoder": {
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,  # So it is not scaled.
        "num_layers": 1,
        "num_decoder_layers": 3,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 5,
    },
    "scaled_gated_silu_large_epsilon": {"feed_forward_proj": "gated-silu", "layer_norm_epsilon": 0.1},
}


def make(untied=False, **fields):
    config = transformers.T5Config(**{**theirs.SIZES["t5"], **fields})
    return theirs.randomised(transformers.T5ForConditionalGeneration, config, untied)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_hidden_states_are_equal_and_what_we_save_opens_there(name, tmp_path):
    model = make(untied=name.startswith("1.1"), **CONFIGS[name])
    model.save_pretrained(tmp_path / "theirs")
    lm, (inputs, want) = plm_jax.load(tmp_path / "theirs"), theirs.run(model)
    assert lm.num_parameters == model.num_parameters()
    real, decoder_real = theirs.MASK == 1, theirs.DECODER_MASK == 1
    np.testing.assert_allclose(lm.logits(**inputs)[decoder_real], want["logits"][decoder_real], atol=1e-4)
    encoded = np.asarray(lm.hidden_states(inputs["tokens"], inputs["mask"]))
    np.testing.assert_allclose(encoded[:, real], want["encoder_hidden_states"][:, real], atol=1e-4)
    decoded, wanted = np.asarray(lm.hidden_states(**inputs)), want["decoder_hidden_states"]
    np.testing.assert_allclose(decoded[:, decoder_real], wanted[:, decoder_real], atol=1e-4)

    lm.save(tmp_path / "ours")
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").eval()
    np.testing.assert_array_equal(theirs.run(again)[1]["logits"], want["logits"])
    theirs.assert_same_state(model, again)
    for field in ("feed_forward_proj", "dropout_rate", "layer_norm_epsilon", "pad_token_id", "eos_token_id"):
        assert getattr(again.config, field) == getattr(model.config, field)
    assert again.generation_config.decoder_start_token_id == 0


def test_a_sentence_piece_vocabulary_travels_along_with_its_sentinels(tmp_path):
    model = io.BytesIO()
    texts = iter(["the state of the union is strong and we the people stand"] * 30)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=texts,
        model_writer=model,
        vocab_size=27,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    make().save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "spiece.model").write_bytes(model.getvalue())
    (tmp_path / "theirs" / "tokenizer_config.json").write_text('{"extra_ids": 9}')
    plm_jax.load(tmp_path / "theirs").save(tmp_path / "ours")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    assert tokenizer("the state").input_ids == [*pieces.encode("the state"), 1]
    assert tokenizer("<extra_id_0><extra_id_8>").input_ids == [35, 27, 1]
