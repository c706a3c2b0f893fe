"""Jobs of tasks over files: order, resuming, retries, failures and late copies."""

import json
import os
import pathlib
import re
import signal
import time

import pytest

from plm_jax.common import package, storage, tasks
from plm_jax.common.errors import UserError
from plm_jax.common.executors import engines
from plm_jax.common.executors.in_process import InProcessExecutor
from plm_jax.common.executors.local import LocalExecutor

NUMBERS = range(5)


def write_number(workspace: tasks.Workspace, number: int, log: str) -> dict[str, int]:
    with open(log, "a") as file:
        file.write(f"write {number}\n")
    with workspace.writing(f"squares/{number}") as file:
        file.write(str(number**2).encode())
    return {"number": number}


def add_up(workspace: tasks.Workspace, paths: tuple[str, ...], log: str) -> int:
    with open(log, "a") as file:
        file.write("sum\n")
    total = sum(int(storage.read(workspace.path(path))) for path in paths)
    with workspace.writing("total") as file:
        file.write(str(total).encode())
    return total


def stages(log: pathlib.Path, write=write_number) -> list[tasks.Stage]:
    """Returns two stages: numbers and the sum of their squares."""
    first = [tasks.Task(str(n), write, (n, str(log)), subject=f"number-{n}.txt") for n in NUMBERS]

    def last(marks):
        outputs = tuple(output for mark in marks["write"] for output in mark.outputs)
        paths = tuple(output.path for output in outputs)
        return [tasks.Task("sum", add_up, (paths, str(log)), outputs)]

    return [tasks.Stage("write", lambda marks: first), tasks.Stage("add", last, ("write",))]


def run(folder, job_stages, executor=None, identity="a"):
    return tasks.run(tasks.Job(str(folder), identity), job_stages, executor or InProcessExecutor(), False)


@pytest.mark.parametrize("executor", [InProcessExecutor(), LocalExecutor(2)])
def test_stages_run_in_order_and_inputs_are_removed(executor, tmp_path):
    log = tmp_path / "log"
    with executor:
        marks = run(tmp_path / "job", stages(log), executor)
    assert marks["add"][0].result == 30
    assert [mark.result["number"] for mark in marks["write"]] == list(NUMBERS)
    lines = log.read_text().splitlines()
    assert sorted(lines[:5]) == [f"write {n}" for n in NUMBERS] and lines[5:] == ["sum"]
    assert (tmp_path / "job" / "add" / "total").read_text() == "30"
    assert not (tmp_path / "job" / "write").exists()


def test_repeated_run_does_nothing_and_another_job_needs_another_folder(tmp_path):
    log = tmp_path / "log"
    first = run(tmp_path / "job", stages(log))
    assert run(tmp_path / "job", stages(log)) == first
    assert len(log.read_text().splitlines()) == 6
    with pytest.raises(ValueError, match="belongs to another job"):
        run(tmp_path / "job", stages(log), identity="b")
    assert len(log.read_text().splitlines()) == 6


def test_run_whose_results_were_removed_begins_again(tmp_path):
    log = tmp_path / "log"
    run(tmp_path / "job", stages(log))
    (tmp_path / "job" / "add" / "total").unlink()
    assert run(tmp_path / "job", stages(log))["add"][0].result == 30
    assert len(log.read_text().splitlines()) == 12 and (tmp_path / "job" / "add" / "total").exists()


def fail_at_three(workspace: tasks.Workspace, number: int, log: str) -> dict[str, int]:
    if number == 3 and not os.path.exists(f"{log}.repaired"):
        raise ValueError("cannot square\nthis")
    return write_number(workspace, number, log)


def test_rest_goes_on_after_a_failure_and_the_next_run_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "_RETRIES", (0.0, 0.0, 0.0))
    log = tmp_path / "log"
    with pytest.raises(UserError, match=r"^number-3\.txt: ValueError: cannot square this$"):
        run(tmp_path / "job", stages(log, fail_at_three))
    assert sorted(log.read_text().splitlines()) == [f"write {n}" for n in NUMBERS if n != 3]
    assert (tmp_path / "job" / "failed" / "write" / "3").read_text() == "ValueError: cannot square this"
    (tmp_path / "log.repaired").touch()
    assert run(tmp_path / "job", stages(log, fail_at_three))["add"][0].result == 30
    assert log.read_text().splitlines()[4:] == ["write 3", "sum"]
    assert not (tmp_path / "job" / "failed" / "write").exists()


