"""ELECTRA side by side with transformers, on random weights."""

import json

import numpy as np
import pytest

import plm_jax
from plm_jax.models import settings

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from tests.support import theirs  # noqa: E402

DISCRIMINATOR, GENERATOR = "ElectraForPreTraining", "ElectraForMaskedLM"
CONFIGS = {
    "odd_heads_wide_tables": (DISCRIMINATOR, {"hidden_size": 21, "num_attention_heads": 7, "embedding_size": 25}),
    "one_width_tanh_gelu": (DISCRIMINATOR, {"embedding_size": 12, "hidden_act": "gelu_new", "type_vocab_size": 1}),
    "one_layer_relu_generator": (GENERATOR, {"num_hidden_layers": 1, "hidden_act": "relu", "layer_norm_eps": 0.1}),
    "untied_generator": (GENERATOR, {"tie_word_embeddings": False, "type_vocab_size": 3, "embedding_size": 20}),
}


def make(architecture, **fields):
    config = transformers.ElectraConfig(**{**theirs.SIZES["electra"], **fields})
    return theirs.randomised(getattr(transformers, architecture), config)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_hidden_states_are_equal_and_what_we_save_opens_there(name, tmp_path):
    architecture, fields = CONFIGS[name]
    model = make(architecture, **fields)
    model.save_pretrained(tmp_path / "theirs")
    lm, (inputs, want) = plm_jax.load(tmp_path / "theirs"), theirs.run(model)
    real = theirs.MASK == 1
    head = "discriminator" if architecture == DISCRIMINATOR else None
    np.testing.assert_allclose(lm.logits(**inputs, head=head)[real], want["logits"][real], atol=1e-4)
    hidden = np.asarray(lm.hidden_states(**inputs))
    assert hidden.shape == want["hidden_states"].shape
    np.testing.assert_allclose(hidden[:, real], want["hidden_states"][:, real], atol=1e-4)

    lm.save(tmp_path / "ours")
    again = getattr(transformers, architecture).from_pretrained(tmp_path / "ours").eval()
    np.testing.assert_array_equal(theirs.run(again)[1]["logits"], want["logits"])
    theirs.assert_same_state(model, again)
    written, original = (json.loads((tmp_path / side / "config.json").read_text()) for side in ("ours", "theirs"))
    common = written.keys() & original.keys()
    assert {key: written[key] for key in common} == {key: original[key] for key in common}
    assert len(common) > 15


def test_a_bare_model_has_no_head(tmp_path):
    model = make("ElectraModel")
    model.save_pretrained(tmp_path / "theirs")
    lm = plm_jax.load(tmp_path / "theirs")
    assert lm.config.head == lm.config.discriminator == lm.config.pooler == settings.NoHead()
    assert lm.num_parameters == model.num_parameters()
    lm.save(tmp_path / "ours")
    again = transformers.AutoModel.from_pretrained(tmp_path / "ours")
    assert again.config.architectures == ["ElectraModel"]
    theirs.assert_same_state(model, again)


def test_the_encoder_of_a_fine_tuned_model_loads(tmp_path):
    model = make("ElectraForSequenceClassification")
    model.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="left out: classifier"):
        lm = plm_jax.load(tmp_path)
    inputs, want = theirs.run(model)
    hidden, real = np.asarray(lm.hidden_states(**inputs)), theirs.MASK == 1
    np.testing.assert_allclose(hidden[:, real], want["hidden_states"][:, real], atol=1e-4)


def test_a_word_piece_vocabulary_travels_along(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "state", "##ly"]
    make(DISCRIMINATOR).save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "vocab.txt").write_text("\n".join(words) + "\n")
    plm_jax.load(tmp_path / "theirs").save(tmp_path / "ours")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert tokenizer("The stately").input_ids == [2, 5, 6, 7, 3]
