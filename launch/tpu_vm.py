"""Runs a command on every worker of a Cloud TPU that it creates, and deletes the TPU at the end.

    python launch/tpu_vm.py --name=my-run --accelerator_type=v5litepod-64 --zone=us-west4-a --spot -- \\
        python -m plm_jax pretrain --config=bert:large --workdir=gs://bucket/my-run \\
        --config.data.cache_dir=gs://bucket/bert

Requests a queued resource, waits for it, installs the current commit and its pinned packages on every worker, starts
the command there, and shows the first worker's log. If the TPU is preempted, it is created again, and the command
resumes from its last checkpoint. If you stop this program, the job continues; run the program again with the same
arguments to follow the job. With `--node_count=N`, the command runs on N slices, named `NAME-0` to `NAME-(N-1)`.

A command that exits with status 75 (it received a signal and saved its step) restarts at once. A command that a signal
killed restarts up to `--restarts` times per hour. After other failures, the command does not restart. A reserved TPU is
kept if the command failed. At the end, the program reports what still exists and may cost money.

Needs Python, git and a `gcloud` that is logged in. `--dry_run` prints the commands of a run without failures.
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
# Seconds after which a lasting state is reported again.
REMIND_SECONDS = 600
# Number of tries of copying, installing and starting.
TRIES = 3
# Number of queries for the exit statuses of the other workers after the first has ended.
LAST_QUERIES = 5


@dataclasses.dataclass(frozen=True)
class Tpu:
    """A queued resource with one node per slice, and the commands for it, as lists of arguments.

    Attributes:
      tier: flags for the kind of capacity.
      more: further flags of its creation.
      batch_size: number of workers to which SSH connects at once.
      internal_ips: whether the workers have internal addresses only.
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
        """Whether the capacity is reserved: it is paid for in any case, and may not be available again."""
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
        """Names of the nodes."""
        return [self.name] if self.node_count == 1 else [f"{self.name}-{number}" for number in range(self.node_count)]

    def create(self) -> list[str]:
        """Returns the command that requests the TPU."""
        nodes = [f"--node-count={self.node_count}", f"--node-prefix={self.name}"]
        nodes = nodes if self.node_count > 1 else [f"--node-id={self.name}"]
        kind = f"--accelerator-type={self.accelerator_type}", f"--runtime-version={runtime(self.accelerator_type)}"
        internal = ["--internal-ips"] if self.internal_ips else []
        # Only the alpha command has these flags.
        alpha = any(flag.startswith(("--reservation=", "--provisioning-model=")) for flag in self.tier)
        words = "queued-resources", "create", self.name, *nodes, *kind, *self.tier, *self.more, *internal
        return self._gcloud(*words, alpha=alpha)

    def describe(self) -> list[str]:
        """Returns the command that prints the state of the request."""
        return self._gcloud("queued-resources", "describe", self.name, "--format=value(state.state)")

    def describe_node(self, node: str) -> list[str]:
        """Returns the command that prints the state of a node, which may be preempted before the request changes."""
        return self._gcloud("tpu-vm", "describe", node, "--format=value(state)")

    def delete(self) -> list[str]:
        """Returns the command that deletes the machines and the request."""
        return self._gcloud("queued-resources", "delete", self.name, "--force")

    def _reached(self, workers: str) -> list[str]:
        internal = ["--internal-ip"] if self.internal_ips else []
        return [f"--node={workers}", f"--worker={workers}", f"--batch-size={self.batch_size}", *internal]

    def copy(self, file: str) -> list[str]:
        """Returns the command that copies a file into the home directory of every worker."""
        return self._gcloud("queued-resources", "scp", file, f"{self.name}:", *self._reached("all"))

    def ssh(self, command: str, workers: str = "all") -> list[str]:
        """Returns the command that runs a shell command on all workers, or on worker 0 of node 0."""
        # A preempted machine does not close its connections.
        alive = "--ssh-flag=-oServerAliveInterval=30"
        words = "queued-resources", "ssh", self.name, *self._reached(workers), alive, f"--command={command}"
        return self._gcloud(*words)


