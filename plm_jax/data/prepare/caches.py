"""Determines the caches that sources need, and builds the missing ones."""

import contextlib
import hashlib
import heapq
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from plm_jax.common import jobs, progress, storage, tasks
from plm_jax.common.errors import UserError
from plm_jax.data import cache, vocabularies
from plm_jax.data.cache import similar_words, staleness
from plm_jax.data.config import DataConfig
from plm_jax.data.prepare import build, reading, similar_words_file, stages
from plm_jax.data.sources import files, task_mixtures
from plm_jax.data.sources.source import Source
from plm_jax.data.vocabularies import training
from plm_jax.data.vocabulary_config import VocabularyConfig

_VOCABULARY_SAMPLE_BYTES = 2**25
# Suffix of the file next to a trained vocabulary with the digests of the files that it was trained on.
_TRAINED_ON = ".trained_on.json"
_WORK = ".work"  # Folder of the jobs of an engine, in the folder of the caches.


def check(sources: Mapping[str, Source]) -> None:
    """Checks the names of sources, which become names of folders, and the files of sources of files.

    Raises:
      UserError: a name is invalid, a split has no files, a file has an unknown format, or a file is in two splits.
    """
    for name, source in sources.items():
        if not name.replace("-", "_").isidentifier() or name in ("vocabulary", similar_words.NAME):
            raise UserError(
                f"config.data.sources has '{name}': choose a name of letters, digits, - and _ other than 'vocabulary' "
                f"and '{similar_words.NAME}'"
            )
        files.check(name, source)


def prepare(
    data: DataConfig,
    vocabulary: VocabularyConfig,
    names: Collection[str] | None = None,
    mixtures: Mapping[str, task_mixtures.Parts] | None = None,
    *,
    output: str | None = None,
    show_progress: bool = True,
    executor: tasks.Executor | None = None,
) -> None:
    """Writes the cache of each source, the vocabulary and the table of similar words into a folder of caches.

    Each task of a seqio mixture with a rate above 0 has its own cache (`task_mixtures`). A missing vocabulary is
    trained if `vocabulary.train_size` is above 0.

    A cache whose identity (`reading.identity`) has not changed is kept. If several processes of a machine prepare the
    same folder, one process works and the other processes wait for it; with an engine, the other processes are
    rejected. After an interruption, the next call resumes an engine's job, unless the fingerprint of the source is
    empty. A remote cache is built on this machine and then uploaded; if only the upload was interrupted, the next call
    only repeats the upload.

    Args:
      names: names of the sources to read; None: all sources.
      mixtures: for each source that is a mixture, its tasks (`task_mixtures.Parts`).
      output: folder of the caches; None: `data.cache_dir`.
      executor: engine that tokenizes, on workers that can access the sources, the vocabulary and `output`; None to
        tokenize in one pass on this machine, with a process per core. The cache is the same.

    Raises:
      UserError: a source or the vocabulary has an error that the user can fix.
    """
    folder, config_data, mixtures = output or data.cache_dir, data, mixtures or {}
    data = task_mixtures.expanded(config_data, mixtures)
    sources, local = _select_sources(data, config_data.sources if names is None else names, mixtures), folder
    if storage.is_remote(folder):
        local = storage.cache_folder("prepare", hashlib.sha256(folder.encode("utf-8")).hexdigest()[:16])
        storage.write(os.path.join(folder, ".lock"), b"")  # Not a lock: it fails early if the folder is not writable.
    with _started(executor, folder) as engine, storage.locked(os.path.join(local, ".lock")):
        origins = {name: _origin(name, source) for name, source in sources.items()}
        loaded = _vocabulary(vocabulary, data, sources, origins, show_progress)
        vocabularies.copy(vocabulary.spec, os.path.join(folder, "vocabulary"))
        if data.similar_words:
            _prepare_similar_words(data.similar_words, loaded, folder, local, show_progress)
        for name, origin in origins.items():
            final, built = os.path.join(folder, name), os.path.join(local, name)
            identity = reading.identity(data, name, loaded, origin.contents)
            if _is_prepared(final, identity):
                staleness.record_files(final, sources[name], origin)
                print(f"{name}: up to date at {final}")
                continue
            if not _is_prepared(built, identity):
                build.build_cache(data, name, loaded, identity, local, show_progress, engine, origin)
                if engine:
                    jobs.clear(engine.work)
            _upload(name, built, final, show_progress)
        for name in mixtures:
            have_validation = all("validation" in reading.splits(part, data.sources[part]) for part in mixtures[name])
            manifest = task_mixtures.manifest(config_data, name, mixtures[name], have_validation)
            _prepare_mixture(name, manifest, folder, local, show_progress)


