"""Remote caches read by range: files of tokens, long vectors, and batches."""

import bisect
import io
import itertools
import os
import threading

import fsspec
import numpy as np
import pytest
from array_record.python import array_record_module

from plm_jax import config, objectives
from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.data import cache
from plm_jax.data.cache import file_format, mirror, shards, sorted_ids, vectors
from tests.support import caches
from tests.support.data import changed, open_reader


@pytest.mark.parametrize("record, total", [(2**16, 5 * 2**16 - 1003), (2**17, 2 * 2**17), (100, 12_345), (64, 7)])
def test_any_range_of_a_file_of_records_is_read_by_arithmetic(tmp_path, record, total):
    data, path = np.random.default_rng(0).bytes(total), str(tmp_path / "file")
    writer = array_record_module.ArrayRecordWriter(path, "group_size:1,uncompressed")
    for start in range(0, total, record):
        writer.write(data[start : start + record])
    writer.close()
    raw = (tmp_path / "file").read_bytes()
    shard = shards.Shard(lambda start, stop: raw[start:stop], record, total)
    edges = {0, 1, record - 1, record, record + 1, 2**16 - 24, 2**16, total - 1, total}
    edges |= set(np.random.default_rng(1).integers(0, total, 40).tolist())
    for start, stop in itertools.combinations(sorted(edge for edge in edges if edge <= total), 2):
        assert shard.read(start, stop) == data[start:stop]
    with pytest.raises(ValueError, match="ends before"):
        shards.Shard(lambda start, stop: raw[start : stop - 1], record, total).read(0, 1)


def ranged(numbers, page):
    """Numbers as if they were in a bucket, and a list of how many bytes are fetched each time."""
    file, fetched = io.BytesIO(), []
    np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": numbers.shape})
    data = file.getvalue() + numbers.astype("<i8").tobytes()

    def fetch(start, stop):
        fetched.append(stop - start)
        return data[start:stop]

    milestones = sorted_ids.milestones(numbers, int(numbers[-1]))
    paged = sorted_ids.PagedVector("v.npy", fetch, lambda: numbers, len(numbers), "<i8", page, milestones=milestones)
    return paged, fetched


@pytest.mark.parametrize("kind", ["even", "uneven", "repeated"])
def test_search_in_sorted_numbers_counts_as_bisection(monkeypatch, kind):
    monkeypatch.setattr(file_format, "MILESTONE_TOKENS", 1000)
    rng = np.random.default_rng(0)
    sizes = {
        "even": rng.integers(1, 9, 3000),
        "uneven": np.where(np.arange(3000) % 300 == 0, 2500, 1),
        "repeated": rng.integers(0, 2, 3000),
    }[kind]
    numbers = np.cumsum([0, *sizes])
    total = int(numbers[-1])
    afar, fetched = ranged(numbers, 16)
    for slope in (0, 1, 2):
        searches = [sorted_ids.Search(of, sorted_ids.milestones(numbers, total), slope) for of in (numbers, afar)]
        shifted = (numbers + slope * np.arange(len(numbers))).tolist()
        for limit in [-1, 0, 1, total, shifted[-1] + 5, *rng.integers(0, shifted[-1], 300).tolist()]:
            expected = bisect.bisect_right(shifted, limit)
            for vector in (numbers, afar):
                assert searches[vector is afar].count(limit) == expected, (slope, limit)
    values = rng.integers(0, total, 50)
    for side in ("left", "right"):
        assert afar.searchsorted(values, side).tolist() == numbers.searchsorted(values, side).tolist()
    assert max(fetched) == 16 * 8
    assert (afar[17], afar[-1], len(afar)) == (numbers[17], numbers[-1], len(numbers))
    assert afar[5:70].tolist() == numbers[5:70].tolist() and afar[7:3:1].tolist() == []
    assert np.array_equal(np.asarray(afar), numbers)
    with pytest.raises(IndexError):
        afar[len(numbers)]
    # Milestones are where they are without a look.
    again, fetched = ranged(numbers, 16)
    assert again.searchsorted(np.arange(3) * 1000).tolist() == numbers.searchsorted(np.arange(3) * 1000).tolist()
    assert len(fetched) == 1


def test_milestones_that_are_written_are_those_of_all_numbers(write_source, random_documents, monkeypatch):
    monkeypatch.setattr(file_format, "MILESTONE_TOKENS", 16)
    documents = [*random_documents(0, 40), list(range(70)), *random_documents(1, 3)]
    split = cache.open_source(write_source("a", {"train": documents}), "a").splits["train"]
    assert split.milestones.tolist() == sorted_ids.milestones(split.documents, split.num_tokens).tolist()
    assert "documents.milestones" in split._names() and "sentence_starts.milestones" in split._names()
    split.verify()


