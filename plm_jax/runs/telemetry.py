"""Telemetry of a run: metrics.jsonl, TensorBoard events and a progress bar.

Objects in a bucket cannot be appended to. The files of a remote run directory therefore grow on this machine's disk and
are uploaded whole, before every checkpoint and about every minute.
"""

import contextlib
import errno
import functools
import importlib
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

from tqdm import tqdm

from plm_jax.common import progress, storage
from plm_jax.common.errors import UserError, describe

_UPLOAD_SECONDS = 60


class Telemetry:
    """Writer of metrics.jsonl and of TensorBoard events, with the progress bar of a run.

    It is a context manager. Only the first process of a job uses it.
    """

    def __init__(self, workdir: str, first_step: int, steps: int, logged_every: int = 1):
        """Opens the files, and drops the rows after `first_step`, which the run wrote before it was interrupted.

        Dropped and missing rows are reported. If `first_step` is 0, metrics.jsonl is copied to metrics.jsonl.NUMBER
        before its rows are dropped.

        Args:
          first_step: number of finished steps.
          steps: number of steps of the run.
          logged_every: number of steps between two rows before the interruption. A larger gap before `first_step` is
            reported as missing rows.

        Raises:
          UserError: metrics.jsonl is damaged, or the store cannot be reached.
          OSError: the files cannot be written.
        """
        self._exit = contextlib.ExitStack()
        self._fails = False
        self._writers: list[Callable[[dict], None]] = []
        self._workdir = self._folder = workdir
        if storage.is_remote(workdir):
            self._folder = self._exit.enter_context(tempfile.TemporaryDirectory())
        path = os.path.join(self._folder, "metrics.jsonl")
        lines, notes = _read_rows(workdir, first_step, logged_every)
        storage.write(path, "".join(json.dumps(line) + "\n" for line in lines).encode("utf-8"))
        self._rows = _Rows(path)
        self._exit.callback(self._rows.close)
        self._events = Events(self._folder, purge_step=first_step + 1 if first_step else None)
        self.sync()
        terminal = sys.stderr.isatty()
        self._doing: tuple[str, float] | None = None
        self._bar = _Bar(
            total=steps,
            initial=first_step,
            desc="training",
            unit="step",
            mininterval=0.2 if terminal else 10,
            dynamic_ncols=True,
            file=None if terminal else _Lines(),
        )
        for note in notes:
            self.say(note)
        self._exit.enter_context(progress.beating(functools.partial(self._tick, terminal), 1.0, lambda seconds: 1.0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._exit:
            try:
                self.sync()
            finally:
                self._bar.close()

    def progress(self, step: int, loss: float, tokens_per_second: float | None) -> None:
        """Moves the bar to a step, and shows the loss and the rate.

        Args:
          tokens_per_second: None if there is no rate yet, as after the first step of a phase.
        """
        rate = "" if tokens_per_second is None else f", {tokens_per_second:,.0f} tokens/s"
        self._bar.set_postfix_str(f"loss {loss:.4f}{rate}", refresh=False)
        self._bar.advance(step)

    @contextlib.contextmanager
    def doing(self, activity: str, reports: bool = False) -> Iterator[None]:
        """Context manager that shows an activity and its duration in the bar.

        If `reports` is set, it prints a line at the end and leaves the duration out of the rate.
        """
        before, began = self._bar.postfix, time.monotonic()
        self._doing = activity, began
        self._bar.set_postfix_str(activity)
        try:
            yield
        finally:
            self._doing = None
            self._bar.set_postfix_str(before or "", refresh=False)
        if reports:
            self._bar.leave_out(time.monotonic() - began)
            self.say(f"{activity}: {time.monotonic() - began:.1f} s")

    def _tick(self, terminal: bool, seconds: float) -> None:
        """Draws the bar again if it has not been drawn for a while."""
        now = time.monotonic()
        if now - self._bar.drawn < progress.pause(seconds, terminal) - 0.5:
            return
        if doing := self._doing:
            self._bar.set_postfix_str(f"{doing[0]}, {now - doing[1]:.0f} s", refresh=False)
        self._bar.refresh()

    def add_writer(self, write: Callable[[dict], None], close: Callable[[], None]) -> None:
        """Registers a writer: every later row is also passed to `write`, and `close` is called at the end."""
        self._writers.append(write)
        self._exit.callback(close)

    def write(self, line: dict) -> None:
        """Adds a row to metrics.jsonl, and its floats to the events of TensorBoard.

        If the row cannot be written now, this is reported, and the row is written later.
        """
        numbers = {name: value for name, value in line.items() if isinstance(value, float)}
        try:
            try:
                self._rows.add(line)
            finally:
                self._events.add(line["step"], numbers)
            if self._folder != self._workdir and time.monotonic() - self._synced > _UPLOAD_SECONDS:
                self.sync()
            self._fails = False
        except (OSError, UserError) as error:
            if not self._fails:
                self.say(f"metrics cannot be written now ({describe(error)}): rows are kept and written later")
            self._fails = True
        for write in self._writers:
            write(line)

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        self._bar.write(line, file=sys.stderr)

    def sync(self) -> None:
        """Writes all rows and events to disk; for a remote run directory, also uploads the files.

        Raises:
          UserError: the store cannot be reached.
          OSError: the rows cannot be written.
        """
        self._rows.sync()
        self._events.flush()
        if self._folder != self._workdir:
            storage.upload(self._folder, storage.names(self._folder), self._workdir)
        self._synced = time.monotonic()


class _Rows:
    """Writer of a .jsonl file. A row that could not be written completely is written again at the next call."""

    def __init__(self, path: str):
        self._file = open(path, "r+b", buffering=0)  # noqa: SIM115
        self._end = self._file.seek(0, os.SEEK_END)
        self._waiting = b""

    def add(self, row: dict) -> None:
        self._waiting += json.dumps(row).encode("utf-8") + b"\n"
        self._write()

    def sync(self) -> None:
        self._write()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _write(self) -> None:
        if not self._waiting:
            return
        self._file.seek(self._end)
        try:
            if self._file.write(self._waiting) != len(self._waiting):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.name)
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)
            raise
        self._end, self._waiting = self._end + len(self._waiting), b""


