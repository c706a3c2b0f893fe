"""`train.trainable`: the part of the parameters that a run trains; the rest has no gradient, no moments, and stays.

The layers of a stack lie in one leaf, on its first axis, and are told apart all the same: of a leaf
`stack/blocks/attention/query/kernel` layer 0 is called `stack/blocks/0/attention/query/kernel`. A pattern that matches
the leaf's own name means all of its layers. Where layers share parameters, the numbers are those of the stored ones.

A leaf that some layers lack has fewer rows. The name after `blocks` lists the layers that it covers, by numbers and
ranges as in Python's slices: `stack/blocks/1:12/attention_norm/scale` has 11 rows, for all of 12 layers except the
first, and `stack/blocks/0,2:12:2/...` has 6 rows, for layers 0, 2, 4, 6, 8 and 10.
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util

from plm_jax.common.errors import UserError
from plm_jax.models import registry
from plm_jax.models.protocol import ModelConfig
from plm_jax.models.stack import STACKED

Path = tuple[str, ...]
_COVERAGE = re.compile(r"\d+(:\d+(:[1-9]\d*)?)?(,\d+(:\d+(:[1-9]\d*)?)?)*")
_EVERYTHING = (".*",)


def named(params: Any) -> list[tuple[str, Any]]:
    """(name such as `stack/blocks/attention/query/kernel`, leaf) for every leaf."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return [("/".join(key.key for key in path), leaf) for path, leaf in leaves]


def layers(name: str, leaf: Any) -> list[str]:
    """The names of the layers that a leaf holds; empty where it holds none."""
    before, _, after = _split(name)
    return ["/".join([*before, str(number), *after]) for number in layer_numbers(name, leaf)]


def layer_numbers(name: str, leaf: Any) -> list[int]:
    """Returns the layer numbers of a leaf's rows; empty if the leaf is not stacked."""
    before, coverage, _ = _split(name)
    if not coverage:
        return list(_first_axis(leaf)) if before else []
    ranges = ([int(number) for number in part.split(":")] for part in coverage.split(","))
    return [number for bounds in ranges for number in (range(*bounds) if len(bounds) > 1 else bounds)]


def stack_of(name: str) -> str:
    """Returns the path of a leaf's stack, such as `stack`; empty if the leaf is not stacked."""
    before, _, _ = _split(name)
    return "/".join(before[:-1])


def layer_of(name: str) -> str:
    """`stack/blocks/3` of `stack/blocks/3/attention/query/kernel`; a name without layers as it is."""
    before, layer, _ = _split(name)
    return "/".join([*before, layer]) if before else name


def _split(name: str) -> tuple[list[str], str, list[str]]:
    """Splits a name into the parts up to `blocks` (empty if it is not stacked), the layers that it covers, the rest."""
    parts = name.split("/")
    end = parts.index(STACKED) + 1 if STACKED in parts else 0
    before, after = parts[:end], parts[end:]
    if before and after and _COVERAGE.fullmatch(after[0]):
        return before, after[0], after[1:]
    return before, "", after


def check_layers(model: ModelConfig, stages: int) -> None:
    """Rejects stacked leaves whose rows do not match the layers that they cover.

    Args:
      model: model whose leaves are checked. A leaf of its `stacks` must cover all stored layers, or name those that it
        covers.
      stages: `mesh.stage`; above 1, each leaf must cover all layers, because stages are alike.

    Raises:
      UserError: rows do not match, or a leaf covers only some layers in a mesh with stages.
    """
    stored = {path: stack.stored_blocks for path, stack in zip(model.stack_paths, model.stacks, strict=True)}
    for name, leaf in named(registry.shapes(model)):
        before, coverage, _ = _split(name)
        numbers, rows, count = layer_numbers(name, leaf), len(_first_axis(leaf)), stored.get(stack_of(name))
        is_whole = count is None or numbers == list(range(count))
        if before and not (is_whole or coverage):
            raise UserError(
                f"{name} has {rows} rows for {count} layers: name the layers that it covers after '{STACKED}', as in "
                f"{STACKED}/1:{count}/"
            )
        outside = count is not None and [number for number in numbers if number >= count]
        if coverage and (len(numbers) != rows or numbers != sorted(set(numbers)) or outside):
            of_stack = "" if count is None else f" of the {count}"
            raise UserError(f"{name} has {rows} rows: '{coverage}' must name as many layers{of_stack}, in order")
        if stages > 1 and before and not is_whole:
            raise UserError(
                f"{name} covers only some layers, and mesh.stage={stages} cuts layers into stages that are alike: set "
                "config.mesh.stage to 1"
            )


def unmatched(patterns: Sequence[str], names: Sequence[str]) -> str | None:
    """What to say of the first pattern that matches none of the names; None: each matches some."""
    for pattern in patterns:
        if not any(compiled(pattern).fullmatch(name) for name in names):
            return f"'{pattern}', which matches nothing: names are such as {names[0]} and {names[-1]}"
    return None


