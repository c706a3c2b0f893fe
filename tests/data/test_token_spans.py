"""Characters of the text of each token, for every kind of vocabulary."""

import itertools

import numpy as np
import pytest
import sentencepiece
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from plm_jax import config
from plm_jax.data import vocabularies
from plm_jax.data.sources import labeled
from tests.data.conftest import _WORDS

BPE = "plm_jax/data/gpt2/vocab.json", "plm_jax/data/gpt2/merges.txt"
LINES = ["the whales swim in the strong sea", "a café is naïve in 1862 , unaffable and strong !"] * 9
LINES.append("the sea is strong")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES += ["un", "##aff", "##able", "the", "whale", "##s", "cafe", ",", "!"]
KINDS = ("wordpiece", "cased", "bpe", "unigram", "bytes in pieces", "folded", "words", "bytes")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabularies")
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (folder / "words.txt").write_text("\n".join(["<UNK>", *LINES[0].split()[:4]]) + "\n")
    for name, fallback in (("unigram", False), ("bytes in pieces", True)):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES),
            model_prefix=str(folder / name),
            vocab_size=300 if fallback else 44,
            byte_fallback=fallback,
            hard_vocab_limit=False,
            character_coverage=1.0,
            minloglevel=2,
        )
    return folder


@pytest.fixture(scope="module")
def load(folder):
    loaded = {}

    def load(kind):
        if kind not in loaded:
            file, lower = {
                "wordpiece": (f"wordpiece:{folder}/vocab.txt", False),
                "cased": (f"wordpiece:{folder}/vocab.txt", False),
                "bpe": ("bpe:" + ",".join(BPE), False),
                "folded": (f"sentencepiece:{folder}/unigram.model", True),
                "words": (f"words:{folder}/words.txt", False),
                "bytes": ("bytes", False),
            }.get(kind, (f"sentencepiece:{folder}/{kind}.model", False))
            specials = config.VocabularyConfig(file, lowercase=lower, train_kind="cased" if kind == "cased" else "")
            loaded[kind] = vocabularies.load_plain(specials)
        return loaded[kind]

    return load


TEXTS = [
    "The café, unaffable whales!  two\t spaces \n",
    "  国家兴亡 strong 😀👍🏽 e\u0301",
    "",
    " ",
    "x",
    "½ ﬁne É İs ẞ",
]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_the_text_and_spans_rise_within_it(load, kind):
    for text, (ids, begins, ends) in zip(TEXTS, load(kind).encode_spans(TEXTS), strict=True):
        assert list(ids) == list(load(kind).encode(text))
        assert (np.diff(begins) >= 0).all() and (np.diff(ends) >= 0).all()
        assert (begins >= 0).all() and (begins <= ends).all() and (ends <= len(text)).all()
        for begin, end in zip(begins, ends, strict=True):
            assert text[begin:end] == text[begin:end].strip()
        # No character with ink is of no token, but for accents that folding drops.
        covered = np.zeros(len(text), np.bool_)
        for begin, end in zip(begins, ends, strict=True):
            covered[begin:end] = True
        assert all(is_in or letter.isspace() or letter == "\u0301" for letter, is_in in zip(text, covered, strict=True))


@pytest.mark.parametrize("kind", ["wordpiece", "cased", "bpe"])
def test_spans_are_those_of_the_tokenizers_library(load, folder, kind):
    if kind == "bpe":
        theirs = tokenizers.ByteLevelBPETokenizer(*BPE, trim_offsets=True)
    else:
        theirs = tokenizers.BertWordPieceTokenizer(f"{folder}/vocab.txt", lowercase=kind == "wordpiece")
    for text, (ids, begins, ends) in zip(TEXTS, load(kind).encode_spans(TEXTS), strict=True):
        encoding = theirs.encode(text, add_special_tokens=False)
        assert list(ids) == encoding.ids
        # White space alone is nothing of the text here.
        expected = [(a, b) if text[a:b].strip() else (None, None) for a, b in encoding.offsets]
        spans = [(a, b) if a < b else (None, None) for a, b in zip(begins, ends, strict=True)]
        assert spans == expected


@pytest.mark.parametrize("kind", ["unigram", "bytes in pieces", "folded"])
def test_pieces_are_the_slices_of_their_text(load, kind):
    text = "the Whales swim 1862 , naïve"
    vocabulary = load(kind)
    ((ids, begins, ends),) = vocabulary.encode_spans([text])
    known = 0
    for i, begin, end in zip(ids.tolist(), begins, ends, strict=True):
        piece = vocabulary.processor.id_to_piece(i)
        if i != vocabulary.processor.unk_id() and not vocabulary.processor.is_byte(i):
            slice_ = text[begin:end]
            assert piece.replace("▁", "") == (slice_.lower().replace("ï", "i") if kind == "folded" else slice_)
            known += 1
    assert known > 6
    if kind == "bytes in pieces":
        emoji = vocabulary.encode_spans(["the 😀"])[0]
        of_it = [(a, b) for i, a, b in zip(*emoji, strict=True) if vocabulary.processor.is_byte(int(i))]
        assert of_it == [(4, 5)] * 4, "each byte is all of the character"


KNOWN = st.sampled_from([word for word in _WORDS.split() if "\u200d" not in word])
ANY = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1, max_size=6)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram", "bytes in pieces", "folded", "words", "bytes"])
def test_the_text_of_an_answers_tokens_is_the_answer(load, kind):
    """Selects the tokens of whole words by the rule of `LabeledRows.answer`; each word has a first token."""
    vocabulary = load(kind)

    @given(st.lists(ANY if kind == "bpe" else KNOWN, min_size=1, max_size=9), st.integers(0, 8), st.integers(1, 4))
    def check(words, first, count):
        context = " ".join(words)
        first %= len(words)
        answer = " ".join(words[first : first + count])
        begin = len(" ".join(words[:first])) + (first > 0)
        row = {"question": "q", "context": context, "answers": [{"text": answer, "start": begin}]}
        values = labeled.record(config.AnswerForm(), "here", row).values
        ((_, begins, ends),) = vocabulary.encode_spans([context])
        (inside,) = ((ends > values["answer_begins"][0]) & (begins < values["answer_ends"][0])).nonzero()
        assert context[begins[inside[0]] : ends[inside[-1]]] == answer
        tagged = labeled.record(config.TagForm(("O", "X")), "here", {"tokens": words, "tags": ["X"] * len(words)})
        edges = np.append(tagged.values["word_begins"], len(context) + 1)
        for a, b in itertools.pairwise(edges.tolist()):
            token = begins.searchsorted(a)
            assert begins[token] == a and begins[token] < b

    check()