@contextlib.contextmanager
def _started(executor: tasks.Executor | None, folder: str) -> Iterator[stages.Engine | None]:
    """Context manager that starts an engine and yields it; yields None without an executor.

    The engine's jobs in `folder` are removed on success and kept after an error, so that they can resume.

    Raises:
      UserError: the engine cannot be reached, or another process uses its folder.
    """
    if executor is None:
        yield None
        return
    work = os.path.join(storage.absolute(folder), _WORK)
    with executor as entered, jobs.exclusive(work, f"prepares {folder}"):
        yield stages.Engine(entered, work)
        jobs.clear(work)


def _origin(name: str, source: Source) -> staleness.Origin:
    """Returns the fingerprint and files of a source. Prints a line if the fingerprint is empty."""
    with progress.doing(f"{name}: comparing its files"):
        origin = staleness.read_origin(source, source.open(name).fingerprint)
    if not origin.contents:
        print(f"{name}: its fingerprint is empty, so changes of its documents are not detected")
    return origin


def _select_sources(
    data: DataConfig, names: Collection[str], mixtures: Mapping[str, task_mixtures.Parts]
) -> dict[str, Source]:
    """Returns the sources with these names. A mixture is replaced by its tasks with a rate above 0."""
    parts = {name for mixture in names for name, part in mixtures.get(mixture, {}).items() if part.rate > 0}
    selected = parts | (set(names) - mixtures.keys())
    return {name: source for name, source in data.sources.items() if name in selected}


def _prepare_mixture(name: str, manifest: dict[str, Any], folder: str, local: str, show_progress: bool) -> None:
    """Writes the manifest of a mixture, after its tasks are prepared. Does nothing if the manifest is up to date."""
    final, built = os.path.join(folder, name), os.path.join(local, name)
    if _is_prepared(final, manifest["identity"]):
        print(f"{name}: up to date at {final}")
        return
    task_mixtures.write(local, name, manifest)
    rates = ", ".join(f"{part} {entry['rate']:g}" for part, entry in manifest["parts"].items())
    print(f"{name}: a mixture with the rates {rates}: {built}")
    _upload(name, built, final, show_progress)


def _prepare_similar_words(
    file: str, vocabulary: vocabularies.Vocabulary, folder: str, local: str, show_progress: bool
) -> None:
    """Tokenizes a text file of similar words and writes the table. Does nothing if the table is up to date."""
    name, vocabulary_id = similar_words.NAME, vocabularies.identity(vocabulary)
    final, built = os.path.join(folder, name), os.path.join(local, name)
    if storage.exists(file) and _is_prepared(final, similar_words.identity(file, vocabulary_id)):
        print(f"{name}: up to date at {final}")
        return
    table, num_words, num_lines = similar_words_file.tokenize(file, vocabulary)
    similar_words.save(local, file, vocabulary_id, table)
    counts = f"{num_words:,} words of {num_lines:,} lines"
    print(f"{name}: {counts} have similar words with the same number of tokens: {built}")
    _upload(name, built, final, show_progress)


def _upload(name: str, built: str, final: str, show_progress: bool) -> None:
    """Uploads the cache in the folder `built` to `final` and removes `built`, unless both are the same folder."""
    if built != final:
        cache.upload(built, final, show_progress)
        shutil.rmtree(built)
        print(f"{name}: uploaded to {final}")


def _is_prepared(folder: str, identity: str) -> bool:
    """Whether a folder holds the cache with this identity."""
    with contextlib.suppress(UserError):
        return cache.read_manifest(folder).get("identity") == identity
    return False


