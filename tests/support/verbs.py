"""Runs verbs in new processes that start fast: they are forked from a server that has imported the libraries.

The server initializes no JAX backend and therefore has no threads. Each child first sets its environment and output.
"""

import gc
import json
import os
import pathlib
import runpy
import subprocess
import sys
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


class Server:
    """The server, which runs as long as this context manager."""

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

    def run(
        self, verb: str, *arguments: str, devices: int = 1, folder: os.PathLike | str = ".", **environment: str
    ) -> Finished:
        """Runs `python -m plm_jax.VERB ARGUMENTS…` in a folder on `devices` fake devices."""
        self._count += 1
        files = [os.path.join(self._folder, f"{self._count}.{name}") for name in ("out", "err")]
        environment |= {"XLA_FLAGS": xla.flags(devices)}
        self._process.stdin.write(
            json.dumps([f"plm_jax.cli.{verb}", arguments, os.fspath(folder), environment, files]) + "\n"
        )
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        texts = []
        for path in files:
            with open(path, encoding="utf-8") as file:
                texts.append(file.read())
        return Finished(status, *texts)


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
        module, arguments, folder, environment, files = json.loads(line)
        child = os.fork()
        if child == 0:
            _child(module, arguments, folder, environment, files)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


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
