"""Hugging Face directories without Hugging Face: golden files, round trips and error messages."""

import json
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
from plm_jax.hub.bert import BertFamily
from plm_jax.hub.family import Family
from plm_jax.hub.fields import ACTIVATIONS, Fixed, changed
from plm_jax.hub.gpt2 import Gpt2Family
from plm_jax.hub.t5 import T5Family
from tests import golden


@pytest.fixture
def folder(tmp_path):
    """Copy of the first golden directory that a test may change."""
    return shutil.copytree(golden.FOLDER / "gpt2", tmp_path / "gpt2")


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


SMALL_BERT = {"hidden_size": 6, "num_attention_heads": 2, "num_hidden_layers": 3}
SMALL_T5 = {"d_model": 6, "num_heads": 2, "num_layers": 3, "num_decoder_layers": 2}


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


def bare(folder):
    """The format of `GPT2Model`, with the buffers that old versions stored."""

    def edit(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        for layer in range(2):
            tensors[f"h.{layer}.attn.bias"] = np.tril(np.ones((1, 1, 32, 32), np.float32))
            tensors[f"h.{layer}.attn.masked_bias"] = np.array(-1e4, np.float32)

    edit_tensors(folder, edit)


def head_stored_twice(folder):
    edit_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["transformer.wte.weight"]}))


@pytest.mark.parametrize("change", [shard, bare, head_stored_twice])
def test_alternative_formats_load_equally(folder, change):
    change(folder)
    got, want = huggingface.read(folder), huggingface.read(golden.FOLDER / "gpt2")
    assert got.model == want.model
    assert_same(got.params, want.params)


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


@pytest.mark.parametrize(("name", "change"), [("bert", old_bert), ("t5", old_t5), ("t5", t5_without_shared)])
def test_old_files_load_equally(tmp_path, name, change):
    folder = shutil.copytree(golden.FOLDER / name, tmp_path / name)
    edit_tensors(folder, change)
    got, want = huggingface.read(folder), huggingface.read(golden.FOLDER / name)
    assert got.model == want.model
    assert_same(got.params, want.params)


@pytest.mark.parametrize(
    ("name", "copy"), [("bert", "cls.predictions.decoder.bias"), ("t5", "decoder.embed_tokens.weight")]
)
def test_differing_copy_is_rejected(tmp_path, name, copy):
    folder = shutil.copytree(golden.FOLDER / name, tmp_path / name)
    edit_tensors(folder, old_bert if name == "bert" else old_t5)
    edit_tensors(folder, lambda tensors: tensors.update({copy: tensors[copy] + 1}))
    assert_refused(folder, f"copies that differ: {copy}")


@pytest.mark.parametrize(
    ("absent", "head", "pooler"),
    [
        (("cls.seq", "bert.pooler"), True, models.NoHead()),
        (("cls.pred",), False, models.Pooler(2)),
        (("cls.",), False, models.Pooler(0)),
        (("cls.", "bert.pooler"), False, models.NoHead()),
    ],
)
def test_heads_follow_the_tensors(tmp_path, absent, head, pooler):
    folder = shutil.copytree(golden.FOLDER / "bert", tmp_path / "bert")
    edit_tensors(folder, lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith(absent)])
    read = huggingface.read(folder)
    assert (isinstance(read.model.head, models.VocabularyHead), read.model.pooler) == (head, pooler)
    huggingface.write(tmp_path / "copy", read)
    assert huggingface.read(tmp_path / "copy").model == read.model
    assert_same(load_file(folder / "model.safetensors"), load_file(tmp_path / "copy" / "model.safetensors"))


def test_fine_tuned_head_is_ignored_with_warning(tmp_path):
    folder = shutil.copytree(golden.FOLDER / "bert", tmp_path / "bert")
    edit_tensors(folder, lambda tensors: tensors.update({"classifier.bias": np.zeros(3, np.float32)}))
    with pytest.warns(UserWarning, match=r"left out: classifier\.bias"):
        assert_same(huggingface.read(folder).params, huggingface.read(golden.FOLDER / "bert").params)


