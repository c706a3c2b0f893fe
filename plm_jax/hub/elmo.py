"""ELMo (Peters et al. 2018) as allenai/bilm-tf keeps it: `options.json`, weights in HDF5, a word a line of a file.

The weights have no softmax, which bilm-tf leaves out of its dumps; what we write has it too, where there is one, under
the name that it has in bilm-tf's graph, and bilm-tf and AllenNLP do not mind.
"""

import io
import json
import os
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import h5py
import numpy as np
from flax import traverse_util

from plm_jax import models
from plm_jax.common import storage, trees
from plm_jax.common.errors import UserError, one_line
from plm_jax.hub import files, tensor_layout
from plm_jax.hub.pretrained import Pretrained

OPTIONS, WEIGHTS, VOCABULARY = "options.json", "weights.hdf5", "vocabulary.txt"
SOFTMAX = "softmax/W"
# What the names of layers begin with.
_PARTS = ("char_embed", "CNN", "RNN", "softmax")
# How many bytes may be stored as one: published weights are not packed at all.
_MOST_PACKED = 100


class ElmoTensor(NamedTuple):
    """How a dataset holds our parameters: these parts, `parameters[path][index]`, joined along their first axis."""

    shape: tuple[int, ...]
    parts: tuple[tuple[str, Any], ...]


def find(directory: str) -> tuple[str, str] | None:
    """The options and the weights in a folder, by how their names end; None if it has neither.

    Raises:
      UserError: one of them is missing, or is there more than once.
    """
    names = storage.names(directory)
    found = [[name for name in names if name.endswith(ending)] for ending in (OPTIONS, WEIGHTS)]
    if not any(found):
        return None
    for ending, candidates in zip((OPTIONS, WEIGHTS), found, strict=True):
        if len(candidates) != 1:
            raise UserError(
                f"{directory} has {len(candidates)} files …{ending}: keep one, or give plm_jax.load the pair of paths"
            )
    return os.path.join(directory, found[0][0]), os.path.join(directory, found[1][0])


def read(options_path: str, weights_path: str) -> Pretrained:
    """Reads a model; its vocabulary is the file `…vocab….txt` beside the options, if there is one.

    Raises:
      UserError: a file is missing or damaged, the options are beyond ours, datasets are missing or misshapen, or the
        numbers of one lie in other files.
    """
    vocabulary = _vocabulary(os.path.dirname(options_path))
    try:
        options = files.read_json(options_path)
        with storage.open_binary(weights_path) as file, h5py.File(file, "r") as weights:
            stored = _datasets(weights)
            vocab_size, head = _words(options, stored, vocabulary)
            model = to_settings(options, vocab_size, head)
            params = _gather(weights_path, stored, model)
    except FileNotFoundError as error:
        raise UserError(f"{error.filename} is missing: give an ELMo's options and weights") from None
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        what = one_line(error)
        raise UserError(f"{options_path} or {weights_path} is damaged ({what}): fetch it again") from error
    return Pretrained(model, params, {}, vocabulary and f"words:{vocabulary}")


def _datasets(weights: h5py.Group) -> dict[str, h5py.Dataset]:
    """The arrays of an open file by their names.

    Raises:
      ValueError: a link leads out of the file, or the numbers of an array are in none, in others or packed beyond
        belief.
    """
    found: dict[str, h5py.Dataset] = {}
    groups, seen = [("", weights)], {weights.id.__hash__()}
    while groups:
        prefix, group = groups.pop()
        for name in group:
            path = f"{prefix}{name}"
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise ValueError(f"{path} is a link")
            item = group[name]
            if isinstance(item, h5py.Group):
                if item.id.__hash__() in seen or path.count("/") > 16:
                    raise ValueError(f"{path} is a group within itself")
                seen.add(item.id.__hash__())
                groups.append((f"{path}/", item))
            elif isinstance(item, h5py.Dataset):
                if item.is_virtual or item.external or item.dtype.kind != "f" or item.shape is None:
                    raise ValueError(f"{path} holds no floating-point numbers of its own")
                if item.nbytes > _MOST_PACKED * item.id.get_storage_size():
                    raise ValueError(f"{path} would have {item.nbytes:,} bytes")
                found[path] = item
    return found


