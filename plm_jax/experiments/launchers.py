"""Where the runs of a sweep are trained: on this machine, as jobs of SLURM, on slices of a Kubernetes cluster.

A launcher either carries a run out, a thread a run, or has queued those that are to come. In a job of several processes
each has the same command, `sweep … --run=NAME`, and is its own place in it.
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

from plm_jax.common import children, package, progress, storage
from plm_jax.common.command_line import SAVED
from plm_jax.common.errors import UserError
from plm_jax.experiments import members
from plm_jax.experiments.members import Member

_ROOT = pathlib.Path(package.FOLDER).parent
_LOG = "log.txt"
# Of what a failed process said last so many bytes are kept.
_TAIL = 4096
# Seconds between two lines about what goes on.
_TELL = 10.0


class Launcher:
    """Trains and evaluates runs.

    Attributes:
      parallel: how many at once; None: all.
    """

    parallel: int | None = None

    def __init__(self):
        self.processes = children.Group()
        self._lines: dict[str, str] = {}

    def carry_out(self, member: Member) -> None:
        """Trains and evaluates a run.

        Raises:
          UserError: it failed.
          Interrupted: the processes are stopped, and this one has ended.
        """
        raise NotImplementedError

    def telling(self) -> contextlib.AbstractContextManager:
        """While it lasts, of each run that goes on its last line is said now and then, if it is another."""
        return progress.beating(self._tell, _TELL, lambda seconds: _TELL)

    def _tell(self, seconds: float) -> None:
        del seconds
        for folder in list(self._lines):
            if line := self._lines.pop(folder, ""):
                say(f"{folder}: {line}")

    def _hears(self, member: Member, aloud: bool, logs: bool = True) -> "_Heard":
        return _Heard(member, aloud, self._lines, logs)


class _Heard:
    """What the processes of a run say: it goes into a log in the run's directory, and is said here, or its last line.

    A file in a bucket cannot be added to: there is no log.

    Attributes:
      tail: the end of it, since `begin`.
    """

    def __init__(self, member: Member, aloud: bool, lines: dict[str, str], logs: bool):
        self._folder, self._aloud, self._lines, self.tail = member.folder, aloud, lines, b""
        self._log = os.path.join(member.workdir, _LOG) if logs and not storage.is_remote(member.workdir) else None

    def begin(self) -> None:
        """Another process begins."""
        self.tail = b""
        if self._log:
            os.makedirs(os.path.dirname(self._log), exist_ok=True)

    def __call__(self, said: bytes) -> None:
        """Takes what was said."""
        self.tail = (self.tail + said)[-_TAIL:]
        if self._log:
            with contextlib.suppress(OSError):  # A run whose disk is full for a while goes on.
                storage.append(self._log, said)
        if self._aloud:
            os.write(2, said)
        elif lines := self.lines():
            self._lines[self._folder] = lines[-1]

    def lines(self) -> list[str]:
        """The last ones that are not empty."""
        found = re.split(r"[\r\n]+", self.tail.decode("utf-8", "replace"))
        return [line.strip() for line in found if line.strip()]


class Local(Launcher):
    """This machine: `parallel` runs at once, each with its share of the GPUs, or where there are none of the cores."""

    def __init__(self, parallel: int = 1):
        """Raises `UserError` if there are fewer GPUs than runs at once."""
        super().__init__()
        self.parallel, gpus = parallel, _gpus() if parallel > 1 else []
        if parallel > len(gpus) > 0:
            raise UserError(f"--parallel={parallel} is more than the {len(gpus)} GPUs here: give at most {len(gpus)}")
        # XLA has a thread for each core that it sees: of two runs that see the same ones each waits for the other.
        cores = [] if gpus or not hasattr(os, "sched_getaffinity") else sorted(os.sched_getaffinity(0))
        self._shares: queue.SimpleQueue[tuple[list[str], list[int]]] = queue.SimpleQueue()
        for number in range(parallel):
            self._shares.put((_share(gpus, number, parallel), _share(cores, number, parallel)))

    def carry_out(self, member: Member) -> None:
        """As `Launcher` has it."""
        heard, share = self._hears(member, aloud=self.parallel == 1), self._shares.get()
        gpus, cores = share
        environment = os.environ | ({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {})
        if cores:
            os.sched_setaffinity(0, cores)  # Of this thread, and so of what it starts.
        try:
            members.train(member, lambda *words: _call(self.processes, heard, environment, *words))
        finally:
            self._shares.put(share)


class Here(Launcher):
    """A run for which this process has been started as one of a job, by `Slurm` or `Kubernetes`."""

    def carry_out(self, member: Member) -> None:
        """As `Launcher` has it."""
        heard = self._hears(member, aloud=True, logs=False)  # The job has a log.

        def call(verb: str, *flags: str) -> None:
            # What only the first does, it does alone.
            _call(self.processes, heard, os.environ if verb == "pretrain" else children.alone(), verb, *flags)

        (members.train if progress.is_first() else members.train_beside)(member, call)


def _call(processes: children.Group, heard: _Heard, environment: Mapping[str, str], verb: str, *flags: str) -> None:
    """Runs a verb to its end; one that was stopped with its step saved runs again.

    Raises:
      UserError: it failed; its message is the last line that it said.
      Interrupted: the processes are stopped, and this one has ended.
    """
    heard.begin()
    status = processes.run(children.command(verb, *flags), environment, heard)
    if status == SAVED:
        _call(processes, heard, environment, verb, *flags)
    elif status < 0:
        raise UserError(f"{verb} died of {signal.Signals(-status).name}: run the same command again")
    elif status:
        *_, last = ["", *heard.lines()]
        raise UserError(last.removeprefix("error: ") or f"{verb} ended with {status}")


class Kubernetes(Launcher):
    """Slices of a Kubernetes cluster, a JobSet a run, by `launch/gke.py`; this process waits for all of them."""

    def __init__(self, command: Sequence[str], options: Sequence[str], parallel: int | None):
        """`command` does all runs, `options` are those of `launch/gke.py` that all have in common."""
        super().__init__()
        self.parallel, self._command, self._options = parallel, [*command], [*options]

    def carry_out(self, member: Member) -> None:
        """As `Launcher` has it."""
        heard = self._hears(member, aloud=False)
        heard.begin()
        status = self.processes.run(self.command(member), children.of_scripts(), heard)
        if status or not members.is_finished(member):
            *_, error = ["", *(line for line in heard.lines() if line.startswith("error: "))]
            raise UserError(error.removeprefix("error: ") or f"its job ended with {status}, and left it unfinished")

    def command(self, member: Member) -> list[str]:
        """What has a run carried out, and follows it to its end."""
        # What Kubernetes takes: at most 40 lower-case letters, digits and dashes.
        slug = re.sub(r"[^a-z0-9]+", "-", member.folder.lower()).strip("-")[:24].strip("-")
        name = f"run-{slug}-{_digest(member.workdir)}"
        launch = [sys.executable, _script("gke.py"), f"--name={name}", *self._options]
        return [*launch, "--", "python", *self._command, f"--run={member.folder}"]


class Slurm:
    """Jobs of SLURM, one a run, by `launch/slurm.sbatch`; they go on when this process has ended."""

    def __init__(self, command: Sequence[str], options: Sequence[str]):
        """`command` does all runs, `options` are those of `sbatch` that all have in common."""
        self._command, self._options = [*command], [*options]

    def queued(self) -> dict[str, str]:
        """The ids of this user's jobs by their names."""
        lines = self._output("squeue", "--me", "--noheader", "--format=%i %j").splitlines()
        return {name: number for number, _, name in (line.strip().partition(" ") for line in lines)}

    def submit(self, member: Member, after: str | None) -> str:
        """Queues a run; returns the job's id.

        Args:
          after: the id of the job that trains its parent.
        """
        options = [f"--job-name={self.name(member)}"]
        if not storage.is_remote(member.workdir):
            os.makedirs(member.workdir, exist_ok=True)
            options.append(f"--output={os.path.join(member.workdir, _LOG)}")
        if after:
            options += [f"--dependency=afterok:{after}", "--kill-on-invalid-dep=yes"]
        script = os.path.relpath(_script("slurm.sbatch"), _ROOT)
        run = ["python", *self._command, f"--run={member.folder}"]
        said = self._output("sbatch", "--parsable", *options, *self._options, script, *run)
        return said.strip().partition(";")[0]

    def name(self, member: Member) -> str:
        """What a run's job is called; no other's is."""
        return f"{member.folder}-{_digest(member.workdir)}"

    def _output(self, *command: str) -> str:
        """What a program says, run in the project's root.

        Raises:
          UserError: it is not there, or it fails.
        """
        try:
            # Jobs inherit this environment, and start with a program from the user's shell.
            finished = subprocess.run(
                command,
                cwd=_ROOT,
                env=children.of_scripts(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
        except FileNotFoundError as error:
            raise UserError(f"there is no program '{command[0]}' here: run it where jobs are submitted") from error
        if finished.returncode:
            said = finished.stderr.strip().splitlines() or [f"status {finished.returncode}"]
            raise UserError(f"{command[0]} failed ({said[-1]}): mend that, and run the same command again")
        return finished.stdout


def job_command(path: str, workdir: str, seeds: Sequence[int], modules: Sequence[str]) -> list[str]:
    """The words after `python` with which a job, in the project's root, does what this process was asked to.

    Args:
      modules: flags of users' code.
    """
    if path.partition(":")[0].endswith(".py"):
        path = (
            os.path.relpath(path, _ROOT)
            if pathlib.Path(path).resolve().is_relative_to(_ROOT)
            else storage.absolute(path)
        )
    found = ["-m", "plm_jax", "sweep", f"--sweep={path}", f"--workdir={storage.absolute(workdir)}", *modules]
    return found + ([f"--seeds={','.join(map(str, seeds))}"] if seeds else [])


def _script(name: str) -> str:
    """A file of `launch/`.

    Raises:
      UserError: the package is installed without it.
    """
    path = _ROOT / "launch" / name
    if not path.exists():
        raise UserError(f"there is no {path}: run the sweep from a checkout of the project, where launch/ is")
    return str(path)


def _digest(workdir: str) -> str:
    return hashlib.sha256(workdir.encode("utf-8")).hexdigest()[:8]


def _share(of: Sequence[Any], number: int, parallel: int) -> list[Any]:
    """The part of one of `parallel` runs; none where there is less than one for each."""
    return [*of[number * len(of) // parallel : (number + 1) * len(of) // parallel]] if len(of) >= parallel else []


def _gpus() -> list[str]:
    """The NVIDIA GPUs that JAX would use here, as `CUDA_VISIBLE_DEVICES` has them."""
    if os.environ.get("JAX_PLATFORMS", "") == "cpu":
        return []
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip() not in ("", "-1")]
    try:
        told = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(number) for number in range(len(re.findall(r"^GPU \d+:", told.stdout, re.MULTILINE)))]


def say(line: str) -> None:
    """One line of progress, of a job's processes by the first alone."""
    if progress.is_first():
        print(line, file=sys.stderr, flush=True)
