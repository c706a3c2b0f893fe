"""Ids beside those of other libraries, on lines that mix scripts, emoji, code and control characters."""

import base64
import itertools
import json
import pathlib

import pytest
import tokenizers
from tokenizers import models, trainers

import plm_jax
from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.data import vocabularies
from plm_jax.data.vocabularies import tokenizer_files, training

DATA = pathlib.Path(plm_jax.__file__).parent / "data"
GPT2 = [f"{DATA}/gpt2/vocab.json", f"{DATA}/gpt2/merges.txt"]
BERT = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}


def ids_of(vocabulary, lines):
    """Returns the ids of all lines; a sample is compared with `encode`."""
    encoded = [ids.tolist() for ids, _ in vocabulary.encode_sentences(lines)]
    assert encoded[::50] == [list(vocabulary.encode(line)) for line in lines[::50]]
    return encoded


def from_json(path, **specials):
    return vocabularies.load(config.VocabularyConfig(f"json:{path}", **BERT, **specials))


def differences(ours, theirs, lines):
    return [(line, a, b) for line, a, b in zip(lines, ours, theirs, strict=True) if a != b][:3]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """The first 6,000 of GPT-2's tokens as a file of tiktoken's."""
    ids = json.loads(pathlib.Path(GPT2[0]).read_text())
    byte = {character: i for i, character in enumerate(tokenizer_files.byte_characters())}
    token_ranks = {bytes(byte[c] for c in token): i for token, i in ids.items() if i < 6000}
    path = tmp_path_factory.mktemp("tiktoken") / "gpt2.tiktoken"
    path.write_text("".join(f"{base64.b64encode(token).decode()} {i}\n" for token, i in token_ranks.items()))
    return path, token_ranks


@pytest.fixture(scope="module")
def llama3(ranks):
    return vocabularies.load(config.VocabularyConfig(f"tiktoken:{ranks[0]}", added=256, bos=6000, eos=6001))


def test_llama3_cuts_digits_in_threes_and_keeps_lines_ends(llama3):
    """Golden ids, of tiktoken 0.14."""
    golden = {
        "Hello world": [39, 695, 78, 995],
        "12345678": [1065, 18, 2231, 21, 3695],
        "the world\r\n\r\n  is 你": [1169, 995, 201, 198, 201, 198, 220, 318, 220, 160, 121, 254],
        "<|begin_of_text|>": [27, 91, 1350, 1655, 62, 1659, 62, 5239, 91, 29],
    }
    assert {text: list(llama3.encode(text)) for text in golden} == golden
    assert (llama3.vocab_size, llama3.bos_id, llama3.eos_id) == (6256, 6000, 6001)
    assert llama3.decode([6000, 39, 695, 78, 995, 6001]) == "Hello world"


def test_llama3_loses_nothing(llama3, lines):
    assert [llama3.decode(ids) for ids in ids_of(llama3, lines)] == lines


def test_llama3_ids_are_tiktokens_and_hugging_faces(llama3, ranks, lines):
    """Hugging Face's converter has LLaMA 3's rule for splitting words."""
    tiktoken = pytest.importorskip("tiktoken")
    ids = ids_of(llama3, lines)
    other = tiktoken.Encoding("x", pat_str=tokenizer_files.LLAMA3_SPLIT, mergeable_ranks=ranks[1], special_tokens={})
    assert not differences(ids, other.encode_ordinary_batch(lines), lines)
    converters = pytest.importorskip("transformers.convert_slow_tokenizer")
    other = converters.TikTokenConverter(vocab_file=str(ranks[0])).converted()
    theirs = [encoding.ids for encoding in other.encode_batch(lines, add_special_tokens=False)]
    assert not differences(ids, theirs, lines)


def test_gpt2_ids_are_hugging_faces(lines):
    transformers = pytest.importorskip("transformers")
    other = transformers.GPT2TokenizerFast(vocab=GPT2[0], merges=GPT2[1])
    ours = vocabularies.load(config.VocabularyConfig(f"bpe:{','.join(GPT2)}", eos=50256))
    assert not differences(ids_of(ours, lines), other(lines)["input_ids"], lines)


