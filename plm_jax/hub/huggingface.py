"""Hugging Face directories in and out: `config.json`, safetensors in one file or in shards, the vocabulary's files.

Every family is read and written by the same few functions over its table (`hub/table.py`).
"""

import contextlib
import dataclasses
import functools
import os
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import flax
import numpy as np

from plm_jax.common import storage
from plm_jax.common.errors import UserError, nearest
from plm_jax.hub import (
    albert,
    bart,
    bert,
    chatglm2,
    distilbert,
    electra,
    files,
    glm,
    gpt1,
    gpt2,
    llama,
    mt5,
    roberta,
    t5,
    tokenizer_json,
)
from plm_jax.hub.pretrained import Pretrained, float32
from plm_jax.hub.table import Family, Tensor
from plm_jax.models import registry, settings

FAMILIES = {
    family.model_type: family
    for family in (
        gpt2.FAMILY,
        bert.FAMILY,
        t5.FAMILY,
        mt5.FAMILY,
        bart.FAMILY,
        roberta.FAMILY,
        electra.FAMILY,
        albert.FAMILY,
        distilbert.FAMILY,
        gpt1.FAMILY,
        llama.FAMILY,
        chatglm2.GLM,
        chatglm2.CHATGLM,
        glm.GLM,
        glm.CHATGLM,
    )
}
CONFIG, TOKENIZER = "config.json", "tokenizer_config.json"
_RANK = re.compile(rb"[0-9A-Za-z+/]+=* \d+\r?\n")  # The first line of a file of tiktoken's.
SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
# What every text begins with, see `Pretrained`. Names of our own: `transformers` leaves that to its tokenizers.
BEGINS = ("begins_with_bos", "begins_with")
START_ID = "decoder_start_token_id"
# Settings of how a model is trained or computed, which a Hugging Face directory does not keep or not in full.
NOT_KEPT = ("dropout.", "initializer.", "attention.position.init_std", "scan_layers", "remat", "attention_kernel")


@dataclass(frozen=True)
class Piece:
    """Where a part of a Hugging Face tensor lies in our tree: `parameters[path][index]`, of this shape there.

    With `heads` above 1 the parts of the tensor alternate, one head of each after the other.
    """

    path: str
    index: Any
    shape: tuple[int, ...]
    transposed: bool
    heads: int = 1


class Parameter(files.InFiles):
    """A parameter of ours in open files: pieces of tensors by their index, one or one for each layer."""

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape
        self._pieces: dict[Any, tuple[files.Stored, list[Piece], int]] = {}

    def add(self, tensor: files.Stored, pieces: list[Piece], number: int) -> None:
        """Has the piece of this number of a tensor's lie where it says."""
        self._pieces[pieces[number].index] = tensor, pieces, number

    @property
    def dtype(self) -> np.dtype:
        """Of its numbers; the layers' common one."""
        return files.common_type(tensor for tensor, _, _ in self._pieces.values())

    def __getitem__(self, index: Any) -> np.ndarray:
        if index in self._pieces:
            tensor, pieces, number = self._pieces[index]
            return _divide(tensor[...], pieces)[number]
        whole = np.empty(self.shape, self.dtype)
        for layer in self._pieces:
            whole[layer] = self[layer]
        return whole

    def parts(self) -> Iterator[np.ndarray]:
        """Its pieces, in order."""
        return (self[index] for index in self._pieces)


@contextlib.contextmanager
def opened(directory: str) -> Iterator[Pretrained]:
    """A model whose parameters stay in their files, in the type that they have there, to be read while this lasts.

    Raises:
      UserError: a file is missing or damaged, the family is unknown, the settings are beyond ours, or tensors are
        missing, unknown or misshapen; the line names them.
    """
    config = files.read_json(os.path.join(directory, CONFIG))
    if config.get("model_type") is None:
        config = config | {"model_type": _model_type(directory, config)}
    own = (family.model_type for family in FAMILIES.values() if family.reads(config))
    model_type = next(own, str(config.get("model_type")))
    if model_type not in FAMILIES:
        raise UserError(f"{directory}/{CONFIG}: model_type '{model_type}': {nearest(model_type, FAMILIES)}")
    family = FAMILIES[model_type]
    model = family.to_settings(config)
    special_ids = {name: config[name] for name in (*SPECIAL_IDS, *BEGINS, START_ID) if config.get(name) is not None}
    special_ids |= {ours: config[name] for ours, name in family.ids.items() if config.get(name) is not None}
    if family.start in special_ids:
        special_ids.setdefault(START_ID, special_ids[family.start])
    path = os.path.join(directory, TOKENIZER)
    tokenizer = files.read_json(path) if storage.exists(path) else {}
    vocabulary = _vocabulary(directory, family, tokenizer)
    if vocabulary is not None:
        special_ids = _told(directory, family, vocabulary, tokenizer) | special_ids
    with files.opened(directory) as tensors:
        stored = _by_full_name(tensors, family)
        model = _with_heads(family, model, stored, _has_own_head(family, stored), _has_head_bias(family, stored))
        yield Pretrained(model, _gather(directory, family, model, stored), special_ids, vocabulary, model_type)


