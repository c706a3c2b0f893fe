"""`config.json` of a run directory: the config, versions and devices, and the history of the run's starts."""

import importlib.metadata
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from plm_jax import config
from plm_jax.common import storage, users
from plm_jax.common.errors import UserError
from plm_jax.data import vocabularies

_PACKAGES = ("jax", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def read(workdir: str) -> dict[str, Any] | None:
    """Reads and checks a run directory's config.json; returns its contents, or None if there is no such file.

    Raises:
      UserError: the file is damaged, its config needs users' code that cannot be loaded, or the store cannot be
        reached.
    """
    path = os.path.join(workdir, "config.json")
    try:
        data = storage.read(path)
    except FileNotFoundError:
        return None
    try:
        described = json.loads(data)
        config.from_saved(described["config"], described.get("modules"))
        return described
    except users.MissingCodeError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError, UserError) as error:
        raise UserError(f"{path} is damaged ({error}): rename it to continue with the current config") from error


def new_id() -> str:
    """Returns a random identity for a run."""
    return secrets.token_hex(8)


def read_id(workdir: str) -> str | None:
    """Returns the identity of the run in a directory, or None if no readable config.json records one."""
    return _recorded(workdir, "run_id")


def read_source(workdir: str, field: Sequence[str]) -> str | None:
    """Returns a string in the `train` section of a run directory's config.json.

    The result is None if the file is missing or damaged, or if the field is missing or not a string.

    Args:
      field: path of the field as keys, such as `("init_from",)`.
    """
    return _recorded(workdir, "config", "train", *field)


def _recorded(workdir: str, *path: str) -> str | None:
    """Returns the string at a path of keys in a config.json, or None."""
    try:
        value = json.loads(storage.read(os.path.join(workdir, "config.json")))
        for key in path:
            value = value[key]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return value if isinstance(value, str) else None


def write(
    workdir: str, run_id: str, run: config.Run, mesh: Mapping[str, int], history: Sequence[dict[str, Any]]
) -> None:
    """Writes config.json, and copies the vocabulary from the cache folder.

    Args:
      run_id: identity of the run, which each of its checkpoints records.
      mesh: sizes of the mesh axes, by name.
      history: results of `start`, one for each time that the run was started or resumed.
    """
    described = {
        "run_id": run_id,
        "config": config.to_dict(run),
        "modules": users.used(run),
        "versions": versions(),
        "git_commit": git_commit(),
        "mesh": dict(mesh),
        "devices": devices(),
        "history": list(history),
    }
    storage.write(os.path.join(workdir, "config.json"), json.dumps(described, indent=2).encode("utf-8"))
    source, target = (os.path.join(folder, "vocabulary") for folder in (run.data.cache_dir, workdir))
    names = map(os.path.basename, vocabularies.files(run.vocabulary.spec))
    for name in sorted(set(names).intersection(storage.names(source))):
        storage.copy(os.path.join(source, name), os.path.join(target, name))


def has_checkpoint(workdir: str) -> bool:
    """Whether a run directory has a checkpoint of a step, which may be damaged or, in a bucket, unfinished."""
    return bool(storage.numbers(os.path.join(workdir, "checkpoints")))


def has_begun(workdir: str) -> bool:
    """Whether a run directory, or the directory of one of its seeds, has the config.json of a run."""
    seeds = (os.path.join(workdir, name) for name in storage.names(workdir) if name.startswith("seed-"))
    return any(storage.exists(os.path.join(folder, "config.json")) for folder in (workdir, *seeds))


def start(step: int, changes: Sequence[tuple[str, Any, Any]]) -> dict[str, Any]:
    """Returns the entry of the history for a start of the run that happens now.

    The entry has the step, command, time, changed fields with values, versions, Git commit and devices.

    Args:
      step: number of finished steps.
      changes: triples (field, old value, new value).
    """
    return {
        "step": step,
        "command": sys.argv,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "changes": {field: {"was": was, "is": now} for field, was, now in changes},
        "versions": versions(),
        "git_commit": git_commit(),
        "devices": devices(),
    }


def versions() -> dict[str, str]:
    """Returns the versions of the packages that affect the results of a run."""
    return {name: importlib.metadata.version(name) for name in _PACKAGES}


def devices() -> dict[str, Any]:
    """Returns the kind of the first device, and the number of all devices of the job."""
    import jax  # Callers of the other functions do not wait for its import.

    return {"kind": jax.devices()[0].device_kind, "count": jax.device_count()}


def git_commit() -> str | None:
    """Returns the commit of the source tree, or None if it is unknown, as outside of a Git repository."""
    try:
        command = ["git", "-C", os.path.dirname(__file__), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
