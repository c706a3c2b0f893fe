import dataclasses
import gzip
import itertools
import json
import os
import pathlib
import string

import numpy as np
import pytest
from sentencepiece import sentencepiece_model_pb2

import plm_jax
from plm_jax import config
from plm_jax.common import wordpiece
from plm_jax.common.errors import UserError
from plm_jax.data import vocabularies
from plm_jax.data.vocabularies import tokenizer_files, training

DATA = pathlib.Path(plm_jax.__file__).parent / "data"
GPT2 = f"bpe:{DATA}/gpt2/vocab.json,{DATA}/gpt2/merges.txt"
T5_LIKE = config.VocabularyConfig("", train_size=400, pad=0, eos=1, unk=2)


def corpus(name, num_characters):
    with gzip.open(DATA / f"corpora/{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return json.loads(next(file))["text"][:num_characters]


TEXTS = [
    corpus("moby_dick", 4000),
    corpus("sotu", 4000),
    "No end here",
    "  Two  spaces.  Then \t a tab!\n\n\nA blank line… and “quotes.” Naïve café, 3.5 %.\n",
    "日本語です。「次の文。」そして終わり！ 好的？是",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("sp") / "v.model")
    specials = dataclasses.replace(T5_LIKE, spec=f"sentencepiece:{path}")
    training.train(TEXTS[:2], specials)
    return specials


@pytest.fixture(params=["sentencepiece", "bpe", "bytes"])
def vocabulary(request, trained):
    specs = {
        "sentencepiece": trained,
        "bpe": config.VocabularyConfig(GPT2, eos=50256),
        "bytes": config.VocabularyConfig("bytes", eos=256),
    }
    return vocabularies.load(specs[request.param])


@pytest.fixture(scope="module")
def gpt2():
    return vocabularies.load(config.VocabularyConfig(GPT2, eos=50256))


def test_gpt2_ids_are_the_published_ones(gpt2):
    assert list(gpt2.encode("Hello world")) == [15496, 995]
    assert list(gpt2.encode("Hello, my dog is cute")) == [15496, 11, 616, 3290, 318, 13779]
    assert (gpt2.vocab_size, gpt2.eos_id, gpt2.pad_id, gpt2.unk_id) == (50257, 50256, None, None)
    assert gpt2.decode([15496, 50256, 995]) == "Hello<|endoftext|>"
    assert 50256 not in gpt2.encode("a <|endoftext|> b")


def test_text_survives_a_round_trip(vocabulary):
    for text in [*TEXTS, "a\n b\u00a0c 🙂", "ﬁ Å"]:
        assert vocabulary.decode(vocabulary.encode(text)) == text


def test_tensorflow_and_python_encode_alike(vocabulary):
    text = TEXTS[3]
    ids = vocabulary.encode_tf(text)
    assert ids.numpy().tolist() == list(vocabulary.encode(text))
    assert vocabulary.decode_tf(ids).numpy().decode() == text


@pytest.mark.parametrize(
    ("text", "sentencepiece", "bpe"),
    [
        ("the sea", "▁the", "the"),
        ("  the", "▁", "Ġ"),
        ("\n\nthe", "▁", "Ċ"),
        ("é", "▁", "Ã©"),
        (" 欧", "▁", "Ġæ"),  # The first of three bytes.
        ("🙂", "▁", "ðŁ"),
        ("", None, None),
    ],
)
def test_the_first_tokens_bytes(trained, gpt2, text, sentencepiece, bpe):
    """Each letter of a token stands for a byte; SentencePiece puts the first ▁ before the text."""
    ((ids, first),) = first_tokens(gpt2, [text])
    assert ([gpt2.tokenizer.id_to_token(i) for i in ids[:1]], first) == ([bpe], len(bpe)) if bpe else ([], 0)
    vocabulary = vocabularies.load(trained)
    ((ids, first),) = first_tokens(vocabulary, [text])
    assert [vocabulary.processor.id_to_piece(int(i)) for i in ids[:1]] == [sentencepiece][: len(ids)]
    assert first == len((sentencepiece or "").removeprefix("▁"))
    assert first_tokens(vocabularies.load("bytes"), [text])[0][1] == min(1, len(text))


BEGIN = ["▁the", "▁", "<0x0A>", "<unk>", ".", ",", "'", "'s", "=", "7", "1st", "é", "caf\u00e9", "白", "。", "€", ".…"]


CONTINUE = ["the", "S", "ing.", "..", '."', "-x", "[SEP]", "th"]


def test_the_first_tokens_bytes_where_text_is_lost(tmp_path):
    """By hand: white space and accents go, a word is unknown; the bytes are the text's up to the second token."""
    (tmp_path / "vocab.txt").write_text("\n".join(["[UNK]", "cafe", "##s", "the", "."]))
    vocabulary = vocabularies.load(
        config.VocabularyConfig(f"wordpiece:{tmp_path}/vocab.txt", unk=0, train_kind="uncased")
    )
    encoded = first_tokens(vocabulary, ["Cafés.", " \u200bCafé  the", "Ünd the", "the\n", " "])
    assert [ids.tolist() for ids, *_ in encoded] == [[1, 2, 4], [1, 3], [0, 3], [3], []]
    assert [first for *_, first in encoded] == [5, 4 + 5 + 2, 5, 4, 0]


def first_tokens(vocabulary, texts):
    """Ids of each text, and the bytes of its first token."""
    ids, ends, _, first_bytes = vocabulary.encode_parts(texts, [])
    return list(zip([ids[a:b] for a, b in itertools.pairwise(ends)], first_bytes, strict=True))


def test_word_initial(vocabulary):
    ids = list(vocabulary.encode("the whale and the sea"))
    words = np.cumsum(vocabulary.word_initial[ids])
    assert len(vocabulary.word_initial) == vocabulary.vocab_size
    assert words[-1] - words[0] == 4


MARKS = set(string.punctuation) - set("'<=>")


def is_start_piece(piece):
    """`_is_start_piece_sp` of google-research/albert, create_pretraining_data.py, character by character."""
    foreign = [c for c in piece if c not in MARKS and not "a" <= c.lower() <= "z"]
    return piece[0] in "▁<" or (len(piece) == 1 and piece in MARKS) or len(foreign) > 0


def test_pieces_of_sentencepiece_begin_words_by_alberts_rule(trained):
    loaded = vocabularies.load(trained)
    pieces = [loaded.processor.id_to_piece(i) for i in range(loaded.vocab_size)]
    assert loaded.word_initial.tolist() == list(map(is_start_piece, pieces))
    begins = tokenizer_files.sentencepiece_begins_words(BEGIN + CONTINUE)
    assert begins == [True] * len(BEGIN) + [False] * len(CONTINUE) == list(map(is_start_piece, BEGIN + CONTINUE))


def specials(spec, **ids):
    return config.VocabularyConfig(spec, **ids)


def test_bad_vocabularies_are_rejected(trained, tmp_path):
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"no model")
    merges = GPT2.split(",")[1]
    for vocabulary, message in (
        ("sentencepiece:/none", "cannot read the vocabulary's /none"),
        (f"sentencepiece:{damaged}", "is not a SentencePiece model"),
        (f"bpe:{damaged},{merges}", "are not a BPE vocabulary"),
        (f"bpe:{merges}", "use bpe:VOCAB,MERGES"),
        ("bytes:no", "use bytes"),
        (f"tiktoken:{damaged}", "is not a tiktoken file"),
        (f"json:{damaged}", "is not a tokenizer.json"),
        ("byte", "did you mean 'bytes'"),
        (dataclasses.replace(trained, eos=5), r"eos is 5 but .* has 1: set it to 1"),
        (specials("bytes", pad=0), "special id 0, which is a byte"),
        (specials(GPT2, eos=50257), r"vocabulary.eos is 50257"),
        (specials(GPT2, eos=0), r"eos is 0, a text token in .*vocab.json: use the id of a special token"),
        (specials(GPT2, mask=50255), r"mask is 50255, a text token"),
    ):
        with pytest.raises(UserError, match=message):
            vocabularies.load(vocabulary)
    with pytest.raises(UserError, match="cannot train a SentencePiece vocabulary of 5000"):
        training.train(["few words"], dataclasses.replace(T5_LIKE, spec=f"sentencepiece:{damaged}", train_size=5000))
    with pytest.raises(UserError, match="needs an unk id"):
        training.train(["x"], specials(f"sentencepiece:{damaged}", train_size=400))


