"""What a run says while it runs: metrics.jsonl, TensorBoard events, a progress bar.

Objects in a bucket cannot be appended to. So the files of a remote run directory grow on this machine's disk and are
uploaded whole, before every checkpoint and about every minute; a million steps are some 30 MB.
"""

import contextlib
import functools
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

from tqdm import tqdm

from plm_jax.common import progress, storage
from plm_jax.common.errors import UserError

_UPLOAD_SECONDS = 60


class Telemetry:
    """Writes metrics.jsonl and TensorBoard files of a run; a context manager, for the first process alone."""

    def __init__(self, workdir: str, first_step: int, steps: int):
        """Opens the files; lines after `first_step`, left by a run that was cut off, are dropped."""
        self._exit = contextlib.ExitStack()
        self._workdir = self._folder = workdir
        if storage.is_remote(workdir):
            self._folder = self._exit.enter_context(tempfile.TemporaryDirectory())
        path = os.path.join(self._folder, "metrics.jsonl")
        lines = [line for line in read_lines(os.path.join(workdir, "metrics.jsonl")) if line["step"] <= first_step]
        storage.write(path, "".join(json.dumps(line) + "\n" for line in lines).encode("utf-8"))
        self._file = self._exit.enter_context(open(path, "a", encoding="utf-8"))  # noqa: SIM115
        self._events = _event_writer(self._folder, purge_step=first_step + 1 if first_step else None)
        self.sync()
        terminal = sys.stderr.isatty()
        self._doing: tuple[str, float] | None = None
        self._bar = _Bar(
            total=steps,
            initial=first_step,
            desc="pretrain",
            unit="step",
            mininterval=0.2 if terminal else 10,
            dynamic_ncols=True,
            file=None if terminal else _Lines(),
        )
        self._exit.enter_context(progress.beating(functools.partial(self._tick, terminal), 1.0, lambda seconds: 1.0))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with self._exit:
            self._events.close()
            self.sync()
            self._bar.close()

    def progress(self, step: int, loss: float, tokens_per_second: float | None) -> None:
        """Moves the bar; the first step of a stage has no rate yet."""
        rate = "" if tokens_per_second is None else f", {tokens_per_second:,.0f} tokens/s"
        self._bar.set_postfix_str(f"loss {loss:.4f}{rate}", refresh=False)
        self._bar.update(step - self._bar.n)

    @contextlib.contextmanager
    def doing(self, what: str, tells: bool = False) -> Iterator[None]:
        """While it lasts the bar says what holds it up, and for how long; `tells`: at the end a line does."""
        before, began = self._bar.postfix, time.monotonic()
        self._doing = what, began
        self._bar.set_postfix_str(what)
        try:
            yield
        finally:
            self._doing = None
            self._bar.set_postfix_str(before or "", refresh=False)
        if tells:
            self.say(f"{what}: {time.monotonic() - began:.1f} s")

    def _tick(self, terminal: bool, seconds: float) -> None:
        """Draws the bar again where it has stood still for long."""
        now = time.monotonic()
        if now - self._bar.drawn < progress.pause(seconds, terminal) - 0.5:
            return
        if doing := self._doing:
            self._bar.set_postfix_str(f"{doing[0]}, {now - doing[1]:.0f} s", refresh=False)
        self._bar.refresh()

    def write(self, line: dict) -> None:
        """Adds one line to metrics.jsonl; numbers also go to TensorBoard."""
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        for name, value in line.items():
            if isinstance(value, float):
                self._events.add_scalar(name, value, line["step"])
        if self._folder != self._workdir and time.monotonic() - self._synced > _UPLOAD_SECONDS:
            self.sync()

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        self._bar.write(line, file=sys.stderr)

    def sync(self) -> None:
        """Returns once all lines are on disk, or in the bucket."""
        storage.sync(self._file)
        if self._folder != self._workdir:
            self._events.flush()
            storage.upload(self._folder, storage.names(self._folder), self._workdir)
        self._synced = time.monotonic()


class _Bar(tqdm):
    """A bar that knows when it was last drawn."""

    drawn = 0.0

    def display(self, *args, **kwargs):
        self.drawn = time.monotonic()
        return super().display(*args, **kwargs)


class _Lines:
    """A log, which takes what tqdm draws as lines."""

    def write(self, text: str) -> None:
        if text := text.strip():
            sys.stderr.write(text + "\n")

    def flush(self) -> None:
        sys.stderr.flush()


@contextlib.contextmanager
def heard(say: Callable[[str], None]):
    """While it lasts, what the package logs is said, each line once: a step may be traced more than once."""
    lines: set[str] = set()

    class Handler(logging.Handler):
        def emit(self, record):
            line = record.getMessage()
            if line not in lines:
                lines.add(line)
                say(line)

    logger, handler = logging.getLogger("plm_jax"), Handler()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    # Some libraries give the root logger a handler, which would say it again.
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def _event_writer(*args, **kwargs):
    """A tensorboardX SummaryWriter; left alone, its import takes seconds to import torch where that is installed."""
    hidden = sys.modules.setdefault("torch", None) is None
    from tensorboardX import SummaryWriter

    if hidden:
        del sys.modules["torch"]
    return SummaryWriter(*args, **kwargs)


def read_lines(path: str) -> list[dict]:
    """The objects of a .jsonl file, one a line; a last line that was cut off is left out.

    Raises:
      UserError: another line is damaged.
    """
    if not storage.exists(path):
        return []
    found = []
    for number, line in enumerate(storage.read(path).splitlines(keepends=True), 1):
        if line.endswith(b"\n"):
            try:
                found.append(json.loads(line))
            except ValueError as error:
                raise UserError(f"{path}:{number} is damaged ({error}): remove the line") from error
    return found
