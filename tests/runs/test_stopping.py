"""Runs that are asked to stop, and saves that fail: nothing is lost, and all processes agree."""

import errno
import http.server
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import orbax.checkpoint as ocp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax._src import distributed
from jax._src.lib import _jax

from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.runs import checkpoint_folders as folders
from plm_jax.runs import coordination, interruption, loop, telemetry
from plm_jax.runs.coordination import Decision
from tests.support import resume, runs
from tests.support.clock import Clock

LONG = ("--config.train.steps=150", "--config.checkpoint.save_every=1000", "--config.train.log_every=1")


@pytest.fixture(scope="module")
def reference(tiny, verb, tmp_path_factory):
    """An undisturbed run."""
    workdir = tmp_path_factory.mktemp("reference") / "run"
    finished = verb("pretrain", f"--config={tiny}/tiny.py", f"--workdir={workdir}", *LONG)
    assert finished.status == 0, finished.err
    return workdir


def until(step, workdir, process):
    while resume.last_step(workdir) < step:
        assert process.poll() is None, process.finished().err
        time.sleep(0.001)


def test_signal_saves_the_step_before_the_run_stops(tiny, verb, reference, tmp_path):
    command = ("pretrain", f"--config={tiny}/tiny.py", f"--workdir={tmp_path}/run", *LONG)
    process = verb.start(*command)
    until(20, tmp_path / "run", process)
    process.send_signal(signal.SIGTERM)
    status, _, said = process.finished()
    assert status == 75, said
    step = resume.last_step(tmp_path / "run")
    assert f"stopped by SIGTERM after step {step}, which is saved" in said.splitlines()[-1]
    assert folders.finished(tmp_path / "run/checkpoints") == [step] and step < 150
    again = verb(*command)
    assert again.status == 0 and f"resumed after step {step}" in again.err
    assert resume.differences(tmp_path / "run", reference) == []


def test_signal_to_one_process_stops_both_after_the_same_step(tiny, verb, reference, tmp_path):
    """One process continues the run."""
    command = ("pretrain", f"--config={tiny}/tiny.py", f"--workdir={tmp_path}/run", *LONG)
    first, second = verb.start_job(*command, "--config.mesh.data=2")
    until(20, tmp_path / "run", first)
    second.send_signal(signal.SIGTERM)
    ends = [process.finished() for process in (first, second)]
    step = resume.last_step(tmp_path / "run")
    assert [end.status for end in ends] == [75, 75], ends
    assert any(f"stopped by SIGTERM after step {step}, which is saved" in end.err for end in ends), ends
    assert folders.finished(tmp_path / "run/checkpoints") == [step] and step < 150
    again = verb(*command)
    assert again.status == 0 and f"resumed after step {step}" in again.err
    actual, expected = (runs.column(workdir, "train/batch_digest") for workdir in (tmp_path / "run", reference))
    assert actual == expected


WAIT = """
import time
from plm_jax.runs.interruption import Interruption
with Interruption({grace}) as asked:
    print("ready", flush=True)
    while not asked.reason:
        time.sleep(0.01)
    print(asked.reason, flush=True)
    time.sleep(60)
"""


def test_repeated_signal_within_a_second_is_ignored(monkeypatch):
    ended, clock = [], Clock(0.0)
    monkeypatch.setattr(interruption, "_end", lambda line, status: ended.append(status))
    monkeypatch.setattr(interruption, "time", clock)
    with interruption.Interruption(60) as asked:
        for clock.now in (5.0, 5.9, 6.1):
            assert not ended
            asked._handle(signal.SIGTERM, None)
        assert asked.reason == "SIGTERM" and ended == [128 + signal.SIGTERM]
    with interruption.Interruption(60) as asked:
        asked._handle(signal.SIGUSR1, None)
        asked._handle(signal.SIGTERM, None)  # Another one is a second one.
    assert len(ended) == 2