def test_identity_is_that_of_ids(trained, tmp_path):
    ids = {vocabularies.identity(vocabularies.load(v)) for v in (trained, GPT2, "bytes")}
    assert len(ids) == 3
    moved = str(tmp_path / "other")
    vocabularies.copy(trained.spec, moved)
    same = dataclasses.replace(trained, spec=vocabularies.within(trained.spec, moved))
    assert os.path.dirname(vocabularies.files(same.spec)[0]) == moved
    assert vocabularies.identity(vocabularies.load(same)) == vocabularies.identity(vocabularies.load(trained))
    no_eos = dataclasses.replace(trained, eos=None)
    assert vocabularies.identity(vocabularies.load(no_eos)) not in ids
    # Pinned: what it hashes must not change unnoticed, or every cache is made again.
    assert vocabularies.identity(vocabularies.load("bytes")).startswith("220092ca13062e0c")


def test_sentinels_follow_the_file_in_descending_order(trained):
    for spec, size in ((trained, 400), (config.VocabularyConfig("bytes", eos=256), 257)):
        loaded = vocabularies.load(dataclasses.replace(spec, sentinels=3))
        plain = vocabularies.load(spec)
        assert (loaded.vocab_size, len(loaded.word_initial), plain.vocab_size) == (size + 3, size + 3, size)
        assert not loaded.word_initial[size:].any()
        text = list(loaded.encode("the whale"))
        ids = [size + 2, *text, size + 1, size, *text, loaded.eos_id, size]
        assert loaded.decode(ids) == "<extra_id_0> the whale <extra_id_1> <extra_id_2> the whale"
        assert loaded.decode_tf(text).numpy().decode() == plain.decode(text) == "the whale"
        assert loaded.decode([]) == ""
        assert vocabularies.identity(loaded) != vocabularies.identity(plain)


