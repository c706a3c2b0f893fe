"""Whether a cache is of the texts and settings that a config names."""

import dataclasses
import json
import os
import shutil
import sys
from typing import ClassVar

import numpy as np
import pytest

from plm_jax import config
from plm_jax.common import storage, users
from plm_jax.common.errors import UserError
from plm_jax.data.cache import file_format, staleness
from plm_jax.data.sources.corpus import Corpus, Record
from plm_jax.evaluation import prepared
from plm_jax.runs import preparation
from tests.support import caches
from tests.support.data import changed

TEXTS = {"a": [f"A whale of {i} feet." for i in range(30)], "b": [f"A ship of {i} masts." for i in range(30)]}


@pytest.fixture
def corpora(tmp_path):
    """Two sources of two files each, in a folder that may move."""
    for name, texts in TEXTS.items():
        (tmp_path / "corpora" / name).mkdir(parents=True)
        for half in range(2):
            lines = (json.dumps({"text": text}) + "\n" for text in texts[half::2])
            (tmp_path / "corpora" / name / f"{half}.jsonl").write_text("".join(lines))
    return tmp_path / "corpora"


def over(run, folder, **fields):
    """Returns the run over the corpora in a folder."""
    sources = {name: config.TextTable(f"{folder}/{name}/*.jsonl", **fields) for name in TEXTS}
    return changed(run, data={"sources": sources})


@pytest.fixture
def run(make_run, corpora):
    """A run whose caches are prepared."""
    run = over(make_run("ab", eos=256, vocab_size=257, data={"validation_fraction": 0.2}), corpora)
    preparation.prepare(run, show_progress=False)
    return run


@pytest.fixture
def hashed(monkeypatch):
    """List of the paths of all files that are read for their hashes."""
    paths, sha256 = [], storage.sha256
    monkeypatch.setattr(storage, "sha256", lambda path: paths.append(path) or sha256(path))
    return paths


def unwritable(path, data):
    raise PermissionError(path)


SAME = staleness.Comparison()


def compare(run, name="a"):
    return staleness.compare(run.data, name)


def test_a_touched_file_is_read_once_and_again_if_that_cannot_be_recorded(run, corpora, hashed, monkeypatch):
    assert compare(run) == compare(run, "b") == SAME and not hashed
    path = str(corpora / "a" / "1.jsonl")
    os.utime(path, ns=(0, 0))
    assert compare(run) == SAME and hashed == [path]
    assert compare(run) == SAME and hashed == [path]
    monkeypatch.setattr(storage, "write", unwritable)
    os.utime(path, ns=(1, 1))
    for count in (2, 3):
        assert compare(run) == SAME and len(hashed) == count


def test_changed_files_are_reported(run, corpora, hashed):
    path = corpora / "a" / "0.jsonl"
    before = path.read_text()
    path.write_text(before.replace("whale", "snail"))  # As many bytes.
    assert compare(run).changed == f"{path} has changed" and compare(run, "b") == SAME
    path.write_text(before + "\n")
    read = len(hashed)
    assert compare(run).changed == f"{path} has another size than 0.jsonl had" and len(hashed) == read
    path.write_text(before)
    assert compare(run) == SAME
    (corpora / "a" / "2.jsonl").write_text(before)
    assert compare(run).changed == "it was made of 2 files for train, there are 3"


def test_a_moved_folder_is_not_read_and_a_copied_one_once(run, corpora, hashed):
    elsewhere = corpora.parent / "elsewhere"
    os.rename(corpora, elsewhere)
    assert compare(over(run, elsewhere)) == SAME and not hashed
    shutil.copytree(elsewhere, corpora)  # Contents and modification times are the same, change times differ.
    for count in (2, 2):
        assert compare(run) == SAME and len(hashed) == count


def test_missing_texts_are_no_change_but_swapped_caches_are(run, corpora):
    for name, other in ("ab", "ba"):
        shutil.copytree(os.path.join(run.data.cache_dir, name), os.path.join(run.data.cache_dir, "swapped", other))
    swapped = changed(run, data={"cache_dir": os.path.join(run.data.cache_dir, "swapped")})
    assert compare(swapped).changed and compare(swapped, "b").changed
    renamed = changed(swapped, data={"sources": {"a": run.data.sources["b"], "b": run.data.sources["a"]}})
    assert compare(renamed) == compare(renamed, "b") == SAME
    shutil.rmtree(corpora)
    assert compare(run) == (None, f"there is no file at {corpora}/a/*.jsonl")
    assert compare(swapped).changed == "it was made from 'b'"
    assert compare(swapped, "b").changed == "it was made from 'a'"


@pytest.mark.parametrize("described", [None, {}, {"name": "a"}], ids=str)
def test_a_manifest_that_does_not_describe_its_source_is_reported(run, described):
    caches.rewrite(os.path.join(run.data.cache_dir, "a"), lambda manifest: manifest.update(source=described))
    assert compare(run).changed == "its manifest does not describe its source"


