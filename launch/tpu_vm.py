"""Runs a command on every worker of a Cloud TPU that it creates, and deletes the TPU at the end.

    python launch/tpu_vm.py --name=my-run --accelerator_type=v5litepod-64 --zone=us-west4-a --spot -- \\
        python -m plm_jax pretrain --config=configs/bert.py:large --workdir=gs://bucket/my-run

Asks for a queued resource, waits for it, puts this project's commit and its pinned packages on every worker, starts
the command there, shows the first worker's log. A TPU that is preempted is created again, and the command, which is the
same, goes on from its last checkpoint. The job outlives this program: called again in the same way it follows the job
on. With `--node_count` the command runs over several slices, `NAME-0` and on.

A command that ends with 75 saved its step after a signal, and starts again at once; one that a signal killed does so
`--restarts` times an hour; one that ends with 2 or otherwise fails does not. A reserved TPU stays where a command
failed. Whatever stays, and may cost money, is told at the end.

Needs Python, git and a `gcloud` that is logged in; `--dry_run` prints the commands of a run without trouble.
"""

import argparse
import dataclasses
import pathlib
import shlex
import shutil
import tempfile
import time

import jobs
from jobs import LaunchError, call, say

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
# How often in a row a TPU that is there may not be reached: a new one refuses SSH for a minute or two.
LOST_CONNECTIONS = 10
# How often copying, installing and starting, which may be done again, are tried.
TRIES = 3
# Queries for the exit statuses of the other workers after the first has ended.
LAST_QUERIES = 5


@dataclasses.dataclass(frozen=True)
class Tpu:
    """A queued resource with its nodes, one a slice: the commands for it, as lists of arguments.

    Attributes:
      tier: the flags that say what capacity is asked for.
      more: further flags of its creation.
      batch_size: workers that SSH reaches at once.
      internal_ips: whether the workers have no other addresses.
    """

    name: str
    accelerator_type: str
    zone: str
    project: str | None = None
    node_count: int = 1
    tier: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    batch_size: int = 64
    internal_ips: bool = False

    @property
    def is_reserved(self) -> bool:
        """Whether it is of capacity that is paid for in any case, and may not be had again."""
        return any(flag.startswith("--reserv") for flag in self.tier)

    def __str__(self):
        slices = f"{self.node_count} x " if self.node_count > 1 else ""
        return f"{self.name} ({slices}{self.accelerator_type}, {self.zone})"

    def _gcloud(self, *words: str, alpha: bool = False) -> list[str]:
        project = [f"--project={self.project}"] if self.project else []
        track = ["alpha"] if alpha else []
        return ["gcloud", *track, "compute", "tpus", *words, f"--zone={self.zone}", *project, "--quiet"]

    @property
    def nodes(self) -> list[str]:
        """The names of its nodes."""
        return [self.name] if self.node_count == 1 else [f"{self.name}-{number}" for number in range(self.node_count)]

    def create(self) -> list[str]:
        """Asks for the TPU."""
        nodes = [f"--node-count={self.node_count}", f"--node-prefix={self.name}"]
        nodes = nodes if self.node_count > 1 else [f"--node-id={self.name}"]
        kind = f"--accelerator-type={self.accelerator_type}", f"--runtime-version={runtime(self.accelerator_type)}"
        internal = ["--internal-ips"] if self.internal_ips else []
        # These are flags of the alpha command alone.
        alpha = any(flag.startswith(("--reservation=", "--provisioning-model=")) for flag in self.tier)
        words = "queued-resources", "create", self.name, *nodes, *kind, *self.tier, *self.more, *internal
        return self._gcloud(*words, alpha=alpha)

    def describe(self) -> list[str]:
        """Prints the request's state."""
        return self._gcloud("queued-resources", "describe", self.name, "--format=value(state.state)")

    def describe_node(self, node: str) -> list[str]:
        """Prints the state of a node's machines, which may be preempted before the request says so."""
        return self._gcloud("tpu-vm", "describe", node, "--format=value(state)")

    def delete(self) -> list[str]:
        """Deletes the machines and the request."""
        return self._gcloud("queued-resources", "delete", self.name, "--force")

    def _reached(self, workers: str) -> list[str]:
        internal = ["--internal-ip"] if self.internal_ips else []
        return [f"--node={workers}", f"--worker={workers}", f"--batch-size={self.batch_size}", *internal]

    def copy(self, file: str) -> list[str]:
        """Copies a file into the home directory of every worker."""
        return self._gcloud("queued-resources", "scp", file, f"{self.name}:", *self._reached("all"))

    def ssh(self, command: str, workers: str = "all") -> list[str]:
        """Runs a shell command on all workers, or on worker 0 of node 0."""
        # A machine that is taken away closes no connection.
        alive = "--ssh-flag=-oServerAliveInterval=30"
        words = "queued-resources", "ssh", self.name, *self._reached(workers), alive, f"--command={command}"
        return self._gcloud(*words)


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


