"""Runs a command on every worker of a Cloud TPU that it creates, and deletes the TPU at the end.

    python launch/tpu_vm.py --name=my-run --accelerator_type=v5litepod-64 --zone=us-west4-a --spot -- \\
        python -m plm_jax.pretrain --config=configs/bert.py:large --workdir=gs://bucket/my-run

Asks for a queued resource, waits for it, puts this project's commit and its pinned packages on every worker, starts
the command there, shows worker 0's log. A TPU that is preempted is created again, and the command, which is the same,
goes on from its last checkpoint. The job outlives this program: called again in the same way it follows the job on.

Needs Python, git and a `gcloud` that is logged in; `--dry_run` prints the commands of a run without trouble.
"""

import argparse
import dataclasses
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUNDLE = "plm_jax.bundle"
# The software of a TPU VM by generation, https://cloud.google.com/tpu/docs/runtimes (TPU7x has no queued resources).
RUNTIMES = {
    "v2": "tpu-ubuntu2204-base",
    "v3": "tpu-ubuntu2204-base",
    "v4": "tpu-ubuntu2204-base",
    "v5litepod": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}
# States of queued resources and of nodes, https://cloud.google.com/tpu/docs/reference/rest/v2.
MISSING = "missing"
GONE = ("SUSPENDING", "SUSPENDED", "PREEMPTED", "TERMINATED", "STOPPING", "STOPPED")
# How often a state that lasts is told.
REMIND_SECONDS = 600
# How often in a row the log may not be had from a TPU that is there.
LOST_CONNECTIONS = 10
# Queries for the exit statuses of the other workers after worker 0 has ended.
LAST_QUERIES = 5


class LaunchError(Exception):
    """What ends the launcher; its message is one line that says what to do."""


@dataclasses.dataclass(frozen=True)
class Tpu:
    """A queued resource with one node of the same name: the commands for it, as lists of arguments."""

    name: str
    accelerator_type: str
    zone: str
    project: str | None = None
    tier: str | None = None

    def _gcloud(self, *words: str) -> list[str]:
        project = [f"--project={self.project}"] if self.project else []
        return ["gcloud", "compute", "tpus", *words, f"--zone={self.zone}", *project, "--quiet"]

    def create(self) -> list[str]:
        """Asks for the TPU."""
        kind = f"--accelerator-type={self.accelerator_type}", f"--runtime-version={runtime(self.accelerator_type)}"
        tier = [f"--{self.tier}"] if self.tier else []
        return self._gcloud("queued-resources", "create", self.name, f"--node-id={self.name}", *kind, *tier)

    def describe(self) -> list[str]:
        """Prints the request's state."""
        return self._gcloud("queued-resources", "describe", self.name, "--format=value(state.state)")

    def describe_node(self) -> list[str]:
        """Prints the state of the machines, which may be preempted before the request says so."""
        return self._gcloud("tpu-vm", "describe", self.name, "--format=value(state)")

    def delete(self) -> list[str]:
        """Deletes the machines and the request."""
        return self._gcloud("queued-resources", "delete", self.name, "--force")

    def copy(self, file: str) -> list[str]:
        """Copies a file into the home directory of every worker."""
        return self._gcloud("tpu-vm", "scp", file, f"{self.name}:", "--worker=all")

    def ssh(self, command: str, worker: str = "all") -> list[str]:
        """Runs a shell command on workers."""
        # A machine that is taken away closes no connection.
        alive = "--ssh-flag=-oServerAliveInterval=30"
        return self._gcloud("tpu-vm", "ssh", self.name, f"--worker={worker}", alive, f"--command={command}")


def runtime(accelerator_type: str) -> str:
    """The software version for a type such as `v5litepod-64`."""
    generation, _, size = accelerator_type.partition("-")
    if generation not in RUNTIMES or not size.isdigit():
        raise LaunchError(
            f"--accelerator_type={accelerator_type} is none: write GENERATION-SIZE, such as v5litepod-64, "
            f"with one of {', '.join(RUNTIMES)}"
        )
    return RUNTIMES[generation]


def worker(*words: str) -> str:
    """The shell command for a part of worker.sh."""
    return shlex.join(["bash", "plm_jax/launch/worker.sh", *words])


