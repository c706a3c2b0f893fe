"""Embeddings against sentence-transformers on the exported model, and against hidden states."""

import json

import numpy as np
import pytest

import plm_jax
from plm_jax.common.errors import UserError
from plm_jax.runs import checkpoint_formats
from tests.support import exports

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
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("vocabularies")


@pytest.fixture(scope="module")
def load(folder):
    """Function that loads a random exported model."""

    def load_model(family, kind):
        path = folder / f"{family}-{kind}"
        if not path.exists():
            model = exports.randomized(exports.pretrained(family, kind, folder), scale=0.5)
            checkpoint_formats.save(str(path), model, "huggingface")
        return plm_jax.load(path)

    return load_model


@pytest.mark.parametrize(("family", "kind", "pooling", "normalize"), SAVED)
def test_saved_models_embed_like_sentence_transformers(family, kind, pooling, normalize, load, tmp_path):
    pytest.importorskip("torch")
    library = pytest.importorskip("sentence_transformers")
    lm = load(family, kind)
    lm.save(tmp_path / "saved", "sentence-transformers", pooling=pooling, normalize=normalize)
    lines = [line for line in exports.lines(60) if line.strip()] + ["a " * 700]
    if family not in ("gpt2", "llama"):  # The peer fails for a text without tokens.
        lines.append("")
    expected = library.SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(lines)
    embedded = lm.embed(lines, pooling, normalize=normalize)
    assert embedded.shape == expected.shape and embedded.dtype == np.float32
    np.testing.assert_allclose(embedded, expected, atol=1e-5)
    reloaded = plm_jax.load(tmp_path / "saved")
    np.testing.assert_allclose(reloaded.embed(lines[:5], pooling, normalize=normalize), expected[:5], atol=1e-5)


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
        np.testing.assert_allclose(lm.embed(text, layer=layer), states[layer].mean(1), atol=1e-6)


def test_batches_do_not_change_vectors(load):
    lm, lines = load("bert", "uncased"), list(exports.lines(40))
    together = lm.embed(lines, batch_size=8)
    np.testing.assert_allclose(np.concatenate([lm.embed(line) for line in lines[:6]]), together[:6], atol=1e-6)
    assert lm.embed([]).shape == (0, together.shape[1])


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
