"""Division of the records of many tasks among many later tasks, with a bounded number of requests to the store.

Each task of a stage divides its records into parts for the tasks of a later stage, and writes one file with a slice for
each part. The number of slices is the number of tasks times the number of parts. If it exceeds `MOST_REQUESTS`, the
tasks store several consecutive parts as one stored part, and a stage in between divides the stored parts again. Each
task of the stage in between reads one stored part from the outputs of a group of tasks, and writes a file with a slice
for each part.

With `N` tasks, `C` stored parts, `G` groups and `P` parts, there are `N C` slices before the stage in between and `P G`
slices after it. Neither number may exceed `MOST_REQUESTS`. The stage in between therefore has `C G` tasks, at most
`MOST_REQUESTS`^2 / (`N P`). If this limit is small, each task would read too much. In this case, the stage divides each
stored part into stored parts that contain fewer parts, and a second stage in between divides the new stored parts. The
records of each part are the same as with one stage in between.
"""

import collections
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from plm_jax.common import parts, tasks

MOST_REQUESTS = 2**20
# Records in memory of a task that divides stored parts again.
BUFFER_BYTES = 2**25
# At most about `MOST_REQUESTS / _MOST_WIDTH` tasks could divide stored parts of at least `_MOST_WIDTH` parts at once.
# These are first divided into stored parts of `1 / _FRACTION` of their parts.
_MOST_WIDTH, _FRACTION = 2**10, 2**6
# The outputs of a stage are divided again in groups: a few, so that the disk does not hold everything twice, or as many
# as are necessary for tasks that read about `_TASK_BYTES`.
_LEAST_GROUPS, _TASK_BYTES = 4, 2**30


class Division(NamedTuple):
    """Division of the outputs of a stage.

    Attributes:
      num_parts: number of parts.
      width: number of consecutive parts that are stored as one; 1 if the outputs are not divided again.
    """

    num_parts: int
    width: int = 1

    def writer(self) -> parts.PartsWriter:
        """Returns a writer for the output of a task."""
        return parts.PartsWriter(self.num_parts, self.width)


