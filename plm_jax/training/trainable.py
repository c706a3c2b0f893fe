"""Selection of the parameters that a run trains (`train.trainable`); frozen ones have no gradients and no moments.

One leaf holds all layers of a stack on its first axis, but patterns can select single layers: layer 0 of the leaf
`stack/blocks/attention/query/kernel` has the name `stack/blocks/0/attention/query/kernel`. A pattern that matches the
name of the leaf, with or without the layers that it covers, selects all of its layers. If layers share parameters, the
numbers count the stored layers.

If only some layers have a leaf, the leaf has fewer rows. Its name then lists the layers that it covers after `blocks`,
as numbers and ranges like Python's slices: `stack/blocks/1:12/attention_norm/scale` has 11 rows, for all of 12 layers
except the first, and `stack/blocks/0,2:12:2/...` has 6 rows, for layers 0, 2, 4, 6, 8 and 10.
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
    """Returns a pair (name, leaf) for every leaf; names look like `stack/blocks/attention/query/kernel`."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return [("/".join(key.key for key in path), leaf) for path, leaf in leaves]


def layers(name: str, leaf: Any) -> list[str]:
    """Returns a name for each layer of a stacked leaf, with the layer's number; empty if the leaf is not stacked."""
    before, _, after = split_name(name)
    return ["/".join([*before, str(number), *after]) for number in layer_numbers(name, leaf)]


def layer_numbers(name: str, leaf: Any) -> list[int]:
    """Returns the layer numbers of a leaf's rows; empty if the leaf is not stacked."""
    before, coverage, _ = split_name(name)
    if not coverage:
        return list(_first_axis(leaf)) if before else []
    return covered_layers(coverage)


def covered_layers(coverage: str) -> list[int]:
    """Returns the layer numbers in `coverage`, a part of a leaf's name such as `1:12` or `0,2:12:2`."""
    ranges = ([int(number) for number in part.split(":")] for part in coverage.split(","))
    return [number for bounds in ranges for number in (range(*bounds) if len(bounds) > 1 else bounds)]


def stack_of(name: str) -> str:
    """Returns the path of a leaf's stack, such as `stack`; empty if the leaf is not stacked."""
    before, _, _ = split_name(name)
    return "/".join(before[:-1])


def layer_of(name: str) -> str:
    """Returns `stack/blocks/3` for `stack/blocks/3/attention/query/kernel`; a name outside of a stack is unchanged.

    The name of a leaf in a stack must include the layers.
    """
    before, layer, _ = split_name(name)
    return "/".join([*before, layer]) if before else name


def split_name(name: str) -> tuple[list[str], str, list[str]]:
    """Splits a name into three: the parts up to `blocks`, the layers that the name lists, and the remaining parts.

    For a leaf that is not stacked, the first is empty. For a name that lists no layers, the second is empty.
    """
    parts = name.split("/")
    end = parts.index(STACKED) + 1 if STACKED in parts else 0
    before, after = parts[:end], parts[end:]
    if before and after and _COVERAGE.fullmatch(after[0]):
        return before, after[0], after[1:]
    return before, "", after


def whole_name(name: str) -> str:
    """Returns a leaf's name without the layers that the name lists after `blocks`, if any."""
    before, _, after = split_name(name)
    return "/".join([*before, *after])


def with_coverage(name: str, coverage: str) -> str:
    """Returns the name of a stacked leaf with `coverage` inserted after `blocks`, the inverse of `whole_name`.

    The name of any other leaf is unchanged.
    """
    before, _, after = split_name(name)
    return "/".join([*before, coverage, *after]) if before else name


def check_layers(model: ModelConfig, stages: int) -> None:
    """Rejects stacked leaves whose rows do not match the layers that they cover.

    Args:
      model: model whose leaves are checked. A leaf of its `stacks` must cover all stored layers, or its name must list
        the layers that it covers.
      stages: `mesh.stage`; if it is above 1, each leaf must cover all layers, because all stages have the same
        parameters.

    Raises:
      UserError: the rows of a leaf do not match its layers, or a leaf covers only some layers in a mesh with stages.
    """
    stored = {path: stack.stored_blocks for path, stack in zip(model.stack_paths, model.stacks, strict=True)}
    for name, leaf in named(registry.shapes(model)):
        before, coverage, _ = split_name(name)
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
            raise UserError(
                f"{name} has {rows} rows, so '{coverage}' must list {rows}{of_stack} layers in increasing order"
            )
        if stages > 1 and before and not is_whole:
            raise UserError(
                f"{name} covers only some layers, but with mesh.stage={stages} all stages must have the same "
                "parameters: set config.mesh.stage to 1"
            )


def unmatched(patterns: Sequence[str], names: Sequence[str]) -> str | None:
    """Returns part of a message about the first pattern that matches no name; None if each pattern matches a name."""
    for pattern in patterns:
        if not any(compiled(pattern).fullmatch(name) for name in names):
            return f"'{pattern}', which matches no parameter name: names look like {names[0]} and {names[-1]}"
    return None


@functools.cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Compiles a regular expression from a config.

    Raises:
      UserError: `pattern` is not a valid regular expression.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UserError(f"'{pattern}' is not a valid regular expression ({error}): fix the pattern") from error


