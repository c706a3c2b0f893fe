"""A function in processes of their own, one a core: what goes in comes out in the same order.

They are fresh interpreters that import the function's module alone, so that this process may hold TensorFlow, run
threads, or be a script without a guard. They end with it, however it ends.
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
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent import futures
from typing import Any

from plm_jax.common.errors import UserError

# Libraries start no threads of their own: there is a process for each core.
_ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# Workers import the same modules as this process, whatever is in their working directory.
_MAIN = "import sys; sys.path[:] = {path!r}; from plm_jax.data.prepare import workers; workers.main()"


def cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(make: Callable[..., Callable], arguments: Sequence[Any], items: Iterable[Any], number: int) -> Generator:
    """What `make(*arguments)` makes of each item, in `number` processes; at most two items a process are under way.

    Raises:
      UserError: one that a process raised; a process that was killed.
    """
    with contextlib.ExitStack() as stack:
        # Left in reverse: the processes end first, and so do the threads that wait for them.
        threads = stack.enter_context(futures.ThreadPoolExecutor(number))
        idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for _ in range(number):
            idle.put(stack.enter_context(_Worker(make, arguments)))

        def apply(item: Any) -> Any:
            worker = idle.get()
            try:
                return worker(item)
            finally:
                idle.put(worker)

        under_way: collections.deque[futures.Future] = collections.deque()
        for item in items:
            under_way.append(threads.submit(apply, item))
            if len(under_way) == 2 * number:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


class _Worker:
    """A process that makes something of one item after another."""

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

    def _send(self, what: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # What it died of is told when it is read.
            pickle.dump(what, self._input, pickle.HIGHEST_PROTOCOL)
            self._input.flush()

    def __call__(self, item: Any) -> Any:
        self._send(item)
        try:
            result, error = pickle.load(self._output)
        except (EOFError, pickle.UnpicklingError) as end:
            status = self._process.wait()
            if status < 0:
                what = signal.Signals(-status).name
                raise UserError(f"{what} ended a process that tokenises: free memory and start again") from end
            raise RuntimeError(f"a process that tokenises ended with status {status}, see above") from end
        if error is not None:
            raise error
        return result

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()
        with contextlib.suppress(BrokenPipeError):
            self._input.close()


def main() -> None:
    """What a process runs: it is sent what makes the function, then items, until its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's.
    source, target = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # What a user's code prints must not get between.
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
