"""Launchers of the runs of a sweep: on this machine, as SLURM jobs, or on slices of a Kubernetes cluster.

`Local` and `Kubernetes` execute each run in a thread, which waits until the run ends; `Slurm` only queues jobs. A job
executes the command `sweep … --run=NAME` in each of its processes.
"""

import contextlib
import hashlib
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from plm_jax.common import children, package, progress, storage
from plm_jax.common.command_line import SAVED
from plm_jax.common.errors import UserError
from plm_jax.experiments import members
from plm_jax.experiments.members import Member

_ROOT = pathlib.Path(package.FOLDER).parent
_LOG = "log.txt"
# Number of bytes of a process's last output that are stored.
_TAIL_BYTES = 4096
# Seconds between two progress reports.
_REPORT_SECONDS = 10.0


class Launcher:
    """Base class of launchers. A launcher trains and evaluates runs, and waits until they end.

    Attributes:
      parallel: number of runs at a time; None for all.
    """

    parallel: int | None = None

    def __init__(self):
        self.processes = children.Group()
        self._lines: dict[str, str] = {}

    def execute(self, member: Member) -> None:
        """Trains and evaluates a run.

        Raises:
          UserError: the run failed.
          Interrupted: the launcher's processes were stopped, and the process of this run has ended.
        """
        raise NotImplementedError

    def report_progress(self) -> contextlib.AbstractContextManager:
        """Returns a context manager that regularly prints the last new line of output of each run.

        Output that is copied to stderr anyway is left out.
        """
        return progress.beating(self._report, _REPORT_SECONDS, lambda seconds: _REPORT_SECONDS)

    def _report(self, seconds: float) -> None:
        del seconds
        for folder in list(self._lines):
            if line := self._lines.pop(folder, ""):
                report(f"{folder}: {line}")

    def _capture(self, member: Member, echo: bool, logs: bool = True) -> "_Output":
        return _Output(member, echo, self._lines, logs)


class _Output:
    """Receiver of the output of a run's processes.

    Output can be appended to a log in the run's directory. If this directory is in a bucket, there is no log, because
    files in buckets cannot be appended to.

    Attributes:
      tail: last bytes of the output since `begin`.
    """

    def __init__(self, member: Member, echo: bool, lines: dict[str, str], logs: bool):
        """Initializes a receiver.

        Args:
          echo: whether output is copied to stderr; otherwise its last line is stored in `lines`.
          lines: dict from the folder name of each run to the last line of its output.
          logs: whether output is appended to the log.
        """
        self._folder, self._echo, self._lines, self.tail = member.folder, echo, lines, b""
        self._log = os.path.join(member.workdir, _LOG) if logs and not storage.is_remote(member.workdir) else None

    def begin(self) -> None:
        """Starts the output of another process."""
        self.tail = b""
        if self._log:
            os.makedirs(os.path.dirname(self._log), exist_ok=True)

    def __call__(self, output: bytes) -> None:
        """Appends output of the process."""
        self.tail = (self.tail + output)[-_TAIL_BYTES:]
        if self._log:
            with contextlib.suppress(OSError):  # A full disk must not stop the run.
                storage.append(self._log, output)
        if self._echo:
            os.write(2, output)
        elif lines := self.lines():
            self._lines[self._folder] = lines[-1]

    def lines(self) -> list[str]:
        """Returns the non-empty lines of the tail."""
        lines = re.split(r"[\r\n]+", self.tail.decode("utf-8", "replace"))
        return [line.strip() for line in lines if line.strip()]


