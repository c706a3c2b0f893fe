"""Texts to the cache: tokenise, shuffle documents once, write; in bounded memory and to the same bytes every time.

Documents stream from the source, are tokenised in batches and spilled to NUM_SHARDS files chosen by a hash; then each
shard is read, sorted by the hash and written. So the order is a fixed pseudo-random one, and memory holds one shard.
"""

import contextlib
import fcntl
import hashlib
import heapq
import json
import os
import shutil
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tqdm

from plm_jax import config, storage
from plm_jax.data import cache, tasks, vocabularies
from plm_jax.errors import UserError

NUM_SHARDS = 256
_BATCH_CHARACTERS = 2**20
_VOCABULARY_SAMPLE_BYTES = 2**25
_HEADER = struct.Struct("<QB3xIII")  # Hash, whether held out, numbers of tokens, sentences and bytes.


class Document(NamedTuple):
    """A text, its number within the source, and whether it is for validation; of an example `text` is its inputs."""

    number: int
    text: str
    held_out: bool
    targets: str | None = None


def prepare(run: config.Run, output: str | None = None, show_progress: bool = True) -> None:
    """Writes the cache of each of the run's sources into `output` (default: `data.cache_dir`), and its vocabulary.

    A cache whose identity (source contents, task definition, vocabulary, format) has not changed is left as it is. Of
    several processes of a machine at once one works and the others wait for it. A remote cache is made on this machine
    and then uploaded, so that one that was cut off while it uploads only uploads again.

    Raises:
      UserError: whatever the user can mend in sources or vocabulary.
    """
    folder = output or run.data.cache_dir
    for name in run.data.sources:
        if not name.replace("-", "_").isidentifier() or name == "vocabulary":
            raise UserError(f"config.data.sources has '{name}': give a name of letters, digits, - and _")
    local = folder
    if storage.is_remote(folder):
        local = storage.cache_folder("prepare", hashlib.sha256(folder.encode("utf-8")).hexdigest()[:16])
        storage.write(os.path.join(folder, ".lock"), b"")  # It locks nothing, but what cannot be written fails now.
    os.makedirs(local, exist_ok=True)
    with _locked(os.path.join(local, ".lock")):
        vocabulary = _vocabulary(run, show_progress)
        vocabularies.copy(run.vocabulary.spec, os.path.join(folder, "vocabulary"))
        for name in run.data.sources:
            wanted, final, made = identity(run, name, vocabulary), os.path.join(folder, name), os.path.join(local, name)
            if _is_prepared(final, wanted):
                print(f"{name}: up to date at {final}")
                continue
            if not _is_prepared(made, wanted):
                _prepare_source(run, name, vocabulary, wanted, local, show_progress)
            if made != final:
                cache.upload(made, final, show_progress)
                shutil.rmtree(made)
                print(f"{name}: uploaded to {final}")


def _is_prepared(folder: str, wanted: str) -> bool:
    """Whether a folder holds the cache of an identity."""
    with contextlib.suppress(UserError):
        return cache.read_manifest(folder).get("identity") == wanted
    return False


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Holds a lock that the system gives back when the process ends, however it ends."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _vocabulary(run: config.Run, show_progress: bool) -> vocabularies.Vocabulary:
    """The run's vocabulary, trained first if it is a SentencePiece file or one of words that is not there."""
    spec = run.vocabulary
    if spec.spec.startswith(("sentencepiece:", "words:")) and spec.train_size > 0:
        (path,) = vocabularies.files(spec.spec)
        if not storage.exists(path):
            print(f"making a vocabulary of {spec.train_size}: {path}")
            texts = (
                text
                for name, source in run.data.sources.items()
                for document in _documents(run, name, source)
                if not document.held_out
                for text in (document.text, document.targets)
                if text
            )
            bar = tqdm.tqdm(texts, unit=" documents", disable=not show_progress)
            if spec.spec.startswith("words:"):
                vocabularies.count_words(bar, spec, path)
                return vocabularies.load(spec)
            sample = _sample(bar, _VOCABULARY_SAMPLE_BYTES)
            if not sample:
                raise UserError(
                    f"sources {', '.join(run.data.sources)} have no document for training: check their paths"
                )
            vocabularies.train_sentencepiece(sample, spec, path)
    return vocabularies.load(spec)


