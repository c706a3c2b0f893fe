"""Parts of mixtures. A source that names a mixture in seqio's registry is replaced by its parts, one source per task.

    CACHE_DIR/NAME/manifest.json   `source`, as in every cache; `parts`: task and rate of each part
    CACHE_DIR/NAME-TASK/…          cache of each part, in the same format as other caches

`prepare` writes the manifest last. Importing this module imports neither seqio nor TensorFlow; `registered`, which only
`prepare` calls, may import them.
"""

import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.data import cache, mixtures
from plm_jax.data.cache import staleness
from plm_jax.data.config import DataConfig
from plm_jax.data.sources import files
from plm_jax.data.sources.source import RegisteredSource, Source

_UNSAFE = re.compile(r"[^\w-]", re.ASCII)


class MixtureTask(NamedTuple):
    """A part of a mixture: the name of a task in seqio's registry, and the task's rate in examples."""

    task: str
    rate: float


Parts = dict[str, MixtureTask]  # Keys are the names of the sources of tasks.


def name_parts(name: str, rates: Mapping[str, float]) -> Parts:
    """Returns the tasks of a mixture by the names of their parts.

    A part is named NAME-TASK, where `_` replaces characters of the task's name that are unsafe in the names of folders.
    If the names of several parts would be equal, each of them gets a hash as a suffix.

    Args:
      name: name of the mixture's source.
      rates: rate of each task.
    """
    plain = {task: f"{name}-{_UNSAFE.sub('_', task)}" for task in rates}
    shared = {part for part, number in collections.Counter(plain.values()).items() if number > 1}
    hashed = {task: f"{part}-{zlib.crc32(task.encode('utf-8')):08x}" for task, part in plain.items() if part in shared}
    return {part: MixtureTask(task, rates[task]) for task, part in (plain | hashed).items()}


def registered(sources: Mapping[str, Source]) -> dict[str, Parts]:
    """Returns the parts of each source that is a mixture in seqio's registry."""
    rates = {name: source.rates() for name, source in sources.items()}
    return {name: name_parts(name, task_rates) for name, task_rates in rates.items() if task_rates is not None}


def manifest(data: DataConfig, name: str, parts: Parts, has_validation: bool) -> dict[str, Any]:
    """Returns the manifest of a mixture; `has_validation` says whether every task has a validation split."""
    described = {
        "source": staleness.describe(data, name, has_validation),
        "parts": {part: task._asdict() for part, task in parts.items()},
    }
    return {"identity": hashlib.sha256(json.dumps(described, sort_keys=True).encode("utf-8")).hexdigest()} | described


def write(folder: str, name: str, manifest: dict[str, Any]) -> None:
    """Writes the manifest of the mixture `name` into a local folder of caches."""
    temporary = os.path.join(folder, f".{name}.tmp")
    storage.remove(temporary)
    os.makedirs(folder, exist_ok=True)
    os.mkdir(temporary)
    cache.publish(temporary, os.path.join(folder, name), manifest)


def prepared(cache_dir: str, sources: Mapping[str, Source]) -> dict[str, Parts]:
    """Returns the parts of each source that is a prepared mixture, from the manifests in `cache_dir`.

    Mixtures that were prepared with different settings of the source are left out.
    """
    parts: dict[str, Parts] = {}
    for name, source in sources.items():
        if not isinstance(source, RegisteredSource):
            continue
        with contextlib.suppress(UserError):  # Missing and damaged caches are reported when they are opened.
            saved = cache.read_manifest(os.path.join(cache_dir, name))
            if "parts" in saved and saved["source"]["task"] == files.definition(source):
                parts[name] = {part: MixtureTask(**task) for part, task in saved["parts"].items()}
    return parts


def expanded_rates(rates: Mapping[str, float], names: Iterable[str], parts: Mapping[str, Parts]) -> dict[str, float]:
    """Returns the rates of sources, with the rate of each mixture divided among its tasks in proportion to their rates.

    Args:
      rates: rates of the sources; if empty, all of `names` have the same rate.
      names: names of all sources.
      parts: parts of each source that is a mixture.
    """
    rates = rates or mixtures.equal(names)
    shares = ({part: task.rate for part, task in parts.get(name, {}).items()} or {name: 1.0} for name in rates)
    return mixtures.nested(*zip(shares, rates.values(), strict=True))


def expanded(data: DataConfig, parts: Mapping[str, Parts]) -> DataConfig:
    """Returns the config with a source for each task of a mixture, in place of the mixture.

    The rate of the mixture is divided among the tasks in proportion to their rates. Each task has the segmenter and
    token type of the mixture. Other sources are unchanged. The sources are sorted by name.

    Args:
      parts: parts of each source that is a mixture; if empty, the config is returned unchanged.

    Raises:
      UserError: a task's source has the name of another source.
    """
    if not parts:
        return data
    sources: dict[str, Source] = {}
    for name, source in data.sources.items():
        tasks = {part: _task_source(source, task.task) for part, task in parts.get(name, {}).items()}
        for new in tasks or (name,):
            if new in sources:
                raise UserError(f"two sources or tasks of mixtures have the name '{new}': rename source '{name}'")
        sources |= tasks or {name: source}
    sources = dict(sorted(sources.items()))  # A saved config is sorted too, and the order of sources decides example k.
    segmenters, token_types = (
        {part: value for name, value in settings.items() for part in parts.get(name, (name,))}
        for settings in (data.segmenters, data.token_types)
    )
    mixture = expanded_rates(data.mixture, data.sources, parts)
    return dataclasses.replace(data, sources=sources, mixture=mixture, segmenters=segmenters, token_types=token_types)


def _task_source(source: Any, task: str) -> Source:
    return dataclasses.replace(source, name=task)
