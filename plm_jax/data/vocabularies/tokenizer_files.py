"""Hugging Face tokenizers from the files of BERT's WordPiece, GPT-2's BPE, tiktoken and tokenizer.json."""

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

# Pattern that splits text before bytes are merged, in LLaMA 3 (meta-llama/llama3, llama/tokenizer.py) and GLM-4
# (THUDM/glm-4-9b, tokenization_chatglm.py).
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Punctuation in ALBERT's rule for the beginnings of words, `sentencepiece_begins_words`.
_PUNCTUATION = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
_CONTINUING = _PUNCTUATION | frozenset(string.ascii_lowercase)
# Token for a byte of an unknown character in a character-level BPE.
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
# Names of tokens without a merge, as in the vocabularies of GPT-2, RoBERTa and others.
_SPECIAL = re.compile(r"<.*>|\[.*\]|madeupword\d+", re.DOTALL)
# Limits in bytes on a tiktoken file and its lines, several times those of published files: every split of a token is
# tried.
_MAX_FILE_BYTES, _MAX_LINE_BYTES = 2**24, 2**10
# Prefix that turns the name of a special token into a string that no text contains.
_HIDDEN = "\U0010ffff"


def byte_characters() -> list[str]:
    """Returns the character of each byte in byte-level BPE (GPT-2).

    A byte that is a visible Latin-1 character is represented by this character. All other bytes, such as the space, are
    represented by the characters from U+0100 upward.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    unused = itertools.count(256)
    return [chr(byte if byte in printable else next(unused)) for byte in range(256)]


def byte_level(model: tokenizers.models.BPE, split: str = "") -> tokenizers.Tokenizer:
    """Returns a byte-level BPE that first splits text by the regular expression `split`; empty: by GPT-2's."""
    tokenizer = tokenizers.Tokenizer(model)
    whole = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=not split)
    cut = [tokenizers.pre_tokenizers.Split(tokenizers.Regex(split), "isolated")] if split else []
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([*cut, whole]) if cut else whole
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


def byte_pairs(vocab: bytes, merges: bytes, specials: VocabularyConfig) -> tuple[dict[str, int], list[tuple[str, ...]]]:
    """Returns the ids of the tokens in a vocab.json, and the pairs of tokens in a merges.txt, in order.

    Raises:
      ValueError: the files are invalid, ids are not 0 to size - 1, or a token is neither a byte, nor the result of a
        merge, nor a special token.
    """
    ids, text = strict_json.loads(vocab), merges.decode("utf-8")
    if not isinstance(ids, dict) or not all(type(i) is int for i in ids.values()):
        raise ValueError("the vocabulary does not map tokens to integers")
    if sorted(ids.values()) != list(range(len(ids))):
        raise ValueError("ids are not 0 to size - 1")
    pairs = [tuple(line.split(" ")) for line in text.splitlines() if line and not line.startswith("#version")]
    if not all(len(pair) == 2 and all(pair) for pair in pairs):
        raise ValueError("a line of the merges does not have two tokens")
    merged = {*byte_characters(), *map("".join, pairs)}
    special = {getattr(specials, name) for name in SPECIALS}
    unreachable = [
        token for token, i in ids.items() if token not in merged and i not in special and not _SPECIAL.fullmatch(token)
    ]
    if unreachable:
        raise ValueError(
            f"{len(unreachable)} tokens, such as {unreachable[0][:50]!r}, have no merge: merges are missing"
        )
    return ids, pairs


def check_ids(tree: dict[str, Any], ids: dict[str, int]) -> None:
    """Checks the tokens of a `tokenizer.json`.

    Args:
      ids: id of each token, including added tokens.

    Raises:
      ValueError: there are no tokens, two tokens have the same id, ids have large gaps, a piece is duplicated, an added
        token does not have its id, or a BPE lacks its merges.
    """
    if not ids:
        raise ValueError("it has no tokens")
    if len(set(ids.values())) < len(ids):
        raise ValueError("two tokens have the same id")
    if max(ids.values()) >= 2 * len(ids) + 1000:
        raise ValueError(f"{len(ids):,} tokens have ids up to {max(ids.values()):,}")
    model = tree["model"]
    if isinstance(model["vocab"], list) and len(model["vocab"]) > len({piece for piece, _ in model["vocab"]}):
        raise ValueError("a piece is duplicated")
    for token in _added(tree):
        if ids.get(token["content"]) != token["id"]:
            raise ValueError(f"the added token {token['content'][:50]!r} does not have the id {token['id']}")
    if model.get("type") == "BPE" and not model.get("merges") and not model.get("ignore_merges"):
        added = {token["content"] for token in _added(tree)}
        if any(len(token) > 1 and not _BYTE.fullmatch(token) for token in ids.keys() - added):
            raise ValueError("its merges are missing")


