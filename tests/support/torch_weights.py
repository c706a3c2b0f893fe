"""Comparison of trained parameters with the tensors of a model of PyTorch."""

from collections.abc import Iterator, Mapping

import numpy as np


def pieces(layout: Mapping, tensors: Mapping[str, np.ndarray], *trees: Mapping) -> Iterator[tuple]:
    """Yields the path and index of each parameter, its value in `tensors`, and its value in each tree of leaves."""
    for name, stored in layout.items():
        tensor = tensors[name].T if stored.transposed else tensors[name]
        values = np.split(tensor, np.cumsum([part.shape[-1] for part in stored.pieces])[:-1], axis=-1)
        for part, value in zip(stored.pieces, values, strict=True):
            yield part.path, part.index, value, *(np.asarray(tree[part.path][part.index]) for tree in trees)
