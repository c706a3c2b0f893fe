"""Damage of a cache's indices: found in one line when it is first read, and nothing wrong is ever read."""

import dataclasses
import itertools
import json
import os
import re

import numpy as np
import pytest

from plm_jax import config, objectives
from plm_jax.common.errors import UserError
from plm_jax.data import cache
from plm_jax.data.cache import file_format, sorted_ids, vectors
from plm_jax.data.reader import Reader
from plm_jax.runs import preparation
from tests.support import caches

SPECIALS = {"pad": 90, "mask": 91, "cls": 92, "sep": 93, "bos": 94}


@pytest.fixture
def long(monkeypatch):
    """Every vector is a long one, read by pages of 256 bytes; records and files of them are short."""
    monkeypatch.setattr(vectors, "_SHORT_BYTES", -1)
    monkeypatch.setattr(cache.checked, "_PAGE", 32)
    monkeypatch.setattr(file_format, "RECORD_TOKENS", 256)
    monkeypatch.setattr(file_format, "SHARD_RECORDS", 2)
    monkeypatch.setattr(file_format, "MILESTONE_TOKENS", 512)


@pytest.fixture
def write(tmp_path):
    """Writes the cache of source `a`: 300 documents of some sentences; gives its folder."""

    def make():
        rng, documents = np.random.default_rng(0), []
        for _ in range(300):
            sizes = rng.integers(1, 12, rng.integers(1, 5))
            documents.append((rng.integers(0, 90, sizes.sum()), np.cumsum(sizes) - sizes))
        caches.write(tmp_path, "a", {"train": documents}, 100, {"kind": "bytes", "eos": 99, "unk": None, **SPECIALS})
        return tmp_path / "a"

    return make


def batches(run, number=8):
    opened = Reader(config.reader_config(run))
    return [opened.batch(step, range(run.train.batch_size)) for step in range(number)]


RUNS = {
    "causal": (objectives.Causal(), config.Blocks(attend_across_documents=False)),
    "sentences": (objectives.Denoising(), config.Blocks()),
    "pairs": (objectives.MaskedLM(), config.SentencePairs(duplicates=2)),
}


@pytest.mark.parametrize("name", RUNS)
def test_rows_are_the_same_however_long_vectors_are(write, make_run, monkeypatch, long, name):
    folder, (objective, layout) = write(), RUNS[name]
    run = make_run("a", objective=objective, data={"layout": layout, "length": 16}, **SPECIALS)
    paged = batches(run)
    assert isinstance(cache.open_source(str(folder.parent), "a").splits["train"].documents, sorted_ids.PagedVector)
    monkeypatch.setattr(vectors, "_SHORT_BYTES", 2**24)
    np.testing.assert_equal(batches(run), paged)


def test_a_block_is_checked_when_it_is_read_and_others_are_read(write, long):
    folder = write()
    expected = cache.open_source(str(folder.parent), "a").splits["train"]
    starts, documents = np.asarray(expected.sentences), np.asarray(expected.documents)
    caches.flip(folder / "train/sentence_starts.npy", 128 + 8 * 200, bit=0)
    split = cache.open_source(str(folder.parent), "a").splits["train"]
    assert split.sentences[:192].tolist() == starts[:192].tolist()
    assert split.sentences[224:].tolist() == starts[224:].tolist()
    assert np.array_equal(np.asarray(split.documents), documents)
    for read in (lambda: split.sentences[200], lambda: split.sentences.searchsorted(int(starts[200]))):
        with pytest.raises(UserError, match=r"sentence_starts.npy is damaged \(its bytes have changed.*/a and"):
            read()
    with pytest.raises(UserError, match="its bytes have changed"):
        np.asarray(split.sentences)


TOKENS = "tokens-00003.array_record"
UNDER_WAY = [(file, damage) for file in ("documents.npy", TOKENS) for damage in ("flip", "cut")]


@pytest.mark.parametrize(("file", "damage"), [*UNDER_WAY, ("documents.npy", "missing")])
def test_damage_during_a_run_ends_it_with_one_line(write, make_run, long, monkeypatch, file, damage):
    """Also where threads of Grain's find it, and where a mapped file would end the process."""
    folder = write()
    monkeypatch.setattr(sorted_ids, "_MEMORY_BYTES", 0)
    data = {"length": 16, "threads": 2, "prefetch": 2, "window_tokens": 2048}
    reads = make_run("a", data=data, train={"steps": 400}, **SPECIALS)
    expected = list(itertools.islice(Reader(config.reader_config(reads)).batches(0), 200))
    stream = Reader(config.reader_config(reads)).batches(0)
    for batch in expected[:2]:
        np.testing.assert_array_equal(next(stream)["digest"], batch["digest"])
    path = folder / "train" / file
    if damage == "flip":
        for at in range(128, path.stat().st_size, 64):
            caches.flip(path, at)
    elif damage == "cut":
        os.truncate(path, 150)
    else:
        path.unlink()
    with pytest.raises(UserError, match=rf"{re.escape(str(path))} is damaged") as caught:
        for batch in expected[2:]:
            np.testing.assert_array_equal(next(stream)["digest"], batch["digest"])
    assert "\n" not in str(caught.value)


