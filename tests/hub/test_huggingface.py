"""Hugging Face directories without Hugging Face: golden files, round trips and error messages."""

import json
import pathlib
import shutil
from dataclasses import replace

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import plm_jax
from plm_jax import models
from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.hub import families, files, huggingface
from plm_jax.inference.language_model import LanguageModel
from tests import golden
from tests.support import roles, tiny
from tests.support.random_models import random_params


def copy_of(name, tmp_path):
    """Returns a copy of a golden directory that a test may change."""
    return shutil.copytree(golden.FOLDER / name, tmp_path / name)


@pytest.fixture
def folder(tmp_path):
    return copy_of("gpt2", tmp_path)


def edit_config(folder, **fields):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


def edit_tensors(folder, edit):
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, folder / "model.safetensors")


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert jax.tree.all(jax.tree.map(np.array_equal, a, b))


def assert_refused(folder, *words):
    with pytest.raises(UserError) as error:
        huggingface.read(folder)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_fused_tensor_splits_into_query_key_value():
    params = huggingface.read(golden.FOLDER / "gpt2").params
    fused = load_file(golden.FOLDER / "gpt2" / "model.safetensors")["transformer.h.1.attn.c_attn.weight"]
    parts = [params["stack"]["blocks"]["attention"][name]["kernel"][1] for name in ("query", "key", "value")]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), fused)


