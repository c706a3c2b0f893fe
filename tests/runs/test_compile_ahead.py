"""The step of the next phase is prepared in the background, compiled once, and computes the same."""

import contextlib
import pathlib
import subprocess
import sys
import threading

import jax
import pytest

from plm_jax import config
from plm_jax.common import command_line
from plm_jax.runs import compile_ahead, loop
from plm_jax.training.program import Program
from tests.support import runs
from tests.support.tiny import RUNS, write

PHASES = (
    config.PhaseConfig(until=0.5, length=16, batch_size=16),
    config.PhaseConfig(until=0.75, mesh={"data": 4, "fsdp": 2}),
    config.PhaseConfig(until=1.0, batch_size=16, dropout=0.0),
)
AHEAD = "compile ahead"
LAUNCH = pathlib.Path(__file__).parents[2] / "launch" / "local.py"
is_on, EVENTS = [], []
PREFIX = "/jax/core/compile/"


def listen(event, seconds, fun_name="", **_):
    if is_on and event.startswith(PREFIX):
        EVENTS.append((event.removeprefix(PREFIX), fun_name, threading.current_thread().name))


jax.monitoring.register_event_duration_secs_listener(listen)


@contextlib.contextmanager
def recorded():
    """Kinds, names of functions and threads of compilations."""
    EVENTS.clear()
    is_on.append(True)
    yield EVENTS
    is_on.clear()


@pytest.fixture
def events():
    with recorded() as events:
        yield events


def make(folder, phases=PHASES, devices=8):
    train, mesh = {"steps": 8, "phases": phases}, config.MeshConfig(data=devices)
    return runs.make(folder, RUNS["dropout"], train=train, mesh=mesh, checkpoint={"save_every": 100})


def threads_of(events, kind):
    """Threads in which steps were lowered or compiled, in order; the first program draws the parameters."""
    return [thread for event, name, thread in events if event == kind and name == "jit(with_rules)"][1:]


@pytest.fixture(scope="module")
def expected(tiny, tmp_path_factory):
    """Rows of a run that compiles each step at the start of its phase, as is done on CPUs."""
    workdir = tmp_path_factory.mktemp("expected") / "run"
    with recorded() as events:
        loop.pretrain(make(tiny), str(workdir))
    assert threads_of(events, "backend_compile_duration") == [threading.current_thread().name] * 3
    return bits(workdir)


def bits(workdir):
    names = ("train/loss", "train/grad_norm", "train/batch_digest", "validation/loss")
    return {name: runs.column(workdir, name) for name in names}


@pytest.mark.parametrize("compiles", [True, False], ids=["compiled", "lowered"])
def test_steps_are_prepared_ahead_and_once(compiles, monkeypatch, tiny, tmp_path, expected, events):
    monkeypatch.setitem(compile_ahead.COMPILES, "cpu", compiles)
    loop.pretrain(make(tiny), str(tmp_path / "run"))
    assert bits(tmp_path / "run") == expected
    main = threading.current_thread().name
    assert threads_of(events, "jaxpr_to_mlir_module_duration") == [main, AHEAD, AHEAD]
    compiled_by = AHEAD if compiles else main
    assert threads_of(events, "backend_compile_duration") == [main, compiled_by, compiled_by]


def test_models_with_a_carry_compile_once(monkeypatch, verb, tmp_path, events):
    """The carry has the batch size of the phase."""
    monkeypatch.setitem(compile_ahead.COMPILES, "cpu", True)
    write(tmp_path)
    prepared = verb("prepare", f"--config={tmp_path}/tiny.py:elmo")
    assert prepared.status == 0, prepared.err
    phases = (config.PhaseConfig(until=0.5), config.PhaseConfig(until=1.0, batch_size=16))
    run = runs.make(tmp_path, RUNS["elmo"], train={"steps": 4, "phases": phases})
    loop.pretrain(run, str(tmp_path / "run"))
    main = threading.current_thread().name
    threads = [thread for event, name, thread in events if event == "backend_compile_duration" and "with_rules" in name]
    assert threads.count(AHEAD) == 1
    # The parameters, the first step, and the carry of the second phase, whose step is compiled only once.
    assert threads.count(main) == 3


def failing_step(phase_step, calls):
    def step(self, phase):
        compiled = phase_step(self, phase)
        if phase.first_step == 0:
            return compiled

        def fail(*_):
            calls.append(threading.current_thread().name)
            raise RuntimeError("cannot compile this step")

        fail.lower = fail
        return fail

    return step


def test_errors_are_raised_at_their_phase(monkeypatch, tiny, tmp_path):
    monkeypatch.setitem(compile_ahead.COMPILES, "cpu", True)
    calls = []
    monkeypatch.setattr(Program, "phase_step", failing_step(Program.phase_step, calls))
    with pytest.raises(RuntimeError, match="cannot compile this step"):
        loop.pretrain(make(tiny), str(tmp_path / "run"))
    assert calls == [AHEAD, threading.current_thread().name]
    assert [row["step"] for row in runs.rows(tmp_path / "run")] == [1, 2, 3, 4]


STOPPED = """
import pathlib, sys, threading
from plm_jax.common import command_line
from plm_jax.common.errors import Interrupted
from plm_jax.runs import compile_ahead, loop
from tests.runs.test_compile_ahead import make

def stop(self, context):
    if context.step == 3:
        compiles = any(thread.name == "compile ahead" for thread in threading.enumerate())
        raise Interrupted("stopped while it compiles" if compiles else "stopped")

compile_ahead.COMPILES["cpu"] = True
compile_ahead.PhaseSteps._prepare = lambda self, phase: threading.Event().wait()
loop.Stop.after_step = stop
folder, workdir = sys.argv[1:]
sys.argv[1:] = []
command_line.run(lambda: loop.pretrain(make(pathlib.Path(folder)), workdir))
"""


def test_a_stopped_run_does_not_wait(tiny, tmp_path):
    """The next step is still being compiled when the command ends."""
    command = [sys.executable, "-c", STOPPED, str(tiny), str(tmp_path / "run")]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == command_line.SAVED, finished.stderr
    assert finished.stderr.splitlines()[-1] == "stopped while it compiles"


JOB = """
import dataclasses, pathlib, sys, threading
import jax
from plm_jax.common import command_line
from plm_jax.runs import compile_ahead, loop
from tests.runs.test_compile_ahead import AHEAD, PHASES, make

def report(event, seconds, fun_name="", **_):
    if event.endswith("backend_compile_duration") and threading.current_thread().name == AHEAD:
        print("compiled ahead by process", jax.process_index(), fun_name, file=sys.stderr)

jax.monitoring.register_event_duration_secs_listener(report)
compile_ahead.COMPILES["cpu"] = True
folder, workdir = sys.argv[1:]
sys.argv[1:] = []
command_line.start_jax()
phases = [dataclasses.replace(phase, mesh={}) for phase in PHASES]
loop.pretrain(make(pathlib.Path(folder), tuple(phases), devices=2), workdir)
"""


def test_each_process_of_a_job_compiles_ahead(tiny, tmp_path, expected):
    script = [sys.executable, "-c", JOB, str(tiny), str(tmp_path / "run")]
    command = [sys.executable, str(LAUNCH), "--processes=2", "--devices=1", "--", *script]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stderr
    for process in (0, 1):
        assert finished.stderr.count(f"compiled ahead by process {process} jit(with_rules)") == 2
    rows = bits(tmp_path / "run")
    assert rows["train/batch_digest"] == expected["train/batch_digest"]
    assert rows["train/loss"] == pytest.approx(expected["train/loss"], rel=1e-5)
