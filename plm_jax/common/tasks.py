"""Jobs of tasks over files, for worker processes on one machine or on a cluster.

A job is a sequence of stages, and a stage is a set of independent tasks. The driver, which runs the stages, and all
workers share a folder on a disk or in a bucket:

    FOLDER/job.json             identity of the job and version of its code; tasks do not run once it is removed
    FOLDER/STAGE/NAME           outputs of the tasks of a stage
    FOLDER/marks/STAGE/TASK     written when a task is complete: the task's identity, outputs and result
    FOLDER/failed/STAGE/TASK    message of a task that failed
    FOLDER/stages/STAGE         the marks of a complete stage

A task may run twice: two runs may overlap, and a late run may come after the job has moved on. Outputs are therefore
written atomically, with the same bytes each time, and the mark is written last. A task finds its inputs by the paths in
earlier marks, never by listing outputs or by clocks. Task functions must not depend on the iteration order of a set of
strings, which differs between processes.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple, Protocol, Self

import tqdm

from plm_jax.common import extras, package, storage
from plm_jax.common.errors import UserError, describe

# Seconds before each further attempt of a task that failed.
_RETRIES = (0.0, 0.5, 2.0)
_MOST_REPORTED = 10


class Output(NamedTuple):
    """Output of a task.

    Attributes:
      path: path relative to the job's folder.
      size: number of bytes.
      sha256: SHA-256 of the content.
    """

    path: str
    size: int
    sha256: str


class Mark(NamedTuple):
    """Record of a complete task.

    Attributes:
      task: name of the task.
      identity: SHA-256 of the job, the task and its inputs.
      outputs: files that the task wrote.
      result: value that the task returned, after conversion to JSON and back.
    """

    task: str
    identity: str
    outputs: tuple[Output, ...]
    result: Any


class Failure(NamedTuple):
    """Task that failed, with a message of one line."""

    task: str
    message: str


class Workspace:
    """Access of one task to the folder of its job. Records the hash of every output that the task writes.

    Attributes:
      task: name of the task.
      identity: identity of the job.
      outputs: outputs that the task has completed.
    """

    def __init__(self, job: "Job", stage: str, task: str):
        self._job, self._stage = job, stage
        self.task, self.identity = task, job.identity
        self.outputs: list[Output] = []

    @property
    def folder(self) -> str:
        """Path of the job's folder."""
        return self._job.folder

    def path(self, relative: str) -> str:
        """Returns the path of an output from its path relative to the job's folder."""
        return os.path.join(self._job.folder, relative)

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """Opens an output for writing; it appears when the context ends without an error."""
        relative = f"{self._stage}/{name}"
        digest = _Hashed()
        with storage.writing(self.path(relative)) as file:
            digest.file = file
            yield digest  # pyright: ignore[reportReturnType]
        self.outputs.append(Output(relative, digest.size, digest.sha256.hexdigest()))


