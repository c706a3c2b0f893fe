"""BART and mT5 without Hugging Face: golden files, settings that follow from tensors, and vocabularies."""

import shutil
from dataclasses import replace

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import plm_jax
from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.hub import families, huggingface
from plm_jax.hub.bart import BartFamily
from plm_jax.hub.mt5 import Mt5Family
from plm_jax.models import registry
from tests import golden


@pytest.fixture
def folder(tmp_path):
    """Copy of the golden BART that a test may change."""
    return shutil.copytree(golden.FOLDER / "bart", tmp_path / "bart")


def edit_tensors(folder, edit):
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_zero_head_bias_is_no_parameter(folder, tmp_path):
    with_bias = plm_jax.load(folder)
    assert with_bias.config.head.bias and with_bias.params["head_bias"].shape == (37,)
    edit_tensors(folder, lambda tensors: tensors["final_logits_bias"].fill(0))
    without = plm_jax.load(folder)
    assert not without.config.head.bias and "head_bias" not in without.params
    assert with_bias.num_parameters - without.num_parameters == 37
    one, other = (lm.logits([[0, 5, 2]], decoder_tokens=[[2, 0, 5]]) for lm in (with_bias, without))
    np.testing.assert_allclose(one - other, np.broadcast_to(with_bias.params["head_bias"], one.shape), atol=1e-4)
    without.save(tmp_path / "copy")
    assert huggingface.read(tmp_path / "copy").model == without.config


def test_copies_of_token_table_are_accepted(folder):
    def old(tensors):
        for stack in ("encoder", "decoder"):
            tensors[f"model.{stack}.embed_tokens.weight"] = tensors["model.shared.weight"]
            tensors[f"model.{stack}.version"] = np.array([3.0], np.float32)
        tensors["lm_head.weight"] = tensors["model.shared.weight"]

    want = huggingface.read(folder)
    edit_tensors(folder, old)
    got = huggingface.read(folder)
    assert got.model == want.model
    assert got.special_ids == want.special_ids
    assert got.special_ids["decoder_start_token_id"] == 2
    for name in ("token_embedding", "encoder_position_embedding", "decoder_position_embedding", "head_bias"):
        np.testing.assert_array_equal(got.params[name], want.params[name])


def test_empty_config_is_bart_large_and_mt5_small():
    model = BartFamily().to_settings({})
    assert (model.stack.layers, model.decoder_stack.layers, model.embedding.width) == (12, 12, 1024)
    assert (model.attention.heads, model.feed_forward.width, model.embedding.vocab_size) == (16, 4096, 50265)
    assert model.attention.position == models.LearnedPositions(1024, offset=2)
    model = Mt5Family().to_settings({})
    assert (model.stack.layers, model.embedding.width, model.feed_forward.width) == (8, 512, 1024)
    assert (model.embedding.vocab_size, model.attention.heads, model.feed_forward.gated) == (250112, 6, True)


@pytest.mark.parametrize(
    ("section", "value", "words"),
    [
        ("embedding", {"norm": False}, "BART.*embedding.norm = True"),
        ("attention", {"bias": False}, "attention.bias = True"),
        ("norm", {"epsilon": 0.1}, "norm.epsilon = 1e-05"),
        ("norm", {"placement": "pre"}, "norm.placement = post"),
        ("attention", {"position": models.LearnedPositions(1024)}, "position.offset = 2"),
        ("head", {"scale_by_width": True}, "head.scale_by_width = False"),
    ],
)
def test_settings_unsupported_by_bart_are_rejected(tmp_path, section, value, words):
    model = BartFamily().to_settings({"d_model": 6, "encoder_attention_heads": 2, "decoder_attention_heads": 2})
    model = replace(model, **{section: replace(getattr(model, section), **value)})
    with pytest.raises(UserError, match=words):
        huggingface.write(tmp_path / "out", huggingface.Pretrained(model, {}))


def test_explicit_equal_decoder_sizes_are_saved(tmp_path):
    sizes = {"d_model": 6, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 5, "encoder_ffn_dim": 4}
    model = BartFamily().to_settings(sizes | {"encoder_attention_heads": 3, "decoder_attention_heads": 2})
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), registry.shapes(model))
    huggingface.write(tmp_path / "out", huggingface.Pretrained(model, params))
    assert huggingface.read(tmp_path / "out").model == model
    even = BartFamily().to_settings(
        sizes | {"encoder_attention_heads": 3, "decoder_attention_heads": 3, "decoder_ffn_dim": 4}
    )
    assert even.decoder_heads is even.decoder_head_dim is even.decoder_feed_forward is None
    spelt = replace(even, decoder_heads=3, decoder_head_dim=2, decoder_feed_forward=4)
    assert families.family_of(spelt).name == "BART"
    with pytest.raises(UserError, match="decoder_attention_heads 4 does not divide d_model 6"):
        BartFamily().to_settings(sizes | {"encoder_attention_heads": 3, "decoder_attention_heads": 4})
    with pytest.raises(UserError, match=r"T5.*decoder_heads = None"):
        families.family_of(replace(Mt5Family().to_settings({}), decoder_heads=2), "t5")


def test_bart_heads_must_divide_width_but_not_t5(tmp_path):
    odd = {"d_model": 6, "d_kv": 4, "num_heads": 4, "d_ff": 4, "num_layers": 1, "vocab_size": 5}
    model = Mt5Family().to_settings(odd)
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), registry.shapes(model))
    huggingface.write(tmp_path / "out", huggingface.Pretrained(model, params))
    assert huggingface.read(tmp_path / "out").model == model


@pytest.mark.parametrize(("extra_ids", "sentinels"), [({}, 3), ({"extra_ids": 0}, 3), ({"extra_ids": 2}, 5)])
def test_mt5_counts_sentinels_in_and_above_its_file(extra_ids, sentinels):
    file = b"pieces <extra_id_2> <extra_id_1> <extra_id_0>"
    ids = Mt5Family().special_ids([file], extra_ids)
    assert ids == {"sentinels": sentinels}
    assert Mt5Family().tokenizer_config([file], ids)["extra_ids"] == extra_ids.get("extra_ids", 0)
