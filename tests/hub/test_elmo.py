"""A trained biLM of bilm-tf: its outputs for thirty sentences, and reading and writing of its files."""

import json
import shutil
from dataclasses import replace

import flax.linen as nn
import h5py
import jax
import numpy as np
import pytest

import plm_jax
from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.hub import elmo
from plm_jax.inference.language_model import LanguageModel
from plm_jax.models import registry
from tests import golden

FOLDER = golden.FOLDER / "elmo"
FILES = (FOLDER / "options.json", FOLDER / "lm_weights.hdf5")


@pytest.fixture(scope="module")
def lm():
    return plm_jax.load(FOLDER)


@pytest.fixture
def whole():
    """Model with a softmax over three words more than the vocabulary's 458."""
    model = plm_jax.load(FOLDER)
    config = replace(model.config, embedding=replace(model.config.embedding, vocab_size=461), head=models.Softmax())
    rng = np.random.default_rng(0)
    head = {"head": rng.normal(size=(461, 16)), "head_bias": rng.normal(size=461)}
    params = dict(model.params) | jax.tree.map(np.float32, head)
    return LanguageModel(config, params, vocabulary_spec=f"words:{FOLDER / 'vocab_test.txt'}")


@pytest.fixture(scope="module")
def reference():
    """Rows of ten sentences, and the top layer [2, words, D] of each sentence, forward and backward."""
    texts = json.loads((FOLDER / "sentences.json").read_text())
    outputs = []
    for row in range(3):
        with h5py.File(FOLDER / f"lm_embeddings_{row}.hdf5", "r") as file:
            outputs.append([file[f"{number}"][...] for number in range(10)])
    return texts, outputs


@pytest.fixture(scope="module")
def read(lm):
    """Function of texts and a carry: the top layer [B, 2, L, D], with texts padded to 60 words, and the new carry."""

    @jax.jit
    def layers(characters, mask, carry):
        states, carry = lm.model.apply({"params": lm.params}, characters, mask, carry, method="layers")
        return states[-1], carry

    def of(texts, carry):
        characters, mask = lm.characters(texts)
        rest = (0, 60 - mask.shape[1])
        return layers(np.pad(characters, ((0, 0), rest, (0, 0))), np.pad(mask, ((0, 0), rest)), carry)

    return of


def test_reference_outputs_are_reproduced_with_carried_state(lm, reference, read):
    texts, outputs = reference
    carry, compared = nn.unbox(registry.new_carry(lm.model, 3)), 0
    for number in range(10):
        top, carry = read([texts[row][number] for row in range(3)], carry)
        for row in range(3):
            words, want = len(texts[row][number].split()), outputs[row][number]
            # Without the special tokens around the sentence.
            np.testing.assert_allclose(top[row, :, 1 : words + 1], want, atol=1e-5)
            compared += want.size
    assert compared > 15_000


def test_reference_word_vectors_are_reproduced(lm):
    words = (FOLDER / "vocab_test.txt").read_text().split()
    with h5py.File(FOLDER / "elmo_token_embeddings.hdf5", "r") as output:
        want = output["embedding"][...]
    hidden = lm.hidden_states([list(range(len(words)))])
    assert hidden.shape == (3, 1, len(words), 32)
    # Both directions are equal.
    np.testing.assert_allclose(hidden[0, 0], np.concatenate([want, want], axis=1), atol=1e-5)


def test_unknown_words_are_read_by_characters(lm):
    characters, mask = lm.characters(["Why zzyzx", "government of the people"])
    assert characters.shape == (2, 6, 50) and mask.sum(1).tolist() == [4, 6]
    spelt = lm.hidden_states(characters, mask)
    ids = list(lm.vocabulary.encode("Why zzyzx"))
    assert ids == [1, lm.vocabulary.table["words"].index("<UNK>")]
    begin, end = (lm.vocabulary.table["words"].index(mark) for mark in ("<S>", "</S>"))
    by_id = lm.hidden_states([[begin, *ids, end]])
    np.testing.assert_allclose(spelt[0, 0, [0, 1, 3]], by_id[0, 0, [0, 1, 3]], atol=1e-6)
    assert abs(spelt[0, 0, 2] - by_id[0, 0, 2]).max() > 1e-3
    alone = lm.hidden_states(*lm.characters(["Why zzyzx"]))
    np.testing.assert_allclose(spelt[:, :1, :4], alone, atol=1e-6)


def test_pair_of_paths_loads(lm):
    jax.tree.map(np.testing.assert_array_equal, plm_jax.load(FILES).params, lm.params)
    assert lm.num_parameters == sum(leaf.size for leaf in jax.tree.leaves(registry.shapes(lm.config)))