def found(command: list[str], missing: str) -> str:
    """What a query prints, or `missing` where it says that there is no such thing."""
    try:
        return call(command).strip()
    except LaunchError as error:
        if "NOT_FOUND" in str(error):
            return missing
        raise


def state(tpu: Tpu) -> str:
    """ACTIVE if workers can be reached, MISSING if nothing was asked for, or what the request or a node is in."""
    request = found(tpu.describe(), MISSING)
    if request != "ACTIVE":
        return request
    nodes = [found(tpu.describe_node(node), "PREEMPTED") for node in tpu.nodes]
    return next((node for node in nodes if node != "READY"), "ACTIVE")


@dataclasses.dataclass
class Job:
    """A command on a TPU."""

    tpu: Tpu
    command: list[str]
    poll_seconds: float
    restarts: jobs.Restarts

    def run(self) -> int:
        """Brings the command to its end, over preemptions: its exit status."""
        told, when = None, 0.0
        while True:
            now = state(self.tpu)
            if now != told or time.monotonic() > when + REMIND_SECONDS:
                say(f"{self.tpu}: {now}")
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
            states = self._patiently(self.tpu.ssh(STATE), LOST_CONNECTIONS).split()
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

    def _patiently(self, command: list[str], tries: int = TRIES) -> str:
        """What a command on workers prints that may be given again where it fails."""
        for failures in range(1, tries + 1):
            try:
                return call(command)
            except LaunchError as error:
                if failures == tries or state(self.tpu) != "ACTIVE":
                    raise
                say(f"no connection, trying again: {error}")
                time.sleep(self.poll_seconds)
        raise AssertionError("the last try has raised")

    def _install(self) -> None:
        say("copying the commit and installing what it pins on every worker (minutes)")
        with tempfile.TemporaryDirectory() as folder:
            bundle = str(pathlib.Path(folder, BUNDLE))
            call(bundle_command(bundle))
            self._patiently(self.tpu.copy(bundle))
        self._patiently(self.tpu.ssh(f"{CLONE} && {worker('install')}"))

    def _start(self) -> None:
        say("starting the command on every worker")
        self._patiently(self.tpu.ssh(worker("start", *self.command)))

    def _follow(self) -> None:
        """Shows the first worker's log until its process has ended or the TPU has gone."""
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
        """The exit status of a job whose first worker has ended; None if it is to start again."""
        for _ in range(LAST_QUERIES):
            states = self._patiently(self.tpu.ssh(STATE)).split()
            if "running" not in states or set(states) - {"running", "0"}:
                break
            time.sleep(self.poll_seconds)
        if set(states) == {"0"}:
            return 0
        say(f"the command failed; the workers' exit statuses: {' '.join(sorted(states))}")
        self._patiently(self.tpu.ssh(worker("stop")))
        statuses = [int(found) for found in states if found.isdigit()]
        if jobs.MISTAKE in statuses:
            return jobs.MISTAKE
        if jobs.SAVED in statuses:
            say("a signal ended it, its step is saved: starting it again")
            return None
        if ("lost" in states or any(status > 128 for status in statuses)) and self.restarts.take():
            say(f"a signal ended it: starting it again (it may be so {self.restarts.number} times an hour)")
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
        *map(tpu.describe_node, tpu.nodes),
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


