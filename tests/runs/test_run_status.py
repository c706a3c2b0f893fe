"""The report of `status` on the heartbeats of a run."""

import json
import os
import pathlib
import random
import socket
import time

import pytest

from plm_jax.common import leases, storage
from plm_jax.common.errors import Interrupted, UserError
from plm_jax.runs import heartbeat, run_status
from plm_jax.runs.goodput import PARTS, Goodput
from plm_jax.runs.heartbeat import Heartbeat
from tests.support.clock import Clock


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(heartbeat, "time", clock)
    monkeypatch.setattr(heartbeat.storage, "sync", lambda file: file.flush())
    return clock


class Notes:
    """A count of its own: what each second went to, and which steps were made in which start."""

    def __init__(self, clock: Clock):
        self.clock, self.parts, self.steps = clock, dict.fromkeys([*PARTS, "lost", "down"], 0.0), []

    def take(self, part: str, seconds: float) -> None:
        self.clock.now += seconds
        self.parts[part] += seconds

    def made(self, step: int, seconds: float) -> None:
        self.clock.now += seconds
        self.steps.append((step, seconds))

    def goes_on(self, step: int) -> None:
        """The steps beyond one are lost."""
        self.parts["lost"] += sum(seconds for made, seconds in self.steps if made > step)
        self.steps = [one for one in self.steps if one[0] <= step]

    def counted(self) -> dict[str, float]:
        return self.parts | {"steps": sum(seconds for _, seconds in self.steps)}


def start(notes: Notes, workdir: str, rng: random.Random, first: int, until: int, save_every: int, last: int) -> int:
    """A start that is killed at step `until`, at some moment within ten seconds of its last sign of life.

    Returns:
      The step of its last checkpoint.
    """
    clock, began, saved = notes.clock, notes.clock.now, first
    goodput = Goodput(clock=clock)
    beat = Heartbeat(workdir, goodput, began, 10.0, 0, 1)
    notes.take("start", 60.0)
    notes.goes_on(first)
    with goodput.measure("steps"):
        goodput.begin(first)
        with goodput.measure("compile"):
            notes.take("compile", 90.0)
        for step in range(first + 1, until + 1):
            with goodput.measure("data"):
                notes.take("data", rng.uniform(0, 2))
            notes.made(step, rng.uniform(20, 40))
            goodput.finish_step(step)
            if step % 1000 == 0:
                with goodput.measure("validation"):
                    notes.take("validation", 300.0)
            if step % save_every == 0 or step == last:
                with goodput.measure_save():
                    beat.write()  # As its thread does when a save begins.
                    notes.take("saves", 8.0)
                saved = step
    beat.write(ended=until == last)
    if until < last:
        # What was done after the last sign of life nobody knows: it was not running.
        notes.take("down", rng.uniform(0, 10))
    return saved


def test_simulated_week_equals_an_independent_count(clock, tmp_path):
    """20,000 steps, restarts each 500, saves each 50; now and then the newest checkpoint is damaged."""
    notes, rng, first, starts, last = Notes(clock), random.Random(1), 0, 0, 20_000
    began = clock.now
    while first < last:
        until = min(first + 500 + rng.randrange(50), last)
        saved = start(notes, str(tmp_path), rng, first, until, 50, last)
        starts += 1
        if until == last:
            break
        first = saved - (50 if starts % 7 == 0 else 0)
        notes.take("down", 600.0)
    found, counted = run_status.account(run_status.read(str(tmp_path))), notes.counted()
    assert starts > 40
    assert sum(counted.values()) == pytest.approx(clock.now - began)
    assert sum(found.values()) == pytest.approx(clock.now - began)
    for part in counted:
        assert found[part] == pytest.approx(counted[part], rel=0.01, abs=0.001 * (clock.now - began)), part
    goodput = found["steps"] / sum(found.values())
    assert goodput == pytest.approx(counted["steps"] / sum(counted.values()), rel=0.01)
    assert 0 < found["lost"] < 0.2 * found["steps"]


def start_record(**fields) -> dict:
    """A start of 100 seconds, 60 of them 30 steps."""
    seconds = dict.fromkeys(PARTS, 0.0) | {"start": 30.0, "steps": 60.0, "saves": 10.0}
    record = {"began": 1000.0, "alive": 1100.0, "ended": None, "error": None, "doing": "saving"}
    record |= {"host": socket.gethostname(), "pid": os.getpid(), "first_step": 0, "step": 30, "step_seconds": 2.0}
    return record | {"seconds": seconds, "worked": 60.0, "saves": [[20, 50.0]]} | fields


