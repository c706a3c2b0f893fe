"""ELECTRA without Hugging Face: golden files, settings, and saving of pairs and SpanBERTs."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

import plm_jax
from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.hub import families, huggingface
from plm_jax.hub.electra import ElectraFamily
from plm_jax.inference.language_model import LanguageModel
from plm_jax.models import registry
from tests import golden
from tests.support import tiny

SMALL = {"hidden_size": 6, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 5}


@pytest.mark.parametrize("name", golden.ELECTRA)
def test_discriminator_and_generator_have_separate_heads(name):
    lm, want = plm_jax.load(golden.FOLDER / name), golden.expected(name)
    inputs = {key: want[key] for key in ("tokens", "mask", "token_types")}
    absent = {"electra": (None, "vocabulary"), "electra_generator": ("discriminator", "discriminator")}[name]
    with pytest.raises(UserError, match=f"this model has no {absent[1]} head"):
        lm.logits(**inputs, head=absent[0])


def test_settings_match_config():
    model = ElectraFamily().to_settings({"hidden_act": "relu"})
    assert model.discriminator == models.Discriminator("relu")
    assert model.head.transform == "gelu_exact"
    assert (model.embedding.width, model.embedding.embedding_size) == (256, 128)
    assert ElectraFamily().to_settings({"embedding_size": 256}).embedding.embedding_size is None


def test_discriminator_with_other_activation_is_rejected(tmp_path):
    model = replace(
        ElectraFamily().to_settings(SMALL), head=models.NoHead(), discriminator=models.Discriminator("tanh")
    )
    with pytest.raises(UserError, match=r"ELECTRA.*discriminator\.activation = gelu_exact"):
        huggingface.write(tmp_path / "out", huggingface.Pretrained(model, {}))
    assert not (tmp_path / "out").exists()


def random_model(model):
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32) / 4, registry.shapes(model))
    return LanguageModel(model, params)


TOKENS = np.arange(12).reshape(2, 6)


def test_discriminator_of_pair_is_saved(tmp_path):
    pair = random_model(tiny.ELECTRA)
    with pytest.warns(UserWarning, match="no place for 'generator': it is left out"):
        pair.save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["ElectraForPreTraining"]
    saved = plm_jax.load(tmp_path)
    assert isinstance(saved.config, models.EncoderConfig) and not isinstance(saved.config, models.ElectraConfig)
    scores, want = (lm.logits(TOKENS, head="discriminator") for lm in (saved, pair))
    np.testing.assert_array_equal(scores, want)
    assert pair.logits(TOKENS).shape == (2, 6, 272)
    np.testing.assert_array_equal(saved.hidden_states(TOKENS), pair.hidden_states(TOKENS))


def test_spanbert_is_saved_as_bert(tmp_path):
    spanbert = random_model(tiny.SPANBERT)
    with pytest.warns(UserWarning, match="no place for 'span_boundary': it is left out"):
        spanbert.save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]
    saved = plm_jax.load(tmp_path)
    assert saved.config.span_boundary == models.NoHead()
    np.testing.assert_array_equal(saved.logits(TOKENS), spanbert.logits(TOKENS))


def test_each_family_keeps_its_settings():
    for name in ("bert", *golden.ELECTRA):
        kind = families.family_of(huggingface.read(golden.FOLDER / name).model).kind
        assert kind == name.removesuffix("_generator")
