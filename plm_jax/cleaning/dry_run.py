"""Estimates of a cleaning run. Makes the same tasks as the run, from estimated sizes instead of results of tasks.

Reads the lists that the settings name, but only the sizes of the inputs. Writes nothing. Sizes are estimated as if no
rule removed anything. For each task function, `_WORK` contains a function that estimates its output and its memory from
the constants below.
"""

import array
import contextlib
import gc
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from plm_jax.cleaning import ownership, records, settings, stages, task_functions
from plm_jax.common import parts, shuffle, storage, tasks

# Mean size of a page with its URL: C4's English pages have 828,588,742,863 bytes for 364,868,892 pages (dataset card of
# a copy with the same columns, huggingface.co/datasets/lsb/c4).
PAGE_BYTES = 2270
# Mean size of a line or sentence, and of a line of a list of URLs. Assumed: lines of menus are shorter, those of prose
# are longer.
LINE_BYTES = 60
# Share of the units of a page that other pages own. Assumed.
LOST = 0.5
# Size of files between the stages compared with their records, by field of the results, and of the output compared with
# its text: 0.42 to 0.43 for English pages and rows (`benchmarks/clean_plan.py`). Digests hardly compress if there are
# many parts, because few records of a page are together.
COMPRESSED = {"pages": 0.5, "rows": 0.5, "units": 0.95, "lost": 0.95, "urls": 1.0, "bad": 0.5}
OUTPUT = 0.4
# Contents of the files between the stages, by field of the results.
_CONTENTS = {
    "pages": "pages",
    "rows": "output rows",
    "units": "hashes of lines",
    "lost": "lists of removed lines",
    "urls": "hashes of URLs",
    "bad": "quarantined records",
}
# Memory of a process with the rules of the English C4, including the detector of languages, and without records.
PROCESS_BYTES = 128 * 2**20
# Bytes of memory per byte of records that a function holds. Measured by `benchmarks/clean_plan.py`.
RECORD_MEMORY = {"newest": 1.1, "urls": 9.5, "split": 2.2, "find_owners": 3.1, "keep": 3.2, "write": 1.1}
# Memory of the command per slice: in the results of all stages, and in the tasks of the largest stage.
RESULT_SLICE_BYTES, TASK_SLICE_BYTES = 92, 115
# Memory of the command per task that applies rules: counts and examples of the text that 12 rules removed.
TALLY_BYTES = 24_000
# Bytes of text per second and core (docs/cleaning.md): rules of the English C4 with language detection, and MinHash.
TEXT_PER_SECOND = 370_000


class StageUsage(NamedTuple):
    """Estimates of a stage.

    Attributes:
      tasks: number of tasks.
      files: number of files that the tasks write.
      slices: number of slices of files that the tasks read. If the files are in a bucket, each slice costs one request.
      written: number of bytes that the tasks write.
      memory: memory of the largest task, in bytes.
      temporary: size of the largest temporary file of a task, in bytes. Temporary files are on the disks of the
        workers.
    """

    stage: str
    tasks: int
    files: int
    slices: int
    written: int
    memory: int
    temporary: int


class JobUsage(NamedTuple):
    """Estimates of a run.

    Attributes:
      text: number of bytes of text in the inputs.
      rows: estimates of each stage that has tasks.
      disk: largest number of bytes that the output and the files between the stages need together at any time.
      memory: memory of the command, in bytes.
      core_seconds: time of all tasks on one core; None if the time is unknown for these settings.
    """

    text: int
    rows: list[StageUsage]
    disk: int
    memory: int
    core_seconds: float | None


class _Written(NamedTuple):
    """Output of a task, divided into parts.

    Attributes:
      size: bytes before compression.
      first: number of the first part.
      num_parts: number of consecutive parts in the output; None: all parts of the division.
    """

    size: float
    division: shuffle.Division
    first: int = 0
    num_parts: int | None = None


class _Work(NamedTuple):
    """Estimates of a task.

    Attributes:
      slices: number of slices that the task reads.
      memory: memory of the task in bytes, in addition to PROCESS_BYTES.
      written: dict from a field of the task's result to the divided output that this field describes.
      files: sizes of outputs that are not divided.
    """

    slices: int
    memory: float
    written: Mapping[str, _Written] = {}
    files: Sequence[float] = ()