def write(directory: str, pretrained: Pretrained) -> None:
    """Writes what `read`, bilm-tf and AllenNLP open: the options last. A warning says which heads are left out."""
    model = pretrained.model
    assert isinstance(model, models.ElmoConfig)
    if model.heads:
        names = ", ".join(name for name, _ in model.heads)
        warnings.warn(f"bilm-tf's model has no place for the head of '{names}': it is left out", stacklevel=3)
    flat = pretrained.flat()
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as weights:
        for name, stored in layout(model).items():
            parts = [np.asarray(flat[path], np.float32)[index] for path, index in stored.parts]
            weights.create_dataset(name, data=np.concatenate(parts).reshape(stored.shape))
    storage.write(os.path.join(directory, WEIGHTS), buffer.getvalue())
    scheme, _, path = (pretrained.vocabulary or "").partition(":")
    if scheme == "words":
        storage.copy(path, os.path.join(directory, VOCABULARY))
    options = json.dumps(to_options(model), indent=2) + "\n"
    storage.write(os.path.join(directory, OPTIONS), options.encode("utf-8"))


def layout(model: models.ElmoConfig) -> dict[str, ElmoTensor]:
    """Each dataset of a model's file."""
    shapes = tensor_layout.shapes_of(model)
    found: dict[str, tuple[tuple[str, Any], ...]] = {"char_embed": (("embedding/characters", ...),)}
    for i in range(len(model.embedding.filters)):
        for ours, theirs in (("kernel", "W"), ("bias", "b")):
            found[f"CNN/{theirs}_cnn_{i}"] = ((f"embedding/filters/{i}/{ours}", ...),)
    for i in range(model.embedding.highway_layers):
        for gate in ("carry", "transform"):
            for ours, theirs in (("kernel", "W"), ("bias", "b")):
                found[f"CNN_high_{i}/{theirs}_{gate}"] = ((f"embedding/blocks/{gate}/{ours}", i),)
    found["CNN_proj/W_proj"] = (("embedding/projection/kernel", ...),)
    found["CNN_proj/b_proj"] = (("embedding/projection/bias", ...),)
    for side in range(2):
        for layer in range(model.lstm.layers):
            cell = f"RNN_{side}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            both = ("lstm/blocks/input/kernel", "lstm/blocks/recurrent/kernel")
            found[f"{cell}/W_0"] = tuple((path, (layer, side)) for path in both)
            found[f"{cell}/B"] = (("lstm/blocks/input/bias", (layer, side)),)
            found[f"{cell}/W_P_0"] = (("lstm/blocks/projection/kernel", (layer, side)),)
    if isinstance(model.head, models.Softmax):
        found |= {SOFTMAX: (("head", ...),), "softmax/b": (("head_bias", ...),)}
    return {name: ElmoTensor(_shape(name, parts, shapes), parts) for name, parts in found.items()}


