"""BERT side by side with transformers, on random weights."""

import json
import re

import numpy as np
import pytest

import plm_jax
from plm_jax.models import settings

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from tests.support import theirs  # noqa: E402

CONFIGS = {
    "odd_heads_tanh_gelu": {"hidden_size": 21, "num_attention_heads": 7, "hidden_act": "gelu_new"},
    "one_type_large_epsilon": {"type_vocab_size": 1, "layer_norm_eps": 0.1, "num_hidden_layers": 1},
    "three_types_untied": {"type_vocab_size": 3, "tie_word_embeddings": False, "intermediate_size": 5},
}


def make(architecture, **fields):
    config = transformers.BertConfig(**{**theirs.SIZES["bert"], **fields})
    return theirs.randomised(getattr(transformers, architecture), config)


@pytest.mark.parametrize("name", CONFIGS)
def test_both_heads_and_hidden_states_are_equal_and_what_we_save_opens_there(name, tmp_path):
    model = make("BertForPreTraining", **CONFIGS[name])
    model.save_pretrained(tmp_path / "theirs")
    lm, (inputs, want) = plm_jax.load(tmp_path / "theirs"), theirs.run(model)
    real = theirs.MASK == 1
    np.testing.assert_allclose(lm.logits(**inputs)[real], want["prediction_logits"][real], atol=1e-4)
    pair = lm.logits(**inputs, head="sentence_pair")
    np.testing.assert_allclose(pair, want["seq_relationship_logits"], atol=1e-4)
    np.testing.assert_allclose(
        np.asarray(lm.hidden_states(**inputs))[:, real], want["hidden_states"][:, real], atol=1e-4
    )

    lm.save(tmp_path / "ours")
    again = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "ours").eval()
    np.testing.assert_array_equal(theirs.run(again)[1]["prediction_logits"], want["prediction_logits"])
    theirs.assert_same_state(model, again, unused=[] if lm.config.head.tied else ["cls.predictions.bias"])
    for field in ("hidden_act", "hidden_dropout_prob", "layer_norm_eps", "type_vocab_size"):
        assert getattr(again.config, field) == getattr(model.config, field)


@pytest.mark.parametrize(
    ("architecture", "head", "pooler"),
    [
        ("BertForMaskedLM", True, settings.NoHead()),
        ("BertForNextSentencePrediction", False, settings.Pooler(2)),
        ("BertModel", False, settings.Pooler(0)),
    ],
)
def test_a_file_with_some_of_the_heads_gives_those(architecture, head, pooler, tmp_path):
    model = make(architecture)
    model.save_pretrained(tmp_path / "theirs")
    lm = plm_jax.load(tmp_path / "theirs")
    assert isinstance(lm.config.head, settings.VocabularyHead) == head
    assert lm.config.pooler == pooler
    assert lm.num_parameters == model.num_parameters()
    lm.save(tmp_path / "ours")
    again = getattr(transformers, architecture).from_pretrained(tmp_path / "ours")
    assert again.config.architectures == [architecture]
    theirs.assert_same_state(model, again)


def test_the_encoder_of_a_fine_tuned_model_loads_and_its_head_is_named_as_left_out(tmp_path):
    model = make("BertForQuestionAnswering")
    model.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=re.escape("left out: qa_outputs.bias, qa_outputs.weight")):
        lm = plm_jax.load(tmp_path)
    inputs, want = theirs.run(model)
    real = theirs.MASK == 1
    np.testing.assert_allclose(
        np.asarray(lm.hidden_states(**inputs))[:, real], want["hidden_states"][:, real], atol=1e-4
    )


@pytest.mark.parametrize("cased", [False, True])
def test_a_word_piece_vocabulary_travels_along(cased, tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "state", "##ly", *(["The"] if cased else [])]
    make("BertModel").save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "vocab.txt").write_text("\n".join(words) + "\n")
    plm_jax.load(tmp_path / "theirs").save(tmp_path / "ours")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert tokenizer.tokenize("The stately") == ["The" if cased else "the", "state", "##ly"]


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("words", [["é", "e", "the"], ["é", "e", "the", "The"]])
def test_case_is_what_the_tokenizer_s_config_says(words, lower, tmp_path):
    """Whatever the letters of vocab.txt are."""
    make("BertModel").save_pretrained(tmp_path / "theirs")
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (tmp_path / "theirs" / "vocab.txt").write_text("\n".join(tokens) + "\n")
    told = {"tokenizer_class": "BertTokenizer", "do_lower_case": lower}
    (tmp_path / "theirs" / "tokenizer_config.json").write_text(json.dumps(told))
    plm_jax.load(tmp_path / "theirs").save(tmp_path / "ours")
    for path in (tmp_path / "theirs", tmp_path / "ours"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        want = tokenizer("The é É", add_special_tokens=False).input_ids
        assert want == [7, 6, 6] if lower else want[1:] == [5, 1]
        assert plm_jax.load(path).vocabulary.encode("The é É") == want
