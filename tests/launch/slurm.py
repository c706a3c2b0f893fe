"""The fakes of SLURM on one machine: `sbatch` runs the job to its end, `srun` its step, `scontrol` queues it again.

`FAKE_SLURM_PLAY` is what happens once to a job that has made the file `FAKES/ready`: `preempt` (SIGTERM to the step,
SIGKILL to all, queued again by SLURM), `time_limit` (SIGUSR1 to the script, which must ask to be queued again) or
`saved` (nothing: the step itself ends with 75, upon which the script must ask).
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

FOLDER = pathlib.Path(os.environ["FAKES"])
READY, TASKS, REQUEUED = FOLDER / "ready", FOLDER / "tasks", FOLDER / "requeued"
OPTIONS = {"nodes", "gpus-per-node", "ntasks-per-node", "cpus-per-task", "time", "signal", "requeue", "open-mode"}
GRACE_SECONDS = 20


def options(words: list[str]) -> dict[str, str]:
    """`--name=value` and `--name`, none unknown."""
    values = dict(word.removeprefix("--").partition("=")[::2] for word in words)
    assert values.keys() <= OPTIONS | {"job-name", "output"}, values
    return values


def sbatch(words: list[str]) -> int:
    """Runs the script of the command line as SLURM would; the job's exit status."""
    position = next(number for number, word in enumerate(words) if not word.startswith("--"))
    script = FOLDER / "spooled"
    shutil.copy(words[position], script)
    lines = [line.split()[1] for line in script.read_text().splitlines() if line.startswith("#SBATCH ")]
    asked = options(lines) | options(words[:position])
    assert asked["requeue"] == "" and asked["open-mode"] == "append" and asked["signal"].startswith("B:USR1@")
    assert asked["gpus-per-node"] == asked["ntasks-per-node"], "one process a GPU"
    job = {
        "SLURM_JOB_ID": os.environ["FAKE_SLURM_JOB_ID"],
        "SLURM_SUBMIT_DIR": os.getcwd(),
        "SLURM_CPUS_PER_TASK": asked["cpus-per-task"],
        "FAKE_NTASKS": str(int(asked["nodes"]) * int(asked["ntasks-per-node"])),
    }
    play = os.environ.get("FAKE_SLURM_PLAY")
    for start in range(2):
        restarts = {"SLURM_RESTART_COUNT": str(start)} if start else {}
        with open(FOLDER / "job.log", "a", encoding="utf-8") as log:
            running = subprocess.Popen(
                ["bash", script, *words[position + 1 :]],
                env=os.environ | job | restarts,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if start or not play:
            return running.wait()
        while not READY.exists():
            assert running.poll() is None, "the job ended before it was to be disturbed"
            time.sleep(0.02)
        PLAYS[play](running)
        assert running.poll() is None, "the script ended by itself: SLURM would not queue it again"
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    raise AssertionError


def preempt(running: subprocess.Popen) -> None:
    """SIGTERM to the step, then the time of grace, which its processes need not use up."""
    pids = [int(pid) for pid in TASKS.read_text().split()]
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    until(lambda: not TASKS.exists(), "the step outlives SIGTERM")
    # The script goes on after its step.
    time.sleep(1)


def time_limit(running: subprocess.Popen) -> None:
    """SIGUSR1 to the script alone, which has all tasks save, and asks to be queued again when they have."""
    running.send_signal(signal.SIGUSR1)
    until(REQUEUED.exists, "the script did not ask to be queued again")
    assert not TASKS.exists(), "it asks before the step has ended"
    time.sleep(0.5)


def saved(running: subprocess.Popen) -> None:
    """The script asks by itself, and leaves its end to SLURM."""
    del running
    until(REQUEUED.exists, "the script did not ask to be queued again")
    time.sleep(0.5)


def until(true, otherwise: str) -> None:
    """Waits for something that must come."""
    deadline = time.monotonic() + GRACE_SECONDS
    while not true():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


PLAYS = {"preempt": preempt, "time_limit": time_limit, "saved": saved}


def srun(words: list[str]) -> int:
    """Starts the tasks; a while after one has ended the others are killed: the highest exit status."""
    kill, wait, processors, *command = words
    assert not any(word.startswith("--container") for word in command), "no pyxis here"
    assert (kill, wait) == ("--kill-on-bad-exit=0", "--wait=60")
    assert processors == f"--cpus-per-task={os.environ['SLURM_CPUS_PER_TASK']}"
    with open(FOLDER / "srun.calls", "a", encoding="utf-8") as calls:
        calls.write(json.dumps([os.environ.get("SLURM_RESTART_COUNT", "0"), *command]) + "\n")
    tasks = int(os.environ["FAKE_NTASKS"])
    job = {"SLURM_NTASKS": str(tasks), "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_STEP_NUM_NODES": "1"}
    running = [
        subprocess.Popen(command, env=os.environ | job | {"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)})
        for task in range(tasks)
    ]
    TASKS.write_text(" ".join(str(task.pid) for task in running))
    # As srun does.
    signal.signal(signal.SIGUSR1, lambda number, _: [task.send_signal(number) for task in running])
    ended = None
    while any(task.poll() is None for task in running):
        if ended is None and any(task.poll() is not None for task in running):
            ended = time.monotonic()
        # Sooner than in a minute.
        if ended is not None and time.monotonic() - ended > GRACE_SECONDS / 4:
            for task in running:
                task.kill()
        time.sleep(0.02)
    with contextlib.suppress(OSError):
        TASKS.unlink()
    return max(task.returncode if task.returncode >= 0 else 128 - task.returncode for task in running)


def scontrol(words: list[str]) -> int:
    """Notes that the job asked for it."""
    assert words == ["requeue", os.environ["SLURM_JOB_ID"]]
    REQUEUED.touch()
    return 0


if __name__ == "__main__":
    sys.exit({"sbatch": sbatch, "srun": srun, "scontrol": scontrol}[sys.argv[1]](sys.argv[2:]))