def estimate(plan: stages.Plan) -> JobUsage:
    """Returns the estimates of a run."""
    with _without_collection():
        return _estimate(plan)


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Disables garbage collection in a context. Otherwise, searching millions of slices would take half the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _estimate(plan: stages.Plan) -> JobUsage:
    marks: dict[str, list[tasks.Mark]] = {}
    rows, disk, peak, num_tallies = [], 0, 0, 0
    for stage in stages.build(plan):
        stage_tasks = stage.tasks(marks)
        inputs = tasks.TaskInputs(stage, stage_tasks)
        marks[stage.name], works, temporary = [], [], 0
        for task in stage_tasks:
            work = _WORK[task.function](plan, *task.arguments)
            mark = _mark(stage.name, task.name, work)
            disk += sum(output.size for output in mark.outputs)
            peak = max(peak, disk)
            disk -= sum(output.size for output in inputs.unread_after(task))
            temporary = max(temporary, sum(output.size for output in mark.outputs) if work.written else 0)
            marks[stage.name].append(mark)
            works.append(work)
            num_tallies += task.function in _WITH_TALLY
        if works:
            outputs = [output for mark in marks[stage.name] for output in mark.outputs]
            slices, written = sum(work.slices for work in works), sum(output.size for output in outputs)
            memory = PROCESS_BYTES + int(max(work.memory for work in works))
            rows.append(StageUsage(stage.name, len(works), len(outputs), slices, written, memory, temporary))
    slices = [row.slices for row in rows]
    memory = PROCESS_BYTES + sum(slices) * RESULT_SLICE_BYTES + max(slices) * TASK_SLICE_BYTES
    memory += TALLY_BYTES * num_tallies
    is_measured = isinstance(plan.rule.language, settings.LangdetectConfig)
    return JobUsage(plan.text_bytes, rows, peak, memory, plan.text_bytes / TEXT_PER_SECOND if is_measured else None)