def test_sentinels_of_a_sentencepiece_file_are_the_ones_that_count(trained, tmp_path):
    """The pieces of mT5's file also end with its sentinels."""
    model = sentencepiece_model_pb2.ModelProto()
    with open(vocabularies.files(trained.spec)[0], "rb") as file:
        model.ParseFromString(file.read())
    for number in (2, 1, 0):
        model.pieces.add(piece=f"▁<extra_id_{number}>", score=0.0, type=model.pieces[5].USER_DEFINED)
    (tmp_path / "mt5.model").write_bytes(model.SerializeToString())
    with_sentinels = dataclasses.replace(trained, spec=f"sentencepiece:{tmp_path}/mt5.model", sentinels=3)
    inside, above = vocabularies.load(with_sentinels), vocabularies.load(dataclasses.replace(trained, sentinels=3))
    assert inside.vocab_size == above.vocab_size == 403
    assert not inside.word_initial[400:].any()
    ids = [402, *inside.encode("the whale"), 401]
    assert inside.decode(ids) == above.decode(ids) == "<extra_id_0> the whale <extra_id_1>"
    for other in (2, 5):  # Another number would make another id the first one.
        with pytest.raises(UserError, match=rf"sentinels is {other} but .* has 3: set it to 3"):
            vocabularies.load(dataclasses.replace(with_sentinels, sentinels=other))
    with pytest.raises(UserError, match="ends with its sentinels, which have the highest ids"):
        vocabularies.load(dataclasses.replace(with_sentinels, added=1, sop=402))


def test_text_pieces_of_a_sentencepiece_model_are_not_special_ids(trained, tmp_path):
    model = sentencepiece_model_pb2.ModelProto()
    with open(vocabularies.files(trained.spec)[0], "rb") as file:
        model.ParseFromString(file.read())
    piece = model.pieces[5]
    # Types of special pieces. Tools that append such pieces to a model often leave NORMAL. The names are from ChatGLM.
    special = {"[gMASK]": piece.NORMAL, "<sop>": piece.NORMAL, "control": piece.CONTROL, "user": piece.USER_DEFINED}
    for name, kind in special.items():
        model.pieces.add(piece=name, score=0.0, type=kind)
    (tmp_path / "special.model").write_bytes(model.SerializeToString())
    section = dataclasses.replace(trained, spec=f"sentencepiece:{tmp_path}/special.model")
    loaded = vocabularies.load(section)
    ids = loaded.encode("the whale \u2603")
    assert any(map(loaded.processor.is_byte, ids))
    for i in ids:
        with pytest.raises(UserError, match=rf"mask is {i}, a text token in .*: use the id of a special token"):
            vocabularies.load(dataclasses.replace(section, mask=i))
    ids = dict(zip(("gmask", "sop", "mask", "cls"), range(400, 404), strict=True))
    assert vocabularies.load(dataclasses.replace(section, **ids)).vocab_size == 404


