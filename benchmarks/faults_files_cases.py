"""The cases of `faults_files.py`: each makes one file of a good model or vocabulary bad."""

import base64
import contextlib
import json
import os
import pathlib
import random
import shutil
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class Case(NamedTuple):
    """What is to be opened.

    Attributes:
      what: what was done to it.
      is_bad: whether to open it would be wrong; by chance a change may do no harm.
      path: of a model.
      specification: of a vocabulary alone; None: the model is opened.
    """

    what: str
    is_bad: bool
    path: str
    specification: str | None = None


HUGGING_FACE = ("gpt2", "bert", "t5", "llama", "albert")
BPE, WORDPIECE, WORDS = ("vocab.json", "merges.txt"), "vocab.txt", "vocabulary.txt"
SPECIFICATIONS = {
    "bpe": "bpe:{0}/gpt2/vocab.json,{0}/gpt2/merges.txt",
    "wordpiece": "wordpiece:{0}/bert/vocab.txt",
    "sentencepiece": "sentencepiece:{0}/t5/spiece.model",
    "json": "json:{0}/llama/tokenizer.json",
    "tiktoken": "tiktoken:{0}/tiktoken/tokenizer.model",
    "words": "words:{0}/elmo/vocabulary.txt",
}


def make_bases(root: pathlib.Path) -> None:
    """Writes a good model of each kind, with a vocabulary."""
    import flax
    import numpy as np

    from plm_jax import models
    from plm_jax.hub import elmo, families, files, huggingface
    from plm_jax.hub.pretrained import Pretrained
    from plm_jax.models import registry
    from plm_jax.runs import checkpoint_formats

    texts = [f"The state of the Union is strong, café {i}: ½ of {i * 7} speeches, fellow citizens." for i in range(300)]

    def params(model):
        flat = flax.traverse_util.flatten_dict(registry.shapes(model))
        rng = np.random.default_rng(0)
        made = {path: rng.normal(size=leaf.shape).astype(np.float32) for path, leaf in flat.items()}
        return flax.traverse_util.unflatten_dict(made)

    small = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    told = {
        "gpt2": {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 32},
        "bert": small,
        "t5": {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 2, "num_heads": 2},
        "llama": small | {"num_key_value_heads": 1, "head_dim": 4},
        "albert": small | {"embedding_size": 4},
    }
    for name in (*told, "tiktoken", "elmo"):
        (root / name).mkdir(parents=True)
    _write_vocabularies(root, texts)
    for name, described in told.items():
        model = families.to_settings(families.registered()[name], described | {"vocab_size": 600})
        huggingface.write(str(root / name), Pretrained(model, params(model), {"eos_token_id": 0}, family=name))
    with files.opened(str(root / "gpt2")) as tensors:
        shutil.copytree(root / "gpt2", root / "sharded", ignore=shutil.ignore_patterns("*.safetensors"))
        contents = {tensor: files.Content.of(stored) for tensor, stored in tensors.items()}
        files.write(str(root / "sharded"), contents, 4096)
    checkpoint_formats.convert(str(root / "bert"), str(root / "converted"), "plm_jax")
    words = len((root / "elmo" / WORDS).read_text().splitlines())
    model = models.ElmoConfig(
        embedding=models.CharacterCNNConfig(words, 4, 4, ((1, 4), (2, 4)), 20, "relu", 1),
        lstm=models.LstmConfig(2, 8, 3.0, 3.0),
        head=models.Softmax(),
    )
    elmo.write(str(root / "elmo"), Pretrained(model, params(model), vocabulary=f"words:{root}/elmo/{WORDS}"))


def _write_vocabularies(root: pathlib.Path, texts: list[str]) -> None:
    """The files of each model's vocabulary, in its folder."""
    import sentencepiece
    import tokenizers

    from plm_jax import config
    from plm_jax.data.vocabularies import training

    for kind, size, ids in (
        ("bpe", 350, {"bos": 0, "eos": 0}),
        ("wordpiece", 200, {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}),
        ("words", 400, {"bos": 0, "eos": 1, "unk": 2}),
    ):
        training.train(texts, config.VocabularyConfig(SPECIFICATIONS[kind].format(root), train_size=size, **ids))
    with open(root / "t5/spiece.model", "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=file,
            vocab_size=330,
            byte_fallback=True,
            minloglevel=2,
            **{"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
        )
    shutil.copy(root / "t5/spiece.model", root / "albert/spiece.model")
    (root / "t5/tokenizer_config.json").write_text('{"extra_ids": 4}')
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=350, initial_alphabet=alphabet, special_tokens=["<s>"])
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(root / "llama/tokenizer.json"))
    ranks = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b" the"]
    lines = (b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(ranks))
    (root / "tiktoken/tokenizer.model").write_bytes(b"".join(lines))


