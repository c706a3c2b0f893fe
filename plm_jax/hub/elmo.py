"""ELMo (Peters et al. 2018) in the format of allenai/bilm-tf: `options.json`, HDF5 weights, and a list of words.

The weights that bilm-tf saves do not include the softmax. If a model has a softmax, `write` saves it under the name
that the softmax has in bilm-tf's graph. bilm-tf and AllenNLP ignore the saved softmax.
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
_PREFIXES = ("char_embed", "CNN", "RNN", "softmax")
# Largest accepted ratio of a dataset's size in memory to its size in the file. Published weights are not compressed.
_MAX_COMPRESSION = 100


class ElmoTensor(NamedTuple):
    """Dataset in a weights file.

    It consists of parts of parameters. They are concatenated along their first axis and then reshaped.

    Attributes:
      shape: shape of the dataset.
      parts: pairs (path, index). Each pair stands for the part `parameters[path][index]`.
    """

    shape: tuple[int, ...]
    parts: tuple[tuple[str, Any], ...]


def find(directory: str) -> tuple[str, str] | None:
    """Finds the options and the weights in a folder by the suffixes of the file names.

    Returns:
      A pair of paths (options, weights), or None if the folder has neither file.

    Raises:
      UserError: the folder has only one of the two files, or several options or weights files.
    """
    names = storage.names(directory)
    options, weights = ([name for name in names if name.endswith(ending)] for ending in (OPTIONS, WEIGHTS))
    if not options and not weights:
        return None
    for ending, candidates in ((OPTIONS, options), (WEIGHTS, weights)):
        if len(candidates) != 1:
            raise UserError(
                f"{directory} has {len(candidates)} files …{ending}: keep one, or pass both paths to plm_jax.load"
            )
    return os.path.join(directory, options[0]), os.path.join(directory, weights[0])


def read(options_path: str, weights_path: str) -> Pretrained:
    """Reads a model.

    If the folder of the options contains exactly one file with a name like `…vocab….txt`, that file is the vocabulary.

    Raises:
      UserError: a file is missing or damaged, the options are not supported, or datasets are missing, unknown or have
        the wrong shapes.
    """
    vocabulary = _vocabulary(os.path.dirname(options_path))
    try:
        options = files.read_json(options_path)
        with storage.open_binary(weights_path) as file, h5py.File(file, "r") as weights:
            stored = _datasets(weights)
            vocab_size, head = _vocab_size_and_head(options, stored, vocabulary)
            model = to_settings(options, vocab_size, head)
            params = _gather(weights_path, stored, model)
    except FileNotFoundError as error:
        raise UserError(f"{error.filename} is missing: pass the options and the weights of an ELMo") from None
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        cause = one_line(error)
        raise UserError(f"{options_path} or {weights_path} is damaged ({cause}): fetch it again") from error
    return Pretrained(model, params, {}, vocabulary and f"words:{vocabulary}")


def _datasets(weights: h5py.Group) -> dict[str, h5py.Dataset]:
    """Returns a dict from names to the datasets of an open file.

    Raises:
      ValueError: the file contains a link, a group that contains itself, or a dataset that is empty, does not contain
        floating-point numbers, is stored in another file, or is compressed by a factor of more than `_MAX_COMPRESSION`.
    """
    datasets: dict[str, h5py.Dataset] = {}
    groups, visited = [("", weights)], {weights.id.__hash__()}
    while groups:
        prefix, group = groups.pop()
        for name in group:
            path = f"{prefix}{name}"
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise ValueError(f"{path} is a link")
            item = group[name]
            if isinstance(item, h5py.Group):
                if item.id.__hash__() in visited or path.count("/") > 16:
                    raise ValueError(f"{path} is a group within itself")
                visited.add(item.id.__hash__())
                groups.append((f"{path}/", item))
            elif isinstance(item, h5py.Dataset):
                if item.is_virtual or item.external or item.dtype.kind != "f" or item.shape is None:
                    raise ValueError(f"{path} is not an array of floating-point numbers in this file")
                if item.nbytes > _MAX_COMPRESSION * item.id.get_storage_size():
                    raise ValueError(f"{path} would have {item.nbytes:,} bytes")
                datasets[path] = item
    return datasets


def write(directory: str, pretrained: Pretrained) -> None:
    """Writes a model in a format that `read`, bilm-tf and AllenNLP can read. The options are written last.

    The vocabulary is written only if it is a list of words.

    A warning names the heads that are left out.
    """
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
    """Returns a dict from names to the datasets of a model's weights file."""
    shapes = tensor_layout.shapes_of(model)
    parts_of: dict[str, tuple[tuple[str, Any], ...]] = {"char_embed": (("embedding/characters", ...),)}
    for i in range(len(model.embedding.filters)):
        for ours, theirs in (("kernel", "W"), ("bias", "b")):
            parts_of[f"CNN/{theirs}_cnn_{i}"] = ((f"embedding/filters/{i}/{ours}", ...),)
    for i in range(model.embedding.highway_layers):
        for gate in ("carry", "transform"):
            for ours, theirs in (("kernel", "W"), ("bias", "b")):
                parts_of[f"CNN_high_{i}/{theirs}_{gate}"] = ((f"embedding/blocks/{gate}/{ours}", i),)
    parts_of["CNN_proj/W_proj"] = (("embedding/projection/kernel", ...),)
    parts_of["CNN_proj/b_proj"] = (("embedding/projection/bias", ...),)
    for side in range(2):
        for layer in range(model.lstm.layers):
            cell = f"RNN_{side}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            both = ("lstm/blocks/input/kernel", "lstm/blocks/recurrent/kernel")
            parts_of[f"{cell}/W_0"] = tuple((path, (layer, side)) for path in both)
            parts_of[f"{cell}/B"] = (("lstm/blocks/input/bias", (layer, side)),)
            parts_of[f"{cell}/W_P_0"] = (("lstm/blocks/projection/kernel", (layer, side)),)
    if isinstance(model.head, models.Softmax):
        parts_of |= {SOFTMAX: (("head", ...),), "softmax/b": (("head_bias", ...),)}
    return {name: ElmoTensor(_shape(name, parts, shapes), parts) for name, parts in parts_of.items()}


