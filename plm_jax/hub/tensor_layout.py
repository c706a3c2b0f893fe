"""Mapping between a model's parameters and Hugging Face's tensors, derived from a family's table of tensors."""

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
from plm_jax.models.transformer import TransformerConfig
from plm_jax.training import trainable


@dataclass(frozen=True)
class TensorPiece:
    """A part of a Hugging Face tensor: a parameter, or one layer of a stacked parameter.

    Attributes:
      path: path of the parameter.
      index: index into the parameter. The part is `parameters[path][index]`.
      shape: shape of the part.
    """

    path: str
    index: Any
    shape: tuple[int, ...]


@dataclass(frozen=True)
class TensorLayout:
    """Layout of a Hugging Face tensor in a model with known sizes.

    Attributes:
      pieces: pieces of the tensor, in the order in which they are concatenated.
      shape: shape of the tensor.
      transposed: whether the tensor is stored [out, in].
      groups: number of equal parts into which each piece is cut. The tensor contains the first part of each piece, then
        the second part of each piece, and so on.
      plus: constant that is added to the parameters.
    """

    pieces: tuple[TensorPiece, ...]
    shape: tuple[int, ...]
    transposed: bool = False
    groups: int = 1
    plus: float = 0.0

    @classmethod
    def of(cls, tensor: Tensor, pieces: Sequence[TensorPiece], model: TransformerConfig) -> "TensorLayout":
        """Returns the layout of a tensor in a model.

        Args:
          tensor: entry of the family's table.
          pieces: pieces of the tensor.
          model: settings of the model.
        """
        groups = tensor.groups(model) if tensor.groups else 1
        shape = _joined_shape(pieces)[:: -1 if tensor.transposed else 1]
        if tensor.shape:  # NumPy infers a size of -1.
            shape = np.broadcast_to(np.int8(0), shape).reshape(tensor.shape(model)).shape
        return cls(tuple(pieces), shape, tensor.transposed, groups, tensor.plus)

    def split(self, stored: np.ndarray) -> list[np.ndarray]:
        """Splits the stored tensor into its pieces."""
        if self.plus:
            stored = stored.astype(self.parameter_type(stored.dtype)) - self.plus
        rows = _joined_shape(self.pieces)
        value = stored.reshape(rows[::-1]).T if self.transposed else stored.reshape(rows)
        grouped = value.reshape(*rows[:-1], self.groups, -1)
        widths = [piece.shape[-1] // self.groups for piece in self.pieces]
        parts = np.split(grouped, np.cumsum(widths)[:-1], axis=-1)
        return [part.reshape(piece.shape) for part, piece in zip(parts, self.pieces, strict=True)]

    def join(self, flat: Mapping[str, Any]) -> np.ndarray:
        """Joins the pieces into the stored tensor; the inverse of `split`.

        Args:
          flat: parameters by path.
        """
        parts = [flat[piece.path][piece.index] for piece in self.pieces]
        if len(parts) > 1:
            grouped = [part.reshape(*part.shape[:-1], self.groups, -1) for part in parts]
            joined = np.concatenate(grouped, axis=-1).reshape(_joined_shape(self.pieces))
        else:
            joined = parts[0]
        stored = (joined.T if self.transposed else joined).reshape(self.shape)
        return stored + self.plus if self.plus else stored

    def content(self, flat: Mapping[str, Any]) -> files.Content:
        """Returns the content of the stored tensor.

        Args:
          flat: parameters by path.
        """
        dtype = files.common_type(flat[piece.path] for piece in self.pieces)
        return files.Content(self.shape, dtype, lambda: [self.join(flat)])

    def parameter_type(self, stored: np.dtype) -> np.dtype:
        """Returns the type of the parameters for the type of the stored tensor; with `plus`, at least float32."""
        return np.promote_types(stored, np.float32) if self.plus else stored


def _joined_shape(pieces: Sequence[TensorPiece]) -> tuple[int, ...]:
    """Returns the shape of the pieces after they are concatenated along the last axis."""
    return (*pieces[0].shape[:-1], sum(piece.shape[-1] for piece in pieces))


class Parameter(files.LazyArray):
    """Parameter in open files. It consists of one piece of a tensor, or of one piece per layer.

    An integer index reads one layer if there is one piece per layer. Otherwise, it reads the whole parameter.
    """

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape
        self._pieces: dict[Any, tuple[files.StoredTensor, TensorLayout, int]] = {}

    def add(self, tensor: files.StoredTensor, layout: TensorLayout, number: int) -> None:
        """Adds the piece `layout.pieces[number]` of a tensor to the parameter."""
        self._pieces[layout.pieces[number].index] = tensor, layout, number

    @property
    def dtype(self) -> np.dtype:
        """NumPy type of the elements, which is the common type of all pieces."""
        types = (layout.parameter_type(tensor.dtype) for tensor, layout, _ in self._pieces.values())
        return functools.reduce(np.promote_types, types)

    def __getitem__(self, index: Any) -> np.ndarray:
        if index in self._pieces:
            tensor, layout, number = self._pieces[index]
            return layout.split(tensor[...])[number]
        whole = np.empty(self.shape, self.dtype)
        for layer in self._pieces:
            whole[layer] = self[layer]
        return whole

    def parts(self) -> Iterator[np.ndarray]:
        """Iterates over the pieces in order."""
        return (self[index] for index in self._pieces)


def layout(tensors: Sequence[Tensor], model: TransformerConfig) -> dict[str, TensorLayout]:
    """Returns a dict from the names of a model's tensors to their layouts.

    Tensors whose parameters the model lacks are left out.

    Args:
      tensors: the family's table of tensors.
      model: settings of the model.
    """
    layouts, shapes, inner = {}, shapes_of(model), model.stack.inner
    # If only some layers have a parameter, the path of the parameter contains these layers.
    names = {path: trainable.split_name(path) for path in shapes}
    paths = {"/".join([*before, *after]): path for path, (before, _, after) in names.items()}
    for tensor in tensors:
        if not paths.keys() >= set(tensor.parameters) or not tensor.applies(paths):
            continue
        if "{" not in tensor.name:
            pieces = [TensorPiece(path, ..., shapes[path]) for path in tensor.parameters]
            layouts[tensor.name] = TensorLayout.of(tensor, pieces, model)
            continue
        stored = [paths[path] for path in tensor.parameters]
        _, coverage, _ = names[stored[0]]
        layers = trainable.covered_layers(coverage) if coverage else range(shapes[stored[0]][0])
        for row, layer in enumerate(layers):
            pieces = [TensorPiece(path, row, shapes[path][1:]) for path in stored]
            name = tensor.name.format(layer=layer, group=layer // inner, inner=layer % inner)
            layouts[name] = TensorLayout.of(tensor, pieces, model)
    return layouts


@functools.lru_cache(maxsize=8)
def shapes_of(model: ModelConfig) -> Mapping[str, tuple[int, ...]]:
    """Returns a mapping from the paths of a model's parameters to their shapes."""
    flat: dict[str, Any] = traverse_util.flatten_dict(registry.shapes(model), sep="/")
    return {path: leaf.shape for path, leaf in flat.items()}