def test_changed_settings_are_reported(run, corpora):
    assert compare(changed(run, data={"validation_fraction": 0.5})).changed == "validation_fraction was 0.2 and is 0.5"
    assert compare(over(run, corpora, field="title")).changed == "task.field was text and is title"
    shutil.copy(corpora / "b" / "0.jsonl", corpora / "own.jsonl")
    held_out = over(run, corpora, validation=f"{corpora}/own.jsonl")
    assert compare(held_out).changed == "it was made of 0 files for validation, there are 1"
    # Validation files make the fraction irrelevant.
    preparation.prepare(held_out, show_progress=False)
    assert compare(changed(held_out, data={"validation_fraction": 0.9})) == SAME


def test_a_data_set_of_tensorflow_is_compared_by_its_settings(run):
    source = config.Tfds("wikipedia/20230601.en")
    tfds = changed(run, data={"sources": {"a": source}})
    assert "kind" in compare(tfds).changed or "task" in compare(tfds).changed
    described = staleness.describe(tfds.data, "a", has_validation=False)
    caches.rewrite(os.path.join(run.data.cache_dir, "a"), lambda manifest: manifest.update(source=described))
    assert compare(tfds) == (None, "TensorFlow reads it, so only `prepare` can compare it")
    for other in (dataclasses.replace(source, name="wikipedia/20230601.de"), dataclasses.replace(source, train="a")):
        assert compare(changed(run, data={"sources": {"a": other}})).changed.startswith("task.")


def test_files_in_a_store_are_compared_by_their_hashes_and_times(make_run, hashed, monkeypatch):
    path = "memory:///corpora/a/0.jsonl"
    for name, texts in TEXTS.items():
        lines = (json.dumps({"text": text}) + "\n" for text in texts)
        storage.write(f"memory:///corpora/{name}/0.jsonl", "".join(lines).encode())
    run = over(make_run("ab", eos=256, vocab_size=257), "memory:///corpora")
    preparation.prepare(run, show_progress=False)
    hashed.clear()
    assert compare(run) == SAME and not hashed
    data = storage.read(path)
    storage.write(path, data)
    assert compare(run) == SAME and hashed == [path]
    storage.write(path, data.replace(b"whale", b"snail"))
    assert compare(run).changed == f"{path} has changed"

    def unreachable(pattern):
        raise UserError(f"cannot reach {pattern}")

    monkeypatch.setattr(storage, "listing", unreachable)
    assert compare(run) == (None, "cannot reach memory:///corpora/a/*.jsonl")
    storage.remove("memory:///corpora")


def rewrite(path, data):
    """Writes different bytes of the same size, and restores the modification time."""
    status = os.stat(path)
    assert len(data) == status.st_size
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_file_that_is_rewritten_with_its_size_and_time_is_noticed(run, corpora):
    path = corpora / "a" / "0.jsonl"
    original = path.read_bytes()
    snail, shark = (original.replace(b"whale", word) for word in (b"snail", b"shark"))

    def in_place():
        rewrite(path, snail)

    def replaced():  # Like `rsync -t`.
        (corpora / "new").write_bytes(shark)
        os.utime(corpora / "new", ns=(0, os.stat(path).st_mtime_ns))
        os.replace(corpora / "new", path)

    def right_after_a_comparison():
        os.utime(path, ns=(0, 0))
        assert compare(run) == SAME
        rewrite(path, snail)

    for change in (in_place, replaced, right_after_a_comparison):
        change()
        for _ in range(2):  # A changed file is never recorded as current.
            assert compare(run).changed == f"{path} has changed"
        preparation.prepare(run, show_progress=False)
        assert compare(run) == SAME


def test_a_store_without_marks_is_reported(run, corpora, monkeypatch):
    listing = storage.listing
    without_times = lambda path: [file._replace(modified="", changed="") for file in listing(path)]  # noqa: E731
    monkeypatch.setattr(storage, "listing", without_times)
    monkeypatch.setattr(staleness, "record_files", lambda *_: None)
    comparison = compare(run)
    assert comparison.changed is None and "neither a hash nor a time" in comparison.unseen
    path = corpora / "a" / "1.jsonl"
    path.write_text(path.read_text().replace("whale", "snail"))
    assert compare(run).changed == f"{path} has changed"


@dataclasses.dataclass(frozen=True)
class Table(config.Source):
    """A user's source that reads a table."""

    kind: ClassVar[str] = "tests_table"
    location_fields: ClassVar[tuple[str, ...]] = ("path",)
    path: str

    def open(self, name):
        return TableCorpus(self.path)


@dataclasses.dataclass(frozen=True)
class FileTable(config.FileSource):
    """The same as a source of files."""

    kind: ClassVar[str] = "tests_file_table"
    location_fields: ClassVar[tuple[str, ...]] = ("path",)
    path: str

    open = Table.open


class TableCorpus(Corpus):
    splits = ("train",)
    fingerprints: ClassVar = None  # Function that replaces `fingerprint`.

    def __init__(self, path):
        self._path = path

    def shards(self, split, most=1):
        return [0]

    def read(self, split, shard, skipped=None, advance=lambda size: None):
        for number, text in enumerate(np.load(self._path).tolist(), 1):
            yield Record(text, row_number=number)

    def fingerprint(self):
        return self.fingerprints() if self.fingerprints else [storage.sha256(self._path)]