def test_special_ids_may_be_added_above_the_file(trained, gpt2):
    for spec in (trained, gpt2.specials):
        plain = vocabularies.load(spec)
        size = plain.vocab_size
        changed = dataclasses.replace(spec, added=3, sop=size, eop=size + 2, sentinels=1)
        loaded = vocabularies.load(changed)
        assert (loaded.vocab_size, len(loaded.word_initial)) == (size + 4, size + 4)
        text = list(loaded.encode("the whale"))
        assert text == list(plain.encode("the whale"))
        assert loaded.decode([size, *text, size + 1, size + 2]) == "the whale"
        assert loaded.decode([*text, size + 3]) == "the whale <extra_id_0>"
        assert len({vocabularies.identity(v) for v in (plain, loaded)}) == 2
        with pytest.raises(UserError, match=rf"eop is {size + 2}: use an id below the vocabulary's size, {size + 2}"):
            vocabularies.load(dataclasses.replace(changed, added=2))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("merges.txt", lambda data: data.rsplit(b"\n", 2)[0] + b"\n", "1 tokens, such as .* have no merge"),
        ("merges.txt", lambda data: data[:-4], "have no merge|out of vocabulary"),
        ("merges.txt", lambda data: b"", r"\d{5} tokens, such as"),
        ("merges.txt", lambda data: data + b"a\n", "does not have two tokens"),
        ("vocab.json", lambda data: data.replace(b'"!": 0', b'"!": 1'), "ids are not 0 to size - 1"),
        ("vocab.json", lambda data: data.replace(b'"!": 0', b'"!": 0.0'), "does not map tokens to integers"),
        ("vocab.json", lambda data: b"\xef\xbb\xbf" + data, "byte order mark"),
    ],
)
def test_files_of_byte_pairs_that_do_not_match_are_rejected(tmp_path, name, change, message):
    for file in ("vocab.json", "merges.txt"):
        data = (DATA / "gpt2" / file).read_bytes()
        (tmp_path / file).write_bytes(change(data) if file == name else data)
    with pytest.raises(UserError, match=message):
        vocabularies.load_plain(f"bpe:{tmp_path}/vocab.json,{tmp_path}/merges.txt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tree: tree["model"]["vocab"].update(z=10**9), "5 tokens have ids up to 1,000,000,000"),
        (lambda tree: tree["model"]["vocab"].update(z=1), "two tokens have the same id"),
        (lambda tree: tree["model"]["vocab"].clear(), "out of vocabulary|has no tokens"),
        (lambda tree: tree["model"].update(merges=[]), "its merges are missing"),
        (lambda tree: tree["added_tokens"][0].update(id=7), "the added token '<s>' does not have the id 7"),
        (
            lambda tree: tree.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA" * 99}),
            "truncated",
        ),
    ],
)
def test_a_tokenizer_json_with_odd_ids_is_rejected(tmp_path, change, message):
    added = {"id": 3, "content": "<s>", "special": True}
    added |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
    tree = {"version": "1.0", "added_tokens": [added], "model": model}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(tree))
    assert list(vocabularies.load_plain(f"json:{path}").encode("abb")) == [2, 1]
    change(tree)
    path.write_text(json.dumps(tree))
    with pytest.raises(UserError, match=f"not a tokenizer.json .*(?:{message})"):
        vocabularies.load_plain(f"json:{path}")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xef\xbb\xbf[UNK]\na\n", "byte order mark"),
        (b"[UNK]\n\na\n", "line 2 is empty"),
        (b"[UNK]\n\xff\n", "can't decode"),
        (b"[UNK]\na\na\n", "without duplicates"),
        (b"", "line 1 is empty"),
        (b"a\n", "is not a WordPiece vocabulary"),
    ],
)
def test_a_bad_vocab_txt_is_rejected(tmp_path, data, message):
    (tmp_path / "vocab.txt").write_bytes(data)
    with pytest.raises(UserError, match=message):
        vocabularies.load_plain(f"wordpiece:{tmp_path}/vocab.txt")


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_lines_of_a_vocabulary_may_end_like_those_of_windows(end):
    assert wordpiece.read(b"[UNK]\r\nthe\r\n##s" + end) == ["[UNK]", "the", "##s"]