def fail_twice(workspace: tasks.Workspace, number: int, log: str) -> dict[str, int]:
    attempts = pathlib.Path(f"{log}.{number}")
    attempts.write_text(attempts.read_text() + "x" if attempts.exists() else "x")
    if len(attempts.read_text()) < 3:
        raise OSError(28, "No space left on device")
    return write_number(workspace, number, log)


def test_transient_failures_are_retried(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "_RETRIES", (0.0, 0.0, 0.0))
    assert run(tmp_path / "job", stages(tmp_path / "log", fail_twice))["add"][0].result == 30


def fill_disk(workspace: tasks.Workspace, number: int, log: str) -> None:
    with workspace.writing(f"squares/{number}") as file:
        file.write(b"part of it")
        raise OSError(28, os.strerror(28), "squares")


def test_many_failures_of_one_kind_are_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "_RETRIES", (0.0, 0.0, 0.0))
    with pytest.raises(
        UserError, match=r"^5 of 5 tasks of 'write' failed: .*No space left on device.*free some space"
    ) as e:
        run(tmp_path / "job", stages(tmp_path / "log", fill_disk))
    assert "\n" not in str(e.value)
    assert not list((tmp_path / "job").rglob("*.tmp")) and not list((tmp_path / "job" / "write").rglob("?"))


def test_late_copy_of_a_task_changes_nothing(tmp_path):
    log, job = tmp_path / "log", tasks.Job(str(tmp_path / "job"), "a")
    parts = stages(log)
    marks = run(tmp_path / "job", parts)
    before = sorted((tmp_path / "job").rglob("*"))
    for stage in parts:
        for task in stage.tasks(marks):
            assert tasks.run_task(job, stage.name, task) in marks[stage.name]
    assert sorted((tmp_path / "job").rglob("*")) == before and len(log.read_text().splitlines()) == 6


def test_missing_input_is_an_error_and_never_an_empty_result(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "_RETRIES", (0.0, 0.0, 0.0))
    log, job = tmp_path / "log", tasks.Job(str(tmp_path / "job"), "a")
    first, last = stages(log)
    marks = run(tmp_path / "job", [tasks.Stage("write", first.tasks)])
    (tmp_path / "job" / "write" / "squares" / "2").unlink()
    (task,) = last.tasks(marks)
    outcome = tasks.run_task(job, "add", task)
    assert isinstance(outcome, tasks.Failure) and "squares/2" in outcome.message
    assert not (tmp_path / "job" / "add").exists()


def test_damaged_mark_or_output_runs_the_task_again(tmp_path):
    log = tmp_path / "log"
    parts = [tasks.Stage("write", stages(log)[0].tasks)]
    run(tmp_path / "job", parts)
    (tmp_path / "job" / "stages" / "write").unlink()
    (tmp_path / "job" / "marks" / "write" / "1").write_text('["1", ')
    (tmp_path / "job" / "write" / "squares" / "2").write_text("")
    mark = tmp_path / "job" / "marks" / "write" / "3"
    mark.write_text(json.dumps([*json.loads(mark.read_text())[:1], "of other arguments", [], {}]))
    run(tmp_path / "job", parts)
    assert log.read_text().splitlines()[5:] == ["write 1", "write 2", "write 3"]


def test_worker_of_another_version_is_rejected(tmp_path, monkeypatch):
    job_stages = stages(tmp_path / "log")
    job = tasks.Job(str(tmp_path / "job"), "a", version="0.1")
    mine = re.escape(package.version())
    with pytest.raises(UserError, match=rf"5 of 5 .* plm_jax {mine} or .*, the driver 0\.1: install the same"):
        tasks.run(job, job_stages, InProcessExecutor(), False)


def test_worker_without_the_shared_folder_reports_it(tmp_path):
    task = stages(tmp_path / "log")[0].tasks({})[0]
    outcome = tasks.run_task(tasks.Job(str(tmp_path / "elsewhere"), "a"), "write", task)
    assert isinstance(outcome, tasks.Failure) and "folder that the workers share" in outcome.message
    assert not (tmp_path / "elsewhere").exists()


