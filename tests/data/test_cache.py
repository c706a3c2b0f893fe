import itertools
import os
import re
import threading
import time

import fsspec
import numpy as np
import pytest

from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.data import cache
from plm_jax.data.cache import file_format, mirror
from tests.support import caches


def test_splits_are_read_as_they_were_written(write_source, random_documents):
    documents = random_documents(0, 50)
    source = cache.open_source(write_source("a", {"train": documents, "validation": documents[:2]}), "a")
    split, flat = source.splits["train"], list(itertools.chain(*documents))
    assert split.tokens(0, len(flat)).tolist() == flat
    assert split.tokens(5, 5).tolist() == []
    assert split.documents.tolist() == np.cumsum([0, *map(len, documents)]).tolist()
    assert split.unigram.tolist() == [flat.count(i) for i in range(100)]
    assert (split.num_tokens, split.num_documents, split.num_bytes) == (len(flat), 50, 3 * len(flat))
    assert source.splits["validation"].num_documents == 2
    assert source.word_initial.tolist() == [i % 2 == 0 for i in range(100)]


@pytest.mark.parametrize("vocab_size, dtype", [(65_536, "<u2"), (65_537, "<u4")])
def test_reads_across_records_and_files_whatever_is_cached(tmp_path, vocab_size, dtype, monkeypatch):
    monkeypatch.setattr(file_format, "SHARD_RECORDS", 2)
    tokens = np.random.default_rng(0).integers(0, vocab_size, 5 * file_format.RECORD_TOKENS + 17)
    tokens[0] = vocab_size - 1
    parts = np.split(tokens, [3, 40_000, 40_001])
    caches.write(tmp_path, "a", {"s": [(part, [0]) for part in parts]}, vocab_size, {})
    split = cache.open_source(str(tmp_path), "a", cached_tokens=1).splits["s"]
    assert split.tokens(0, 1).dtype == dtype
    assert len(list((tmp_path / "a/s").glob("tokens-*"))) == 3
    starts = np.random.default_rng(1).integers(0, len(tokens), 200)

    def read(starts):
        for start in starts:
            stop = min(start + 70_000, len(tokens))
            if not np.array_equal(split.tokens(start, stop), tokens[start:stop]):
                wrong.append(start)

    wrong = []
    threads = [threading.Thread(target=read, args=(starts[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    "name", ["manifest.json", "train/documents.npy", "train/sentence_starts.npy", "train/tokens-00000.array_record"]
)
def test_truncated_file_is_named(write_source, random_documents, tmp_path, name):
    write_source("a", {"train": random_documents(0, 30)})
    os.truncate(tmp_path / "a" / name, os.stat(tmp_path / "a" / name).st_size // 2)
    with pytest.raises(UserError, match=name) as caught:
        cache.open_source(str(tmp_path), "a")
    assert "\n" not in str(caught.value)


def test_manifest_that_disagrees_with_the_files_is_damage(write_source, random_documents, tmp_path):
    write_source("a", {"train": random_documents(0, 30)})
    path, more = tmp_path / "a" / "manifest.json", lambda manifest: counts(manifest).update(documents=31)
    whole = path.read_text()
    path.write_text(whole.replace('"documents": 30', '"documents": 31'))
    with pytest.raises(UserError, match=r"manifest.json is damaged \(it has changed"):
        cache.open_source(str(tmp_path), "a")
    path.write_text(whole)
    caches.rewrite(tmp_path / "a", more)
    with pytest.raises(UserError, match=r"documents.npy is damaged"):
        cache.open_source(str(tmp_path), "a")


def counts(manifest):
    return manifest["splits"]["train"]


MISTAKES = {
    "columns": lambda manifest: manifest.pop("columns"),
    "identity": lambda manifest: manifest.pop("identity"),
    "splits.train.tokens": lambda manifest: counts(manifest).update(tokens="12"),
    "splits.train.blocks": lambda manifest: counts(manifest).update(blocks=[1]),
    "splits.train lacks first_bytes": lambda manifest: counts(manifest)["sizes"].pop("first_bytes"),
    "splits.train lacks unigram": lambda manifest: counts(manifest)["blocks"].pop("unigram"),
    "numbers below 0": lambda manifest: counts(manifest).update(documents=-1),
    "vocabulary.size": lambda manifest: manifest["vocabulary"].update(size=1e300),
    "manifest.vocabulary is": lambda manifest: manifest.update(vocabulary=None),
    "columns.tokens is of O": lambda manifest: manifest["columns"][0].update(dtype="O"),
    "manifest names": lambda manifest: manifest["columns"][1].update(name="../../x"),
    "records": lambda manifest: manifest.update(record_tokens=7),
    "has format None": lambda manifest: manifest.update(format=None),
    "has format 99": lambda manifest: manifest.update(format=99),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_manifest_with_a_bad_field_is_rejected(write_source, random_documents, tmp_path, message):
    write_source("a", {"train": random_documents(0, 30)})
    caches.rewrite(tmp_path / "a", MISTAKES[message])
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        cache.open_source(str(tmp_path), "a")
    assert "\n" not in str(caught.value) and "plm_jax prepare" in str(caught.value)


@pytest.fixture
def remote(write_source, random_documents, tmp_path, monkeypatch):
    """The folder of a local cache of six token files, and of the same one in a bucket; the mirror is empty."""
    monkeypatch.setattr(file_format, "RECORD_TOKENS", 8)
    monkeypatch.setattr(file_format, "SHARD_RECORDS", 2)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    local = write_source("a", {"train": [list(range(96))]})
    cache.upload(os.path.join(local, "a"), "memory://cache/a", show_progress=False)
    yield local, "memory://cache"
    fsspec.filesystem("memory").store.clear()


def mirrored(tmp_path):
    return sorted(path.name for path in (tmp_path / "home").rglob("tokens-*"))


def test_a_remote_cache_is_the_local_one_and_is_fetched_in_pieces(remote, tmp_path):
    one, other = (cache.open_source(folder, "a") for folder in remote)
    assert mirrored(tmp_path) == []
    assert other.splits["train"].tokens(30, 34).tolist() == [30, 31, 32, 33]
    assert mirrored(tmp_path) == ["tokens-00001.array_record", "tokens-00002.array_record"]
    assert other.splits["train"].tokens(0, 96).tolist() == one.splits["train"].tokens(0, 96).tolist()
    for name in ("documents", "sentences", "unigram"):
        assert np.array_equal(getattr(other.splits["train"], name), getattr(one.splits["train"], name))
    assert np.array_equal(other.word_initial, one.word_initial)
    # All that was read is on this machine, where another reader finds it.
    storage.remove("memory://cache/a/train")
    assert cache.open_source("memory://cache", "a").splits["train"].tokens(0, 96).tolist() == list(range(96))


def test_the_manifest_is_uploaded_after_all_other_files(remote, monkeypatch):
    """An upload that ends before its last file leaves no cache that could be opened."""
    local, bucket = remote

    def fail(*_):
        raise UserError("cannot reach the bucket")

    monkeypatch.setattr(storage, "copy", fail)
    with pytest.raises(UserError, match="cannot reach"):
        cache.upload(os.path.join(local, "a"), f"{bucket}/a", show_progress=False)
    uploaded = {path.rpartition("/")[2] for path in fsspec.filesystem("memory").find("/cache/a")}
    assert "tokens-00000.array_record" in uploaded and "manifest.json" not in uploaded


def test_the_mirror_keeps_the_files_that_were_read_last(remote, tmp_path, monkeypatch):
    split = cache.open_source("memory://cache", "a").splits["train"]
    monkeypatch.setattr(mirror, "_MIRROR_FETCHES", 1)
    split.tokens(0, 48)
    first = next((tmp_path / "home").rglob("tokens-00000*"))
    size = first.stat().st_size
    os.utime(first, (later := time.time() + 60, later))  # The clock of files is a coarse one.
    monkeypatch.setattr(mirror, "_MIRROR_BYTES", 2 * size)
    split.tokens(48, 49)
    assert mirrored(tmp_path) == ["tokens-00000.array_record", "tokens-00003.array_record"]
    assert split.tokens(0, 96).tolist() == list(range(96))


def test_a_cache_that_is_replaced_is_never_mixed_up(remote, write_source):
    split = cache.open_source("memory://cache", "a").splits["train"]
    split.tokens(0, 8)
    local = write_source("b", {"train": [list(range(96))[::-1]]})
    caches.rewrite(os.path.join(local, "b"), lambda manifest: manifest.update(identity="other"))
    cache.upload(os.path.join(local, "b"), "memory://cache/a", show_progress=False)
    with pytest.raises(UserError, match="another cache has replaced"):
        split.tokens(40, 48)
    assert cache.open_source("memory://cache", "a").splits["train"].tokens(0, 3).tolist() == [95, 94, 93]


def test_an_upload_that_is_cut_off_leaves_no_cache(remote, monkeypatch):
    def fails(folder, names, target, description):
        upload(folder, names[:2], target, description)
        raise UserError("cut off")

    upload = storage.upload
    monkeypatch.setattr(storage, "upload", fails)
    with pytest.raises(UserError, match="cut off"):
        cache.upload(os.path.join(remote[0], "a"), "memory://cache/a", show_progress=False)
    with pytest.raises(UserError, match="there is no cache at memory://cache/a"):
        cache.open_source("memory://cache", "a")