def _sample(texts: Iterable[str], num_bytes: int) -> list[str]:
    """Up to `num_bytes` of the texts, those with the smallest hashes: a random sample that does not change."""
    kept: list[tuple[int, str]] = []
    size = 0
    for number, text in enumerate(texts):
        heapq.heappush(kept, (-_hash(number, text), text))
        size += len(text.encode("utf-8"))
        while size > num_bytes and len(kept) > 1:
            size -= len(heapq.heappop(kept)[1].encode("utf-8"))
    return [text for _, text in sorted(kept)]


def _hash(number: int, text: str) -> int:
    """64 bits; equal texts differ by their number, so that they do not end up side by side."""
    data = number.to_bytes(8, "little") + text.encode("utf-8")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


def held_out(text: str, fraction: float) -> bool:
    """Whether a document of a source without a validation split is for validation."""
    return zlib.crc32(text.encode("utf-8")) % 1000 < 1000 * fraction


def _documents(run: config.Run, name: str, source: Any) -> Iterator[Document]:
    """All documents of a source; those of its own validation split, else by CRC-32, are held out."""
    task = tasks.task(name, source)
    own = "validation" in task.splits
    number = 0
    for split in ("train", "validation") if own else ("train",):
        for text, targets in _parts(task, split, source):
            if text.strip() or targets:
                out = split == "validation" if own else held_out(text, run.data.validation_fraction)
                yield Document(number, text, out, targets)
                number += 1


def _parts(task: Any, split: str, source: Any) -> Iterator[tuple[str, str | None]]:
    """The text of each document and None, or the inputs and targets of each example."""
    if isinstance(source, config.ExampleSource):
        return ((example.inputs, example.targets) for example in tasks.examples(task, split))
    field = source.field if isinstance(source, config.SeqioTask) else "text"
    return ((text, None) for text in tasks.texts(task, split, field))


def identity(run: config.Run, name: str, vocabulary: vocabularies.Vocabulary) -> str:
    """SHA-256 of a source's contents, task definition, vocabulary and the cache's format version."""
    source = run.data.sources[name]
    task = tasks.task(name, source)
    what = {
        "contents": tasks.fingerprint(source, task),
        "task": tasks.definition(source),
        "validation_fraction": None if "validation" in task.splits else run.data.validation_fraction,
        "vocabulary": vocabularies.identity(vocabulary),
        "format": cache.FORMAT,
    }
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode("utf-8")).hexdigest()