class Events:
    """Writer of TensorBoard's event file.

    It writes in the thread of the caller, so that the caller gets the error of a failed write. tensorboardX's own
    writer uses a background thread, which would lose the error.
    """

    def __init__(self, folder: str, purge_step: int | None):
        modules: dict[str, Any] = sys.modules
        # The import of tensorboardX takes seconds if it imports torch.
        hides_torch = modules.setdefault("torch", None) is None
        from tensorboardX import event_file_writer, summary

        proto: Any = importlib.import_module("tensorboardX.proto.event_pb2")
        if hides_torch:
            del modules["torch"]
        self._event, self._scalar = proto.Event, summary.scalar
        self._writer = event_file_writer.EventsWriter(os.path.join(folder, "events"))
        if purge_step is not None:
            self._write(purge_step, session_log=proto.SessionLog(status=proto.SessionLog.START))

    def add(self, step: int, numbers: dict[str, float]) -> None:
        """Writes the numbers of a step."""
        for name, value in numbers.items():
            self._write(step, summary=self._scalar(name, value))

    def flush(self) -> None:
        """Writes buffered events to the file."""
        self._writer.flush()

    def _write(self, step: int, **content: Any) -> None:
        self._writer.write_event(self._event(wall_time=time.time(), step=step, **content))