def good(bases: pathlib.Path) -> list[Case]:
    """The models and vocabularies as they are before anything is changed."""
    models = [Case(name, False, str(bases / name)) for name in (*HUGGING_FACE, "sharded", "converted", "elmo")]
    return models + [Case(kind, False, "", spec.format(bases)) for kind, spec in SPECIFICATIONS.items()]


def copied(bases: pathlib.Path, folder: pathlib.Path, name: str) -> pathlib.Path:
    """A copy of a good model, to be made bad."""
    shutil.copytree(bases / name, folder / name)
    return folder / name


# What stands in the place of a file; each is bad.
PLACES: dict[str, Callable[[pathlib.Path], Any]] = {
    "a pipe": os.mkfifo,
    "a folder": pathlib.Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to nowhere": lambda path: path.symlink_to("/nowhere/at/all"),
    "a socket": lambda path: _bind(path),
    "nothing": lambda path: path.write_bytes(b""),
    "4 GB of nothing": lambda path: (path.touch(), os.truncate(path, 2**32)),
}


def _bind(path: pathlib.Path) -> None:
    import socket

    where = os.getcwd()
    os.chdir(path.parent)  # The name of a socket is short.
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as made:
        made.bind(path.name)
    os.chdir(where)


def replaced(path: pathlib.Path, rng: random.Random) -> str:
    """Puts something in the place of a file; says what."""
    what = rng.choice(list(PLACES))
    path.unlink()
    PLACES[what](path)
    return f"{path.name} is {what}"


# Values that no place of a description takes.
ODD: tuple[Any, ...] = (-1, 0, 2**31, 10**12, 10**30, 10**400, 1.5, 1e300, "12", True, None, [], {}, [[]], "x" * 10**6)


def paths(tree: Any, path: tuple = ()) -> Iterable[tuple]:
    """Yields the path of every node of a JSON tree."""
    if path:
        yield path
    for key, child in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from paths(child, (*path, key))


def put(tree: Any, path: tuple, value: Any) -> None:
    """Sets the value at a path of a tree."""
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = value


def remove(tree: Any, path: tuple) -> None:
    """Removes the node at a path of a tree."""
    for key in path[:-1]:
        tree = tree[key]
    del tree[path[-1]]