def test_roberta_ids_are_hugging_faces(lines, tmp_path):
    transformers = pytest.importorskip("transformers")
    files = [str(tmp_path / name) for name in ("vocab.json", "merges.txt")]
    specials = config.VocabularyConfig(
        f"bpe:{','.join(files)}", train_size=700, bos=0, pad=1, eos=2, unk=3, mask=699, cls=0, sep=2
    )
    training.train(lines, specials)
    other = transformers.RobertaTokenizer(vocab=files[0], merges=files[1])
    assert [other.convert_tokens_to_ids(token) for token in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")] == [
        0, 1, 2, 3, 699,
    ]  # fmt: skip
    plain = [line.replace("<s>", "<b>").replace("</s>", "</b>") for line in lines]  # To it these are special tokens.
    theirs = other(plain, add_special_tokens=False)["input_ids"]
    assert not differences(ids_of(vocabularies.load(specials), plain), theirs, plain)


@pytest.mark.parametrize("kind", ["uncased", "cased"])
def test_wordpiece_ids_are_hugging_faces(kind, lines, tmp_path):
    transformers = pytest.importorskip("transformers")
    specials = config.VocabularyConfig(f"wordpiece:{tmp_path}/vocab.txt", train_size=380, train_kind=kind, **BERT)
    training.train(lines, specials)
    ours = vocabularies.load(specials)
    assert ours.table["lowercase"] == (kind == "uncased")
    ids = {token: i for i, token in enumerate(ours.table["tokens"])}
    other = transformers.BertTokenizer(vocab=ids, do_lower_case=kind == "uncased")
    texts = [*lines, "x" * 100 + " " + "y" * 101, "ÅŁ ǅ \ufffd hi\u200bden"]
    theirs = other(texts, add_special_tokens=False)["input_ids"]
    assert not differences(ids_of(ours, texts), theirs, texts)
    assert {"西", "湖"} <= ids.keys(), "Chinese characters are separate tokens"


# Of each kind the family whose tokenizer has it, and the special ids that it asks for.
PIECES = {
    "unigram": ("T5Tokenizer", {"pad": 0, "eos": 1, "unk": 2}),
    "bpe": ("LlamaTokenizer", {"unk": 0, "bos": 1, "eos": 2}),
}


@pytest.fixture(scope="module", params=PIECES)
def pieces(request, lines, tmp_path_factory):
    """A SentencePiece vocabulary of a kind, trained, its file and the family's tokenizer."""
    family, ids = PIECES[request.param]
    path = tmp_path_factory.mktemp(request.param) / "v.model"
    specials = config.VocabularyConfig(f"sentencepiece:{path}", train_size=500, train_kind=request.param, **ids)
    training.train(lines, specials)
    return vocabularies.load(specials), path, family


def test_sentencepiece_loses_nothing(pieces, lines):
    ours, _, _ = pieces
    texts = [line.replace("\x00", "") for line in lines]
    assert ours.vocab_size == 500
    assert [ours.decode(ids) for ids in ids_of(ours, texts)] == texts


def test_sentencepiece_ids_are_hugging_faces(pieces, lines):
    """T5's tokenizer knows no bytes, each run of which is one unknown token to it, and no spaces but single ones;
    LLaMA's sees the space that SentencePiece puts before a text only where the text begins with none.
    """
    ours, path, family = pieces
    transformers = pytest.importorskip("transformers")
    converters = pytest.importorskip("transformers.convert_slow_tokenizer")
    kind = getattr(transformers, family)
    extracted = converters.SentencePieceExtractor(str(path)).extract(kind.model)
    # To these tokenizers they are special tokens.
    plain = [line.replace("<s>", "<b>").replace("</s>", "</b>") for line in lines]
    if family == "T5Tokenizer":
        other = kind(vocab=extracted["vocab"], extra_ids=0)
        plain = [text for line in plain if (text := " ".join(line.split()))]
        known = [[ours.unk_id if ours.processor.is_byte(i) else i for i in ids] for ids in ids_of(ours, plain)]
        pairs = ([None, *ids] for ids in known)
        ids = [[b for a, b in itertools.pairwise(pair) if not a == b == ours.unk_id] for pair in pairs]
    else:
        other = kind(vocab=extracted["vocab"], merges=extracted["merges"])
        plain = [text for line in plain if (text := line.lstrip(" "))]
        ids = ids_of(ours, plain)
    assert len(plain) > 950
    assert not differences(ids, other(plain, add_special_tokens=False)["input_ids"], plain)