@functools.cache
def compiled(pattern: str) -> re.Pattern[str]:
    """A regular expression of the user's.

    Raises:
      UserError: it is none.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UserError(f"'{pattern}' is no regular expression ({error})") from error


@dataclass(frozen=True)
class Trainable:
    """The leaves, and the layers of leaves, whose names a pattern matches whole.

    Attributes:
      patterns: regular expressions.
    """

    patterns: tuple[str, ...] = _EVERYTHING

    def of(self, params: Any) -> Any:
        """The part of a tree: without the other leaves, and of a stacked leaf only the layers that are in it."""
        if self.is_all:
            return params
        chosen = self._chosen(params)
        flat = traverse_util.flatten_dict(params)
        # A boxed leaf, an array with the names of its axes, is a tree, too.
        found = {path: jax.tree.map(functools.partial(_take, runs), flat[path]) for path, runs in chosen.items()}
        return traverse_util.unflatten_dict(found)

    def put(self, params: Any, part: Any) -> Any:
        """The tree with another part, which is as `of` gives it; the rest is as it was, to the bit."""
        if self.is_all:
            return part
        chosen, new = self._chosen(params), traverse_util.flatten_dict(part)
        flat = traverse_util.flatten_dict(params)
        joined = {path: _put(chosen[path], leaf, new[path]) if path in chosen else leaf for path, leaf in flat.items()}
        return traverse_util.unflatten_dict(joined)

    @property
    def is_all(self) -> bool:
        """Whether nothing is left out."""
        return self.patterns == _EVERYTHING

    def check(self, shapes: Any, stages: int) -> None:
        """Refuses patterns that match nothing, and layers in part that lie in stages.

        Raises:
          UserError: as it says.
        """
        names = [each for name, leaf in named(shapes) for each in (name, *layers(name, leaf))]
        if pattern := unmatched(self.patterns, names):
            raise UserError(f"config.train.trainable has {pattern}")
        if stages > 1 and self.cuts(shapes):
            raise UserError(
                f"config.train.trainable leaves out layers of {self.cuts(shapes)[0]}, which mesh.stage={stages} cuts: "
                "set config.mesh.stage to 1, or train all of its layers or none"
            )

    def notes(self, shapes: Any, scans: bool) -> list[str]:
        """Lines that say how much is trained, where that is not all; `scans`: layers are computed in a loop."""
        if self.is_all:
            return []
        numbers = [
            sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (jax.eval_shape(self.of, shapes), shapes)
        ]
        found = ["{:,} of {:,} parameters are trained".format(*numbers)]
        if scans and self.cuts(shapes):
            found.append(
                "the gradients of all layers are computed, since a loop goes through them: "
                "config.model.scan_layers=False computes those of the trained ones alone"
            )
        return found

    def names(self, shapes: Any) -> list[str]:
        """The names of the leaves of the part, of stacked ones those of the layers, in the order of JAX's leaves."""
        chosen, found = self._chosen(shapes), []
        for name, leaf in named(shapes):
            runs, of_layers = chosen.get(tuple(name.split("/")), []), layers(name, leaf)
            found += [each for begin, end in runs for each in of_layers[begin:end]] if of_layers else [name] * len(runs)
        return found

    def cuts(self, shapes: Any) -> list[str]:
        """The names of the stacked leaves of which some layers are in the part, and some are not."""
        flat = traverse_util.flatten_dict(shapes)
        return ["/".join(path) for path, runs in self._chosen(shapes).items() if not _is_whole(runs, flat[path])]

    def _chosen(self, params: Any) -> dict[Path, list[tuple[int, int]]]:
        """By the paths of the leaves that are in the part the runs [begin, end) of their first axes that are."""
        flat = traverse_util.flatten_dict(params)
        found = {path: self._runs("/".join(path), leaf) for path, leaf in flat.items()}
        return {path: runs for path, runs in found.items() if runs}

    def _runs(self, name: str, leaf: Any) -> list[tuple[int, int]]:
        if self._has(name):
            return [(0, len(_first_axis(leaf)))]
        has = [False, *(self._has(layer) for layer in layers(name, leaf)), False]
        edges = [i for i in range(len(has) - 1) if has[i] != has[i + 1]]
        return list(zip(edges[::2], edges[1::2], strict=True))

    def _has(self, name: str) -> bool:
        return any(compiled(pattern).fullmatch(name) for pattern in self.patterns)


ALL = Trainable()


def _first_axis(leaf: Any) -> range:
    """The numbers along the first axis of an array, or of that in a box."""
    (array,) = jax.tree.leaves(leaf)
    return range(array.shape[0] if array.ndim else 1)


def _is_whole(runs: Sequence[tuple[int, int]], leaf: Any) -> bool:
    return runs == [(0, len(_first_axis(leaf)))]


# Slices and a concatenation, not a gather and a scatter: of the gradient of one after the other XLA leaves nothing of
# the layers that are not in it, where the layers are unrolled.
def _take(runs: Sequence[tuple[int, int]], leaf: Any) -> Any:
    if _is_whole(runs, leaf):
        return leaf
    parts = [leaf[begin:end] for begin, end in runs]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


def _put(runs: Sequence[tuple[int, int]], leaf: Any, part: Any) -> Any:
    if _is_whole(runs, leaf):
        return part
    parts, at, taken = [], 0, 0
    for begin, end in [*runs, (leaf.shape[0], leaf.shape[0])]:
        parts += [leaf[at:begin], part[taken : taken + end - begin]]
        at, taken = end, taken + end - begin
    return jnp.concatenate([piece for piece in parts if len(piece)])
