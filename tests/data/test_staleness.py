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
    """The run over the corpora in a folder."""
    sources = {name: config.JsonLines(f"{folder}/{name}/*.jsonl", **fields) for name in TEXTS}
    return dataclasses.replace(run, data=dataclasses.replace(run.data, sources=sources))


@pytest.fixture
def run(make_run, corpora):
    """Prepared."""
    made = over(make_run("ab", eos=256, vocab_size=257, data={"validation_fraction": 0.2}), corpora)
    preparation.prepare(made, show_progress=False)
    return made


@pytest.fixture
def hashed(monkeypatch):
    """The paths of all files that are read for their hashes."""
    found, sha256 = [], storage.sha256

    def noting(path):
        found.append(path)
        return sha256(path)

    monkeypatch.setattr(storage, "sha256", noting)
    return found


SAME = staleness.Comparison()


def compare(run, name="a"):
    return staleness.compare(run.data, name)


def test_what_is_as_it_was_is_not_read(run, hashed):
    assert compare(run) == compare(run, "b") == SAME
    assert not hashed


def test_a_file_that_was_touched_is_read_once_and_is_the_same(run, corpora, hashed, monkeypatch):
    path = str(corpora / "a" / "1.jsonl")
    os.utime(path, ns=(0, 0))
    assert compare(run) == SAME and hashed == [path]
    assert compare(run) == SAME and hashed == [path]

    # Where that cannot be noted it is read again.
    def fails(path, data):
        raise PermissionError(path)

    monkeypatch.setattr(storage, "write", fails)
    os.utime(path, ns=(1, 1))
    for count in (2, 3):
        assert compare(run) == SAME and len(hashed) == count


def test_a_changed_text_is_told(run, corpora, hashed):
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


def test_a_folder_that_moved_is_no_change(run, corpora, hashed):
    os.rename(corpora, corpora.parent / "elsewhere")
    moved = over(run, corpora.parent / "elsewhere")
    assert compare(moved) == SAME and not hashed
    for path in (corpora.parent / "elsewhere").rglob("*.jsonl"):
        os.makedirs(corpora / path.parent.name, exist_ok=True)
        shutil.copyfile(path, corpora / path.parent.name / path.name)  # With other times.
    assert compare(run) == SAME and len(hashed) == 2


def swap(run):
    folder = run.data.cache_dir
    for source, target in (("a", "aside"), ("b", "a"), ("aside", "b")):
        os.rename(os.path.join(folder, source), os.path.join(folder, target))


def test_texts_that_are_not_here_are_no_change_but_a_swapped_folder_is_one(run, corpora):
    shutil.rmtree(corpora)
    assert compare(run) == (None, f"there is no file at {corpora}/a/*.jsonl")
    swap(run)
    assert compare(run).changed == "it was made from 'b'" and compare(run, "b").changed == "it was made from 'a'"


def test_swapped_folders_are_told_by_their_texts_and_other_names_are_no_change(run, corpora):
    swap(run)
    assert compare(run).changed and compare(run, "b").changed
    os.rename(corpora / "a", corpora / "aside")
    os.rename(corpora / "b", corpora / "a")
    os.rename(corpora / "aside", corpora / "b")
    assert compare(run) == compare(run, "b") == SAME


def test_other_settings_are_told(run, corpora):
    half = dataclasses.replace(run, data=dataclasses.replace(run.data, validation_fraction=0.5))
    assert compare(half).changed == "validation_fraction was 0.2 and is 0.5"
    assert compare(over(run, corpora, field="title")).changed == "task.field was text and is title"
    shutil.copy(corpora / "b" / "0.jsonl", corpora / "own.jsonl")
    held_out = over(run, corpora, validation=f"{corpora}/own.jsonl")
    assert compare(held_out).changed == "it was made of 0 files for validation, there are 1"
    # With files for validation the share is of no account.
    preparation.prepare(held_out, show_progress=False)
    other = dataclasses.replace(held_out.data, validation_fraction=0.9)
    assert compare(dataclasses.replace(held_out, data=other)) == SAME


