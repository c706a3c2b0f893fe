"""Sealed folders: any change of any file is found."""

import hashlib
import json
import os
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_jax.common import sealing, storage
from plm_jax.common.errors import UserError

FILES = {"a": b"weights", "below/b": b"\x00" * 40, "below/.hidden": b"", "c.json": b"{}"}


def folder(path):
    for name, content in FILES.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    sealing.seal(str(path), {"step": 7})
    return path


@pytest.fixture(scope="module")
def sealed(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("sealed"))


def test_unchanged_folder_passes(sealed):
    manifest = sealing.verify(str(sealed))
    assert manifest["step"] == 7 and manifest["files"].keys() == FILES.keys()


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([*FILES, sealing.MANIFEST]), st.data())
def test_any_bit_that_flips_and_any_cut_is_found(sealed, name, data):
    path = sealed / name
    before = path.read_bytes()
    after = bytearray(before)
    if before and data.draw(st.booleans()):
        bit = data.draw(st.integers(0, 8 * len(before) - 1))
        after[bit // 8] ^= 1 << bit % 8
    else:
        after = data.draw(st.sampled_from([before[:-1], before[: len(before) // 2], before + b" "]))
    path.write_bytes(after)
    try:
        if after == before:
            sealing.verify(str(sealed))
            return
        with pytest.raises(sealing.DamagedError, match=name if name in FILES else "manifest"):
            sealing.verify(str(sealed))
    finally:
        path.write_bytes(before)


def test_missing_added_and_swapped_files_are_named(tmp_path):
    for change, says in (
        (lambda path: (path / "a").unlink(), "a is missing"),
        (lambda path: (path / "below" / "new").touch(), "below/new was added"),
        (lambda path: shutil.copy(path / "c.json", path / "a"), "a has 2 bytes and not 7"),
        (lambda path: (path / "a").write_bytes(b"Weights"), "a is damaged"),
        (lambda path: (path / sealing.MANIFEST).unlink(), "has no manifest"),
        (lambda path: ((path / "a").unlink(), (path / "a").symlink_to("c.json")), "a is missing"),
        (lambda path: (path / "link").symlink_to("c.json"), "link was added"),
        (lambda path: (path / "below/around").symlink_to("."), "below/around was added"),
        (lambda path: os.mkfifo(path / "pipe"), "pipe was added"),
        (lambda path: ((path / "c.json").unlink(), os.mkfifo(path / "c.json")), "c.json is missing"),
        (lambda path: (path / "manifest-part-1.json").touch(), "manifest-part-1.json was added"),
        (lambda path: os.truncate(path / "a", 2**40), "a has 1,099,511,627,776 bytes and not 7"),
        (lambda path: os.truncate(path / sealing.MANIFEST, 2**40), "its manifest.json is damaged"),
        (lambda path: ((path / sealing.MANIFEST).unlink(), os.mkfifo(path / sealing.MANIFEST)), "is not a file"),
    ):
        path = folder(tmp_path / says.replace("/", " "))
        change(path)
        with pytest.raises(sealing.DamagedError, match=says):
            sealing.verify(str(path))


@pytest.mark.parametrize("files", [None, [], {"a": None}, {"a": [7]}, {"a": ["7", "0"]}, {"a": [7, 0]}, {"a": []}])
def test_a_manifest_with_its_own_hash_that_names_no_files_is_damaged(files, tmp_path):
    path = folder(tmp_path)
    manifest = json.loads((path / sealing.MANIFEST).read_text())
    content = {"step": manifest["step"], "files": files}
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    (path / sealing.MANIFEST).write_text(json.dumps({"sha256": digest, **content}, indent=1))
    with pytest.raises(sealing.DamagedError, match=r"manifest.json is damaged"):
        sealing.verify(str(path))


def test_only_what_is_asked_for_is_read(tmp_path):
    path = folder(tmp_path)
    (path / "a").write_bytes(b"Weights")
    assert sealing.verify(str(path), ["below/"])["step"] == 7
    with pytest.raises(sealing.DamagedError):
        sealing.verify(str(path), ["a"])


def test_each_process_hashes_its_own_and_the_first_one_puts_them_together(tmp_path, monkeypatch):
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)

    def share(process):
        return sealing.Share(process, 2, lambda path: 3 if path.startswith("below") else 0)

    monkeypatch.setattr(sealing, "_PARTS_SECONDS", 0.0)
    with pytest.raises(UserError, match="part-1"):
        sealing.seal(str(tmp_path), {"step": 7}, share(0))
    sealing.seal(str(tmp_path), {"step": 7}, share(1))
    sealing.seal(str(tmp_path), {"step": 7}, share(0))
    assert sealing.verify(str(tmp_path))["files"].keys() == FILES.keys()
    (tmp_path / "below" / "b").write_bytes(b"\x01" * 40)
    sealing.verify(str(tmp_path), share=share(0))  # Not its own.
    with pytest.raises(sealing.DamagedError, match="below/b is damaged"):
        sealing.verify(str(tmp_path), share=share(1))


def test_a_process_that_does_not_see_its_files_fails_the_seal(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"a")

    def share(process):
        return sealing.Share(process, 2, lambda path: 1)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "files_below", lambda folder: [])
        sealing.seal(str(tmp_path), {"step": 7}, share(1))
    with pytest.raises(UserError, match="the process that wrote a does not see it"):
        sealing.seal(str(tmp_path), {"step": 7}, share(0))
    assert not sealing.is_sealed(str(tmp_path))


def test_the_folder_may_be_renamed_as_soon_as_the_last_part_exists(tmp_path, monkeypatch):
    (tmp_path / "new").mkdir()
    replace = os.replace

    def replace_and_rename(source, target):
        replace(source, target)
        os.rename(tmp_path / "new", tmp_path / "final")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace_and_rename)
        sealing.seal(str(tmp_path / "new"), {"step": 7}, sealing.Share(1, 2))
    sealing.seal(str(tmp_path / "final"), {"step": 7}, sealing.Share(0, 2))
    sealing.verify(str(tmp_path / "final"))


def test_a_part_that_is_being_written_is_no_file_of_the_folder(tmp_path):
    sealing.seal(str(tmp_path), {"step": 7}, sealing.Share(1, 2))
    with pytest.raises(InterruptedError), storage.writing(str(tmp_path / "manifest-part-1.json")):
        sealing.seal(str(tmp_path), {"step": 7}, sealing.Share(0, 2))
        raise InterruptedError
    sealing.verify(str(tmp_path))