@pytest.mark.parametrize(
    ("config", "tied", "scaled"),
    [
        ({}, True, True),
        ({"tie_word_embeddings": False}, False, False),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, True, False),
        ({"tie_word_embeddings": False, "scale_decoder_outputs": True}, False, True),
    ],
)
def test_head_settings_of_t5_config(config, tied, scaled):
    assert T5Family().to_settings(config).head == models.VocabularyHead(tied, scale_by_width=scaled)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_float_types_become_float32(folder, dtype):
    want = jax.tree.map(lambda x: x.astype(dtype).astype(np.float32), huggingface.read(folder).params)
    edit_tensors(folder, lambda tensors: tensors.update({k: v.astype(dtype) for k, v in tensors.items()}))
    got = huggingface.read(folder).params
    assert_same(got, want)
    assert {leaf.dtype for leaf in jax.tree.leaves(got)} == {np.dtype(np.float32)}


def test_distinct_head_is_untied(folder):
    head = np.random.default_rng(0).normal(size=(61, 24)).astype(np.float32)
    edit_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": head}))
    pretrained = huggingface.read(folder)
    assert not pretrained.model.head.tied
    np.testing.assert_array_equal(pretrained.params["head"], head)


def test_vocabulary_is_saved_with_the_model(folder, tmp_path):
    (folder / "vocab.json").write_text("{}")
    assert huggingface.read(folder).vocabulary is None
    (folder / "merges.txt").write_text("#version")
    pretrained = huggingface.read(folder)
    assert pretrained.vocabulary == f"bpe:{folder}/vocab.json,{folder}/merges.txt"
    huggingface.write(tmp_path / "copy", pretrained)
    assert (tmp_path / "copy" / "merges.txt").read_text() == "#version"
    assert huggingface.read(tmp_path / "copy").vocabulary.startswith(f"bpe:{tmp_path}/copy/")


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
    ("fields", "words"),
    [
        ({"model_type": "gpt3"}, ["model_type 'gpt3'", "gpt2"]),
        ({"add_cross_attention": True}, ["add_cross_attention"]),
        ({"activation_function": "gelu_newer"}, ["'gelu_newer'", "did you mean 'gelu_new'"]),
        ({"n_head": 5}, ["n_head 5 does not divide n_embd 24"]),
        ({"n_layer": 0}, ["n_layer is 0", "positive integer"]),
        ({"n_embd": "24"}, ["n_embd is '24'", "positive integer"]),
        ({"n_inner": -1}, ["n_inner is -1"]),
        ({"layer_norm_epsilon": "small"}, ["layer_norm_epsilon is 'small'", "number"]),
    ],
)
def test_unsupported_settings_are_rejected(folder, fields, words):
    edit_config(folder, **fields)
    assert_refused(folder, *words)


@pytest.mark.parametrize(
    ("section", "value", "word"),
    [
        ("attention", {"position": models.NoPositions()}, "attention.position"),
        ("attention", {"bias": False}, "attention.bias"),
        ("attention", {"head_dim": 7}, "attention.head_dim"),
        ("attention", {"score_scale": 0.5}, "attention.score_scale"),
        ("feed_forward", {"bias": False}, "feed_forward.bias"),
    ],
)
def test_settings_unsupported_by_gpt2_are_rejected_before_writing(tmp_path, section, value, word):
    model = Gpt2Family().to_settings({})
    model = replace(model, **{section: replace(getattr(model, section), **value)})
    with pytest.raises(UserError, match=word):
        huggingface.write(tmp_path / "out", huggingface.Pretrained(model, {}))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("activation", sorted(set(ACTIVATIONS.values())))
