"""Initial weights from another checkpoint (`train.init_from`): all of its weights, or weights selected by name."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.data import layouts
from plm_jax.hub.pretrained import Pretrained, float32
from plm_jax.models import ElectraConfig
from plm_jax.models.protocol import ModelConfig
from plm_jax.runs import checkpoint_formats
from plm_jax.training.trainable import (
    compiled,
    layer_numbers,
    named,
    split_name,
    stack_of,
    unmatched,
    whole_name,
    with_coverage,
)


def load_weights(params, train: config.TrainConfig, model: ModelConfig):
    """Returns `params` with leaves replaced by weights of the checkpoint `train.init_from`, and lines to report.

    `train.init_names` selects the weights, and may rename them; each weight replaces the leaf with the same name. If
    `train.init_layers` is set, it selects the layers of the checkpoint. The last `train.reinitialize_top` layers of
    each stack of the model keep the values in `params`.

    Returns:
      A pair: the parameters, with unchanged shardings; and lines that report the loaded parameters, the parameters that
      were not loaded, and the selected weights that the model lacks.

    Raises:
      UserError: the checkpoint cannot be read, a pattern matches nothing, two weights have the same name, a leaf has
        another shape, or there are too few layers.
    """
    tops = _tops(model, train.reinitialize_top)
    with checkpoint_formats.opened(train.init_from) as pretrained:
        stored = _stored(pretrained, train, model)
        selected = _selected(named(stored), train, {name for name, _ in named(params)})
        new, leaves, used = [], [], set()
        depths = _depths(params)
        for name, leaf in named(params):
            sources = _sources(name, selected, train)
            if not sources:
                new.append(name)
                leaves.append(leaf)
                continue
            used |= sources.keys()
            taken = _with_layers(name, leaf, sources, train, depths)
            if train.new_tokens and taken.shape == (leaf.shape[0] - train.new_tokens, *leaf.shape[1:]):
                taken = _with_new_rows(taken, train, name)
            if taken.shape != leaf.shape:
                raise UserError(
                    f"{name} is {taken.shape} in {train.init_from} and {leaf.shape} here: exclude it with "
                    "config.train.init_names, or change the model"
                )
            taken = jax.device_put(taken, leaf.sharding)
            top = tops.get(stack_of(name))
            drawn = [] if top is None else [number for number in layer_numbers(name, leaf) if number >= top]
            leaves.append(_with_top(taken, leaf, len(drawn)))
    taken = len(leaves) - len(new)
    if not taken and train.init_names:
        raise UserError(
            f"no weight of this model in {train.init_from} matches config.train.init_names {train.init_names}: change "
            "the expressions"
        )
    notes = [f"loaded {taken} of {len(leaves)} parameters from {train.init_from}"]
    left_out = [name for name in selected if name not in used]
    notes += [f"{what}: {', '.join(names)}" for what, names in (("new", new), ("left out", left_out)) if names]
    notes += [f"initialized randomly: the top {train.reinitialize_top} layers of {stack}" for stack in tops]
    return jax.tree.unflatten(jax.tree.structure(params), leaves), notes


def _stored(pretrained: Pretrained, train: config.TrainConfig, model: ModelConfig) -> Mapping[str, Any]:
    """Returns the weights of a checkpoint.

    If the checkpoint is an ELECTRA and the model is not, the shared embedding tables are replaced by those of the
    discriminator, unless `train.init_names` has a pattern that begins with `generator/`.

    Raises:
      UserError: both models are ELECTRAs with different values of `sharing`.
    """
    source = pretrained.model
    if not isinstance(source, ElectraConfig):
        return pretrained.params
    if isinstance(model, ElectraConfig):
        if model.sharing != source.sharing:
            raise UserError(
                f"config.model.sharing is '{model.sharing}', but '{source.sharing}' in {train.init_from}: set it to "
                f"'{source.sharing}'"
            )
        return pretrained.params
    patterns = [entry if isinstance(entry, str) else entry[0] for entry in train.init_names]
    reads_generator = any(pattern.startswith("generator/") for pattern in patterns)
    return pretrained.params if reads_generator else source.with_discriminator_tables(pretrained.params)


def _selected(
    stored: Sequence[tuple[str, Any]], train: config.TrainConfig, names: set[str]
) -> dict[str, tuple[str, Any]]:
    """Returns the weights that `train.init_names` selects: a dict from new name to (name in the checkpoint, leaf).

    Args:
      stored: (name, leaf) of every weight of the checkpoint.
      names: names of the model's parameters.
    """
    where = f"{train.init_from}: config.train.init_names"
    patterns = [entry if isinstance(entry, str) else entry[0] for entry in train.init_names]
    if pattern := unmatched(patterns, [each for name, _ in stored for each in dict.fromkeys((name, whole_name(name)))]):
        raise UserError(f"{where} has {pattern}")
    selected: dict[str, tuple[str, Any]] = {}
    for pattern, entry in zip(patterns, train.init_names, strict=True):
        new_names = []
        for source_name, leaf in stored:
            match = compiled(pattern).fullmatch(source_name)
            if not (match := match or compiled(pattern).fullmatch(whole_name(source_name))):
                continue
            name = source_name if isinstance(entry, str) else _renamed(match, entry[1])
            if match.string != source_name:
                name = with_coverage(name, split_name(source_name)[1])
            new_names.append(name)
            other, _ = selected.setdefault(name, (source_name, leaf))
            if other != source_name:
                raise UserError(f"{where} maps {other} and {source_name} to {name}: map them to different names")
        comparable = whole_name if train.init_layers else str
        if not isinstance(entry, str) and {*map(comparable, names)}.isdisjoint(map(comparable, new_names)):
            raise UserError(
                f"{where} maps '{pattern}' to {new_names[0]}, which the model lacks: use names such as {min(names)} or "
                f"{max(names)}"
            )
    return selected


def _renamed(match: re.Match[str], template: str) -> str:
    """Returns a template filled with the groups of a match.

    Raises:
      UserError: the template is invalid.
    """
    try:
        return match.expand(template)
    except (re.error, IndexError) as error:
        raise UserError(f"config.train.init_names has a name '{template}' that is invalid ({error})") from error


def _depths(params: Any) -> dict[str, int]:
    """Returns the number of stored layers of each stack, by the path of the stack."""
    depths: dict[str, int] = {}
    for name, leaf in named(params):
        numbers = layer_numbers(name, leaf)
        depths[stack_of(name)] = max(depths.get(stack_of(name), 0), numbers[-1] + 1 if numbers else 0)
    return depths


def _sources(name: str, selected: dict[str, tuple[str, Any]], train: config.TrainConfig) -> dict[str, tuple[str, Any]]:
    """Returns the entries of `selected` from which a parameter is loaded; empty if it is not loaded.

    These are the weights with the name of the parameter. If `train.init_layers` is set, the layers that a name may
    list, as in `stack/blocks/1:12/attention_norm/scale`, are not compared.
    """
    if train.init_layers and split_name(name)[0]:
        return {key: source for key, source in selected.items() if whole_name(key) == whole_name(name)}
    return {name: selected[name]} if name in selected else {}


def _with_layers(
    name: str, leaf: Any, sources: dict[str, tuple[str, Any]], train: config.TrainConfig, depths: dict[str, int]
) -> np.ndarray:
    """Returns the values for a leaf; `train.init_layers`, if set, selects the source layers of a stacked leaf."""
    numbers = layer_numbers(name, leaf)
    stored = [(source_name, float32(source)) for source_name, source in sources.values()]
    if not train.init_layers or not numbers:
        return stored[0][1]
    if len(train.init_layers) != depths[stack_of(name)]:
        raise UserError(
            f"config.train.init_layers has {len(train.init_layers)} layers, but {stack_of(name)} has "
            f"{depths[stack_of(name)]}: name one layer of {train.init_from} for each"
        )
    rows = {}
    for source_name, values in stored:
        rows |= dict(zip(layer_numbers(source_name, values), values, strict=True))
    source_layers = [train.init_layers[number] for number in numbers]
    if missing := [layer for layer in source_layers if layer not in rows]:
        raise UserError(
            f"config.train.init_layers has layer {missing[0]}, and {stored[0][0]} in {train.init_from} has the layers "
            f"{min(rows)} to {max(rows)}: choose from these"
        )
    return np.stack([rows[layer] for layer in source_layers])


def _with_new_rows(taken: np.ndarray, train: config.TrainConfig, name: str) -> np.ndarray:
    """Appends rows for new tokens to a matrix or bias of the vocabulary; new rows of a bias are zeros."""
    rng = layouts.generator(train.seed, f"new tokens/{name}", 0)
    rows = rng.normal(0.0, 0.02, (train.new_tokens, *taken.shape[1:])) if taken.ndim > 1 else np.zeros(train.new_tokens)
    return np.concatenate([taken, rows.astype(np.float32)])


def _tops(model: ModelConfig, layers: int) -> dict[str, int]:
    """Returns, for each stack by its path, the index of its first stored block to reinitialize.

    Args:
      layers: number of layers to reinitialize at the top of each stack; 0: the result is empty.
    """
    if layers and not model.stacks:
        raise UserError(f"a model of kind '{model.kind}' has no stack for config.train.reinitialize_top: leave it out")
    first_blocks = {}
    for path, stack in zip(model.stack_paths, model.stacks, strict=True) if layers else ():
        a_group = 1 if stack.groups is None else stack.layers // stack.groups
        if layers > stack.layers or layers % a_group:
            multiple = f", a multiple of {a_group}, because groups of {a_group} layers share parameters"
            raise UserError(
                f"config.train.reinitialize_top is {layers}: {path} has {stack.layers} layers; choose at most "
                f"{stack.layers}{multiple if a_group > 1 else ''}"
            )
        first_blocks[path] = stack.stored_blocks - layers // a_group * stack.inner
    return first_blocks


def _with_top(taken: jax.Array, fresh: jax.Array, top: int) -> jax.Array:
    """Replaces the last `top` blocks of a stacked leaf by the last blocks of the leaf `fresh`."""
    if not top:
        return taken
    join = jax.jit(lambda old, new: jnp.concatenate([old[:-top], new[-top:]]), out_shardings=fresh.sharding)
    return join(taken, fresh)
