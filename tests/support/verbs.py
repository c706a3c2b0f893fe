"""Runs verbs in new processes that start fast: they are forked from a server that has imported the libraries.

The server initializes no JAX backend and therefore has no threads. Each child first sets its environment and output.
"""

import gc
import json
import os
import pathlib
import runpy
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

from tests.support import xla


class Finished(NamedTuple):
    """Result of a command. `status` is negative for a signal."""

    status: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        """Lines of stderr that begin with `error: `."""
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


class Started:
    """Process of a command, with the interface of `subprocess.Popen`."""

    def __init__(self, ask: Callable[..., int | None], pid: int, files: list[str]):
        self.pid, self.returncode = pid, None
        self._ask, self._files = ask, files

    def poll(self, options: int = os.WNOHANG) -> int | None:
        """Returns the exit status, or None while the process runs."""
        if self.returncode is None:
            self.returncode = self._ask([self.pid, options])
        return self.returncode

    def wait(self) -> int:
        """Waits for the end and returns the exit status."""
        return self.poll(0)

    def send_signal(self, number: int) -> None:
        """Sends a signal to a process that has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def finished(self) -> Finished:
        """Waits for the end and returns the result."""
        status = self.wait()
        return Finished(status, *(pathlib.Path(path).read_text(encoding="utf-8") for path in self._files))


class Server:
    """The server, which runs as long as this context manager. A call runs a command, `start` only starts it."""

    def __init__(self, folder: str):
        self._folder = folder
        self._count = 0
        command = [sys.executable, "-m", "tests.support.verbs"]
        # For processes that a verb starts in any folder.
        path = os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": path}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()

    def __call__(self, verb: str, *arguments: str, **options) -> Finished:
        """Runs `python -m plm_jax.VERB ARGUMENTS…`; the options are those of `start`."""
        return self.start(verb, *arguments, **options).finished()

    def start(
        self, verb: str, *arguments: str, devices: int = 1, folder: os.PathLike | str = ".", **environment: str
    ) -> Started:
        """Starts `python -m plm_jax.VERB ARGUMENTS…` in a folder on `devices` fake devices."""
        self._count += 1
        files = [os.path.join(self._folder, f"{self._count}.{name}") for name in ("out", "err")]
        environment |= {"XLA_FLAGS": xla.flags(devices)}
        pid = self._ask([f"plm_jax.cli.{verb}", arguments, os.fspath(folder), environment, files])
        return Started(self._ask, pid, files)

    def start_job(self, verb: str, *arguments: str, processes: int = 2, **options) -> list[Started]:
        """Starts the processes of a job, each as `start` does."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        job = options | {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(processes)}
        return [self.start(verb, *arguments, **job, JAX_PROCESS_ID=str(number)) for number in range(processes)]

    def _ask(self, request: list) -> int | None:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


TRACES = {"lock", "heartbeat", "files.json"}


def contents(*folders) -> dict[pathlib.Path, bytes]:
    """Returns the bytes of every file, except locks, heartbeats and recorded times of texts."""
    paths = (path for folder in folders for path in pathlib.Path(folder).rglob("*"))
    return {p: p.read_bytes() for p in paths if p.is_file() and not {p.parent.name, p.name} & TRACES}


def assert_one_line(finished: Finished, *phrases: str) -> None:
    """Asserts that a verb ended with status 2 and one line that contains these phrases."""
    assert finished.status == 2, (finished.status, finished.err)
    assert "Traceback" not in finished.err and "Traceback" not in finished.out
    assert len(finished.errors) == 1, finished.err
    after = finished.err.split(finished.errors[0], 1)[1]
    assert not after.strip(), f"text follows the line: {after}"
    for phrase in phrases:
        assert phrase in finished.errors[0], finished.errors[0]


def import_libraries() -> None:
    """Imports the libraries of the verbs, so that forked processes need not."""
    import grain  # noqa: F401
    import jax  # noqa: F401
    import orbax.checkpoint  # noqa: F401
    import tensorboardX  # noqa: F401

    from plm_jax.evaluation import evaluate, few_shot, watch  # noqa: F401
    from plm_jax.experiments import examples, report, sweep  # noqa: F401
    from plm_jax.inference import language_model, prompt_files  # noqa: F401
    from plm_jax.runs import checkpoint_formats, loop, preparation, replay, train, transfer  # noqa: F401

    gc.freeze()  # The garbage collector of a child skips shared objects.


def _serve() -> None:
    import_libraries()
    for line in sys.stdin:
        request = json.loads(line)
        if isinstance(request[0], int):
            ended, status = os.waitpid(*request)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        else:
            answer = os.fork()
            if answer == 0:
                _child(*request)
        print(json.dumps(answer), flush=True)


def _child(module: str, arguments: list[str], folder: str, environment: dict[str, str], files: list[str]) -> None:
    os.environ.update(environment)
    os.chdir(folder)
    for descriptor, path in zip((1, 2), files, strict=True):
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(target, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = [module, *arguments]
    status = 1
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as stop:
        status = stop.code or 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve()