def _shape(name: str, parts, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Returns the shape of a dataset.

    Convolution filters have an additional first axis of size 1. The four gates of an LSTM are concatenated along one
    axis.
    """
    path, index = parts[0]
    indexed = 0 if index is ... else 1 if isinstance(index, int) else len(index)
    first, *rest = shapes[path][indexed:]
    if "/LSTMCell/W_0" in name:
        return len(parts) * first, rest[0] * rest[1]
    if "/LSTMCell/B" in name:
        return (first * rest[0],)
    return (1, first, *rest) if "/W_cnn_" in name else (first, *rest)


def _gather(path: str, weights: Mapping[str, h5py.Dataset], model: models.ElmoConfig) -> dict[str, Any]:
    """Reads the parameters from an open file.

    The names and shapes of all datasets are checked first.
    """
    expected = layout(model)
    missing = [name for name in expected if name not in weights]
    misshapen = [
        f"{name} is {weights[name].shape} and not {stored.shape}"
        for name, stored in expected.items()
        if name in weights and weights[name].shape != stored.shape
    ]
    unknown = [name for name in weights if name.startswith(_PREFIXES) and name not in expected]
    for kind, names in (("lack", missing), ("do not fit its options", misshapen), ("have beyond its options", unknown)):
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            raise UserError(f"the weights in {path} {kind}: {', '.join(names[:5])}{more}")
    flat = {path: np.empty(shape, np.float32) for path, shape in tensor_layout.shapes_of(model).items()}
    for name, stored in expected.items():
        value = np.asarray(weights[name], np.float32)
        for (ours, index), part in zip(stored.parts, np.split(value.reshape(-1), len(stored.parts)), strict=True):
            flat[ours][index] = part.reshape(flat[ours][index].shape)
    return traverse_util.unflatten_dict(flat, sep="/")


def _vocabulary(folder: str) -> str | None:
    names = [name for name in storage.names(folder or ".") if "vocab" in name and name.endswith(".txt")]
    return os.path.join(folder, names[0]) if len(names) == 1 else None


def _vocab_size_and_head(
    options: Mapping[str, Any], weights: Mapping[str, h5py.Dataset], vocabulary: str | None
) -> tuple[int, Any]:
    """Returns a pair: the number of words, and the head, which is `NoHead` if the weights have no softmax.

    The softmax determines the number of words. Without a softmax, the options determine this number. If the options
    lack it too, the number of words is the number of lines in the vocabulary, or 0 without a vocabulary.
    """
    if SOFTMAX in weights:
        return len(weights[SOFTMAX]), models.Softmax()
    if "n_tokens_vocab" in options:
        return options["n_tokens_vocab"], models.NoHead()
    data = b"" if vocabulary is None else files.contents(f"words:{vocabulary}")[os.path.basename(vocabulary)]
    lines = 0 if vocabulary is None else data.removesuffix(b"\n").count(b"\n") + 1
    return lines, models.NoHead()


def to_settings(options: Mapping[str, Any], vocab_size: int, head: models.Softmax | models.NoHead) -> models.ElmoConfig:
    """Returns the settings that `options.json` describes.

    Raises:
      UserError: the inputs are words instead of characters, an option is missing, or a value is not supported.
    """
    if "char_cnn" not in options:
        raise UserError("options.json has no char_cnn: only an ELMo with character inputs can be read")
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
    for is_supported, problem in (
        (cnn.get("n_characters") in (261, 262), "char_cnn.n_characters other than 261 or 262"),
        (model.embedding.activation in ("relu", "tanh"), "char_cnn.activation other than relu or tanh"),
        (lstm.get("use_skip_connections") is True, "an LSTM without skip connections"),
        (model.lstm.layers > 0 and width > 0, "a size below 1"),
        (width < model.lstm.cell, "an LSTM whose projection_dim is not below its dim"),
        (width != sum(number for _, number in filters), "filters that are not projected"),
    ):
        if not is_supported:
            raise UserError(f"options.json: {problem} cannot be read")
    return trees.checked(model, OPTIONS)


def to_options(model: models.ElmoConfig) -> dict[str, Any]:
    """Returns the options of a model for inference.

    bilm-tf requires `n_characters` to be 262 for inference, and 261 for training.
    """
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
