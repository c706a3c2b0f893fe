"""Cases of `faults_files.py` with wrong vocabularies: tokenizer.json, BPE, WordPiece, SentencePiece and others."""

import collections
import json
import pathlib
import random
from collections.abc import Callable
from typing import Any

import faults_damage
from faults_files_cases import (
    BPE,
    GARBLED,
    SPECIFICATIONS,
    WORDPIECE,
    WORDS,
    Case,
    Change,
    Make,
    Target,
    any_of,
    copied,
    in_json,
    with_fields,
)

Tree = dict[str, Any]
ByteChange = Callable[[bytes], bytes]


def _vocab(change: Callable[[dict[str, int], str], Any]) -> Callable[[Tree, str], Any]:
    return lambda tree, token: change(tree["model"]["vocab"], token)


# Changes of a tokenizer.json and one of its tokens; each is wrong.
CHANGES: dict[str, Callable[[Tree, str], Any]] = {
    "an absurd id": _vocab(lambda vocab, token: vocab.update({token: 10**9})),
    "the largest id": _vocab(lambda vocab, token: vocab.update({token: 2**32 - 1})),
    "an id beyond all": _vocab(lambda vocab, token: vocab.update({token: 2**64})),
    "an id below 0": _vocab(lambda vocab, token: vocab.update({token: -1})),
    "a decimal id": _vocab(lambda vocab, token: vocab.update({token: 1.5})),
    "an id that is text": _vocab(lambda vocab, token: vocab.update({token: "1"})),
    "one id twice": _vocab(lambda vocab, token: vocab.update({token: vocab["a"]})),
    "no tokens": _vocab(lambda vocab, token: vocab.clear()),
    "no merges": lambda tree, token: tree["model"].update(merges=[]),
    "merges of unknown tokens": lambda tree, token: tree["model"]["merges"].append(["qqq", "zzz"]),
    "merges of one token": lambda tree, token: tree["model"]["merges"].append(["a"]),
    "merges of numbers": lambda tree, token: tree["model"]["merges"].append([1, 2]),
    "no model": lambda tree, token: tree.pop("model"),
    "another model": lambda tree, token: tree["model"].update(type="Trigram"),
    "a model of nothing": lambda tree, token: tree.update(model=None),
    "a list of tokens": lambda tree, token: tree["model"].update(vocab=[[token, 0.0]]),
    "an added token with another id": lambda tree, token: tree["added_tokens"][0].update(id=7),
    "an added token with an absurd id": lambda tree, token: tree["added_tokens"][0].update(id=10**9),
    "an added token of nothing": lambda tree, token: tree["added_tokens"].append({}),
    "added tokens that are none": lambda tree, token: tree.update(added_tokens=7),
    "a pattern that is none": lambda tree, token: tree.update(
        pre_tokenizer={"type": "Split", "pattern": {"Regex": "(("}, "behavior": "Isolated", "invert": False}
    ),
    "rules that are cut": lambda tree, token: tree.update(
        normalizer={"type": "Precompiled", "precompiled_charsmap": "ALgCAACEAAAA"}
    ),
    "another decoder": lambda tree, token: tree.update(decoder={"type": "Decodes"}),
}


def _of_token(change: Callable[[Tree, str], Any]) -> Change:
    def changed(tree: Tree, rng: random.Random) -> None:
        tokens = sorted(token for token in tree["model"]["vocab"] if len(token) > 1 and token != "<s>")
        change(tree, rng.choice(tokens))

    return in_json(changed)


