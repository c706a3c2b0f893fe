"""`launch/local.py`: environments, exit statuses, stopping the rest, starting again."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.support import resume

LAUNCH = pathlib.Path(__file__).parents[2] / "launch" / "local.py"


def launch(code: str, *options: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(LAUNCH), *options, "--", sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_each_process_knows_its_place(tmp_path):
    code = f"""
import json, os
place = os.environ["JAX_PROCESS_ID"]
names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PLATFORMS", "XLA_FLAGS")
json.dump([os.environ[name] for name in names], open({str(tmp_path)!r} + "/" + place, "w"))
"""
    finished = launch(code, "--processes=3", "--devices=4")
    assert finished.returncode == 0, finished.stderr
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "2"]
    first, *rest = [json.loads((tmp_path / name).read_text()) for name in "012"]
    assert rest == [first, first]
    assert first[0].startswith("127.0.0.1:") and first[1:3] == ["3", "cpu"]
    assert first[3].endswith("--xla_force_host_platform_device_count=4")


def test_the_failing_process_decides_and_the_others_are_stopped(tmp_path):
    """Process 1 fails once process 0 is there; process 0 would wait for ever."""
    code = f"""
import os, pathlib, signal, sys, time
there, stopped = (pathlib.Path({str(tmp_path)!r}, name) for name in ("there", "stopped"))
if os.environ["JAX_PROCESS_ID"] == "0":
    def stop(*_):
        stopped.touch()
        sys.exit(0)
    signal.signal(signal.SIGTERM, stop)
    there.write_text(str(os.getpid()))
    while True:
        time.sleep(0.01)
while not there.exists():
    time.sleep(0.01)
sys.exit(7)
"""
    assert launch(code, "--processes=2").returncode == 7
    assert (tmp_path / "stopped").exists()


def test_a_process_that_ignores_the_request_is_killed(tmp_path):
    code = f"""
import os, pathlib, signal, sys, time
there = pathlib.Path({str(tmp_path)!r}, "there")
if os.environ["JAX_PROCESS_ID"] == "1":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    there.write_text(str(os.getpid()))
    time.sleep(1000)
while not there.exists() or not there.read_text():
    time.sleep(0.01)
sys.exit(3)
"""
    quick = "import local, sys; local.LEFT_SECONDS = 0.5; sys.argv[1:1] = ['--processes=2', '--']; local.main()"
    command = [sys.executable, "-c", quick, sys.executable, "-c", code]
    assert subprocess.run(command, cwd=LAUNCH.parent, timeout=60).returncode == 3
    assert not pathlib.Path("/proc", (tmp_path / "there").read_text()).exists()


def test_a_job_that_is_killed_again_and_again_is_a_failure(tmp_path):
    code = """