def test_a_data_set_of_tensorflow_s_is_told_by_its_settings(run):
    folder = os.path.join(run.data.cache_dir, "a")
    source = config.Tfds("wikipedia/20230601.en")
    own = dataclasses.replace(run, data=dataclasses.replace(run.data, sources={"a": source}))
    assert "kind" in compare(own).changed or "task" in compare(own).changed
    described = staleness.describe(own.data, "a", has_validation=False)
    caches.rewrite(folder, lambda manifest: manifest.update(source=described))
    assert compare(own) == (None, "TensorFlow reads it, so only `prepare` can compare it")
    for changed in (dataclasses.replace(source, name="wikipedia/20230601.de"), dataclasses.replace(source, train="a")):
        other = dataclasses.replace(run, data=dataclasses.replace(run.data, sources={"a": changed}))
        assert compare(other).changed.startswith("task.")


def test_in_a_store_sizes_and_its_marks_tell(make_run, hashed, monkeypatch):
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
    assert os.stat(path).st_mtime_ns == status.st_mtime_ns


@pytest.mark.parametrize("way", ["in place", "replaced", "right after a comparison"])
def test_a_file_that_is_rewritten_with_its_size_and_time_is_noticed(run, corpora, way):
    path = corpora / "a" / "0.jsonl"
    data = path.read_bytes().replace(b"whale", b"snail")
    if way == "in place":
        rewrite(path, data)
    elif way == "replaced":  # Like `rsync -t`.
        (corpora / "new").write_bytes(data)
        os.utime(corpora / "new", ns=(0, os.stat(path).st_mtime_ns))
        os.replace(corpora / "new", path)
    else:
        os.utime(path, ns=(0, 0))
        assert compare(run) == SAME
        rewrite(path, data)
    for _ in range(2):  # A changed file is never recorded as current.
        assert compare(run).changed == f"{path} has changed"
    preparation.prepare(run, show_progress=False)
    assert compare(run) == SAME


def test_a_copied_tree_is_read_once_and_a_cache_that_cannot_be_written_each_time(run, corpora, hashed, monkeypatch):
    shutil.copytree(corpora, corpora.parent / "copy")
    for path in corpora.rglob("*.jsonl"):  # Contents and modification times are the same, change times differ.
        shutil.copystat(path, corpora.parent / "copy" / path.relative_to(corpora))
    copied = over(run, corpora.parent / "copy")
    assert compare(copied) == SAME and len(hashed) == 2
    assert compare(copied) == SAME and len(hashed) == 2
    monkeypatch.setattr(storage, "write", lambda path, data: (_ for _ in ()).throw(PermissionError(path)))
    for count in (4, 6):
        assert compare(run) == SAME and len(hashed) == count


def test_a_store_without_marks_is_reported(run, corpora, monkeypatch):
    listing = storage.listing
    monkeypatch.setattr(
        storage, "listing", lambda path: [file._replace(modified="", changed="") for file in listing(path)]
    )
    monkeypatch.setattr(staleness, "record_files", lambda *_: None)
    found = compare(run)
    assert found.changed is None and "neither a hash nor a time" in found.unseen
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
    fingerprints: ClassVar = None  # Value that a test makes it return.

    def __init__(self, path):
        self._path = path

    def shards(self, split, most=1):
        return [0]

    def read(self, split, shard, skipped=None, advance=lambda size: None):
        for number, text in enumerate(np.load(self._path).tolist(), 1):
            yield Record(text, row_number=number)

    def fingerprint(self):
        if self.fingerprints is not None:
            return self.fingerprints()
        return [storage.sha256(self._path)]


def write_table(path, texts):
    np.save(path, texts)


