"""Child processes that run commands of `plm_jax` and end with this process, however this process ends.

A child reads from a pipe whose other end the parent holds (`end_with_parent`). When the parent is gone, the read
returns, and the child sends itself SIGTERM. A training run then saves its step.
"""

import contextlib
import functools
import os
import signal
import site
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import TypeVar

from plm_jax.common import package
from plm_jax.common.errors import Interrupted

# Environment variable with a child's end of the pipe.
_PARENT = "PLM_JAX_PARENT"
T = TypeVar("T")
# Environment variables with which a process joins a job.
_JOB = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "PLM_JAX_DISTRIBUTED")
# If this is set, Python adds neither the working directory nor a script's folder to `sys.path`.
_SAFE_PATH = "PYTHONSAFEPATH"


def command(name: str, *flags: str) -> list[str]:
    """Returns the arguments that start a `plm_jax` command, such as `train`, in a new Python process.

    Python's option `-P` keeps the working directory out of the `sys.path` of the process.
    """
    return [sys.executable, "-P", "-m", "plm_jax", name, *flags]


def with_package(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns a copy of environment variables with which a child can import this package from any working directory.

    Adds the folder that contains the package to `PYTHONPATH` if necessary.
    """
    folder = os.path.dirname(package.FOLDER)
    # `site-packages` in front of the standard library would hide some of its modules.
    installed = [*site.getsitepackages(), site.getusersitepackages()]
    path = list(filter(None, variables.get("PYTHONPATH", "").split(os.pathsep)))
    if folder not in path and os.path.realpath(folder) not in map(os.path.realpath, installed):
        path.insert(0, folder)
    return {**variables, **({"PYTHONPATH": os.pathsep.join(path)} if path else {})}


def leave_working_directory() -> None:
    """Sets environment variables that keep the working directory out of the `sys.path` of Python child processes.

    This includes the processes that libraries start.
    """
    os.environ.update(with_package(os.environ) | {_SAFE_PATH: "1"})


def of_scripts() -> dict[str, str]:
    """Returns this process's environment without `PYTHONSAFEPATH`.

    A program that is a Python script can then import modules from its own folder.
    """
    return {name: value for name, value in os.environ.items() if name != _SAFE_PATH}


def alone() -> dict[str, str]:
    """Returns the environment for a child that does not belong to this process's job.

    On a TPU slice of several hosts, the child is restricted to the CPU.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _JOB}
    if "," in environment.get("TPU_WORKER_HOSTNAMES", ""):  # A slice's chips can only be used together.
        environment["JAX_PLATFORMS"] = "cpu"
    return environment


def start(command: list[str], environment: Mapping[str, str], output: int) -> subprocess.Popen:
    """Starts a process. If the process calls `end_with_parent`, it ends with this process.

    Args:
      output: file descriptor for stdout and stderr of the process, or `subprocess.PIPE`.
    """
    read, _ = _pipe()
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**with_package(environment), _PARENT: str(read)},
        pass_fds=(read,),
        # Ctrl-C would otherwise also reach the child directly. This second signal would end a run before its step is
        # saved.
        start_new_session=True,
    )


@functools.cache
def _pipe() -> tuple[int, int]:
    return os.pipe()


def end_with_parent() -> None:
    """Makes this process send itself SIGTERM as soon as the process that started it with `start` is gone.

    The output of this process is then discarded. Does nothing in a process that was not started with `start`.
    """
    descriptor = os.environ.pop(_PARENT, None)
    if descriptor is None:
        return

    def wait() -> None:
        with contextlib.suppress(OSError):  # The variable was inherited without the pipe.
            os.read(int(descriptor), 1)
            # The parent may have read the output; writing to its closed pipe would fail the run.
            nobody = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nobody, 1)
            os.dup2(nobody, 2)
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="parent", daemon=True).start()


def in_background(call: Callable[[], T]) -> futures.Future[T]:
    """Calls a function in a new thread that blocks SIGINT, and returns a future of its result.

    Threads and processes that the function starts also block SIGINT. Otherwise, a library would print a traceback for
    each of its threads or worker processes at Ctrl-C. The new thread ends with this process.
    """
    returned: futures.Future[T] = futures.Future()

    def run() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            returned.set_result(call())
        except BaseException as error:
            returned.set_exception(error)

    threading.Thread(target=run, name="background", daemon=True).start()
    return returned


class Group:
    """Group of processes that can be stopped together. Call `run` in a separate thread for each process."""

    def __init__(self):
        self._lock, self._running, self._stopped = threading.Lock(), set(), False

    def run(self, command: list[str], environment: Mapping[str, str], hear: Callable[[bytes], None]) -> int:
        """Runs a command to its end and returns its exit status.

        Args:
          hear: function that is called with each piece of the command's output as it arrives.

        Raises:
          Interrupted: `stop` was called. The process of this command has ended or was not started.
        """
        with self._lock:
            if self._stopped:
                raise Interrupted("stopped")
            process = start(command, environment, subprocess.PIPE)
            self._running.add(process)
        try:
            with process:
                assert process.stdout is not None
                while output := os.read(process.stdout.fileno(), 2**16):
                    hear(output)
        finally:
            with self._lock:
                self._running.remove(process)
        with self._lock:
            if self._stopped:
                raise Interrupted("stopped")
        return process.returncode

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Sends a signal to all running processes, and prevents the start of further processes."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.send_signal(number)
