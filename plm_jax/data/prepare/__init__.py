"""Texts to the cache: tokenise, shuffle documents once, write; in bounded memory and to the same bytes every time.

Documents stream from the source, are tokenised in batches by a process a core (`workers.py`) and spilled to NUM_SHARDS
files chosen by a hash; then each shard is read, sorted by the hash and written. So the order is a fixed pseudo-random
one whatever the number of processes, and memory holds some batches and then where the documents of one shard are.
"""

import contextlib
import dataclasses
import hashlib
import heapq
import itertools
import json
import os
import shutil
import types
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import tqdm

from plm_jax import config
from plm_jax.common import progress, storage
from plm_jax.common.errors import UserError
from plm_jax.data import cache, vocabularies
from plm_jax.data.cache import origins
from plm_jax.data.prepare import segmenters, workers
from plm_jax.data.sources import files, task_mixtures
from plm_jax.data.vocabularies import sentences, stretches, training

NUM_SHARDS = 256
_BATCH_CHARACTERS = 2**20
_VOCABULARY_SAMPLE_BYTES = 2**25
Item = TypeVar("Item")
Rule = Callable[[str], list[int]]  # Text → the characters at which a part other than the first begins.
_COUNTS = ("tokens", "sentences", "words")
_STARTS = np.dtype("<u4")
_ROW = np.dtype(
    [("key", "<u8"), ("bytes", "<u8"), *((name, "<u4") for name in (*_COUNTS, "first_bytes")), ("held_out", "?")]
)
_SHARD_SHIFT = np.uint64(64 - 8)  # A shard for each first byte of the hash.
# Fewer are tokenised before other processes have begun.
_INLINE_BATCHES = 4
# How many tokens are moved at a time from the spill to the cache.
_WRITE_TOKENS = 2**22


class Document(NamedTuple):
    """A text, its number within the source, and whether it is for validation; of an example `text` is its inputs."""

    number: int
    text: str
    held_out: bool
    targets: str | None = None


