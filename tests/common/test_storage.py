"""Files in a bucket of fsspec's, in memory, behave as files on a disk."""

import fcntl
import gzip
import hashlib
import os
import stat
import time
from concurrent import futures

import fsspec
import pytest

from plm_jax import config
from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.data.sources import files
from plm_jax.runs import telemetry
from tests.support import locks


@pytest.fixture(params=["disk", "memory"])
def root(request, tmp_path):
    """A folder that is empty and may not be there."""
    if request.param == "disk":
        yield str(tmp_path / "new")
        return
    yield "memory://bucket/new"
    fsspec.filesystem("memory").store.clear()


def test_written_files_are_read_back(root):
    path = os.path.join(root, "deep", "a.bin")
    assert not storage.exists(path) and storage.names(root) == []
    storage.write(path, b"one")
    storage.write(path, b"two")
    storage.append(path, b" three")
    assert storage.read(path) == b"two three"
    assert storage.sha256(path) == hashlib.sha256(b"two three").hexdigest()
    assert storage.names(root) == ["deep"] and storage.names(os.path.join(root, "deep")) == ["a.bin"]
    storage.append(os.path.join(root, "b"), b"new")
    assert storage.read(os.path.join(root, "b")) == b"new"
    storage.remove(os.path.join(root, "deep"))
    storage.remove(os.path.join(root, "deep"))
    assert storage.names(root) == ["b"]


def test_a_range_is_read_by_all_threads_over_the_same_connections(root, monkeypatch):
    opened, system = [], storage._system
    monkeypatch.setattr(storage, "_system", lambda path: opened.append(path) or system(path))
    storage._shared_system.cache_clear()
    path = os.path.join(root, "a.bin")
    storage.write(path, bytes(range(100)))
    opened.clear()
    for start in range(4):  # A thread each.
        with futures.ThreadPoolExecutor(1) as pool:
            read = pool.submit(storage.read_range, path, start, start + 3).result()
        assert read == bytes(range(start, start + 3))
    assert storage.read_range(path, 98, 200) == bytes([98, 99])
    assert opened == (["memory://bucket"] if storage.is_remote(root) else [])
    storage.remove(path)
    with pytest.raises(UserError if storage.is_remote(root) else FileNotFoundError, match=r"a\.bin"):
        storage.read_range(path, 0, 1)


def test_all_names_of_a_file_have_one_in_common(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(".")
    names = ("a", "link/a", "./b/../a", f"{tmp_path}/a", f"file://{tmp_path}/link/a", f"local://{tmp_path}/a")
    assert {storage.canonical(name) for name in names} == {os.path.realpath(tmp_path / "a")}
    assert storage.canonical("memory://b/a") == storage.canonical("memory:///b/a/") != storage.canonical("/b/a")


def test_failure_to_lock_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match=r"cannot write .*file \(.*\): make it writable"),
        storage.locked(f"{tmp_path}/file/.lock"),
    ):
        pass


def test_one_at_a_time_holds_a_lock_and_leaves_no_file(tmp_path):
    path, inside = str(tmp_path / "new" / ".lock"), []

    def hold(number):
        for _ in range(20):
            with storage.locked(path):
                inside.append(number)
                time.sleep(0.0002)
                assert inside == [number]
                inside.clear()

    with futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(hold, range(8)))
    assert os.listdir(tmp_path / "new") == []
    with pytest.raises(ZeroDivisionError), storage.locked(path):
        assert os.listdir(tmp_path / "new") == [".lock"]
        raise ZeroDivisionError
    assert os.listdir(tmp_path / "new") == []


def test_a_missing_file_is_the_same_error_everywhere(root):
    path = os.path.join(root, "a")
    with pytest.raises(FileNotFoundError) as caught:
        storage.read(path)
    assert caught.value.filename == path and caught.value.strerror


