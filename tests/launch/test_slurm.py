"""`launch/slurm.sbatch` under fakes of SLURM: the step's command, a real job of two processes, preemption, limits."""

import json
import os
import pathlib
import re
import socket
import subprocess

import pytest

from tests.launch import fakes
from tests.support import xla

SMALL = ["--nodes=2", "--gpus-per-node=1", "--ntasks-per-node=1"]
STEP = "PLM_JAX_DISTRIBUTED=1 srun --kill-on-bad-exit=0 --wait=60 --cpus-per-task=8"
# A process of a training job, as far as joining goes; the first life waits for its end.
TRAIN = """
import os, pathlib, time
from plm_jax.common import command_line
command_line.start_jax()
import jax
import numpy as np
from jax.experimental import multihost_utils
total = multihost_utils.process_allgather(np.array([jax.process_index() + 1])).sum()
# One write a line: the processes share the log.
os.write(1, f"process {jax.process_index()} of {jax.process_count()}: {total}\\n".encode())
multihost_utils.sync_global_devices("both have written")
if "SLURM_RESTART_COUNT" not in os.environ:
    if jax.process_index() == 0:
        pathlib.Path(os.environ["FAKES"], "ready").touch()
    time.sleep(1000)
"""


@pytest.fixture
def cluster(tmp_path):
    """The folder with the fake programs and the project."""
    fakes.programs(tmp_path)
    fakes.project(tmp_path)
    return tmp_path