class Local(Launcher):
    """Launcher on this machine.

    If `parallel` runs are executed at a time, each of them gets a share of the GPUs or, without GPUs, of the cores.
    """

    def __init__(self, parallel: int = 1):
        """Raises `UserError` if the machine has GPUs, but fewer GPUs than `parallel`."""
        super().__init__()
        self.parallel, gpus = parallel, _gpus() if parallel > 1 else []
        if parallel > len(gpus) > 0:
            raise UserError(
                f"--parallel={parallel} exceeds the {len(gpus)} GPUs of this machine: use at most {len(gpus)}"
            )
        # XLA starts a thread for each visible core, so runs that see the same cores would slow each other down.
        cores = [] if gpus or not hasattr(os, "sched_getaffinity") else sorted(os.sched_getaffinity(0))
        self._shares: queue.SimpleQueue[tuple[list[str], list[int]]] = queue.SimpleQueue()
        for number in range(parallel):
            self._shares.put((_share(gpus, number, parallel), _share(cores, number, parallel)))

    @override
    def execute(self, member: Member) -> None:
        output, share = self._capture(member, echo=self.parallel == 1), self._shares.get()
        gpus, cores = share
        environment = os.environ | ({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {})
        if cores:
            os.sched_setaffinity(0, cores)  # Applies to this thread and is inherited by its processes.
        try:
            members.train(member, lambda *words: _call(self.processes, output, environment, *words))
        finally:
            self._shares.put(share)


class Here(Launcher):
    """Launcher inside a job that `Slurm` or `Kubernetes` started for one run."""

    @override
    def execute(self, member: Member) -> None:
        output = self._capture(member, echo=True, logs=False)  # The job has its own log.

        def call(name: str, *flags: str) -> None:
            # Commands other than pretrain run in the first process only, without the others.
            _call(self.processes, output, os.environ if name == "pretrain" else children.alone(), name, *flags)

        (members.train if progress.is_first() else members.train_as_follower)(member, call)


def _call(processes: children.Group, output: _Output, environment: Mapping[str, str], name: str, *flags: str) -> None:
    """Runs a command to its end. Runs it again if it was stopped after saving its step.

    Raises:
      UserError: the command failed or was killed. If it failed, the message is the last line of its output.
      Interrupted: `processes` was stopped, and the command has ended.
    """
    output.begin()
    status = processes.run(children.command(name, *flags), environment, output)
    if status == SAVED:
        _call(processes, output, environment, name, *flags)
    elif status < 0:
        raise UserError(f"{name} was killed by {signal.Signals(-status).name}: run the same command again")
    elif status:
        *_, last_line = ["", *output.lines()]
        raise UserError(last_line.removeprefix("error: ") or f"{name} ended with status {status}")


class Kubernetes(Launcher):
    """Launcher on slices of a Kubernetes cluster.

    Starts a JobSet for each run with `launch/gke.py`, and waits until the JobSet ends.
    """

    def __init__(self, command: Sequence[str], options: Sequence[str], parallel: int | None):
        """Stores the command of the whole sweep and the options of `launch/gke.py` for every run."""
        super().__init__()
        self.parallel, self._command, self._options = parallel, [*command], [*options]

    @override
    def execute(self, member: Member) -> None:
        output = self._capture(member, echo=False)
        output.begin()
        status = self.processes.run(self.command(member), children.of_scripts(), output)
        if status or not members.is_finished(member):
            *_, error = ["", *(line for line in output.lines() if line.startswith("error: "))]
            raise UserError(
                error.removeprefix("error: ") or f"the job ended with status {status}, and the run is not finished"
            )

    def command(self, member: Member) -> list[str]:
        """Returns the command that submits a run and follows it until it ends."""
        # Kubernetes accepts at most 40 lower-case letters, digits and dashes.
        slug = re.sub(r"[^a-z0-9]+", "-", member.folder.lower()).strip("-")[:24].strip("-")
        name = f"run-{slug}-{_digest(member.workdir)}"
        launch = [sys.executable, _script("gke.py"), f"--name={name}", *self._options]
        return [*launch, "--", "python", *self._command, f"--run={member.folder}"]


class Slurm:
    """Launcher of SLURM jobs, one per run, with `launch/slurm.sbatch`. Jobs continue when this process has ended."""

    def __init__(self, command: Sequence[str], options: Sequence[str]):
        """Stores the command of the whole sweep and the options of `sbatch` for every run."""
        self._command, self._options = [*command], [*options]

    def queued(self) -> dict[str, str]:
        """Returns the ids of this user's queued and running jobs, by the names of the jobs."""
        lines = self._output("squeue", "--me", "--noheader", "--format=%i %j").splitlines()
        return {name: job_id for job_id, _, name in (line.strip().partition(" ") for line in lines)}

    def submit(self, member: Member, after: str | None) -> str:
        """Queues a run and returns the id of its job.

        Args:
          after: id of a job that must succeed before this one starts, such as the parent's; None: no such job.
        """
        options = [f"--job-name={self.name(member)}"]
        if not storage.is_remote(member.workdir):
            os.makedirs(member.workdir, exist_ok=True)
            options.append(f"--output={os.path.join(member.workdir, _LOG)}")
        if after:
            options += [f"--dependency=afterok:{after}", "--kill-on-invalid-dep=yes"]
        script = os.path.relpath(_script("slurm.sbatch"), _ROOT)
        run = ["python", *self._command, f"--run={member.folder}"]
        output = self._output("sbatch", "--parsable", *options, *self._options, script, *run)
        return output.strip().partition(";")[0]

    def name(self, member: Member) -> str:
        """Returns the unique name of a run's job."""
        return f"{member.folder}-{_digest(member.workdir)}"

    def _output(self, *command: str) -> str:
        """Returns the output of a program that is run in the project's root.

        Raises:
          UserError: the program is missing or fails.
        """
        try:
            # Jobs inherit this environment and start with a program from the user's shell.
            finished = subprocess.run(
                command,
                cwd=_ROOT,
                env=children.of_scripts(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
        except FileNotFoundError as error:
            raise UserError(
                f"program '{command[0]}' not found: run this command on a machine that can submit jobs"
            ) from error
        if finished.returncode:
            lines = finished.stderr.strip().splitlines() or [f"status {finished.returncode}"]
            raise UserError(f"{command[0]} failed ({lines[-1]}): fix the problem and run the same command again")
        return finished.stdout


def job_command(path: str, workdir: str, seeds: Sequence[int], modules: Sequence[str]) -> list[str]:
    """Returns the arguments of `python` with which a job in the project's root runs this sweep.

    Args:
      path: the sweep's file, or FILE.py:SIZE.
      modules: `--module` flags that load users' code.
    """
    if path.partition(":")[0].endswith(".py"):
        path = (
            os.path.relpath(path, _ROOT)
            if pathlib.Path(path).resolve().is_relative_to(_ROOT)
            else storage.absolute(path)
        )
    command = ["-m", "plm_jax", "sweep", f"--sweep={path}", f"--workdir={storage.absolute(workdir)}", *modules]
    return command + ([f"--seeds={','.join(map(str, seeds))}"] if seeds else [])


def _script(name: str) -> str:
    """Returns the path of a file in `launch/`.

    Raises:
      UserError: the package is installed without it.
    """
    path = _ROOT / "launch" / name
    if not path.exists():
        raise UserError(f"{path} does not exist: run the sweep from a checkout of the project, which includes launch/")
    return str(path)


def _digest(workdir: str) -> str:
    return hashlib.sha256(workdir.encode("utf-8")).hexdigest()[:8]


def _share(devices: Sequence[Any], index: int, parallel: int) -> list[Any]:
    """Returns the share of the devices for run `index` of `parallel` runs; empty with fewer devices than runs."""
    return (
        [*devices[index * len(devices) // parallel : (index + 1) * len(devices) // parallel]]
        if len(devices) >= parallel
        else []
    )


def _gpus() -> list[str]:
    """Returns the ids of the NVIDIA GPUs that JAX would use, as in `CUDA_VISIBLE_DEVICES`."""
    if os.environ.get("JAX_PLATFORMS", "") == "cpu":
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    try:
        listing = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(index) for index in range(len(re.findall(r"^GPU \d+:", listing.stdout, re.MULTILINE)))]


def report(line: str) -> None:
    """Prints a line to stderr in the first process of a job; does nothing in other processes."""
    if progress.is_first():
        print(line, file=sys.stderr, flush=True)