def _model_type(directory: str, config: Mapping[str, Any]) -> str:
    """The family of a directory whose `config.json` does not name it: by its `architectures`, else by its tensors.

    Raises:
      UserError: neither tells one.
    """
    classes = [str(name) for name in config.get("architectures") or ()]
    stems = {re.sub(r"(For[A-Z]\w*|(LMHead|DoubleHeads|PreTrained)?Model)$", "", name).lower() for name in classes}
    found = [name for name in FAMILIES if name.replace("-", "") in stems]
    if not found:
        with files.opened(directory) as tensors:
            found = [name for name, family in FAMILIES.items() if _knows(family, tensors)]
    if len(found) != 1:
        told = f"could be of {' or '.join(found)}" if found else f"are of none of {', '.join(FAMILIES)}"
        raise UserError(
            f"{directory}/{CONFIG} has no model_type, and by their names the tensors {told}: set model_type"
        )
    return found[0]


def _knows(family: Family, tensors: Mapping[str, files.Stored]) -> bool:
    """Whether all tensors have names that a family's may have."""
    rows = (re.sub(r"\\\{\w+\\\}", r"\\d+", re.escape(row.name)) for row in family.tensors)
    known = re.compile("|".join([*rows, *map(re.escape, family.copies)]))
    others = re.compile(f"{family.buffers}|{family.other_heads}")
    names = _by_full_name(tensors, family)
    return all(known.fullmatch(name) or others.fullmatch(name.removeprefix(family.prefix)) for name in names)


def read(directory: str) -> Pretrained:
    """A model with its parameters in memory, float32 NumPy arrays; raises as `opened`."""
    with opened(directory) as pretrained:
        flat = {path: float32(leaf) for path, leaf in pretrained.flat().items()}
        return replace(pretrained, params=flax.traverse_util.unflatten_dict(flat, sep="/"))


def write(
    directory: str,
    pretrained: Pretrained,
    shard_bytes: int = files.SHARD_BYTES,
    tokenizer: tokenizer_json.Tokenizer | None = None,
) -> None:
    """Writes what `opened` and `transformers` open: weights and vocabulary first, `config.json` last.

    The weights are written one tensor at a time, in the type that the parameters have. Of an ELECTRA the discriminator
    is written, of a SpanBERT a BERT; a warning says what is left out. Without a `tokenizer` a vocabulary is written
    only where the family has files for it, from which `transformers` makes a tokenizer of its own.

    Raises:
      UserError: no Hugging Face family can hold the model.
    """
    pretrained = _published(pretrained)
    family = family_of(pretrained.model, pretrained.family)
    flat = pretrained.flat()
    config = family.to_config(pretrained.model) | {"dtype": str(files.common_type(flat.values()))}
    special_ids = {name: pretrained.special_ids.get(name) for name in SPECIAL_IDS}
    for name in config.keys() & special_ids.keys():  # Those that the settings ask for.
        if config[name] != special_ids[name]:
            raise UserError(
                f"Hugging Face's {family.name} cannot hold this model: it needs {name} = {config[name]}, "
                f"this one's is {special_ids[name]}"
            )
    config |= special_ids | {name: pretrained.special_ids[name] for name in BEGINS if pretrained.special_ids.get(name)}
    config |= {name: pretrained.special_ids[our] for our, name in family.ids.items() if our in pretrained.special_ids}
    if family.start:
        config[START_ID] = pretrained.special_ids.get(START_ID, config[family.start])
    storage.remove(os.path.join(directory, CONFIG))
    tensors = _layout_of(family, pretrained.model)
    files.write(directory, {name: _content(flat, pieces) for name, pieces in tensors.items()}, shard_bytes)
    _write_vocabulary(directory, family, pretrained, tokenizer)
    files.write_json(os.path.join(directory, CONFIG), config)