def _vocabulary(
    settings: VocabularyConfig,
    data: DataConfig,
    sources: Mapping[str, Source],
    origins: Mapping[str, staleness.Origin],
    show_progress: bool,
) -> vocabularies.Vocabulary:
    """Returns the vocabulary. If a file of it is missing and `train_size` is above 0, trains it first.

    Raises:
      UserError: a file is missing and cannot be trained, or `check_training` rejects the existing files.
    """
    paths = vocabularies.files(settings.spec)
    contents = sorted({value for origin in origins.values() for value in origin.contents})
    if paths and all(map(storage.exists, paths)):
        print(f"using the vocabulary {', '.join(paths)}")
        check_training(settings, contents)
    elif settings.train_size > 0:
        print(f"training a vocabulary of {settings.train_size}: {', '.join(paths)}")
        texts: Iterable[str] = _training_texts(data, sources, show_progress)
        if not settings.spec.startswith("words:"):
            texts = sample(texts, _VOCABULARY_SAMPLE_BYTES)
            if not texts:
                raise build.no_rows(sources)
        with progress.doing("training the vocabulary"):
            training.train(texts, settings, show_progress)
        described = {**training.resolve_settings(settings), "sources": sorted(sources), "contents": contents}
        storage.write(paths[0] + _TRAINED_ON, json.dumps(described, indent=2).encode("utf-8"))
    return vocabularies.load_plain(settings)


def check_training(settings: VocabularyConfig, contents: Sequence[str] = ()) -> None:
    """Rejects an existing vocabulary that was trained with other settings, or on none of the files of the sources.

    A vocabulary is not checked if `train_size` is 0, or if there is no record of its training, as for a published
    vocabulary.

    Args:
      contents: fingerprints of the sources; empty: the sources are not compared.

    Raises:
      UserError: the vocabulary is rejected.
    """
    paths = vocabularies.files(settings.spec) if settings.train_size else []
    if not paths or not all(map(storage.exists, [*paths, paths[0] + _TRAINED_ON])):
        return
    described = json.loads(storage.read(paths[0] + _TRAINED_ON))
    changed = [
        f"{name} was {described[name]!r} and is {value!r}"
        for name, value in training.resolve_settings(settings).items()
        if described.get(name, value) != value
    ]
    if changed:
        reason = f"with other settings ({', '.join(changed)})"
    elif contents and set(contents).isdisjoint(described["contents"]):
        reason = f"on sources {', '.join(described['sources'])}, and on none of the files of this config"
    else:
        return
    raise UserError(
        f"{', '.join(paths)} was trained {reason}: to train a new vocabulary, set config.vocabulary.spec to a new "
        "path; to use this one, set config.vocabulary.train_size to 0"
    )


def _training_texts(data: DataConfig, sources: Mapping[str, Source], show_progress: bool) -> Iterator[str]:
    """Yields the texts of all sources, without empty texts and those of held-out documents."""
    for name, source in sources.items():
        with progress.doing(f"{name}: choosing the held-out rows"):
            rule = reading.rule(data, name)
        with build.bar(f"{name}: reading", source.open(name), show_progress) as bar:
            for document in reading.all_documents(data, name, advance=bar.update):
                if document.tokens is not None:
                    raise UserError(
                        f"source '{name}' is tokenized, so no vocabulary can be trained on it: set config.vocabulary "
                        "to the vocabulary of its tokens"
                    )
                if not document.is_held_out(rule):
                    yield from filter(None, (document.text, *(document.further_texts or ())))


def sample(texts: Iterable[str], num_bytes: int) -> list[str]:
    """Returns the texts with the smallest hashes, at most `num_bytes` in total: a reproducible random sample.

    A sample of a single text may be larger.
    """
    heap: list[tuple[int, str]] = []
    size = 0
    for number, text in enumerate(texts):
        heapq.heappush(heap, (-reading.key(number, text.encode("utf-8")), text))
        size += len(text.encode("utf-8"))
        while size > num_bytes and len(heap) > 1:
            size -= len(heapq.heappop(heap)[1].encode("utf-8"))
    return [text for _, text in sorted(heap)]
