"""What a command says of itself as it ends."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from plm_jax.common import command_line
from plm_jax.common.errors import UserError


def test_only_the_first_failed_read_is_reported():
    program = """
import asyncio, gc
from plm_jax.common import command_line
async def fail():
    1 / 0
async def main():
    tasks = [asyncio.ensure_future(fail()) for _ in range(2)]
    await asyncio.sleep(0)
def verb():
    asyncio.run(main())
    gc.collect()
command_line.run(verb)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_control_characters_in_errors_are_escaped():
    program = r"""
from plm_jax.common import command_line
from plm_jax.common.errors import UserError
def main():
    print("\udcff")
    raise UserError("a\nerror: b\x1b[31m \ud800 é")
command_line.run(main)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stdout) == (2, "\\udcff\n")
    assert done.stderr == "error: a\\nerror: b\\x1b[31m \\ud800 é\n"


def test_a_reader_that_ends_first_ends_the_command_without_a_message():
    program = """
from plm_jax.common import command_line
command_line.run(lambda: print("line\\n" * 100_000))
"""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_only_tensorstore_errors_without_a_message_are_ignored():
    program = """
import tensorstore
from plm_jax.common import command_line
class Odd:
    def __del__(self):
        raise ValueError("of an object")
def main():
    promise, future = tensorstore.Promise.new()
    future.add_done_callback(lambda future: 1 / 0)
    promise.set_result(None)
    Odd()
command_line.run(main)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0
    assert "ZeroDivisionError" not in done.stderr
    assert done.stderr.count("Traceback") == 1 and "of an object" in done.stderr


def job(*ends: str, lost: int = 30) -> list[subprocess.CompletedProcess]:
    """Processes of a job, without a launcher; once all are there each does as its code says, and then waits for all."""
    program = f"""
import os, signal, time
from plm_jax.common import command_line
command_line._HEARTBEAT_TIMEOUT = {lost}
def main():
    command_line.start_jax()
    import numpy as np
    from jax.experimental import multihost_utils
    together = lambda: multihost_utils.process_allgather(np.array(1.0))
    together()
    exec({list(ends)}[int(os.environ["JAX_PROCESS_ID"])])
    together()
command_line.run(main)
"""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    variables = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(len(ends)), "XLA_FLAGS": ""}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=os.environ | variables | {"JAX_PROCESS_ID": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(len(ends))
    ]
    outputs = [process.communicate(timeout=120) for process in running]
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *texts)
        for process, texts in zip(running, outputs, strict=True)
    ]


@pytest.mark.parametrize(
    ("end", "status"), [("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL), ("raise KeyError('a defect')", 1)]
)
def test_a_process_that_dies_ends_the_others_with_one_line(end, status):
    """Whichever way: one that fails does not wait at its end for those that wait for it."""
    other, dead = job("", end)
    assert dead.returncode == status
    # As JAX ends processes, so that launchers start the job again.
    assert other.returncode == -signal.SIGABRT
    assert "Traceback" not in other.stderr
    (line,) = [line for line in other.stderr.splitlines() if not line.startswith("[Gloo]")]
    assert line.startswith("error: another process of this job ended") and "resumes from the last checkpoint" in line


@pytest.mark.skipif(not os.environ.get("PLM_JAX_FULL_TESTS"), reason="waits for seconds")
def test_one_that_waits_for_no_other_is_ended_too():
    other, _ = job("time.sleep(100)", "os.kill(os.getpid(), signal.SIGKILL)", lost=10)
    assert other.returncode == -signal.SIGABRT


def test_a_process_is_lost_well_within_a_minute(monkeypatch):
    import jax

    arguments = {}
    monkeypatch.setattr(jax.distributed, "initialize", lambda *place, **settings: arguments.update(settings))
    for name, value in (("COORDINATOR_ADDRESS", "127.0.0.1:1"), ("NUM_PROCESSES", "2"), ("PROCESS_ID", "1")):
        monkeypatch.setenv(f"JAX_{name}", value)
    command_line.start_jax()
    assert arguments["heartbeat_timeout_seconds"] <= 40
    # The first process may prepare the data before it joins.
    assert arguments["initialization_timeout"] >= 3600
    monkeypatch.setenv("JAX_PROCESS_ID", "0")
    command_line.start_jax()
    assert arguments["initialization_timeout"] <= 900


@pytest.mark.parametrize("place", [{"NUM_PROCESSES": "two", "PROCESS_ID": "0"}, {"NUM_PROCESSES": "2"}])
def test_invalid_process_index_is_a_one_line_error(place, monkeypatch):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "127.0.0.1:1")
    for name, value in place.items():
        monkeypatch.setenv(f"JAX_{name}", value)
    with pytest.raises(UserError, match="JAX_PROCESS_ID are set"):
        command_line.start_jax()


HOST = """
import importlib, sys
importlib.import_module("plm_jax.cli." + sys.argv[1])
from plm_jax.common import command_line
getattr(command_line, sys.argv[2])()
import jax
print(jax.config.jax_platforms)
"""


@pytest.mark.parametrize(("verb_name", "start"), [("convert", "start_jax_on_host"), ("plan", "start_jax_for_planning")])
def test_cpu_only_commands_do_not_use_accelerators(verb_name, start):
    """The flags of a verb import JAX, which reads JAX_PLATFORMS then."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    command = [sys.executable, "-c", HOST, verb_name, start]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "cpu\n"