def _mark(stage: str, task: str, work: _Work) -> tasks.Mark:
    """Returns the estimated record of a complete task. Assumes that all parts of an output have the same size."""
    outputs, result = [], {}
    for field, (size, division, first, num_parts) in work.written.items():
        num_parts = division.num_parts if num_parts is None else num_parts
        starts = array.array("Q", [*range(0, num_parts, division.width), num_parts])
        part, compressed = (math.ceil(each / num_parts) for each in (size, size * COMPRESSED[field]))
        sizes = [part * division.width] * (len(starts) - 2) + [part * (starts[-1] - starts[-2])]
        offsets = array.array("Q", [start * compressed for start in starts])
        result[field] = [len(outputs), division, first // division.width, offsets, sizes]
        outputs.append(tasks.Output(f"{stage}/{field}/{task}", offsets[-1], ""))
    outputs += [tasks.Output(f"{stage}/{task}-{number}", int(size), "") for number, size in enumerate(work.files)]
    return tasks.Mark(task, "", tuple(outputs), result)


def _size(slices: Iterable[parts.Slice]) -> int:
    return sum(each.size for each in slices)


def _read(plan: stages.Plan, files: Sequence[tuple[str, str]], division: shuffle.Division, num_bad: int) -> _Work:
    size = sum(stages.text_bytes(plan.files[path]) for path, _ in files)
    return _Work(len(files), 0, {"pages": _Written(size, division), "bad": _Written(0, shuffle.Division(num_bad))})


def _read_urls(plan: stages.Plan, path: str, sha256: str, division: shuffle.Division) -> _Work:
    del plan, sha256
    return _Work(1, 0, {"urls": _Written(storage.size(path) / LINE_BYTES * records.KEY_BYTES, division)})


def _split(
    plan: stages.Plan,
    field: str,
    slices: Sequence[parts.Slice],
    division: shuffle.Division,
    first: int,
    count: int,
) -> _Work:
    del plan
    size = _size(slices)
    memory = RECORD_MEMORY["split"] * min(size, shuffle.BUFFER_BYTES)
    return _Work(len(slices), memory, {field: _Written(size, division, first, count)})


def _newest(
    plan: stages.Plan,
    slices: Sequence[parts.Slice],
    urls: Sequence[parts.Slice],
    step: task_functions.Pass,
    sink: task_functions.Sink,
) -> _Work:
    memory = RECORD_MEMORY["newest"] * _size(slices) + RECORD_MEMORY["urls"] * _size(urls)
    return _Work(len(slices) + len(urls), memory, _passed(plan, _size(slices), step, sink))


def _passed(
    plan: stages.Plan, size: int, step: task_functions.Pass, sink: task_functions.Sink
) -> Mapping[str, _Written]:
    """Returns the outputs of a pass over pages."""
    if step.compared is None:
        return {"rows": _Written(size, sink.division)}
    section = getattr(plan.rule, step.compared)
    is_minhash = isinstance(section, settings.MinHashConfig)
    num_units = size / PAGE_BYTES * section.bands if is_minhash else size / LINE_BYTES
    units = _Written(num_units * ownership.RECORD_BYTES, sink.division)
    return {"pages": _Written(size, shuffle.Division(1)), "units": units}


def _find_owners(plan: stages.Plan, slices: Sequence[parts.Slice], division: shuffle.Division) -> _Work:
    del plan
    size = _size(slices)
    lost = _Written(LOST * size * ownership.LOSS_BYTES / ownership.RECORD_BYTES, division)
    return _Work(len(slices), RECORD_MEMORY["find_owners"] * size, {"lost": lost})


def _keep(
    plan: stages.Plan,
    slices: Sequence[parts.Slice],
    lost: Sequence[parts.Slice],
    compared: str,
    step: task_functions.Pass,
    sink: task_functions.Sink,
) -> _Work:
    del compared
    return _Work(len(slices) + len(lost), RECORD_MEMORY["keep"] * _size(lost), _passed(plan, _size(slices), step, sink))


def _write(plan: stages.Plan, ranges: Sequence[Sequence[parts.Slice]]) -> _Work:
    del plan
    sizes = [_size(slices) for slices in ranges]
    return _Work(sum(map(len, ranges)), RECORD_MEMORY["write"] * max(sizes), files=(OUTPUT * sum(sizes),))


_WORK: Mapping[Callable[..., Any], Callable[..., _Work]] = {
    task_functions.read: _read,
    task_functions.read_urls: _read_urls,
    shuffle.split: _split,
    task_functions.newest: _newest,
    task_functions.find_owners: _find_owners,
    task_functions.keep: _keep,
    task_functions.write: _write,
}
# Functions that apply rules.
_WITH_TALLY = (task_functions.read, task_functions.newest, task_functions.keep)


def table(plan: stages.Plan, result: JobUsage) -> str:
    """Formats the estimates of a run as text."""
    crawl_bytes = sum(file.size for file in plan.files.values())
    header = ("stage", "tasks", "files", "slices read", "written", "memory per task", "temporary disk per task")
    lines: list[tuple[str, ...]] = [header]
    for row in result.rows:
        lines.append((row.stage, *_counts([row]), *map(_amount, (row.written, row.memory, row.temporary))))
    written = sum(row.written for row in result.rows)
    lines.append(("total", *_counts(result.rows), _amount(written), "", ""))
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    rows = []
    for name, *cells in lines:
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        rows.append("  ".join([name.ljust(widths[0]), *aligned]).rstrip())
    hours = "unknown: measured only with the language detection of C4"
    if result.core_seconds is not None:
        speed = f"{TEXT_PER_SECOND / 1e6} MB of text per second and core"
        hours = f"{result.core_seconds / 3600:,.1f} core-hours at {speed}"
    ratio = result.disk / max(result.text, 1)
    summary = {
        "input": f"{len(plan.files):,} files, {_amount(crawl_bytes)}, about {_amount(result.text)} of text",
        "disk": f"at most {_amount(result.disk)} in the output's folder, {ratio:.2f} times the size of the text",
        "command": f"{_amount(result.memory)} of memory",
        "time": hours,
    }
    return "\n".join([*rows, "", *(f"{name:<8}  {value}" for name, value in summary.items()), "", _assumptions()])


def _counts(rows: Sequence[StageUsage]) -> list[str]:
    counts = (sum(row.tasks for row in rows), sum(row.files for row in rows), sum(row.slices for row in rows))
    return [f"{count:,}" for count in counts]


def _assumptions() -> str:
    endings = ", ".join(f"{factor} in {ending} files" for ending, factor in stages.EXPANSION.items())
    lines = [
        "Files are as large as if no rule removed anything; real runs write less after the first stage.",
        f"Each byte of a file holds 1 byte of text ({endings}).",
        f"A page has {PAGE_BYTES:,} bytes, a line or sentence {LINE_BYTES}.",
        f"Lists of duplicates name {LOST:.0%} of the lines, spans or MinHash bands of a page.",
        f"Files between the stages are compressed to {_shares()}, the output to {OUTPUT:.0%}.",
        "All pages are in one language, and no record is quarantined.",
    ]
    return "\n".join(["Assumptions:", *(f"- {line}" for line in lines)])


def _shares() -> str:
    """Describes the assumed compression ratios of the files between the stages."""
    contents: dict[float, list[str]] = {}
    for field, share in COMPRESSED.items():
        contents.setdefault(share, []).append(_CONTENTS[field])
    *most, last = (f"{share:.0%} ({', '.join(names)})" for share, names in contents.items())
    return f"{', '.join(most)} and {last}"


def _amount(size: float) -> str:
    """Formats a number of bytes with about three digits, such as `1.23 GB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            return f"{size:,.0f} {unit}" if size >= 99.95 or unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    raise AssertionError