def garbled(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Data with some bytes changed, cut or doubled."""
    how, at = rng.choice(("flipped", "cut", "doubled", "zeroed", "random")), rng.randrange(len(data))
    if how == "cut":
        return data[:at], f"cut at {at}"
    if how == "doubled":
        return data[:at] + data[at // 2 :], f"doubled from {at // 2}"
    changed = bytearray(data)
    if how == "flipped":
        changed[at] ^= 1 << rng.randrange(8)
    else:
        end = min(len(data), at + rng.randrange(1, 64))
        changed[at:end] = bytes(end - at) if how == "zeroed" else rng.randbytes(end - at)
    return bytes(changed), f"{how} at {at}"


# Contents of a JSON file, none of which is valid for any file that the package reads.
DOCUMENTS = (
    b"",
    b"[]",
    b"null",
    b'"text"',
    b"{",
    b"{} {}",
    b"\xef\xbb\xbf{}",
    b'{"a": 1, "a": 2}',
    b'{"a": NaN}',
    b'{"a": "\xff"}',
    "{}".encode("utf-16"),
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
)
LARGE_DOCUMENTS = (
    b"[" * 50_000_000,
    b"[" + b"{}," * 20_000_000 + b"{}]",
    b'{"a": ' + b"9" * 10_000_000 + b"}",
    b"0" * 110_000_000,
)


def reseal(folder: pathlib.Path) -> None:
    """Seals a converted directory again, so that its readers get past the hash of a bad file."""
    from plm_jax.common import sealing

    if (folder / sealing.MANIFEST).exists():
        sealing.seal(str(folder), {"format": 1})


def document(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """A file of JSON is another document."""
    name, file = rng.choice([(name, "config.json") for name in (*HUGGING_FACE, "converted")] + JSON_FILES)
    path = copied(bases, folder, name)
    documents = (*DOCUMENTS, *LARGE_DOCUMENTS)
    number = rng.randrange(len(documents))
    (path / file).write_bytes(documents[number])
    return Case(f"{name}/{file} is document {number}", True, str(path))


JSON_FILES = [
    ("sharded", "model.safetensors.index.json"),
    ("gpt2", "vocab.json"),
    ("llama", "tokenizer.json"),
    ("elmo", "options.json"),
]


def place(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """A file is no file."""
    name = rng.choice((*HUGGING_FACE, "converted", "sharded", "elmo"))
    path = copied(bases, folder, name)
    file = rng.choice([file for file in sorted(path.rglob("*")) if file.is_file()])
    what = replaced(file, rng)
    # Without an optional file a model is another good one.
    return Case(f"{name}: {what}", "nowhere" not in what and file.suffix != ".txt", str(path))


def _sizes_of(config: dict[str, Any]) -> list[str]:
    return [name for name, value in config.items() if type(value) is int and value > 1 and not name.endswith("_id")]


def size(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """A size of a model is none, or not that of its tensors."""
    path = copied(bases, folder, rng.choice(HUGGING_FACE))
    config = json.loads((path / "config.json").read_text())
    name = rng.choice([name for name in _sizes_of(config) if "position" not in name and "distance" not in name])
    config[name] = rng.choice((*ODD, 10**6, config[name] + 1))
    (path / "config.json").write_text(json.dumps(config))
    # Where it may be left out it is what it was; and ALBERT's layers share their tensors.
    is_bad = config[name] is not None and (path.name, name, config[name]) != ("albert", "num_hidden_layers", 3)
    return Case(f"{path.name}: {name} is {str(config[name])[:50]}", is_bad, str(path))


def setting(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """Anything that a description says is something odd."""
    name, file = rng.choice([(name, "config.json") for name in (*HUGGING_FACE, "converted")] + JSON_FILES)
    path = copied(bases, folder, name)
    tree = json.loads((path / file).read_text())
    at = rng.choice(list(paths(tree)))
    value = rng.choice(ODD)
    put(tree, at, value)
    (path / file).write_text(json.dumps(tree))
    reseal(path)
    return Case(f"{name}/{file}: {at} is {str(value)[:50]}", False, str(path))


# What a config.json or tokenizer_config.json has besides: file, what, and whether it is bad.
ADDED = (
    ("config.json", {"architectures": ["BertForSequenceClassification"], "num_labels": 10**9}, True),
    ("config.json", {"architectures": ["BertForSequenceClassification"], "id2label": {"7": "a"}}, True),
    ("config.json", {"architectures": ["BertForSequenceClassification"], "id2label": [1, 2]}, True),
    ("config.json", {"architectures": 7}, True),
    ("config.json", {"model_type": ["bert"]}, True),
    ("config.json", {"hidden_act": ["gelu"]}, True),
    ("config.json", {"bos_token_id": "0"}, True),
    ("config.json", {"eos_token_id": [0, 1.5]}, True),
    ("config.json", {"pad_token_id": 10**30}, True),
    ("config.json", {"begins_with": {"a": 1}}, True),
    ("config.json", {"attention_probs_dropout_prob": 10**400}, True),
    ("tokenizer_config.json", {"plm_jax_vocabulary": "bpe:../../../etc/passwd,/etc/passwd"}, False),
    ("tokenizer_config.json", {"plm_jax_vocabulary": ["wordpiece:vocab.txt"]}, False),
    ("tokenizer_config.json", {"do_lower_case": {"a": [1]}}, False),
)


def addition(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """A description says something odd besides."""
    file, added, is_bad = rng.choice(ADDED)
    path = copied(bases, folder, "bert")
    tree = json.loads((path / file).read_text()) if (path / file).exists() else {}
    (path / file).write_text(json.dumps(tree | added))
    return Case(f"{file} has {str(added)[:100]}", is_bad, str(path))


def sentinels(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """A T5 has odd sentinels."""
    path = copied(bases, folder, "t5")
    number = rng.choice((10**6, 10**12, 10**30, -1, 1.5, "4", [], {}))
    (path / "tokenizer_config.json").write_text(json.dumps({"extra_ids": number}))
    return Case(f"extra_ids is {number}", True, str(path))


def some_bytes(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """Bytes of any file of a model are others; in its weights that is not to be seen."""
    path = copied(bases, folder, rng.choice((*HUGGING_FACE, "sharded", "converted", "elmo")))
    file = rng.choice([file for file in sorted(path.rglob("*")) if file.is_file()])
    data, what = garbled(file.read_bytes(), rng)
    file.write_bytes(data)
    return Case(f"{path.name}/{file.name} {what}", False, str(path))


CONFIGS = [document, place, size, setting, addition, sentinels, some_bytes]