def test_settings_survive_config_json_round_trip(activation):
    model = Gpt2Family().to_settings(
        {
            "vocab_size": 11,
            "n_positions": 13,
            "n_embd": 15,
            "n_layer": 3,
            "n_head": 5,
            "n_inner": 17,
            "activation_function": next(k for k, v in ACTIVATIONS.items() if v == activation),
            "resid_pdrop": 0.11,
            "embd_pdrop": 0.12,
            "attn_pdrop": 0.13,
            "layer_norm_epsilon": 1e-3,
            "initializer_range": 0.3,
            "scale_attn_weights": False,
            "scale_attn_by_inverse_layer_idx": True,
            "tie_word_embeddings": False,
        }
    )
    assert model.feed_forward.activation == activation
    assert (model.dropout.residual, model.dropout.embedding, model.dropout.attention) == (0.11, 0.12, 0.13)
    assert Gpt2Family().to_settings(Gpt2Family().to_config(model)) == model


@pytest.mark.parametrize(
    ("model", "section", "value", "words"),
    [
        (BertFamily().to_settings(SMALL_BERT), "norm", {"placement": "pre"}, "BERT.*norm.placement = post"),
        (BertFamily().to_settings(SMALL_BERT), "head", {"transform": "relu"}, "head.transform = gelu_exact"),
        (BertFamily().to_settings(SMALL_BERT), "pooler", {"classes": 3}, "pooler.classes = 2"),
        (BertFamily().to_settings(SMALL_BERT), "embedding", {"token_types": 0}, "embedding.token_types = 1"),
        (T5Family().to_settings(SMALL_T5), "attention", {"score_scale": None}, "T5.*attention.score_scale = 1.0"),
        (T5Family().to_settings(SMALL_T5), "norm", {"kind": "layer"}, "norm.kind = rms"),
        (T5Family().to_settings(SMALL_T5), "feed_forward", {"activation": "gelu_exact", "gated": True}, "feed_forward"),
        (
            T5Family().to_settings(SMALL_T5),
            "attention",
            {"position": models.NoPositions()},
            "position.kind = relative_bias",
        ),
    ],
)
def test_settings_unsupported_by_bert_and_t5_are_rejected(tmp_path, model, section, value, words):
    model = replace(model, **{section: replace(getattr(model, section), **value)})
    with pytest.raises(UserError, match=words):
        huggingface.write(tmp_path / "out", huggingface.Pretrained(model, {}))


@pytest.mark.parametrize(
    ("family", "config", "word"),
    [
        (BertFamily, {"num_attention_heads": 5}, "num_attention_heads 5 does not divide hidden_size 768"),
        (BertFamily, {"is_decoder": True}, "is_decoder"),
        (BertFamily, {"position_embedding_type": "relative_key"}, "relative_key"),
        (BertFamily, {"hidden_act": "gelu_newer"}, "did you mean 'gelu_new'"),
        (T5Family, {"architectures": ["T5EncoderModel"]}, "T5EncoderModel has no decoder"),
        (T5Family, {"num_decoder_layers": 0}, "num_decoder_layers is 0"),
        (T5Family, {"feed_forward_proj": "gated-gelo"}, "did you mean 'gated-gelu'"),
        (T5Family, {"dropout_rate": "0.1"}, "dropout_rate is '0.1'"),
    ],
)
def test_unsupported_configs_of_bert_and_t5_are_rejected(family, config, word):
    with pytest.raises(UserError, match=word):
        family().to_settings(config)


