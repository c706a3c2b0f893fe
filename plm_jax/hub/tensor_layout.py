"""Mapping between a model's parameters and Hugging Face's tensors, from a family's table of tensors."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flax import traverse_util

from plm_jax.hub import files
from plm_jax.hub.family import Tensor
from plm_jax.models import registry
from plm_jax.models.protocol import ModelConfig
from plm_jax.training import trainable


@dataclass(frozen=True)
class TensorPiece:
    """Parameter, or a layer of one, that is a part of a Hugging Face tensor.

    Attributes:
      path: path of the parameter.
      index: index of the part, so that it is `parameters[path][index]`.
      shape: shape of the part.
      transposed: whether the tensor is stored [out, in].
      heads: number of heads. If it is above 1, the parts of the tensor alternate head by head.
    """

    path: str
    index: Any
    shape: tuple[int, ...]
    transposed: bool
    heads: int = 1


class Parameter(files.LazyArray):
    """Parameter in open files. It consists of one piece of a tensor, or one per layer."""

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape
        self._pieces: dict[Any, tuple[files.StoredTensor, list[TensorPiece], int]] = {}

    def add(self, tensor: files.StoredTensor, pieces: list[TensorPiece], number: int) -> None:
        """Adds the piece `pieces[number]` of a tensor."""
        self._pieces[pieces[number].index] = tensor, pieces, number

    @property
    def dtype(self) -> np.dtype:
        """NumPy type of the elements: the common type of the layers."""
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
        """Iterates over the pieces in order."""
        return (self[index] for index in self._pieces)


def layout(
    tensors: Sequence[Tensor], shapes: Mapping[str, tuple[int, ...]], inner: int = 1, heads: int = 1
) -> dict[str, list[TensorPiece]]:
    """Returns the pieces of each tensor of a model, by the tensor's name.

    Args:
      tensors: table of a family.
      shapes: shapes of the model's parameters by path.
      inner: number of blocks per layer.
      heads: number of attention heads.
    """
    pieces_of = {}
    # The layers of a leaf that only some layers have are a part of its path.
    names = {path: trainable.split_name(path) for path in shapes}
    paths = {"/".join([*before, *after]): path for path, (before, _, after) in names.items()}
    for tensor in tensors:
        if tensor.parameters[0] not in paths or not tensor.applies(paths):
            continue
        if "{" not in tensor.name:
            index, leading = (None, (1,)) if tensor.as_row else (..., ())
            pieces = [TensorPiece(path, index, leading + shapes[path], tensor.transposed) for path in tensor.parameters]
            pieces_of[tensor.name] = pieces
            continue
        alternating = heads if tensor.by_head else 1
        stored = [paths[path] for path in tensor.parameters]
        _, coverage, _ = names[stored[0]]
        layers = trainable.covered_layers(coverage) if coverage else range(shapes[stored[0]][0])
        for row, layer in enumerate(layers):
            pieces = [TensorPiece(path, row, shapes[path][1:], tensor.transposed, alternating) for path in stored]
            pieces_of[tensor.name.format(layer=layer, group=layer // inner, inner=layer % inner)] = pieces
    return pieces_of


@functools.lru_cache(maxsize=8)
def shapes_of(model: ModelConfig) -> Mapping[str, tuple[int, ...]]:
    """Returns the shapes of a model's parameters by path."""
    flat: dict[str, Any] = traverse_util.flatten_dict(registry.shapes(model), sep="/")
    return {path: leaf.shape for path, leaf in flat.items()}


def stored_shape(pieces: list[TensorPiece]) -> tuple[int, ...]:
    """Returns the shape of the tensor that consists of these pieces."""
    shape = (*pieces[0].shape[:-1], sum(piece.shape[-1] for piece in pieces))
    return shape[::-1] if pieces[0].transposed else shape


def content(flat: Mapping[str, Any], pieces: list[TensorPiece]) -> files.Content:
    """Returns the content of the tensor that consists of these pieces, given the parameters by path."""
    dtype = files.common_type(flat[piece.path] for piece in pieces)
    return files.Content(stored_shape(pieces), dtype, lambda: [_join(flat, pieces)])


def _divide(tensor: np.ndarray, pieces: list[TensorPiece]) -> list[np.ndarray]:
    """Splits a stored tensor into its pieces."""
    value = tensor.T if pieces[0].transposed else tensor
    if pieces[0].heads > 1:
        value = _swapped(value, pieces[0].heads, len(pieces))
    return np.split(value, np.cumsum([piece.shape[-1] for piece in pieces])[:-1], axis=-1)


def _join(flat: Mapping[str, Any], pieces: list[TensorPiece]) -> np.ndarray:
    """Joins pieces into the stored tensor; the inverse of `_divide`."""
    parts = [flat[piece.path][piece.index] for piece in pieces]
    joined = np.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]
    if pieces[0].heads > 1:
        joined = _swapped(joined, len(pieces), pieces[0].heads)
    return joined.T if pieces[0].transposed else joined


def _swapped(value: np.ndarray, outer: int, inner: int) -> np.ndarray:
    """Reorders `outer` groups of `inner` parts along the last axis as `inner` groups of `outer` parts."""
    return value.reshape(*value.shape[:-1], outer, inner, -1).swapaxes(-3, -2).reshape(value.shape)
