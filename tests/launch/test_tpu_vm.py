"""`launch/tpu_vm.py` against a fake `gcloud` whose workers are folders: order, arguments, preemption, ends."""

import json
import pathlib
import signal
import subprocess
import sys

import pytest

from tests.launch import fakes
from tests.launch.fakes import finish

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
WHERE = ["--name=run", "--accelerator_type=v5litepod-16", "--zone=us-west4-a", "--project=tests"]
OPTIONS = [*WHERE, "--spot"]


@pytest.fixture
def cloud(tmp_path):
    """The folder with the fake programs, the project and the bucket."""
    fakes.programs(tmp_path)
    fakes.project(tmp_path)
    (tmp_path / "bucket").mkdir()
    return tmp_path


def start(cloud: pathlib.Path, job: str = JOB, *options: str, tier="--spot", **environment: str) -> subprocess.Popen:
    script = ["--", "bash", "-c", job, "train", "--workdir=gs://bucket/run"]
    return subprocess.Popen(
        [sys.executable, "project/launch/tpu_vm.py", *WHERE, tier, "--poll_seconds=0.1", *options, *script],
        cwd=cloud,
        env=fakes.environment(cloud, BUCKET=str(cloud / "bucket"), **environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def calls(cloud: pathlib.Path) -> list[str]:
    """Returns the calls of gcloud as lines."""
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
    planned = finish(start(cloud, JOB, "--dry_run"))[0].splitlines()
    assert not calls(cloud)

    out, err = finish(start(cloud, FAKE_PREEMPTION="4", HOLD="yes"))
    assert order(cloud) == [*UP, "delete", *UP, "delete"]
    lives = ["resumed after 0", *range(1, 5), "resumed after 4", *range(5, 13)]
    assert out.splitlines() == [life if isinstance(life, str) else f"step {life}" for life in lives]
    assert [(cloud / "bucket" / name).read_text() for name in "01"] == ["12\n", "12\n"]
    assert "SUSPENDED" in err and "uncommitted" not in err

    # The dry run prints the very commands, but for the offset in the log and the place of the bundle.
    done = [call.replace("'", "") for call in calls(cloud)]
    for line in planned:
        expected = line.replace("'", "").replace("log 0", "log")
        if line.startswith("gcloud") and "scp" not in line and "worker.sh start" not in line:
            assert any(call.replace("log 0", "log") == expected for call in done), line
    kinds = [kind(line) for line in planned if line.startswith("gcloud")]
    assert [found for found in kinds if found != "look"] == [*UP, "delete"]


def test_every_worker_gets_the_commit_and_the_pins(cloud):
    out, err = finish(start(cloud, "git -C $HOME/plm_jax rev-parse HEAD; cat $HOME/python.calls", "--keep"))
    commit = subprocess.run(["git", "-C", cloud / "project", "rev-parse", "HEAD"], capture_output=True, text=True)
    lines = out.splitlines()
    assert lines[0] == commit.stdout.strip()
    assert lines[-1].endswith("-r requirements.txt --editable .[tpu]")
    assert "delete" not in order(cloud) and "gcloud compute tpus queued-resources delete run" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_launcher_follows_the_job_again(number, cloud):
    # As a shell without job control starts what runs in the background.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    launcher = start(cloud, HOLD="yes")
    signal.signal(signal.SIGINT, before)
    assert launcher.stdout.readline() == "resumed after 0\n"
    launcher.send_signal(number)
    assert "still exists" in finish(launcher, status=130)[1]
    launcher = start(cloud)
    assert any("following it" in line for line in launcher.stderr)
    (cloud / "bucket" / "go").touch()
    out, _ = finish(launcher)
    # The same process all along.
    assert out.splitlines() == ["resumed after 0", *(f"step {n}" for n in range(1, 13))]


def test_a_job_that_a_signal_ended_starts_again(cloud):
    end = '[ "$JAX_PROCESS_ID" = 0 ] || [ -e "$BUCKET/died" ] || { touch "$BUCKET/died"; kill -KILL $$; }; sleep 0.5\n'
    out, err = finish(start(cloud, end + JOB))
    # Worker 0 ran to its end, worker 1 had died: both start again.
    assert out.count("resumed after") == 2 and "exit statuses: 0 137" in err
    assert order(cloud) == [*UP, "stop", "start", "log", "state", "delete"]
    assert (cloud / "bucket" / "1").read_text() == "12\n"


def test_a_job_that_fails_is_not_tried_again(cloud):
    job = 'if [ "$JAX_PROCESS_ID" = 0 ]; then exit 2; fi; touch "$BUCKET/other"; sleep 1000'
    _, err = finish(start(cloud, job), status=2)
    assert "exit statuses: 2 running" in err
    assert order(cloud) == [*UP, "stop", "delete"]


def test_a_user_s_mistake_ends_it_whatever_the_others_died_of(cloud):
    _, err = finish(start(cloud, 'if [ "$JAX_PROCESS_ID" = 1 ]; then exit 2; fi; sleep 0.5; kill -KILL $$'), status=2)
    assert "exit statuses: 137 2" in err
    assert order(cloud) == [*UP, "stop", "delete"]


def test_a_job_whose_step_was_saved_starts_again_and_that_is_no_failure(cloud):
    # Twice, though no restart after a failure is allowed; the other process dies of the loss of its peer.
    saved = """
n=$(cat "$BUCKET/lives-$JAX_PROCESS_ID" 2> /dev/null || echo 0); echo $((n + 1)) > "$BUCKET/lives-$JAX_PROCESS_ID"
if [ "$n" -lt 2 ]; then sleep 0.3; [ "$JAX_PROCESS_ID" = 0 ] || exit 75; kill -ABRT $$; fi
"""
    out, err = finish(start(cloud, saved + JOB, "--restarts=0"))
    assert err.count("saved its step") == 2 and "exit statuses: 134 75" in err
    assert out.splitlines()[-1] == "step 12" and order(cloud)[-1] == "delete"


def test_a_new_tpu_that_refuses_ssh_is_asked_again(cloud):
    out, err = finish(start(cloud, FAKE_REFUSALS="4"))
    assert err.count("no connection, trying again") == 4 and "return code [255]" in err
    assert out.splitlines()[-1] == "step 12" and order(cloud) == [*UP, "delete"]


def test_a_tpu_that_is_never_reached_is_left_and_reported(cloud):
    _, err = finish(start(cloud, FAKE_REFUSALS="1000"), status=2)
    assert "delete" not in order(cloud)
    *_, left, error = err.splitlines()
    assert error.startswith("error: ") and "return code [255]" in error
    assert "run (v5litepod-16, us-west4-a) still exists, state ACTIVE: it costs money" in left
    assert "gcloud compute tpus queued-resources delete run --force --zone=us-west4-a" in left


def test_a_reserved_tpu_stays_where_its_job_failed(cloud):
    _, err = finish(start(cloud, "exit 3", tier="--reservation=mine", FAKE_FLAGS="--reservation=mine"), status=3)
    assert "delete" not in order(cloud)
    last = err.splitlines()[-1]
    assert "still exists, state ACTIVE: its reservation costs" in last and "queued-resources delete run" in last
    # What is mended runs on the same machines, and where it succeeds they go.
    _, err = finish(start(cloud, "true", tier="--reservation=mine", FAKE_FLAGS="--reservation=mine"))
    assert order(cloud)[-1] == "delete" and "deleting run" in err


def test_flags_of_the_tpu_reach_gcloud(cloud):
    more = ["--service-account=me@tests.iam.gserviceaccount.com", "--labels=team=nlp,run=a"]
    flags = ["--provisioning-model=flex-start", "--max-run-duration=24h", *more, "--internal-ips"]
    options = ["--service_account=me@tests.iam.gserviceaccount.com", "--labels=team=nlp,run=a", "--internal-ips"]
    finish(start(cloud, "true", *options, tier="--flex_start=24h", FAKE_FLAGS=" ".join(flags)))
    created = next(call for call in calls(cloud) if " create " in call)
    assert created.startswith("gcloud alpha compute tpus queued-resources create run")
    assert all("--internal-ip" in call.split() for call in calls(cloud) if " ssh " in call or " scp " in call)


def test_several_slices_are_one_job(cloud):
    note = (
        'echo "$MEGASCALE_NUM_SLICES $MEGASCALE_SLICE_ID $MEGASCALE_COORDINATOR_ADDRESS" > "$BUCKET/m$JAX_PROCESS_ID"\n'
    )
    out, err = finish(start(cloud, note + JOB, "--node-count=2", FAKE_NODES="2", FAKE_PREEMPTION="4", HOLD="yes"))
    # One slice was taken away, and both are asked for again.
    assert order(cloud) == [*UP, "delete", *UP, "delete"] and "run (2 x v5litepod-16, us-west4-a): PREEMPTED" in err
    assert [(cloud / "bucket" / name).read_text() for name in "0123"] == ["12\n"] * 4
    slices = [(cloud / "bucket" / f"m{process}").read_text().split() for process in range(4)]
    assert slices == [["2", str(process // 2), "10.0.0.0:8080"] for process in range(4)]
    assert out.count("resumed after") == 2


def test_restarts_are_counted_by_the_hour(jobs):
    now = 0.0
    restarts = jobs.Restarts(2, lambda: now)
    assert [restarts.take() for _ in range(3)] == [True, True, False]
    now = 3599.0
    assert not restarts.take()
    now = 3600.0
    assert [restarts.take() for _ in range(3)] == [True, True, False]
    assert not jobs.Restarts(0).take()


def test_compiled_programs_are_stored_next_to_the_run(cloud, jobs):
    script = 'echo "$JAX_COMPILATION_CACHE_DIR" > "$BUCKET/cache"'
    assert start(cloud, script).wait(60) == 0
    assert (cloud / "bucket" / "cache").read_text() == "gs://bucket/run/compilation\n"
    command = ["train", "--workdir", "gs://b/run/"]
    assert jobs.with_cache(command, "gs://b/c") == ["env", "JAX_COMPILATION_CACHE_DIR=gs://b/c", *command]
    assert jobs.with_cache(command, None)[1] == "JAX_COMPILATION_CACHE_DIR=gs://b/run/compilation"
    assert jobs.with_cache(["prepare"], None) == ["prepare"]


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
    assert "at least 1" in error([*OPTIONS, "--node_count=0", "--", "true"])
    assert "'gcloud'" in error([*OPTIONS, "--", "true"], path=str(cloud / "nothing"))
    assert not calls(cloud)
    assert "active account" in error([*OPTIONS, "--", "true"], FAKE_LOGGED_OUT="1")


def test_uncommitted_changes_are_named(cloud):
    (cloud / "project" / "more").touch()
    assert "uncommitted changes" in start(cloud, FAKE_LOGGED_OUT="1").communicate(timeout=60)[1]
