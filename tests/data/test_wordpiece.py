import dataclasses
import json
import string

import numpy as np
import pytest

from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.data import vocabularies
from plm_jax.data.vocabularies import training

BERT = config.VocabularyConfig("", pad=0, unk=1, cls=2, sep=3, mask=4)
SYMBOLS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["un", "##aff", "##able", "the", "whale", "cafe", "3", "##5", "你", "好", "是", "##是"]
LETTERS = [c for letter in string.ascii_lowercase for c in (letter, "##" + letter)]
LOWER = [*SYMBOLS, *WORDS, *LETTERS, *".,!?“”[]#'-。"]
CASED = [*LOWER, "The", "É", "é", *string.ascii_uppercase]


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    def load(tokens, specials=BERT):
        path = tmp_path_factory.mktemp("wordpiece") / "vocab.txt"
        path.write_text("\n".join(tokens) + "\n", encoding="utf-8")
        return vocabularies.load(dataclasses.replace(specials, spec=f"wordpiece:{path}"))

    return load


@pytest.fixture(scope="module")
def both(load):
    return load(LOWER), load(CASED)


def pieces(vocabulary, text):
    tokens = vocabulary.table["tokens"]
    return [tokens[i] for i in vocabulary.encode(text)]


def test_words_are_cut_as_published(both):
    """The paper's repository: "unaffable" is un ##aff ##able; each Chinese character is a word."""
    lower, cased = both
    assert pieces(lower, "UNaffable the whales") == ["un", "##aff", "##able", "the", "whale", "##s"]
    assert pieces(lower, "Café É 35") == ["cafe", "e", "3", "##5"]
    assert pieces(cased, "The É the") == ["The", "É", "the"]
    assert pieces(lower, "whale你好是") == ["whale", "你", "好", "是"]
    assert pieces(lower, "the ☃ whale") == ["the", "[UNK]", "whale"]
    assert len(pieces(lower, "x" * 100)) == 100 and pieces(lower, "x" * 101) == ["[UNK]"]
    assert not set(pieces(lower, "[CLS] [MASK]")) & {"[CLS]", "[MASK]"}
    assert lower.decode(lower.encode("Unaffable whales, the 35!")) == "unaffable whales, the 35!"


def test_sentences_and_word_starts(both):
    lower, _ = both
    (ids, starts), (chinese, chinese_starts) = lower.encode_sentences(["The café. Whales é! The", "你好。是的。"])
    assert starts.tolist() == [0, 3, 7]
    assert len(ids) == 8 and chinese_starts.tolist() == [0, 3] and len(chinese) == 6
    assert lower.word_initial[ids].tolist() == [True, True, True, True, False, True, True, True]
    np.testing.assert_array_equal(lower.word_initial, [not t.startswith("##") for t in LOWER])


def test_identity_is_that_of_tokens_and_specials(load, both):
    again, swapped = load(LOWER), load([*LOWER[:-2], LOWER[-1], LOWER[-2]])
    fewer = load(LOWER, dataclasses.replace(BERT, mask=None))
    assert vocabularies.identity(again) == vocabularies.identity(both[0])
    assert len({vocabularies.identity(v) for v in (*both, swapped, fewer)}) == 4
    assert json.loads(json.dumps(both[0].table))["lowercase"] is True and both[1].table["lowercase"] is False
    assert both[0].vocab_size == len(LOWER)


def test_a_cased_vocabulary_of_lower_case_keeps_its_accents(load, tmp_path):
    """The case is recorded although no token has an upper-case letter."""
    cased = dataclasses.replace(BERT, train_size=60, train_kind="cased", spec=f"wordpiece:{tmp_path}/vocab.txt")
    training.train(["élan et café, déjà là; le café où l'on lève la main, là-bas au marché"] * 3, cased)
    vocabulary = vocabularies.load(cased)
    assert vocabulary.table["lowercase"] is False
    assert vocabulary.decode(vocabulary.encode("café où")) == "café où"
    assert pieces(vocabulary, "É") == ["[UNK]"]


def test_lines_may_end_as_on_windows(load, both, tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("\r\n".join(LOWER).encode("utf-8"))
    assert vocabularies.load(f"wordpiece:{path}").table == both[0].table


def test_bad_vocabularies_are_rejected(load):
    for tokens, ids, message in (
        (LOWER, {"cls": 7}, r"vocabulary.cls is 7 but .*vocab.txt has 2: set it to 2"),
        ([token for token in LOWER if token != "[MASK]"], {}, r"vocabulary.mask is 4 but .* has no \[MASK\]: add it"),
        (LOWER, {"sop": 5}, r"vocabulary.sop is 5 but .* has no <|startofpiece|>: add it"),
    ):
        with pytest.raises(UserError, match=message):
            load(tokens, dataclasses.replace(BERT, **ids))
