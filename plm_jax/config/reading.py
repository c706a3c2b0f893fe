"""Trees as runs: from a config page, the command line, or a run directory."""

import contextlib
import dataclasses
import os
from collections.abc import Collection, Generator
from typing import Any

import ml_collections

from plm_jax.common import package, trees, users
from plm_jax.common.errors import UserError, nearest
from plm_jax.config import checks
from plm_jax.config.run import Run
from plm_jax.models import ModelConfig

# What a path begins with that counts from this package's folder, as `package:data/corpora/sotu.jsonl.gz`.
PACKAGE = "package:"


def from_dict(tree: Any, replaces_model: bool = False) -> Run:
    """Returns the `Run` that a ConfigDict or a JSON tree describes.

    Args:
      replaces_model: whether a checkpoint's model will replace the config's. The sections are then not checked against
        each other.

    Raises:
      UserError: an unknown field (the nearest name is given), a missing one, or a value of the wrong type.
    """
    if isinstance(tree, ml_collections.ConfigDict):
        tree = tree.to_dict()
    run = trees.parse(Run, tree, "config")
    if not replaces_model:
        checks.check(run)
    return run


def from_saved(tree: Any, modules: users.Record | None = None) -> Run:
    """Returns the `Run` that a run directory, checkpoint or converted directory holds.

    Args:
      modules: what is noted there of users' code, which is never loaded for that.

    Raises:
      UserError: as `from_dict`; it takes code of a user's that is not loaded.
    """
    with _told(modules):
        return from_dict(tree)


def model_from_saved(tree: Any, where: str, modules: users.Record | None = None) -> ModelConfig:
    """The settings of a model that a converted directory holds, as `from_saved`; `where` is what errors call it."""
    with _told(modules):
        return trees.parse(ModelConfig, tree, where)


@contextlib.contextmanager
def _told(modules: users.Record | None) -> Generator[None]:
    """Within it settings are read that were made with these modules."""
    try:
        yield
    except UserError as error:
        users.check(modules or {}, error)
        raise


def modules(run: Run) -> set[str]:
    """The Python modules that a run names: those that register its sources' tasks, and those of its segmenters."""
    return run.data.modules


def choose(table: dict[str, Any], name: str) -> Any:
    """The entry of a config file's table of sizes.

    Raises:
      UserError: there is none of that name.
    """
    if name not in table:
        raise UserError(f"there is no size '{name}' in this config: {nearest(name, table)}")
    return table[name]


def resolve(tree: Any, config_file: str, overridden: Collection[str] = (), replaces_model: bool = False) -> Run:
    """The checked `Run` of a config file's tree, its relative paths made absolute from the file's folder.

    The modules that it names may then be imported, as those of a checkpoint's config may not.

    Args:
      overridden: the fields and sections, as `train.init_from`, whose relative paths count from the working directory.
      replaces_model: as in `from_dict`.
    """
    run = from_dict(tree, replaces_model)
    users.trust(modules(run))
    folder = os.path.dirname(os.path.abspath(config_file))

    def absolute(path: str, field: str) -> str:
        if path.startswith(PACKAGE):
            return os.path.join(package.FOLDER, path.removeprefix(PACKAGE))
        if not path or "://" in path or os.path.isabs(path):
            return path
        is_overridden = any(f"{field}.".startswith(f"{other}.") for other in overridden)
        return os.path.abspath(path if is_overridden else os.path.join(folder, path))

    sources = {
        name: dataclasses.replace(
            source,
            **{
                field: absolute(getattr(source, field), f"data.sources.{name}.{field}")
                for field in source.location_fields
            },
        )
        for name, source in run.data.sources.items()
    }
    scheme, colon, files = run.vocabulary.spec.partition(":")
    spec = scheme + colon + ",".join(absolute(file, "vocabulary.spec") for file in files.split(","))
    cache_dir = absolute(run.data.cache_dir, "data.cache_dir")
    return dataclasses.replace(
        run,
        data=dataclasses.replace(run.data, cache_dir=cache_dir, sources=sources),
        vocabulary=dataclasses.replace(run.vocabulary, spec=spec),
        train=dataclasses.replace(run.train, init_from=absolute(run.train.init_from, "train.init_from")),
    )
