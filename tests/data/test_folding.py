"""A SentencePiece vocabulary that folds text: its ids, and where in the text as it is its tokens begin."""

import dataclasses
import itertools
import json
import unicodedata

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.data import cache, vocabularies
from plm_jax.data.vocabularies import folding, sentences, training
from plm_jax.data.vocabularies.vocabulary import MAX_UNITS
from plm_jax.runs import preparation
from tests.data.test_prepare import corpus, run  # noqa: F401
from tests.support.data import changed

TEXTS = [
    "The State of the Union. It IS strong! Is It?",
    "Élève naïve à Zürich. ÇA COÛTE 5 €! Et alors?",
    "E\u0301le\u0300ve. Cafe\u0301! Nai\u0308ve? Vie\u0323\u0302t Nam.",
    "İstanbul. IĞDIR! İİ? ΟΔΟΣ. Σ",
    "ﬁne ﬂow. Oﬃce! ½ ① ™? ＦＵＬＬ ｗｉｄｔｈ",
    "国家兴亡。匹夫有责！ 한국어 Text. パピプ? Ж",
    "\u0301 odd. \u00a0Broken\u00a0space! ﷺ? 🙂 End",
    "",
]


def folded(text):
    """Letter by letter, as google-research/albert's `preprocess_text` and `AlbertTokenizer` do it."""
    letters = (c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return "".join(letters).lower()


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def section(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("sp") / "v.model"
    settings = config.VocabularyConfig(
        f"sentencepiece:{path}", train_size=340, train_kind=request.param, lowercase=True, pad=0, eos=1, unk=2
    )
    training.train(TEXTS * 3, settings)
    return settings


def model(section):
    return sentencepiece.SentencePieceProcessor(model_file=vocabularies.files(section.spec)[0])


def places(section, text):
    """Returns the offset in bytes of the letter from which the first byte of each token comes."""
    owners, at = [], 0
    for letter in text:
        owners += [at] * len(folded(letter).encode())
        at += len(letter.encode())
    begins = [piece.begin for piece in model(section).encode(folded(text), out_type="immutable_proto").pieces]
    offsets = [len(folded(text)[:begin].encode()) for begin in begins]
    return [[*owners, at][offset] for offset in offsets]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_folded_letter_by_letter(text):
    assert folding.fold(text) == folded(text)
    sizes = [len(folding.fold(letter).encode()) for letter in text]
    assert sum(sizes) == len(folded(text).encode())
    assert max(sizes, default=0) <= MAX_UNITS


def test_ids_are_those_of_folded_text_and_places_those_of_the_text(section):
    vocabulary = vocabularies.load_plain(section)
    ids, _ = zip(*(encoded := vocabulary.encode_offsets(TEXTS)), strict=True)
    assert (
        list(ids) == [list(vocabulary.encode(text)) for text in TEXTS] == model(section).encode([*map(folded, TEXTS)])
    )
    assert [list(begins) for _, begins in encoded] == [places(section, text) for text in TEXTS]
    assert vocabulary.decode(vocabulary.encode("The CAFÉ")) == "the cafe"


def test_sentences_begin_where_the_text_has_them(section):
    vocabulary = vocabularies.load_plain(section)
    cuts = [[0, *sentences.boundaries(text)] for text in TEXTS]
    assert sum(map(len, cuts)) > 20
    encoded = vocabulary.encode_sentences(TEXTS)
    for text, of_text, (ids, starts) in zip(TEXTS, cuts, encoded, strict=True):
        begins, cut_bytes = np.array(places(section, text)), [len(text[:cut].encode()) for cut in of_text]
        expected = {int(np.sum(begins < cut)) for cut in cut_bytes[1:]} | {0}
        assert starts.tolist() == sorted(i for i in expected if i < len(ids)), text
    ids, starts = encoded[0]
    parts = map(vocabulary.decode, np.split(ids, starts[1:]))
    assert [part.strip() for part in parts] == ["the state of the union.", "it is strong!", "is it?"]


def test_the_cache_has_folded_tokens_and_counts_the_bytes_of_the_text(section, run, corpus):  # noqa: F811
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    run = changed(run, vocabulary=section, data={"validation_fraction": 0.0})
    preparation.prepare(run, show_progress=False)
    source = cache.open_source(run.data.cache_dir, "a")
    assert source.vocabulary["lowercase"] is True
    split, starts_of_ids = source.splits["train"], {}
    for begin, end in itertools.pairwise(split.documents.tolist()):
        starts = split.sentences[(split.sentences >= begin) & (split.sentences < end)] - begin
        starts_of_ids[tuple(split.tokens(begin, end).tolist())] = starts.tolist()
    expected = vocabularies.load_plain(section).encode_sentences([text for text in TEXTS if text])
    assert starts_of_ids == {tuple(ids.tolist()): starts.tolist() for ids, starts in expected}
    assert split.num_bytes == sum(len(text.encode()) for text in TEXTS)


def test_only_a_folded_vocabulary_has_another_identity(section, tmp_path):
    plain = vocabularies.load_plain(dataclasses.replace(section, lowercase=False))
    assert set(plain.table) == {"pieces", "normalizer", "kind"}
    assert vocabularies.identity(plain) != vocabularies.identity(vocabularies.load_plain(section))
    (tmp_path / "vocab.txt").write_text("[UNK]\nthe\n")
    for spec, words in {f"wordpiece:{tmp_path}/vocab.txt": "set train_kind to 'uncased'", "bytes": "remove it"}.items():
        with pytest.raises(UserError, match=f"lowercase is for SentencePiece only.*{words}"):
            vocabularies.load_plain(config.VocabularyConfig(spec, lowercase=True))


def test_a_model_is_trained_on_folded_text(section):
    pieces = [model(section).id_to_piece(i) for i in range(section.train_size)]
    text = [piece for piece in pieces if not piece.startswith("<")]
    assert text == [*map(folded, text)] and len(text) == section.train_size - 3 - 256
    assert set("".join(text)) <= {"▁", *"".join(map(folded, TEXTS))}
