"""`train.init_from`: weights of another checkpoint, whole or by name."""

import re

import jax

from plm_jax.common.errors import UserError
from plm_jax.hub.pretrained import float32
from plm_jax.training import checkpoint_formats


def take(params, train):
    """`params` with the leaves of `train.init_from` whose names match one of `train.init_names`.

    Returns:
      The parameters, laid out as before, and lines that say what was taken, what is new, and what has no place here.

    Raises:
      UserError: nothing matches, or a leaf has another shape.
    """
    patterns = [re.compile(pattern) for pattern in train.init_names]

    def wanted(name):
        return any(pattern.fullmatch(name) for pattern in patterns)

    with checkpoint_formats.opened(train.init_from) as pretrained:
        found = {name: leaf for name, leaf in _named(pretrained.params) if wanted(name)}
        new, leaves = [], []
        for name, leaf in _named(params):
            if name not in found:
                new.append(name)
                leaves.append(leaf)
                continue
            if found[name].shape != leaf.shape:
                raise UserError(
                    f"{name} is {found[name].shape} in {train.init_from} and {leaf.shape} here: leave it out by "
                    "config.train.init_names, or change the model"
                )
            leaves.append(jax.device_put(float32(found.pop(name)), leaf.sharding))
    taken = len(leaves) - len(new)
    if not taken:
        raise UserError(f"nothing in {train.init_from} matches config.train.init_names {train.init_names}")
    notes = [f"took {taken} of {len(leaves)} parameters from {train.init_from}"]
    notes += [f"{what}: {', '.join(names)}" for what, names in (("new", new), ("left out", found)) if names]
    return jax.tree.unflatten(jax.tree.structure(params), leaves), notes


def _named(params):
    """(name such as `stack/blocks/attention/query/kernel`, leaf) for every leaf."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return [("/".join(key.key for key in path), leaf) for path, leaf in leaves]