import os, pathlib, signal
print("port", os.environ["JAX_COORDINATOR_ADDRESS"], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    finished = launch(code, "--processes=1", "--restarts=2")
    assert finished.returncode == 128 + 9
    assert len(set(finished.stdout.splitlines())) == 3
    assert finished.stderr.count("SIGKILL killed a process: restarting the job (at most 2 times per hour)") == 2


def test_a_job_whose_step_was_saved_starts_again_and_that_is_no_failure(tmp_path):
    code = f"""
import os, pathlib, signal, sys
lives = pathlib.Path({str(tmp_path)!r}, "lives")
number = len(lives.read_text()) if lives.exists() else 0
if os.environ["JAX_PROCESS_ID"] == "1" and number < 3:
    lives.write_text("x" * (number + 1))
    sys.exit(75)
if number < 3:
    signal.pause()
"""
    finished = launch(code, "--processes=2", "--restarts=0")
    assert finished.returncode == 0 and finished.stderr.count("saved its step") == 3


def test_what_a_process_has_started_ends_with_it(tmp_path):
    code = f"""
import pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
pathlib.Path({str(tmp_path)!r}, "child").write_text(str(child.pid))
sys.exit(4)
"""
    assert launch(code, "--processes=1").returncode == 4
    stat = pathlib.Path("/proc", (tmp_path / "child").read_text(), "stat")
    # Gone, or dead and not yet reaped.
    assert not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_orphans_that_it_inherits_in_a_container_do_not_end_the_job():
    become_reaper = "import ctypes; ctypes.CDLL(None).prctl(36, 1)"  # PR_SET_CHILD_SUBREAPER
    path = f"import sys; sys.path.insert(0, {str(LAUNCH.parent)!r})"
    main = f"{become_reaper}; {path}; import runpy; runpy.run_path({str(LAUNCH)!r}, run_name='__main__')"
    job = "import subprocess, time; subprocess.run('sleep 0.3 &', shell=True); time.sleep(1)"
    command = [sys.executable, "-c", main, "--processes=1", "--", sys.executable, "-c", job]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert finished.returncode == 0, finished.stderr


def test_a_program_that_is_not_there_is_named():
    command = [sys.executable, str(LAUNCH), "--processes=1", "--", "no-such-program"]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 2 and "no program 'no-such-program'" in finished.stderr.splitlines()[-1]


# Audits need every process, and change nothing.
STEPS = ("--config.train.steps=12", "--config.checkpoint.save_every=4", "--config.train.audits.every=5")
FULL = bool(os.environ.get("PLM_JAX_FULL_TESTS"))
DEVICES, MESH = (8, {"data": 2, "fsdp": 4}) if FULL else (2, {"data": 2, "fsdp": 1})


def process_of(launcher: subprocess.Popen, number: int) -> int:
    """The process id of one process of the job."""
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == launcher.pid and f"JAX_PROCESS_ID={number}".encode() in variables:
            return int(folder.name)
    raise AssertionError(f"there is no process {number}")


def start(tiny, processes: int, workdir: pathlib.Path, log) -> subprocess.Popen:
    command = [sys.executable, str(LAUNCH), f"--processes={processes}", f"--devices={DEVICES // processes}", "--"]
    meshes = [f"--config.mesh.{axis}={size}" for axis, size in MESH.items()]
    command += resume.command(tiny, "dropout", workdir, *STEPS, *meshes)
    return subprocess.Popen(command, env=resume.environment(), stdout=log, stderr=log)


# Each process compiles in each life: PLM_JAX_FULL_TESTS=1 takes four, and compares to the bit. Process 0 coordinates.
@pytest.mark.parametrize(("processes", "victim"), [(4, 2), (4, 0)] if FULL else [(2, 1)])
def test_a_job_survives_the_kill_of_one_process(processes, victim, tiny, verb, tmp_path):
    killed, alone = tmp_path / "killed", tmp_path / "alone"
    with open(tmp_path / "log", "w", encoding="utf-8") as log:
        launcher = start(tiny, processes, killed, log)
        while not any(path.name.isdigit() for path in (killed / "checkpoints").glob("*")):
            assert launcher.poll() is None
            time.sleep(0.005)
        os.kill(process_of(launcher, victim), signal.SIGKILL)
        assert launcher.wait() == 0
    mesh = json.loads((killed / "config.json").read_text())["mesh"]
    assert {axis: mesh[axis] for axis in MESH} == MESH
    printed = (tmp_path / "log").read_text()
    assert printed.count("SIGKILL killed a process") == 1 and "resumed after step " in printed
    assert "auditing the devices: " in printed and "audit after" not in printed

    if FULL:
        assert start(tiny, processes, alone, subprocess.DEVNULL).wait() == 0
        assert resume.differences(killed, alone) == []
    else:
        finished = verb("pretrain", f"--config={tiny}/tiny.py:dropout", f"--workdir={alone}", STEPS[0])
        assert finished.status == 0, finished.err
    killed_rows, want = resume.rows(killed), resume.rows(alone)
    assert [row["step"] for row in killed_rows] == list(range(1, 13))
    assert [row["train/batch_digest"] for row in killed_rows] == [row["train/batch_digest"] for row in want]
    # One device sums in another order than several, and draws the same dropout.
    losses = [[row["train/loss"] for row in table] for table in (killed_rows, want)]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_an_error_of_pretrain_is_passed_on(tiny, tmp_path):
    command = [sys.executable, str(LAUNCH), "--processes=1", "--devices=1", "--", sys.executable, "-m"]
    command += ["plm_jax", "pretrain", f"--config={tiny}/tiny.py", f"--workdir={tmp_path}/run", "--config.train.step=3"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 2
    lines = [line for line in finished.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "did you mean 'steps'?" in lines[0]