def test_lost_steps_are_counted_by_their_own_time():
    """The steps up to the save took 2.5 s, the others 1 s each."""
    whole = run_status.account([start_record()])
    assert (whole["steps"], whole["lost"]) == (60, 0)
    for step, kept in ((20, 50), (25, 55), (10, 25), (0, 0), (30, 60), (40, 60)):
        later = start_record(began=1150.0, first_step=step, step=step + 5, saves=[], worked=60.0)
        parts = run_status.account([start_record(), later])
        assert (parts["steps"], parts["lost"], parts["down"]) == (kept + 60, 60 - kept, 50), step
    # A start may lose the steps of several starts before.
    starts = [start_record(), start_record(began=1100.0, first_step=20, saves=[]), start_record(began=1200.0)]
    assert run_status.account(starts)["lost"] == 120
    # A finished run that is extended later was not down in between.
    starts = [start_record(ended="finished"), start_record(began=9000.0, first_step=30, step=60)]
    assert run_status.account(starts)["down"] == 0


FINISHED = {"began": 1200.0, "step": 60, "ended": "finished"}
FAILED = {"ended": "failed", "error": "no room"}
STOPPED = {"ended": "stopped", "error": "stopped by SIGTERM"}


def write(workdir, *starts) -> str:
    """A run directory."""
    for number, content in enumerate(starts, 1):
        path = workdir / "heartbeat" / f"{number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    (workdir / "config.json").write_text(json.dumps({"config": {"train": {"steps": 60}}}))
    rows = [{"step": 10, "train/tokens_per_second": 512.0}, {"step": 20, "checkpoint/error": "disk full"}]
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 2')
    (workdir / "checkpoints" / "20").mkdir(parents=True, exist_ok=True)
    return str(workdir)


def test_running_run_reports_activity_and_time_left(tmp_path):
    workdir = write(tmp_path, start_record())
    with leases.held(str(tmp_path / "lock"), "trains"):
        (tmp_path / "heartbeat" / "stalled-3.json").write_text(json.dumps({"time": 0.0, "says": "process 3 waits"}))
        found = run_status.of_run(workdir)
    text = "\n".join(found.lines)
    assert found.fine and f"alive, process {os.getpid()}" in found.lines[0]
    assert "30 of 60 (50.0%), 2 s per step, 512 tokens/s, about 70 s left" in text  # 70 of 100 s were of 30 steps.
    assert "doing       saving" in text and "stalled     process 3 waits" in text
    assert "last error  after step 20: disk full" in text
    assert "checkpoint  20" in text and "saves 10.0%" in text
    assert "goodput     60.0% of the 100 s since the start at " in text
    assert " were spent on training steps; 1 start\n" in text


def test_new_start_is_reported_as_starting(tmp_path):
    workdir = write(tmp_path, start_record(pid=1))
    with leases.held(str(tmp_path / "lock"), "trains"):
        status = run_status.of_run(workdir)
    assert status.fine and "doing       starting" in status.lines and "left" not in "\n".join(status.lines)


@pytest.mark.parametrize(
    ("starts", "is_fine", "first_line", "line"),
    [
        ([{}], False, "it died without an error message", ""),
        ([{"step": 60}], False, "it died without an error message", ""),  # All steps, but not the last save.
        ([{}, FINISHED], True, "finished", "start 1 ended after step 30: it died without an error message"),
        ([FAILED, STOPPED], False, "stopped by SIGTERM", "start 1 ended after step 30: no room"),
    ],
)
def test_status_reports_how_each_start_ended(starts, is_fine, first_line, line, tmp_path):
    status = run_status.of_run(write(tmp_path, *(start_record(**fields) for fields in starts)))
    assert status.fine == is_fine and first_line in status.lines[0]
    assert is_fine or "not running" in status.lines[0]
    (goodput,) = (each for each in status.lines if each.startswith("goodput"))
    assert "s of this run, which started at " in goodput
    assert goodput.endswith("; 1 start" if len(starts) == 1 else f"; {len(starts)} starts")
    assert line in "\n".join(status.lines[1:]) and "start 2 ended" not in "\n".join(status.lines)


def test_run_in_a_bucket_is_reported(clock, tmp_path):
    """By fsspec's memory; what the start wrote is read back, beside rows too many to be read whole."""
    local = pathlib.Path(write(tmp_path, start_record(ended="failed", error="no room")))
    workdir = f"memory://{tmp_path.name}"
    rows = b"".join(json.dumps({"step": step, "x": "y" * 1000}).encode() + b"\n" for step in range(1000))
    for name in ("config.json", "heartbeat/1.json"):
        storage.write(f"{workdir}/{name}", (local / name).read_bytes())
    storage.write(f"{workdir}/metrics.jsonl", rows + (local / "metrics.jsonl").read_bytes())
    beat = Heartbeat(workdir, Goodput(clock=clock), clock.now, 0.0, 0, 1)
    clock.now += 10
    beat.write()
    assert [start["began"] for start in run_status.read(workdir)] == [1000, clock.now - 10]
    with leases.held(f"{workdir}/lock", "trains"):
        text = "\n".join(run_status.of_run(workdir).lines)
    assert "alive" in text and "disk full" in text and "no room" in text and "; 2 starts" in text
    assert not run_status.of_run(workdir).fine


