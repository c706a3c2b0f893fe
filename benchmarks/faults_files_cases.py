"""Good models and vocabularies of other programs, and the changes of their JSON files for `faults_files.py`."""

import base64
import json
import pathlib
import random
import shutil
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import faults_damage

# Changes the bytes of a file.
Change = Callable[[bytes, random.Random], bytes]


class Case(NamedTuple):
    """A changed file of a model or a vocabulary, to be opened.

    Attributes:
      what: description of the change.
      is_bad: whether opening it without an error would be wrong; some changes may do no harm.
      path: folder of the model.
      specification: specification of the vocabulary; None to open the model.
    """

    what: str
    is_bad: bool
    path: str
    specification: str | None = None


class Target(NamedTuple):
    """Files that a case changes.

    Attributes:
      names: names of models; one of them is chosen.
      file: name of the file in the model's folder; empty for any file.
      changes: changes by description; one of them is chosen.
      is_bad: whether all changes are wrong.
      kind: kind of vocabulary to open, in SPECIFICATIONS; None to open the model.
    """

    names: tuple[str, ...]
    file: str
    changes: Mapping[str, Change]
    is_bad: bool = True
    kind: str | None = None

    def __call__(self, bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
        """Copies a good model into a folder and changes it."""
        path = copied(bases, folder, rng.choice(self.names))
        file = path / self.file if self.file else rng.choice(faults_damage.files_of(path))
        what = rng.choice(list(self.changes))
        file.write_bytes(self.changes[what](file.read_bytes() if file.exists() else b"{}", rng))
        reseal(path)
        specification = self.kind and SPECIFICATIONS[self.kind].format(folder)
        return Case(f"{path.name}/{file.name}: {what}", self.is_bad, str(path), specification)


Make = Callable[[pathlib.Path, pathlib.Path, random.Random], Case]
GARBLED: dict[str, Change] = {"garbled bytes": lambda data, rng: faults_damage.garbled(data, rng)[0]}


def any_of(makes: list[Make]) -> Make:
    """Returns a maker of cases that draws one of several."""
    return lambda bases, folder, rng: rng.choice(makes)(bases, folder, rng)


def in_json(change: Callable[[Any, random.Random], Any]) -> Change:
    """Returns a change of the bytes of a JSON file from a change of its tree in place."""

    def changed(data: bytes, rng: random.Random) -> bytes:
        tree = json.loads(data)
        change(tree, rng)
        return json.dumps(tree).encode("utf-8")

    return changed


def with_fields(**fields: Any) -> Change:
    """Returns a change that sets fields of a JSON file."""
    return in_json(lambda tree, rng: tree.update(fields))


def contents(*documents: bytes) -> dict[str, Change]:
    """Returns changes that replace a whole file."""
    return {f"document {i}": lambda data, rng, new=new: new for i, new in enumerate(documents)}


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
        values = {path: rng.normal(size=leaf.shape).astype(np.float32) for path, leaf in flat.items()}
        return flax.traverse_util.unflatten_dict(values)

    small = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    described = {
        "gpt2": {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 32},
        "bert": small,
        "t5": {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 2, "num_heads": 2},
        "llama": small | {"num_key_value_heads": 1, "head_dim": 4},
        "albert": small | {"embedding_size": 4},
    }
    for name in (*described, "tiktoken", "elmo"):
        (root / name).mkdir(parents=True)
    _write_vocabularies(root, texts)
    for name, fields in described.items():
        model = families.to_settings(families.registered()[name], fields | {"vocab_size": 600})
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
    """Writes the files of each model's vocabulary into its folder."""
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
    """Returns the models and vocabularies before any change."""
    models = [Case(name, False, str(bases / name)) for name in (*HUGGING_FACE, "sharded", "converted", "elmo")]
    return models + [Case(kind, False, "", spec.format(bases)) for kind, spec in SPECIFICATIONS.items()]


def copied(bases: pathlib.Path, folder: pathlib.Path, name: str) -> pathlib.Path:
    """Copies a good model."""
    shutil.copytree(bases / name, folder / name)
    return folder / name


def reseal(folder: pathlib.Path) -> None:
    """Seals a converted directory again, so that its readers get past the hash of a changed file."""
    from plm_jax.common import sealing

    if (folder / sealing.MANIFEST).exists():
        sealing.seal(str(folder), {"format": 1})


LARGE_DOCUMENTS = (
    b"[" * 50_000_000,
    b"[" + b"{}," * 20_000_000 + b"{}]",
    b'{"a": ' + b"9" * 10_000_000 + b"}",
    b"0" * 110_000_000,
)
ALL = (*HUGGING_FACE, "converted", "sharded", "elmo")


def place(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """Replaces a file by something else, such as a pipe."""
    path = copied(bases, folder, rng.choice(ALL))
    file = rng.choice(faults_damage.files_of(path))
    what = faults_damage.replace(file, rng)
    # Without an optional file a model is another good one.
    return Case(f"{path.name}: {what}", "nowhere" not in what and file.suffix != ".txt", str(path))


def size(bases: pathlib.Path, folder: pathlib.Path, rng: random.Random) -> Case:
    """Changes a size of a model, which then differs from that of its tensors."""
    path = copied(bases, folder, rng.choice(HUGGING_FACE))
    config = json.loads((path / "config.json").read_text())
    sizes = [name for name, value in config.items() if type(value) is int and value > 1]
    name = rng.choice([name for name in sizes if not any(part in name for part in ("_id", "position", "distance"))])
    config[name] = rng.choice((*faults_damage.ODD, 10**6, config[name] + 1))
    (path / "config.json").write_text(json.dumps(config))
    # None stands for the default, and ALBERT's layers share their tensors.
    is_bad = config[name] is not None and (path.name, name, config[name]) != ("albert", "num_hidden_layers", 3)
    return Case(f"{path.name}: {name} is {str(config[name])[:50]}", is_bad, str(path))


_CLASSES = {"architectures": ["BertForSequenceClassification"]}
# Fields that a config.json may have besides; each is wrong.
ADDED = (
    _CLASSES | {"num_labels": 10**9},
    _CLASSES | {"id2label": {"7": "a"}},
    _CLASSES | {"id2label": [1, 2]},
    {"architectures": 7},
    {"model_type": ["bert"]},
    {"hidden_act": ["gelu"]},
    {"bos_token_id": "0"},
    {"eos_token_id": [0, 1.5]},
    {"pad_token_id": 10**30},
    {"begins_with": {"a": 1}},
    {"attention_probs_dropout_prob": 10**400},
)
# Fields of a tokenizer_config.json that are unusual, but may be right.
UNUSUAL = (
    {"plm_jax_vocabulary": "bpe:../../../etc/passwd,/etc/passwd"},
    {"plm_jax_vocabulary": ["wordpiece:vocab.txt"]},
    {"do_lower_case": {"a": [1]}},
)
SENTINELS = (10**6, 10**12, 10**30, -1, 1.5, "4", [], {})
DOCUMENTS = contents(*faults_damage.DOCUMENTS, *LARGE_DOCUMENTS)
SETTINGS: dict[str, Change] = {"a setting": in_json(lambda tree, rng: faults_damage.spoil(tree, rng))}
JSON_FILES = [((*HUGGING_FACE, "converted"), "config.json"), (("sharded",), "model.safetensors.index.json")]
JSON_FILES += [(("gpt2",), "vocab.json"), (("llama",), "tokenizer.json"), (("elmo",), "options.json")]
CONFIGS: list[Make] = [
    any_of([Target(*files, DOCUMENTS) for files in JSON_FILES]),
    place,
    size,
    any_of([Target(*files, SETTINGS, is_bad=False) for files in JSON_FILES]),
    Target(("bert",), "config.json", {str(fields)[:100]: with_fields(**fields) for fields in ADDED}),
    Target(("bert",), "tokenizer_config.json", {str(fields): with_fields(**fields) for fields in UNUSUAL}, False),
    Target(("t5",), "tokenizer_config.json", {f"extra_ids {n}": with_fields(extra_ids=n) for n in SENTINELS}),
    Target(ALL, "", GARBLED, is_bad=False),
]