UNK = {"unk_token": "[UNK]"}
BPE_END = {"end_of_word_suffix": "</w>"}
# Model, trainer and its settings, normalizer, pre-tokenizer and decoder.
MODELS = {
    "WordPiece": (models.WordPiece(**UNK), trainers.WordPieceTrainer, {}, "BertNormalizer", "Whitespace", "WordPiece"),
    "ByteLevel": (models.BPE(ignore_merges=True), trainers.BpeTrainer, {}, None, "ByteLevel", "ByteLevel"),
    "BPE": (
        models.BPE(**UNK, **BPE_END),
        trainers.BpeTrainer,
        BPE_END,
        "BertNormalizer",
        "BertPreTokenizer",
        "BPEDecoder",
    ),
    "Unigram": (models.Unigram(), trainers.UnigramTrainer, UNK, "NFKC", "Metaspace", "Metaspace"),
    "WordLevel": (models.WordLevel(**UNK), trainers.WordLevelTrainer, {}, None, "WhitespaceSplit", None),
}


@pytest.fixture(scope="module", params=MODELS)
def of_library(request, lines, tmp_path_factory):
    """A tokenizer trained by the library, with a template, truncation and padding, and its file."""
    model, trainer, settings, normalizer, pre_tokenizer, decoder = MODELS[request.param]
    other = tokenizers.Tokenizer(model)
    options = {"add_prefix_space": False} if pre_tokenizer == "ByteLevel" else {}
    other.pre_tokenizer = getattr(tokenizers.pre_tokenizers, pre_tokenizer)(**options)
    if normalizer:
        other.normalizer = getattr(tokenizers.normalizers, normalizer)()
    if decoder:
        other.decoder = getattr(tokenizers.decoders, decoder)()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    other.train_from_iterator(lines, trainer(vocab_size=700, special_tokens=special, show_progress=False, **settings))
    other.add_special_tokens(["<|end|>"])
    other.add_tokens(["whale song"])
    other.post_processor = tokenizers.processors.TemplateProcessing(
        "[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)]
    )
    other.enable_truncation(5)
    other.enable_padding(length=5)
    path = tmp_path_factory.mktemp("json") / "tokenizer.json"
    other.save(str(path))
    other.no_truncation()
    other.no_padding()
    return request.param, other, path


def test_a_tokenizer_json_gives_the_librarys_ids(of_library, lines):
    _, other, path = of_library
    ours = from_json(path)
    assert ours.vocab_size == other.get_vocab_size()
    texts = [*lines, "a whale song here"]
    theirs = [encoding.ids for encoding in other.encode_batch(texts, add_special_tokens=False)]
    assert not differences(ids_of(ours, texts), theirs, texts)
    assert [ours.decode(ids) for ids in theirs] == [other.decode(ids, skip_special_tokens=False) for ids in theirs]
    assert other.token_to_id("whale song") in ours.encode("a whale song here")


def test_text_never_becomes_a_special_token_of_a_tokenizer_json(of_library):
    _, other, path = of_library
    ours = from_json(path)
    end = other.token_to_id("<|end|>")
    for text in ("the [MASK] whale", "[CLS]", "a[SEP] b", "[PAD] [PAD]", "the<|end|>"):
        assert not set(ours.encode(text)) & {0, 2, 3, 4, end}, text
        assert set(other.encode(text, add_special_tokens=False).ids) & {0, 2, 3, 4, end}
    assert ours.decode([2, end, 4, 3]).replace(" ", "") == "[CLS]<|end|>[MASK][SEP]"