def prepare(
    run: config.Run, output: str | None = None, show_progress: bool = True, beam_options: Sequence[str] | None = None
) -> None:
    """Writes the cache of each of the run's sources into `output` (default: `data.cache_dir`), and its vocabulary.

    A source with a rate of 0 all the time is left out; of a mixture of seqio's each task has a cache
    (`task_mixtures`). With `beam_options` Apache Beam tokenises, where and with how many workers they say
    (`data/beam.py`); the cache is the same.

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
                origin = origins.look(sources[name], lambda name=name: fingerprint(name, sources[name]))
            wanted = identity(run, name, vocabulary, origin.contents)
            if _is_prepared(final, wanted):
                origins.note(final, sources[name], origin)
                print(f"{name}: up to date at {final}")
                continue
            if not _is_prepared(made, wanted):
                _prepare_source(run, name, vocabulary, wanted, local, show_progress, beam_options, origin)
            _upload(name, made, final, show_progress)
        for name in parts:
            own = all("validation" in _splits(part, run.data.sources[part]) for part in parts[name])
            manifest = task_mixtures.manifest(given, name, parts[name], own)
            _prepare_mixture(name, manifest, folder, local, show_progress)


def _parts_of_mixtures(run: config.Run) -> dict[str, task_mixtures.Parts]:
    """The parts of each source of the run that is a mixture, from seqio."""
    found = {}
    for name, source in config.read_sources(run).items():
        if isinstance(source, config.Registered) and (rates := _tasks().rates(source)) is not None:
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
            texts = _sample(texts, _VOCABULARY_SAMPLE_BYTES)
            if not texts:
                raise UserError(
                    f"sources {', '.join(config.read_sources(run))} have no document for training: check their paths"
                )
        with progress.doing("training the vocabulary"):
            training.train(texts, spec, show_progress)
    return vocabularies.load_plain(spec)


def _training_texts(run: config.Run, show_progress: bool) -> Iterator[str]:
    """The texts of all sources that are not held out."""
    for name, source in config.read_sources(run).items():
        with _bar(f"{name}: reading", name, source, show_progress) as bar:
            for document in _documents(run, name, source, advance=bar.update):
                if not document.held_out:
                    yield from filter(None, (document.text, document.targets))


def _sample(texts: Iterable[str], num_bytes: int) -> list[str]:
    """Up to `num_bytes` of the texts, those with the smallest hashes: a random sample that does not change."""
    kept: list[tuple[int, str]] = []
    size = 0
    for number, text in enumerate(texts):
        heapq.heappush(kept, (-_hash(number, text.encode("utf-8")), text))
        size += len(text.encode("utf-8"))
        while size > num_bytes and len(kept) > 1:
            size -= len(heapq.heappop(kept)[1].encode("utf-8"))
    return [text for _, text in sorted(kept)]


def _hash(number: int, text: bytes) -> int:
    """64 bits; equal texts differ by their number, so that they do not end up side by side."""
    digest = hashlib.blake2b(number.to_bytes(8, "little"), digest_size=8)
    digest.update(text)
    return int.from_bytes(digest.digest(), "big")


def held_out(text: str, fraction: float) -> bool:
    """Whether a document of a source without a validation split is for validation."""
    return zlib.crc32(text.encode("utf-8")) % 1000 < 1000 * fraction


def hold_out(texts: Sequence[str], fraction: float) -> list[bool]:
    """Which of all documents of such a source are for validation: if CRC-32 takes none, that of the smallest hash."""
    held = [held_out(text, fraction) for text in texts]
    if not any(held) and _holds_first(len(texts), fraction):
        held[min(range(len(texts)), key=lambda number: _hash(number, texts[number].encode("utf-8")))] = True
    return held


def _holds_first(num_documents: int, fraction: float) -> bool:
    """Whether of so many documents, of which CRC-32 takes none, one is held out; never the only one."""
    return fraction > 0 and num_documents > 1


class Piece(NamedTuple):
    """A part of a source that one worker reads: of a split all or a shard."""

    split: str
    shard: Any


def pieces(name: str, source: Any, most: int = 1) -> list[Piece]:
    """The parts of a source, in order; of files up to `most` in a split, each of as many neighbours."""
    if isinstance(source, files.Files):
        numbers = {split: min(most, len(files.paths(files.of_split(source, split)))) for split in files.splits(source)}
        return [Piece(split, (index, number)) for split, number in numbers.items() for index in range(number)]
    tasks, task = _task(name, source)
    splits = [split for split in cache.SPLITS if split in task.splits]
    return [Piece(split, shard) for split in splits for shard in tasks.shards(source, task, split)]


def _tasks() -> types.ModuleType:
    """The module `tasks`, for a source that is no file's: only then seconds are spent on TensorFlow."""
    with progress.doing("importing TensorFlow"):
        from plm_jax.data.sources import tasks
    return tasks


def _task(name: str, source: Any) -> tuple[types.ModuleType, Any]:
    """The module `tasks` and the task of a source that is no file's."""
    tasks = _tasks()
    return tasks, tasks.task(name, source)


def _splits(name: str, source: Any) -> tuple[str, ...]:
    return files.splits(source) if isinstance(source, files.Files) else tuple(_task(name, source)[1].splits)


def documents(
    run: config.Run,
    name: str,
    piece: Piece,
    first: int,
    skipped: files.Skipped | None = None,
    advance: Callable[[int], Any] = lambda size: None,
) -> Iterator[Document]:
    """The documents of a piece, numbered from `first`; of a source without a validation split CRC-32 holds some out.

    Where the run skips bad rows of files, `skipped` counts them. `advance` is told of files how many bytes more were
    read, of other sources of each document.
    """
    source = run.data.sources[name]
    own, fraction = "validation" in _splits(name, source), run.data.validation_fraction
    skipped = (skipped or files.Skipped()) if run.data.bad_rows == "skip" else None
    found = (parts for parts in _parts(name, source, piece, skipped, advance) if parts[0].strip() or parts[1])
    for number, (text, targets) in enumerate(found, first):
        held = piece.split == "validation" if own else held_out(text, fraction)
        yield Document(number, text, held, targets)