@pytest.mark.parametrize(
    ("number", "grace"), [(signal.SIGTERM, 0.1), (signal.SIGTERM, 60), (signal.SIGUSR1, 0.1), (signal.SIGINT, 0.1)]
)
def test_second_signal_and_end_of_grace_end_the_process(number, grace):
    command = [sys.executable, "-c", WAIT.format(grace=grace)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.send_signal(number)
        assert process.stdout.readline() == f"{number.name}\n"
        if grace == 60:
            process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 128 + (signal.SIGINT if grace == 60 else signal.SIGTERM)
    assert ("a second signal" if grace == 60 else "grace_seconds") in said and said.count("\n") == 1


def test_preemption_notice_requests_a_stop(monkeypatch):
    class Metadata(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            assert self.headers["Metadata-Flavor"] == "Google"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"TRUE" if "/instance/preempted?" in self.path else b"NONE")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("localhost", 0), Metadata)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("GCE_METADATA_HOST", f"localhost:{server.server_port}")
    for notice, reason in (("", None), ("gce", "a preemption notice")):
        monkeypatch.setenv("PLM_JAX_PREEMPTION_NOTICE", notice)
        with interruption.Interruption(60) as asked:
            for _ in range(200):
                if asked.reason or not notice:
                    break
                time.sleep(0.01)
            assert asked.reason == reason
    server.shutdown()
    server.server_close()


