"""Stages of cleaning: tasks that read and write files, with the same output for any number and kind of workers.

    read      pages of the crawl that pass the rules for length and site, divided by a hash of the URL
    newest    the newest page of each URL, then the rules up to the first step that compares pages
    duplicates-owners, near_duplicates-owners
              for each page, the units of text (lines, spans of sentences, MinHash bands) that other pages own
    duplicates, near_duplicates
              pages without the units that other pages own, then the next rules
    write     lines of each output file, sorted

The stages of a comparison run only if the settings contain this comparison. Each stage except the last divides its
outputs into parts for the tasks of a later stage. If there are too many parts, stages with the suffixes `-split` and
`-split-2` follow, which divide the outputs further (`common/shuffle.py`).

The order of the steps follows `tensorflow_datasets/text/c4.py`: length, sites, newest copy, list of URLs, paragraphs,
lines, duplicates, language, bad words. Gopher's rules (repetition, quality) see the text before any line is removed.
FineWeb's rule sees the text after C4's rules for lines, as in FineWeb. Decontamination sees the final text.
Near-duplicates come last.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from plm_jax.cleaning import crawl, lists, records, settings, task_functions
from plm_jax.cleaning.pages import Tally
from plm_jax.cleaning.task_functions import Pass, Sink
from plm_jax.common import shuffle, tasks

# Limit of the tasks of the stage `read`.
_MOST_TASKS = 2**12
# Least numbers of stored parts and of groups if outputs are divided again. They limit the number of parts.
_LEAST_STORED = 16
# A small crawl is divided into this many tasks per stage, unless they would have less than `_LEAST_BYTES` of text.
_FEW_TASKS, _LEAST_BYTES = 64, 2**22
# Bytes of text per byte of a file, by the end of its name. Assumed; 1 for other files.
EXPANSION = {".gz": 4, ".parquet": 2}


@dataclasses.dataclass(frozen=True)
class Plan:
    """Crawl and settings of a job, and the size of its tasks.

    Attributes:
      files: files of the crawl by path.
      rule: settings; the number of shards is set.
      lists: lists that the settings name.
      part_bytes: largest number of bytes of text that a task should hold in memory. A task holds more if the text of
        the crawl is larger than 2^16 times `part_bytes`. A task of `read` reads at most twice `part_bytes`, 1/4,096 of
        the crawl if that is more, or a single larger file.
    """

    files: Mapping[str, crawl.CrawlFile]
    rule: settings.CleaningConfig
    lists: lists.Lists
    part_bytes: int

    def divide(self, size: int, num_tasks: int, num_files: int = 1) -> shuffle.Division:
        """Returns the division of a stage's outputs into parts of about `task_bytes` bytes.

        Args:
          size: number of bytes of all outputs.
          num_tasks: number of tasks of the stage.
          num_files: number of files; the number of parts is a multiple of this number.
        """
        num_parts = max(1, min(-(-size // self.task_bytes), shuffle.MOST_REQUESTS // _LEAST_STORED))
        return shuffle.divide(num_tasks, -(-num_parts // num_files) * num_files)

    @property
    def task_bytes(self) -> int:
        """Bytes of text of a task: `part_bytes`, or less for a small crawl. All workers then have tasks."""
        return min(self.part_bytes, max(self.text_bytes // _FEW_TASKS, _LEAST_BYTES))

    @property
    def text_bytes(self) -> int:
        """Approximate size of the crawl's text in bytes."""
        return sum(map(text_bytes, self.files.values()))


def text_bytes(file: crawl.CrawlFile) -> int:
    """Returns the approximate size of a file's text in bytes."""
    return file.size * next((factor for ending, factor in EXPANSION.items() if file.name.endswith(ending)), 1)


def passes(rule: settings.CleaningConfig) -> list[Pass]:
    """Returns the passes over pages that the settings need."""
    result, pending = [], []
    for segment, compared in (("before", "duplicates"), ("after", "near_duplicates")):
        pending.append(segment)
        if getattr(rule, compared) is not None:
            result.append(Pass(tuple(pending), compared))
            pending = []
    return [*result, Pass(tuple(pending), None)]


def build(plan: Plan) -> list[tasks.Stage]:
    """Returns the stages.

    The result of each task of the last stage has `files`, a dict from path to numbers of rows and characters.
    """
    first, *later = passes(plan.rule)
    read = ("pages", "urls")
    stages = [
        tasks.Stage("read", functools.partial(_read_tasks, plan)),
        *shuffle.splitting("read", read),
        tasks.Stage("newest", functools.partial(_newest_tasks, plan, first), shuffle.folders("read", read)),
    ]
    source, compared = "newest", first.compared
    for step in later:
        assert compared is not None
        owners = f"{compared}-owners"
        make = functools.partial(_keep_tasks, plan, source, owners, compared, step)
        stages += [
            *shuffle.splitting(source, ["units"]),
            tasks.Stage(owners, functools.partial(_owner_tasks, source), shuffle.folders(source, ["units"])),
            *shuffle.splitting(owners, ["lost"]),
            tasks.Stage(compared, make, (source, *shuffle.folders(owners, ["lost"]))),
        ]
        source, compared = compared, step.compared
    stages += shuffle.splitting(source, ["rows"])
    folders = (*shuffle.folders(source, ["rows"]), "read")
    stages.append(tasks.Stage("write", functools.partial(_write_tasks, plan, source), folders))
    return stages