def _shape(name: str, parts, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """A dataset's shape: our parts joined, but filters with an axis of height 1 and an LSTM's gates side by side."""
    path, index = parts[0]
    indexed = 0 if index is ... else 1 if isinstance(index, int) else len(index)
    first, *rest = shapes[path][indexed:]
    if "/LSTMCell/W_0" in name:
        return len(parts) * first, rest[0] * rest[1]
    if "/LSTMCell/B" in name:
        return (first * rest[0],)
    return (1, first, *rest) if "/W_cnn_" in name else (first, *rest)


def _gather(path: str, weights: Mapping[str, h5py.Dataset], model: models.ElmoConfig) -> dict[str, Any]:
    """Our tree, filled from an open file; every misfit is found before the first dataset is read."""
    wanted = layout(model)
    missing = [name for name in wanted if name not in weights]
    misshapen = [
        f"{name} is {weights[name].shape} and not {stored.shape}"
        for name, stored in wanted.items()
        if name in weights and weights[name].shape != stored.shape
    ]
    unknown = [name for name in weights if name.startswith(_PARTS) and name not in wanted]
    for kind, names in (("lack", missing), ("do not fit its options", misshapen), ("have beyond its options", unknown)):
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            raise UserError(f"the weights in {path} {kind}: {', '.join(names[:5])}{more}")
    flat = {path: np.empty(shape, np.float32) for path, shape in tensor_layout.shapes_of(model).items()}
    for name, stored in wanted.items():
        value = np.asarray(weights[name], np.float32)
        for (ours, index), part in zip(stored.parts, np.split(value.reshape(-1), len(stored.parts)), strict=True):
            flat[ours][index] = part.reshape(flat[ours][index].shape)
    return traverse_util.unflatten_dict(flat, sep="/")


def _vocabulary(folder: str) -> str | None:
    names = [name for name in storage.names(folder or ".") if "vocab" in name and name.endswith(".txt")]
    return os.path.join(folder, names[0]) if len(names) == 1 else None


def _words(options: Mapping[str, Any], weights: Mapping[str, h5py.Dataset], vocabulary: str | None) -> tuple[int, Any]:
    """How many words there are, and the head: its matrix, the options or the vocabulary tell."""
    if SOFTMAX in weights:
        return len(weights[SOFTMAX]), models.Softmax()
    if "n_tokens_vocab" in options:
        return options["n_tokens_vocab"], models.NoHead()
    data = b"" if vocabulary is None else files.contents(f"words:{vocabulary}")[os.path.basename(vocabulary)]
    lines = 0 if vocabulary is None else data.removesuffix(b"\n").count(b"\n") + 1
    return lines, models.NoHead()


def to_settings(options: Mapping[str, Any], vocab_size: int, head: models.Softmax | models.NoHead) -> models.ElmoConfig:
    """The settings that options describe.

    Raises:
      UserError: words and not characters come in, something is missing, or something is beyond our settings.
    """
    if "char_cnn" not in options:
        raise UserError("options.json: there is no char_cnn: only ELMo with character inputs can be read")
    try:
        cnn, lstm, dropout = options["char_cnn"], options["lstm"], float(options.get("dropout", 0.0))
        filters = tuple((int(width), int(number)) for width, number in cnn["filters"])
        model = models.ElmoConfig(
            embedding=models.CharacterCNNConfig(
                vocab_size=int(vocab_size),
                width=int(lstm["projection_dim"]),
                dim=int(cnn["embedding"]["dim"]),
                filters=filters,
                max_characters=int(cnn["max_characters_per_token"]),
                activation=cnn["activation"],
                highway_layers=int(cnn["n_highway"]),
            ),
            lstm=models.LstmConfig(
                int(lstm["n_layers"]), int(lstm["dim"]), float(lstm["cell_clip"]), float(lstm["proj_clip"])
            ),
            head=head,
            dropout=models.LstmDropoutConfig(dropout, dropout),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"options.json is damaged ({type(error).__name__}: {error}): fetch it again") from error
    width = model.embedding.width
    for fits, what in (
        (cnn.get("n_characters") in (261, 262), "char_cnn.n_characters other than 261 or 262"),
        (model.embedding.activation in ("relu", "tanh"), "char_cnn.activation other than relu or tanh"),
        (lstm.get("use_skip_connections") is True, "an LSTM without skip connections"),
        (model.lstm.layers > 0 and width > 0, "a size below 1"),
        (width < model.lstm.cell, "an LSTM whose projection_dim is not below its dim"),
        (width != sum(number for _, number in filters), "filters that are not projected"),
    ):
        if not fits:
            raise UserError(f"options.json: {what} cannot be read")
    return trees.checked(model, OPTIONS)


def to_options(model: models.ElmoConfig) -> dict[str, Any]:
    """The inverse, for inference, where bilm-tf has 262 characters."""
    embedding, lstm = model.embedding, model.lstm
    return {
        "bidirectional": True,
        "char_cnn": {
            "activation": embedding.activation,
            "embedding": {"dim": embedding.dim},
            "filters": [list(pair) for pair in embedding.filters],
            "max_characters_per_token": embedding.max_characters,
            "n_characters": 262,
            "n_highway": embedding.highway_layers,
        },
        "dropout": model.dropout.input,
        "lstm": {
            "cell_clip": lstm.cell_clip,
            "dim": lstm.cell,
            "n_layers": lstm.layers,
            "proj_clip": lstm.projection_clip,
            "projection_dim": embedding.width,
            "use_skip_connections": True,
        },
        "n_tokens_vocab": embedding.vocab_size,
    }