@pytest.fixture
def table(make_run, tmp_path):
    """A prepared run over a table, `table.npy`."""
    write_table(tmp_path / "table.npy", TEXTS["a"])
    made = make_run("a", eos=256, vocab_size=257, data={"validation_fraction": 0.2})
    source = {"a": Table(str(tmp_path / "table.npy"))}
    made = dataclasses.replace(made, data=dataclasses.replace(made.data, sources=source))
    preparation.prepare(made, show_progress=False)
    return made


def identity(run):
    return file_format.read_manifest(os.path.join(run.data.cache_dir, "a"))["identity"]


def test_a_replaced_file_behind_a_users_source_is_noticed_by_every_verb(table, tmp_path):
    assert compare(table) == SAME
    before = identity(table)
    write_table(tmp_path / "table.npy", TEXTS["b"])
    assert compare(table).changed == "the fingerprint of its source has changed"
    (line,) = preparation.changed_caches(table, ["a"])  # As `pretrain`, `finetune` and `evaluate` call it.
    assert "the cache of 'a'" in line and "fingerprint" in line
    with pytest.raises(UserError, match=r"fingerprint.*run `python -m plm_jax prepare"):
        prepared.resolve_tasks(table, [])
    preparation.prepare(table, show_progress=False)
    assert identity(table) != before and compare(table) == SAME
    write_table(tmp_path / "table.npy", TEXTS["b"])  # The same bytes with new times.
    assert compare(table) == SAME


def test_a_file_source_that_opens_a_corpus_of_its_own_is_compared_by_its_fingerprint(table, tmp_path):
    source = {"a": FileTable(table.data.sources["a"].path)}
    run = dataclasses.replace(table, data=dataclasses.replace(table.data, sources=source))
    preparation.prepare(run, show_progress=False)
    assert compare(run) == SAME
    write_table(tmp_path / "table.npy", TEXTS["b"])
    assert compare(run).changed == "the fingerprint of its source has changed"


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        (lambda: [], "its fingerprint is empty"),
        (lambda: [b"bytes"], "return a list of strings"),
        (lambda: "text", "return a list of strings"),
        (lambda: 1 // 0, "ZeroDivisionError"),
        (lambda: storage.sha256("/nowhere/at all"), "FileNotFoundError"),
    ],
)
def test_a_fingerprint_that_cannot_be_trusted_is_reported(table, fails, said, monkeypatch, capsys):
    monkeypatch.setattr(TableCorpus, "fingerprints", staticmethod(fails))
    found = compare(table)
    assert found.changed is None and said in found.unseen
    assert preparation.changed_caches(table, ["a"]) == []
    assert f"cannot compare the texts of 'a' ({found.unseen})" in capsys.readouterr().err


def test_prepare_reports_an_empty_fingerprint_and_refuses_one_that_is_none(table, monkeypatch, capsys):
    monkeypatch.setattr(TableCorpus, "fingerprints", staticmethod(lambda: []))
    preparation.prepare(table, show_progress=False)
    assert "a: its fingerprint is empty" in capsys.readouterr().out
    assert compare(table).unseen == "its fingerprint is empty"
    monkeypatch.setattr(TableCorpus, "fingerprints", staticmethod(lambda: ["1"]))
    assert compare(table).changed == "it was made without a fingerprint of its source"
    monkeypatch.setattr(TableCorpus, "fingerprints", staticmethod(lambda: [b"1"]))
    with pytest.raises(UserError, match="return a list of strings"):
        preparation.prepare(table, show_progress=False)


def test_a_changed_segmenter_is_noticed_and_one_that_is_not_here_is_none(run, tmp_path, monkeypatch):
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
    segmented = dataclasses.replace(run, data=dataclasses.replace(run.data, segmenters={"a": "tests_segmenter:halves"}))
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
    other = dataclasses.replace(segmented, data=dataclasses.replace(segmented.data, segmenters={"a": "x:y"}))
    assert compare(other).changed.startswith("segmenter was")
