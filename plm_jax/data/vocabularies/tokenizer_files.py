"""What tokens and merges are to Hugging Face's `tokenizers`: BERT's WordPiece, GPT-2's BPE, tiktoken's, their own."""

import base64
import itertools
import json
import re
import string
from collections.abc import Iterator
from typing import Any

import tokenizers

from plm_jax.common import sentence_models, strict_json
from plm_jax.common.special_ids import NAMES as SPECIALS
from plm_jax.data.vocabulary_config import VocabularyConfig

# Where LLaMA 3 cuts text before it merges bytes (meta-llama/llama3, llama/tokenizer.py), and GLM-4 too
# (THUDM/glm-4-9b, tokenization_chatglm.py).
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The marks of ALBERT's rule for words, see `sentencepiece_begins_words`.
_MARKS = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
_GO_ON = _MARKS | frozenset(string.ascii_lowercase)
# How a BPE of characters writes a byte of one that it lacks.
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
# The names of tokens that no merge makes, as in GPT-2's, RoBERTa's and other vocabularies.
_SPECIAL = re.compile(r"<.*>|\[.*\]|madeupword\d+", re.DOTALL)
# Several times what published files of tiktoken's have: each place of a token where it may be cut is tried.
_MOST_RANKS, _LONGEST_RANK = 2**24, 2**10
# Before a special token's own name it makes one that no text has.
_HIDDEN = "\U0010ffff"


def byte_characters() -> list[str]:
    """How byte-level BPE writes each byte (GPT-2): printable ones of Latin-1 as they are, others from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = itertools.count(256)
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def byte_level(model: tokenizers.models.BPE, split: str = "") -> tokenizers.Tokenizer:
    """A byte-level BPE over text that is cut by a regular expression, GPT-2's by default."""
    tokenizer = tokenizers.Tokenizer(model)
    whole = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=not split)
    cut = [tokenizers.pre_tokenizers.Split(tokenizers.Regex(split), "isolated")] if split else []
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([*cut, whole]) if cut else whole
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


def byte_pairs(vocab: bytes, merges: bytes, specials: VocabularyConfig) -> tuple[dict[str, int], list[tuple[str, ...]]]:
    """The ids of a vocab.json, and the pairs of a merges.txt in their order.

    Raises:
      ValueError: they are no such files; ids are not 0 to size - 1; merges are cut or missing: a token of text is
        neither a byte nor made by any.
    """
    ids, text = strict_json.loads(vocab), merges.decode("utf-8")
    if not isinstance(ids, dict) or not all(type(i) is int for i in ids.values()):
        raise ValueError("the vocabulary maps no tokens to integers")
    if sorted(ids.values()) != list(range(len(ids))):
        raise ValueError("ids are not 0 to size - 1")
    pairs = [tuple(line.split(" ")) for line in text.splitlines() if line and not line.startswith("#version")]
    if not all(len(pair) == 2 and all(pair) for pair in pairs):
        raise ValueError("a line of the merges is other than two tokens")
    made = {*byte_characters(), *map("".join, pairs)}
    own = {getattr(specials, name) for name in SPECIALS}
    lost = [token for token, i in ids.items() if token not in made and i not in own and not _SPECIAL.fullmatch(token)]
    if lost:
        raise ValueError(f"{len(lost)} tokens, such as {lost[0][:50]!r}, are made by no merge: merges are missing")
    return ids, pairs


def check_ids(tree: dict[str, Any], ids: dict[str, int]) -> None:
    """Checks that the tokens of a `tokenizer.json`, added ones among them, have ids of their own without large holes.

    Raises:
      ValueError: they have not, or a BPE lacks its merges.
    """
    if not ids:
        raise ValueError("it has no tokens")
    if len(set(ids.values())) < len(ids):
        raise ValueError("two tokens have one id")
    if max(ids.values()) >= 2 * len(ids) + 1000:
        raise ValueError(f"{len(ids):,} tokens have ids up to {max(ids.values()):,}")
    model = tree["model"]
    if isinstance(model["vocab"], list) and len(model["vocab"]) > len({piece for piece, _ in model["vocab"]}):
        raise ValueError("a piece comes twice")
    for token in _added(tree):
        if ids.get(token["content"]) != token["id"]:
            raise ValueError(f"the added token {token['content'][:50]!r} has not the id {token['id']}")
    if model.get("type") == "BPE" and not model.get("merges") and not model.get("ignore_merges"):
        added = {token["content"] for token in _added(tree)}
        if any(len(token) > 1 and not _BYTE.fullmatch(token) for token in ids.keys() - added):
            raise ValueError("its merges are missing")


def tiktoken(data: bytes) -> tuple[list[str], tokenizers.Tokenizer]:
    """The tokens, as byte-level BPE writes them, and the tokenizer of a file of lines `BASE64 RANK`; id = rank.

    Two neighbours are merged if together they are a token, those of the lowest rank first.

    Raises:
      ValueError: it is no such file, or lacks a rank or a byte.
    """
    if len(data) > _MOST_RANKS or max(map(len, data.splitlines()), default=0) > _LONGEST_RANK:
        raise ValueError(f"it has more than {_MOST_RANKS:,} bytes, or a line of more than {_LONGEST_RANK:,}")
    lines = [line.split() for line in data.splitlines() if line]
    ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
    if sorted(ranks.values()) != list(range(len(lines))):
        raise ValueError("ranks are not 0 to size - 1, each token once")
    if not all(bytes([byte]) in ranks for byte in range(256)):
        raise ValueError("it lacks bytes")
    character = byte_characters()
    names = {token: "".join(character[byte] for byte in token) for token in sorted(ranks, key=ranks.__getitem__)}
    merges = []
    for token in names:
        halves = ((token[:i], token[i:]) for i in range(1, len(token)))
        pairs = [(ranks[a], ranks[b], names[a], names[b]) for a, b in halves if a in ranks and b in ranks]
        merges += [(a, b) for *_, a, b in sorted(pairs)]
    tokens = list(names.values())
    ids = {token: i for i, token in enumerate(tokens)}
    return tokens, byte_level(tokenizers.models.BPE(ids, merges, ignore_merges=True), LLAMA3_SPLIT)