@dataclass(frozen=True)
class Trainable:
    """Selection of the leaves, and of layers of leaves, whose complete names match a pattern.

    Attributes:
      patterns: regular expressions.
    """

    patterns: tuple[str, ...] = _EVERYTHING

    def of(self, params: Any) -> Any:
        """Returns the selected part of a tree: only selected leaves, and only selected layers of stacked leaves."""
        if self.is_all:
            return params
        chosen = self._chosen(params)
        flat = traverse_util.flatten_dict(params)
        # A boxed leaf (an array with the names of its axes) is a tree too.
        selected = {path: jax.tree.map(functools.partial(_take, runs), flat[path]) for path, runs in chosen.items()}
        return traverse_util.unflatten_dict(selected)

    def put(self, params: Any, part: Any) -> Any:
        """Returns `params` with the selected part replaced by `part`, a tree like the result of `of`."""
        if self.is_all:
            return part
        chosen, new = self._chosen(params), traverse_util.flatten_dict(part)
        flat = traverse_util.flatten_dict(params)
        joined = {path: _put(chosen[path], leaf, new[path]) if path in chosen else leaf for path, leaf in flat.items()}
        return traverse_util.unflatten_dict(joined)

    @property
    def is_all(self) -> bool:
        """Whether the patterns are the default, which selects all parameters."""
        return self.patterns == _EVERYTHING

    def check(self, shapes: Any, stages: int, field: str = "config.train.trainable") -> None:
        """Checks that each pattern matches a parameter, and that pipeline stages can split the selection.

        Args:
          shapes: the parameters, or their shapes.
          stages: number of pipeline stages.
          field: name of the config field with the patterns, for messages.

        Raises:
          UserError: a pattern matches nothing, or selects only some layers in a mesh with stages.
        """
        names = [each for name, leaf in named(shapes) for each in (name, *layers(name, leaf), whole_name(name))]
        if pattern := unmatched(self.patterns, names):
            raise UserError(f"{field} has {pattern}")
        if stages > 1 and self.cuts(shapes):
            raise UserError(
                f"{field} leaves out layers of {self.cuts(shapes)[0]}, which mesh.stage={stages} cuts: "
                "set config.mesh.stage to 1, or train all of its layers or none"
            )

    def notes(self, shapes: Any, scans: bool) -> list[str]:
        """Returns lines that report how many parameters are trained; empty for the default patterns.

        Args:
          scans: whether the layers are scanned instead of unrolled.
        """
        if self.is_all:
            return []
        numbers = [
            sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (jax.eval_shape(self.of, shapes), shapes)
        ]
        lines = ["{:,} of {:,} parameters are trained".format(*numbers)]
        if scans and self.cuts(shapes):
            lines.append(
                "gradients of frozen layers are computed as well, because the layers are scanned; set "
                "config.model.scan_layers=False to compute only those of the trained layers"
            )
        return lines

    def names(self, shapes: Any) -> list[str]:
        """Returns the names of the selected tensors, in JAX's order of leaves.

        Each selected layer of a stacked leaf has a name of its own.
        """
        chosen, names = self._chosen(shapes), []
        for name, leaf in named(shapes):
            runs, layer_names = chosen.get(tuple(name.split("/")), []), layers(name, leaf)
            for begin, end in runs:
                names += layer_names[begin:end] if layer_names else [name]
        return names

    def cuts(self, shapes: Any) -> list[str]:
        """Returns the names of the stacked leaves of which some layers are selected and others are not."""
        flat = traverse_util.flatten_dict(shapes)
        return ["/".join(path) for path, runs in self._chosen(shapes).items() if not _is_whole(runs, flat[path])]

    def _chosen(self, params: Any) -> dict[Path, list[tuple[int, int]]]:
        """Returns a dict from the path of each selected leaf to the selected ranges [begin, end) of its first axis."""
        flat = traverse_util.flatten_dict(params)
        runs_of_leaves = {path: self._runs("/".join(path), leaf) for path, leaf in flat.items()}
        return {path: runs for path, runs in runs_of_leaves.items() if runs}

    def _runs(self, name: str, leaf: Any) -> list[tuple[int, int]]:
        if self._has(name) or self._has(whole_name(name)):
            return [(0, len(_first_axis(leaf)))]
        has = [False, *(self._has(layer) for layer in layers(name, leaf)), False]
        edges = [i for i in range(len(has) - 1) if has[i] != has[i + 1]]
        return list(zip(edges[::2], edges[1::2], strict=True))

    def _has(self, name: str) -> bool:
        return any(compiled(pattern).fullmatch(name) for pattern in self.patterns)


ALL = Trainable()


def _first_axis(leaf: Any) -> range:
    """Returns the range of indices along the first axis of an array, which may be boxed."""
    (array,) = jax.tree.leaves(leaf)
    return range(array.shape[0] if array.ndim else 1)


def _is_whole(runs: Sequence[tuple[int, int]], leaf: Any) -> bool:
    return runs == [(0, len(_first_axis(leaf)))]


# Slices and a concatenation instead of a gather and a scatter: if layers are unrolled, XLA then removes the gradients
# of layers that are not selected.
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
