"""Whether a cache is of the texts and settings that a config names."""

import dataclasses
import json
import os
import shutil

import pytest

from plm_jax import config
from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.data import prepare
from plm_jax.data.cache import staleness
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
    prepare.prepare(made, show_progress=False)
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


def compare(run, name="a", said=None):
    return staleness.compare(run, name, [].append if said is None else said.append)


def test_what_is_as_it_was_is_not_read(run, hashed):
    assert compare(run) == compare(run, "b") == SAME
    assert not hashed


def test_a_file_that_was_touched_is_read_once_and_is_the_same(run, corpora, hashed, monkeypatch):
    path, said = str(corpora / "a" / "1.jsonl"), []
    os.utime(path, ns=(0, 0))
    assert compare(run, said=said) == SAME and hashed == [path]
    assert said == [f"reading 1 files whose times have changed, such as {path}"]
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
    assert compare(run).changed == "it is that of 'b'" and compare(run, "b").changed == "it is that of 'a'"


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
    prepare.prepare(held_out, show_progress=False)
    other = dataclasses.replace(held_out.data, validation_fraction=0.9)
    assert compare(dataclasses.replace(held_out, data=other)) == SAME


def test_a_data_set_of_tensorflow_s_is_told_by_its_settings(run):
    folder = os.path.join(run.data.cache_dir, "a")
    source = config.Tfds("wikipedia/20230601.en")
    own = dataclasses.replace(run, data=dataclasses.replace(run.data, sources={"a": source}))
    assert "kind" in compare(own).changed or "task" in compare(own).changed
    described = staleness.describe(own, "a", has_validation=False)
    caches.rewrite(folder, lambda manifest: manifest.update(source=described))
    assert compare(own) == SAME
    for changed in (dataclasses.replace(source, name="wikipedia/20230601.de"), dataclasses.replace(source, train="a")):
        other = dataclasses.replace(run, data=dataclasses.replace(run.data, sources={"a": changed}))
        assert compare(other).changed.startswith("task.")


def test_in_a_store_sizes_and_its_marks_tell(make_run, hashed, monkeypatch):
    path = "memory:///corpora/a/0.jsonl"
    for name, texts in TEXTS.items():
        lines = (json.dumps({"text": text}) + "\n" for text in texts)
        storage.write(f"memory:///corpora/{name}/0.jsonl", "".join(lines).encode())
    run = over(make_run("ab", eos=256, vocab_size=257), "memory:///corpora")
    prepare.prepare(run, show_progress=False)
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