@pytest.mark.parametrize(
    "damaged",
    [
        *("", "{", "[]", '"x"', '{"began": 3}', "null", json.dumps({"seconds": {}, "began": 1.0})),
        *("[" * 9999, {"began": 1e308}, {"began": 10**30}, {"alive": float("nan")}, {"saves": [[1, -(10**30)]]}),
        *({"seconds": {}}, {"saves": [3]}, {"saves": [["a", 1]]}, {"step": "x"}, {"first_step": None}, {"began": None}),
    ],
)
def test_damaged_heartbeats_are_ignored(damaged, tmp_path):
    workdir = write(tmp_path, damaged if isinstance(damaged, str) else start_record(**damaged), start_record())
    assert len(run_status.read(workdir)) == 1
    assert any("goodput     60.0%" in line for line in run_status.of_run(workdir).lines)


def test_folder_without_a_run_is_rejected(tmp_path):
    with pytest.raises(UserError, match="has no run"):
        run_status.of_run(str(tmp_path))


def wait_until(condition) -> None:
    """Until what a thread does every millisecond is done."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_stalled_hosts_report_what_they_wait_for(clock, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(heartbeat, "_CHECK", 0.001)
    path = tmp_path / "heartbeat" / "stalled-1.json"
    goodput = Goodput(clock=clock)
    with Heartbeat(str(tmp_path), goodput, clock.now, 10.0, process=1, num_processes=2), goodput.measure("steps"):
        goodput.begin(0)
        for step in range(1, 8):
            clock.now += 3
            goodput.finish_step(step)
        with goodput.measure("data"):
            clock.now += 30
            wait_until(path.exists)
        says = json.loads(path.read_text())["says"]
        clock.now += 0.5
        goodput.finish_step(8)
        wait_until(lambda: not path.exists())
    assert "process 1 on" in says and "no step has ended for 30 s after step 7 (the median is 3 s)" in says
    assert "waiting for data" in says and "test_run_status.py" in says and "in wait_until" in says
    err = capsys.readouterr().err
    assert says in err and "step 8 took 30.5 s (the median is 3 s), of these 30.0 s waiting for data" in err
    assert not (tmp_path / "heartbeat" / "1.json").exists()  # The first process's.


def test_start_without_steps_is_reported_as_stalled(clock, tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "_CHECK", 0.001)
    goodput = Goodput(clock=clock)
    with Heartbeat(str(tmp_path), goodput, clock.now, 2.0, process=0, num_processes=1):
        clock.now += 121
        path = tmp_path / "heartbeat" / "stalled-0.json"
        wait_until(path.exists)
        assert "no step has ended for 121 s: starting" in json.loads(path.read_text())["says"]


def test_unwritable_heartbeats_do_not_fail_the_run(clock, tmp_path):
    (tmp_path / "heartbeat").write_text("a file in the way")
    with Heartbeat(str(tmp_path), Goodput(clock=clock), clock.now, 0.0, 0, 1):
        pass


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (None, ("finished", None)),
        (UserError("disk full: make room"), ("failed", "disk full: make room")),
        (KeyError("x"), ("failed", "KeyError: 'x'")),
        (Interrupted("stopped by SIGTERM"), ("stopped", "stopped by SIGTERM")),
    ],
)
def test_last_heartbeat_describes_the_end(error, ended, clock, tmp_path):
    beat = Heartbeat(str(tmp_path), Goodput(clock=clock), clock.now, 0.0, 0, 1)
    beat.__enter__()
    beat.__exit__(type(error), error, None)
    (only,) = run_status.read(str(tmp_path))
    assert (only["ended"], only["error"]) == ended


def test_end_of_a_run_is_recorded_although_its_store_fails_for_a_while(clock, tmp_path, monkeypatch):
    put, failures = heartbeat._put, [OSError("stale"), UserError("cannot reach")]

    def put_or_fail(path, content):
        if content["ended"] and failures:
            raise failures.pop()
        put(path, content)

    monkeypatch.setattr(heartbeat, "_put", put_or_fail)
    with Heartbeat(str(tmp_path), Goodput(clock=clock), clock.now, 0.0, 0, 1):
        pass
    assert run_status.standing(str(tmp_path)).finished and not failures