def tiktoken(data: bytes) -> tuple[list[str], tokenizers.Tokenizer]:
    """Reads a tiktoken file, which has lines `BASE64 RANK`.

    The id of a token is its rank. Neighbors whose concatenation is a token are merged; the token of lowest rank is made
    first.

    Returns:
      A pair: the tokens in the order of their ids, written in the characters of byte-level BPE; and the tokenizer.

    Raises:
      ValueError: the file is too large or has another format, ranks are not 0 to size - 1, or a byte is missing.
    """
    if len(data) > _MAX_FILE_BYTES or max(map(len, data.splitlines()), default=0) > _MAX_LINE_BYTES:
        raise ValueError(f"it has more than {_MAX_FILE_BYTES:,} bytes, or a line of more than {_MAX_LINE_BYTES:,}")
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
    """Returns BERT's WordPiece tokenizer; if `lowercase`, it lowercases text and strips accents."""
    # Words of at most 100 characters, as in transformers.
    model = tokenizers.models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=lowercase, lowercase=lowercase
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    return tokenizer


def hugging_face(tree: dict[str, Any]) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:
    """Returns two tokenizers of a `tokenizer.json`: one for encoding and one for decoding.

    The tokenizer for encoding reads special tokens as text. Neither tokenizer adds special tokens, truncates or pads.

    Raises:
      Exception: the tree is not a valid `tokenizer.json`. The library raises no narrower type.
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
    """Yields the SentencePiece rules, in base64, in a normalizer and its parts.

    The rules must be checked before use, because the library crashes if they are malformed.
    """
    if isinstance(normalizer, dict):
        if normalizer.get("type") == "Precompiled":
            yield normalizer["precompiled_charsmap"]
        for part in normalizer.get("normalizers") or ():
            yield from _rules(part)


def _added(tree: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the added tokens of a `tokenizer.json`."""
    return tree.get("added_tokens", [])


def special_ids(tree: dict[str, Any], ids: dict[str, int]) -> set[int | None]:
    """Returns the ids of the special tokens of a `tokenizer.json`, including the unknown token.

    The set may also contain None.
    """
    unknown = {ids.get(tree["model"].get("unk_token")), tree["model"].get("unk_id")}
    return unknown | {token["id"] for token in _added(tree) if token["special"]}


def _hide(tree: dict[str, Any], special: set[str]) -> dict[str, Any]:
    """Returns the tree with names for special tokens that no text contains.

    Some models would otherwise find special tokens in text.
    """
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
    """Returns whether each token of a `tokenizer.json` begins a word.

    If the tokens do not mark beginnings of words, every token counts as the beginning of a word.
    """
    model = tree["model"]
    if model.get("type") == "WordPiece":
        return [not token.startswith(model.get("continuing_subword_prefix", "##")) for token in tokens]
    if '"ByteLevel"' in json.dumps([tree.get("pre_tokenizer"), tree.get("decoder")]):
        return byte_level_begins_words(tokens)
    if any(token.startswith("▁") for token in tokens):
        return sentencepiece_begins_words(tokens)
    return [True] * len(tokens)


def sentencepiece_begins_words(pieces: list[str]) -> list[bool]:
    """Returns whether each SentencePiece piece begins a word, by ALBERT's rule.

    A piece begins a word if it starts with ▁ or <, is a single punctuation character, or has a character that is
    neither an English letter nor punctuation, such as a digit, an apostrophe or é. Every Chinese piece begins a word.
    The rule is `_is_start_piece_sp` in google-research/albert.
    """
    return [
        piece.startswith(("▁", "<")) or piece in _PUNCTUATION or not _CONTINUING.issuperset(piece.lower())
        for piece in pieces
    ]


def byte_counts(tree: dict[str, Any], tokens: list[str]) -> dict[int, int]:
    """Returns, by id, the number of text bytes of each token for which this number is known and always the same."""
    added, model = {token["content"] for token in _added(tree)}, tree["model"]
    if model.get("byte_fallback"):
        return {i: 1 for i, token in enumerate(tokens) if _BYTE.fullmatch(token) and token not in added}
    steps = json.dumps(tree.get("pre_tokenizer"))
    if '"ByteLevel"' in steps and '"add_prefix_space": true' not in steps and not tree.get("normalizer"):
        return {i: len(token) for i, token in enumerate(tokens) if token not in added}
    return {}


def byte_level_begins_words(tokens: list[str]) -> list[bool]:
    """Returns whether each token of a byte-level BPE begins with a space, a line feed, a tab or a carriage return."""
    return [token.startswith(("Ġ", "Ċ", "ĉ", "č")) for token in tokens]