def shard(folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


def bare(tensors):
    """Renames tensors to the format of `GPT2Model` and adds the buffers that old versions stored."""
    for name in list(tensors):
        tensors[name.removeprefix("transformer.")] = tensors.pop(name)
    for layer in range(2):
        tensors[f"h.{layer}.attn.bias"] = np.tril(np.ones((1, 1, 32, 32), np.float32))
        tensors[f"h.{layer}.attn.masked_bias"] = np.array(-1e4, np.float32)


def head_stored_twice(tensors):
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"]


def old_bert(tensors):
    """The format of early files: other names of the norms, copies of tied tensors, a buffer."""
    for name in list(tensors):
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        tensors[old] = tensors.pop(name)
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"]
    tensors["bert.embeddings.position_ids"] = np.arange(12)[None]


def old_t5(tensors):
    """The format of early files: copies of tied tensors, an unused table."""
    for stack in ("encoder", "decoder"):
        tensors[f"{stack}.embed_tokens.weight"] = tensors["shared.weight"]
    bias = tensors["decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    tensors["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = bias + 1


def t5_without_shared(tensors):
    old_t5(tensors)
    del tensors["shared.weight"]


def old_bart(tensors):
    for stack in ("encoder", "decoder"):
        tensors[f"model.{stack}.embed_tokens.weight"] = tensors["model.shared.weight"]
        tensors[f"model.{stack}.version"] = np.array([3.0], np.float32)
    tensors["lm_head.weight"] = tensors["model.shared.weight"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gpt2", None),
        *(("gpt2", change) for change in (bare, head_stored_twice)),
        *(("bert", old_bert), ("t5", old_t5), ("t5", t5_without_shared), ("bart", old_bart)),
    ],
)
def test_other_formats_load_equally(tmp_path, name, change):
    folder = copy_of(name, tmp_path)
    if change:
        edit_tensors(folder, change)
    else:
        shard(folder)
    got, want = huggingface.read(folder), huggingface.read(golden.FOLDER / name)
    assert (got.model, got.special_ids) == (want.model, want.special_ids)
    assert_same(got.params, want.params)


@pytest.mark.parametrize(
    ("name", "copy"), [("bert", "cls.predictions.decoder.bias"), ("t5", "decoder.embed_tokens.weight")]
)
def test_differing_copy_is_rejected(tmp_path, name, copy):
    folder = copy_of(name, tmp_path)
    edit_tensors(folder, old_bert if name == "bert" else old_t5)
    edit_tensors(folder, lambda tensors: tensors.update({copy: tensors[copy] + 1}))
    assert_refused(folder, f"copies that differ: {copy}")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_float_types_become_float32(folder, dtype):
    want = jax.tree.map(lambda x: x.astype(dtype).astype(np.float32), huggingface.read(folder).params)
    edit_tensors(folder, lambda tensors: tensors.update({k: v.astype(dtype) for k, v in tensors.items()}))
    got = huggingface.read(folder).params
    assert_same(got, want)
    assert {leaf.dtype for leaf in jax.tree.leaves(got)} == {np.dtype(np.float32)}
    with huggingface.opened(folder) as pretrained:
        huggingface.write(folder.parent / "copy", pretrained)
    assert json.loads((folder.parent / "copy/config.json").read_text())["dtype"] == np.dtype(dtype).name


def test_all_mismatched_tensors_are_reported_in_one_line(folder):
    def edit(tensors):
        del tensors["transformer.h.1.mlp.c_fc.bias"]
        tensors["transformer.h.2.ln_1.weight"] = tensors["transformer.h.1.ln_1.weight"]
        tensors["transformer.wpe.weight"] = tensors["transformer.wpe.weight"][:-1]
        tensors["transformer.h.0.mlp.c_fc.weight"] = tensors["transformer.h.0.mlp.c_fc.weight"].T
        tensors["transformer.ln_f.bias"] = tensors["transformer.ln_f.bias"].astype(np.int8)

    edit_tensors(folder, edit)
    assert_refused(
        folder,
        "missing: transformer.h.1.mlp.c_fc.bias",
        "unknown: transformer.h.2.ln_1.weight",
        "transformer.wpe.weight is F32 [31, 24] and not [32, 24]",
        "transformer.h.0.mlp.c_fc.weight is F32 [40, 24] and not [24, 40]",
        "transformer.ln_f.bias is I8",
    )


def test_long_list_of_mismatches_is_truncated(folder):
    edit_config(folder, n_layer=9)
    assert_refused(folder, "missing: transformer.h.2.attn.c_attn.bias", "and 79 more")


def test_untied_model_without_head_is_rejected(folder):
    edit_config(folder, tie_word_embeddings=False)
    assert_refused(folder, "missing: lm_head.weight")


def test_damaged_and_missing_files_are_reported(folder):
    weights, whole = folder / "model.safetensors", (folder / "model.safetensors").read_bytes()
    for content in (whole[:-10], whole[:100], b"", b"garbage " * 9):
        weights.write_bytes(content)
        assert_refused(folder, "model.safetensors is damaged", "fetch it again")
    weights.unlink()
    assert_refused(folder, "neither model.safetensors nor model.safetensors.index.json")
    weights.write_bytes(whole)
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert_refused(folder, "model-00002-of-00002.safetensors is missing")
    for content in ("{", "{}", "[]", '{"weight_map": {"a": 1}}'):
        (folder / "model.safetensors.index.json").write_text(content)
        assert_refused(folder, "model.safetensors.index.json is damaged")
    for content in ("{", "[]", "\xff"):
        (folder / "config.json").write_bytes(content.encode("latin-1"))
        assert_refused(folder, "config.json is damaged")
    (folder / "config.json").unlink()
    assert_refused(folder, "config.json is missing")


@pytest.mark.parametrize(
    ("name", "vocabulary", "contents", "ids"),
    [
        ("gpt2", "bpe:{0}/vocab.json,{0}/merges.txt", ("{}", "#version"), {}),
        ("roberta", "bpe:{0}/vocab.json,{0}/merges.txt", ('{"<s>": 0, "a": 1, "<mask>": 2}', ""), {"mask_token_id": 2}),
        (
            "distilbert",
            "wordpiece:{0}/vocab.txt",
            ("[CLS]\nThe\n[MASK]\n",),
            {"cls_token_id": 0, "mask_token_id": 2, "lowercase": False},
        ),
        ("bert", "wordpiece:{0}/vocab.txt", ("[MASK]\n[CLS]\nword\n",), {"cls_token_id": 1, "mask_token_id": 0}),
        ("t5", "sentencepiece:{0}/spiece.model", ("pieces",), {"sentinels": 100, "decoder_start_token_id": 0}),
        ("t5", "sentencepiece:{0}/spiece.model", ("pieces", '{"extra_ids": 7}'), {"sentinels": 7}),
    ],
)
def test_vocabulary_and_special_ids_are_saved(name, vocabulary, contents, ids, tmp_path):
    folder = copy_of(name, tmp_path)
    vocabulary_paths = [pathlib.Path(path) for path in vocabulary.format(folder).partition(":")[2].split(",")]
    for path, content in zip([*vocabulary_paths, folder / "tokenizer_config.json"], contents, strict=False):
        assert huggingface.read(folder).vocabulary is None or path.name == "tokenizer_config.json"
        path.write_text(content)
    pretrained = huggingface.read(folder)
    assert pretrained.vocabulary == vocabulary.format(folder)
    assert pretrained.special_ids.items() >= ids.items()
    huggingface.write(tmp_path / "copy", pretrained)
    copy = huggingface.read(tmp_path / "copy")
    assert copy.vocabulary == vocabulary.format(tmp_path / "copy")
    assert copy.special_ids == pretrained.special_ids
    for path in vocabulary_paths:
        assert (tmp_path / "copy" / path.name).read_bytes() == path.read_bytes()
    if name in ("roberta", "distilbert"):
        tokenizer = json.loads((tmp_path / "copy" / "tokenizer_config.json").read_text())
        assert tokenizer["tokenizer_class"].lower() == f"{name}tokenizer"


@pytest.mark.parametrize(("name", "file"), [("roberta", "vocab.json"), ("albert", "the SentencePiece model")])
def test_damaged_vocabulary_is_reported(name, file, tmp_path):
    folder = copy_of(name, tmp_path)
    for kind_files in families.registered()[name].vocabulary_files.values():
        for path in kind_files:
            (folder / path).write_text("{")
    assert_refused(folder, f"{file} is damaged")


def test_roberta_with_other_padding_id_is_rejected(tmp_path):
    """With another padding id, `transformers` would count positions differently."""
    pretrained = huggingface.read(golden.FOLDER / "roberta")
    for ids in ({}, {"pad_token_id": 0}):
        with pytest.raises(UserError, match=f"requires pad_token_id = 3, but this model has {ids.get('pad_token_id')}"):
            huggingface.write(tmp_path / "out", replace(pretrained, special_ids=ids))
    assert not (tmp_path / "out").exists()


def test_zero_head_bias_is_no_parameter(tmp_path):
    folder = copy_of("bart", tmp_path)
    with_bias = plm_jax.load(folder)
    assert with_bias.config.head.bias and with_bias.params["head_bias"].shape == (37,)
    edit_tensors(folder, lambda tensors: tensors["final_logits_bias"].fill(0))
    without = plm_jax.load(folder)
    assert not without.config.head.bias and "head_bias" not in without.params
    one, other = (lm.logits([[0, 5, 2]], decoder_tokens=[[2, 0, 5]]) for lm in (with_bias, without))
    np.testing.assert_allclose(one - other, np.broadcast_to(with_bias.params["head_bias"], one.shape), atol=1e-4)
    without.save(tmp_path / "copy")
    assert huggingface.read(tmp_path / "copy").model == without.config


@pytest.mark.parametrize(
    ("name", "head", "message"),
    [("electra", None, "no vocabulary head"), ("electra_generator", "discriminator", "no discriminator head")],
)
def test_discriminator_and_generator_have_separate_heads(name, head, message):
    with pytest.raises(UserError, match=message):
        plm_jax.load(golden.FOLDER / name).logits([[1, 2, 3]], head=head)


@pytest.mark.parametrize(
    ("model", "left_out", "architecture", "head"),
    [
        (tiny.ELECTRA, "generator", "ElectraForPreTraining", "discriminator"),
        (tiny.SPANBERT, "span_boundary", "BertForMaskedLM", None),
    ],
    ids=["electra", "spanbert"],
)
def test_heads_without_tensors_are_left_out(model, left_out, architecture, head, tmp_path):
    tokens, lm = np.arange(12).reshape(2, 6), LanguageModel(model, random_params(model))
    with pytest.warns(UserWarning, match=f"no place for '{left_out}': it is left out"):
        lm.save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [architecture]
    saved = plm_jax.load(tmp_path)
    assert type(saved.config) is models.EncoderConfig and saved.config.span_boundary == models.NoHead()
    np.testing.assert_array_equal(saved.logits(tokens, head=head), lm.logits(tokens, head=head))
    np.testing.assert_array_equal(saved.hidden_states(tokens), lm.hidden_states(tokens))


def test_remote_directory_is_read_and_written_in_place(folder):
    for path in folder.iterdir():
        storage.write(f"memory://bucket/theirs/{path.name}", path.read_bytes())
    want, got = huggingface.read(folder), huggingface.read("memory://bucket/theirs")
    assert_same(got.params, want.params)
    huggingface.write("memory://bucket/ours", got)
    assert_same(huggingface.read("memory://bucket/ours").params, want.params)
    storage.remove("memory://bucket")


@pytest.mark.parametrize("name", golden.ALL)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_opened_model_keeps_stored_types(name, dtype, tmp_path):
    """Round trip of float32 norms among weights of the same or another type, in shards."""
    folder = copy_of(name, tmp_path)

    def narrow(tensors):
        tensors |= {key: value if value.ndim == 1 else value.astype(dtype) for key, value in tensors.items()}

    edit_tensors(folder, narrow)
    with huggingface.opened(folder) as pretrained:
        huggingface.write(tmp_path / "copy", pretrained, shard_bytes=2000)
    shards = list((tmp_path / "copy").glob("model-*.safetensors"))
    assert len(shards) > 3
    got = {key: value for path in shards for key, value in load_file(path).items()}
    want = load_file(folder / "model.safetensors")
    assert {key: value.dtype for key, value in got.items()} == {key: value.dtype for key, value in want.items()}
    assert_same(got, want)
    assert json.loads((tmp_path / "copy" / "config.json").read_text())["dtype"] == "float32"
    before, after = huggingface.read(folder), huggingface.read(tmp_path / "copy")
    assert_same(after.params, before.params)
    assert (after.model, after.special_ids) == (before.model, before.special_ids)


def test_only_requested_tensors_are_read(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(
        files.StoredTensor, "_read", lambda self, row, shape: asked.append(self.name) or np.zeros(shape, self.dtype)
    )
    with huggingface.opened(folder) as pretrained:
        assert asked == []
        _ = pretrained.params["stack"]["blocks"]["feed_forward"]["up"]["kernel"][1]
    assert asked == ["transformer.h.1.mlp.c_fc.weight"]


@pytest.mark.parametrize("name", ["head_stored_twice", "in shards"])
def test_untied_head_is_detected_across_shards(folder, name):
    table = load_file(folder / "model.safetensors")["transformer.wte.weight"]
    other = table + (name == "in shards")
    edit_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": other}))
    shard(folder)
    assert huggingface.read(folder).model.head.tied == (name == "head_stored_twice")


# Families with the same tensor names, which only the config distinguishes.
ALIKE = {"t5": "t5 or mt5"}
GOLDEN = ("gpt2", "bert", "t5", "bart", "roberta", "electra", "albert", "distilbert", "gpt1", "llama")


@pytest.mark.parametrize("name", GOLDEN)
def test_missing_model_type_is_inferred(name, tmp_path, monkeypatch):
    monkeypatch.setattr(families.Family, "choices", roles.built_in(families.Family))
    folder = copy_of(name, tmp_path)
    want, path = huggingface.read(str(folder)), folder / "config.json"
    config = json.loads(path.read_text())
    architectures = families.registered()[config.pop("model_type")].to_config(want.model)["architectures"]
    for fields in (config | {"architectures": architectures}, config):
        path.write_text(json.dumps(fields))
        if "architectures" not in fields and name in ALIKE:
            with pytest.raises(UserError, match=rf"no model_type, .* names match {ALIKE[name]}: set model_type"):
                huggingface.read(str(folder))
            continue
        got = huggingface.read(str(folder))
        assert (got.model, got.family) == (want.model, want.family)


def test_unknown_model_type_is_one_line_error(tmp_path):
    folder = copy_of("bert", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    edit_config(folder, model_type="gpt3")
    assert_refused(folder, "model_type 'gpt3' is not supported", "nearest supported family is BERT")
    del config["model_type"]
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["SomethingForMaskedLM"]}))
    assert huggingface.read(str(folder)).family == "bert"
    save_file({"x.weight": np.ones((2, 2), np.float32)}, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"has no model_type, and the tensor names match no known family \(gpt2, "):
        huggingface.read(str(folder))