@pytest.fixture
def afar(monkeypatch, tmp_path):
    """Uploads what is in a folder: `afar(folder)`; vectors of more than 0 bytes are long, shards are small."""
    monkeypatch.setattr(file_format, "RECORD_TOKENS", 64)
    monkeypatch.setattr(file_format, "SHARD_RECORDS", 4)
    monkeypatch.setattr(file_format, "MILESTONE_TOKENS", 128)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def upload(folder, *names):
        monkeypatch.setattr(vectors, "_SHORT_BYTES", -1)
        for name in names:
            cache.upload(os.path.join(folder, name), f"memory://cache/{name}", show_progress=False)
        return "memory://cache"

    yield upload
    fsspec.filesystem("memory").store.clear()


RUNS = {
    "causal": (objectives.Causal(), config.Blocks()),
    "apart": (objectives.Causal(), config.Blocks(attend_across_documents=False)),
    "sentences": (objectives.Denoising(), config.Blocks()),
    "pairs": (objectives.MaskedLM(), config.SentencePairs()),
    "full_sentences": (objectives.Denoising(insert=0.1), config.FullSentences()),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_host_makes_the_same_rows_from_fetched_ranges(make_run, afar, tmp_path, name):
    objective, layout = RUNS[name]
    rng, documents = np.random.default_rng(0), []
    for _ in range(80):
        sizes = rng.integers(1, 12, rng.integers(1, 5))
        documents.append((rng.integers(0, 90, sizes.sum()), np.cumsum(sizes) - sizes))
    specials = {"pad": 90, "mask": 91, "cls": 92, "sep": 93, "bos": 94}
    caches.write(tmp_path, "a", {"train": documents}, 100, {"kind": "bytes", "eos": 99, "unk": None, **specials})
    data = {"layout": layout, "length": 16}
    local = make_run("a", objective=objective, data=data, train={"batch_size": 16}, **specials)
    remote = changed(local, data={"cache_dir": afar(str(tmp_path), "a")})
    one, other = open_reader(local), open_reader(remote, share=1 / 256)
    walks = not isinstance(layout, config.Blocks)
    assert isinstance(other.sources["a"].splits["train"].documents, sorted_ids.PagedVector)
    for step in (0, 1, 17):
        for rows in (range(3, 4), range(9, 12)):
            ours, theirs = one.batch(step, rows), other.batch(step, rows)
            np.testing.assert_equal(theirs, ours)
    mirrored = {path.name for path in (tmp_path / "home").rglob("*.*") if path.is_file()}
    assert not any(name.startswith("tokens") for name in mirrored)
    assert ("documents.npy" in mirrored) == walks and "documents.milestones.npy" in mirrored


def test_a_changed_remote_file_is_named(write_source, random_documents, afar, tmp_path):
    write_source("a", {"train": random_documents(0, 60)})
    remote = afar(str(tmp_path), "a")
    split = cache.open_source(remote, "a", share=1 / 256).splits["train"]
    name, files = "/cache/a/train/tokens-00001.array_record", fsspec.filesystem("memory")
    data = files.cat_file(name)
    changed_bytes = bytearray(data)
    changed_bytes[200] ^= 1
    for other in (data[4:], bytes(changed_bytes)):
        files.pipe_file(name, other)
        with pytest.raises(UserError, match=r"train/tokens-00001.array_record is damaged \(its bytes have changed"):
            split.tokens(256, 300)
    files.pipe_file(name, data[:200])
    with pytest.raises(UserError, match=r"tokens-00001.array_record is damaged"):
        split.tokens(400, 440)
    storage.remove(f"memory:/{name}")
    with pytest.raises(UserError, match="cannot reach memory://cache/a/train/tokens-00001"):
        split.tokens(256, 300)


def test_rows_that_are_fetched_one_by_one_are_fetched_at_once(
    make_run, write_source, random_documents, afar, tmp_path, monkeypatch
):
    write_source("a", {"train": random_documents(0, 60)})
    data = {"length": 16, "cache_dir": afar(str(tmp_path), "a")}
    opened = open_reader(make_run("a", data=data, train={"batch_size": 16}), share=1 / 256)
    barrier, read, calls = threading.Barrier(4, timeout=60), storage.read_range, itertools.count()

    def wait(path, *bounds):
        if "tokens-" in path and next(calls) < 4:
            barrier.wait()
        return read(path, *bounds)

    monkeypatch.setattr(storage, "read_range", wait)
    assert opened.batch(0, range(4))["targets"].shape == (4, 16)


def test_a_replaced_remote_cache_is_detected(write_source, random_documents, afar, tmp_path, monkeypatch):
    write_source("a", {"train": random_documents(0, 60)})
    remote = afar(str(tmp_path), "a")
    split = cache.open_source(remote, "a", share=1 / 256).splits["train"]
    monkeypatch.setattr(mirror, "_CHECK_SECONDS", 0.0)
    assert len(split.tokens(0, 40)) == 40
    caches.rewrite(tmp_path / "a", lambda manifest: manifest.update(identity="other"))
    storage.copy(str(tmp_path / "a/manifest.json"), f"{remote}/a/manifest.json")
    with pytest.raises(UserError, match="another cache has replaced"):
        split.tokens(0, 40)