def sorted_down(values):
    return sorted(values, reverse=True)


def test_an_index_is_checked_and_belongs_to_its_layout(write, make_run, long):
    folder = write()
    runs = [
        make_run("a", objective=objectives.MaskedLM(), data={"layout": layout, "length": 16}, **SPECIALS)
        for layout in (config.SentencePairs(duplicates=2), config.SentencePairs(duplicates=3))
    ]
    for run in runs:
        batches(run)
    one, other = sorted((folder / "index").iterdir())
    caches.flip(one / "starts.npy", 128 + 8 * 40)
    with pytest.raises(UserError, match=r"starts.npy is damaged .*delete .*/index"):
        list(map(batches, runs))
    caches.flip(one / "starts.npy", 128 + 8 * 40)
    one.rename(folder / "aside"), other.rename(one), (folder / "aside").rename(other)
    with pytest.raises(UserError, match=r"index.json is damaged \(it has changed"):
        batches(runs[0])
    described = json.loads((one / "index.json").read_text())
    for wrong in ([], 5, {}, described | {"passes": [0, "x"]}, "["):
        (one / "index.json").write_text(wrong if isinstance(wrong, str) else json.dumps(wrong))
        with pytest.raises(UserError, match=r"index.json is damaged"):
            list(map(batches, runs))


@pytest.mark.parametrize("change", [lambda passes: passes[1:], lambda passes: passes[:1] + passes[2:], sorted_down])
def test_an_index_with_other_passes_than_its_layout_is_rejected(write, make_run, change):
    folder = write()
    data = {"layout": config.SentencePairs(), "length": 16}
    run = make_run("a", objective=objectives.MaskedLM(), data=data, **SPECIALS)
    batches(run)
    (path,) = (folder / "index").glob("*/index.json")
    described = json.loads(path.read_text())
    del described["crc32"]
    described["passes"] = change(described["passes"])
    path.write_text(json.dumps(described | {"crc32": cache.crc32(described)}))
    with pytest.raises(UserError, match=r"index.json is damaged"):
        batches(run)


@pytest.mark.parametrize(
    "changes",
    [{"train_kind": "cased"}, {"added": 1}, {"spec": "wordpiece:elsewhere/vocab.txt", "train_kind": "cased"}],
)
def test_the_vocabulary_beside_the_caches_is_theirs(changes, make_run, tmp_path):
    lines = (json.dumps({"text": f"red {number} green"}) for number in range(60))
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    names = ("pad", "unk", "cls", "sep", "mask")
    fields = {"spec": f"wordpiece:{tmp_path}/vocab.txt", "train_size": 30, **{name: i for i, name in enumerate(names)}}
    run = make_run("a", data={"sources": {"a": config.TextTable(f"{tmp_path}/a.jsonl")}})
    run = dataclasses.replace(run, vocabulary=config.VocabularyConfig(**fields))
    preparation.prepare(run, show_progress=False)
    Reader(config.reader_config(run)).check_vocabulary()
    changed = Reader(
        config.reader_config(dataclasses.replace(run, vocabulary=config.VocabularyConfig(**fields | changes)))
    )
    with pytest.raises(UserError, match=r"made with other settings of the vocabulary, such as .*train_kind or added"):
        changed.check_vocabulary()
    (tmp_path / "vocabulary/vocab.txt").write_text("a\nc\n")
    with pytest.raises(UserError, match=r"vocabulary/vocab.txt is not the vocabulary that the caches were made with"):
        changed.check_vocabulary()


def test_a_bad_files_json_is_ignored(write, tmp_path):
    folder = write()
    rows = {"train": [["a.jsonl", 5, 7, 8, "sha"]]}
    (folder / "files.json").write_bytes(file_format.files_json(rows))
    assert file_format.read_files(str(folder)) == rows
    (folder / "files.json").write_text(json.dumps(rows))  # As before there was a checksum in it.
    assert file_format.read_files(str(folder)) == rows
    for wrong in (
        file_format.files_json(rows).replace(b"a.jsonl", b"b.jsonl"),
        b"[",
        b"[]",
        b'{"train": [["a", 1]]}',
        b"5",
    ):
        (folder / "files.json").write_bytes(wrong)
        assert file_format.read_files(str(folder)) is None
