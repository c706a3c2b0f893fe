"""RoBERTa, ALBERT and DistilBERT without Hugging Face: golden files, settings and rejected configs."""

import json
import shutil
from dataclasses import replace

import pytest

from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.hub import families, huggingface, tensor_layout
from tests import golden

FAMILIES = families.registered()
SMALL = {
    "roberta": {"hidden_size": 6, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 5},
    "distilbert": {"dim": 6, "n_heads": 2, "n_layers": 3, "hidden_dim": 5},
}
SMALL["albert"] = SMALL["roberta"] | {"embedding_size": 4}


def test_group_blocks_are_stored_in_their_tensors():
    lm = huggingface.read(golden.FOLDER / "albert")
    layout = tensor_layout.layout(FAMILIES["albert"].tensors, tensor_layout.shapes_of(lm.model), lm.model.stack.inner)
    name = "albert.encoder.albert_layer_groups.1.albert_layers.0.ffn.weight"
    assert [(piece.path, piece.index) for piece in layout[name]] == [("stack/blocks/feed_forward/up/kernel", 2)]


def test_settings_match_config():
    position = FAMILIES["roberta"].to_settings({"max_position_embeddings": 40, "pad_token_id": 4}).attention.position
    assert position == models.LearnedPositions(35, offset=5, skips_padding=True)
    assert FAMILIES["roberta"].to_settings({"hidden_act": "relu"}).head.transform == "gelu_exact"
    assert FAMILIES["albert"].to_settings({}).stack == models.StackConfig(12, groups=1)
    assert FAMILIES["albert"].to_settings({"num_hidden_groups": 12}).stack == models.StackConfig(12)
    assert FAMILIES["albert"].to_settings({"embedding_size": 4096}).embedding.embedding_size == 4096
    assert FAMILIES["distilbert"].to_settings({}).embedding.token_types == 0
    assert FAMILIES["distilbert"].to_settings({"n_heads": 6}).attention.head_dim == 128


def changed(name, section, **fields):
    model = FAMILIES[name].to_settings(SMALL[name] | {"vocab_size": 9})
    return replace(model, **{section: replace(getattr(model, section), **fields)})


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (changed("roberta", "pooler", classes=2), "RoBERTa.*pooler.classes = 0"),
        (changed("roberta", "head", transform="gelu_tanh"), "head.transform = gelu_exact"),
        (changed("albert", "embedding", norm=False), "ALBERT.*embedding.norm = True"),
        (changed("albert", "stack", groups=3), "stack.groups = None"),
        (changed("distilbert", "attention", bias=False), "DistilBERT.*attention.bias = True"),
    ],
)
def test_unsupported_settings_are_rejected(tmp_path, model, words):
    with pytest.raises(UserError, match=words):
        huggingface.write(tmp_path / "out", huggingface.Pretrained(model, {}))
    assert not (tmp_path / "out").exists()


def test_roberta_with_other_padding_id_is_rejected(tmp_path):
    """With another padding id, `transformers` would count positions differently."""
    pretrained = huggingface.read(golden.FOLDER / "roberta")
    for ids in ({}, {"pad_token_id": 0}):
        with pytest.raises(UserError, match=f"needs pad_token_id = 3, this one's is {ids.get('pad_token_id')}"):
            huggingface.write(tmp_path / "out", replace(pretrained, special_ids=ids))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("family", "config", "words"),
    [
        ("roberta", {"pad_token_id": None}, "pad_token_id is None: must be an id from 0 to 510"),
        ("roberta", {"pad_token_id": 9, "max_position_embeddings": 10}, "pad_token_id is 9"),
        ("roberta", {"is_decoder": True}, "is_decoder"),
        ("albert", {"num_hidden_groups": 5}, "num_hidden_groups 5 does not divide num_hidden_layers 12"),
        ("albert", {"embedding_size": 0}, "embedding_size is 0"),
        ("albert", {"hidden_size": 100}, "num_attention_heads 64 does not divide hidden_size 100"),
        ("distilbert", {"dim": "768"}, "dim is '768'"),
        ("distilbert", {"activation": "gelo"}, "did you mean 'gelu'"),
    ],
)
def test_unsupported_configs_are_rejected(family, config, words):
    with pytest.raises(UserError, match=words):
        FAMILIES[family].to_settings(config)


@pytest.mark.parametrize(
    ("name", "files", "ids"),
    [
        ("roberta", {"vocab.json": '{"<s>": 0, "a": 1, "<mask>": 2}', "merges.txt": ""}, {"mask_token_id": 2}),
        ("distilbert", {"vocab.txt": "[CLS]\nThe\n[MASK]\n"}, {"cls_token_id": 0, "mask_token_id": 2}),
    ],
)
def test_vocabulary_and_special_ids_are_saved(tmp_path, name, files, ids):
    folder = shutil.copytree(golden.FOLDER / name, tmp_path / name)
    for file, content in files.items():
        (folder / file).write_text(content)
    pretrained = huggingface.read(folder)
    assert pretrained.special_ids.items() >= ids.items()
    huggingface.write(tmp_path / "copy", pretrained)
    assert huggingface.read(tmp_path / "copy").special_ids == pretrained.special_ids
    for file, content in files.items():
        assert (tmp_path / "copy" / file).read_text() == content
    tokenizer = json.loads((tmp_path / "copy" / "tokenizer_config.json").read_text())
    assert tokenizer["tokenizer_class"].lower() == f"{name}tokenizer"
    assert tokenizer.get("do_lower_case") == (False if name == "distilbert" else None)


@pytest.mark.parametrize(("name", "file"), [("roberta", "vocab.json"), ("albert", "spiece.model")])
def test_damaged_vocabulary_is_reported(tmp_path, name, file):
    folder = shutil.copytree(golden.FOLDER / name, tmp_path / name)
    for vocabulary_file in FAMILIES[name].vocabulary_files:
        for part in FAMILIES[name].vocabulary_files[vocabulary_file]:
            (folder / part).write_text("{")
    with pytest.raises(UserError, match=f"{file} is damaged"):
        huggingface.read(folder)


def test_bert_keeps_its_family():
    """A model is saved as the family, among similar ones, that describes it completely."""
    for name in ("bert", *golden.ENCODERS):
        assert families.family_of(huggingface.read(golden.FOLDER / name).model).kind == name
    unpooled = replace(FAMILIES["bert"].to_settings(SMALL["roberta"]), pooler=models.NoHead())
    assert families.family_of(unpooled).kind == "bert"
