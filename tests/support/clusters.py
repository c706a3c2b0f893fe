"""Clusters of one machine, each a scheduler and two workers in processes of their own."""

import contextlib
import importlib.util
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]


class Cluster(NamedTuple):
    """Running cluster.

    Attributes:
      options: options of its executor.
      scheduler, workers: processes, each the leader of a session.
      start_scheduler: starts a new scheduler with the same address.
    """

    options: list[str]
    scheduler: subprocess.Popen
    workers: list[subprocess.Popen]
    start_scheduler: Callable[[], subprocess.Popen]


def free_port() -> int:
    """Returns a port that no process uses."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def wait_for(port: int, seconds: float = 60) -> None:
    """Waits until a process accepts connections."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise TimeoutError(f"nothing listens on port {port}")


def kill(process: subprocess.Popen) -> None:
    """Kills a process with all processes of its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def _processes(log: pathlib.Path) -> Iterator[Callable[..., subprocess.Popen]]:
    started: list[subprocess.Popen] = []
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}

    def start(*command: str, **variables: str) -> subprocess.Popen:
        with open(log, "ab") as file:
            process = subprocess.Popen(
                command,
                env={**environment, **variables},
                stdout=file,
                stderr=file,
                start_new_session=True,
                cwd=log.parent,
            )
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            kill(process)


@contextlib.contextmanager
def dask(folder: pathlib.Path) -> Iterator[Cluster]:
    """Starts a Dask scheduler and two workers with one process each."""
    port = free_port()
    with _processes(folder / "dask.log") as start:

        def start_scheduler() -> subprocess.Popen:
            process = start(
                *(sys.executable, "-m", "distributed.cli.dask_scheduler", "--host=127.0.0.1", f"--port={port}"),
                "--no-dashboard",
            )
            wait_for(port)
            return process

        scheduler = start_scheduler()
        command = (sys.executable, "-m", "distributed.cli.dask_worker", f"tcp://127.0.0.1:{port}", "--nthreads=1")
        workers = [start(*command, "--no-dashboard", f"--local-directory={folder}") for _ in range(2)]
        yield Cluster([f"--scheduler=tcp://127.0.0.1:{port}"], scheduler, workers, start_scheduler)


@contextlib.contextmanager
def ray(folder: pathlib.Path) -> Iterator[Cluster]:
    """Starts a Ray head and a second node, with one core each."""
    port = free_port()
    command = (str(pathlib.Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus=1")
    with _processes(folder / "ray.log") as start:

        def start_scheduler() -> subprocess.Popen:
            memory = ("--object-store-memory=100000000", "--include-dashboard=false", "--disable-usage-stats")
            process = start(*command, "--head", f"--port={port}", "--node-ip-address=127.0.0.1", *memory)
            wait_for(port)
            return process

        scheduler = start_scheduler()
        time.sleep(3)  # The port answers before the head accepts nodes.
        worker = start(*command, f"--address=127.0.0.1:{port}", "--object-store-memory=100000000")
        yield Cluster([f"--address=127.0.0.1:{port}"], scheduler, [worker], start_scheduler)


@contextlib.contextmanager
def spark(folder: pathlib.Path) -> Iterator[Cluster]:
    """Starts a Spark master and two workers with one core each. Needs a Java that Spark supports."""
    port = free_port()
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    spark_home = str(pathlib.Path(spec.origin).parent)
    variables = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": spark_home}
    os.environ.update(variables)
    command = (f"{spark_home}/bin/spark-class", "org.apache.spark.deploy")
    with _processes(folder / "spark.log") as start:

        def start_scheduler() -> subprocess.Popen:
            process = start(
                *(command[0], f"{command[1]}.master.Master", "--host", "127.0.0.1", "--port", str(port)),
                *("--webui-port", "0"),
                **variables,
            )
            wait_for(port)
            return process

        scheduler = start_scheduler()
        workers = [
            start(
                *(command[0], f"{command[1]}.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g"),
                *("--webui-port", "0", "--work-dir", str(folder / f"worker{i}"), f"spark://127.0.0.1:{port}"),
                **variables,
            )
            for i in range(2)
        ]
        yield Cluster([f"--master=spark://127.0.0.1:{port}"], scheduler, workers, start_scheduler)


CLUSTERS = {"dask": dask, "ray": ray, "spark": spark}