class _Hashed:
    """File that computes the hash of all bytes written to it."""

    file: BinaryIO

    def __init__(self):
        self.size, self.sha256 = 0, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.size += len(data)
        self.sha256.update(data)
        return self.file.write(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self.file.flush()


@dataclasses.dataclass(frozen=True)
class Task:
    """Call of a function that reads files and writes files.

    Attributes:
      name: name, unique in its stage.
      function: module-level function, called with the workspace and the arguments. The function's outputs and its
        result, which is a JSON value, must depend only on the arguments and on the contents of files.
      arguments: further arguments of the function. They must be picklable, and their `ascii` representation must be the
        same in every process.
      inputs: outputs of earlier tasks that this task reads.
      subject: name shown in error messages, such as the path of a file. If it is empty, messages show the name of the
        task. If it is None, messages show no name, because the function's own messages name the file.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    inputs: tuple[Output, ...] = ()
    subject: str | None = ""


Marks = Mapping[str, Sequence[Mark]]


@dataclasses.dataclass(frozen=True)
class Stage:
    """Tasks that may run once all earlier stages are complete.

    Attributes:
      name: name, used for folders and in messages.
      tasks: function from the marks of all earlier stages to the tasks.
      removes: folders of outputs, such as `read` or `read/pages`, that no later stage reads. Each output is removed as
        soon as every task that reads it is complete, and the folders are removed after the stage. A stage without tasks
        removes nothing.
    """

    name: str
    tasks: Callable[[Marks], Sequence[Task]]
    removes: tuple[str, ...] = ()


class TaskInputs:
    """Inputs of a stage's tasks. For each input, counts the tasks that read the input and are not complete."""

    def __init__(self, stage: Stage, tasks: Sequence[Task]):
        self._num_readers = Counter(output.path for task in tasks for output in task.inputs)
        self._removable = tuple(f"{name}/" for name in stage.removes)

    def unread_after(self, task: Task) -> Iterator[Output]:
        """Counts a task as complete, and yields its inputs that can be removed.

        An input can be removed if the stage removes its folder and all tasks that read it are complete.
        """
        for output in task.inputs:
            self._num_readers[output.path] -= 1
            if not self._num_readers[output.path] and output.path.startswith(self._removable):
                yield output


@dataclasses.dataclass(frozen=True)
class Job:
    """Job in a folder.

    Attributes:
      folder: folder that the driver and all workers share. A job with another identity or version needs another folder,
        so that late tasks of an earlier job cannot write into the folder of a later job.
      identity: text that identifies everything on which the outputs depend, except the code.
      version: version of the driver's code; every worker must have the same version.
    """

    folder: str
    identity: str
    version: str = dataclasses.field(default_factory=lambda: package.version())


class Executor(Protocol):
    """Interface of engines that run tasks. An executor is a context manager, and runs tasks only within the context."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: Any) -> None: ...

    def map(self, job: Job, stage: str, tasks: Sequence[Task]) -> Iterator[Mark | Failure]:
        """Calls `run_task` for each task on a worker. Yields the results in any order, as soon as they are known.

        Raises:
          UserError: the engine cannot run the tasks.
        """
        ...


def run(job: Job, stages: Sequence[Stage], executor: Executor, show_progress: bool = True) -> dict[str, list[Mark]]:
    """Runs all stages, skipping stages and tasks that are complete. Returns the marks of every stage.

    Runs all stages again if an output of the last stage is missing. A repeated call after an error resumes the job.

    Raises:
      UserError: tasks failed or were lost, or the engine cannot run them.
      ValueError: the folder belongs to a job with another identity or version.
    """
    _begin(job)
    marks: dict[str, list[Mark]] = {}
    last = _read_stage(job, stages[-1])
    if last is not None and not all(_exist(job, mark) for mark in last):
        storage.remove(os.path.join(job.folder, "stages"))
        storage.remove(os.path.join(job.folder, "marks"))
    for stage in stages:
        complete = _read_stage(job, stage)
        if complete is None:
            complete = _run_stage(job, stage, marks, executor, show_progress)
            storage.write(_stage_path(job, stage.name), _encoded([list(mark) for mark in complete]))
        for name in stage.removes if complete else ():
            storage.remove(os.path.join(job.folder, name))
        marks[stage.name] = complete
    return marks


def _begin(job: Job) -> None:
    path = os.path.join(job.folder, "job.json")
    present = _read_json(path)
    if present is None:
        storage.write(path, _encoded(_content(job)))
    elif present != _content(job):
        raise ValueError(f"{job.folder} belongs to another job")


def _content(job: Job) -> dict[str, str]:
    """Returns the contents of `job.json`."""
    return {"identity": job.identity, "version": job.version}


def _read_json(path: str) -> Any:
    """Returns the contents of a JSON file; None if the file is missing or damaged.

    Raises:
      UserError: the store cannot be reached.
    """
    if not storage.exists(path):
        return None
    try:
        return json.loads(storage.read(path))
    except (FileNotFoundError, ValueError):
        return None


def _run_stage(job: Job, stage: Stage, marks: Marks, executor: Executor, show_progress: bool) -> list[Mark]:
    tasks = {task.name: task for task in stage.tasks(marks)}
    if not tasks:
        return []
    complete = {mark.task: mark for mark in _complete(job, stage.name, tasks)}
    inputs, failures = TaskInputs(stage, list(tasks.values())), []

    def count(mark: Mark) -> None:
        for output in inputs.unread_after(tasks[mark.task]):
            storage.remove(os.path.join(job.folder, output.path))

    for mark in complete.values():
        count(mark)
    pending = [task for name, task in tasks.items() if name not in complete]
    storage.remove(os.path.join(job.folder, "failed", stage.name))
    with tqdm.tqdm(
        None, stage.name, len(tasks), initial=len(complete), unit=" tasks", disable=not show_progress
    ) as bar:
        for outcome in executor.map(job, stage.name, pending) if pending else ():
            if isinstance(outcome, Failure):
                failures.append(outcome)
            elif outcome.task not in complete:
                complete[outcome.task] = outcome
                count(outcome)
                bar.update()
    if failures:
        raise UserError(_describe(stage.name, tasks, failures))
    missing = [name for name in tasks if name not in complete]
    if missing:
        raise UserError(
            f"{stage.name}: the engine lost {len(missing):,} tasks, such as {missing[0]}: run the same command again"
        )
    return [complete[name] for name in tasks]


def _describe(stage: str, tasks: Mapping[str, Task], failures: Sequence[Failure]) -> str:
    """Returns one line about tasks that failed."""
    reasons: dict[str, list[str]] = {}
    for failure in failures:
        task = tasks[failure.task]
        subjects = reasons.setdefault(failure.message, [])
        if task.subject is not None:
            subjects.append(task.subject or f"task {failure.task}")
    lines = [
        message if all(subject in message for subject in subjects) else f"{', '.join(subjects[:3])}: {message}"
        for message, subjects in sorted(reasons.items())[:_MOST_REPORTED]
    ]
    if len(failures) == 1:
        return lines[0]
    return f"{len(failures):,} of {len(tasks):,} tasks of '{stage}' failed: {'; '.join(lines)}"


def _complete(job: Job, stage: str, tasks: Mapping[str, Task]) -> Iterator[Mark]:
    """Yields the valid mark of each task of a stage if all outputs in the mark exist."""
    for name in storage.names(os.path.join(job.folder, "marks", stage)):
        if name in tasks:
            mark = _valid_mark(job, stage, tasks[name])
            if mark is not None and _exist(job, mark):
                yield mark


def _valid_mark(job: Job, stage: str, task: Task) -> Mark | None:
    """Returns the mark of a task, or None if there is no mark for the same job, arguments and inputs."""
    mark = _mark(_read_json(_mark_path(job, stage, task.name)))
    return mark if mark is not None and mark.identity == _identity(job, stage, task) else None


def _exist(job: Job, mark: Mark) -> bool:
    for output in mark.outputs:
        try:
            if storage.size(os.path.join(job.folder, output.path)) != output.size:
                return False
        except (OSError, UserError):
            return False
    return True


def _identity(job: Job, stage: str, task: Task) -> str:
    function = f"{task.function.__module__}.{task.function.__qualname__}"
    inputs = [[output.path, output.sha256] for output in task.inputs]
    content = [job.identity, job.version, stage, task.name, function, ascii(task.arguments), inputs]
    return hashlib.sha256(_encoded(content)).hexdigest()


def run_task(job: Job, stage: str, task: Task) -> Mark | Failure:
    """Runs a task in this process unless it is complete. Returns a `Failure` instead of raising an error of the task.

    Tries up to four times if the error may be transient.
    """
    message = ""
    if job.version != package.version():
        message = (
            f"a worker has plm_jax {package.version()} or other versions of its libraries, the driver {job.version}: "
            "install the same versions everywhere"
        )
    for seconds in (*_RETRIES, None):
        try:
            if message:
                raise UserError(message)
            return _run_task(job, stage, task)
        except Exception as error:  # Whatever happens in one task must not stop the others.
            reason = _message(job, error)
            if seconds is None or not _is_transient(error):
                break
            time.sleep(seconds)
    with contextlib.suppress(OSError, UserError):
        # A late copy of a complete task finds its inputs removed. That is no failure.
        if not message and (mark := _valid_mark(job, stage, task)):
            return mark
        if _read_json(os.path.join(job.folder, "job.json")) == _content(job):
            path = os.path.join(job.folder, "failed", stage, task.name)
            storage.write(path, reason.encode("utf-8", "backslashreplace"))
    return Failure(task.name, reason)


def follow(
    job: Job,
    stage: str,
    tasks: Sequence[Task],
    is_running: Callable[[], bool],
    reason: Callable[[], str] = str,
    seconds: float = 2.0,
) -> Iterator[Mark | Failure]:
    """Yields the results of tasks as their marks appear, for engines that return nothing.

    Args:
      is_running: function that returns whether the engine is still running. Once the engine has ended, tasks without
        marks fail.
      reason: function that returns an error message of the engine, or an empty string.
      seconds: interval between checks of the folder.
    """
    waiting = {task.name: task for task in tasks}
    is_last = False
    while waiting and not is_last:
        is_last = not is_running()
        names = waiting if is_last else storage.names(os.path.join(job.folder, "marks", stage))
        for name in [name for name in names if name in waiting]:
            mark = _valid_mark(job, stage, waiting[name])
            if mark is not None and _exist(job, mark):
                del waiting[name]
                yield mark
        if not is_last:
            time.sleep(seconds)
    for name in waiting:
        path = os.path.join(job.folder, "failed", stage, name)
        if storage.exists(path):
            yield Failure(name, storage.read(path).decode("utf-8"))
        else:
            message = reason() or "a worker ended before the task was complete: see the log of the engine"
            yield Failure(name, message)


def _is_transient(error: Exception) -> bool:
    """Whether another attempt may succeed. A `UserError` without a cause is final."""
    return not isinstance(error, UserError) or error.__cause__ is not None


def _message(job: Job, error: Exception) -> str:
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (missing := extras.missing(error)):
        return str(missing)
    if isinstance(error, FileNotFoundError) and str(error.filename).startswith(job.folder):
        return f"{error.filename} was removed: remove {job.folder} and run the same command again"
    if isinstance(error, OSError):
        return describe(error)
    return f"{type(error).__name__}: {describe(error)}"


def _run_task(job: Job, stage: str, task: Task) -> Mark:
    mark = _valid_mark(job, stage, task)
    # The outputs of a complete stage may have been removed.
    if mark is not None and (_exist(job, mark) or storage.exists(_stage_path(job, stage))):
        return mark
    present = _read_json(os.path.join(job.folder, "job.json"))
    if present is None:
        raise UserError(f"there is no job in {job.folder}: set the output to a folder that the workers share")
    if present != _content(job):
        raise UserError(f"another job is in {job.folder}: this task is late, and its job has ended")
    workspace = Workspace(job, stage, task.name)
    result = task.function(workspace, *task.arguments)
    data = _encoded(Mark(task.name, _identity(job, stage, task), tuple(workspace.outputs), result))
    storage.write(_mark_path(job, stage, task.name), data)
    mark = _mark(json.loads(data))
    assert mark is not None
    return mark


def _mark_path(job: Job, stage: str, task: str) -> str:
    return os.path.join(job.folder, "marks", stage, task)


def _stage_path(job: Job, stage: str) -> str:
    return os.path.join(job.folder, "stages", stage)


def _read_stage(job: Job, stage: Stage) -> list[Mark] | None:
    rows = _read_json(_stage_path(job, stage.name))
    marks = [_mark(row) for row in rows] if isinstance(rows, list) else [None]
    return None if None in marks else marks  # pyright: ignore[reportReturnType]


def _mark(row: Any) -> Mark | None:
    try:
        task, identity, outputs, result = row
        return Mark(task, identity, tuple(Output(*output) for output in outputs), result)
    except (TypeError, ValueError):
        return None


def _encoded(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogatepass")


def groups(items: Iterable[tuple[Any, int]], size: int) -> list[list[Any]]:
    """Divides items into groups of consecutive items whose sizes add up to at most `size`.

    An item that is larger than `size` forms a group of its own.

    Args:
      items: pairs (item, size).
    """
    result: list[list[Any]] = []
    total = 0
    for item, item_size in items:
        if not result or total + item_size > size:
            result.append([])
            total = 0
        result[-1].append(item)
        total += item_size
    return result
