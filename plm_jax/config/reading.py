"""Converts trees, read from config files, the command line or run directories, to `Run` objects."""

import contextlib
import dataclasses
import os
from collections.abc import Collection, Generator
from typing import Any

import ml_collections

from plm_jax.common import package, storage, trees, users
from plm_jax.common.errors import UserError, nearest
from plm_jax.config import checks
from plm_jax.config.run import Run
from plm_jax.models import ModelConfig

# Prefix of paths that are relative to this package's folder, such as `package:data/corpora/sotu.jsonl.gz`.
PACKAGE = "package:"


def from_dict(tree: Any, replaces_model: bool = False) -> Run:
    """Returns the `Run` that a ConfigDict or a JSON tree describes.

    Args:
      replaces_model: whether a checkpoint's model will replace the config's. The sections are then not checked against
        each other.

    Raises:
      UserError: a field is unknown or missing, a value has the wrong type or is out of range, or the sections do not
        fit each other.
    """
    if isinstance(tree, ml_collections.ConfigDict):
        tree = tree.to_dict()
    run = trees.parse(Run, tree, "config")
    if not replaces_model:
        checks.check(run)
    return run


def from_saved(tree: Any, modules: users.Record | None = None) -> Run:
    """Returns the `Run` that a run directory, checkpoint or converted directory has recorded.

    Args:
      tree: recorded config.
      modules: recorded modules of users' code, for error messages. This function does not load them.

    Raises:
      UserError: the config is invalid, as in `from_dict`, or it uses a user's code that is not loaded.
    """
    with _reporting_missing(modules):
        return from_dict(tree)


def model_from_saved(tree: Any, where: str, modules: users.Record | None = None) -> ModelConfig:
    """Returns the settings of a model that a converted directory has recorded.

    Args:
      tree: recorded settings.
      where: name of the settings in error messages.
      modules: recorded modules of users' code, for error messages. This function does not load them.

    Raises:
      UserError: a setting is invalid, or the model uses a user's code that is not loaded.
    """
    with _reporting_missing(modules):
        return trees.parse(ModelConfig, tree, where)


@contextlib.contextmanager
def _reporting_missing(modules: users.Record | None) -> Generator[None]:
    """Context manager that replaces a `UserError` by one that names the modules to load, if modules are not loaded."""
    try:
        yield
    except UserError as error:
        users.check(modules or {}, error)
        raise


def modules(run: Run) -> set[str]:
    """Returns the names of the Python modules that register tasks of a run's sources or define its segmenters."""
    return run.data.modules


def choose(table: dict[str, Any], name: str) -> Any:
    """Returns the entry `name` of a config file's table of sizes.

    Raises:
      UserError: there is no such entry.
    """
    if name not in table:
        raise UserError(f"there is no size '{name}' in this config: {nearest(name, table)}")
    return table[name]


def resolve(tree: Any, config_file: str, overridden: Collection[str] = (), replaces_model: bool = False) -> Run:
    """Returns the `Run` of a config file's tree, with absolute paths.

    Relative paths are relative to the folder of the config file. Paths that begin with `package:` are relative to the
    folder of this package. Names of Hugging Face repositories are unchanged. The Python modules that the run names may
    be imported afterwards.

    Args:
      overridden: fields and sections, such as `train.init_from`, whose paths are relative to the working directory.
      replaces_model: whether a checkpoint's model will replace the config's. The sections are then not checked against
        each other.

    Raises:
      UserError: the config is invalid, as in `from_dict`.
    """
    run = from_dict(tree, replaces_model)
    users.trust(modules(run))
    folder = os.path.dirname(os.path.abspath(config_file))

    def absolute(path: str, field: str) -> str:
        if path.startswith(PACKAGE):
            return os.path.join(package.FOLDER, path.removeprefix(PACKAGE))
        if not path or storage.is_remote(path) or storage.is_repository(path) or os.path.isabs(path):
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
    paths = {name: absolute(getattr(run.data, name), f"data.{name}") for name in ("cache_dir", "similar_words")}
    references = {
        name: dataclasses.replace(reference, source=absolute(reference.source, f"train.references.{name}.source"))
        for name, reference in run.train.references.items()
    }
    init_from = absolute(run.train.init_from, "train.init_from")
    return dataclasses.replace(
        run,
        data=dataclasses.replace(run.data, **paths, sources=sources),
        vocabulary=dataclasses.replace(run.vocabulary, spec=spec),
        train=dataclasses.replace(run.train, init_from=init_from, references=references),
    )