def tally(marks: tasks.Marks) -> Tally:
    """Returns the tally of all tasks."""
    total = Tally()
    for stage in marks.values():
        for mark in stage:
            total.merge(Tally.from_json(mark.result.get("tally", {})))
    return total


def _read_tasks(plan: Plan, marks: tasks.Marks) -> list[tasks.Task]:
    del marks
    total = sum(file.size for file in plan.files.values())
    sized = [((path, file.name), file.size) for path, file in plan.files.items()]
    groups = tasks.groups(sized, max(2 * plan.task_bytes, total // _MOST_TASKS))
    url_files = plan.lists.url_files
    division = plan.divide(plan.text_bytes, len(groups) + len(url_files))
    # Files of quarantined records are small; one task writes those of a part.
    num_bad = min(plan.rule.num_shards, max(1, shuffle.MOST_REQUESTS // max(len(groups), 1)))
    result = [
        tasks.Task(f"{number:06d}", task_functions.read, (tuple(group), division, num_bad), subject=group[0][0])
        for number, group in enumerate(groups)
    ]
    for number, path in enumerate(url_files):
        arguments = (path, plan.lists.files[path], division)
        result.append(tasks.Task(f"urls-{number:06d}", task_functions.read_urls, arguments, subject=path))
    return result


def _newest_tasks(plan: Plan, step: Pass, marks: tasks.Marks) -> list[tasks.Task]:
    written = {field: shuffle.latest(marks, "read", field) for field in ("pages", "urls")}
    by_part = {field: shuffle.collect(each, field) for field, each in written.items()}
    num_tasks = shuffle.num_parts(written["pages"], "pages")
    sink = _sink(plan, step, shuffle.size(written["pages"], "pages"), num_tasks)
    result = []
    for part in range(num_tasks):
        pages, urls = (by_part[field].get(part, shuffle.Part()) for field in ("pages", "urls"))
        arguments = (pages.slices, urls.slices, step, sink)
        result.append(tasks.Task(f"{part:06d}", task_functions.newest, arguments, pages.outputs + urls.outputs))
    return result


def _sink(plan: Plan, step: Pass, size: int, num_tasks: int) -> Sink:
    if step.compared is not None:  # Units of short lines are as large as their text.
        return Sink(plan.divide(size, num_tasks), 0)
    num_files = records.num_files(plan.rule)
    division = plan.divide(size, num_tasks, num_files)
    return Sink(division, division.num_parts // num_files)


def _owner_tasks(source: str, marks: tasks.Marks) -> list[tasks.Task]:
    written = shuffle.latest(marks, source, "units")
    num_tasks = shuffle.num_parts(written, "units")
    division = shuffle.divide(num_tasks, len(marks[source]))
    return [
        tasks.Task(f"{number:06d}", task_functions.find_owners, (part.slices, division), part.outputs)
        for number, part in shuffle.collect(written, "units").items()
    ]


def _keep_tasks(
    plan: Plan, source: str, owners: str, compared: str, step: Pass, marks: tasks.Marks
) -> list[tasks.Task]:
    sources = marks[source]
    sink = _sink(plan, step, shuffle.size(sources, "pages"), len(sources))
    lost = shuffle.collect(shuffle.latest(marks, owners, "lost"), "lost")
    result = []
    for number, mark in enumerate(sources):
        pages = shuffle.collect([mark], "pages").get(0, shuffle.Part())
        units = lost.get(number, shuffle.Part())
        arguments = (pages.slices, units.slices, compared, step, sink)
        result.append(tasks.Task(f"{number:06d}", task_functions.keep, arguments, pages.outputs + units.outputs))
    return result


def _write_tasks(plan: Plan, source: str, marks: tasks.Marks) -> list[tasks.Task]:
    written = shuffle.latest(marks, source, "rows")
    ranges = shuffle.num_parts(written, "rows") // records.num_files(plan.rule)
    rows = shuffle.collect(written, "rows")
    result = []
    for number in range(records.num_files(plan.rule)):
        numbers = range(number * ranges, (number + 1) * ranges)
        result.append(_write_task(f"{number:06d}", [rows.get(part, shuffle.Part()) for part in numbers]))
    for number, part in shuffle.collect(marks["read"], "bad").items():
        result.append(_write_task(f"quarantine-{number:06d}", [part]))
    return [task for task in result if task.inputs]


def _write_task(name: str, each: Sequence[shuffle.Part]) -> tasks.Task:
    inputs = {output.path: output for part in each for output in part.outputs}
    return tasks.Task(name, task_functions.write, (tuple(part.slices for part in each),), tuple(inputs.values()))