def runtime(accelerator_type: str) -> str:
    """Returns the software version for a type such as `v5litepod-64`."""
    generation, _, size = accelerator_type.partition("-")
    if generation not in RUNTIMES or not size.isdigit():
        raise LaunchError(
            f"--accelerator_type={accelerator_type} is not an accelerator type: pass GENERATION-SIZE, such as "
            f"v5litepod-64, with one of the generations {', '.join(RUNTIMES)}"
        )
    return RUNTIMES[generation]


def worker(*words: str) -> str:
    """Returns the shell command for a function of worker.sh."""
    return shlex.join(["bash", "plm_jax/launch/worker.sh", *words])


CLONE = f"rm -rf plm_jax && git clone --quiet {BUNDLE} plm_jax"
# On a new TPU there is no worker.sh yet.
STATE = f"test ! -d plm_jax && echo none || {worker('state')}"


def query(command: list[str], missing: str) -> str:
    """Returns the output of a query, or `missing` if the resource does not exist."""
    try:
        return call(command).strip()
    except LaunchError as error:
        if "NOT_FOUND" in str(error):
            return missing
        raise


def state(tpu: Tpu) -> str:
    """Returns ACTIVE if workers can be reached, MISSING without a request, or the state of the request or a node."""
    request = query(tpu.describe(), MISSING)
    if request != "ACTIVE":
        return request
    nodes = [query(tpu.describe_node(node), "PREEMPTED") for node in tpu.nodes]
    return next((node for node in nodes if node != "READY"), "ACTIVE")


@dataclasses.dataclass
class Job:
    """A command on a TPU."""

    tpu: Tpu
    command: list[str]
    poll_seconds: float
    restarts: jobs.Restarts

    def run(self) -> int:
        """Runs the command to its end, over preemptions; returns its exit status."""
        progress = jobs.Progress(str(self.tpu), REMIND_SECONDS)
        while True:
            now = state(self.tpu)
            progress.report(now)
            if now == MISSING:
                call(self.tpu.create())
            elif now == "FAILED":
                raise LaunchError(
                    f"the request for {self.tpu.name} failed: `gcloud … describe` prints the reason; then delete it"
                )
            elif now in GONE:
                say("the TPU was preempted or its run time has ended: deleting it and requesting another one")
                call(self.tpu.delete())
            elif now == "ACTIVE":
                status = self._serve()
                if status is not None:
                    return status
            else:
                time.sleep(self.poll_seconds)

    def _serve(self) -> int | None:
        """Starts the command unless it is running, and follows it; returns its status, or None if the TPU is gone."""
        try:
            states = self._patiently(self.tpu.ssh(STATE), jobs.LOST_CONNECTIONS).split()
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
        """Returns the output of a command on workers, which is repeated if it fails."""
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
        say("installing the commit and its pinned packages on every worker (takes minutes)")
        with tempfile.TemporaryDirectory() as folder:
            bundle = str(pathlib.Path(folder, BUNDLE))
            call(bundle_command(bundle))
            self._patiently(self.tpu.copy(bundle))
        self._patiently(self.tpu.ssh(f"{CLONE} && {worker('install')}"))

    def _start(self) -> None:
        say("starting the command on every worker")
        self._patiently(self.tpu.ssh(worker("start", *self.command)))

    def _follow(self) -> None:
        """Shows the first worker's log until its process has ended or the TPU is gone."""
        connection, offset = jobs.Connection("no connection"), "0"

        def query() -> str | None:
            if state(self.tpu) != "ACTIVE":
                return None
            return call(self.tpu.ssh(worker("log", offset), "0"))

        while True:
            reply = connection.ask(query)
            if not connection.failures:
                if reply is None:
                    return
                text, _, last = reply.removesuffix("\n").rpartition("\n")
                print(text, end="", flush=True)
                now, offset = last.split()
                if now != "running":
                    return
            time.sleep(self.poll_seconds)

    def _ended(self) -> int | None:
        """Returns the exit status of a job whose first worker has ended, or None if it has to restart."""
        for _ in range(LAST_QUERIES):
            states = self._patiently(self.tpu.ssh(STATE)).split()
            if "running" not in states or set(states) - {"running", "0"}:
                break
            time.sleep(self.poll_seconds)
        if set(states) == {"0"}:
            return 0
        say(f"the command failed; the workers' exit statuses: {' '.join(sorted(states))}")
        self._patiently(self.tpu.ssh(worker("stop")))
        statuses = [int(status) for status in states if status.isdigit()]
        if jobs.MISTAKE in statuses:
            return jobs.MISTAKE
        if jobs.SAVED in statuses:
            say("the command received a signal and saved its step: restarting it")
            return None
        if ("lost" in states or any(status > 128 for status in statuses)) and self.restarts.take():
            say(f"a signal killed the command: restarting it (at most {self.restarts.number} times per hour)")
            return None
        return max(statuses, default=1) or 1


