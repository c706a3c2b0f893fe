"""Dry plan of a run: bounds of a large job, agreement with a small one, and the command."""

import dataclasses
import json
import pathlib
import random

import pytest

from plm_jax.cleaning import crawl, dry_run, job, lists, settings, stages
from plm_jax.common import shuffle, tasks
from plm_jax.common.executors.in_process import InProcessExecutor
from tests.cleaning.crawls import sentence

LARGE = 150_000_000


def large_plan(num_files: int) -> stages.Plan:
    """Returns the plan of WET files of 150 MB, each with 600 MB of text."""
    names = [f"{number:06d}.warc.wet.gz" for number in range(num_files)]
    files = {f"/crawl/{name}": crawl.CrawlFile(name, LARGE, "") for name in names}
    rule = settings.resolve("en", ["badwords=None", f"shards={num_files * LARGE // 2**28 + 1}"])
    return stages.Plan(files, rule, lists.Lists({}, [], {}, {}), 2**25)


@pytest.fixture
def slices_of_stages(monkeypatch):
    """Numbers of slices that each stage writes for a field, once `dry_run.estimate` has run."""
    numbers: dict[tuple[str, str], int] = {}
    mark = dry_run._mark

    def noting(stage, task, work):
        result = mark(stage, task, work)
        for field in result.result:
            spread = shuffle.read(result, field)
            assert spread is not None
            numbers[stage, field] = numbers.get((stage, field), 0) + len(spread.sizes)
        return result

    monkeypatch.setattr(dry_run, "_mark", noting)
    return numbers


def test_large_job_stays_within_its_bounds(slices_of_stages):
    plan = large_plan(90_000)
    result = dry_run.estimate(plan)
    rows = {row.stage: row for row in result.rows}
    assert result.text == 90_000 * LARGE * 4
    # Few files: many fewer tasks than there are slices.
    assert all(row.tasks <= 2**16 and row.files <= 2**18 for row in result.rows), rows
    assert all(number <= 2**20 for number in slices_of_stages.values()), slices_of_stages
    assert all(row.memory <= 2 * 10**9 for row in result.rows), rows
    assert all(row.temporary <= 2 * 10**10 for row in result.rows), rows
    assert result.disk <= 2 * result.text
    # Each stage divides all text, so at least the compressed text is written again.
    assert rows["newest-split-2"].tasks > 2**12 and rows["read-split"].tasks > 2**11
    assert rows["read"].written >= 0.3 * result.text


def english_files(folder, num_files: int, num_pages: int) -> list[str]:
    """Writes pages that lose about half of their lines, because other pages own them, and nothing else."""
    rng, paths = random.Random(3), []
    shared = [sentence(rng) for _ in range(num_files * num_pages)]
    for number in range(num_files):
        rows = []
        for page in range(num_pages):
            lines = [f"{sentence(rng)} Its number is {rng.randrange(10**12)}." for _ in range(8)]
            text = "\n".join([*lines, *rng.sample(shared, 12)])
            rows.append({"url": f"http://a.org/{number}/{page}", "text": text, "timestamp": "2019-04-24"})
        path = folder / f"{number}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        paths.append(str(path))
    return paths


class WatchingExecutor(InProcessExecutor):
    """Executor that notes the bytes of all outputs after each task."""

    def __init__(self):
        self.sizes: list[int] = []

    def map(self, job, stage, tasks):
        for outcome in super().map(job, stage, tasks):
            outputs = [path for path in pathlib.Path(job.folder).glob("[!ms]*/**/*") if path.is_file()]
            self.sizes.append(sum(path.stat().st_size for path in outputs))
            yield outcome