def _documents(
    run: config.Run,
    name: str,
    source: Any,
    skipped: files.Skipped | None = None,
    advance: Callable[[int], Any] = lambda size: None,
) -> Iterator[Document]:
    """All documents of a source, one piece after another."""
    number = 0
    for piece in pieces(name, source):
        for document in documents(run, name, piece, number, skipped, advance):
            yield document
            number = document.number + 1


def _parts(
    name: str, source: Any, piece: Piece, skipped: files.Skipped | None, advance: Callable[[int], Any]
) -> Iterator[tuple[str, str | None]]:
    """The text of each document and None, or the inputs and targets of each example."""
    if isinstance(source, files.Files):
        for texts in files.read(files.of_split(source, piece.split), *piece.shard, skipped, advance):
            yield (texts, None) if isinstance(texts, str) else texts
        return
    tasks, task = _task(name, source)
    if isinstance(source, config.InputsTargetsSource):
        found = ((example.inputs, example.targets) for example in tasks.examples(task, piece.split, piece.shard))
    else:
        field = source.field if isinstance(source, config.SeqioTask) else "text"
        found = ((text, None) for text in tasks.texts(task, piece.split, field, piece.shard))
    for parts in found:
        advance(1)
        yield parts


def identity(
    run: config.Run, name: str, vocabulary: vocabularies.Vocabulary, contents: Sequence[str] | None = None
) -> str:
    """SHA-256 of a source's contents, its `fingerprint`, task definition, vocabulary and the cache's format version."""
    source = run.data.sources[name]
    what = {
        "contents": fingerprint(name, source) if contents is None else contents,
        "task": files.definition(source),
        "validation_fraction": None if "validation" in _splits(name, source) else run.data.validation_fraction,
        "vocabulary": vocabularies.identity(vocabulary),
        "format": cache.FORMAT,
    }
    if name in run.data.segmenters:
        what["segmenter"] = run.data.segmenters[name]
    if run.data.bad_rows == "skip" and isinstance(source, files.Files):
        what["bad_rows"] = "skip"
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode("utf-8")).hexdigest()


def fingerprint(name: str, source: Any) -> list[str]:
    """What a source holds, as text to hash."""
    if isinstance(source, files.Files):
        return files.fingerprint(source)
    tasks, task = _task(name, source)
    return tasks.fingerprint(source, task)


