"""Constants of `plm_jax clean --plan`, measured: compression between the stages, and memory by records of a task.

    python benchmarks/clean_plan.py                 # a job of 20 MB of text, and functions with 8 and 32 MB of records
    python benchmarks/clean_plan.py --megabytes 4   # to its end sooner

Runs the job of `clean_jobs.py` in this process, and compares its files with those of the plan. Memory per byte of
records is the growth of the peak between the two sizes. Prints one JSON object.
"""

import multiprocessing
import pathlib
import random
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import bench
import clean as pages_of
import clean_jobs

from plm_jax.cleaning import dry_run, job, job_rules, lists, ownership, records, settings, task_functions
from plm_jax.common import shuffle, tasks
from plm_jax.common.executors.in_process import InProcessExecutor

_PARTS = shuffle.Division(64)


def measured_job(megabytes: int) -> dict[str, Any]:
    """Runs a job. Returns bytes of its files relative to their records, and the ratios of real to planned figures."""
    complete: dict[str, list[tasks.Mark]] = {}
    run = tasks.run

    def noting(*arguments: Any) -> dict[str, list[tasks.Mark]]:
        complete.update(run(*arguments))
        return complete

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        clean_jobs.write_crawl(folder / "crawl", megabytes * 10**6)
        inputs, rule = [f"{folder}/crawl/*"], settings.resolve("en", clean_jobs.SETTINGS)
        plan = job.make_plan(inputs, rule, 2**21)
        tasks.run = noting
        job.clean(inputs, str(folder / "clean"), rule, InProcessExecutor(), False, 2**21)
        tasks.run = run
    sizes: dict[str, list[int]] = {}
    for mark in (mark for marks in complete.values() for mark in marks):
        for field in mark.result.keys() & dry_run.COMPRESSED.keys():
            spread = shuffle.read(mark, field)
            assert spread is not None
            total = sizes.setdefault(field, [0, 0])
            total[0] += mark.outputs[spread.output].size
            total[1] += sum(spread.sizes)
    planned = {row.stage: row for row in dry_run.estimate(plan).rows}
    written = {name: sum(output.size for mark in marks for output in mark.outputs) for name, marks in complete.items()}
    lost, units = sizes["lost"][1] / ownership.LOSS_BYTES, sizes["units"][1] / ownership.RECORD_BYTES
    lines = [len(line) for page in pages_of.generate(500) for line in page.text.split("\n")]
    return {
        "compressed": {field: round(size / max(total, 1), 3) for field, (size, total) in sizes.items()},
        "lost": round(lost / units, 3),
        "line_bytes": round(sum(lines) / len(lines)),
        "written_to_planned": {name: round(written[name] / row.written, 3) for name, row in planned.items()},
        "tasks": {name: [len(complete[name]), row.tasks] for name, row in planned.items()},
    }


def _records(function: str) -> Iterator[bytes]:
    """Iterates over records that a function reads, without end."""
    rng, pages = random.Random(1), pages_of.generate(200)
    number = 0
    while True:
        page = pages[number % len(pages)]._replace(url=f"https://site.org/{number}")
        if function == "find_owners":
            yield b"".join(ownership.record(rng.randbytes(16), page.key, 0) for _ in range(50))
        elif function == "keep":
            yield b"".join(rng.randbytes(16) + page.key for _ in range(50))
        elif function in ("urls", "split"):
            yield rng.randbytes(16 if function == "urls" else ownership.RECORD_BYTES)
        elif function == "write":
            yield records.encode_row(records.Row("train-00000.jsonl.gz", page.key, page.text.encode()))
        else:
            yield records.encode(page)
        number += 1


def _peak(function: str, size: int, sender: Any) -> None:
    """Sends the peak memory of this process after a task with `size` bytes of records."""
    with tempfile.TemporaryDirectory() as folder:
        rule = settings.resolve("webtextlike", ["badwords=None", "language=None", "pages.path=x"])
        job_rules.write(folder, rule, lists.Lists({}, [], {}, {}))
        space = tasks.Workspace(tasks.Job(folder, "a", "1"), "stage", "0")
        num_parts = 1024 if function == "split" else 1
        division = shuffle.Division(num_parts, num_parts)
        writer, total = division.writer(), 0
        for number, record in enumerate(_records(function)):
            writer.add(number % num_parts, record)
            total += len(record)
            if total >= size:
                break
        spread = shuffle.write(space, "records", writer, division)
        slices = shuffle.collect([tasks.Mark("0", "", tuple(space.outputs), {"records": list(spread)})], "records")[0][
            0
        ]
        step, sink = task_functions.Pass((), None), task_functions.Sink(_PARTS, 1)
        calls: dict[str, Callable[[], Any]] = {
            "newest": lambda: task_functions.newest(space, slices, [], step, sink),
            "urls": lambda: task_functions.newest(space, [], slices, step, sink),
            "find_owners": lambda: task_functions.find_owners(space, slices, _PARTS),
            "keep": lambda: task_functions.keep(space, [], slices, "duplicates", step, sink),
            "write": lambda: task_functions.write(space, [slices]),
            "split": lambda: shuffle.split(space, "units", slices, shuffle.Division(num_parts), 0, num_parts),
        }
        calls[function]()
        status = pathlib.Path("/proc/self/status").read_text().splitlines()
        sender.send(next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:")))


def peak(function: str, size: int) -> int:
    """Returns the peak memory of a process of its own that runs a task."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_peak, args=(function, size, sender))
    process.start()
    result = receiver.recv()
    process.join()
    return result


def run(megabytes: int = 20, sizes: tuple[int, ...] = (8, 32)) -> dict[str, Any]:
    """Measures all constants.

    Args:
      megabytes: bytes of text of the job.
      sizes: two sizes of the records of a task, in megabytes.
    """
    small, large = (size * 10**6 for size in sizes)
    record_memory = {}
    for function in dry_run.RECORD_MEMORY:
        peaks = peak(function, small), peak(function, large)
        record_memory[function] = round((peaks[1] - peaks[0]) / (large - small), 3)
        bench.log(f"{function}: peaks {peaks}, {record_memory[function]} bytes per byte")
    return {"record_memory": record_memory, **measured_job(megabytes)}


if __name__ == "__main__":
    bench.main(run)