CLONE = f"rm -rf plm_jax && git clone --quiet {BUNDLE} plm_jax"
# On a new TPU there is no worker.sh yet.
STATE = f"test ! -d plm_jax && echo none || {worker('state')}"


def call(command: list[str]) -> str:
    """What a command prints on stdout.

    Raises:
      LaunchError: it fails; with what it says on stderr.
    """
    try:
        finished = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    except FileNotFoundError as error:
        raise LaunchError(f"there is no program '{command[0]}' here: install it and put it on the PATH") from error
    if finished.returncode:
        said = finished.stderr.strip().splitlines() or ["it says nothing"]
        reason = next((line for line in said if line.startswith("ERROR")), said[-1])
        words = " ".join(word for word in command[:5] if not word.startswith("-"))
        raise LaunchError(f"`{words}` failed with status {finished.returncode}: {reason}")
    return finished.stdout


def say(line: str) -> None:
    """One line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def state(tpu: Tpu) -> str:
    """ACTIVE if workers can be reached, MISSING if nothing was asked for, or what the request or the node is in."""
    try:
        found = call(tpu.describe()).strip()
    except LaunchError as error:
        if "NOT_FOUND" in str(error):
            return MISSING
        raise
    if found != "ACTIVE":
        return found
    try:
        node = call(tpu.describe_node()).strip()
    except LaunchError as error:
        if "NOT_FOUND" in str(error):
            return "PREEMPTED"
        raise
    return "ACTIVE" if node == "READY" else node


@dataclasses.dataclass
class Job:
    """A command on a TPU; `restarts` is how many ends by a signal it may still survive."""

    tpu: Tpu
    command: list[str]
    poll_seconds: float
    restarts: int

    def run(self) -> int:
        """Brings the command to its end, over preemptions: its exit status."""
        told, when = None, 0.0
        while True:
            now = state(self.tpu)
            if now != told or time.monotonic() > when + REMIND_SECONDS:
                say(f"{self.tpu.name} ({self.tpu.accelerator_type}): {now}")
                told, when = now, time.monotonic()
            if now == MISSING:
                call(self.tpu.create())
            elif now == "FAILED":
                raise LaunchError(
                    f"the request for {self.tpu.name} failed: `gcloud … describe` says why, then delete it"
                )
            elif now in GONE:
                say("the TPU was taken away: deleting what is left, and asking for another")
                call(self.tpu.delete())
            elif now == "ACTIVE":
                status = self._serve()
                if status is not None:
                    return status
            else:
                time.sleep(self.poll_seconds)

    def _serve(self) -> int | None:
        """Starts the command where it is not running, and follows it: its exit status, None if the TPU has gone."""
        try:
            states = call(self.tpu.ssh(STATE)).split()
            if set(states) != {"running"}:
                self._install()
                self._start()
            else:
                say(f"the job is running on {len(states)} workers: following it")
            while True:
                self._follow()
                status = self._ended()
                if status is not None:
                    return status
                self._start()
        except LaunchError:
            if state(self.tpu) == "ACTIVE":
                raise
            return None

    def _install(self) -> None:
        say("copying the commit and installing what it pins on every worker (minutes)")
        with tempfile.TemporaryDirectory() as folder:
            bundle = str(pathlib.Path(folder, BUNDLE))
            call(bundle_command(bundle))
            call(self.tpu.copy(bundle))
        call(self.tpu.ssh(f"{CLONE} && {worker('install')}"))

    def _start(self) -> None:
        say("starting the command on every worker")
        call(self.tpu.ssh(worker("start", *self.command)))

    def _follow(self) -> None:
        """Shows worker 0's log until its process has ended or the TPU has gone."""
        seen, failures = "0", 0
        while True:
            try:
                if state(self.tpu) != "ACTIVE":
                    return
                reply = call(self.tpu.ssh(worker("log", seen), "0"))
            except LaunchError as error:
                failures += 1
                if failures == LOST_CONNECTIONS:
                    raise
                say(f"no connection, trying again: {error}")
            else:
                failures = 0
                text, _, last = reply.removesuffix("\n").rpartition("\n")
                print(text, end="", flush=True)
                now, seen = last.split()
                if now != "running":
                    return
            time.sleep(self.poll_seconds)

    def _ended(self) -> int | None:
        """The exit status of a job whose worker 0 has ended; None if it is to start again."""
        for _ in range(LAST_QUERIES):
            states = call(self.tpu.ssh(STATE)).split()
            if "running" not in states or set(states) - {"running", "0"}:
                break
            time.sleep(self.poll_seconds)
        if set(states) == {"0"}:
            return 0
        say(f"the command failed; the workers' exit statuses: {' '.join(sorted(states))}")
        call(self.tpu.ssh(worker("stop")))
        statuses = [int(found) for found in states if found.isdigit()]
        by_signal = "lost" in states or any(status > 128 for status in statuses)
        if by_signal and self.restarts:
            self.restarts -= 1
            say(f"a signal ended it: starting it again ({self.restarts} restarts left)")
            return None
        return max(statuses, default=1) or 1