def _prepare_source(
    run: config.Run,
    name: str,
    vocabulary: vocabularies.Vocabulary,
    wanted: str,
    folder: str,
    show_progress: bool,
    beam_options: Sequence[str] | None,
    origin: origins.Origin,
) -> None:
    """Writes the cache of a source, of the identity `wanted`, into a local folder."""
    final, temporary = os.path.join(folder, name), os.path.join(folder, f".{name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    spill = os.path.join(temporary, "spill")
    os.makedirs(spill)
    segmenter, skipped = run.data.segmenters.get(name), files.Skipped()
    if beam_options is None:
        with _bar(f"{name}: tokenising", name, run.data.sources[name], show_progress) as bar:
            unread = _documents(run, name, run.data.sources[name], skipped, bar.update)
            num_documents, has_validation = _tokenise(unread, run, name, spill)
    else:
        from plm_jax.data.prepare import beam  # A heavy import, and an optional one.

        num_documents, has_validation = beam.tokenise(run, name, spill, beam_options, skipped, show_progress)
    skipped.check(name)
    if not num_documents:
        raise UserError(f"source '{name}' has no document with text in it: check its path and field")
    own = "validation" in _splits(name, run.data.sources[name])
    hold_first = not (own or has_validation) and _holds_first(num_documents, run.data.validation_fraction)
    splits = cache.SPLITS if has_validation or hold_first else ("train",)
    writers = {
        split: cache.SplitWriter(os.path.join(temporary, split), vocabulary.vocab_size, has_words=bool(segmenter))
        for split in splits
    }
    with tqdm.tqdm(None, f"{name}: writing", num_documents, unit=" documents", disable=not show_progress) as bar:
        _write_shards(spill, writers, cache.dtype_for(vocabulary.vocab_size), hold_first, bar)
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
        "source": origins.describe(run, name, own),
        "has_examples": isinstance(run.data.sources[name], config.InputsTargetsSource),
    }
    if segmenter:
        manifest["segmenter"] = segmenter
    if skipped.bad:
        manifest["bad_rows"] = dataclasses.asdict(skipped)
    origins.note(temporary, run.data.sources[name], origin)
    cache.publish(temporary, final, manifest)
    held = "none held out, so validation leaves it out"
    if "validation" in counts:
        held = f"{counts['validation']['documents']:,} held out"
    tokens, size = (sum(split[of] for split in counts.values()) for of in ("tokens", "bytes"))
    print(
        f"{name}: {num_documents:,} documents, {held}, {counts['train']['tokens']:,} training tokens, "
        f"{size / tokens:.2f} bytes a token: {final}"
    )
    if skipped.bad:
        print(f"{name}: left out {skipped.bad:,} bad rows of {skipped.rows:,} ({'; '.join(skipped.first)})")


def _bar(description: str, name: str, source: Any, show: bool) -> tqdm.tqdm:
    """Progress through a source: bytes of files, documents of another, of all if it tells how many there are."""
    if isinstance(source, files.Files):
        return tqdm.tqdm(None, description, files.size(source), unit="B", unit_scale=True, disable=not show)
    total = None
    if isinstance(source, config.Tfds):
        _, task = _task(name, source)
        total = sum(task.source.num_input_examples(split) for split in task.splits)
    return tqdm.tqdm(None, description, total, unit=" documents", disable=not show)


def _describe(spec: config.Vocabulary, vocabulary: vocabularies.Vocabulary) -> dict[str, Any]:
    """What the manifest says of the vocabulary: all that training needs to know."""
    return {
        "id": vocabularies.identity(vocabulary),
        "size": vocabulary.vocab_size,
        **{name: getattr(spec, name) for name in (*config.SPECIALS, "sentinels")},
        **({"lowercase": True} if spec.lowercase else {}),
        "kind": spec.spec.partition(":")[0],
        "files": {os.path.basename(path): storage.sha256(path) for path in vocabularies.files(spec.spec)},
    }


class Batch(NamedTuple):
    """Some documents one after another: the number of the first; of examples the texts are inputs."""

    first: int
    texts: list[str]
    targets: list[str] | None
    held_out: list[bool]


class Block(NamedTuple):
    """Tokenised documents, with how many there are and whether any is for validation; by shard, in the spill's form.

    In a shard they are: how many documents, tokens, sentences and words there are; a `_ROW` of each document; all
    tokens; where sentences and where words begin in their documents. Each part fills whole words of eight bytes.
    """

    documents: int
    any_held_out: bool
    shards: list[bytes]

    def __len__(self) -> int:
        return sum(map(len, self.shards))


def encoder(spec: config.Vocabulary, segmenter: str | None = None) -> Callable[[Batch], Block]:
    """What tokenises, here or in a process of its own. `segmenter` finds the words where the vocabulary does not."""
    vocabulary = vocabularies.load_plain(spec)
    rules = [sentences.boundaries, *([segmenters.load(segmenter)] if segmenter else [])]
    return lambda batch: encode(batch, vocabulary, rules)


