"""Processes that end with the one that started them, and groups of them that are stopped."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from plm_jax.common import children
from plm_jax.common.errors import Interrupted

# A process that starts itself as its child, both waiting for ever; the child says how it ends.
FAMILY = """
import os, signal, sys, time
from plm_jax.common import children
if sys.argv[1:]:
    said = os.dup(1)  # What the child says otherwise, nobody hears any more.
    def end(number, frame):
        os.write(1, b"lost")  # By `print` it might be in the middle of the other one's.
        os.write(said, b"saved")
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    children.end_with_parent()
    assert "PLM_JAX_PARENT" not in os.environ
    print("child", flush=True)
else:
    children.start([sys.executable, "-c", sys.orig_argv[2], "child"], os.environ, 1)
time.sleep(1000)
"""


def test_a_child_is_asked_to_stop_when_its_parent_is_killed():
    command = [sys.executable, "-c", FAMILY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "child\n"
        parent.kill()
        # The pipe ends when the child has, too.
        assert parent.stdout.read() == "saved"


def test_group_passes_on_output_and_exit_status():
    heard = []
    code = "import os, sys; print(os.environ['WORD']); print('low', file=sys.stderr); sys.exit(3)"
    status = children.Group().run([sys.executable, "-c", code], os.environ | {"WORD": "high"}, heard.append)
    assert status == 3 and sorted(b"".join(heard).split()) == [b"high", b"low"]


def test_a_group_that_is_stopped_ends_what_runs_and_begins_nothing():
    group, heard, ended = children.Group(), threading.Event(), []
    code = (
        "import signal, time; signal.signal(signal.SIGUSR1, lambda *_: exit(0))\n"
        "print('here', flush=True); time.sleep(1000)"
    )

    def run():
        try:
            group.run([sys.executable, "-c", code], os.environ, lambda said: heard.set())
        except Interrupted:
            ended.append(time.monotonic())

    thread = threading.Thread(target=run)
    thread.start()
    assert heard.wait(60)
    group.stop(signal.SIGUSR1)
    thread.join(60)
    assert ended
    with pytest.raises(Interrupted):
        group.run([sys.executable, "-c", "raise AssertionError"], os.environ, print)


def test_alone_is_without_the_variables_that_join_a_job(monkeypatch):
    for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS", "PLM_JAX_DISTRIBUTED"):
        monkeypatch.setenv(name, "1")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    assert os.environ.items() - children.alone().items() == {
        (name, "1")
        for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS", "PLM_JAX_DISTRIBUTED")
    }
    # A chip of a slice of several machines computes nothing alone.
    for names, platforms in (("host-0", None), ("host-0,host-1", "cpu")):
        monkeypatch.setenv("TPU_WORKER_HOSTNAMES", names)
        assert children.alone().get("JAX_PLATFORMS") == platforms


SHIELDED = """
import os, signal, subprocess, sys, threading, time
from plm_jax.common import children

worker = [sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(0.5)"]

def call():
    with subprocess.Popen(worker, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        os.killpg(0, signal.SIGINT)
        print("worker", process.wait(), flush=True)
    time.sleep(100)

try:
    children.in_background(call).result()
except KeyboardInterrupt:
    time.sleep(1.5)
    print("interrupted", flush=True)
    os._exit(0)
"""


def test_ctrl_c_reaches_neither_threads_nor_workers_of_a_call_in_the_background():
    command = [sys.executable, "-c", SHIELDED]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True, timeout=60)
    assert (done.stdout, done.stderr) == ("worker 0\ninterrupted\n", "")


def test_a_call_in_the_background_returns_or_raises_as_it_would():
    assert children.in_background(lambda: 3).result() == 3
    with pytest.raises(KeyError):
        children.in_background(lambda: {}[1]).result()


def test_ctrl_c_during_imports_prints_one_line(tmp_path):
    (tmp_path / "absl").mkdir()
    (tmp_path / "absl" / "__init__.py").write_text("import os\nos.kill(os.getpid(), 2)\nimport time\ntime.sleep(9)\n")
    path = os.pathsep.join([str(tmp_path), os.getcwd()])
    done = subprocess.run(
        [sys.executable, "-m", "plm_jax", "status", "w"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (130, "stopped; run the same command again to resume\n")