def test_late_task_of_another_job_in_the_same_folder_writes_nothing(tmp_path):
    log = tmp_path / "log"
    run(tmp_path / "job", stages(log), identity="b")
    before = sorted((tmp_path / "job").rglob("*"))
    late = stages(log)[0].tasks({})[0]
    outcome = tasks.run_task(tasks.Job(str(tmp_path / "job"), "a"), "write", late)
    assert isinstance(outcome, tasks.Failure) and "another job is in" in outcome.message
    assert sorted((tmp_path / "job").rglob("*")) == before


def die_once(workspace: tasks.Workspace, number: int, log: str) -> dict[str, int]:
    if number == 2 and not os.path.exists(f"{log}.died"):
        pathlib.Path(f"{log}.died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return write_number(workspace, number, log)


def die(workspace: tasks.Workspace, number: int, log: str) -> dict[str, int]:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return write_number(workspace, number, log)


def test_killed_worker_is_replaced(tmp_path):
    with LocalExecutor(2) as executor:
        assert run(tmp_path / "job", stages(tmp_path / "log", die_once), executor)["add"][0].result == 30


def test_task_that_kills_every_worker_fails_alone(tmp_path):
    log = tmp_path / "log"
    with LocalExecutor(2) as executor, pytest.raises(UserError, match=r"number-2\.txt: SIGKILL ended a worker process"):
        run(tmp_path / "job", stages(log, die), executor)
    assert len(log.read_text().splitlines()) == 4


def test_wrong_clock_of_a_worker_has_no_effect(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 0.0)
    log = tmp_path / "log"
    marks = run(tmp_path / "job", stages(log))
    for path in (tmp_path / "job").rglob("*"):
        os.utime(path, (0, 0))
    assert run(tmp_path / "job", stages(log)) == marks and len(log.read_text().splitlines()) == 6


@pytest.mark.parametrize(
    "engine, options, message",
    [
        ("sparc", [], "there is no engine 'sparc': did you mean 'spark'"),
        ("local", ["--worker=3"], "local has no option --worker=3, written as --name=value: did you mean 'workers'"),
        ("local", ["--workers=many"], "local.workers is 'many': must be an integer"),
        ("local", ["--workers=-1"], "local.workers is -1: must be between"),
        ("slurm", ["--elements=0"], "slurm.elements is 0: must be between"),
    ],
)
def test_wrong_engine_options_are_one_line(engine, options, message):
    with pytest.raises(UserError, match=message):
        engines.make(engine, options)


def test_engine_options_are_set_or_passed_on():
    assert engines.make("local", ["--workers=3"]) == LocalExecutor(3)
    slurm = engines.make("slurm", ["--elements=7", "--partition=cpu", "-p", "x"])
    assert (slurm.elements, slurm.options) == (7, ("--partition=cpu", "-p", "x"))  # pyright: ignore


def test_marks_are_the_results_of_engines_that_return_nothing(tmp_path, monkeypatch):
    """A mark whose output is gone does not count, and every failure has its reason."""
    monkeypatch.setattr(tasks, "_RETRIES", (0.0, 0.0, 0.0))
    job, stage = tasks.Job(str(tmp_path / "job"), "a"), stages(tmp_path / "log", fail_at_three)[0]
    run(tmp_path / "job", [stages(tmp_path / "log")[0]])
    (tmp_path / "job" / "write" / "squares" / "1").unlink()
    each = list(stage.tasks({}))
    for name in ("3", "4"):
        (tmp_path / "job" / "marks" / "write" / name).unlink()
    assert isinstance(tasks.run_task(job, "write", each[3]), tasks.Failure)
    same = [tasks.Task(task.name, write_number, task.arguments) for task in each]
    outcomes = list(tasks.follow(job, "write", same, lambda: False, lambda: "the engine is gone", 0.0))
    assert {outcome.task for outcome in outcomes if isinstance(outcome, tasks.Mark)} == {"0", "2"}
    failures = {outcome.task: outcome.message for outcome in outcomes if isinstance(outcome, tasks.Failure)}
    assert failures == {"1": "the engine is gone", "3": "ValueError: cannot square this", "4": "the engine is gone"}


def test_groups_keep_the_order_and_the_limit():
    assert tasks.groups([("a", 5), ("b", 5), ("c", 11), ("d", 1)], 10) == [["a", "b"], ["c"], ["d"]]