def submit(cluster: pathlib.Path, *command: str, play="", job=7, **more: str) -> subprocess.CompletedProcess:
    """`sbatch` to the job's end."""
    variables = {"FAKE_SLURM_JOB_ID": str(job), "PYTHONPATH": str(fakes.ROOT), "PYTHON": "python3"}
    environment = fakes.environment(cluster, **variables) | ({"FAKE_SLURM_PLAY": play} if play else {})
    environment |= {"XLA_FLAGS": xla.flags(devices=1), **more}
    return subprocess.run(
        ["sbatch", *SMALL, "launch/slurm.sbatch", *command],
        cwd=cluster / "project",
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def log(cluster: pathlib.Path) -> list[str]:
    return (cluster / "job.log").read_text().splitlines()


def free_job() -> int:
    """A job whose port, which jax takes from its number, is free."""
    for job in range(os.getpid() % 2048, 4096):
        with socket.socket() as listener:
            try:
                listener.bind(("", 65535 - 4095 + job))
                return job
            except OSError:
                continue
    raise AssertionError("no port is free")


def test_a_preempted_job_joins_again(cluster):
    finished = submit(cluster, "python", "-c", TRAIN, play="preempt", job=free_job())
    assert finished.returncode == 0, finished.stderr + "\n".join(log(cluster))
    lives = [json.loads(line)[0] for line in (cluster / "srun.calls").read_text().splitlines()]
    assert lives == ["0", "1"]
    joined = sorted(line for line in log(cluster) if line.startswith("process "))
    assert joined == ["process 0 of 2: 3"] * 2 + ["process 1 of 2: 3"] * 2
    installed = [line for line in (cluster / "python.calls").read_text().splitlines() if line.startswith("-m pip")]
    # Once, by the script, not by every process.
    assert [line.split()[-1] for line in installed] == [".[gpu]"]


@pytest.mark.parametrize(
    ("play", "end", "message"),
    [
        ("time_limit", "trap 'exit 75' USR1; while :; do sleep 0.05; done", "time limit is near"),
        ("saved", "exit 75", "after saving its step"),
    ],
)
def test_a_job_that_saved_its_step_is_queued_again(cluster, play, end, message):
    script = f'[ -n "${{SLURM_RESTART_COUNT:-}}" ] && exit; touch "$FAKES/ready"; {end}'
    finished = submit(cluster, "bash", "-c", script, play=play)
    assert finished.returncode == 0, finished.stderr
    assert (cluster / "requeued").exists() and len((cluster / "srun.calls").read_text().splitlines()) == 2
    assert any(message in line for line in log(cluster))


def test_the_exit_status_is_the_steps(cluster):
    script = '[ "$PLM_JAX_DISTRIBUTED" = 1 ] || exit 200; [ "$SLURM_PROCID" = 1 ] || exec sleep 1000; exit 3'
    # Task 0, which waits for ever, is killed by srun, whose status is the highest.
    assert submit(cluster, "bash", "-c", script).returncode == 128 + 9


def run(cluster: pathlib.Path, *words: str, **variables: str) -> subprocess.CompletedProcess:
    """The script outside of SLURM."""
    environment = fakes.environment(cluster, **variables)
    command = ["bash", str(cluster / "project" / "launch" / "slurm.sbatch"), *words]
    return subprocess.run(command, cwd=cluster, env=environment, capture_output=True, text=True, timeout=60)


def test_a_dry_run_shows_the_step_and_runs_nothing(cluster):
    finished = run(cluster, "--dry_run", "--", "python", "-m", "train", "--workdir=/a b")
    assert finished.returncode == 0
    assert "#SBATCH --requeue" in finished.stdout
    last = finished.stdout.splitlines()[-1]
    assert last == STEP + r" python -m train --workdir=/a\ b"
    assert not (cluster / "srun.calls").exists() and not (cluster / "python.calls").exists()


@pytest.mark.parametrize(
    "image, step",
    [
        (
            "registry#plm_jax:1",
            "--container-image=registry#plm_jax:1 --container-mounts={0}:{0} --container-workdir={0} "
            "env PYTHONPATH={0}",
        ),
        ("/images/plm.sif", "apptainer exec --nv --bind {0}:{0} --pwd {0} --env PYTHONPATH={0} /images/plm.sif"),
    ],
)
def test_a_container_has_the_checkout_and_its_own_packages(cluster, image, step):
    finished = run(cluster, "--dry_run", "python", "-m", "train", PLM_JAX_CONTAINER=image)
    assert finished.returncode == 0, finished.stderr
    last = finished.stdout.splitlines()[-1].replace("\\", "")
    expected = step.format(cluster / "project")
    assert last == f"{STEP} {expected} python -m train"
    assert "environment.sh" not in finished.stdout


@pytest.mark.parametrize("image", ["registry#plm_jax:1", "/images/plm.sif"])
@pytest.mark.parametrize(
    "words, mounted",
    [
        (("--workdir=../runs/a",), ",{0}/runs/a:{0}/runs/a"),
        (("--workdir", "/runs/b"), ",/runs/b:/runs/b"),
        (("--workdir=runs/c",), ""),
        (("--workdir=gs://bucket/d",), ""),
    ],
)
def test_a_container_has_the_workdir_wherever_it_is(cluster, image, words, mounted):
    finished = run(cluster, "--dry_run", "python", "-m", "train", *words, PLM_JAX_CONTAINER=image)
    assert finished.returncode == 0, finished.stderr
    project = cluster / "project"
    mounts = re.search(r"(?:--bind |--container-mounts=)(\S+)", finished.stdout)[1].replace("\\", "")
    assert mounts == f"{project}:{project}{mounted.format(cluster)}"


def test_settings_of_nccl_come_by_the_gpu_and_leave_what_is_set(cluster):
    script = 'echo "$CUDA_DEVICE_MAX_CONNECTIONS/$NCCL_NVLS_ENABLE" > "$FAKES/found-$PLM_JAX_NCCL$SLURM_PROCID"'
    for gpu, variables, expected in (
        ("hopper", {}, "1/1"),
        ("blackwell", {"NCCL_NVLS_ENABLE": "0"}, "/0"),
        ("", {}, "/"),
    ):
        finished = submit(cluster, "bash", "-c", script, PLM_JAX_NCCL=gpu, **variables)
        assert finished.returncode == 0, finished.stderr
        assert (cluster / f"found-{gpu}1").read_text() == f"{expected}\n"


def test_mistakes_get_one_line(cluster):
    for finished, hint in (
        (run(cluster, "--dry_run", "true", PLM_JAX_NCCL="volta"), "use hopper or blackwell"),
        (run(cluster, "--dry_run"), "no command"),
        (run(cluster, "true"), "submit it with sbatch"),
        (run(cluster, "true", SLURM_SUBMIT_DIR=str(cluster)), "project's root"),
    ):
        assert finished.returncode == 2
        assert finished.stderr.startswith("error: ") and finished.stderr.count("\n") == 1 and hint in finished.stderr
