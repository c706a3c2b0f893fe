"""Our vocabularies as Hugging Face's `tokenizer.json`: the same ids for the same text, checked before one is written.

What text never becomes here, Hugging Face reads in it: `[MASK]` in a prompt is the mask there, as its users want it.
With `split_special_tokens=True` special tokens are text there too.
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
# The special tokens that Hugging Face has a name for.
NAMED = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")
# What a blank is marked by; the space before one belongs to what fills it.
_MARKS = {"mask", "smask", "gmask", "dblock"}
# How special tokens above a file are written.
_ABOVE = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>", **symbols.SYMBOLS}
_ABOVE_TIKTOKEN = {"bos": "<|begin_of_text|>", "eos": "<|end_of_text|>"}
_SPACE = "▁"
# SentencePiece gives a symbol of the user's a score for each of its bytes, the best of all pieces, and this.
_USER_DEFINED_BONUS = -0.1
# What Python's `str.split` cuts at.
_WHITE_SPACE = "[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"
# Characters that change at most when NFKC comes before a SentencePiece model's own rules.
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
    """The ids around a text, and those between the two texts of a pair; `types`: the second has another type."""

    before: Sequence[int] = ()
    between: Sequence[int] = ()
    after: Sequence[int] = ()
    types: bool = False


def export(vocabulary: Vocabulary, special_ids: Mapping[str, int], frame: Frame | None) -> tuple[Tree, dict[str, Any]]:
    """A `tokenizer.json` that gives this vocabulary's ids, and what it says of itself in `tokenizer_config.json`.

    Exact but for this: SentencePiece adds scores in float32, Hugging Face in float64, so that a unigram model from
    elsewhere may cut one text of thousands at another of two equally good places (those that are trained here have
    scores whose sums are exact in both); and where a model normalises text, marks on characters that it replaces may
    be lost (Hugging Face's `Precompiled` takes a character with its marks for one).

    Args:
      special_ids: by their names in SPECIALS; those that are tokens of text are left out.
      frame: what `add_special_tokens` puts around texts; None: what a vocabulary's own tokenizer.json says.

    Raises:
      UserError: a text of PROBES, or a symbol of the vocabulary's own, gets other ids.
    """
    scheme = vocabulary.specials.spec.partition(":")[0]
    tree, tokens, own = _BUILDERS[scheme](vocabulary)
    special_ids = _known(vocabulary, scheme, tokens, special_ids)
    names = _names(vocabulary, scheme, tokens, special_ids)
    tree["added_tokens"] = _added(tree, names, special_ids, vocabulary, normalized=_has_prefix(tree))
    if _has_prefix(tree):
        _spare(tree, vocabulary.specials.lowercase)
    if frame is not None:
        tree["post_processor"] = _template(frame, names)
    check(vocabulary, tree, [*PROBES, *own])
    described: dict[str, Any] = {
        f"{name}_token": names[special_ids[name]] for name in NAMED if special_ids.get(name) in names
    }
    sentinels = [names[i] for i in sorted(names, reverse=True) if names[i].startswith("<extra_id_")]
    if others := [names[special_ids[name]] for name in SPECIALS if name not in NAMED and name in special_ids]:
        sentinels += sorted(set(others))
    if sentinels:
        described["additional_special_tokens"] = sentinels
    if scheme == "wordpiece":
        described["do_lower_case"] = vocabulary.table["lowercase"]
    if scheme == "sentencepiece":
        lower = vocabulary.specials.lowercase
        described |= {"do_lower_case": lower, "keep_accents": not lower}
    return tree, {"clean_up_tokenization_spaces": False, **described}


def check(vocabulary: Vocabulary, tree: Tree, texts: Sequence[str]) -> None:
    """Refuses a `tokenizer.json` that gives other ids for one of the texts, special tokens taken as text."""
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(tree))
    tokenizer.encode_special_tokens = True
    for text in texts:
        ours = [int(i) for i in vocabulary.encode(text)]
        if tokenizer.encode(text, add_special_tokens=False).ids != ours:
            raise UserError(
                f"Hugging Face's tokenizers cannot give the ids of the vocabulary {vocabulary.specials.spec} "
                f"(first for {text!r}): save in format plm_jax"
            )


def _known(vocabulary, scheme: str, tokens: Sequence[str], special_ids: Mapping[str, int]) -> dict[str, int]:
    """The special ids that no text becomes, with that of what is unknown."""
    unknown = vocabulary.specials.unk
    if unknown is None and scheme in _UNKNOWN:
        unknown = _UNKNOWN[scheme](vocabulary, tokens)
    found = {} if unknown is None else {"unk": unknown}
    for name in SPECIALS:
        i = special_ids.get(name)
        if i is None or not 0 <= i < vocabulary.vocab_size or name == "unk":
            continue
        if i == unknown or i >= len(tokens) or i not in vocabulary.encode(tokens[i]):
            found[name] = i
    return found


def _names(vocabulary, scheme: str, tokens: Sequence[str], special_ids: Mapping[str, int]) -> dict[int, str]:
    """The special tokens by their ids, and all ids above the file: none may be left out."""
    taken, names = set(tokens), {}
    written = _ABOVE | (_ABOVE_TIKTOKEN if scheme == "tiktoken" else {})
    if special_ids.get("bos") == special_ids.get("eos"):
        written |= {"bos": "<|endoftext|>", "eos": "<|endoftext|>"}
    for name, i in special_ids.items():
        if i in names:
            continue
        names[i] = tokens[i] if i < len(tokens) else written[name]
        if i >= len(tokens) and names[i] in taken:
            del names[i]
        else:
            taken.add(names[i])
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
    """The tokens of a `tokenizer.json` beside its model's, those that it has among them."""
    marks = {special_ids[name] for name in _MARKS & special_ids.keys()}
    marks |= {i for i, name in names.items() if name.startswith("<extra_id_")}
    own = tree.get("added_tokens") or []
    known = {token["id"] for token in own}
    new = [
        {
            "id": i,
            "content": name,
            "single_word": False,
            "lstrip": i in marks,
            "rstrip": False,
            "normalized": normalized,
            "special": True,
        }
        for i, name in names.items()
        if i not in known
    ]
    return sorted([*own, *new], key=lambda token: token["id"])


def _has_prefix(tree: Tree) -> bool:
    """Whether a text gets a space before it, as `_sentencepiece` does it."""
    return _PREFIX in ((tree.get("normalizer") or {}).get("normalizers") or [])


def _spare(tree: Tree, lowercase: bool) -> None:
    """Lets the names of special tokens get no space: they are looked for in text that has it already.

    So what follows one within a text is no beginning of a text. Where text is folded, so are the names.
    """
    names = (token["content"] for token in tree["added_tokens"])
    names = "|".join(re.escape(folding.fold(name) if lowercase else name) for name in names)
    spared = {"Regex": rf"\A(?!(?:{names})?\z)"}
    tree["normalizer"]["normalizers"] = [
        step | {"pattern": spared} if step == _PREFIX else step for step in tree["normalizer"]["normalizers"]
    ]


def _template(frame: Frame, names: Mapping[int, str]) -> Tree:
    ids = {*frame.before, *frame.between, *frame.after}
    if text_ids := ids - names.keys():
        raise UserError(f"texts are framed by id {min(text_ids)}, which is a token of text: save in format plm_jax")

    def special(some: Sequence[int], kind: int) -> list[Tree]:
        return [{"SpecialToken": {"id": names[i], "type_id": kind}} for i in some]

    def text(name: str, kind: int) -> list[Tree]:
        return [{"Sequence": {"id": name, "type_id": kind}}]

    second, first_text = int(frame.types), [*special(frame.before, 0), *text("A", 0)]
    return {
        "type": "TemplateProcessing",
        "single": [*first_text, *special(frame.after, 0)],
        "pair": [*first_text, *special(frame.between, 0), *text("B", second), *special(frame.after, second)],
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


# One space before a text, also before one that begins with a space.
_PREFIX = {"type": "Replace", "pattern": {"Regex": r"\A(?!\z)"}, "content": " "}


def _replace(pattern: Mapping[str, str], content: str) -> Tree:
    return {"type": "Replace", "pattern": dict(pattern), "content": content}


def _sentencepiece(vocabulary) -> tuple[Tree, list[str], list[str]]:
    """A SentencePiece model; the texts to try besides are the symbols that its user defined."""
    (path,) = loading.files(vocabulary.specials.spec)
    data = storage.read(path)
    model = sentence_models.parse(data)
    trained, pieces = model.trainer_spec, list(model.pieces)
    is_unigram = trained.model_type == trained.UNIGRAM
    if trained.model_type not in (trained.UNIGRAM, trained.BPE):
        raise UserError(f"{path} is a model of words or characters, which Hugging Face lacks: save in format plm_jax")
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
    own = [f"a {symbol.replace(_SPACE, ' ')} b{symbol.replace(_SPACE, ' ')}" for symbol in user_defined]
    return tree, [piece.piece for piece in pieces], own


# A sigma at the end of a word, by Unicode's rule for it, which Hugging Face's `Lowercase` leaves out.
_LAST_SIGMA = r"(?<=\p{Cased}|\p{Cased}\p{Case_Ignorable})Σ(?!\p{Case_Ignorable}*\p{Cased})"


def _folding() -> Iterator[Tree]:
    """As `folding.fold`. Hugging Face's `StripAccents` drops more, such as the vowels of Hindi."""
    yield {"type": "NFKD"}
    yield _replace({"Regex": folding.combining()}, "")
    yield _replace({"Regex": _LAST_SIGMA}, "ς")
    yield {"type": "Lowercase"}


def _normalizers(spec, data: bytes) -> Iterator[Tree]:
    """What a SentencePiece model does to text before it cuts it."""
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
    """A model's own rules, after NFKC where they are that and more.

    Hugging Face's reading of them takes of a character with its marks the shortest rule alone; so marks are joined
    with their characters before. The characters that NFKC changes and the model does not are kept out of it.
    """
    processor = sentence_models.processor(data)
    nfkc = tokenizers.normalizers.NFKC()
    characters = [chr(i) for i in (*range(1, 0xD800), *range(0xE000, 0x30000))]  # Beyond, NFKC changes none.
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
    """Where text is cut so that it does not become a piece that is no text, such as `<0x41>` for a byte.

    It is cut where no piece of text would go across, and no run of unknown characters, which is one token.
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
    """Two neighbours are merged if together they are a piece, those of the best score first."""
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


# By scheme: a vocabulary → its tree without special tokens, its file's tokens, and texts to try besides.
_BUILDERS = {
    "sentencepiece": _sentencepiece,
    "wordpiece": _wordpiece,
    "bpe": _byte_pairs,
    "tiktoken": _tiktoken,
    "json": _hugging_face,
    "words": _words,
    "bytes": lambda vocabulary: _bytes(),
}
# By scheme: the id of what is unknown, where the config has none.
_UNKNOWN = {
    "sentencepiece": lambda vocabulary, tokens: vocabulary.processor.unk_id(),
    "wordpiece": lambda vocabulary, tokens: tokens.index("[UNK]"),
    "bpe": lambda vocabulary, tokens: tokens.index("<unk>") if "<unk>" in tokens else None,
    "words": lambda vocabulary, tokens: tokens.index(symbols.WORD_SYMBOLS["unk"]),
}