def test_globs_find_files_only(root):
    for name in ("b/x.txt", "a/x.txt", "a/y.md", "a/x.txt.d/z"):
        storage.write(os.path.join(root, name), b"")
    paths = storage.glob(os.path.join(root, "*", "*.txt*"))
    assert [path.rpartition("new/")[2] for path in paths] == ["a/x.txt", "b/x.txt"]
    assert [storage.read(path) for path in paths] == [b"", b""]
    assert storage.glob(os.path.join(root, "a", "x.txt"))[0].endswith("a/x.txt")
    assert storage.glob(os.path.join(root, "none*")) == []


def test_corpora_are_read_from_everywhere(root):
    lines = "".join(f'{{"text": "Größe {i}\\n"}}\n' for i in range(3)).encode()
    storage.write(os.path.join(root, "b.jsonl"), lines)
    storage.write(os.path.join(root, "a.jsonl.gz"), gzip.compress(lines))
    storage.write(os.path.join(root, "c.jsonl.gz"), gzip.compress(lines)[:-9])
    texts = [record.text for record in files.read(config.TextTable(os.path.join(root, "[ab].jsonl*")))]
    assert texts == 2 * [f"Größe {i}\n" for i in range(3)]
    with pytest.raises(UserError, match=r"c\.jsonl\.gz is damaged"):
        list(files.read(config.TextTable(os.path.join(root, "c*"))))


def test_a_store_that_fails_is_named_in_one_line(monkeypatch):
    def fails(*_, **__):
        raise PermissionError("no\nrights")

    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "_open", fails)
    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "pipe_file", fails)
    for call in (storage.read, lambda path: storage.write(path, b"")):
        with pytest.raises(UserError, match=r"cannot reach memory://b/a \(PermissionError: no rights\)"):
            call("memory://b/a")
    with pytest.raises(UserError, match="cannot reach nowhere://a"):
        storage.exists("nowhere://a")


def test_rows_are_in_the_bucket_at_each_sync_and_later_ones_are_dropped_on_resuming(root, monkeypatch):
    path = os.path.join(root, "metrics.jsonl")
    with telemetry.Telemetry(root, 0, 9) as log:
        for step in (1, 2, 3):
            log.write({"step": step, "train/loss": 1.5})
        log.sync()
        assert [row["step"] for row in telemetry.read_lines(path)] == [1, 2, 3]
        log.write({"step": 4})
    assert [row["step"] for row in telemetry.read_lines(path)] == [1, 2, 3, 4]
    monkeypatch.setattr(telemetry, "_UPLOAD_SECONDS", -1)
    with telemetry.Telemetry(root, 2, 9) as log:
        assert [row["step"] for row in telemetry.read_lines(path)] == [1, 2]
        log.write({"step": 3})
        assert [row["step"] for row in telemetry.read_lines(path)] == [1, 2, 3]
    assert len([name for name in storage.names(root) if "tfevents" in name]) >= 1


