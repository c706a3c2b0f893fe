"""Finds the caches that sources need, and makes the missing ones."""

import contextlib
import hashlib
import heapq
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from plm_jax.common import progress, storage
from plm_jax.common.errors import UserError
from plm_jax.data import cache, vocabularies
from plm_jax.data.cache import staleness
from plm_jax.data.config import DataConfig
from plm_jax.data.prepare import build as making
from plm_jax.data.prepare import reading
from plm_jax.data.sources import files, task_mixtures
from plm_jax.data.sources.source import Source
from plm_jax.data.vocabularies import training
from plm_jax.data.vocabulary_config import VocabularyConfig

_VOCABULARY_SAMPLE_BYTES = 2**25


def check(sources: Mapping[str, Source]) -> None:
    """Rejects sources whose name is no name of a folder, and those without files."""
    for name, source in sources.items():
        if not name.replace("-", "_").isidentifier() or name == "vocabulary":
            raise UserError(f"config.data.sources has '{name}': give a name of letters, digits, - and _")
        files.check(name, source)


def prepare(
    data: DataConfig,
    vocabulary: VocabularyConfig,
    names: Collection[str] | None = None,
    mixtures: Mapping[str, task_mixtures.Parts] | None = None,
    *,
    output: str | None = None,
    show_progress: bool = True,
    beam_options: Sequence[str] | None = None,
) -> None:
    """Writes the cache of each source that is read into `output` (default: `cache_dir`), and the vocabulary.

    Of a mixture of seqio's each task has a cache (`task_mixtures`). With `beam_options` Apache Beam tokenises, where
    and with how many workers they say (`beam.py`); the cache is the same.

    A cache whose identity (source contents, task definition, vocabulary, format) has not changed is left as it is. Of
    several processes of a machine at once one works and the others wait for it. A remote cache is made on this machine
    and then uploaded, so that one that was cut off while it uploads only uploads again.

    Args:
      names: names of the sources that are read; all by default.
      mixtures: parts of each source that is a mixture.

    Raises:
      UserError: whatever the user can mend in sources or vocabulary.
    """
    folder, given, mixtures = output or data.cache_dir, data, mixtures or {}
    data = task_mixtures.expanded(given, mixtures)
    sources, local = _read(data, given.sources if names is None else names, mixtures), folder
    if storage.is_remote(folder):
        local = storage.cache_folder("prepare", hashlib.sha256(folder.encode("utf-8")).hexdigest()[:16])
        storage.write(os.path.join(folder, ".lock"), b"")  # It locks nothing, but what cannot be written fails now.
    with storage.locked(os.path.join(local, ".lock")):
        loaded = _vocabulary(vocabulary, data, sources, show_progress)
        vocabularies.copy(vocabulary.spec, os.path.join(folder, "vocabulary"))
        for name in sources:
            final, made = os.path.join(folder, name), os.path.join(local, name)
            with progress.doing(f"{name}: comparing its files"):
                origin = staleness.look(sources[name], sources[name].open(name).fingerprint)
            if not origin.contents:
                print(f"{name}: its fingerprint is empty, so no change of its documents is noticed")
            wanted = reading.identity(data, name, loaded, origin.contents)
            if _is_prepared(final, wanted):
                staleness.note(final, sources[name], origin)
                print(f"{name}: up to date at {final}")
                continue
            if not _is_prepared(made, wanted):
                making.make(data, name, loaded, wanted, local, show_progress, beam_options, origin)
            _upload(name, made, final, show_progress)
        for name in mixtures:
            own = all("validation" in reading.splits(part, data.sources[part]) for part in mixtures[name])
            manifest = task_mixtures.manifest(given, name, mixtures[name], own)
            _prepare_mixture(name, manifest, folder, local, show_progress)


def _read(data: DataConfig, names: Collection[str], mixtures: Mapping[str, task_mixtures.Parts]) -> dict[str, Source]:
    """Returns the sources that are read, with the tasks of each mixture that have a rate above 0."""
    parts = {part for name in names for part, of in mixtures.get(name, {}).items() if of.rate > 0}
    read = parts | (set(names) - mixtures.keys())
    return {name: source for name, source in data.sources.items() if name in read}


def _prepare_mixture(name: str, manifest: dict[str, Any], folder: str, local: str, show_progress: bool) -> None:
    """Writes what is noted of a mixture whose tasks are prepared, if it is not there."""
    final, made = os.path.join(folder, name), os.path.join(local, name)
    if _is_prepared(final, manifest["identity"]):
        print(f"{name}: up to date at {final}")
        return
    task_mixtures.write(local, name, manifest)
    rates = ", ".join(f"{part} {of['rate']:g}" for part, of in manifest["parts"].items())
    print(f"{name}: a mixture by the rates {rates}: {made}")
    _upload(name, made, final, show_progress)


def _upload(name: str, made: str, final: str, show_progress: bool) -> None:
    """Moves a cache from this machine to the remote place that it was made for."""
    if made != final:
        cache.upload(made, final, show_progress)
        shutil.rmtree(made)
        print(f"{name}: uploaded to {final}")


def _is_prepared(folder: str, wanted: str) -> bool:
    """Whether a folder holds the cache of an identity."""
    with contextlib.suppress(UserError):
        return cache.read_manifest(folder).get("identity") == wanted
    return False


def _vocabulary(
    settings: VocabularyConfig, data: DataConfig, sources: Mapping[str, Source], show_progress: bool
) -> vocabularies.Vocabulary:
    """Returns the vocabulary, which is trained first if it is to be and its files are not there."""
    paths = vocabularies.files(settings.spec)
    if settings.train_size > 0 and not all(map(storage.exists, paths)):
        print(f"making a vocabulary of {settings.train_size}: {', '.join(paths)}")
        texts: Iterable[str] = _training_texts(data, sources, show_progress)
        if not settings.spec.startswith("words:"):
            texts = sample(texts, _VOCABULARY_SAMPLE_BYTES)
            if not texts:
                raise making.no_rows(sources)
        with progress.doing("training the vocabulary"):
            training.train(texts, settings, show_progress)
    return vocabularies.load_plain(settings)


def _training_texts(data: DataConfig, sources: Mapping[str, Source], show_progress: bool) -> Iterator[str]:
    """The texts of all sources that are not held out."""
    for name, source in sources.items():
        with progress.doing(f"{name}: finding what to hold out"):
            rule = reading.rule(data, name)
        with making.bar(f"{name}: reading", source.open(name), show_progress) as bar:
            for document in reading.all_documents(data, name, advance=bar.update):
                if not document.is_held_out(rule):
                    yield from filter(None, (document.text, *(document.others or ())))


def sample(texts: Iterable[str], num_bytes: int) -> list[str]:
    """Up to `num_bytes` of the texts, those with the smallest hashes: a random sample that does not change."""
    kept: list[tuple[int, str]] = []
    size = 0
    for number, text in enumerate(texts):
        heapq.heappush(kept, (-reading.key(number, text.encode("utf-8")), text))
        size += len(text.encode("utf-8"))
        while size > num_bytes and len(kept) > 1:
            size -= len(heapq.heappop(kept)[1].encode("utf-8"))
    return [text for _, text in sorted(kept)]