def encode(batch: Batch, vocabulary: vocabularies.Vocabulary, rules: Sequence[Rule]) -> Block:
    """The documents of a batch that have tokens."""
    texts = [text.encode("utf-8") for text in batch.texts]
    rows = np.zeros(len(texts), _ROW)
    rows["key"] = [_hash(number, text) for number, text in enumerate(texts, batch.first)]
    rows["held_out"], rows["bytes"] = batch.held_out, list(map(len, texts))
    if batch.targets is None:
        ids, ends, starts, rows["first_bytes"] = vocabulary.encode_parts(batch.texts, rules)
    else:
        rows["bytes"] += np.array([len(target.encode("utf-8")) for target in batch.targets], np.uint64)
        both = [text for pair in zip(batch.texts, batch.targets, strict=True) for text in pair]
        ids, ends, _, _ = vocabulary.encode_parts(both, [])
        starts, ends = [ends[:-1]], ends[::2]
    tokens = np.diff(ends)
    counts = [np.diff(np.searchsorted(of_all, ends)) for of_all in starts]
    if batch.targets is not None:  # Either part may have no tokens, and yet begins.
        counts = [np.full(len(texts), 2)]
    columns = [ids.astype(cache.dtype_for(vocabulary.vocab_size))]
    for of_all, count in zip(starts, counts, strict=True):
        columns.append((of_all - np.repeat(ends[:-1], count)).astype(_STARTS))
    for name, count in zip(_COUNTS, (tokens, *counts), strict=False):
        rows[name] = count
    order = np.argsort(rows["key"], kind="stable")
    order = order[tokens[order] > 0]
    places = np.searchsorted(rows["key"][order] >> _SHARD_SHIFT, np.arange(NUM_SHARDS + 1))
    shards = [_block(rows, columns, order[a:b]) for a, b in itertools.pairwise(places.tolist())]
    return Block(len(order), bool(rows["held_out"][order].any()), shards)


def _block(rows: np.ndarray, columns: Sequence[np.ndarray], chosen: np.ndarray) -> bytes:
    """Some of the documents in the spill's form."""
    if not len(chosen):
        return b""
    picked, parts = rows[chosen], []
    for name, column in zip(_COUNTS, columns, strict=False):
        sizes = rows[name].astype(np.int64)
        parts.append(column[stretches.ranges((np.cumsum(sizes) - sizes)[chosen], sizes[chosen])])
    sizes = [picked[name].sum() for name in _COUNTS]
    parts = [np.array([len(picked), *sizes], "<u8").tobytes(), picked.tobytes(), *(part.tobytes() for part in parts)]
    return b"".join(part + bytes(-len(part) % 8) for part in parts)


def _batches(documents: Iterable[Document]) -> Iterator[Batch]:
    """All documents, whose numbers have no gaps."""
    for found in batches(documents, _BATCH_CHARACTERS, lambda document: len(document.text + (document.targets or ""))):
        numbers, texts, held_out, targets = zip(*found, strict=True)
        yield Batch(numbers[0], list(texts), None if targets[0] is None else list(targets), list(held_out))


