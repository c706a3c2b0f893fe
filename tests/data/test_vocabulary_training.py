"""Each kind of vocabulary that can be trained: its size, its special tokens, the same files again, nothing lost."""

import dataclasses
import functools
import gzip
import itertools
import json
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import plm_jax
from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.data import vocabularies
from plm_jax.data.vocabularies import training

CORPORA = pathlib.Path(plm_jax.__file__).parent / "data/corpora"
SIZE = 700
BERT = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
T5 = {"pad": 0, "eos": 1, "unk": 2}
KINDS = {
    "unigram": ("sentencepiece:v.model", "unigram", T5),
    "piece_bpe": ("sentencepiece:v.model", "bpe", T5 | {"cls": 4, "mask": 3}),
    "uncased": ("wordpiece:vocab.txt", "", BERT | {"sop": SIZE - 1}),
    "cased": ("wordpiece:vocab.txt", "cased", BERT),
    "gpt2": ("bpe:vocab.json,merges.txt", "", {"eos": SIZE - 1}),
    "llama3": ("tiktoken:v.tiktoken", "", {"added": 2, "bos": SIZE, "eos": SIZE + 1}),
    "roberta": ("bpe:vocab.json,merges.txt", "", {"bos": 0, "pad": 1, "eos": 2, "unk": 3, "mask": SIZE - 1, "cls": 0}),
}
LOSSLESS = [name for name in KINDS if name not in ("uncased", "cased")]


@functools.cache
def texts():
    with gzip.open(CORPORA / "sotu.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"][:15_000] for line in itertools.islice(file, 3)]