def bert(ids: dict[str, int], lowercase: bool) -> tokenizers.Tokenizer:
    """BERT's WordPiece over these tokens, without accents and upper case if `lowercase`."""
    # 100 characters a word, as in transformers.
    model = tokenizers.models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=lowercase, lowercase=lowercase
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    return tokenizer


def hugging_face(tree: dict[str, Any]) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:
    """The tokenizer of a `tokenizer.json` for text, to which special tokens are text like any other, and that for ids.

    Neither adds tokens around a text, cuts or pads it.

    Raises:
      Exception: it is no such tree; the library says no more.
    """
    tree = tree | dict.fromkeys(("post_processor", "truncation", "padding"))
    for rules in _rules(tree.get("normalizer")):
        sentence_models.check_rules(base64.b64decode(rules))
    decoder = tokenizers.Tokenizer.from_str(json.dumps(tree))
    special = {token["content"] for token in _added(tree) if token["special"]}
    hidden = _hide(tree, special) if special & decoder.get_vocab(with_added_tokens=False).keys() else None
    encoder = tokenizers.Tokenizer.from_str(json.dumps(hidden or tree))
    encoder.encode_special_tokens = True
    return encoder, decoder


def _rules(normalizer: Any) -> Iterator[str]:
    """Those of SentencePiece's in a normaliser and its parts; the library crashes on what is none."""
    if isinstance(normalizer, dict):
        if normalizer.get("type") == "Precompiled":
            yield normalizer["precompiled_charsmap"]
        for part in normalizer.get("normalizers") or ():
            yield from _rules(part)


def _added(tree: dict[str, Any]) -> list[dict[str, Any]]:
    """The tokens that a `tokenizer.json` has besides those of its model."""
    return tree.get("added_tokens", [])


def special_ids(tree: dict[str, Any], ids: dict[str, int]) -> set[int | None]:
    """The tokens of a `tokenizer.json` that text never becomes, and the one for what it does not know."""
    unknown = {ids.get(tree["model"].get("unk_token")), tree["model"].get("unk_id")}
    return unknown | {token["id"] for token in _added(tree) if token["special"]}


def _hide(tree: dict[str, Any], special: set[str]) -> dict[str, Any]:
    """The tree with other names for special tokens that the model itself has: some models find them in text."""
    model, added = dict(tree["model"]), [dict(token) for token in _added(tree)]

    def hide(token: str) -> str:
        return _HIDDEN + token if token in special else token

    if isinstance(model["vocab"], dict):
        model["vocab"] = {hide(token): i for token, i in model["vocab"].items()}
    else:
        model["vocab"] = [(hide(token), score) for token, score in model["vocab"]]
    if "merges" in model:
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        model["merges"] = [[a, b] for a, b in pairs if not special & {a, b, a + b}]
    if model.get("unk_token"):
        model["unk_token"] = hide(model["unk_token"])
    for token in added:
        token["content"] = hide(token["content"])
    return tree | {"model": model, "added_tokens": added}


def begins_words(tree: dict[str, Any], tokens: list[str]) -> list[bool]:
    """Which tokens of a `tokenizer.json` begin a word; each, where that is not to be seen from the token."""
    model = tree["model"]
    if model.get("type") == "WordPiece":
        return [not token.startswith(model.get("continuing_subword_prefix", "##")) for token in tokens]
    if '"ByteLevel"' in json.dumps([tree.get("pre_tokenizer"), tree.get("decoder")]):
        return byte_level_begins_words(tokens)
    if any(token.startswith("▁") for token in tokens):
        return sentencepiece_begins_words(tokens)
    return [True] * len(tokens)


def sentencepiece_begins_words(pieces: list[str]) -> list[bool]:
    """Which pieces of SentencePiece begin a word: ALBERT's rule (`_is_start_piece_sp` in google-research/albert).

    Those with ▁ or < in front, a mark by itself, and all with a character that is neither an English letter nor a mark,
    such as a digit, an apostrophe or é: so each piece of Chinese begins one.
    """
    return [piece.startswith(("▁", "<")) or piece in _MARKS or not _GO_ON.issuperset(piece.lower()) for piece in pieces]


def own_bytes(tree: dict[str, Any], tokens: list[str]) -> dict[int, int]:
    """Returns the number of bytes of text of each token of a `tokenizer.json` that has the same number everywhere."""
    added, model = {token["content"] for token in _added(tree)}, tree["model"]
    if model.get("byte_fallback"):
        return {i: 1 for i, token in enumerate(tokens) if _BYTE.fullmatch(token) and token not in added}
    steps = json.dumps(tree.get("pre_tokenizer"))
    if '"ByteLevel"' in steps and '"add_prefix_space": true' not in steps and not tree.get("normalizer"):
        return {i: len(token) for i, token in enumerate(tokens) if token not in added}
    return {}


def byte_level_begins_words(tokens: list[str]) -> list[bool]:
    """Which tokens of a byte-level BPE begin with white space: a space, a line feed, a tab or a carriage return."""
    return [token.startswith(("Ġ", "Ċ", "ĉ", "č")) for token in tokens]