class _Bar(tqdm):
    """A tqdm bar that records when it was last drawn.

    The rate and the remaining time are computed over all steps after the first step of this process, without the times
    that `leave_out` excludes.
    """

    drawn = 0.0
    _timed_steps, _timed_seconds, _left_out = 0, 0.0, 0.0
    _advanced: float | None = None

    def advance(self, step: int) -> None:
        """Moves the bar to a step that has just finished."""
        now = time.monotonic()
        if self._advanced is not None:
            self._timed_steps += step - self.n
            self._timed_seconds += now - self._advanced - self._left_out
        self._advanced, self._left_out = now, 0.0
        self.update(step - self.n)

    def leave_out(self, seconds: float) -> None:
        """Excludes `seconds` of the time since the last step from the rate."""
        self._left_out += seconds

    @property
    def format_dict(self) -> dict[str, Any]:
        """Values that tqdm draws; a rate of 0 means that it is unknown."""
        rate = self._timed_steps / self._timed_seconds if self._timed_seconds > 0 else 0
        return {**super().format_dict, "rate": rate}

    def display(self, *args, **kwargs):
        self.drawn = time.monotonic()
        return super().display(*args, **kwargs)


class _Lines:
    """A file that writes each drawing of tqdm to stderr as a line, for logs."""

    def write(self, text: str) -> None:
        if text := text.strip():
            sys.stderr.write(text + "\n")

    def flush(self) -> None:
        sys.stderr.flush()


@contextlib.contextmanager
def report_logs(report: Callable[[str], None]) -> Iterator[None]:
    """Context manager that passes log messages of the package, from level INFO on, to the function `report`.

    Each message is passed on only once, because a step may be traced more than once.
    """
    lines: set[str] = set()

    class Handler(logging.Handler):
        def emit(self, record):
            line = record.getMessage()
            if line not in lines:
                lines.add(line)
                report(line)

    logger, handler = logging.getLogger("plm_jax"), Handler()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    # Some libraries give the root logger a handler, which would report it again.
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def _read_rows(workdir: str, first_step: int, logged_every: int) -> tuple[list[dict], list[str]]:
    """Returns a pair: the rows of metrics.jsonl up to the step that a run resumes from, and lines to report.

    If `first_step` is 0 and there are rows, the file is first copied.

    Raises:
      UserError: the file is damaged or is not the log of a run.
    """
    path = os.path.join(workdir, "metrics.jsonl")
    if not storage.exists(path):
        return [], [f"{path} is gone: the rows of steps 1 to {first_step} are lost"] * bool(first_step)
    rows = read_lines(path)
    steps = [row["step"] for row in rows]
    if steps != sorted(steps):
        raise UserError(f"{path} is not the log of a run: its steps are not in ascending order; move it away")
    rows_before = [row for row in rows if row["step"] <= first_step]
    notes, dropped = [], len(rows) - len(rows_before)
    if dropped and not first_step:
        aside = next(name for n in range(1, 10**6) if not storage.exists(name := f"{path}.{n}"))
        storage.copy(path, aside)
        notes.append(f"there is no checkpoint to resume from: {dropped} rows up to step {steps[-1]} are now in {aside}")
    elif dropped:
        notes.append(f"dropped {dropped} rows of metrics.jsonl after step {first_step}, which are computed again")
    last = rows_before[-1]["step"] if rows_before else 0
    if first_step - last >= logged_every:
        notes.append(f"{path} was cut: the rows of steps {last + 1} to {first_step} are lost")
    return rows_before, notes


def read_lines(path: str) -> list[dict]:
    """Returns the rows of a run's log, each of which has a `step`.

    A last line without a line break is skipped. A missing log has no rows.

    Raises:
      UserError: a line that ends with a line break is damaged.
    """
    if not storage.exists(path):
        return []
    rows = []
    for number, line in enumerate(storage.read(path).splitlines(keepends=True), 1):
        if line.endswith(b"\n"):
            try:
                row = json.loads(line)
            except (RecursionError, ValueError) as error:
                raise UserError(f"{path}:{number} is damaged ({error}): remove the line") from error
            if not isinstance(row, dict) or type(row.get("step")) is not int or not 0 <= row["step"] < 2**53:
                raise UserError(
                    f"{path}:{number} is damaged (it is not an object with a step): remove it, or move the file away"
                )
            rows.append(row)
    return rows
