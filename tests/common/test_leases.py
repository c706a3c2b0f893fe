"""Folders that one process at a time holds."""

import contextlib
import json
import os
import subprocess
import sys
import time

import pytest

from plm_jax.common import leases, storage
from plm_jax.common.errors import UserError
from tests.support import bucket

HOLD = """
import sys, time
from plm_jax.common import leases
from plm_jax.common.errors import UserError
try:
    with leases.held(sys.argv[1], "works there"):
        print("held", flush=True)
        sys.stdin.readline()
except UserError as error:
    print(error, flush=True)
"""


def holder(folder, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
    )


def test_only_one_of_many_processes_gets_the_lease(tmp_path):
    processes = [holder(tmp_path / "lock") for _ in range(6)]
    lines = [process.stdout.readline().strip() for process in processes]
    assert lines.count("held") == 1
    first = processes[lines.index("held")]
    assert all(f"another process works there (process {first.pid} on" in line for line in lines if line != "held")
    assert leases.is_alive(str(tmp_path / "lock"))
    first.kill()
    assert first.wait() < 0 and not leases.is_alive(str(tmp_path / "lock"))
    with leases.held(str(tmp_path / "lock"), "works there"):  # A dead one's is taken at once.
        assert leases.taken(str(tmp_path / "lock"))["pid"] == os.getpid()
    assert leases.taken(str(tmp_path / "lock")) is None
    assert len(os.listdir(tmp_path / "lock")) == 1


@pytest.mark.parametrize("content", ["", "[]", "[" * 9999, "{"])
def test_damaged_lease_expires(content, tmp_path, monkeypatch):
    (tmp_path / "1.json").write_text(content)
    monkeypatch.setattr(leases, "_WRITING", 0.0)
    with leases.held(str(tmp_path), "works there"):
        assert leases.taken(str(tmp_path))["pid"] == os.getpid()


def test_lease_that_its_holder_is_still_writing_is_respected(tmp_path, monkeypatch):
    (tmp_path / "1.json").touch()
    identity = json.dumps(leases._identity())
    monkeypatch.setattr(time, "sleep", lambda seconds: (tmp_path / "1.json").write_text(identity))
    with pytest.raises(UserError, match="another process works there"), leases.held(str(tmp_path), "works there"):
        pass


@contextlib.contextmanager
def elsewhere(monkeypatch):
    """Within it this process is one of another machine."""
    with monkeypatch.context() as patch:
        patch.setattr(leases, "_machine", lambda: "another boot")
        yield


def test_remote_holder_is_alive_while_its_heartbeat_changes(tmp_path, monkeypatch):
    folder = str(tmp_path)
    monkeypatch.setattr(leases, "_LEASE", 3.0)
    monkeypatch.setattr(leases, "_BEAT", 0.2)
    with leases.held(folder, "works there"), elsewhere(monkeypatch):
        assert leases.is_alive(folder, 3.0)
        with pytest.raises(UserError, match="another process works there"), leases.held(folder, "works there"):
            pass
    # One that is silent is taken for dead.
    storage.create(os.path.join(folder, "9.json"), json.dumps(leases._identity()).encode())
    monkeypatch.setattr(leases, "_LEASE", 0.5)
    with elsewhere(monkeypatch), leases.held(folder, "works there"):
        assert leases.taken(folder)["machine"] == "another boot"


def test_suspended_process_does_not_get_a_newer_lease(tmp_path, monkeypatch):
    """It creates a number that others have used and removed."""
    folder, create = str(tmp_path), storage.create

    def late(path, data):
        monkeypatch.setattr(storage, "create", create)
        with leases.held(folder, "works there"):
            pass
        storage.create(os.path.join(folder, "3.json"), json.dumps(leases._identity()).encode())
        os.remove(os.path.join(folder, "1.json"))
        create(path, data)

    monkeypatch.setattr(storage, "create", late)
    with pytest.raises(UserError, match="another process"), leases.held(folder, "works there"):
        pass
    assert os.listdir(folder) == ["3.json"]


def test_lease_in_a_bucket_is_exclusive(monkeypatch):
    with bucket.Bucket() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        folder = "gs://bucket/run/lock"
        with leases.held(folder, "works there"):
            process = holder(folder, env=os.environ | store.environment)
            assert f"process {os.getpid()}" in process.stdout.readline()
            with pytest.raises(FileExistsError):
                storage.create(f"{folder}/1.json", b"{}")
        assert leases.taken(folder) is None
