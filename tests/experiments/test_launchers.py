"""Runs of a sweep at once, as jobs of SLURM and on Kubernetes: order, shares, logs, and what is left after kills."""

import functools
import json
import os
import pathlib
import random
import subprocess
import sys
import threading

import pytest

from plm_jax.common import leases, progress
from plm_jax.common.errors import UserError
from plm_jax.experiments import launchers, members, sweep
from tests.experiments import test_sweep
from tests.support import verbs as support

verbs, warm = test_sweep.verbs, test_sweep.warm
FAMILY = """
base = "{base}"

def overrides():
    yield "a", {{"train.steps": 2}}
    yield "b", {{"train.steps": 2}}
    yield "a-child", {{"train.steps": 2, "train.init_from": "a"}}
    yield "a-grandchild", {{"train.steps": 2, "train.init_from": "a-child"}}
    yield "b-child", {{"train.steps": 2, "train.init_from": "b"}}
    yield "c", {{"train.steps": 2}}
"""


@pytest.fixture
def family(tiny, tmp_path):
    """A sweep's file with six runs, three of which begin with others' weights."""
    (tmp_path / "sweep.py").write_text(FAMILY.format(base=tiny / "tiny.py"))
    return str(tmp_path / "sweep.py")


def local(family, tmp_path, parallel=2):
    sweep.run(family, str(tmp_path / "runs"), launcher=launchers.Local(parallel))


def test_two_runs_go_on_at_once_each_after_its_parent(verbs, family, tmp_path, monkeypatch):
    both, call = threading.Barrier(2), verbs.call

    def together(verb, *flags):
        if verb == "pretrain" and flags[-1].endswith(("/a", "/b")):
            both.wait(60)
        call(verb, *flags)

    monkeypatch.setattr(verbs, "call", together)
    monkeypatch.setattr(launchers, "_call", lambda processes, output, environment, *words: verbs.call(*words))
    local(family, tmp_path)
    order = [name for verb, name in verbs.calls if verb == "pretrain"]
    assert sorted(order) == ["a", "a-child", "a-grandchild", "b", "b-child", "c"]
    for parent, child in (("a", "a-child"), ("a-child", "a-grandchild"), ("b", "b-child")):
        assert verbs.calls.index(("evaluate", parent)) < verbs.calls.index(("pretrain", child))
    results = json.loads((tmp_path / "runs/sweep.json").read_text())["runs"]
    assert all(result["metrics"] and result["error"] is None for result in results)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_random_a_sweep_trains_no_finished_run_again(verbs, family, tmp_path, monkeypatch, seed):
    rng, call, finished = random.Random(seed), verbs.call, set()

    def dying(processes, heard, environment, verb, *flags):
        run = pathlib.Path(flags[-1].partition("=")[2]).name
        assert run not in finished
        if rng.random() < 0.2:
            raise Killed
        call(verb, *flags)
        if rng.random() < 0.2:
            raise Killed
        if verb == "evaluate":
            finished.add(run)

    monkeypatch.setattr(launchers, "_call", dying)
    for _ in range(100):
        try:
            local(family, tmp_path)
            break
        except Killed:
            finished |= {name for verb, name in verbs.calls if verb == "evaluate"}
    assert len(finished) == 6
    results = json.loads((tmp_path / "runs/sweep.json").read_text())["runs"]
    assert all(result["metrics"] and result["error"] is None for result in results)


def test_each_run_sees_its_share_of_the_gpus(verbs, family, tmp_path, monkeypatch):
    monkeypatch.setattr(launchers, "_gpus", lambda: ["0", "1", "GPU-2", "3", "4"])
    seen = set()

    def call(processes, heard, environment, *words):
        seen.add(environment["CUDA_VISIBLE_DEVICES"])
        verbs.call(*words)

    monkeypatch.setattr(launchers, "_call", call)
    local(family, tmp_path)
    assert seen == {"0,1", "GPU-2,3,4"}
    with pytest.raises(UserError, match="--parallel=6 exceeds the 5 GPUs of this machine: use at most 5"):
        launchers.Local(6)