def left(tpu: Tpu) -> str:
    """What a launcher that ends leaves behind, and what that costs."""
    try:
        now = state(tpu)
    except LaunchError:
        now = "in a state that cannot be had"
    if now == MISSING:
        return f"nothing is left of {tpu}, nothing costs money"
    paid = "the reservation is paid for with or without it" if tpu.is_reserved else "what is there costs money"
    return f"{tpu} is left as it is, {now}: {paid}; the same command goes on; to delete it: {shlex.join(tpu.delete())}"


def parse() -> tuple[argparse.Namespace, list[str]]:
    """The options, and the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def option(name: str, to=parser, **more) -> None:
        to.add_argument(*dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}")), **more)

    option("name", required=True, help="of the queued resource and its node")
    option("accelerator_type", required=True, help=f"GENERATION-SIZE; {', '.join(RUNTIMES)}")
    option("zone", required=True)
    option("project", help="default: gcloud's")
    option("node_count", type=int, default=1, help="slices, over which the command runs (multislice)")
    tier = parser.add_mutually_exclusive_group()
    flag = {"action": "store_true"}
    option("spot", tier, help="capacity that may be preempted", **flag)
    option("reserved", tier, help="capacity that you have reserved", **flag)
    option("reservation", tier, help="that of a reservation of this name, or path if it is another project's")
    option(
        "flex_start", tier, metavar="DURATION", help="capacity once there is some, for so long at a time, such as 24h"
    )
    option("service_account", help="whose rights the workers have")
    option("labels", help="KEY=VALUE,… by which bills are told apart")
    option("internal_ips", help="no addresses outside of the network, from within which this is called", **flag)
    option("batch_size", type=int, default=64, help="workers that SSH reaches at once")
    option("compilation_cache", metavar="DIR", help="what was compiled; default: WORKDIR/compilation")
    option("restarts", type=int, default=3, help="how often in an hour a command that a signal killed starts again")
    option("poll_seconds", type=float, default=30)
    option("keep", help="do not delete the TPU at the end", **flag)
    option("dry_run", help="print the commands, run nothing", **flag)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    return arguments, jobs.with_cache(jobs.after_dashes(arguments.command), arguments.compilation_cache)


def asked_for(arguments: argparse.Namespace) -> Tpu:
    """The TPU of a command line."""
    if arguments.node_count < 1 or arguments.batch_size < 1:
        raise LaunchError("--node_count and --batch_size are at least 1")
    tiers = {
        "--spot": arguments.spot,
        "--reserved": arguments.reserved,
        f"--reservation={arguments.reservation}": arguments.reservation,
        "--provisioning-model=flex-start": arguments.flex_start,
        f"--max-run-duration={arguments.flex_start}": arguments.flex_start,
    }
    more = {f"--service-account={arguments.service_account}": arguments.service_account}
    more |= {f"--labels={arguments.labels}": arguments.labels}
    return Tpu(
        arguments.name,
        arguments.accelerator_type,
        arguments.zone,
        arguments.project,
        arguments.node_count,
        tuple(flag for flag, given in tiers.items() if given),
        tuple(flag for flag, given in more.items() if given),
        arguments.batch_size,
        arguments.internal_ips,
    )


def launch() -> int:
    """Does what the command line says: the exit status."""
    arguments, command = parse()
    tpu = asked_for(arguments)
    if arguments.dry_run:
        dry_run(tpu, command)
        return 0
    runtime(tpu.accelerator_type)
    if not shutil.which("gcloud"):
        raise LaunchError("there is no program 'gcloud' here: install the Google Cloud CLI, then `gcloud auth login`")
    if call(["git", "-C", str(ROOT), "status", "--porcelain"]):
        say("note: the project has uncommitted changes: the workers get the last commit, without them")
    try:
        status = Job(tpu, command, arguments.poll_seconds, jobs.Restarts(arguments.restarts)).run()
        if not arguments.keep and not (status and tpu.is_reserved):
            say(f"deleting {tpu}")
            call(tpu.delete())
            return status
    except (KeyboardInterrupt, LaunchError):
        # The job may be running, and what may be there costs money.
        say(left(tpu))
        raise
    say(left(tpu))
    return status


if __name__ == "__main__":
    jobs.main(launch)