def specials_of(name, folder, **changes):
    spec, kind, ids = KINDS[name]
    spec = vocabularies.within(spec, str(folder))
    return dataclasses.replace(config.VocabularyConfig(spec, train_size=SIZE, train_kind=kind, **ids), **changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """`trained(name)`: the section of a vocabulary that is trained when first asked for."""

    @functools.cache
    def make(name):
        specials = specials_of(name, tmp_path_factory.mktemp(name))
        training.train(texts(), specials)
        return specials

    return make


@functools.cache
def loaded(specials):
    return vocabularies.load(specials)


def contents(specials):
    return [pathlib.Path(path).read_bytes() for path in vocabularies.files(specials.spec)]


@pytest.mark.parametrize("name", KINDS)
def test_the_size_asked_for_is_the_size_got(trained, name):
    vocabulary = loaded(trained(name))
    assert vocabulary.vocab_size == SIZE + vocabulary.specials.added == len(vocabulary.word_initial)
    used = {token for text in texts() for token in vocabulary.encode(text)}
    assert len(used) > SIZE // 2 and max(used) < SIZE
    num_bytes = sum(len(text.encode()) for text in texts())
    assert num_bytes / sum(len(vocabulary.encode(text)) for text in texts()) > 2


def test_special_tokens_have_their_ids_and_the_familys_names(trained):
    gpt2, roberta = ({i: t for t, i in json.loads(contents(trained(n))[0]).items()} for n in ("gpt2", "roberta"))
    assert gpt2[SIZE - 1] == "<|endoftext|>" and [gpt2[i] for i in range(3)] == ["!", '"', "#"]
    assert [roberta[i] for i in (0, 1, 2, 3, SIZE - 1)] == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    for name in ("uncased", "cased"):
        lines = contents(trained(name))[0].decode().split("\n")
        assert lines[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] and lines[SIZE:] == [""]
        assert (lines[SIZE - 1] == "<|startofpiece|>") == (name == "uncased")
    unigram, piece_bpe = (loaded(trained(name)).processor for name in ("unigram", "piece_bpe"))
    assert [unigram.id_to_piece(i) for i in range(3)] == ["<pad>", "</s>", "<unk>"]
    assert [piece_bpe.id_to_piece(i) for i in (3, 4)] == ["[MASK]", "[CLS]"]
    for name in KINDS:
        specials, vocabulary = trained(name), loaded(trained(name))
        special_ids = {getattr(specials, special) for special in config.SPECIALS} - {None, specials.unk}
        spelt = "[PAD] [CLS] [SEP] [MASK] <s> </s> <pad> <mask> <|endoftext|> <|startofpiece|>"
        assert not special_ids & set(vocabulary.encode(spelt))


def test_uncased_and_cased(trained):
    uncased, cased = (loaded(trained(name)) for name in ("uncased", "cased"))
    assert uncased.table["lowercase"] and not cased.table["lowercase"]
    assert uncased.encode("THE États") == uncased.encode("the etats")
    assert cased.encode("THE") != cased.encode("the")


@pytest.mark.parametrize("name", KINDS)
def test_the_same_texts_give_the_same_files(trained, name, tmp_path):
    """The library's own trainer of WordPiece would not: it numbers letters as a hash table has them."""
    specials = specials_of(name, tmp_path)
    training.train(texts(), specials)
    assert contents(specials) == contents(trained(name))


@pytest.mark.parametrize("name", KINDS)
def test_a_copy_has_the_same_ids_and_identity(trained, name, tmp_path):
    specials = trained(name)
    vocabularies.copy(specials.spec, str(tmp_path))
    copy = vocabularies.load(dataclasses.replace(specials, spec=vocabularies.within(specials.spec, str(tmp_path))))
    assert vocabularies.identity(copy) == vocabularies.identity(loaded(specials))
    assert list(copy.encode(texts()[0])) == list(loaded(specials).encode(texts()[0]))


@pytest.mark.parametrize("name", LOSSLESS)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u0000▁"), min_size=1))
def test_any_text_survives(trained, name, text):
    vocabulary = loaded(trained(name))
    ids = list(vocabulary.encode(text))
    assert vocabulary.decode(ids) == text
    assert [e.tolist() for e, _ in vocabulary.encode_sentences([text])] == [ids]


@given(text=st.text("theTHE nation's élan 。中", max_size=40))
def test_byte_pairs_are_merged_as_their_file_says(trained, text):
    """By brute force: of all neighbours that may be merged, those of the first line in the file, from the left."""
    vocabulary = loaded(trained("gpt2"))
    ids, lines = json.loads(contents(trained("gpt2"))[0]), contents(trained("gpt2"))[1].decode().split("\n")[1:-1]
    ranks = {tuple(line.split(" ")): i for i, line in enumerate(lines)}
    expected = []
    for word, _ in vocabulary.tokenizer.pre_tokenizer.pre_tokenize_str(text):
        parts = list(word)
        while (best := min(itertools.pairwise(parts), key=lambda pair: ranks.get(pair, SIZE), default=None)) in ranks:
            at = list(itertools.pairwise(parts)).index(best)
            parts[at : at + 2] = ["".join(best)]
        expected += [ids[part] for part in parts]
    assert list(vocabulary.encode(text)) == expected


def test_wordpieces_are_the_most_frequent_merges(tmp_path):
    """Worked by hand: of "ab" ×5, "abc" ×4 and "bc" ×2 first a+##b is merged, 9 times, then ab+##c, then b+##c."""
    path = tmp_path / "vocab.txt"
    specials = config.VocabularyConfig(f"wordpiece:{path}", unk=0, train_size=7)
    training.train(["ab " * 5, "abc, " * 4 + "bc " * 2], specials)
    assert path.read_text().split() == ["[UNK]", "##b", "##c", ",", "a", "b", "ab"]
    training.train(["ab " * 5, "abc, " * 4 + "bc " * 2], dataclasses.replace(specials, train_size=9))
    assert path.read_text().split()[6:] == ["ab", "abc", "bc"]


def test_rare_characters_are_left_to_unknown(tmp_path):
    specials = config.VocabularyConfig(f"wordpiece:{tmp_path}/vocab.txt", unk=0, train_size=4)
    training.train(["ab " * 30_000 + "☃"], specials)
    assert (tmp_path / "vocab.txt").read_text().split() == ["[UNK]", "##b", "a", "ab"]
    training.train(["西湖西子西湖"], specials)
    assert sorted((tmp_path / "vocab.txt").read_text().split()) == ["[UNK]", "子", "湖", "西"]
    training.train(["西湖西子西湖"], dataclasses.replace(specials, train_size=3))
    assert sorted((tmp_path / "vocab.txt").read_text().split()) == ["[UNK]", "湖", "西"]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("gpt2", {}, rf"train_size is {SIZE}, but the texts have no more than \d+ tokens"),
        ("uncased", {}, rf"train_size is {SIZE}, but the texts have no more than \d+ tokens"),
        ("llama3", {"eos": 7}, r"a tiktoken vocabulary has no symbol for eos: .* or set it to an id of at"),
        ("gpt2", {"train_size": 100, "eos": 99}, r"train_size is 100, but the letters .* alone are 257: raise it"),
        ("cased", {"train_size": 5}, r"train_size is 5, but the letters .* alone are 6: raise it"),
        ("cased", {"train_kind": "bpe"}, "train_kind is 'bpe', but wordpiece has uncased or cased"),
        ("gpt2", {"train_kind": "cased"}, "train_kind is 'cased', but bpe has no kinds"),
        ("cased", {"unk": None}, "WordPiece needs an unk id"),
        ("cased", {"eos": 7}, "a wordpiece vocabulary has no symbol for eos"),
        ("cased", {"spec": "json:none/tokenizer.json"}, r"tokenizer\.json is missing and json cannot be trained"),
    ],
)
def test_bad_settings_are_rejected(tmp_path, name, changes, message):
    with pytest.raises(UserError, match=message):
        training.train(["few words"], specials_of(name, tmp_path, **changes))
