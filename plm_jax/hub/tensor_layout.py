"""How a model's parameters lie in Hugging Face's tensors, by a family's table of them."""

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


@dataclass(frozen=True)
class TensorPiece:
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
        self._pieces: dict[Any, tuple[files.StoredTensor, list[TensorPiece], int]] = {}

    def add(self, tensor: files.StoredTensor, pieces: list[TensorPiece], number: int) -> None:
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


def layout(
    tensors: Sequence[Tensor], shapes: Mapping[str, tuple[int, ...]], inner: int = 1, heads: int = 1
) -> dict[str, list[TensorPiece]]:
    """The pieces that make up each tensor of a model with these parameters' shapes, `inner` blocks a layer and so many
    heads.
    """
    found = {}
    for tensor in tensors:
        if tensor.parameters[0] not in shapes or not tensor.applies(shapes):
            continue
        if "{" not in tensor.name:
            index, leading = (None, (1,)) if tensor.as_row else (..., ())
            pieces = [TensorPiece(path, index, leading + shapes[path], tensor.transposed) for path in tensor.parameters]
            found[tensor.name] = pieces
            continue
        alternating = heads if tensor.by_head else 1
        for layer in range(shapes[tensor.parameters[0]][0]):
            pieces = [
                TensorPiece(path, layer, shapes[path][1:], tensor.transposed, alternating) for path in tensor.parameters
            ]
            found[tensor.name.format(layer=layer, group=layer // inner, inner=layer % inner)] = pieces
    return found


@functools.lru_cache(maxsize=8)
def shapes_of(model: ModelConfig) -> Mapping[str, tuple[int, ...]]:
    """The shapes of a model's parameters, by their paths."""
    flat: dict[str, Any] = traverse_util.flatten_dict(registry.shapes(model), sep="/")
    return {path: leaf.shape for path, leaf in flat.items()}


def stored_shape(pieces: list[TensorPiece]) -> tuple[int, ...]:
    """The shape of the tensor that the pieces make up."""
    shape = (*pieces[0].shape[:-1], sum(piece.shape[-1] for piece in pieces))
    return shape[::-1] if pieces[0].transposed else shape


def content(flat: Mapping[str, Any], pieces: list[TensorPiece]) -> files.Content:
    """A tensor to be written, which the pieces make up, of parameters by their paths."""
    dtype = files.common_type(flat[piece.path] for piece in pieces)
    return files.Content(stored_shape(pieces), dtype, lambda: [_join(flat, pieces)])


def _divide(tensor: np.ndarray, pieces: list[TensorPiece]) -> list[np.ndarray]:
    """What each piece holds of a stored tensor."""
    value = tensor.T if pieces[0].transposed else tensor
    if pieces[0].heads > 1:
        value = _swapped(value, pieces[0].heads, len(pieces))
    return np.split(value, np.cumsum([piece.shape[-1] for piece in pieces])[:-1], axis=-1)


def _join(flat: Mapping[str, Any], pieces: list[TensorPiece]) -> np.ndarray:
    """The stored tensor that the pieces make up: the inverse of `_divide`."""
    parts = [flat[piece.path][piece.index] for piece in pieces]
    joined = np.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]
    if pieces[0].heads > 1:
        joined = _swapped(joined, len(pieces), pieces[0].heads)
    return joined.T if pieces[0].transposed else joined


def _swapped(value: np.ndarray, outer: int, inner: int) -> np.ndarray:
    """`outer` groups of `inner` parts along the last axis → `inner` groups of `outer` parts."""
    return value.reshape(*value.shape[:-1], outer, inner, -1).swapaxes(-3, -2).reshape(value.shape)