# Unusual parts of a tokenizer.json, which may be right.
ODD_PARTS = (
    {
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "(a|a)*(x+x+)+y"},
            "behavior": "Isolated",
            "invert": False,
        }
    },
    {"normalizer": {"type": "Replace", "pattern": {"Regex": "(.*)*$"}, "content": "x" * 1000}},
    {"normalizer": {"type": "Prepend", "prepend": "x" * 10**6}},
    {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA" * 1000}},
    {"post_processor": {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}}},
    {"post_processor": {"type": "Sequence", "processors": 7}},
    {"truncation": {"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 5}},
    {"padding": {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}},
    {"decoder": {"type": "Sequence", "decoders": []}},
    {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", 1e308], ["b", -1e308]]}},
    {"model": {"type": "Unigram", "unk_id": 9, "vocab": [["a", 0.0]]}},
    {"model": {"type": "Unigram", "unk_id": None, "vocab": [["a", 0.0], ["a", 1.0]]}},
    {"model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {"a": 0}}},
    {"model": {"type": "WordLevel", "unk_token": "?", "vocab": {"a": 0}}},
    {"model": {"type": "BPE", "dropout": 0.5, "vocab": {"a": 0}, "merges": []}},
    {"model": {"type": "BPE", "byte_fallback": True, "unk_token": "zz", "vocab": {"a": 0}, "merges": []}},
)


def _odd_value(tree: Any, rng: random.Random) -> None:
    """Sets a value of ODD anywhere, the less likely the deeper, so that most are not in the list of tokens."""
    part, keys = tree, []
    while isinstance(part, dict | list) and part and (not keys or rng.random() < 0.7):
        keys.append(rng.choice(sorted(part)) if isinstance(part, dict) else rng.randrange(len(part)))
        part, parent = part[keys[-1]], part
    parent[keys[-1]] = rng.choice(faults_damage.ODD)


_TOKENIZER = (("llama",), "tokenizer.json")
_PARTS = {str(part)[:100]: with_fields(**part) for part in ODD_PARTS}
_VALUES: dict[str, Change] = {"an odd value": in_json(_odd_value)}
TOKENIZERS: list[Make] = [
    Target(*_TOKENIZER, {what: _of_token(change) for what, change in CHANGES.items()}, kind="json"),
    *(Target(*_TOKENIZER, _PARTS | _VALUES, False, kind) for kind in ("json", "json", None)),
    Target(*_TOKENIZER, GARBLED, is_bad=False, kind="json"),
]


def _lines(change: Callable[[list[bytes]], Any]) -> ByteChange:
    def changed(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        change(lines)
        return b"".join(lines)

    return changed


def _ids(change: Callable[[dict[str, Any]], Any]) -> ByteChange:
    def changed(data: bytes) -> bytes:
        ids = json.loads(data)
        change(ids)
        return json.dumps(ids).encode("utf-8")

    return changed


def _mark(data: bytes) -> bytes:
    return b"\xef\xbb\xbf" + data


def _nothing(data: bytes) -> bytes:
    return b""


def _doubled(data: bytes) -> bytes:
    return data + data


def _model(change: Callable[[Any], Any]) -> ByteChange:
    """Returns a change of the bytes of a SentencePiece model."""

    def changed(data: bytes) -> bytes:
        from sentencepiece import sentencepiece_model_pb2

        model = sentencepiece_model_pb2.ModelProto.FromString(data)
        change(model)
        return model.SerializeToString()

    return changed


def _rules(data: bytes, end: int) -> ByteChange:
    return _model(lambda model: setattr(model.normalizer_spec, "precompiled_charsmap", data * (end // len(data))))


# File, description and change by kind of vocabulary; each is wrong.
FILES: dict[str, list[tuple[str, str, ByteChange]]] = {
    "bpe": [
        *((f"gpt2/{file}", what, change) for file in BPE for what, change in (("a mark", _mark), ("none", _nothing))),
        ("gpt2/merges.txt", "a line less", _lines(lambda lines: lines.pop())),
        ("gpt2/merges.txt", "half", _lines(lambda lines: lines.__delitem__(slice(len(lines) // 2, None)))),
        ("gpt2/merges.txt", "cut", lambda data: data[:-4]),
        ("gpt2/merges.txt", "one token", _lines(lambda lines: lines.append(b"a\n"))),
        ("gpt2/merges.txt", "three tokens", _lines(lambda lines: lines.append(b"a b c\n"))),
        ("gpt2/merges.txt", "unknown tokens", _lines(lambda lines: lines.append(b"qq zz\n"))),
        ("gpt2/merges.txt", "no text", lambda data: data + b"\xff \xfe\n"),
        ("gpt2/vocab.json", "an absurd id", _ids(lambda ids: ids.update(a=10**9))),
        ("gpt2/vocab.json", "an id twice", _ids(lambda ids: ids.update(a=ids["b"]))),
        ("gpt2/vocab.json", "a hole", _ids(lambda ids: ids.update(a=len(ids)))),
        ("gpt2/vocab.json", "a text", _ids(lambda ids: ids.update(a="b"))),
        ("gpt2/vocab.json", "a decimal", _ids(lambda ids: ids.update(a=float(ids["a"])))),
        ("gpt2/vocab.json", "yes", _ids(lambda ids: ids.update({min(ids, key=lambda token: ids[token] != 1): True}))),
        ("gpt2/vocab.json", "a byte less", _ids(lambda ids: ids.pop("a"))),
        ("gpt2/vocab.json", "a list", lambda data: b"[]"),
    ],
    "wordpiece": [
        (f"bert/{WORDPIECE}", "a mark", _mark),
        (f"bert/{WORDPIECE}", "none", _nothing),
        (f"bert/{WORDPIECE}", "twice", _doubled),
        (f"bert/{WORDPIECE}", "an empty line", _lines(lambda lines: lines.insert(9, b"\n"))),
        (f"bert/{WORDPIECE}", "no [UNK]", lambda data: data.replace(b"[UNK]", b"[NUK]")),
        (f"bert/{WORDPIECE}", "no text", lambda data: data + b"\xff\n"),
        (f"bert/{WORDPIECE}", "20,000,000 lines", lambda data: data + b"a\n" * 20_000_000),
    ],
    "words": [
        (f"elmo/{WORDS}", "a mark", _mark),
        (f"elmo/{WORDS}", "none", _nothing),
        (f"elmo/{WORDS}", "twice", _doubled),
        (f"elmo/{WORDS}", "an empty line", _lines(lambda lines: lines.insert(9, b"\n"))),
        (f"elmo/{WORDS}", "no <UNK>", lambda data: data.replace(b"<UNK>", b"<NUK>")),
    ],
    "tiktoken": [
        ("tiktoken/tokenizer.model", "none", _nothing),
        ("tiktoken/tokenizer.model", "twice", _doubled),
        ("tiktoken/tokenizer.model", "a line less", _lines(lambda lines: lines.pop(20))),
        ("tiktoken/tokenizer.model", "an absurd rank", _lines(lambda lines: lines.append(b"cXE= 1000000000\n"))),
        ("tiktoken/tokenizer.model", "a rank of digits", _lines(lambda lines: lines.append(b"cXE= " + b"9" * 9999))),
        ("tiktoken/tokenizer.model", "no base64", _lines(lambda lines: lines.append(b"==== 259\n"))),
        ("tiktoken/tokenizer.model", "a long token", _lines(lambda lines: lines.append(b"YWFh" * 10**6 + b" 259\n"))),
    ],
    "sentencepiece": [
        ("t5/spiece.model", "none", _nothing),
        ("t5/spiece.model", "zeros", lambda data: bytes(1000)),
        ("t5/spiece.model", "text", lambda data: b"The state of the Union\n" * 1000),
        ("t5/spiece.model", "twice", _doubled),
        ("t5/spiece.model", "no pieces", _model(lambda model: model.ClearField("pieces"))),
        ("t5/spiece.model", "an empty piece", _model(lambda model: model.pieces.add(piece="", score=0.0))),
        ("t5/spiece.model", "no unknown one", _model(lambda model: model.pieces.__delitem__(2))),
        ("t5/spiece.model", "no number", _model(lambda model: setattr(model.pieces[9], "score", float("nan")))),
        ("t5/spiece.model", "without end", _model(lambda model: setattr(model.pieces[9], "score", float("inf")))),
        ("t5/spiece.model", "no byte", _model(lambda model: setattr(model.pieces[-1], "type", 6))),
        ("t5/spiece.model", "60 MB of pieces", lambda data: b"\x0a\x00" * 30_000_000),
        ("t5/spiece.model", "rules of ones", _rules(b"\xff", 4096)),
        ("t5/spiece.model", "rules out of bounds", _rules(b"\x00\x08\x00\x00" + b"\x00\xf0\xff\x7f" * 1023, 4096)),
    ],
}


def _garbled_rules(data: bytes, rng: random.Random) -> bytes:
    """Changes bytes of a SentencePiece model's normalizer, which its library does not check."""

    def garble(model: Any) -> None:
        rules = bytearray(model.normalizer_spec.precompiled_charsmap)
        for _ in range(rng.choice((1, 20, 2000))):
            rules[rng.randrange(len(rules))] = rng.randrange(256)
        model.normalizer_spec.precompiled_charsmap = bytes(rules)

    return _model(garble)(data)


def _by_file() -> dict[tuple[str, str], dict[str, Change]]:
    """Returns the changes of FILES by kind of vocabulary and file."""
    changes: dict[tuple[str, str], dict[str, Change]] = collections.defaultdict(dict)
    for kind, rows in FILES.items():
        for file, what, change in rows:
            changes[kind, file][what] = lambda data, rng, change=change: change(data)
    return changes


def _targets(garbled: bool) -> list[Make]:
    return [
        Target((file.partition("/")[0],), file.partition("/")[2], GARBLED if garbled else changes, not garbled, kind)
        for (kind, file), changes in _by_file().items()
    ]


def vocabulary_place(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """Replaces a file of a vocabulary by something else, such as a pipe."""
    kind, file = rng.choice(list(_by_file()))
    path = copied(bases, folder, file.partition("/")[0])
    return Case(faults_damage.replace(folder / file, rng), True, str(path), SPECIFICATIONS[kind].format(folder))


VOCABULARIES: list[Make] = [
    *[any_of(_targets(garbled=False))] * 2,
    Target(("t5",), "spiece.model", {"garbled rules": _garbled_rules}, is_bad=False, kind="sentencepiece"),
    any_of(_targets(garbled=True)),
    vocabulary_place,
]