def bundle_command(path: str) -> list[str]:
    """Returns the command that packs the current commit, with its history, into a file that git can clone."""
    return ["git", "-C", str(ROOT), "bundle", "create", "--quiet", path, "HEAD"]


def dry_run(tpu: Tpu, command: list[str]) -> None:
    """Prints the commands of a run without failures, in order; commands that wait are printed once."""
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
    """Reports whether the TPU still exists when the launcher ends, and whether it costs money."""
    try:
        now = state(tpu)
    except LaunchError:
        now = None
    if now == MISSING:
        return f"{tpu} does not exist anymore and costs nothing"
    cost = "its reservation costs the same without it" if tpu.is_reserved else "it costs money until it is deleted"
    hint = f"run the same command again to follow the job, or delete it with: {shlex.join(tpu.delete())}"
    return f"{tpu} {f'still exists, state {now}' if now else 'may still exist'}: {cost}; {hint}"


def parse() -> tuple[argparse.Namespace, list[str]]:
    """Returns the flags and the command."""
    parser = jobs.Parser(__doc__, poll_seconds=30)
    parser.option("name", required=True, help="name of the queued resource and its nodes")
    parser.option(
        "accelerator_type", required=True, help=f"GENERATION-SIZE, such as v5litepod-64; {', '.join(RUNTIMES)}"
    )
    parser.option("zone", required=True, help="Google Cloud zone, such as us-west4-a")
    parser.option("project", help="Google Cloud project (default: gcloud's)")
    parser.option("node_count", type=int, default=1, help="number of slices (default: 1)")
    parser.tier("reserved", help="use your reserved capacity", action="store_true")
    parser.tier("reservation", help="name of a reservation, or its path if it is in another project")
    parser.tier("flex_start", metavar="DURATION", help="use flex-start capacity for at most this run time, such as 24h")
    parser.option("labels", help="labels of the queued resource, for bills: KEY=VALUE,…")
    parser.option(
        "internal_ips", help="no external addresses; requires access to the internal network", action="store_true"
    )
    parser.option(
        "batch_size", type=int, default=64, help="number of workers to which SSH connects at once (default: 64)"
    )
    parser.option(
        "restarts",
        type=int,
        default=3,
        help="maximum number of restarts per hour after a signal killed the command (default: 3)",
    )
    parser.option("keep", help="do not delete the TPU at the end", action="store_true")
    return parser.parse()


def asked_for(arguments: argparse.Namespace) -> Tpu:
    """Returns the TPU of a command line."""
    if arguments.node_count < 1 or arguments.batch_size < 1:
        raise LaunchError("--node_count and --batch_size must be at least 1")
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
        tuple(flag for flag, value in tiers.items() if value),
        tuple(flag for flag, value in more.items() if value),
        arguments.batch_size,
        arguments.internal_ips,
    )


def launch() -> int:
    """Runs the launcher; returns its exit status."""
    arguments, command = parse()
    tpu = asked_for(arguments)
    if arguments.dry_run:
        dry_run(tpu, command)
        return 0
    runtime(tpu.accelerator_type)
    if not shutil.which("gcloud"):
        raise LaunchError("there is no program 'gcloud' here: install the Google Cloud CLI, then `gcloud auth login`")
    if call(["git", "-C", str(ROOT), "status", "--porcelain"]):
        say("warning: the workers get the last commit, without the uncommitted changes of this checkout")
    try:
        status = Job(tpu, command, arguments.poll_seconds, jobs.Restarts(arguments.restarts)).run()
        if not arguments.keep and not (status and tpu.is_reserved):
            say(f"deleting {tpu}")
            call(tpu.delete())
            return status
    except (KeyboardInterrupt, LaunchError):
        say(left(tpu))
        raise
    say(left(tpu))
    return status


if __name__ == "__main__":
    jobs.main(launch)