def test_saves_are_due_by_the_minute_and_less_often_after_failures(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(coordination, "time", clock)
    decided = coordination.Coordinator(config.CheckpointConfig(save_minutes=15, max_failures=3), "run")
    due = []
    for step in range(1, 200):
        clock.now += 30
        decision = decided.decide(step)
        if decision.failed:
            assert "no room, the last of 3 saves that failed in a row" in decision.failed
            break
        if decision.save:
            due.append(30 * step)
            decided.begin_save()
            if len(due) in (2, 4, 5, 6):  # One fails by itself, then all do.
                decided.report_failure("no room")
    # 15 minutes, again; the failure is tried again at once; 15 minutes later, and then after 10 and 20 seconds.
    assert due == [900, 1800, 1860, 2760, 2820, 2880] and step == 97


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_processes_that_are_a_step_apart_agree(data):
    service, number, steps = coordination._SingleProcess(), 3, 40
    processes = []
    for index in range(number):
        one = coordination.Coordinator(config.CheckpointConfig(save_minutes=0), "run")
        one._service, one._ahead, one._process = service, coordination._STEPS_AHEAD, index
        processes.append(one)
    at, heard = [0] * number, [{} for _ in range(number)]
    asked = data.draw(st.integers(0, number - 1)), data.draw(st.integers(1, steps - 8))
    while min(at) < steps:
        ready = [index for index in range(number) if at[index] <= min(at)]
        index = data.draw(st.sampled_from(ready))
        at[index] += 1
        if (index, at[index]) == asked:
            processes[index].request_stop("SIGTERM")
        heard[index][at[index]] = processes[index].decide(at[index])
    assert heard[0] == heard[1] == heard[2]
    stops = [step for step, decision in heard[0].items() if decision.stop]
    assert stops and asked[1] <= stops[0] <= asked[1] + 4
    assert heard[0][stops[0]] == Decision(save=True, stop="SIGTERM")


@pytest.fixture
def connect(monkeypatch):
    """Connects this process to a new coordination service."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    service = _jax.get_distributed_runtime_service(address, 1)
    client = _jax.get_distributed_runtime_client(address, 0)
    client.connect()
    monkeypatch.setattr(distributed.global_state, "client", client)
    yield
    client.shutdown()
    service.shutdown()


@pytest.mark.usefixtures("connect")
@pytest.mark.parametrize("workdir", ["runs/a", "/home/user/runs/a", "gs://bucket/a"])
def test_messages_of_processes_arrive(workdir):
    service = coordination._Service(f"plm_jax/{workdir}/0")
    service.put("failed/1/0", "no room")
    assert service.below("failed/") == {"failed/1/0": "no room"}
    assert service.get("failed/1/0") == "no room" and service.get("decided/0") is None


def failing(monkeypatch, fails):
    """Saves of which those whose number, from 1 on, `fails` says fail as on a full disk."""
    save, number = ocp.AsyncCheckpointer.save, [0]

    def save_or_fail(self, *arguments, **options):
        number[0] += 1
        if fails(number[0]):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return save(self, *arguments, **options)

    monkeypatch.setattr(ocp.AsyncCheckpointer, "save", save_or_fail)
    monkeypatch.setattr(coordination, "BACK_OFF", 0.0)
    return number


def test_failed_save_is_reported_and_repeated(tiny, tmp_path, monkeypatch, capsys):
    number = failing(monkeypatch, lambda n: n in (1, 4, 5))
    run = runs.make(tiny, train={"steps": 8, "log_every": 1}, checkpoint={"save_every": 2, "keep_last": 9})
    loop.pretrain(run, str(tmp_path / "run"))
    # That of step 2 comes again after step 3; those of 6 and 7 fail, and the last one is made by the second attempt.
    assert folders.finished(tmp_path / "run/checkpoints")[-1] == 8 and number[0] >= 6
    told = [row for row in runs.rows(tmp_path / "run") if "checkpoint/error" in row]
    assert len(told) == 3 and "No space left" in told[0]["checkpoint/error"]
    assert capsys.readouterr().err.count("could not be saved") == 3
    assert not [path for path in (tmp_path / "run/checkpoints").iterdir() if not path.name.isdecimal()]


def test_repeatedly_failing_saves_end_the_run(tiny, tmp_path, monkeypatch):
    number = failing(monkeypatch, lambda n: n > 1)
    settings = {"save_every": 2, "max_failures": 3}
    with pytest.raises(UserError, match=r"No space left.*the last of 3 saves that failed in a row"):
        loop.pretrain(runs.make(tiny, train={"steps": 40}, checkpoint=settings), str(tmp_path / "run"))
    assert number[0] == 4 and folders.finished(tmp_path / "run/checkpoints") == [2]
    with pytest.raises(UserError, match=r"checkpoint 3 could not be saved .* after 3 attempts"):
        loop.pretrain(runs.make(tiny, train={"steps": 3}, checkpoint=settings), str(tmp_path / "run"))


def test_rows_wait_until_they_can_be_written(tiny, tmp_path, monkeypatch):
    write, full, shown = telemetry._Rows._write, [False], []

    def write_or_fail(self):
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self)

    monkeypatch.setattr(telemetry._Rows, "_write", write_or_fail)
    monkeypatch.setattr(telemetry.Events, "add", lambda self, step, numbers: shown.append(step))
    with telemetry.Telemetry(str(tmp_path), 0, 9) as log:
        for step in range(1, 8):
            full[0] = step in (3, 4, 5)
            log.write({"step": step, "x": 0.5})
    assert [row["step"] for row in runs.rows(tmp_path)] == shown == [*range(1, 8)]


def test_lost_metrics_are_reported(tiny, tmp_path, verb, reference):
    def resumed(name, change):
        workdir = pathlib.Path(shutil.copytree(reference, tmp_path / name))
        change(workdir)
        finished = verb(
            "pretrain",
            f"--config={tiny}/tiny.py",
            f"--workdir={workdir}",
            *LONG,
            "--config.train.steps=151",
            "--allow_changes",
        )
        return finished, workdir

    lines = (reference / "metrics.jsonl").read_text().splitlines(keepends=True)
    finished, _ = resumed("lost", lambda workdir: (workdir / "metrics.jsonl").unlink())
    assert finished.status == 0 and "the rows of steps 1 to 150 are lost" in finished.err
    finished, _ = resumed("cut", lambda workdir: (workdir / "metrics.jsonl").write_text("".join(lines[:100]) + "{"))
    assert finished.status == 0 and "was cut: the rows of steps 101 to 150 are lost" in finished.err
    finished, _ = resumed("foreign", lambda workdir: (workdir / "metrics.jsonl").write_text('{"epoch": 1}\n'))
    assert finished.status == 2 and "move the file away" in finished.err
    finished, workdir = resumed("begun anew", lambda workdir: shutil.rmtree(workdir / "checkpoints"))
    assert finished.status == 0 and "150 rows up to step 150 are now in" in finished.err
    assert (workdir / "metrics.jsonl.1").read_text() == "".join(lines)
    starts = json.loads((workdir / "config.json").read_text())["history"]
    assert [start["step"] for start in starts] == [0, 0] and starts[1]["devices"]
