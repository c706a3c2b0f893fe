"""The cases of `faults_files.py` whose vocabulary is bad: tokenizer.json, BPE, WordPiece, SentencePiece and others."""

import json
import pathlib
import random
from collections.abc import Callable
from typing import Any

from faults_files_cases import BPE, ODD, SPECIFICATIONS, WORDPIECE, WORDS, Case, copied, garbled, replaced

Tree = dict[str, Any]


def _vocab(change: Callable[[dict[str, int], str], Any]) -> Callable[[Tree, str], Any]:
    return lambda tree, token: change(tree["model"]["vocab"], token)


# What is changed in a tokenizer.json; each is bad.
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


def tokenizer(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """A tokenizer.json says something wrong."""
    path = copied(bases, folder, "llama")
    tree = json.loads((path / "tokenizer.json").read_text())
    what = rng.choice(list(CHANGES))
    CHANGES[what](
        tree, rng.choice(sorted(token for token in tree["model"]["vocab"] if len(token) > 1 and token != "<s>"))
    )
    (path / "tokenizer.json").write_text(json.dumps(tree))
    return Case(what, True, str(path), SPECIFICATIONS["json"].format(folder))


# What may be odd without being wrong.
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


def odd_part(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """A part of a tokenizer.json is an odd one."""
    path = copied(bases, folder, "llama")
    tree, part = json.loads((path / "tokenizer.json").read_text()), rng.choice(ODD_PARTS)
    (path / "tokenizer.json").write_text(json.dumps(tree | part))
    whole = rng.random() < 0.3
    return Case(str(part)[:100], False, str(path), None if whole else SPECIFICATIONS["json"].format(folder))


def odd_value(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """A value anywhere but among the tokens of a tokenizer.json is an odd one."""
    path = copied(bases, folder, "llama")
    tree = json.loads((path / "tokenizer.json").read_text())
    part, keys = tree, []
    while isinstance(part, dict | list) and part and (not keys or rng.random() < 0.7):
        keys.append(rng.choice(sorted(part)) if isinstance(part, dict) else rng.randrange(len(part)))
        part, inside = part[keys[-1]], part
    inside[keys[-1]] = rng.choice(ODD)
    (path / "tokenizer.json").write_text(json.dumps(tree))
    whole = rng.random() < 0.3
    what = f"{keys} is {str(inside[keys[-1]])[:50]}"
    return Case(what, False, str(path), None if whole else SPECIFICATIONS["json"].format(folder))


def tokenizer_bytes(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """Bytes of a tokenizer.json are others."""
    path = copied(bases, folder, "llama") / "tokenizer.json"
    data, what = garbled(path.read_bytes(), rng)
    path.write_bytes(data)
    return Case(what, False, str(path.parent), SPECIFICATIONS["json"].format(folder))


TOKENIZERS = [tokenizer, odd_part, odd_value, tokenizer_bytes]

Change = Callable[[bytes], bytes]


def _lines(change: Callable[[list[bytes]], Any]) -> Change:
    def changed(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        change(lines)
        return b"".join(lines)

    return changed


def _ids(change: Callable[[dict[str, Any]], Any]) -> Change:
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


def _model(change: Callable[[Any], Any]) -> Change:
    """A change of a SentencePiece model."""

    def changed(data: bytes) -> bytes:
        from sentencepiece import sentencepiece_model_pb2

        model = sentencepiece_model_pb2.ModelProto.FromString(data)
        change(model)
        return model.SerializeToString()

    return changed


def _rules(data: bytes, end: int) -> Change:
    return _model(lambda model: setattr(model.normalizer_spec, "precompiled_charsmap", data * (end // len(data))))


# By the kind of a vocabulary: its file, and what is changed in it; each is bad.
FILES: dict[str, list[tuple[str, str, Change]]] = {
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


def change(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """A file of a vocabulary is wrong."""
    kind = rng.choice(list(FILES))
    place, what, make = rng.choice(FILES[kind])
    path = copied(bases, folder, place.partition("/")[0])
    (folder / place).write_bytes(make((folder / place).read_bytes()))
    return Case(f"{kind}, {place}: {what}", True, str(path), SPECIFICATIONS[kind].format(folder))


def rules(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """Bytes of a SentencePiece model's normaliser, of which its library trusts every one, are others."""
    path = copied(bases, folder, "t5") / "spiece.model"

    def garble(model: Any) -> None:
        data = bytearray(model.normalizer_spec.precompiled_charsmap)
        for _ in range(rng.choice((1, 20, 2000))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        model.normalizer_spec.precompiled_charsmap = bytes(data)

    path.write_bytes(_model(garble)(path.read_bytes()))
    return Case("rules", False, str(path.parent), SPECIFICATIONS["sentencepiece"].format(folder))


def vocabulary_bytes(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """Bytes of a file of a vocabulary are others; in a list of words that is seldom to be seen."""
    kind = rng.choice(list(FILES))
    place = rng.choice(FILES[kind])[0]
    path = copied(bases, folder, place.partition("/")[0])
    data, what = garbled((folder / place).read_bytes(), rng)
    (folder / place).write_bytes(data)
    return Case(f"{place} {what}", False, str(path), SPECIFICATIONS[kind].format(folder))


def vocabulary_place(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """A file of a vocabulary is no file."""
    kind = rng.choice(list(FILES))
    place = rng.choice(FILES[kind])[0]
    path = copied(bases, folder, place.partition("/")[0])
    return Case(replaced(folder / place, rng), True, str(path), SPECIFICATIONS[kind].format(folder))


VOCABULARIES = [change, change, rules, vocabulary_bytes, vocabulary_place]