@pytest.fixture
def table(make_run, tmp_path):
    """A prepared run over a table, `table.npy`."""
    np.save(tmp_path / "table.npy", TEXTS["a"])
    sources = {"a": Table(str(tmp_path / "table.npy"))}
    run = make_run("a", eos=256, vocab_size=257, data={"validation_fraction": 0.2, "sources": sources})
    preparation.prepare(run, show_progress=False)
    return run


def identity(run):
    return file_format.read_manifest(os.path.join(run.data.cache_dir, "a"))["identity"]


def test_a_replaced_file_behind_a_users_source_is_noticed_by_every_verb(table, tmp_path):
    assert compare(table) == SAME
    before = identity(table)
    np.save(tmp_path / "table.npy", TEXTS["b"])
    assert compare(table).changed == "the fingerprint of its source has changed"
    (line,) = preparation.changed_caches(table, ["a"])  # As `pretrain`, `finetune` and `evaluate` call it.
    assert "the cache of 'a'" in line and "fingerprint" in line
    with pytest.raises(UserError, match=r"fingerprint.*run `python -m plm_jax prepare"):
        prepared.resolve_tasks(table, [])
    # A source of files that opens another corpus is compared by its fingerprint, too.
    for source in (table.data.sources["a"], FileTable(table.data.sources["a"].path)):
        run = changed(table, data={"sources": {"a": source}})
        preparation.prepare(run, show_progress=False)
        assert identity(run) != before and compare(run) == SAME
        np.save(tmp_path / "table.npy", TEXTS["b"])  # The same bytes with new times.
        assert compare(run) == SAME
    np.save(tmp_path / "table.npy", TEXTS["a"])
    assert compare(run).changed == "the fingerprint of its source has changed"


@pytest.mark.parametrize(
    ("fingerprint", "message"),
    [
        (lambda: [], "its fingerprint is empty"),
        (lambda: [b"bytes"], "return a list of strings"),
        (lambda: "text", "return a list of strings"),
        (lambda: 1 // 0, "ZeroDivisionError"),
        (lambda: storage.sha256("/nowhere/at all"), "FileNotFoundError"),
    ],
)
def test_a_bad_fingerprint_is_reported(table, fingerprint, message, monkeypatch, capsys):
    monkeypatch.setattr(TableCorpus, "fingerprints", staticmethod(fingerprint))
    comparison = compare(table)
    assert comparison.changed is None and message in comparison.unseen
    assert preparation.changed_caches(table, ["a"]) == []
    assert f"cannot compare the texts of 'a' ({comparison.unseen})" in capsys.readouterr().err


def test_prepare_reports_an_empty_fingerprint_and_rejects_a_bad_one(table, monkeypatch, capsys):
    monkeypatch.setattr(TableCorpus, "fingerprints", staticmethod(lambda: []))
    preparation.prepare(table, show_progress=False)
    assert "a: its fingerprint is empty" in capsys.readouterr().out
    assert compare(table).unseen == "its fingerprint is empty"
    monkeypatch.setattr(TableCorpus, "fingerprints", staticmethod(lambda: ["1"]))
    assert compare(table).changed == "it was made without a fingerprint of its source"
    monkeypatch.setattr(TableCorpus, "fingerprints", staticmethod(lambda: [b"1"]))
    with pytest.raises(UserError, match="return a list of strings"):
        preparation.prepare(table, show_progress=False)


def test_a_changed_segmenter_is_noticed_and_a_missing_one_is_not(run, tmp_path, monkeypatch):
    """A segmenter is compared by its code and its imports from its folder, without importing it."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "tests_segmenter.py").write_text(
        '"""Cuts."""\nimport os\nfrom tests_cuts import cuts\nassert "COMPARING" not in os.environ\n'
        "def halves(text):\n    return cuts(text)\n"
    )
    (code / "tests_cuts.py").write_text("def cuts(text):\n    return [text]\n")
    monkeypatch.syspath_prepend(code)
    users.trust(["tests_segmenter"])
    segmented = changed(run, data={"segmenters": {"a": "tests_segmenter:halves"}})
    assert compare(segmented).changed.startswith("segmenter was")
    preparation.prepare(segmented, show_progress=False)
    monkeypatch.setenv("COMPARING", "")
    for name in ("tests_segmenter", "tests_cuts"):
        monkeypatch.delitem(sys.modules, name)

    def compare_anew():  # Like a new process that has not read the files.
        users._read.cache_clear()
        users._hashed.cache_clear()
        return compare(segmented)

    assert compare_anew() == SAME
    (code / "tests_segmenter.py").write_text((code / "tests_segmenter.py").read_text() + "# A comment.\n")
    assert compare_anew() == SAME
    (code / "tests_cuts.py").write_text("def cuts(text):\n    return text.split()\n")
    assert compare_anew().changed.startswith("segmenter was")
    monkeypatch.setattr(users, "digests", lambda name: [])
    assert compare(segmented) == SAME
    assert compare(changed(run, data={"segmenters": {"a": "x:y"}})).changed.startswith("segmenter was")
