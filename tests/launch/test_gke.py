"""`launch/gke.py` against a fake `kubectl`: the manifest, failures by exit status, evictions, following, the image."""

import contextlib
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tomllib

import pytest
import yaml

from tests.launch import fakes
from tests.launch.fakes import finish

IMAGE = "us-docker.pkg.dev/p/r/plm_jax"
OPTIONS = ["--name=my-run", "--topology=v5e:2x4", f"--image={IMAGE}"]
# A life each: what it is given as $1, $2 and so on; the leader alone decides.
LIVES = """
[ "$PLM_JAX_DISTRIBUTED" = 1 ] || exit 9
[ "$TPU_WORKER_ID$MEGASCALE_SLICE_ID" = 00 ] || exec sleep 1000
n=$(cat "$BUCKET/lives" 2> /dev/null || echo 0); echo $((n + 1)) > "$BUCKET/lives"
shift $n
echo "life $((n + 1))"
[ "$1" != evict ] || { touch "$FAKES/evict"; sleep 1000; }
[ "$1" != hold ] || while [ ! -e "$BUCKET/go" ]; do sleep 0.05; done
exit "${1/hold/0}"
"""


@pytest.fixture
def cluster(tmp_path):
    fakes.programs(tmp_path)
    (fakes.project(tmp_path) / "plm_jax").symlink_to(fakes.ROOT / "plm_jax")
    (tmp_path / "bucket").mkdir()
    yield tmp_path
    for pod in tmp_path.glob("pods/*/pid"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(pod.read_text()), signal.SIGKILL)