def test_round_trip_is_exact(lm, tmp_path):
    lm.save(tmp_path, format="bilm")
    want, got = (h5py.File(path, "r") for path in (FILES[1], tmp_path / elmo.WEIGHTS))
    names = []
    want.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    for name in names:
        np.testing.assert_array_equal(got[name][...], want[name][...], err_msg=name)
    assert len(names) == 1 + 2 * 5 + 4 * 2 + 2 + 3 * 4
    options, written = (json.loads(path.read_text()) for path in (FILES[0], tmp_path / elmo.OPTIONS))
    assert written["char_cnn"] == options["char_cnn"] and written["lstm"] == options["lstm"]
    assert list(plm_jax.load(tmp_path).vocabulary.encode("Why not")) == list(lm.vocabulary.encode("Why not"))


def test_softmax_is_preserved_and_scores_both_directions(whole, tmp_path):
    whole.save(tmp_path, format="bilm")
    lm = plm_jax.load(tmp_path)
    assert lm.config == whole.config
    characters, mask = lm.characters(["Why government", "it"])
    forward, backward = lm.logits(characters, mask), lm.logits(characters, mask, head="backward")
    assert forward.shape == backward.shape == (2, 4, 461)
    hidden = lm.hidden_states(characters, mask)[-1]
    for logits, of_side in ((forward, hidden[..., :16]), (backward, hidden[..., 16:])):
        want = of_side @ whole.params["head"].T + whole.params["head_bias"]
        np.testing.assert_allclose(logits, want, atol=1e-4)
    without_marks = lm.characters(["Why government"])[0][:, 1:-1]
    np.testing.assert_array_equal(lm.logits([[1, 3]]), lm.logits(without_marks))


def test_invalid_inputs_are_rejected(lm, whole):
    for call, words in (
        (lambda: lm.logits([[1]]), "no vocabulary head"),
        (lambda: lm.logits([[1]], head="backward"), "no backward head"),
        (lambda: lm.hidden_states([[1]], token_types=[[0]]), "reads only tokens and mask"),
        (lambda: lm.hidden_states([[458]]), "from 0 to 457"),
        (lambda: lm.hidden_states(np.zeros((1, 2, 49))), "characters have shape"),
        (lambda: lm.hidden_states(np.full((1, 2, 50), 261)), "0 to 260"),
        (lambda: lm.hidden_states([[1]], [[1, 1]]), "mask has shape"),
        (lambda: lm.hidden_states([[1, 2], [1]]), "tokens have rows of different lengths"),
        (lambda: whole.generate(["Why"]), "does not generate text"),
        (lambda: whole.save("nowhere"), "'huggingface' does not support ELMos: use bilm or plm_jax"),
        (lambda: plm_jax.load(golden.FOLDER / "gpt2").save("nowhere", format="bilm"), "supports only ELMos: use hugg"),
        (lambda: plm_jax.load(golden.FOLDER / "gpt2").characters(["a"]), "no characters"),
        (lambda: plm_jax.load(golden.FOLDER / "gpt2").logits([[1]], head="backward"), "no backward head"),
    ):
        with pytest.raises(UserError, match=words):
            call()


CNN, LSTM = (json.loads(FILES[0].read_text())[name] for name in ("char_cnn", "lstm"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lstm": LSTM}, "no char_cnn"),
        ({"char_cnn": CNN}, "damaged"),
        ({"char_cnn": CNN | {"n_characters": 300}, "lstm": LSTM}, "261 or 262"),
        ({"char_cnn": CNN | {"n_highway": 0}, "lstm": LSTM}, "highway_layers is 0: must be between 1 and"),
        ({"char_cnn": CNN | {"n_highway": 3}, "lstm": LSTM}, "lack: CNN_high_2/W_carry"),
        ({"char_cnn": CNN | {"activation": "gelu"}, "lstm": LSTM}, "relu or tanh"),
        ({"char_cnn": CNN, "lstm": LSTM | {"use_skip_connections": False}}, "skip"),
        ({"char_cnn": CNN, "lstm": LSTM | {"projection_dim": 64}}, "projection_dim"),
        ({"char_cnn": CNN, "lstm": LSTM | {"dim": 63}}, r"W_0 is \(32, 256\) and not \(32, 252\)"),
    ],
)
def test_unsupported_options_and_weights_are_rejected(options, words, tmp_path):
    shutil.copy(FILES[1], tmp_path)
    (tmp_path / "options.json").write_text(json.dumps(options))
    with pytest.raises(UserError, match=words):
        plm_jax.load(tmp_path)


def test_missing_and_damaged_files_are_reported(tmp_path):
    shutil.copy(FILES[0], tmp_path)
    with pytest.raises(UserError, match=r"has 0 files …weights\.hdf5"):
        plm_jax.load(tmp_path)
    (tmp_path / "weights.hdf5").write_bytes(FILES[1].read_bytes()[:1000])
    with pytest.raises(UserError, match="damaged"):
        plm_jax.load(tmp_path)
    shutil.copy(FILES[1], tmp_path / "other_weights.hdf5")
    with pytest.raises(UserError, match="has 2 files"):
        plm_jax.load(tmp_path)
    with pytest.raises(UserError, match="missing"):
        plm_jax.load((tmp_path / "options.json", tmp_path / "none.hdf5"))