@pytest.mark.parametrize(
    ("name", "spec", "tokenizer", "ids"),
    [
        ("bert", "wordpiece:vocab.txt", {}, {"cls_token_id": 1, "mask_token_id": 0}),
        ("t5", "sentencepiece:spiece.model", {}, {"sentinels": 100, "decoder_start_token_id": 0}),
        ("t5", "sentencepiece:spiece.model", {"extra_ids": 7}, {"sentinels": 7}),
    ],
)
def test_vocabulary_and_special_ids_of_bert_and_t5_are_saved(tmp_path, name, spec, tokenizer, ids):
    folder, (scheme, file) = shutil.copytree(golden.FOLDER / name, tmp_path / name), spec.split(":")
    (folder / file).write_text("[MASK]\n[CLS]\nword\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    pretrained = huggingface.read(folder)
    assert pretrained.special_ids.items() >= ids.items()
    huggingface.write(tmp_path / "copy", pretrained)
    copy = huggingface.read(tmp_path / "copy")
    assert copy.vocabulary == f"{scheme}:{tmp_path}/copy/{file}"
    assert (tmp_path / "copy" / file).read_text() == "[MASK]\n[CLS]\nword\n"
    assert copy.special_ids == pretrained.special_ids


def test_empty_config_is_gpt2_small():
    model = Gpt2Family().to_settings({})
    assert (model.stack.layers, model.embedding.width, model.attention.heads) == (12, 768, 12)
    assert (model.feed_forward.width, model.attention.position.length) == (3072, 1024)
    assert model.head.tied and model.initializer == models.InitializerConfig(0.02, shrink_residual=True)


def test_remote_directory_is_read_and_written_in_place(folder):
    for path in folder.iterdir():
        storage.write(f"memory://bucket/theirs/{path.name}", path.read_bytes())
    want, got = huggingface.read(folder), huggingface.read("memory://bucket/theirs")
    assert_same(got.params, want.params)
    huggingface.write("memory://bucket/ours", got)
    assert_same(huggingface.read("memory://bucket/ours").params, want.params)
    storage.remove("memory://bucket")


@pytest.mark.parametrize("name", golden.ALL)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_opened_model_keeps_stored_types(name, dtype, tmp_path):
    """Round trip of float32 norms among weights of another type, in shards."""
    folder = shutil.copytree(golden.FOLDER / name, tmp_path / name)

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
    assert_same(huggingface.read(tmp_path / "copy").params, huggingface.read(folder).params)


def test_config_json_records_weight_type(folder, tmp_path):
    edit_tensors(folder, lambda tensors: tensors.update({k: v.astype(np.float16) for k, v in tensors.items()}))
    with huggingface.opened(folder) as pretrained:
        huggingface.write(tmp_path / "copy", pretrained)
    assert json.loads((tmp_path / "copy" / "config.json").read_text())["dtype"] == "float16"


def test_only_requested_tensors_are_read(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(
        files.StoredTensor, "_read", lambda self, row, shape: asked.append(self.name) or np.zeros(shape, self.dtype)
    )
    with huggingface.opened(folder) as pretrained:
        assert asked == []
        _ = pretrained.params["stack"]["blocks"]["feed_forward"]["up"]["kernel"][1]
    assert asked == ["transformer.h.1.mlp.c_fc.weight"]


@pytest.fixture
def several(monkeypatch):
    """Families of decoders in addition to GPT-2: one with a fixed epsilon, and one with the same fields."""
    monkeypatch.setattr(Family, "choices", {})
    monkeypatch.setattr(families, "PUBLISHED", ())

    class NarrowFamily(Gpt2Family):
        kind = "narrow"
        name = "Narrow"
        base = replace(Gpt2Family.base, norm=models.NormConfig(0.5))
        fields = changed(Gpt2Family.fields, Fixed("n_head", 1), without=("layer_norm_epsilon",))

    class SiblingFamily(Gpt2Family):
        kind = "sibling"
        name = "Sibling"

    in_order = (NarrowFamily, Gpt2Family, SiblingFamily, BertFamily, T5Family)
    monkeypatch.setattr(Family, "choices", {family.kind: family for family in in_order})


def test_first_supporting_family_is_chosen(several):
    model = Gpt2Family().to_settings({})
    assert families.family_of(model).kind == "gpt2"
    assert families.family_of(replace(model, norm=models.NormConfig(0.5))).kind == "gpt2"
    narrow = families.registered()["narrow"].to_settings({"n_embd": 64, "n_head": 1})
    assert families.family_of(narrow).kind == "narrow"
    assert families.family_of(BertFamily().to_settings({})).kind == "bert"


def test_model_keeps_its_family_if_supported(several, folder, tmp_path):
    edit_config(folder, model_type="sibling")
    plm_jax.load(folder).save(tmp_path / "copy")
    assert json.loads((tmp_path / "copy" / "config.json").read_text())["model_type"] == "sibling"
    assert families.family_of(Gpt2Family().to_settings({}), preferred="narrow").kind == "gpt2"
    assert families.family_of(Gpt2Family().to_settings({}), preferred="bert").kind == "gpt2"


def test_nearest_family_is_reported(several):
    with pytest.raises(UserError, match=r"GPT-2 cannot hold .*norm\.kind = layer; .*format plm_jax"):
        families.family_of(replace(Gpt2Family().to_settings({}), norm=models.NormConfig(kind="rms")))


def test_missing_family_is_reported(monkeypatch):
    monkeypatch.setattr(families, "PUBLISHED", ())
    monkeypatch.setattr(Family, "choices", {"bert": BertFamily})
    with pytest.raises(UserError, match="no family for a model of kind 'decoder': save it in format plm_jax"):
        families.family_of(Gpt2Family().to_settings({}))


ODD = [
    Gpt2Family().to_settings({}),
    BertFamily().to_settings({}),
    T5Family().to_settings({}),
    replace(
        Gpt2Family().to_settings({}),
        attention=models.AttentionConfig(3, 7, models.NoPositions(), bias=False, score_scale=0.3),
        feed_forward=models.FeedForwardConfig(10, "relu", bias=False, gated=True),
        norm=models.NormConfig(1e-3, "rms", "post"),
        initializer=models.FanInConfig(),
    ),
    replace(
        BertFamily().to_settings({}),
        head=models.NoHead(),
        attention=models.AttentionConfig(5, 7, models.RelativeBias()),
    ),
    replace(T5Family().to_settings({}), attention=models.AttentionConfig(3, 7, models.LearnedPositions(9))),
]


@pytest.mark.parametrize("model", ODD)
@pytest.mark.parametrize("family", families.registered().values(), ids=lambda family: family.kind)
def test_every_family_reports_unsupported_settings(family, model):
    if family.base.kind == model.kind:
        unsupported = families.unsupported_settings(family, model)
        assert all(isinstance(setting, str) for setting in unsupported)


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
def test_missing_model_type_is_inferred(name, tmp_path):
    folder = shutil.copytree(golden.FOLDER / name, tmp_path / name)
    want, path = huggingface.read(str(folder)), folder / "config.json"
    config = json.loads(path.read_text())
    architectures = families.registered()[config.pop("model_type")].to_config(want.model)["architectures"]
    for fields in (config | {"architectures": architectures}, config):
        path.write_text(json.dumps(fields))
        if "architectures" not in fields and name in ALIKE:
            with pytest.raises(UserError, match=rf"no model_type, .* could be of {ALIKE[name]}: set model_type"):
                huggingface.read(str(folder))
            continue
        got = huggingface.read(str(folder))
        assert (got.model, got.family) == (want.model, want.family)


def test_unknown_model_type_is_one_line_error(tmp_path):
    folder = shutil.copytree(golden.FOLDER / "bert", tmp_path / "bert")
    config = json.loads((folder / "config.json").read_text())
    del config["model_type"]
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["SomethingForMaskedLM"]}))
    assert huggingface.read(str(folder)).family == "bert"
    save_file({"what.weight": np.ones((2, 2), np.float32)}, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"has no model_type, and by their names the tensors are of none of gpt2, "):
        huggingface.read(str(folder))
