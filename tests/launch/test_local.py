"""`launch/local.py`: environments, exit statuses, stopping the rest."""

import json
import os
import pathlib
import subprocess
import sys
import time

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
    first, *others = [json.loads((tmp_path / name).read_text()) for name in "012"]
    assert others == [first, first]
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
    assert launch(code, "--processes=2").returncode == 3
    assert not pathlib.Path("/proc", (tmp_path / "there").read_text()).exists()


def test_a_killed_process_is_a_failure():
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert launch(code, "--processes=1").returncode == 128 + 9


def test_stopping_the_launcher_stops_the_job(tmp_path):
    code = f"import os, pathlib, time; pathlib.Path({str(tmp_path)!r}, str(os.getpid())).touch(); time.sleep(1000)"
    command = [sys.executable, str(LAUNCH), "--processes=2", "--", sys.executable, "-c", code]
    launcher = subprocess.Popen(command)
    while len(os.listdir(tmp_path)) < 2:
        assert launcher.poll() is None
        time.sleep(0.01)
    launcher.terminate()
    assert launcher.wait() == 128 + 15
    assert not any(pathlib.Path("/proc", pid).exists() for pid in os.listdir(tmp_path))


def test_an_error_of_pretrain_is_passed_on(tiny, tmp_path):
    command = [sys.executable, str(LAUNCH), "--processes=2", "--devices=1", "--", sys.executable, "-m"]
    command += ["plm_jax.pretrain", f"--config={tiny}/tiny.py", f"--workdir={tmp_path}/run", "--config.train.step=3"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 2
    lines = [line for line in finished.stderr.splitlines() if line.startswith("error: ")]
    assert lines and all("did you mean 'steps'?" in line for line in lines)