def test_special_files_are_rejected_without_blocking(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/zero")
    for name, kind in {"pipe": "pipe", "folder": "folder", "device": "device"}.items():
        path = str(tmp_path / name)
        uses = (storage.read, storage.open_binary, storage.sha256, lambda path: storage.read_range(path, 0, 1))
        for use in (*uses, lambda path: storage.write(path, b"")):
            with pytest.raises(UserError, match=f"{name} is a {kind}, not a file"):
                use(path)


def test_a_file_may_be_too_large(tmp_path):
    (tmp_path / "a").touch()
    os.truncate(tmp_path / "a", 2**40)
    with pytest.raises(UserError, match="1,099,511,627,776 bytes, but the limit is 100 bytes"):
        storage.read(str(tmp_path / "a"), most=100)
    os.truncate(tmp_path / "a", 100)
    assert storage.read(str(tmp_path / "a"), most=100) == bytes(100)


def test_nothing_is_written_through_a_link(tmp_path):
    """A folder may be anyone's: links in it lead to files that are not theirs."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"untouched")
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("a", "a.tmp", "log", "lock"):
        (folder / name).symlink_to(victim)
    storage.write(str(folder / "a"), b"new")
    assert (folder / "a").read_bytes() == b"new" and not (folder / "a").is_symlink()
    with pytest.raises(UserError, match=r"refusing to write through the symbolic link .*/log: remove"):
        storage.append(str(folder / "log"), b"more")
    with pytest.raises(UserError, match=r"the symbolic link .*/lock: remove"), storage.locked(str(folder / "lock")):
        pass
    assert victim.read_bytes() == b"untouched"


def test_names_of_temporary_files_are_not_to_be_foreseen(tmp_path):
    names = set()
    for _ in range(3):
        with storage.writing(str(tmp_path / "a")) as file:
            (name,) = {path.name for path in tmp_path.iterdir()} - {"a"}
            names.add(name)
            file.write(b"x")
    assert len(names) == 3 and all(len(name) >= len("a.") + 16 for name in names)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o666 & ~umask()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_removing_a_link_keeps_its_target(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").touch()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    storage.remove(str(tmp_path / "link"))
    assert not (tmp_path / "link").is_symlink() and (tmp_path / "folder" / "a").exists()
    storage.remove(str(tmp_path / "folder"))
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize("name", ["unlink", "rmdir"])
def test_a_folder_may_be_removed_by_two_processes(name, tmp_path, monkeypatch):
    remove = getattr(os, name)

    def remove_after_another_process(*words, **options):
        remove(*words, **options)
        remove(*words, **options)

    for below in ("a/b", "a/c", "d/e"):
        storage.write(str(tmp_path / "folder" / below), b"x")
    monkeypatch.setattr(os, name, remove_after_another_process)
    storage.remove(str(tmp_path / "folder"))
    assert storage.names(str(tmp_path)) == []


def test_only_temporary_files_of_killed_writers_are_removed(tmp_path):
    path, left = str(tmp_path / "a"), f"{'0' * 16}.tmp"
    for name in (f"a.{left}", f"ab.{left}", "a.mine.tmp"):
        (tmp_path / name).write_bytes(b"x")
    with storage.writing(path) as file:
        file.write(b"first")
        storage.write(path, b"second")
        assert storage.read(path) == b"second"
    assert storage.read(path) == b"first"
    assert storage.names(str(tmp_path)) == ["a", "a.mine.tmp", f"ab.{left}"]


def test_a_folder_is_filled_by_one_process_and_empty_after_an_error(tmp_path):
    folder, there = tmp_path / "new", tmp_path / "there"
    there.mkdir()
    for path, is_left in ((folder, False), (there, True)):
        with pytest.raises(ValueError), storage.writing_folder(str(path)):
            storage.write(str(path / "below/a"), b"a")
            with pytest.raises(UserError, match="another process is writing"), storage.writing_folder(str(path)):
                pass
            raise ValueError
        assert path.exists() == is_left and storage.names(str(path)) == []
        with storage.writing_folder(str(path)):
            (path / "a").write_bytes(b"a")
        assert storage.names(str(path)) == ["a"]
        with pytest.raises(UserError, match="is not empty: choose a new folder"), storage.writing_folder(str(path)):
            pass
        assert (path / "a").read_bytes() == b"a"


@pytest.mark.parametrize("disk", ["nfs", "without locks"])
def test_a_folder_is_filled_on_network_disks(disk, tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", locks.FLOCKS[disk])
    with storage.writing_folder(str(tmp_path / "new")), storage.locked(str(tmp_path / "new/.lock")):
        storage.write(str(tmp_path / "new/a"), b"a")
    assert storage.names(str(tmp_path / "new")) == ["a"]


def test_temporary_files_of_killed_writers_are_removed_on_nfs(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", locks.FLOCKS["nfs"])
    (tmp_path / f"a.{'0' * 16}.tmp").write_bytes(b"x")
    storage.write(str(tmp_path / "a"), b"a")
    assert storage.names(str(tmp_path)) == ["a"]