def batches(items: Iterable[Item], limit: int, size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Items in lists, each of which ends when its sizes add up to `limit`."""
    batch, total = [], 0
    for item in items:
        batch.append(item)
        total += size(item)
        if total >= limit:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


@contextlib.contextmanager
def open_shards(spill: str) -> Iterator[list[BinaryIO]]:
    """The files of the shards in a folder, to be written one after another in any order."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(open(os.path.join(spill, f"{i:03d}"), "wb")) for i in range(NUM_SHARDS)]


def blocks(documents: Iterable[Document], encoder: Callable[[Batch], Block]) -> Iterator[Block]:
    """The documents tokenised in this process."""
    return map(encoder, _batches(documents))


def _tokenise(documents: Iterable[Document], run: config.Run, name: str, spill: str) -> tuple[int, bool]:
    """Spills all documents into shards, with a process for each core; gives their number and whether any is held out.

    What processes make comes in the order of the documents, so that their number makes no difference.
    """
    number, any_held_out = 0, False
    arguments, found = (run.vocabulary, run.data.segmenters.get(name)), _batches(documents)
    head = list(itertools.islice(found, _INLINE_BATCHES))
    found, processes = itertools.chain(head, found), workers.cores()
    if processes == 1 or len(head) < _INLINE_BATCHES:
        processes = 0
    with open_shards(spill) as shards, contextlib.ExitStack() as stack:
        if processes:
            made = stack.enter_context(contextlib.closing(workers.in_order(encoder, arguments, found, processes)))
        else:
            made = map(encoder(*arguments), found)
        for block in made:
            for file, data in zip(shards, block.shards, strict=True):
                file.write(data)
            number, any_held_out = number + block.documents, any_held_out or block.any_held_out
    return number, any_held_out


class _Shard:
    """The documents that a file of the spill holds, memory-mapped."""

    def __init__(self, path: str, dtype: np.dtype):
        data = np.memmap(path, np.uint64, "r")
        rows, firsts, offset = [], [], 0
        while offset < len(data):
            number, *sizes = data[offset : offset + 4].astype(np.int64).tolist()
            end = offset + 4 + _words(number * _ROW.itemsize)
            rows.append(data[offset + 4 : end].view(np.uint8)[: number * _ROW.itemsize].view(_ROW))
            columns = []
            for name, size, itemsize in zip(_COUNTS, sizes, (dtype.itemsize, 4, 4), strict=True):
                of_each = rows[-1][name].astype(np.int64)
                columns.append(end * (8 // itemsize) + np.cumsum(of_each) - of_each)
                end += _words(size * itemsize)
            firsts.append(np.stack(columns, 1))
            offset = end
        self.rows, firsts = np.concatenate(rows), np.concatenate(firsts)
        kinds = zip(_COUNTS, (dtype, _STARTS, _STARTS), strict=True)
        self._columns = {name: (data.view(kind), firsts[:, i]) for i, (name, kind) in enumerate(kinds)}

    def take(self, name: str, documents: np.ndarray) -> np.ndarray:
        """A column of some documents."""
        values, firsts = self._columns[name]
        return values[stretches.ranges(firsts[documents], self.rows[name][documents].astype(np.int64))]


def _words(size: int) -> int:
    """Whole words of eight bytes that hold so many bytes."""
    return -(-size // 8)


def _write_shards(
    spill: str, writers: dict[str, cache.SplitWriter], dtype: np.dtype, hold_first: bool, bar: tqdm.tqdm
) -> None:
    """Moves the spilled documents to the writers, in the order of their hashes; `hold_first`: the first is held out."""
    for name in sorted(os.listdir(spill)):
        path = os.path.join(spill, name)
        if os.path.getsize(path):
            shard = _Shard(path, dtype)
            order = np.argsort(shard.rows["key"], kind="stable")
            if hold_first:
                shard.rows["held_out"][order[0]], hold_first = True, False
            pieces = np.cumsum(shard.rows["tokens"][order], dtype=np.int64) // _WRITE_TOKENS
            for documents in np.split(order, np.flatnonzero(np.diff(pieces)) + 1):
                _write(shard, documents, writers)
                bar.update(len(documents))
            del shard
        os.remove(path)


def _write(shard: _Shard, documents: np.ndarray, writers: dict[str, cache.SplitWriter]) -> None:
    """Moves documents of a shard to the writers."""
    for held_out, split in enumerate(cache.SPLITS):
        chosen = documents[shard.rows["held_out"][documents] == held_out]
        if not len(chosen):
            continue
        sizes = shard.rows["tokens"][chosen].astype(np.int64)
        begins = np.cumsum(sizes) - sizes
        starts, words = (
            shard.take(name, chosen) + np.repeat(begins, shard.rows[name][chosen].astype(np.int64))
            for name in ("sentences", "words")
        )
        rows = shard.rows[chosen]
        writers[split].add(
            shard.take("tokens", chosen), begins, starts, int(rows["bytes"].sum()), rows["first_bytes"], words
        )
