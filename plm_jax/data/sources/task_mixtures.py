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
from collections.abc import Mapping
from typing import Any, NamedTuple

from plm_jax import config
from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.data import cache, mixtures
from plm_jax.data.cache import staleness
from plm_jax.data.sources import files

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


def manifest(run: config.Run, name: str, parts: Parts, has_validation: bool) -> dict[str, Any]:
    """What is noted of a mixture; `has_validation`: each of its tasks has a split for that of its own."""
    found = {
        "source": staleness.describe(run, name, has_validation),
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


def prepared(run: config.Run) -> dict[str, Parts]:
    """The parts of each source of the run that is a mixture, as far as they were prepared."""
    found = {}
    for name, source in config.read_sources(run).items():
        if not isinstance(source, config.RegisteredSource):
            continue
        with contextlib.suppress(UserError):  # What is missing or damaged is told where caches are opened.
            held = cache.read_manifest(os.path.join(run.data.cache_dir, name))
            if "parts" in held and held["source"]["task"] == files.definition(source):
                found[name] = {part: MixtureTask(**of) for part, of in held["parts"].items()}
    return found


def expanded(run: config.Run, parts: Mapping[str, Parts] | None = None) -> config.Run:
    """The run with the tasks of each mixture as sources of their own, which part its rate by theirs.

    They have its segmenter. A source that is no mixture stays as it is.

    Args:
      parts: of each source that is a mixture; by default those that are `prepared`.

    Raises:
      UserError: a task's source has the name of another one; there are other sources beside a mixture and no rates.
    """
    parts = prepared(run) if parts is None else parts
    if not parts:
        return run
    data, train = run.data, run.train
    if len(data.sources) > 1 and not all(stage.mixture for stage in config.resolve_phases(run)):
        raise UserError(
            f"'{next(iter(parts))}' is a mixture beside other sources: set the rate of each in config.data.mixture"
        )
    sources: dict[str, Any] = {}
    for name, source in data.sources.items():
        tasks = {part: dataclasses.replace(source, name=of.task) for part, of in parts.get(name, {}).items()}
        for own in tasks or (name,):
            if own in sources:
                raise UserError(f"two of config.data.sources would be '{own}', as tasks of mixtures: rename '{name}'")
        sources |= tasks or {name: source}

    def parted(rates: Mapping[str, float]) -> dict[str, float]:
        rates = rates or mixtures.equal(data.sources)
        shares = ({part: of.rate for part, of in parts.get(name, {}).items()} or {name: 1.0} for name in rates)
        return mixtures.nested(*zip(shares, rates.values(), strict=True))

    sources = dict(sorted(sources.items()))  # As a config that is read back has them: example k goes by their order.
    segmenters = {own: how for name, how in data.segmenters.items() for own in parts.get(name, (name,))}
    data = dataclasses.replace(data, sources=sources, mixture=parted(data.mixture), segmenters=segmenters)
    phases = tuple(
        phase if phase.mixture is None else dataclasses.replace(phase, mixture=parted(phase.mixture))
        for phase in train.phases
    )
    # Checked, since what goes with one source need not go with several.
    run = dataclasses.replace(run, data=data, train=dataclasses.replace(train, phases=phases))
    return config.from_dict(config.to_dict(run))