@pytest.mark.parametrize("most_requests", [2**20, 64])
def test_plan_predicts_a_small_job(tmp_path, monkeypatch, most_requests):
    monkeypatch.setattr(shuffle, "MOST_REQUESTS", most_requests)
    monkeypatch.setattr(shuffle, "_MOST_WIDTH", 4)
    monkeypatch.setattr(shuffle, "_FRACTION", 2)
    monkeypatch.setattr(stages, "_LEAST_STORED", 4)
    executor, output = WatchingExecutor(), str(tmp_path / "out")
    inputs, part_bytes = english_files(tmp_path, 16, 60), 2**17
    rule = settings.resolve("en", ["badwords=None", "language=None", "shards=3", "validation_one_in=10"])
    before = sorted(tmp_path.rglob("*"))
    result = dry_run.estimate(job.make_plan(inputs, rule, part_bytes))
    assert sorted(tmp_path.rglob("*")) == before
    marks, run = {}, tasks.run

    def noting(*arguments):
        marks.update(run(*arguments))
        return marks

    monkeypatch.setattr(tasks, "run", noting)
    job.clean(inputs, output, rule, executor, show_progress=False, part_bytes=part_bytes)
    assert {row.stage: row.tasks for row in result.rows} == {name: len(each) for name, each in marks.items() if each}
    assert ("newest-split-2" in {row.stage for row in result.rows}) == (most_requests == 64)
    for row in result.rows:
        sizes = [each.size for mark in marks[row.stage] for each in mark.outputs]
        assert row.files == len(sizes)
        assert 0.2 < sum(sizes) / row.written < 1.1, row
    assert 0.4 < max(executor.sizes) / result.disk < 1.1


def test_plan_counts_what_pages_and_lists_need(tmp_path):
    (tmp_path / "urls.txt").write_text("http://a.org/1\n" * 1000)
    inputs = english_files(tmp_path, 2, 30)
    rule = settings.resolve("webtextlike", ["badwords=None", f"pages.path={tmp_path}/urls.txt"])
    plan = job.make_plan(inputs, rule, 2**25)
    result = dry_run.estimate(plan)
    # Both files, and the list of URLs.
    assert {row.stage: row.tasks for row in result.rows}["read"] == 2
    fewer = dry_run.estimate(dataclasses.replace(plan, rule=dataclasses.replace(rule, duplicates=None)))
    assert [row.stage for row in fewer.rows] == ["read", "newest", "write"]
    assert fewer.disk < result.disk


def test_command_prints_the_plan_and_writes_nothing(verb, tmp_path):
    english_files(tmp_path, 2, 30)
    before = sorted(tmp_path.rglob("*"))
    flags = [f"--input={tmp_path}/*.jsonl", "--plan", "--set=badwords=None", "--part_bytes=16384"]
    planned = verb("clean", *flags)
    assert planned.status == 0 and not planned.err, planned.err
    rows = {line.split()[0]: line.split() for line in planned.out.splitlines() if line.strip()}
    assert rows["newest"][1] == str(-(-sum(path.stat().st_size for path in before) // 16384))
    assert "core-hours" in planned.out and "times the size of the text" in planned.out
    assert "compressed to 50% (pages, output rows, quarantined records), 95% (" in planned.out
    without = verb("clean", *flags, "--set=language=None", f"--output={tmp_path}/out")
    assert without.status == 0 and "core-hours" not in without.out
    mistake = verb("clean", f"--input={tmp_path}/*.wet", "--plan", "--set=badwords=None")
    assert mistake.status == 2 and len(mistake.errors) == 1 and "there is no file at" in mistake.errors[0]
    assert sorted(tmp_path.rglob("*")) == before


def test_bands_and_lines_of_pages_are_counted(tmp_path):
    inputs = english_files(tmp_path, 2, 30)

    def written(*changes: str) -> dict[str, int]:
        rule = settings.resolve("en", ["badwords=None", "duplicates=None", *changes])
        return {row.stage: row.written for row in dry_run.estimate(job.make_plan(inputs, rule, 2**25)).rows}

    without = written()
    bands = [written("near_duplicates.kind=minhash", f"near_duplicates.bands={bands}") for bands in (14, 28)]
    assert list(bands[0]) == ["read", "newest", "near_duplicates-owners", "near_duplicates", "write"]
    # The page itself is written in both, and each further band takes 36 bytes on a page.
    text = sum(path.stat().st_size for path in tmp_path.glob("*.jsonl"))
    expected = 14 * 36 * text / dry_run.PAGE_BYTES * dry_run.COMPRESSED["units"]
    assert bands[1]["newest"] - bands[0]["newest"] == pytest.approx(expected, rel=0.01)
    assert bands[0]["newest"] - without["newest"] == pytest.approx(expected, rel=0.01)
