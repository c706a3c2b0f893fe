"""Words and their characters as bilm-tf has them."""

import dataclasses

import numpy as np
import pytest

from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.data import vocabularies
from plm_jax.data.vocabularies import training, words

SPECIALS = {"bos": 0, "eos": 1, "unk": 2}


def spell(word, length):
    """bilm/data.py's convention, one word at a time."""
    row = [260] * length
    letters = {"<S>": [256], "</S>": [257]}.get(word) or list(word.encode("utf-8"))[: length - 2]
    row[: len(letters) + 2] = [258, *letters, 259]
    return row


def test_a_word_is_its_bytes_between_begin_and_end():
    some = ["<S>", "</S>", "<UNK>", "a", "naïve", "日本語", "much-too-long-a-word", "exactly8", ""]
    table = words.characters(some, 10)
    assert table.dtype == np.uint16
    assert table.tolist() == [spell(word, 10) for word in some]
    assert words.characters([], 10).shape == (0, 10)


def test_texts_are_framed_and_filled_up():
    characters, mask = words.sentences(["a  bc\n", "", "x"], 6)
    assert mask.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]
    for row, text in enumerate((["a", "bc"], [], ["x"])):
        framed = ["<S>", *text, "</S>"]
        assert characters[row, : len(framed)].tolist() == [spell(word, 6) for word in framed]
    assert words.sentences([], 6)[0].shape == (0, 0, 6)


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "words.txt"
    file.write_text("<S>\n</S>\n<UNK>\nthe\nwhale\nnaïve\n", encoding="utf-8")
    return str(file)


def test_words_are_looked_up_and_others_are_unknown(path):
    vocabulary = vocabularies.load(config.VocabularyConfig(f"words:{path}", **SPECIALS))
    text = "the  whale, naïve\tThe whale <S> naïve"
    assert list(vocabulary.encode(text)) == [3, 2, 5, 2, 4, 2, 5], "a mark in a text is no mark"
    assert vocabulary.encode_tf(text).numpy().tolist() == [3, 2, 5, 2, 4, 2, 5]
    assert vocabulary.decode([3, 4, 1, 3]) == "the whale </S>"
    assert (vocabulary.vocab_size, vocabulary.unk_id, vocabulary.eos_id) == (6, 2, 1)
    ((ids, offsets),) = vocabulary.encode_offsets([text])
    assert [text[at : at + 3] for at in offsets] == ["the", "wha", "naï", "The", "wha", "<S>", "naï"]
    ((_, starts),) = vocabulary.encode_sentences(["the whale. naïve the"])
    assert starts.tolist() == [0, 2] and len(ids) == 7


def test_added_ids_have_no_text(path):
    vocabulary = vocabularies.load(config.VocabularyConfig(f"words:{path}", **SPECIALS, added=2, pad=7, sentinels=1))
    assert vocabulary.vocab_size == 9
    assert vocabulary.decode([6, 3, 7, 4, 7]) == "the whale"
    assert vocabulary.decode([3, 8, 4, 9]) == "the <extra_id_0> whale <UNK>"


def test_identity_is_of_words_and_special_ids(path, tmp_path):
    def identity(**specials):
        return vocabularies.identity(vocabularies.load(config.VocabularyConfig(f"words:{path}", **specials)))

    first = identity(**SPECIALS)
    assert first == identity(**SPECIALS) != identity()
    with open(path, "a") as file:
        file.write("more\n")
    assert identity(**SPECIALS) != first


@pytest.mark.parametrize(
    ("text", "specials", "says"),
    [
        ("a\na\n<UNK>\n", {}, "without duplicates"),
        ("a\n\n<UNK>\n", {}, "one word per line"),
        ("a\nb\n", {}, "has no <UNK>"),
        ("<UNK>\n<S>\n", {"bos": 0}, "has 1: set it to 1"),
        ("<UNK>\n<S>\n", {"eos": 1}, "has no </S>: add it"),
    ],
)
def test_files_that_are_no_vocabulary_of_words_are_refused(text, specials, says, tmp_path):
    (tmp_path / "words.txt").write_text(text)
    with pytest.raises(UserError, match=says):
        vocabularies.load(config.VocabularyConfig(f"words:{tmp_path}/words.txt", **specials))
    with pytest.raises(UserError, match="cannot read the vocabulary's"):
        vocabularies.load(f"words:{tmp_path}/none.txt")


def test_the_most_frequent_words_are_counted_after_the_special_ones(tmp_path):
    path = str(tmp_path / "made.txt")
    specials = config.VocabularyConfig(f"words:{path}", train_size=6, bos=1, eos=0, unk=2)
    training.train(["b a b c", "<UNK> c b <UNK>", "d <UNK>"], specials)
    assert words.read(path) == ["</S>", "<S>", "<UNK>", "b", "c", "a"]
    with pytest.raises(UserError, match="0, 1 and 2"):
        training.train(["a"], dataclasses.replace(specials, eos=5))
    with pytest.raises(UserError, match="no document"):
        training.train(["<S>"], specials)
