"""Core of the launchers: flags, running programs, reports, retries, and the meaning of exit statuses.

Exit statuses of a command such as `python -m plm_jax …`: 0, done; 2, a mistake of the user; 75, a signal ended it and
its step was saved.
"""

import argparse
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

MISTAKE, SAVED = 2, 75
HOUR = 3600.0
# Number of failed connections in a row that are retried: a new machine refuses SSH for a minute or two.
LOST_CONNECTIONS = 10


class LaunchError(Exception):
    """Error that ends the launcher; its message is one line that says what to do."""


def call(command: list[str], text: str | None = None) -> str:
    """Runs a command with `text` as its input, and returns its stdout.

    Raises:
      LaunchError: it failed; the message has the end of its stderr.
    """
    source = {"stdin": subprocess.DEVNULL} if text is None else {"input": text}
    try:
        finished = subprocess.run(command, capture_output=True, text=True, errors="replace", **source)
    except FileNotFoundError as error:
        raise LaunchError(f"there is no program '{command[0]}' here: install it and put it on the PATH") from error
    if finished.returncode:
        lines = finished.stderr.strip().splitlines() or ["it printed no error"]
        reason = next((line for line in lines if line.startswith("ERROR")), lines[-1])
        words = " ".join(word for word in command[:5] if not word.startswith("-"))
        raise LaunchError(f"`{words}` failed with status {finished.returncode}: {reason}")
    return finished.stdout


def say(line: str) -> None:
    """Prints a line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


class Restarts:
    """Limit on the number of restarts within an hour."""

    def __init__(self, number: int, clock: Callable[[], float] = time.monotonic):
        self.number, self._clock = number, clock
        self._times: list[float] = []

    def take(self) -> bool:
        """Counts a restart if one more is allowed now; returns whether it is."""
        now = self._clock()
        self._times = [at for at in self._times if now - at < HOUR]
        if len(self._times) >= self.number:
            return False
        self._times.append(now)
        return True


class Progress:
    """Reports of a job's state, when it changes and from time to time.

    Attributes:
      name: name of the job.
      remind_seconds: seconds after which the same state is reported again.
    """

    def __init__(self, name: str, remind_seconds: float = float("inf")):
        self.name, self.remind_seconds = name, remind_seconds
        self._state, self._time = "", 0.0

    def report(self, state: str) -> None:
        """Prints the state if it is new, or if it was printed long ago."""
        if state != self._state or time.monotonic() > self._time + self.remind_seconds:
            say(f"{self.name}: {state}")
            self._state, self._time = state, time.monotonic()


class Connection:
    """Queries over a connection that may fail several times in a row.

    Attributes:
      failures: number of failures since the last success.
    """

    def __init__(self, message: str, tries: int = LOST_CONNECTIONS):
        self.failures, self._message, self._tries = 0, message, tries

    def ask(self, query: Callable[[], Any], otherwise: Any = None) -> Any:
        """Returns the result of a query, or `otherwise` if it failed.

        Raises:
          LaunchError: too many queries in a row failed.
        """
        try:
            result = query()
        except LaunchError as error:
            self.failures += 1
            if self.failures == self._tries:
                raise
            say(f"{self._message}, trying again: {error}")
            return otherwise
        self.failures = 0
        return result


def workdir(command: list[str]) -> str | None:
    """Returns the run directory that a command names, which every machine must reach.

    Raises:
      LaunchError: it is on one machine's disk.
    """
    match = re.search(r"(?:^| )--workdir[= ](\S+)", " ".join(command))
    if match and "://" not in match[1]:
        raise LaunchError(f"--workdir={match[1]} is on one machine's disk: write to a bucket, --workdir=gs://…")
    return match and match[1]


def with_cache(command: list[str], folder: str | None) -> list[str]:
    """Returns a command with its compilation cache in a folder of a bucket, by default in its run directory.

    A replaced machine, and every machine of a restarted job, then load the compiled programs.
    """
    run = workdir(command)
    folder = folder or (run and f"{run.rstrip('/')}/compilation")
    return [*(["env", f"JAX_COMPILATION_CACHE_DIR={folder}"] if folder else []), *command]


class Parser(argparse.ArgumentParser):
    """Parser of a launcher's command line; every flag may have dashes instead of underscores."""

    def __init__(self, doc: str | None, poll_seconds: float):
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        self._tiers = self.add_mutually_exclusive_group()
        self.tier("spot", help="use capacity that may be preempted", action="store_true")
        self.option("service_account", help="service account of the workers")
        self.option(
            "compilation_cache", metavar="DIR", help="folder of compiled programs (default: WORKDIR/compilation)"
        )
        self.option(
            "poll_seconds", type=float, default=poll_seconds, help="time between queries (default: %(default)g)"
        )
        self.option("dry_run", help="print the commands or the manifest, and run nothing", action="store_true")
        self.add_argument("command", nargs=argparse.REMAINDER, help="command to run, after --")

    def option(self, name: str, **settings: Any) -> None:
        """Adds a flag."""
        self.add_argument(*dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}")), **settings)

    def tier(self, name: str, **settings: Any) -> None:
        """Adds a flag for a kind of capacity; only one of them can be given."""
        self._tiers.add_argument(*dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}")), **settings)

    def parse(self) -> tuple[argparse.Namespace, list[str]]:
        """Returns the flags and the command.

        Raises:
          LaunchError: there is no command, or its run directory is on one machine's disk.
        """
        flags = self.parse_args()
        command = flags.command[1:] if flags.command[:1] == ["--"] else flags.command
        if not command:
            raise LaunchError("there is no command: pass it after --")
        return flags, with_cache(command, flags.compilation_cache)


def main(launch: Callable[[], int]) -> None:
    """Runs a launcher; an error becomes one line and exit status 2."""
    # Also if a shell made a background job ignore SIGINT.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    try:
        sys.exit(launch())
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(MISTAKE)
    except KeyboardInterrupt:
        sys.exit(130)
