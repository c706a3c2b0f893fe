"""`launch/tpu_vm.py` against a fake `gcloud` whose workers are folders: order, arguments, preemption, ends."""

import json
import pathlib
import signal
import subprocess
import sys

import pytest

from tests.launch import fakes

# Counts in the "bucket" and goes on from there, as from checkpoints; with HOLD it stays at step 4 until it may go.
JOB = """
[ "$PLM_JAX_DISTRIBUTED" = 1 ] || exit 9
step=$BUCKET/$JAX_PROCESS_ID
n=$(cat "$step" 2> /dev/null || echo 0)
echo "resumed after $n"
while [ "$n" -lt 12 ]; do
  n=$((n + 1)); echo "$n" > "$step.tmp"; mv "$step.tmp" "$step"
  echo "step $n"
  while [ "$n$HOLD" = 4yes ] && [ ! -e "$BUCKET/go" ]; do sleep 0.05; done
done
"""
OPTIONS = ["--name=run", "--accelerator_type=v5litepod-16", "--zone=us-west4-a", "--project=tests", "--spot"]


@pytest.fixture
def cloud(tmp_path):
    """The folder with the fake programs, the project and the bucket."""
    fakes.programs(tmp_path)
    fakes.project(tmp_path)
    (tmp_path / "bucket").mkdir()
    return tmp_path


def start(cloud: pathlib.Path, job: str = JOB, *options: str, **environment: str) -> subprocess.Popen:
    script = ["--", "bash", "-c", job, "train", "--workdir=gs://bucket/run"]
    return subprocess.Popen(
        [sys.executable, "project/launch/tpu_vm.py", *OPTIONS, "--poll_seconds=0.1", *options, *script],
        cwd=cloud,
        env=fakes.environment(cloud, BUCKET=str(cloud / "bucket"), **environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def calls(cloud: pathlib.Path) -> list[str]:
    """The calls of gcloud as lines."""
    file = cloud / "gcloud.calls"
    return [" ".join(json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def kind(call: str) -> str:
    """The part of a job that a call is for."""
    names = ("create", "delete", "scp", "worker.sh install", "worker.sh start", "worker.sh stop", "worker.sh log")
    return next((name.split()[-1] for name in names if name in call), "state" if "worker.sh state" in call else "look")


def order(cloud: pathlib.Path) -> list[str]:
    """What was done in turn; looking and repetitions left out."""
    kinds = [found for found in map(kind, calls(cloud)) if found != "look"]
    return [found for before, found in zip([None, *kinds], kinds, strict=False) if found != before]


UP = ["create", "state", "scp", "install", "start", "log", "state"]


def test_a_preempted_tpu_is_made_again_and_the_job_goes_on(cloud):
    dry = start(cloud, JOB, "--dry_run")
    planned = dry.communicate(timeout=60)[0].splitlines()
    assert dry.returncode == 0 and not calls(cloud)

    launcher = start(cloud, FAKE_PREEMPTION="4", HOLD="yes")
    out, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, err
    assert order(cloud) == [*UP, "delete", *UP, "delete"]
    lives = ["resumed after 0", *range(1, 5), "resumed after 4", *range(5, 13)]
    assert out.splitlines() == [life if isinstance(life, str) else f"step {life}" for life in lives]
    assert [(cloud / "bucket" / name).read_text() for name in "01"] == ["12\n", "12\n"]
    assert "SUSPENDED" in err and "uncommitted" not in err

    # The dry run prints the very commands, but for the offset in the log and the place of the bundle.
    done = [call.replace("'", "") for call in calls(cloud)]
    for line in planned:
        wanted = line.replace("'", "").replace("log 0", "log")
        if line.startswith("gcloud") and "scp" not in line and "worker.sh start" not in line:
            assert any(call.replace("log 0", "log") == wanted for call in done), line
    kinds = [kind(line) for line in planned if line.startswith("gcloud")]
    assert [found for found in kinds if found != "look"] == [*UP, "delete"]


def test_every_worker_gets_the_commit_and_the_pins(cloud):
    launcher = start(cloud, "git -C $HOME/plm_jax rev-parse HEAD; cat $HOME/python.calls", "--keep")
    out, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, err
    commit = subprocess.run(["git", "-C", cloud / "project", "rev-parse", "HEAD"], capture_output=True, text=True)
    found = out.splitlines()
    assert found[0] == commit.stdout.strip()
    assert found[-1].endswith("-r requirements.txt --editable .[tpu]")
    assert "delete" not in order(cloud) and "gcloud compute tpus queued-resources delete run" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_launcher_that_was_stopped_follows_the_job_on(number, cloud):
    # As a shell without job control starts what runs in the background.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    launcher = start(cloud, HOLD="yes")
    signal.signal(signal.SIGINT, before)
    assert launcher.stdout.readline() == "resumed after 0\n"
    launcher.send_signal(number)
    _, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 130 and "is left as it is" in err
    launcher = start(cloud)
    assert any("following it" in line for line in launcher.stderr)
    (cloud / "bucket" / "go").touch()
    out, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, err
    # The same process all along.
    assert out.splitlines() == ["resumed after 0", *(f"step {n}" for n in range(1, 13))]


def test_a_job_that_a_signal_ended_starts_again(cloud):
    end = '[ "$JAX_PROCESS_ID" = 0 ] || [ -e "$BUCKET/died" ] || { touch "$BUCKET/died"; kill -KILL $$; }; sleep 0.5\n'
    launcher = start(cloud, end + JOB)
    out, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, err
    # Worker 0 ran to its end, worker 1 had died: both start again.
    assert out.count("resumed after") == 2 and "exit statuses: 0 137" in err
    assert order(cloud) == [*UP, "stop", "start", "log", "state", "delete"]
    assert (cloud / "bucket" / "1").read_text() == "12\n"


def test_a_job_that_fails_is_not_tried_again(cloud):
    launcher = start(cloud, 'if [ "$JAX_PROCESS_ID" = 0 ]; then exit 2; fi; touch "$BUCKET/other"; sleep 1000')
    _, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 2 and "exit statuses: 2 running" in err
    assert order(cloud) == [*UP, "stop", "delete"]


def test_mistakes_get_one_line(cloud):
    def error(options, path=None, **environment):
        command = [sys.executable, "project/launch/tpu_vm.py", *options]
        environment = fakes.environment(cloud, **environment)
        if path is not None:
            environment["PATH"] = path
        finished = subprocess.run(command, cwd=cloud, env=environment, capture_output=True, text=True, timeout=60)
        assert finished.returncode == 2
        (line,) = [line for line in finished.stderr.splitlines() if line.startswith("error: ")]
        assert "Traceback" not in finished.stderr
        return line

    wrong = [option.replace("v5litepod-16", "v5-16") for option in OPTIONS]
    assert "v5litepod, v5p" in error([*wrong, "--", "true"])
    assert "--workdir=gs://" in error([*OPTIONS, "--", "true", "--workdir=/tmp/run"])
    assert "--workdir=gs://" in error([*OPTIONS, "--", "true", "--workdir", "runs/a"])
    assert "after --" in error(OPTIONS)
    assert "'gcloud'" in error([*OPTIONS, "--", "true"], path=str(cloud / "nothing"))
    assert not calls(cloud)
    assert "active account" in error([*OPTIONS, "--", "true"], FAKE_LOGGED_OUT="1")


def test_uncommitted_changes_are_named(cloud):
    (cloud / "project" / "more").touch()
    launcher = start(cloud, FAKE_LOGGED_OUT="1")
    _, err = launcher.communicate(timeout=60)
    assert "uncommitted changes" in err
