"""Pools of worker processes that apply a function to items.

Workers are fresh interpreters that import the function's module and not the main script. This process may therefore
have imported TensorFlow, run threads, or be a script without a main guard. When this process ends, for whatever reason,
each worker ends after its current item.
"""

import collections
import contextlib
import functools
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any

from plm_jax.common.errors import UserError

# Libraries must not start threads, because there is a process for each core.
_ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# Workers import the same modules as this process, regardless of their working directory.
_MAIN = "import sys; sys.path[:] = {path!r}; from plm_jax.common import workers; workers.main()"

# An item fails after this many processes died while working on it.
_MOST_DEATHS = 3


def cores() -> int:
    """Returns the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(make: Callable[..., Callable], arguments: Sequence[Any], items: Iterable[Any], number: int) -> Generator:
    """Applies the function that `make(*arguments)` returns to each item, and yields the results in order.

    The function runs in `number` processes. At most two items per process are in progress.

    Raises:
      UserError: the function raised a `UserError`, or a signal ended a process.
      RuntimeError: a process exited, for example because the function raised another error.
    """
    with contextlib.ExitStack() as stack:
        # Exits in reverse: when the processes end, so do the threads that wait for them.
        threads = stack.enter_context(futures.ThreadPoolExecutor(number))
        idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for _ in range(number):
            idle.put(stack.enter_context(Worker(make, arguments)))

        def apply(item: Any) -> Any:
            worker = idle.get()
            try:
                return worker(item)
            finally:
                idle.put(worker)

        in_progress: collections.deque[futures.Future] = collections.deque()
        for item in items:
            in_progress.append(threads.submit(apply, item))
            if len(in_progress) == 2 * number:
                yield in_progress.popleft().result()
        while in_progress:
            yield in_progress.popleft().result()


class Worker:
    """Process that applies a function to one item after another.

    Args:
      make: module-level function that returns the function to apply.
      arguments: arguments of `make`.
    """

    def __init__(self, make: Callable[..., Callable], arguments: Sequence[Any]):
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _MAIN.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | _ENVIRONMENT,
        )
        assert self._process.stdin and self._process.stdout
        self._input, self._output = self._process.stdin, self._process.stdout
        self._send((make, arguments))

    def _send(self, message: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # The read that follows reports how the process ended.
            pickle.dump(message, self._input, pickle.HIGHEST_PROTOCOL)
            self._input.flush()

    def __call__(self, item: Any) -> Any:
        """Returns the function's result for an item.

        Raises:
          UserError: the function raised a `UserError`, or a signal ended the process.
          RuntimeError: the process exited, for example because the function raised another error.
        """
        self._send(item)
        try:
            result, error = pickle.load(self._output)
        except (EOFError, pickle.UnpicklingError) as end:
            status = self._process.wait()
            if status < 0:
                name = signal.Signals(-status).name
                raise UserError(f"{name} ended a worker process: free memory, and run the same command again") from end
            raise RuntimeError(f"a worker process ended with status {status}: see its output above") from end
        if error is not None:
            raise error
        return result

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def stop(self) -> None:
        """Kills the process."""
        self._process.kill()
        self._process.wait()
        self._output.close()
        with contextlib.suppress(BrokenPipeError):
            self._input.close()


class Pool:
    """Processes that apply a function to items in any order. Processes that die are replaced.

    Args:
      make: module-level function that returns the function to apply.
      number: largest number of processes.
    """

    def __init__(self, make: Callable[[], Callable], number: int):
        self._make, self._number = make, number
        self._workers: list[Worker] = []
        self._is_over = threading.Event()

    def stop(self) -> None:
        """Kills all processes."""
        self._is_over.set()
        for worker in self._workers:
            worker.stop()

    def unordered(self, items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Yields each item with its result, or with the last error if three attempts failed.

        An attempt fails if the function raises a `UserError` or its process dies. The next attempt uses a new process.
        Processes are started as needed, and remain for the next call.
        """
        number = min(self._number, len(items))
        self._workers += [Worker(self._make, ()) for _ in range(number - len(self._workers))]
        waiting: queue.SimpleQueue[tuple[Any] | None] = queue.SimpleQueue()
        for entry in [*((item,) for item in items), *[None] * number]:
            waiting.put(entry)
        results: queue.SimpleQueue[tuple[Any, Any] | BaseException] = queue.SimpleQueue()

        def work(slot: int) -> None:
            try:
                while (entry := waiting.get()) is not None:
                    results.put((*entry, self._attempt(slot, *entry)))
            except BaseException as error:
                results.put(error)

        for slot in range(number):
            threading.Thread(target=work, args=(slot,), daemon=True).start()
        try:
            for _ in items:
                result = results.get()
                if isinstance(result, BaseException):
                    raise result
                yield result
        except BaseException:
            for _ in range(waiting.qsize()):
                waiting.get_nowait()
            raise

    def _attempt(self, slot: int, item: Any) -> Any:
        error: Exception | None = None
        for _ in range(_MOST_DEATHS):
            try:
                return self._workers[slot](item)
            except (UserError, RuntimeError) as death:
                error = death
                self._workers[slot].stop()
                if self._is_over.is_set():
                    break
                self._workers[slot] = Worker(self._make, ())
        return error


def main() -> None:
    """Runs a worker until its parent is gone: reads the function's factory and its arguments, and then items."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent handles Ctrl-C.
    source, target = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Output of a user's code must not mix with the results.
    with contextlib.suppress(EOFError, BrokenPipeError):
        make, arguments = pickle.load(source)
        make_once = functools.cache(lambda: make(*arguments))
        while True:
            item = pickle.load(source)
            try:
                answer = make_once()(item), None
            except UserError as error:
                answer = None, error
            pickle.dump(answer, target, pickle.HIGHEST_PROTOCOL)
            target.flush()
