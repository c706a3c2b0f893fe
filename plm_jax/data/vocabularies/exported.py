"""Export of vocabularies as Hugging Face's `tokenizer.json`.

The export checks on a list of texts that the `tokenizer.json` and the vocabulary give the same ids.

There is one intended difference. Hugging Face's tokenizers find special tokens in text, as their users expect: `[MASK]`
in a prompt becomes the mask token. With `split_special_tokens=True`, they encode special tokens as text, like this
package.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tokenizers

from plm_jax.common import sentence_models, storage, strict_json
from plm_jax.common.errors import UserError
from plm_jax.common.special_ids import NAMES as SPECIALS
from plm_jax.data.vocabularies import folding, loading, symbols, tokenizer_files
from plm_jax.data.vocabularies.vocabulary import Vocabulary

Tree = dict[str, Any]
# Special tokens that have a name in Hugging Face's tokenizers.
NAMED = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")
# Special tokens that represent a blank; the space before one belongs to the text that fills it.
_BLANKS = {"mask", "smask", "gmask", "dblock"}
# Names of special tokens whose ids are above those of the file.
_ADDED_NAMES = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>", **symbols.SYMBOLS}
_ADDED_TIKTOKEN_NAMES = {"bos": "<|begin_of_text|>", "eos": "<|end_of_text|>"}
_SPACE = "▁"
# SentencePiece scores a user-defined symbol with the best score of all pieces times its number of bytes, plus this.
_USER_DEFINED_BONUS = -0.1
# White space according to Python's `str.split`.
_WHITE_SPACE = "[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"
# Largest number of characters that NFKC may change although the rules of a SentencePiece model do not.
_MAX_EXCEPTIONS = 16
_PRIVATE = 0xF0000
PROBES = (
    "",
    " ",
    "The state of the Union is strong; it wasn't in 1862, was it?",
    "  two  spaces,   three , and at the end  ",
    "tabs\tand\t\ttabs",
    "lines\nand\r\nlines\n\n",
    "def f(x):\n    return {x[0]: '#'} if x != -1.5e-3 else <a href=\"#\">",
    "10,000,000 and 3.14159 and 1234567890",
    "...... ----- !!!! ===",
    "国家兴亡，匹夫有责。 春眠不觉晓",
    "かがきぎ パピプ 한국어 텍스트",
    "Élève naïve à Zürich: ça coûte 5 €",
    "E\u0301le\u0300ve nai\u0308ve; Vie\u0323\u0302t Nam",
    "ΟΔΟΣ ΤΗΣ Α.Σ. «ΟΔΟΣ»; İstanbul, STRASSE",
    "emoji 😀👍🏽 👩‍👩‍👧 🇫🇷",
    "Привет, мир! Ελλάδα שלום مرحبا हिन्दी ไทย",
    "ﬁne ＦＵＬＬ　ｗｉｄｔｈ ½ ① ™",
    "no\u00a0break, zero\u200bwidth, soft\u00adhyphen",
    "▁under ▁ low __ line",
    "<0x41><0x0A>",
    "antidisestablishmentarianism" * 5,
)


class Frame(NamedTuple):
    """Special ids around a text.

    Attributes:
      before: ids before a text or the first text of a pair.
      between: ids between the two texts of a pair.
      after: ids after a text or the second text of a pair.
      types: whether the second text has token type 1.
      last_type: token type of the last id in `after`; None: the token type of the text before it.
    """

    before: Sequence[int] = ()
    between: Sequence[int] = ()
    after: Sequence[int] = ()
    types: bool = False
    last_type: int | None = None


def export(vocabulary: Vocabulary, special_ids: Mapping[str, int], frame: Frame | None) -> tuple[Tree, dict[str, Any]]:
    """Returns a pair: a `tokenizer.json` that encodes text like a vocabulary, and fields for `tokenizer_config.json`.

    Both encode text to the same ids, with two exceptions. First, SentencePiece adds scores in float32 and Hugging Face
    adds them in float64. A unigram model from another trainer may thus split a text differently if two splits are
    equally good (one text in thousands). Models trained by this package have scores whose sums are exact in both types.
    Second, if a model normalizes text, combining characters may be lost after a character that the model replaces,
    because Hugging Face's `Precompiled` reads a character and its combining characters as one unit.

    Args:
      special_ids: special ids by name. Ids of text tokens and ids outside of the vocabulary are ignored; the id of unk
        is always that of the vocabulary.
      frame: special ids that `add_special_tokens` puts around texts. None keeps the post-processor of the vocabulary's
        own `tokenizer.json`, if it has one.

    Raises:
      UserError: the ids of a text in PROBES, or of a user-defined symbol of the vocabulary, differ; `frame` has the id
        of a text token; or the vocabulary is a SentencePiece model of words or characters.
    """
    scheme = vocabulary.specials.spec.partition(":")[0]
    tree, tokens, probes = _BUILDERS[scheme](vocabulary)
    special_ids = _select_special_ids(vocabulary, scheme, tokens, special_ids)
    names = _names(vocabulary, scheme, tokens, special_ids)
    tree["added_tokens"] = _added(tree, names, special_ids, vocabulary, normalized=_has_prefix(tree))
    if _has_prefix(tree):
        _exempt_special_tokens(tree, vocabulary.specials.lowercase)
    if frame is not None:
        tree["post_processor"] = _post_processor(tree, _template(frame, names))
    check(vocabulary, tree, [*PROBES, *probes])
    described: dict[str, Any] = {
        f"{name}_token": names[special_ids[name]] for name in NAMED if special_ids.get(name) in names
    }
    sentinels = [names[i] for i in sorted(names, reverse=True) if names[i].startswith("<extra_id_")]
    additional = [names[special_ids[name]] for name in SPECIALS if name not in NAMED and name in special_ids]
    if sentinels or additional:
        described["additional_special_tokens"] = [*sentinels, *sorted(set(additional))]
    if scheme == "wordpiece":
        described["do_lower_case"] = vocabulary.table["lowercase"]
    if scheme == "sentencepiece":
        lower = vocabulary.specials.lowercase
        described |= {"do_lower_case": lower, "keep_accents": not lower}
    return tree, {"clean_up_tokenization_spaces": False, **described}


def check(vocabulary: Vocabulary, tree: Tree, texts: Sequence[str]) -> None:
    """Checks that a `tokenizer.json`, reading special tokens as text, gives the ids of a vocabulary for each text.

    Raises:
      UserError: the ids of a text differ.
    """
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(tree))
    tokenizer.encode_special_tokens = True
    for text in texts:
        expected = [int(i) for i in vocabulary.encode(text)]
        if tokenizer.encode(text, add_special_tokens=False).ids != expected:
            raise UserError(
                f"Hugging Face's tokenizers cannot reproduce the ids of the vocabulary {vocabulary.specials.spec} "
                f"(first for {text!r}): save in format plm_jax"
            )


def _select_special_ids(
    vocabulary, scheme: str, tokens: Sequence[str], special_ids: Mapping[str, int]
) -> dict[str, int]:
    """Selects the id of the unknown token, and each special id to which the text of its own token is not encoded."""
    unknown = vocabulary.specials.unk
    if unknown is None and scheme in _UNKNOWN:
        unknown = _UNKNOWN[scheme](vocabulary, tokens)
    selected = {} if unknown is None else {"unk": unknown}
    for name in SPECIALS:
        i = special_ids.get(name)
        if i is None or not 0 <= i < vocabulary.vocab_size or name == "unk":
            continue
        if i == unknown or i >= len(tokens) or i not in vocabulary.encode(tokens[i]):
            selected[name] = i
    return selected


def _names(vocabulary, scheme: str, tokens: Sequence[str], special_ids: Mapping[str, int]) -> dict[int, str]:
    """Returns the names of the special tokens, of sentinels, and of all ids that the file lacks, sorted by id."""
    used, names = set(tokens), {}
    added_names = _ADDED_NAMES | (_ADDED_TIKTOKEN_NAMES if scheme == "tiktoken" else {})
    if special_ids.get("bos") == special_ids.get("eos"):
        added_names |= {"bos": "<|endoftext|>", "eos": "<|endoftext|>"}
    for name, i in special_ids.items():
        if i in names:
            continue
        names[i] = tokens[i] if i < len(tokens) else added_names[name]
        if i >= len(tokens) and names[i] in used:
            del names[i]
        else:
            used.add(names[i])
    top = vocabulary.vocab_size
    for k in range(vocabulary.extra_ids):
        i = top - 1 - k
        if i >= len(tokens):
            names.setdefault(i, f"<extra_id_{k}>")
        elif tokens[i] == f"<extra_id_{k}>":
            names[i] = tokens[i]
    reserved = (i for i in range(len(tokens), top) if i not in names)
    names |= {i: f"<|reserved_special_token_{k}|>" for k, i in enumerate(reserved)}
    return dict(sorted(names.items()))


def _added(tree: Tree, names: Mapping[int, str], special_ids: Mapping[str, int], vocabulary, normalized: bool):
    """Returns the existing `added_tokens` of a `tokenizer.json` and the tokens in `names`, sorted by id."""
    blanks = {special_ids[name] for name in _BLANKS & special_ids.keys()}
    blanks |= {i for i, name in names.items() if name.startswith("<extra_id_")}
    existing = tree.get("added_tokens") or []
    known = {token["id"] for token in existing}
    new = [
        {
            "id": i,
            "content": name,
            "single_word": False,
            "lstrip": i in blanks,
            "rstrip": False,
            "normalized": normalized,
            "special": True,
        }
        for i, name in names.items()
        if i not in known
    ]
    return sorted([*existing, *new], key=lambda token: token["id"])


def _has_prefix(tree: Tree) -> bool:
    """Whether the normalizer of a `tokenizer.json` has the step `_PREFIX`."""
    return _PREFIX in ((tree.get("normalizer") or {}).get("normalizers") or [])


def _exempt_special_tokens(tree: Tree, lowercase: bool) -> None:
    """Changes the step `_PREFIX` of a `tokenizer.json` so that it adds no space before the names of special tokens.

    Hugging Face normalizes the names and searches for them in normalized text. In text, a space is added only at the
    beginning of the whole text, so a name with an added space would not be found elsewhere. A normalizer that folds
    text also folds the names.
    """
    names = (token["content"] for token in tree["added_tokens"])
    names = "|".join(re.escape(folding.fold(name) if lowercase else name) for name in names)
    exempting = {"Regex": rf"\A(?!(?:{names})?\z)"}
    tree["normalizer"]["normalizers"] = [
        step | {"pattern": exempting} if step == _PREFIX else step for step in tree["normalizer"]["normalizers"]
    ]


def _post_processor(tree: Tree, template: Tree) -> Tree:
    """Returns a post-processor that applies the template.

    For byte-level tokens, a step before the template removes spaces from offsets, as in RoBERTa.
    """
    if '"ByteLevel"' not in json.dumps(tree.get("pre_tokenizer")):
        return template
    trim = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"type": "Sequence", "processors": [trim, template]}


def _template(frame: Frame, names: Mapping[int, str]) -> Tree:
    ids = {*frame.before, *frame.between, *frame.after}
    if text_ids := ids - names.keys():
        raise UserError(
            f"id {min(text_ids)}, which is put around texts, is not a special token: save in format plm_jax"
        )

    def special(ids: Sequence[int], type_id: int) -> list[Tree]:
        return [{"SpecialToken": {"id": names[i], "type_id": type_id}} for i in ids]

    def text(name: str, type_id: int) -> list[Tree]:
        return [{"Sequence": {"id": name, "type_id": type_id}}]

    def end(type_id: int) -> list[Tree]:
        if frame.last_type is None:
            return special(frame.after, type_id)
        return [*special(frame.after[:-1], type_id), *special(frame.after[-1:], frame.last_type)]

    second, first_text = int(frame.types), [*special(frame.before, 0), *text("A", 0)]
    return {
        "type": "TemplateProcessing",
        "single": [*first_text, *end(0)],
        "pair": [*first_text, *special(frame.between, 0), *text("B", second), *end(second)],
        "special_tokens": {names[i]: {"id": names[i], "ids": [i], "tokens": [names[i]]} for i in ids},
    }


def _tree(tokenizer: tokenizers.Tokenizer) -> Tree:
    return json.loads(tokenizer.to_str())


def _wordpiece(vocabulary) -> tuple[Tree, list[str], list[str]]:
    tokens = vocabulary.table["tokens"]
    ids = {token: i for i, token in enumerate(tokens)}
    return _tree(tokenizer_files.bert(ids, vocabulary.table["lowercase"])), tokens, []


def _byte_pairs(vocabulary) -> tuple[Tree, list[str], list[str]]:
    tokens, merges = vocabulary.table["tokens"], vocabulary.table["merges"]
    ids = {token: i for i, token in enumerate(tokens)}
    return _tree(tokenizer_files.byte_level(tokenizers.models.BPE(ids, merges))), tokens, []


def _tiktoken(vocabulary) -> tuple[Tree, list[str], list[str]]:
    (path,) = loading.files(vocabulary.specials.spec)
    tokens, tokenizer = tokenizer_files.tiktoken(storage.read(path))
    return _tree(tokenizer), tokens, []


def _bytes() -> tuple[Tree, list[str], list[str]]:
    tokens = tokenizer_files.byte_characters()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({token: i for i, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return _tree(tokenizer), tokens, []


def _words(vocabulary) -> tuple[Tree, list[str], list[str]]:
    tokens = vocabulary.table["words"]
    ids = {token: i for i, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token=symbols.WORD_SYMBOLS["unk"]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(_WHITE_SPACE), "removed")
    return _tree(tokenizer), tokens, []


def _hugging_face(vocabulary) -> tuple[Tree, list[str], list[str]]:
    (path,) = loading.files(vocabulary.specials.spec)
    tree = strict_json.read(path)
    ids = tokenizers.Tokenizer.from_str(json.dumps(tree)).get_vocab()
    names = {i: token for token, i in ids.items()}
    return tree, [names.get(i, "") for i in range(max(names) + 1)], []


# Adds a space before a text, even if the text begins with a space.
_PREFIX = {"type": "Replace", "pattern": {"Regex": r"\A(?!\z)"}, "content": " "}


def _replace(pattern: Mapping[str, str], content: str) -> Tree:
    return {"type": "Replace", "pattern": dict(pattern), "content": content}


def _sentencepiece(vocabulary) -> tuple[Tree, list[str], list[str]]:
    """Converts a SentencePiece model to a `tokenizer.json`.

    Returns:
      Three values: the `tokenizer.json`, the pieces of the model, and texts for `check` that contain the user-defined
      symbols of the model.
    """
    (path,) = loading.files(vocabulary.specials.spec)
    data = storage.read(path)
    model = sentence_models.parse(data)
    trained, pieces = model.trainer_spec, list(model.pieces)
    is_unigram = trained.model_type == trained.UNIGRAM
    if trained.model_type not in (trained.UNIGRAM, trained.BPE):
        raise UserError(
            f"{path} is a model of words or characters, which Hugging Face does not support: save in format plm_jax"
        )
    pre_tokenizers = [{"type": "Metaspace", "replacement": _SPACE, "prepend_scheme": "never", "split": False}]
    if is_unigram and (cuts := "|".join(_cuts(pieces, trained.byte_fallback))):
        pre_tokenizers.append(
            {"type": "Split", "pattern": {"Regex": cuts}, "behavior": "MergedWithPrevious", "invert": False}
        )
    normalizers = [*(_folding() if vocabulary.specials.lowercase else ()), *_normalizers(model.normalizer_spec, data)]
    user_defined = [piece.piece for piece in pieces if piece.type == piece.USER_DEFINED]
    tree = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizers},
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                _replace({"String": _SPACE}, " "),
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] * model.normalizer_spec.add_dummy_prefix),
            ],
        },
        "model": (_unigrams if is_unigram else _merges)(pieces, trained),
    }
    probes = [f"a {symbol.replace(_SPACE, ' ')} b{symbol.replace(_SPACE, ' ')}" for symbol in user_defined]
    return tree, [piece.piece for piece in pieces], probes


# A final sigma according to Unicode's rule, which Hugging Face's `Lowercase` does not implement.
_LAST_SIGMA = r"(?<=\p{Cased}|\p{Cased}\p{Case_Ignorable})Σ(?!\p{Case_Ignorable}*\p{Cased})"


def _folding() -> Iterator[Tree]:
    """Yields normalizers that together are equivalent to `folding.fold`.

    Hugging Face's `StripAccents` is not used, because it drops more characters, such as vowels in Hindi.
    """
    yield {"type": "NFKD"}
    yield _replace({"Regex": folding.combining()}, "")
    yield _replace({"Regex": _LAST_SIGMA}, "ς")
    yield {"type": "Lowercase"}


def _normalizers(spec, data: bytes) -> Iterator[Tree]:
    """Yields the normalizers of a SentencePiece model."""
    if spec.precompiled_charsmap:
        yield from _charsmap(spec.precompiled_charsmap, data)
    if spec.remove_extra_whitespaces:
        yield _replace({"Regex": r"\A +| +\z"}, "")
        yield _replace({"Regex": " {2,}"}, " ")
        if spec.add_dummy_prefix:
            yield {"type": "Prepend", "prepend": " "}
    elif spec.add_dummy_prefix:
        yield dict(_PREFIX)


def _charsmap(charsmap: bytes, data: bytes) -> Iterator[Tree]:
    """Yields the normalization rules of a model, preceded by NFKC if the rules include NFKC with few exceptions.

    Hugging Face's `Precompiled` applies only the shortest rule to a character with combining characters. NFKC therefore
    first joins the character and its combining characters. Characters for which NFKC would change the result are
    replaced by private-use characters during NFKC.
    """
    processor = sentence_models.processor(data)
    nfkc = tokenizers.normalizers.NFKC()
    characters = [chr(i) for i in (*range(1, 0xD800), *range(0xE000, 0x30000))]  # NFKC changes none beyond.
    changed = [c for c in characters if nfkc.normalize_str(c) != c]
    before = processor.normalize([nfkc.normalize_str(c) for c in changed])
    exceptions = [c for c, a, b in zip(changed, before, processor.normalize(changed), strict=True) if a != b]
    if len(exceptions) <= _MAX_EXCEPTIONS:
        codes = {character: chr(_PRIVATE + i) for i, character in enumerate(exceptions)}
        yield from (_replace({"String": character}, code) for character, code in codes.items())
        yield {"type": "NFKC"}
        yield from (_replace({"String": code}, character) for character, code in codes.items())
    yield {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}


def _cuts(pieces, byte_fallback: bool) -> Iterator[str]:
    """Yields regular expressions after whose matches text is split.

    Without the splits, text that is the name of a special piece, such as `<0x41>`, would be encoded as this piece. No
    other token changes, because a split is never within a text piece or a run of unknown characters (which is one
    token).
    """
    texts = [piece.piece for piece in pieces if _is_text(piece)]
    joined, known = "\n".join(texts), set(texts)
    for name in (piece.piece for piece in pieces if not _is_text(piece)):
        pairs = ((i, name[i - 1 : i + 1]) for i in range(1, len(name)))
        free = (i for i, pair in pairs if pair not in joined and (byte_fallback or not known.isdisjoint(pair)))
        if end := next(free, None):
            yield f"{re.escape(name[:end])}(?={re.escape(name[end:])})"


def _is_text(piece) -> bool:
    return piece.type in (piece.NORMAL, piece.USER_DEFINED)


def _unigrams(pieces, trained) -> Tree:
    normal = [piece.score for piece in pieces if piece.type == piece.NORMAL]
    lowest, highest = min(normal), max(normal)

    def score(piece) -> float:
        if piece.type == piece.USER_DEFINED:
            return len(piece.piece.encode()) * highest + _USER_DEFINED_BONUS
        return piece.score if piece.type == piece.NORMAL else lowest

    return {
        "type": "Unigram",
        "unk_id": trained.unk_id,
        "byte_fallback": trained.byte_fallback,
        "vocab": [[piece.piece, score(piece)] for piece in pieces],
    }


def _merges(pieces, trained) -> Tree:
    """Builds a BPE model that merges neighbors whose concatenation is a piece, in the order of decreasing scores."""
    ids = {piece.piece: i for i, piece in enumerate(pieces)}
    scores = {piece.piece: piece.score for piece in pieces if piece.type == piece.NORMAL}
    merges = []
    for piece, score in scores.items():
        halves = ((piece[:i], piece[i:]) for i in range(1, len(piece)))
        merges += [(-score, ids[a], ids[b], a, b) for a, b in halves if a in scores and b in scores]
    return {
        "type": "BPE",
        "unk_token": pieces[trained.unk_id].piece,
        "fuse_unk": True,
        "byte_fallback": trained.byte_fallback,
        "ignore_merges": False,
        "vocab": ids,
        "merges": [[a, b] for *_, a, b in sorted(merges)],
    }


# Functions by scheme: vocabulary → tree without special tokens, tokens of the file, further texts to check.
_BUILDERS = {
    "sentencepiece": _sentencepiece,
    "wordpiece": _wordpiece,
    "bpe": _byte_pairs,
    "tiktoken": _tiktoken,
    "json": _hugging_face,
    "words": _words,
    "bytes": lambda vocabulary: _bytes(),
}
# Functions by scheme that return the id of the unknown token if the config has none.
_UNKNOWN = {
    "sentencepiece": lambda vocabulary, tokens: vocabulary.processor.unk_id(),
    "wordpiece": lambda vocabulary, tokens: tokens.index("[UNK]"),
    "bpe": lambda vocabulary, tokens: tokens.index("<unk>") if "<unk>" in tokens else None,
    "words": lambda vocabulary, tokens: tokens.index(symbols.WORD_SYMBOLS["unk"]),
}