@pytest.mark.parametrize("cores, shares", [((0, 1, 2), {(0,), (1, 2)}), ((1,), {(1,)})])
def test_each_run_has_its_share_of_the_cores(verbs, family, tmp_path, monkeypatch, cores, shares):
    mine, seen = {}, set()
    monkeypatch.setattr(launchers, "_gpus", list)
    monkeypatch.setattr(launchers.os, "sched_getaffinity", lambda process: set(cores))
    monkeypatch.setattr(
        launchers.os, "sched_setaffinity", lambda process, own: mine.update({threading.get_ident(): tuple(own)})
    )

    def call(processes, heard, environment, *words):
        seen.add(mine.get(threading.get_ident(), cores))
        verbs.call(*words)

    monkeypatch.setattr(launchers, "_call", call)
    local(family, tmp_path)
    assert seen == shares


def test_gpus_are_those_that_jax_would_use(monkeypatch, tmp_path):
    (tmp_path / "nvidia-smi").write_text(
        '#!/bin/sh\n[ "$*" = --list-gpus ] && printf "GPU 0: A (UUID: x)\\nGPU 1: B\\n"\n'
    )
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert launchers._gpus() == []  # JAX is told to use the CPU.
    monkeypatch.setenv("JAX_PLATFORMS", "")
    assert launchers._gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5")
    assert launchers._gpus() == ["3", "5"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert launchers._gpus() == []


def python(monkeypatch, code: str):
    """Has each verb be some Python code."""
    monkeypatch.setattr(launchers.children, "command", lambda verb, *flags: [sys.executable, "-c", code, verb])


def member(folder: pathlib.Path) -> members.Member:
    return members.Member("one", str(folder / "one"), {}, None)


def test_output_is_logged_and_last_lines_are_printed(monkeypatch, tmp_path, capfd):
    python(
        monkeypatch, "import sys; print('begun'); print('step 3\\r\\n', end=''); print(sys.argv[1], file=sys.stderr)"
    )
    for parallel in (1, 2):
        launcher = launchers.Local(parallel)
        heard = launcher._capture(member(tmp_path), echo=parallel == 1)
        for verb in ("pretrain", "evaluate"):
            launchers._call(launcher.processes, heard, os.environ, verb)
        launcher._report(0.0)
        launcher._report(0.0)  # It says nothing else meanwhile.
        printed = capfd.readouterr().err
        assert printed.count("begun") == (2 if parallel == 1 else 0)
        assert printed.count("one: ") == (0 if parallel == 1 else 1)
    assert (tmp_path / "one" / "log.txt").read_text().count("begun") == 4


def test_the_last_line_of_a_verb_that_fails_is_its_error_and_one_that_was_saved_runs_again(monkeypatch, tmp_path):
    launcher, again = launchers.Local(), tmp_path / "again"
    call = functools.partial(
        launchers._call, launcher.processes, launcher._capture(member(tmp_path), False), os.environ
    )
    python(monkeypatch, "import sys; print('error: no such thing\\n', file=sys.stderr); sys.exit(2)")
    with pytest.raises(UserError, match=r"^no such thing$"):
        call("pretrain")
    python(monkeypatch, "import sys; sys.exit(4)")
    with pytest.raises(UserError, match=r"^pretrain ended with status 4$"):
        call("pretrain")
    python(monkeypatch, "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(UserError, match=r"^pretrain was killed by SIGKILL: run the same command again$"):
        call("pretrain")
    python(monkeypatch, f"import os, sys; sys.exit(os.path.exists({str(again)!r}) or open({str(again)!r}, 'x') and 75)")
    with pytest.raises(UserError, match=r"^pretrain ended with status 1$"):
        call("pretrain")


def test_a_run_that_outlives_its_sweep_is_waited_for(verbs, family, tmp_path):
    code = """
import sys, time
from plm_jax.common import leases
with leases.held(sys.argv[1], "trains"):
    print(flush=True)
    time.sleep(1)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "runs/a/lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as orphan:
        orphan.stdout.readline()
        (one, *_) = sweep.load_members(family, str(tmp_path / "runs"))
        members.train(one, lambda *words: verbs.call(*words))
        assert leases.taken(str(tmp_path / "runs/a/lock")) is None
    assert verbs.calls == [("pretrain", "a"), ("evaluate", "a")]


def test_two_sweeps_of_one_folder_are_refused(verbs, family, tmp_path):
    with (
        leases.held(str(tmp_path / "runs/lock"), "sweeps"),
        pytest.raises(UserError, match="another process sweeps in"),
    ):
        local(family, tmp_path)
    assert not verbs.calls


def test_one_run_of_a_sweep_waits_for_no_other_and_brings_the_table_up_to_date(verbs, family, tmp_path):
    one = functools.partial(sweep.run_one, family, str(tmp_path / "runs"), ())
    with pytest.raises(UserError, match="a-child waits for a, which is not finished: train that run first"):
        one("a-child")
    with pytest.raises(UserError, match=r"--run=a-chld: .* has no such run; did you mean 'a-child'"):
        one("a-chld")
    for _ in range(2):
        one("a")
        one("a-child")
    assert [name for verb, name in verbs.calls if verb == "pretrain"] == ["a", "a-child"]
    table = (tmp_path / "runs/table.md").read_text()
    assert "| a-child | a/real_loss | 4.000" in table and "| c | not run yet" in table


def test_other_processes_of_a_runs_job_train_with_the_first_and_wait_for_it(verbs, family, tmp_path, monkeypatch):
    configs, evaluated = {}, threading.Event()

    def call(processes, heard, environment, verb, *flags):
        configs[progress.is_first()] = json.loads(pathlib.Path(flags[0].partition(":")[2], "config.json").read_text())
        assert verb == "pretrain" and flags[1] == f"--workdir={tmp_path / 'runs/a'}"
        evaluated.set()

    monkeypatch.setattr(launchers, "_call", call)
    monkeypatch.setenv("SLURM_PROCID", "1")
    (tmp_path / "runs").mkdir()
    other = threading.Thread(target=sweep.run_one, args=[family, str(tmp_path / "runs"), (), "a"])
    other.start()
    assert evaluated.wait(60) and not (tmp_path / "runs/a/config.json").exists()
    other.join(0.1)
    assert other.is_alive()
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setattr(launchers, "_call", lambda processes, output, environment, *words: verbs.call(*words))
    sweep.run_one(family, str(tmp_path / "runs"), (), "a")
    other.join(60)
    assert not other.is_alive()
    assert configs[False] == json.loads((tmp_path / "runs/a/config.json").read_text())


# Jobs are lines of a file: id, state, name and the other options. `squeue` has those that are not ended.
SBATCH = """#!/usr/bin/env bash
[ "$1" = --parsable ] && [ -f launch/environment.sh ] || exit 64
[ -z "${FULL:-}" ] || { echo "sbatch: error: the queue is full" >&2; exit 1; }
number=$(( $(wc -l < "$JOBS") + 1 ))
echo "$number $*" >> "$JOBS"
echo "$number;cluster"
"""
SQUEUE = """#!/usr/bin/env bash
[ "$*" = "--me --noheader --format=%i %j" ] || exit 64
sed -nE 's/^([0-9]+) .*--job-name=([^ ]+) .*/\\1 \\2/p' "$JOBS"
"""


@pytest.fixture
def queue(tmp_path, monkeypatch) -> pathlib.Path:
    """The file of the jobs that are queued."""
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE)):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("JOBS", str(tmp_path / "jobs"))
    (tmp_path / "jobs").touch()
    return tmp_path / "jobs"


def enqueue(family, tmp_path):
    command = launchers.job_command(family, str(tmp_path / "runs"), (), ["--module=mine.py"])
    sweep.enqueue(family, str(tmp_path / "runs"), (), launchers.Slurm(command, ["--nodes=1", "--time=1:00:00"]))


def test_slurm_has_a_job_for_each_run_after_its_parents(verbs, queue, family, tmp_path):
    enqueue(family, tmp_path)
    jobs = [line.split(" ") for line in queue.read_text().splitlines()]
    options = [[word for word in job if word.startswith("--")] for job in jobs]
    after = [next((word for word in job if word.startswith("--dependency")), None) for job in options]
    of = {line.split("--run=")[1]: number for number, line in enumerate(queue.read_text().splitlines(), 1)}
    assert list(of) == ["a", "b", "a-child", "a-grandchild", "b-child", "c"]
    parents = {"a-child": "a", "a-grandchild": "a-child", "b-child": "b"}
    assert after == [f"--dependency=afterok:{of[parents[name]]}" if name in parents else None for name in of]
    script = jobs[2].index("launch/slurm.sbatch")
    runs = str(tmp_path / "runs")
    assert jobs[2][script + 1 :] == [
        *(
            "python",
            "-m",
            "plm_jax",
            "sweep",
            f"--sweep={family}",
            f"--workdir={runs}",
            "--module=mine.py",
            "--run=a-child",
        )
    ]
    assert {"--nodes=1", "--time=1:00:00", f"--output={runs}/a-child/log.txt"} <= set(jobs[2][:script])
    assert not verbs.calls


def test_slurm_queues_nothing_twice(verbs, queue, family, tmp_path, capsys):
    enqueue(family, tmp_path)
    before = queue.read_text()
    enqueue(family, tmp_path)
    assert queue.read_text() == before and "a-child: already queued, job 3" in capsys.readouterr().err
    # Job 1 has ended well, as has its child's; job 2 failed, and so did those that waited for it.
    for name in ("a", "a-child"):
        sweep.run_one(family, str(tmp_path / "runs"), (), name)
    queue.write_text("\n".join(f"{n} " for n in range(1, 7)) + "\n")
    enqueue(family, tmp_path)
    again = [line for line in queue.read_text().splitlines() if "--run=" in line]
    assert [line.split("--run=")[1] for line in again] == ["b", "a-grandchild", "b-child", "c"]
    assert ["--dependency" in line for line in again] == [False, False, True, False]
    assert "| a-child | a/real_loss | 4.000" in capsys.readouterr().out


def test_slurm_that_takes_no_job_is_a_line(verbs, queue, family, tmp_path, monkeypatch):
    monkeypatch.setenv("FULL", "1")
    message = r"6 of 6 runs failed \(a: sbatch failed \(sbatch: error: the queue is full\).*a-child: waits for a;"
    with pytest.raises(UserError, match=message):
        enqueue(family, tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        UserError, match="program 'squeue' not found: run this command on a machine that can submit jobs"
    ):
        enqueue(family, tmp_path)


def test_a_jobset_is_what_gke_takes_and_runs_the_same_sweep(family, tmp_path):
    command = launchers.job_command("ablations/objectives_demo", "gs://bucket/runs", (0, 1), [])
    options = ["--topology=v5e:2x4", "--image=registry/plm_jax", "--dry_run"]
    kubernetes = launchers.Kubernetes(command, options, None)
    (one, *_) = sweep.load_members(family, "gs://bucket/runs")
    names = []
    for folder in ("a", "An_odd.name+of_many_letters-which-ends-late-0.5-seed2"):
        run = members.Member("a", f"gs://bucket/runs/{folder}", {}, one.run)
        finished = subprocess.run(kubernetes.command(run), capture_output=True, text=True)
        assert finished.returncode == 0, finished.stderr
        words = {
            json.loads(line.strip()[2:]) for line in finished.stdout.splitlines() if line.strip().startswith('- "')
        }
        sweeps = {"--sweep=ablations/objectives_demo", "--workdir=gs://bucket/runs", "--seeds=0,1", f"--run={folder}"}
        assert sweeps | {"python", "-m", "plm_jax", "sweep"} <= words
        names.append(next(word for word in kubernetes.command(run) if word.startswith("--name=")))
    assert names[0] != names[1]


def test_a_job_that_ends_well_and_leaves_nothing_is_an_error(verbs, family, tmp_path, monkeypatch):
    kubernetes = launchers.Kubernetes([], [], None)
    for code, said in (
        ("print('error: there is no such pool'); exit(2)", "there is no such pool"),
        ("print('the set has ended')", "the job ended with status 0, and the run is not finished"),
    ):
        monkeypatch.setattr(kubernetes, "command", lambda member, code=code: [sys.executable, "-c", code])
        (one, *_) = sweep.load_members(family, str(tmp_path / "runs"))
        with pytest.raises(UserError, match=said):
            kubernetes.execute(one)


def test_a_path_in_the_project_is_where_the_job_finds_it(tmp_path, monkeypatch):
    root = pathlib.Path(launchers.__file__).parents[2]
    monkeypatch.chdir(root / "tests")
    words = launchers.job_command("../configs/ablations/positions.py:demo", "runs", (), [])
    assert words[3:] == ["--sweep=configs/ablations/positions.py:demo", f"--workdir={root}/tests/runs"]
    monkeypatch.chdir(tmp_path)
    assert launchers.job_command("mine.py", "gs://b/runs", (), [])[3] == f"--sweep={tmp_path}/mine.py"


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--", "--nodes=1"], "'--nodes=1' after -- is a flag of a launcher: add --launcher=slurm or gke"),
        (["--launcher=slurm", "--parallel=2"], "--parallel=2 cannot be combined with"),
        (["--launcher=gke", "--run=a"], "--run=a trains on this machine: leave out --launcher"),
        (["--parallel=0"], "parallel"),
    ],
)
def test_flags_that_do_not_go_together_are_a_line(verb, tmp_path, flags, said):
    finished = verb("sweep", f"--sweep={tmp_path}/sweep.py", f"--workdir={tmp_path}", *flags)
    support.assert_one_line(finished, said)
