"""Embeddings against sentence-transformers on the exported model, and against hidden states."""

import dataclasses
import functools
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import plm_jax
from plm_jax.common.errors import UserError
from plm_jax.hub import tasks
from plm_jax.runs import checkpoint_formats
from tests.support import exports
from tests.support.random_models import random_params

# Family, kind of its vocabulary, pooling, and whether vectors are normalized.
SAVED = [
    ("bert", "uncased", "mean", False),
    ("electra", "cased", "cls", True),
    ("roberta", "roberta", "max", False),
    ("albert", "unigram", "mean", True),
    ("distilbert", "uncased", "mean", False),
    ("gpt2", "gpt2", "last", True),
    ("llama", "unigram", "last", False),
]


@pytest.fixture(scope="module")
def load(vocabulary_folder, tmp_path_factory):
    """Function that loads a random exported model."""

    @functools.cache
    def load_model(family, kind):
        path = tmp_path_factory.mktemp(family)
        model = exports.randomized(exports.pretrained(family, kind, vocabulary_folder), scale=0.5)
        checkpoint_formats.save(str(path), model, "huggingface")
        return plm_jax.load(path)

    return load_model


@pytest.mark.parametrize(("family", "kind", "pooling", "normalize"), SAVED)
def test_saved_models_embed_like_sentence_transformers(family, kind, pooling, normalize, load, tmp_path):
    pytest.importorskip("torch")
    library = pytest.importorskip("sentence_transformers")
    lm = load(family, kind)
    lm.save(tmp_path / "saved", "sentence-transformers", pooling=pooling, normalize=normalize)
    lines = [line for line in exports.lines(24) if line.strip()] + ["a " * 70]
    if family not in ("gpt2", "llama"):  # The peer fails for a text without tokens.
        lines.append("")
    expected = library.SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(lines)
    embedded = lm.embed(lines, pooling, normalize=normalize)
    assert embedded.shape == expected.shape and embedded.dtype == np.float32
    np.testing.assert_allclose(embedded, expected, atol=1e-5)
    reloaded = plm_jax.load(tmp_path / "saved")
    np.testing.assert_allclose(reloaded.embed(lines, pooling, normalize=normalize), expected, atol=1e-5)