def test_words_begin_where_a_tokenizer_json_shows_it(of_library):
    kind, other, path = of_library
    ours = from_json(path)
    ids = other.encode(" Hello the whale and we've unaffable", add_special_tokens=False).ids
    starts = [other.id_to_token(i) for i in ids if ours.word_initial[i]]
    expected = {
        "WordPiece": lambda token: not token.startswith("##"),
        "ByteLevel": lambda token: token.startswith("Ġ"),
        "Unigram": lambda token: token.startswith("▁") or token == "'",
    }.get(kind, lambda token: True)
    assert starts == [token for token in map(other.id_to_token, ids) if expected(token)] != []


def test_transformers_opens_a_tokenizer_json_to_the_same_ids(of_library, lines):
    transformers = pytest.importorskip("transformers")
    _, _, path = of_library
    other = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
    ours = from_json(path)
    theirs = other(lines, add_special_tokens=False, truncation=False, padding=False)["input_ids"]
    assert not differences(ids_of(ours, lines), theirs, lines)


def test_special_ids_that_occur_in_text_are_rejected(of_library, ranks, tmp_path):
    _, other, path = of_library
    letter = max(other.encode("the whale", add_special_tokens=False).ids)
    for i in (letter, other.token_to_id("whale song")):  # Added, but not as special: it comes from text.
        with pytest.raises(UserError, match=rf"eos is {i}, a text token in .*tokenizer\.json"):
            from_json(path, eos=i)
    end = other.token_to_id("<|end|>")
    assert from_json(path, eos=end, added=1, sop=end + 2).eos_id == end
    with pytest.raises(UserError, match=r"bos is 5, a text token in .*gpt2\.tiktoken"):
        vocabularies.load(config.VocabularyConfig(f"tiktoken:{ranks[0]}", added=256, bos=5))
    bare = json.loads(path.read_text())
    del bare["added_tokens"]
    (tmp_path / "bare.json").write_text(json.dumps(bare))
    assert list(vocabularies.load(f"json:{tmp_path}/bare.json").encode("a"))
    (tmp_path / "none.json").write_text(tokenizers.Tokenizer(tokenizers.models.WordLevel({}, "x")).to_str())
    with pytest.raises(UserError, match=r"none\.json .*has no tokens"):
        vocabularies.load(f"json:{tmp_path}/none.json")


def test_identity_depends_on_the_contents_of_a_tokenizer_json(of_library, tmp_path):
    _, _, path = of_library
    tree = json.loads(path.read_text())
    same, other = tmp_path / "same.json", tmp_path / "other.json"
    same.write_text(json.dumps(tree, indent=4))
    tree["normalizer"] = {"type": "Lowercase"}
    other.write_text(json.dumps(tree))
    identities = [vocabularies.identity(vocabularies.load(f"json:{p}")) for p in (path, same, other)]
    assert identities[0] == identities[1] != identities[2]


def test_identity_of_a_file_of_tiktokens(ranks, llama3):
    fewer = vocabularies.load(config.VocabularyConfig(f"tiktoken:{ranks[0]}", added=256, bos=6000))
    assert vocabularies.identity(llama3) != vocabularies.identity(fewer)
    # Pinned: what it hashes must not change unnoticed, or every cache is made again.
    assert vocabularies.identity(llama3).startswith("930713edf4475305")


def test_sentinels_of_a_tokenizer_json_are_the_ones_that_count(tmp_path):
    """T5's file also contains its sentinels."""
    other = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "the": 1, "whale": 2}, "<unk>"))
    other.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    other.add_special_tokens([f"<extra_id_{i}>" for i in (2, 1, 0)])
    other.save(str(tmp_path / "tokenizer.json"))
    ours = vocabularies.load(config.VocabularyConfig(f"json:{tmp_path}/tokenizer.json", sentinels=3))
    assert ours.vocab_size == 6 and not ours.word_initial[3:].any()
    assert ours.decode([5, 1, 4, 2, 3]) == "<extra_id_0> the <extra_id_1> whale <extra_id_2>"