def start(cluster: pathlib.Path, script: str, *options: str, lives: tuple = (), **environment: str):
    command = ["bash", "-c", script, "train", *lives, "--workdir=gs://bucket/run"]
    return subprocess.Popen(
        [sys.executable, "project/launch/gke.py", *OPTIONS, "--poll_seconds=0.1", *options, "--", *command],
        cwd=cluster,
        env=fakes.environment(cluster, BUCKET=str(cluster / "bucket"), **environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def verbs(cluster: pathlib.Path) -> list[str]:
    lines = (cluster / "kubectl.calls").read_text().splitlines()
    return [verb for verb in (json.loads(line)[1] for line in lines) if verb != "get"]


def dry(*options: str, command=("train",)) -> dict:
    words = [sys.executable, str(fakes.ROOT / "launch/gke.py"), *OPTIONS, "--dry_run", *options, "--", *command]
    finished = subprocess.run(words, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return yaml.safe_load(finished.stdout)


def test_the_manifest_is_a_jobset_of_slices():
    command = ["train", "--workdir=gs://b/r", 'a: "b" # c\n', "- é", "yes"]
    job_set = dry("--slices=3", "--topology=v5p:4x4x8", "--spot", "--service_account=me", command=command)
    assert job_set["metadata"]["annotations"] == {
        "alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"
    }
    assert job_set["spec"]["network"]["enableDNSHostnames"] is True
    (job,) = job_set["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    assert (job["replicas"], spec["parallelism"], spec["completions"], spec["backoffLimit"]) == (3, 32, 32, 0)
    inner = spec["template"]["spec"]
    assert inner["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
        "cloud.google.com/gke-tpu-topology": "4x4x8",
        "cloud.google.com/gke-spot": "true",
    }
    assert inner["serviceAccountName"] == "me"
    (container,) = inner["containers"]
    assert container["resources"]["limits"] == {"google.com/tpu": 4} and container["image"] == IMAGE
    assert container["command"] == ["env", "JAX_COMPILATION_CACHE_DIR=gs://b/r/compilation", *command]
    one = dry("--topology=v6e:1x1", "--reservation=mine")["spec"]["replicatedJobs"][0]
    spec = one["template"]["spec"]
    assert (one["replicas"], spec["completions"]) == (1, 1)
    inner = spec["template"]["spec"]
    assert inner["containers"][0]["resources"]["limits"] == {"google.com/tpu": 1}
    assert inner["nodeSelector"]["cloud.google.com/reservation-name"] == "mine"


def test_a_job_runs_to_its_end_over_saved_steps_and_evictions(cluster):
    # No restart after a failure is allowed, and none is needed.
    launcher = start(cluster, LIVES, "--restarts=0", "--slices=2", lives=("75", "evict", "75", "hold"))
    assert [launcher.stdout.readline() for _ in range(4)] == [f"life {life}\n" for life in range(1, 5)]
    launcher.send_signal(signal.SIGINT)
    _, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 130 and "my-run still exists" in err
    assert "kubectl --namespace=default delete jobset my-run" in err and "cost money" in err
    # The others of slice 0 and slice 1 wait for ever in this play.
    (cluster / "bucket" / "go").touch()
    launcher = start(cluster, LIVES)
    assert any("following it" in line for line in launcher.stderr)
    launcher.send_signal(signal.SIGTERM)
    launcher.communicate(timeout=60)
    assert verbs(cluster).count("apply") == 1 and "delete" not in verbs(cluster)


@pytest.mark.parametrize(
    "lives, restarts, status, number, said",
    [
        (("2",), 3, 2, 1, "exit code 2 matching"),
        (("3", "3", "3"), 1, 1, 2, "ReachedMaxRestarts"),
        (("137", "75", "2"), 1, 2, 3, "FailJobSetFailurePolicyAction"),
    ],
)
def test_failures_are_told_from_ends_by_a_signal(cluster, lives, restarts, status, number, said):
    out, err = finish(start(cluster, LIVES, f"--restarts={restarts}", lives=lives, FAKE_SILENCES="3"), status=status)
    assert out.splitlines() == [f"life {life + 1}" for life in range(number)] and said in err
    assert err.count("no answer, trying again") == 3
    assert "my-run has ended; its nodes cost money until" in err.splitlines()[-1]


def test_a_set_that_has_ended_makes_room(cluster):
    job = 'echo "slice $MEGASCALE_SLICE_ID worker $TPU_WORKER_ID" | tee "$BUCKET/$MEGASCALE_SLICE_ID$TPU_WORKER_ID"'
    for _ in range(2):
        out, err = finish(start(cluster, job, "--slices=2"))
        assert out == "slice 0 worker 0\n", err
    assert verbs(cluster) == ["apply", "logs", "delete", "apply", "logs"] and "deleting the previous JobSet" in err
    assert sorted(path.name for path in (cluster / "bucket").iterdir()) == ["00", "01", "10", "11"]


def test_a_log_whose_connection_breaks_goes_on_where_it_broke(cluster):
    # A line is written once the one before was shown, and its connection has broken.
    job = """n=0
for line in one two "three  3" four; do
  echo "$line"; n=$((n + 1))
  until [ "$(grep -c '"logs"' "$FAKES/kubectl.calls")" -gt $n ]; do sleep 0.05; done
done"""
    out, err = finish(start(cluster, job, "--topology=v6e:1x1", FAKE_BREAKS="1"))
    assert out == "one\ntwo\nthree  3\nfour\n", err
    assert verbs(cluster).count("logs") > 4


def test_mistakes_get_one_line(cluster):
    for options, hint in (
        (["--topology=v5e:4"], "v5e:4x4"),
        (["--topology=v9:4x4"], "tpu7x"),
        (["--topology=v5p:3x3x3"], "the nearest is v5p:2x4x4"),
        (["--topology=v5e:4x16"], "the nearest is v5e:8x8"),
        (["--name=My_Run"], "lower-case"),
        (["--slices=0"], "at least 1"),
    ):
        _, err = finish(start(cluster, "true", *options), status=2)
        assert err.count("\n") == 1 and err.startswith("error: ") and hint in err, err
    assert not (cluster / "kubectl.calls").exists()


def test_the_image_is_made_of_what_is_there():
    """Every path that it copies exists, and what it installs is what the requirements and the extras say."""
    text = (fakes.ROOT / "launch/Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    steps = [(word, shlex.split(rest)) for word, rest in lines]
    assert {word for word, _ in steps} <= {"FROM", "ARG", "RUN", "WORKDIR", "COPY", "USER", "ENV"}
    for word, rest in steps:
        if word == "COPY":
            *sources, _ = rest
            assert all((fakes.ROOT / source).exists() for source in sources), rest
    copied = {source for word, rest in steps if word == "COPY" for source in rest[:-1]}
    # What a run reads: the package, which names its configs by a link, and what setuptools reads.
    project = tomllib.loads((fakes.ROOT / "pyproject.toml").read_text())["project"]
    assert copied >= {"plm_jax", "configs", "launch", "requirements.txt", "pyproject.toml", project["readme"]}
    (installed,) = [rest for word, rest in steps if word == "RUN" and "pip" in rest]
    installed = installed[installed.index("pip") :]
    assert installed[:2] == ["pip", "install"] and installed[installed.index("-r") + 1] == "requirements.txt"
    (extra,) = re.findall(r"^\.\[(.*)\]$", installed[-1])
    default = dict(rest[0].split("=") for word, rest in steps if word == "ARG")
    assert extra == "$ACCELERATOR" and {default["ACCELERATOR"], "gpu"} <= project["optional-dependencies"].keys()
    python = dict(steps)["FROM"][0]
    assert re.fullmatch(r"python:3\.1[123]-slim", python)
    # Nothing after this is root's.
    words = [word for word, _ in steps]
    assert dict(steps)["USER"] == ["plm_jax"] and "RUN" not in words[words.index("USER") :]