def divide(num_tasks: int, num_parts: int) -> Division:
    """Returns the division of the outputs of `num_tasks` tasks into `num_parts` parts.

    Both numbers must be at most `MOST_REQUESTS`.
    """
    if num_tasks * num_parts <= MOST_REQUESTS:
        return Division(num_parts)
    width = -(-num_parts // max(1, MOST_REQUESTS // num_tasks))
    return Division(num_parts, width if width < _MOST_WIDTH else -(-width // _FRACTION) * _FRACTION)


class Spread(NamedTuple):
    """Description of an output that is divided into parts. A task returns the description in a field of its result.

    Attributes:
      output: index among the outputs of the task.
      division: division of the stage's outputs.
      first: number of the first stored part.
      offsets: offset of each stored part, followed by the size of the file.
      sizes: number of bytes of each stored part before compression.
    """

    output: int
    division: Division
    first: int
    offsets: Sequence[int]
    sizes: Sequence[int]


def write(
    workspace: tasks.Workspace, name: str, writer: parts.PartsWriter, division: Division, first: int = 0
) -> Spread:
    """Writes an output of a task. Returns the output's description, which the task's result must include."""
    with workspace.writing(name) as file:
        offsets = writer.write(file)
    return Spread(len(workspace.outputs) - 1, division, first, offsets, list(writer.sizes))


def read(mark: tasks.Mark, field: str) -> Spread | None:
    """Returns the description of an output in a field of a task's result; None if the result lacks the field."""
    if (value := mark.result.get(field)) is None:
        return None
    output, division, *rest = value
    return Spread(output, Division(*division), *rest)


class Part(NamedTuple):
    """Slices of a part, and the outputs that contain the slices.

    Attributes:
      slices: slices in the order of the tasks that wrote them.
      outputs: for each slice, in the same order, the output that contains it.
    """

    slices: tuple[parts.Slice, ...] = ()
    outputs: tuple[tasks.Output, ...] = ()


def collect(marks: Iterable[tasks.Mark], field: str) -> dict[int, Part]:
    """Returns the stored parts by number, without empty ones.

    Args:
      marks: marks of the tasks that wrote the outputs.
      field: field of the results that describes the outputs.
    """
    slices: dict[int, list[parts.Slice]] = collections.defaultdict(list)
    outputs: dict[int, list[tasks.Output]] = collections.defaultdict(list)
    for mark in marks:
        if (spread := read(mark, field)) is None:
            continue
        output = mark.outputs[spread.output]
        ranges = zip(spread.sizes, itertools.pairwise(spread.offsets), strict=True)
        for number, (size, (start, stop)) in enumerate(ranges, spread.first):
            if size:
                slices[number].append(parts.Slice(output.path, start, stop, size))
                outputs[number].append(output)
    return {number: Part(tuple(slices[number]), tuple(outputs[number])) for number in sorted(slices)}


def num_parts(marks: Iterable[tasks.Mark], field: str) -> int:
    """Returns the number of parts of the outputs that a field of the results describes; 0 without outputs."""
    spreads = (read(mark, field) for mark in marks)
    return next((spread.division.num_parts for spread in spreads if spread is not None), 0)


def size(marks: Iterable[tasks.Mark], field: str) -> int:
    """Returns the size before compression, in bytes, of the outputs that a field of the results describes."""
    return sum(sum(spread.sizes) for mark in marks if (spread := read(mark, field)) is not None)


def latest(marks: tasks.Marks, source: str, field: str) -> Sequence[tasks.Mark]:
    """Returns the marks of the tasks that wrote the outputs for the next stage.

    These tasks belong to the last stage that divided the outputs of the stage `source` again, or to `source` itself.

    Args:
      field: field of the results that describes the outputs.
    """
    for stage in reversed(_names(source)):
        if again := [mark for mark in marks.get(stage, ()) if field in mark.result]:
            return again
    return marks[source]


def splitting(source: str, fields: Sequence[str]) -> list[tasks.Stage]:
    """Returns the stages that divide outputs of the stage `source` again.

    The stages have no tasks if the outputs need not be divided again.

    Args:
      fields: fields of the results that describe outputs. The outputs of a field are in a folder named after the field.
    """

    def stage(before: str, name: str) -> tasks.Stage:
        return tasks.Stage(
            name,
            lambda marks: [task for field in fields for task in _tasks(marks[before], field)],
            tuple(f"{before}/{field}" for field in fields),
        )

    return [stage(*names) for names in itertools.pairwise(_names(source))]


def folders(source: str, fields: Sequence[str]) -> tuple[str, ...]:
    """Returns the output folders of the stage `source` and of the stages that `splitting` returns."""
    return tuple(f"{stage}/{field}" for stage in _names(source) for field in fields)


def _names(source: str) -> tuple[str, ...]:
    """Returns the names of a stage and of the stages that divide its outputs again."""
    return source, f"{source}-split", f"{source}-split-2"


def _tasks(sources: Sequence[tasks.Mark], field: str) -> list[tasks.Task]:
    writers = [mark for mark in sources if field in mark.result]
    spread = read(writers[0], field) if writers else None
    if spread is None or spread.division.width == 1:
        return []
    division = spread.division
    target = Division(division.num_parts, division.width // _FRACTION if division.width >= _MOST_WIDTH else 1)
    num_groups = max(_LEAST_GROUPS, size(writers, field) // (_TASK_BYTES * len(spread.sizes)))
    num_groups = min(len(writers), num_groups, max(1, MOST_REQUESTS // -(-target.num_parts // target.width)))
    result = []
    # All tasks of a group before those of the next, so that the outputs they read can be removed.
    for group in range(num_groups):
        members = writers[group * len(writers) // num_groups : (group + 1) * len(writers) // num_groups]
        for number, (slices, outputs) in collect(members, field).items():
            name, first = f"{field}-{group:06d}-{number:06d}", number * division.width
            count = min(division.width, division.num_parts - first)
            result.append(tasks.Task(name, split, (field, slices, target, first, count), outputs))
    return result


def split(
    workspace: tasks.Workspace, field: str, slices: Sequence[parts.Slice], division: Division, first: int, count: int
) -> Mapping[str, Any]:
    """Divides one stored part, which consists of parts [first, first + count) and has slices in several outputs.

    Returns a dict from `field` to the description of the new output.
    """
    writer = parts.PartsWriter(count, division.width, first, BUFFER_BYTES)
    for each in slices:
        for number, records in parts.numbered_records(each._replace(path=workspace.path(each.path))):
            writer.add(number, records)
    return {field: write(workspace, f"{field}/{workspace.task}", writer, division, first // division.width)}
