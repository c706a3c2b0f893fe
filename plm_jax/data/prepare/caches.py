"""Which caches a run needs, and making those that are not there."""

import contextlib
import hashlib
import heapq
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from plm_jax import config
from plm_jax.common import progress, storage
from plm_jax.common.errors import UserError
from plm_jax.data import cache, vocabularies
from plm_jax.data.cache import staleness
from plm_jax.data.prepare import build as making
from plm_jax.data.prepare import reading
from plm_jax.data.sources import files, task_mixtures
from plm_jax.data.vocabularies import training

_VOCABULARY_SAMPLE_BYTES = 2**25


def prepare(
    run: config.Run, output: str | None = None, show_progress: bool = True, beam_options: Sequence[str] | None = None
) -> None:
    """Writes the cache of each of the run's sources into `output` (default: `data.cache_dir`), and its vocabulary.

    A source with a rate of 0 all the time is left out; of a mixture of seqio's each task has a cache
    (`task_mixtures`). With `beam_options` Apache Beam tokenises, where and with how many workers they say
    (`beam.py`); the cache is the same.

    A cache whose identity (source contents, task definition, vocabulary, format) has not changed is left as it is. Of
    several processes of a machine at once one works and the others wait for it. A remote cache is made on this machine
    and then uploaded, so that one that was cut off while it uploads only uploads again.

    Raises:
      UserError: whatever the user can mend in sources or vocabulary.
    """
    folder = output or run.data.cache_dir
    for name, source in config.read_sources(run).items():
        if not name.replace("-", "_").isidentifier() or name == "vocabulary":
            raise UserError(f"config.data.sources has '{name}': give a name of letters, digits, - and _")
        files.check(name, source)
    given, parts = run, _parts_of_mixtures(run)
    run = task_mixtures.expanded(given, parts)
    sources, local = config.read_sources(run), folder
    if storage.is_remote(folder):
        local = storage.cache_folder("prepare", hashlib.sha256(folder.encode("utf-8")).hexdigest()[:16])
        storage.write(os.path.join(folder, ".lock"), b"")  # It locks nothing, but what cannot be written fails now.
    with storage.locked(os.path.join(local, ".lock")):
        vocabulary = _vocabulary(run, show_progress)
        vocabularies.copy(run.vocabulary.spec, os.path.join(folder, "vocabulary"))
        for name in sources:
            final, made = os.path.join(folder, name), os.path.join(local, name)
            with progress.doing(f"{name}: comparing its files"):
                origin = staleness.look(sources[name], sources[name].open(name).fingerprint)
            if not origin.contents:
                print(f"{name}: its fingerprint is empty, so no change of its documents is noticed")
            wanted = reading.identity(run, name, vocabulary, origin.contents)
            if _is_prepared(final, wanted):
                staleness.note(final, sources[name], origin)
                print(f"{name}: up to date at {final}")
                continue
            if not _is_prepared(made, wanted):
                making.make(run, name, vocabulary, wanted, local, show_progress, beam_options, origin)
            _upload(name, made, final, show_progress)
        for name in parts:
            own = all("validation" in reading.splits(part, run.data.sources[part]) for part in parts[name])
            manifest = task_mixtures.manifest(given, name, parts[name], own)
            _prepare_mixture(name, manifest, folder, local, show_progress)


def _parts_of_mixtures(run: config.Run) -> dict[str, task_mixtures.Parts]:
    """The parts of each source of the run that is a mixture, from seqio."""
    found = {}
    for name, source in config.read_sources(run).items():
        if (rates := source.rates()) is not None:
            found[name] = task_mixtures.named(name, rates)
    return found


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


def _vocabulary(run: config.Run, show_progress: bool) -> vocabularies.Vocabulary:
    """The run's vocabulary, trained first if it is to be and its files are not there."""
    spec = run.vocabulary
    paths = vocabularies.files(spec.spec)
    if spec.train_size > 0 and not all(map(storage.exists, paths)):
        print(f"making a vocabulary of {spec.train_size}: {', '.join(paths)}")
        texts = _training_texts(run, show_progress)
        if not spec.spec.startswith("words:"):
            texts = sample(texts, _VOCABULARY_SAMPLE_BYTES)
            if not texts:
                raise making.no_rows(config.read_sources(run))
        with progress.doing("training the vocabulary"):
            training.train(texts, spec, show_progress)
    return vocabularies.load_plain(spec)


def _training_texts(run: config.Run, show_progress: bool) -> Iterator[str]:
    """The texts of all sources that are not held out."""
    for name, source in config.read_sources(run).items():
        with progress.doing(f"{name}: finding what to hold out"):
            rule = reading.rule(run, name)
        with making.bar(f"{name}: reading", source.open(name), show_progress) as bar:
            for document in reading.all_documents(run, name, advance=bar.update):
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