def bundle_command(path: str) -> list[str]:
    """Packs the commit that is checked out, with its history, into a file that git can clone."""
    return ["git", "-C", str(ROOT), "bundle", "create", "--quiet", path, "HEAD"]


def dry_run(tpu: Tpu, command: list[str]) -> None:
    """Prints the commands of a run that goes well, in order; those that wait for something once."""
    for line in (
        tpu.describe(),
        tpu.create(),
        tpu.describe(),
        tpu.describe_node(),
        tpu.ssh(STATE),
        bundle_command(BUNDLE),
        tpu.copy(BUNDLE),
        tpu.ssh(f"{CLONE} && {worker('install')}"),
        tpu.ssh(worker("start", *command)),
        tpu.ssh(worker("log", "0"), "0"),
        tpu.ssh(STATE),
        tpu.delete(),
    ):
        print(shlex.join(line))


def check_command(command: list[str]) -> None:
    """A workdir must be one that all workers, and the next TPU, can reach."""
    found = re.search(r"(?:^| )--workdir[= ](\S+)", " ".join(command))
    if found and "://" not in found[1]:
        raise LaunchError(f"--workdir={found[1]} is on one machine's disk: write to a bucket, --workdir=gs://…")


def parse() -> tuple[argparse.Namespace, list[str]]:
    """The options, and the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True, help="of the queued resource and its node")
    parser.add_argument("--accelerator_type", required=True, help=f"GENERATION-SIZE; {', '.join(RUNTIMES)}")
    parser.add_argument("--zone", required=True)
    parser.add_argument("--project", help="default: gcloud's")
    tier = parser.add_mutually_exclusive_group()
    for name, text in {"spot": "capacity that may be preempted", "reserved": "capacity that you have reserved"}.items():
        tier.add_argument(f"--{name}", dest="tier", action="store_const", const=name, help=text)
    parser.add_argument("--restarts", type=int, default=3, help="how often a command that a signal ended starts again")
    parser.add_argument("--poll_seconds", type=float, default=30)
    parser.add_argument("--keep", action="store_true", help="do not delete the TPU at the end")
    parser.add_argument("--dry_run", action="store_true", help="print the commands, run nothing")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise LaunchError("there is no command: give it after --")
    check_command(command)
    return arguments, command


def launch() -> int:
    """Does what the command line says: the exit status."""
    arguments, command = parse()
    tpu = Tpu(arguments.name, arguments.accelerator_type, arguments.zone, arguments.project, arguments.tier)
    if arguments.dry_run:
        dry_run(tpu, command)
        return 0
    runtime(tpu.accelerator_type)
    if not shutil.which("gcloud"):
        raise LaunchError("there is no program 'gcloud' here: install the Google Cloud CLI, then `gcloud auth login`")
    if call(["git", "-C", str(ROOT), "status", "--porcelain"]):
        say("note: the project has uncommitted changes: the workers get the last commit, without them")
    try:
        status = Job(tpu, command, arguments.poll_seconds, arguments.restarts).run()
        if not arguments.keep:
            say(f"deleting {tpu.name}")
            call(tpu.delete())
            return status
    except (KeyboardInterrupt, LaunchError):
        # The job may be running, and what may be there costs money.
        say(f"{tpu.name} is left as it is; the same command goes on; to delete it: {shlex.join(tpu.delete())}")
        raise
    say(f"{tpu.name} is kept; to delete it: {shlex.join(tpu.delete())}")
    return status


def main() -> None:
    """Runs; an error becomes one line and exit status 2."""
    # Whoever stops this command gets its last word, also where a shell had the background job ignore SIGINT.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    try:
        sys.exit(launch())
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
