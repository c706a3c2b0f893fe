"""Division of records among tasks, in up to three steps."""

import collections
import random

import pytest

from plm_jax.common import parts, shuffle, tasks
from plm_jax.common.executors.in_process import InProcessExecutor


def scatter(workspace: tasks.Workspace, seed: int, division: shuffle.Division) -> dict:
    rng, writer = random.Random(seed), division.writer()
    for _ in range(40):
        part = rng.randrange(division.num_parts)
        writer.add(part, f"{part},{seed};".encode())
    return {"records": shuffle.write(workspace, f"records/{workspace.task}", writer, division)}


def gather(workspace: tasks.Workspace, part: int, slices: tuple[parts.Slice, ...]) -> list[str]:
    blocks = (block for each in slices for block in parts.blocks(each._replace(path=workspace.path(each.path))))
    records = b"".join(blocks).decode().split(";")[:-1]
    assert {record.partition(",")[0] for record in records} == {str(part)}
    return sorted(records)


def run(folder, num_tasks: int, num_parts: int) -> tuple[dict[str, list[tasks.Mark]], dict[str, list[tasks.Task]]]:
    """Returns the marks and the tasks of a job that scatters and gathers records."""
    division, created = shuffle.divide(num_tasks, num_parts), {}

    def first(marks):
        return [tasks.Task(str(number), scatter, (number, division)) for number in range(num_tasks)]

    def last(marks):
        written = shuffle.latest(marks, "scatter", "records")
        assert shuffle.num_parts(written, "records") == num_parts
        collected = shuffle.collect(written, "records").items()
        return [tasks.Task(str(part), gather, (part, each.slices), each.outputs) for part, each in collected]

    def noting(stage: tasks.Stage) -> tasks.Stage:
        def create(marks):
            created[stage.name] = list(stage.tasks(marks))
            return created[stage.name]

        return tasks.Stage(stage.name, create, stage.removes)

    stages = [
        tasks.Stage("scatter", first),
        *shuffle.splitting("scatter", ["records"]),
        tasks.Stage("gather", last, shuffle.folders("scatter", ["records"])),
    ]
    job = tasks.Job(str(folder), "a")
    return tasks.run(job, [noting(each) for each in stages], InProcessExecutor(), False), created


@pytest.mark.parametrize("num_tasks, num_parts", [(9, 8), (8, 31), (31, 8), (13, 17), (32, 32)])
def test_two_steps_give_each_part_the_same_records_with_fewer_requests(num_tasks, num_parts, tmp_path, monkeypatch):
    expected, _ = run(tmp_path / "one", num_tasks, num_parts)
    assert not expected["scatter-split"]
    monkeypatch.setattr(shuffle, "MOST_REQUESTS", 64)
    marks, created = run(tmp_path / "two", num_tasks, num_parts)
    assert marks["scatter-split"]
    assert {m.task: m.result for m in marks["gather"]} == {m.task: m.result for m in expected["gather"]}
    for stage in ("scatter-split", "gather"):
        assert 0 < sum(len(task.inputs) for task in created[stage]) <= 64
    for stage in ("scatter", "scatter-split"):
        slices = sum(len(shuffle.Spread(*mark.result["records"]).sizes) for mark in marks[stage])
        assert slices <= 64
    assert not (tmp_path / "two" / "scatter" / "records").exists()
    assert not (tmp_path / "two" / "scatter-split" / "records").exists()


@pytest.mark.parametrize("num_tasks, num_parts", [(32, 32), (29, 37), (16, 61)])
def test_three_steps_give_each_part_the_same_records_with_smaller_tasks(num_tasks, num_parts, tmp_path, monkeypatch):
    expected, _ = run(tmp_path / "one", num_tasks, num_parts)
    monkeypatch.setattr(shuffle, "MOST_REQUESTS", 64)
    two_steps, _ = run(tmp_path / "two", num_tasks, num_parts)
    assert not two_steps["scatter-split-2"]
    monkeypatch.setattr(shuffle, "_MOST_WIDTH", 8)
    monkeypatch.setattr(shuffle, "_FRACTION", 4)
    marks, created = run(tmp_path / "three", num_tasks, num_parts)
    assert {m.task: m.result for m in marks["gather"]} == {m.task: m.result for m in expected["gather"]}
    for stage in ("scatter-split", "scatter-split-2"):
        assert len(marks[stage]) > len(two_steps["scatter-split"])
    for stage in ("scatter-split", "scatter-split-2", "gather"):
        assert 0 < sum(len(task.inputs) for task in created[stage]) <= 64
    for stage in ("scatter", "scatter-split", "scatter-split-2"):
        assert sum(len(shuffle.Spread(*mark.result["records"]).sizes) for mark in marks[stage]) <= 64
        assert not (tmp_path / "three" / stage / "records").exists()


def test_few_tasks_divide_small_outputs_again(tmp_path, monkeypatch):
    monkeypatch.setattr(shuffle, "MOST_REQUESTS", 256)
    few, _ = run(tmp_path / "few", 20, 20)
    monkeypatch.setattr(shuffle, "_TASK_BYTES", 1)
    many, _ = run(tmp_path / "many", 20, 20)
    assert 0 < len(few["scatter-split"]) <= 4 * 10 < 100 < len(many["scatter-split"]) <= 12 * 10
    assert [mark.result for mark in few["gather"]] == [mark.result for mark in many["gather"]]


def test_outputs_are_removed_while_they_are_divided_again(tmp_path, monkeypatch):
    """The disk holds one group of outputs at most twice."""
    monkeypatch.setattr(shuffle, "MOST_REQUESTS", 64)
    left, write = collections.Counter(), shuffle.write

    def watch(workspace, *arguments):
        if "-split" in workspace.path(f"{workspace._stage}/"):
            left[len(list((tmp_path / "job" / "scatter" / "records").iterdir()))] += 1
        return write(workspace, *arguments)

    monkeypatch.setattr(shuffle, "write", watch)
    run(tmp_path / "job", 16, 16)
    assert left == {16: 4, 12: 4, 8: 4, 4: 4}


def test_single_step_suffices_up_to_the_limit():
    assert shuffle.divide(2**10, 2**10) == shuffle.Division(2**10)
    assert shuffle.divide(2**10, 2**10 + 1) == shuffle.Division(2**10 + 1, 2)
    assert shuffle.divide(2**16, 2**16) == shuffle.Division(2**16, 2**12)
