"""Sources that name a mixture of seqio's registry: in their place a source for each task, by the mixture's rates.

    CACHE_DIR/NAME/manifest.json   `source` as of any cache; `parts`: of each task's source the task and its rate
    CACHE_DIR/NAME-TASK/…          the cache of each task, as of any source

`prepare`, which alone asks seqio, writes the manifest last. Nothing here imports seqio or TensorFlow.
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
    """A task of a mixture, and its rate in examples."""

    task: str
    rate: float


Parts = dict[str, MixtureTask]  # By the name of the task's source.


def named(name: str, rates: Mapping[str, float]) -> Parts:
    """The parts of the mixture that source `name` is, from the rate of each task.

    A part is called NAME-TASK, with _ for what no folder should have in its name; tasks that would then be called
    alike have a hash behind it.
    """
    plain = {task: f"{name}-{_UNSAFE.sub('_', task)}" for task in rates}
    shared = {part for part, number in collections.Counter(plain.values()).items() if number > 1}
    hashed = {task: f"{part}-{zlib.crc32(task.encode('utf-8')):08x}" for task, part in plain.items() if part in shared}
    return {part: MixtureTask(task, rates[task]) for task, part in (plain | hashed).items()}


def registered(sources: Mapping[str, Source]) -> dict[str, Parts]:
    """Returns the parts of each source that is a mixture, from seqio."""
    rates = {name: source.rates() for name, source in sources.items()}
    return {name: named(name, of_source) for name, of_source in rates.items() if of_source is not None}


def manifest(data: DataConfig, name: str, parts: Parts, has_validation: bool) -> dict[str, Any]:
    """What is noted of a mixture; `has_validation`: each of its tasks has a split for that of its own."""
    found = {
        "source": staleness.describe(data, name, has_validation),
        "parts": {part: of._asdict() for part, of in parts.items()},
    }
    return {"identity": hashlib.sha256(json.dumps(found, sort_keys=True).encode("utf-8")).hexdigest()} | found


def write(folder: str, name: str, manifest: dict[str, Any]) -> None:
    """Writes what is noted of a mixture into a local folder of caches."""
    temporary = os.path.join(folder, f".{name}.tmp")
    storage.remove(temporary)
    os.makedirs(folder, exist_ok=True)
    os.mkdir(temporary)
    cache.publish(temporary, os.path.join(folder, name), manifest)


def prepared(cache_dir: str, sources: Mapping[str, Source]) -> dict[str, Parts]:
    """The parts of each source that is a mixture, as far as they were prepared."""
    found = {}
    for name, source in sources.items():
        if not isinstance(source, RegisteredSource):
            continue
        with contextlib.suppress(UserError):  # What is missing or damaged is told where caches are opened.
            held = cache.read_manifest(os.path.join(cache_dir, name))
            if "parts" in held and held["source"]["task"] == files.definition(source):
                found[name] = {part: MixtureTask(**of) for part, of in held["parts"].items()}
    return found


def expanded_rates(rates: Mapping[str, float], names: Iterable[str], parts: Mapping[str, Parts]) -> dict[str, float]:
    """Returns the rates with that of each mixture divided among its tasks.

    Args:
      rates: rates of the sources; if empty, all of `names` have the same rate.
      names: names of all sources.
      parts: parts of each source that is a mixture.
    """
    rates = rates or mixtures.equal(names)
    shares = ({part: of.rate for part, of in parts.get(name, {}).items()} or {name: 1.0} for name in rates)
    return mixtures.nested(*zip(shares, rates.values(), strict=True))


def expanded(data: DataConfig, parts: Mapping[str, Parts]) -> DataConfig:
    """Returns the data with the tasks of each mixture as sources of their own, which divide its rate by theirs.

    They have its segmenter. A source that is not a mixture stays as it is.

    Args:
      parts: parts of each source that is a mixture.

    Raises:
      UserError: a task's source has the name of another one.
    """
    if not parts:
        return data
    sources: dict[str, Source] = {}
    for name, source in data.sources.items():
        tasks = {part: _of_task(source, of.task) for part, of in parts.get(name, {}).items()}
        for own in tasks or (name,):
            if own in sources:
                raise UserError(f"two of config.data.sources would be '{own}', as tasks of mixtures: rename '{name}'")
        sources |= tasks or {name: source}
    sources = dict(sorted(sources.items()))  # As a config that is read back has them: example k goes by their order.
    segmenters = {own: how for name, how in data.segmenters.items() for own in parts.get(name, (name,))}
    mixture = expanded_rates(data.mixture, data.sources, parts)
    return dataclasses.replace(data, sources=sources, mixture=mixture, segmenters=segmenters)


def _of_task(source: Any, task: str) -> Source:
    """Returns the source of a task of a mixture."""
    return dataclasses.replace(source, name=task)