def misfits(folder):
    """Returns the tensors that the class in sentence-transformers lacks, and those that the files lack."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")[0].auto_model
    stored = set(load_file(folder / "model.safetensors"))
    expected = set(model.state_dict())
    stored = {name.removeprefix(f"{model.base_model_prefix}.") for name in stored}
    return sorted(stored - expected), sorted(expected - stored)


@pytest.mark.parametrize(("family", "kind"), [saved[:2] for saved in SAVED])
def test_every_saved_tensor_is_loaded_and_none_is_missing(family, kind, load, tmp_path):
    pytest.importorskip("torch")
    load(family, kind).save(tmp_path / "saved", "sentence-transformers")
    unexpected, missing = misfits(tmp_path / "saved")
    assert not missing
    # A LLaMA with its own output matrix keeps it, so that plm_jax loads the whole model again.
    assert unexpected == (["lm_head.weight"] if family == "llama" else [])


@pytest.mark.parametrize("has_pooler", [False, True])
def test_convert_writes_a_fine_tuned_encoder_for_sentence_transformers(has_pooler, verb, vocabulary_folder, tmp_path):
    pytest.importorskip("torch")
    library = pytest.importorskip("sentence_transformers")
    base = exports.pretrained("bert", "uncased", vocabulary_folder)
    head = tasks.new("classes", base.model, ("a", "b"))
    head = head if has_pooler else dataclasses.replace(head, feature="first")
    model = base.model.with_task(head)
    tuned = dataclasses.replace(base, model=model, params=random_params(model, scale=0.5))
    checkpoint_formats.save(str(tmp_path / "tuned"), tuned, "plm_jax")
    arguments = [f"--source={tmp_path}/tuned", "--format=sentence-transformers", "--pooling=cls", "--normalize"]
    converted = verb("convert", *arguments, f"--target={tmp_path}/sentences")
    assert converted.status == 0, converted.err
    assert misfits(tmp_path / "sentences") == ([], [])
    lines = [line for line in exports.lines(20) if line.strip()]
    expected = library.SentenceTransformer(str(tmp_path / "sentences"), device="cpu").encode(lines)
    vectors = plm_jax.load(tmp_path / "tuned").embed(lines, "cls", normalize=True)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    refused = verb("convert", f"--source={tmp_path}/tuned", f"--target={tmp_path}/other", "--pooling=cls")
    assert refused.errors == [
        "error: --pooling and --normalize need --format=sentence-transformers: add it, or leave them out"
    ]


def test_texts_are_cut_at_the_length_of_a_sentence_transformer(load, tmp_path):
    pytest.importorskip("torch")
    library = pytest.importorskip("sentence_transformers")
    load("bert", "uncased").save(tmp_path / "saved", "sentence-transformers")
    path = tmp_path / "saved" / "sentence_bert_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_seq_length": 7}))
    lines = [line for line in exports.lines(30) if line.strip()]
    expected = library.SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(lines)
    np.testing.assert_allclose(plm_jax.load(tmp_path / "saved").embed(lines), expected, atol=1e-5)


@pytest.mark.parametrize(("family", "kind"), [("bert", "uncased"), ("t5", "own_sentinels"), ("gpt2", "gpt2")])
def test_layers_are_hidden_states(family, kind, load):
    lm, text = load(family, kind), "The state of the Union"
    before, after = lm.strategy.frame
    tokens = [[*before, *lm.tokenizer.encode(text), *after]]
    states = np.asarray(lm.hidden_states(tokens))
    for layer in (*range(len(states)), -1):
        np.testing.assert_allclose(lm.embed([text], layer=layer), states[layer].mean(1), atol=1e-6)


def test_batches_do_not_change_vectors(load):
    lm, lines = load("bert", "uncased"), list(exports.lines(24))
    together = lm.embed(lines, batch_size=8)
    np.testing.assert_allclose(np.concatenate([lm.embed([line]) for line in lines[:3]]), together[:3], atol=1e-6)
    assert lm.embed([]).shape == (0, together.shape[1])


def test_a_single_text_has_one_vector(load, tmp_path):
    lm, line = load("bert", "uncased"), "The state of the Union"
    assert lm.embed(line).shape == (lm.config.embedding.width,)
    np.testing.assert_allclose(lm.embed(line), lm.embed([line, "another"])[0], atol=1e-6)
    assert lm.similarity(line, [line, "another"]).shape == (1, 2)
    library = pytest.importorskip("sentence_transformers")
    lm.save(tmp_path / "saved", "sentence-transformers")
    expected = library.SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(line)
    np.testing.assert_allclose(lm.embed(line), expected, atol=1e-5)


def test_similarity_is_the_cosine(load):
    lm, lines = load("bert", "uncased"), list(exports.lines(4))
    vectors = lm.embed(lines, normalize=True)
    np.testing.assert_allclose(lm.similarity(lines[:2], lines), vectors[:2] @ vectors.T, atol=1e-6)
    np.testing.assert_allclose(np.diag(lm.similarity(lines, lines)), 1, atol=1e-6)


def test_mistakes_are_reported(load, tmp_path):
    lm = load("bert", "uncased")
    with pytest.raises(UserError, match="no pooling 'median'"):
        lm.embed("a", "median")
    with pytest.raises(UserError, match="no layer 7"):
        lm.embed("a", layer=7)
    with pytest.raises(UserError, match="text 1 is a int"):
        lm.embed(["a", 3])
    with pytest.raises(UserError, match="no pooling 'median'"):
        lm.save(tmp_path / "saved", "sentence-transformers", pooling="median")
    assert not (tmp_path / "saved").exists()
    with pytest.raises(UserError, match="does not embed"):
        load("t5", "own_sentinels").save(tmp_path / "saved", "sentence-transformers")