def _prepare_source(
    run: config.Run, name: str, vocabulary: vocabularies.Vocabulary, wanted: str, folder: str, show_progress: bool
) -> None:
    """Writes the cache of a source, of the identity `wanted`, into a local folder."""
    final, temporary = os.path.join(folder, name), os.path.join(folder, f".{name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    spill = os.path.join(temporary, "spill")
    os.makedirs(spill)
    documents = _documents(run, name, run.data.sources[name])
    bar = tqdm.tqdm(
        documents, f"{name}: tokenising", _size(run.data.sources[name]), unit=" documents", disable=not show_progress
    )
    num_documents, has_validation = _tokenise(bar, vocabulary, spill)
    if not num_documents:
        raise UserError(f"source '{name}' has no document with text in it: check its path and field")
    splits = cache.SPLITS if has_validation else ("train",)
    writers = {split: cache.SplitWriter(os.path.join(temporary, split), vocabulary.vocab_size) for split in splits}
    with tqdm.tqdm(None, f"{name}: writing", num_documents, unit=" documents", disable=not show_progress) as bar:
        _write_shards(spill, writers, cache.dtype_for(vocabulary.vocab_size), bar)
    shutil.rmtree(spill)
    counts = {split: writer.close() for split, writer in writers.items()}
    cache.save(os.path.join(temporary, "word_initial.npy"), vocabulary.word_initial)
    if not counts["train"]["tokens"]:
        raise UserError(f"source '{name}' has no document for training: lower config.data.validation_fraction")
    manifest = {
        "identity": wanted,
        "vocabulary": _describe(run.vocabulary, vocabulary),
        "dtype": cache.dtype_for(vocabulary.vocab_size).str,
        "splits": counts,
        "has_examples": isinstance(run.data.sources[name], config.ExampleSource),
    }
    cache.publish(temporary, final, manifest)
    none = "" if has_validation else ", no validation split"
    print(f"{name}: {num_documents:,} documents, {counts['train']['tokens']:,} training tokens{none}: {final}")


def _size(source: Any) -> int | None:
    """The number of documents, where the source tells it."""
    if not isinstance(source, config.Tfds):
        return None
    splits = tasks.task("size", source).source.tfds_dataset.builder.info.splits
    return sum(splits[split].num_examples for split in cache.SPLITS if split in splits)


def _describe(spec: config.Vocabulary, vocabulary: vocabularies.Vocabulary) -> dict[str, Any]:
    """What the manifest says of the vocabulary: all that training needs to know."""
    return {
        "id": vocabularies.identity(vocabulary),
        "size": vocabulary.vocab_size,
        **{name: getattr(spec, name) for name in (*config.SPECIALS, "sentinels")},
        "kind": spec.spec.partition(":")[0],
        "files": {os.path.basename(path): storage.sha256(path) for path in vocabularies.files(spec.spec)},
    }


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Documents in lists of about _BATCH_CHARACTERS."""
    batch, size = [], 0
    for document in documents:
        batch.append(document)
        size += len(document.text) + len(document.targets or "")
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _tokenise(documents: Iterable[Document], vocabulary: vocabularies.Vocabulary, spill: str) -> tuple[int, bool]:
    """Spills all documents into shards; gives their number and whether any is held out."""
    number, any_held_out = 0, False
    dtype = cache.dtype_for(vocabulary.vocab_size)
    with contextlib.ExitStack() as stack:
        shards = [stack.enter_context(open(os.path.join(spill, f"{i:03d}"), "wb")) for i in range(NUM_SHARDS)]
        for batch in _batches(documents):
            for document, (ids, sentences) in zip(batch, _encode(vocabulary, batch), strict=True):
                if not len(ids):
                    continue
                key = _hash(document.number, document.text)
                size = len((document.text + (document.targets or "")).encode("utf-8"))
                header = _HEADER.pack(key, document.held_out, len(ids), len(sentences), size)
                shards[key * NUM_SHARDS >> 64].write(
                    header + ids.astype(dtype).tobytes() + sentences.astype("<u4").tobytes()
                )
                number, any_held_out = number + 1, any_held_out or document.held_out
    return number, any_held_out


def _encode(vocabulary: vocabularies.Vocabulary, documents: list[Document]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Ids of each document and the first token of each of its sentences: of an example, of its inputs and targets."""
    if documents[0].targets is None:
        return vocabulary.encode_sentences([document.text for document in documents])
    parts = [part for document in documents for part in (document.text, document.targets)]
    ids = [np.asarray(found, np.int64) for found, _ in vocabulary.encode_offsets(parts)]
    pairs = zip(ids[::2], ids[1::2], strict=True)
    return [(np.concatenate(pair), np.array([0, len(pair[0])])) for pair in pairs]


def _write_shards(spill: str, writers: dict[str, cache.SplitWriter], dtype: np.dtype, bar: tqdm.tqdm) -> None:
    """Moves the spilled documents to the writers, in the order of their hashes."""
    for shard in sorted(os.listdir(spill)):
        with open(os.path.join(spill, shard), "rb") as file:
            data = file.read()
        rows, offset = [], 0
        while offset < len(data):
            key, out, num_tokens, num_sentences, size = _HEADER.unpack_from(data, offset)
            rows.append((key, out, offset + _HEADER.size, num_tokens, num_sentences, size))
            offset += _HEADER.size + num_tokens * dtype.itemsize + num_sentences * 4
        for _, out, at, num_tokens, num_sentences, size in sorted(rows):
            tokens = np.frombuffer(data, dtype, num_tokens, at)
            sentences = np.frombuffer(data, "<u4", num_sentences, at + tokens.nbytes)
            writers["validation" if out else "train"].add(tokens, np.zeros(1, np.int64), sentences, size)
            bar.update()
        os.remove(os.path.join(spill, shard))