def _write_vocabulary(
    directory: str, family: Family, pretrained: Pretrained, tokenizer: tokenizer_json.Tokenizer | None
) -> None:
    """The vocabulary's own files, by which we know it again, and the tokenizer's, which `transformers` takes first."""
    scheme, described = (pretrained.vocabulary or "").partition(":")[0], {}
    names = _files_of(family).get(scheme) or (tokenizer_json.FILES.get(scheme) if tokenizer else None)
    if names is None:
        return
    contents = list(files.contents(pretrained.vocabulary).values())
    for name, content in zip(names, contents, strict=True):
        storage.write(os.path.join(directory, name), content)
    if scheme in family.vocabulary_files:
        described |= family.tokenizer_config(contents, pretrained.special_ids)
    elif scheme == tokenizer_json.SCHEME:
        described |= tokenizer_json.tokenizer_config(contents, pretrained.special_ids)
    if tokenizer is not None:
        files.write_json(os.path.join(directory, tokenizer_json.NAME), tokenizer.tree)
        described |= {**tokenizer.config, "tokenizer_class": tokenizer_json.CLASS}
        described[tokenizer_json.OURS] = f"{scheme}:{','.join(names)}"
    if described:
        files.write_json(os.path.join(directory, TOKENIZER), described)


def layout(
    rows: Sequence[Tensor], shapes: Mapping[str, tuple[int, ...]], inner: int = 1, heads: int = 1
) -> dict[str, list[Piece]]:
    """The pieces that make up each tensor of a model with these parameters' shapes, `inner` blocks a layer and so many
    heads.
    """
    found = {}
    for row in rows:
        if row.parameters[0] not in shapes or not row.applies(shapes):
            continue
        if "{" not in row.name:
            index, leading = (None, (1,)) if row.as_row else (..., ())
            pieces = [Piece(path, index, leading + shapes[path], row.transposed) for path in row.parameters]
            found[row.name] = pieces
            continue
        alternating = heads if row.by_head else 1
        for layer in range(shapes[row.parameters[0]][0]):
            pieces = [Piece(path, layer, shapes[path][1:], row.transposed, alternating) for path in row.parameters]
            found[row.name.format(layer=layer, group=layer // inner, inner=layer % inner)] = pieces
    return found


def _layout_of(family: Family, model: settings.Transformer) -> dict[str, list[Piece]]:
    return layout(family.tensors, _shapes(model), model.stack.inner, model.attention.heads)


def published(model: settings.Transformer) -> tuple[settings.Transformer, str | None]:
    """What of a model Hugging Face has a place for, and the name of the parameters that are left out."""
    if isinstance(model, settings.Electra):
        return model.discriminator_model, "generator"
    if isinstance(model, settings.Encoder) and isinstance(model.span_boundary, settings.SpanBoundary):
        return replace(model, span_boundary=settings.NoHead()), "span_boundary"
    return model, None


def _published(pretrained: Pretrained) -> Pretrained:
    model, left_out = published(pretrained.model)
    if left_out is None:
        return pretrained
    warnings.warn(f"Hugging Face's model has no place for '{left_out}': it is left out", stacklevel=3)
    params = {name: leaf for name, leaf in pretrained.params.items() if name != left_out}
    return replace(pretrained, model=model, params=params)


def _swapped(value: np.ndarray, outer: int, inner: int) -> np.ndarray:
    """`outer` groups of `inner` parts along the last axis → `inner` groups of `outer` parts."""
    return value.reshape(*value.shape[:-1], outer, inner, -1).swapaxes(-3, -2).reshape(value.shape)


def family_of(model: settings.Transformer, preferred: str | None = None) -> Family:
    """The family whose `config.json` says all of a model's settings; of several, the preferred one or else the first.

    Raises:
      UserError: there is none; the line names the nearest and what that one cannot say.
    """
    families = [family for family in FAMILIES.values() if family.kind == model.kind]
    if not families:
        raise UserError(f"Hugging Face has no family for a model of kind '{model.kind}': save it in format plm_jax")
    families.sort(key=lambda family: family.model_type != preferred)
    family, needed = min(((family, _needed(family, model)) for family in families), key=lambda pair: len(pair[1]))
    if needed:
        raise UserError(
            f"Hugging Face's {family.name} cannot hold this model: it needs {', '.join(needed)}; change the model, or "
            "save it in format plm_jax"
        )
    return family


def _needed(family: Family, model: settings.Transformer) -> list[str]:
    """What of the settings would be otherwise once they were written and read."""
    shapes = _shapes(model)
    try:
        held = family.to_settings(family.to_config(model))
    except UserError as error:  # As of heads that do not divide the width.
        return [f"another {error}"]
    names = _layout_of(family, model)
    held = _with_heads(family, held, names, "head" in shapes, _name_of(family, "head_bias") in names)
    given = _fields(_shortest(model))
    return [
        f"{name} = {value}"
        for name, value in _fields(held).items()
        if not name.startswith(NOT_KEPT) and given.get(name) != value
    ]


def _shortest(model: settings.Transformer) -> settings.Transformer:
    """The same model with None where that means as much as what is given."""
    attention = model.attention
    if isinstance(model, settings.EncoderDecoder):
        own = {"heads": attention.heads, "head_dim": attention.head_dim, "feed_forward": model.feed_forward.width}
        same = [f"decoder_{name}" for name, value in own.items() if getattr(model, f"decoder_{name}") == value]
        model = replace(model, **dict.fromkeys(same))
    if attention.score_scale == attention.head_dim**-0.5 and getattr(model, "decoder_head_dim", None) is None:
        model = replace(model, attention=replace(attention, score_scale=None))
    return model


def _fields(part: Any, prefix: str = "") -> dict[str, Any]:
    """The settings by their dotted names, each choice's kind among them."""
    found = {f"{prefix}kind": part.kind} if hasattr(part, "kind") else {}
    for field_ in dataclasses.fields(part):
        value = getattr(part, field_.name)
        name = prefix + field_.name
        found |= _fields(value, f"{name}.") if dataclasses.is_dataclass(value) else {name: value}
    return found


def _with_heads(
    family: Family, model: settings.Transformer, names: Collection[str], own_head: bool, has_bias: bool
) -> settings.Transformer:
    """The settings with those heads alone whose tensors are among the names: these decide, not the config."""
    tied, bias = model.head.tied and not own_head, model.head.bias or has_bias
    model = replace(model, head=replace(model.head, tied=tied, bias=bias))
    if not isinstance(model, settings.Encoder):
        return model
    head, pooler, classifier, discriminator = (
        _name_of(family, f"{part}/kernel") in names
        for part in ("head_transform", "pooler", "classifier", "discriminator")
    )
    return replace(
        model,
        head=model.head if head else settings.NoHead(),
        pooler=settings.Pooler(2 if classifier else 0) if pooler else settings.NoHead(),
        discriminator=model.discriminator if discriminator else settings.NoHead(),
    )


@functools.lru_cache(maxsize=8)
def _shapes(model: settings.Transformer) -> Mapping[str, tuple[int, ...]]:
    flat = flax.traverse_util.flatten_dict(registry.shapes(model), sep="/")
    return {path: leaf.shape for path, leaf in flat.items()}


def _gather(folder, family: Family, model: settings.Transformer, stored: Mapping[str, files.Stored]) -> dict[str, Any]:
    """Our tree, each leaf still in the open files; every misfit is found before the first tensor is read."""
    shapes = _shapes(model)
    wanted = _layout_of(family, model)
    _check(folder, family, wanted, stored)
    flat = {path: Parameter(shape) for path, shape in shapes.items()}
    for name, pieces in wanted.items():
        for number, piece in enumerate(pieces):
            flat[piece.path].add(stored[name], pieces, number)
    return flax.traverse_util.unflatten_dict(flat, sep="/")


def _divide(tensor: np.ndarray, pieces: list[Piece]) -> list[np.ndarray]:
    """What each piece holds of a stored tensor."""
    value = tensor.T if pieces[0].transposed else tensor
    if pieces[0].heads > 1:
        value = _swapped(value, pieces[0].heads, len(pieces))
    return np.split(value, np.cumsum([piece.shape[-1] for piece in pieces])[:-1], axis=-1)


def _join(flat: Mapping[str, Any], pieces: list[Piece]) -> np.ndarray:
    """The stored tensor that the pieces make up: the inverse of `_divide`."""
    parts = [flat[piece.path][piece.index] for piece in pieces]
    joined = np.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]
    if pieces[0].heads > 1:
        joined = _swapped(joined, len(pieces), pieces[0].heads)
    return joined.T if pieces[0].transposed else joined


def _stored_shape(pieces: list[Piece]) -> tuple[int, ...]:
    """The shape of the tensor that the pieces make up."""
    shape = (*pieces[0].shape[:-1], sum(piece.shape[-1] for piece in pieces))
    return shape[::-1] if pieces[0].transposed else shape


def _content(flat: Mapping[str, Any], pieces: list[Piece]) -> files.Content:
    dtype = files.common_type(flat[piece.path] for piece in pieces)
    return files.Content(_stored_shape(pieces), dtype, lambda: [_join(flat, pieces)])


def _check(folder, family: Family, wanted: Mapping[str, list[Piece]], stored: Mapping[str, files.Stored]) -> None:
    def matches(pattern, name):
        return re.fullmatch(pattern, name.removeprefix(family.prefix))

    # A tied head may be stored once more; `opened` has compared the two.
    extra = stored.keys() - wanted.keys() - {_name_of(family, "head")}
    copies = extra & family.copies.keys()
    extra = [name for name in extra - copies if not matches(family.buffers, name)]
    misshapen = [
        f"{name} is {stored[name].code} {list(stored[name].shape)} and not {list(_stored_shape(pieces))}"
        for name, pieces in wanted.items()
        if name in stored and (stored[name].shape != _stored_shape(pieces) or stored[name].code not in files.FLOATS)
    ]
    files.refuse_misfits(
        f"the weights in {folder} do not fit its {CONFIG}",
        {
            "missing": wanted.keys() - stored.keys(),
            "unknown": [stored[name].name for name in extra if not matches(family.other_heads, name)],
            "misshapen": misshapen,
            "copies that differ": [name for name in copies if not stored[name].equals(stored[family.copies[name]])],
        },
    )
    if extra:
        heads = ", ".join(sorted(stored[name].name for name in extra))
        warnings.warn(f"{folder}: the heads of a fine-tuned model are left out: {heads}", stacklevel=6)


def _name_of(family: Family, parameter: str) -> str | None:
    """The tensor that holds a parameter alone; None where the family has none."""
    return next((row.name for row in family.tensors if row.parameters == (parameter,)), None)


def _has_own_head(family: Family, stored: Mapping[str, files.Stored]) -> bool:
    """Whether a head lies in the files that is not the token table again (the tensors decide, not the config)."""
    head, table = (stored.get(_name_of(family, parameter)) for parameter in ("head", "token_embedding"))
    return head is not None and table is not None and not head.equals(table)


def _has_head_bias(family: Family, stored: Mapping[str, files.Stored]) -> bool:
    """Whether the files hold a bias of the head that is not 0 everywhere."""
    bias = stored.get(_name_of(family, "head_bias"))
    return bias is not None and bool(np.any(bias[...]))


def _by_full_name(tensors: Mapping[str, files.Stored], family: Family) -> dict[str, files.Stored]:
    """The tensors by today's names with the prefix, whatever the files leave out or call otherwise."""
    heads = {row.name for row in family.tensors if not row.name.startswith(family.prefix)}
    stored = {}
    for name, tensor in tensors.items():
        for old, new in family.old_endings.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        stored[name if name in heads else family.prefix + name.removeprefix(family.prefix)] = tensor
    for copy, name in family.copies.items():
        if copy in stored:
            stored.setdefault(name, stored[copy])
    return stored


def _files_of(family: Family) -> dict[str, tuple[str, ...]]:
    """The family's own files by their scheme; each may have a `tokenizer.json`."""
    return {**family.vocabulary_files, tokenizer_json.SCHEME: tokenizer_json.FILES[tokenizer_json.SCHEME]}


def _told(folder: str, family: Family, vocabulary: str, tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """The special ids that the vocabulary's files tell, those of a family's own or else `tokenizer.json`."""
    if vocabulary.partition(":")[0] in family.vocabulary_files:
        found = family.special_ids(list(files.contents(vocabulary).values()), tokenizer)
        # What we wrote says it of whatever family.
        is_lower = tokenizer_json.OURS in tokenizer and tokenizer.get("do_lower_case")
        return found | ({"lowercase": True} if is_lower else {})
    tree = files.contents(f"{tokenizer_json.SCHEME}:{os.path.join(folder, tokenizer_json.NAME)}")
    return tokenizer_json.special_ids(list(tree.values()), tokenizer)


def _vocabulary(folder: str, family: Family, tokenizer: Mapping[str, Any]) -> str | None:
    """The spec of the files that we wrote, else of the family's own, else of `tokenizer.json`."""
    scheme, _, names = str(tokenizer.get(tokenizer_json.OURS, "")).partition(":")
    told = (
        {scheme: tuple(map(os.path.basename, filter(None, names.split(","))))} if scheme in tokenizer_json.FILES else {}
    )
    for scheme, names in (told | {s: n for s, n in _files_of(family).items() if s not in told}).items():
        paths = [os.path.join(folder, name) for name in names]
        if all(map(storage.exists, paths)) and (scheme in told or _is_of(scheme, paths[0])):
            return f"{scheme}:{','.join(paths)}".rstrip(":")
    return None


def _is_of(scheme: str, path: str) -> bool:
    """Whether a file may be of a scheme: SentencePiece's and tiktoken's have the same name, and tiktoken's is text."""
    is_tiktoken = scheme == "tiktoken"
    return not (is_tiktoken or scheme == "sentencepiece") or is_tiktoken == bool(_RANK.match(storage.read(path)))
