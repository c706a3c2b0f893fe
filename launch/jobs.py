"""What the launchers share: running programs, telling what happens, what a command's end means, and their own end.

A command's exit status, as of `python -m plm_jax …`: 0, done; 2, a mistake of the user's; 75, a signal ended it and the
step at hand was saved.
"""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable

MISTAKE, SAVED = 2, 75
HOUR = 3600.0


class LaunchError(Exception):
    """What ends the launcher; its message is one line that says what to do."""


def call(command: list[str], given: str | None = None) -> str:
    """What a command prints on stdout; `given` is its input.

    Raises:
      LaunchError: it fails; with what it says on stderr.
    """
    source = {"stdin": subprocess.DEVNULL} if given is None else {"input": given}
    try:
        finished = subprocess.run(command, capture_output=True, text=True, errors="replace", **source)
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


class Restarts:
    """How often a command may start again within an hour."""

    def __init__(self, number: int, clock: Callable[[], float] = time.monotonic):
        """`clock` gives seconds."""
        self.number, self._clock = number, clock
        self._times: list[float] = []

    def take(self) -> bool:
        """Whether one more is allowed now, which then is taken."""
        now = self._clock()
        self._times = [at for at in self._times if now - at < HOUR]
        if len(self._times) >= self.number:
            return False
        self._times.append(now)
        return True


def workdir(command: list[str]) -> str | None:
    """The run directory that a command names, which all machines, and those that follow, must reach.

    Raises:
      LaunchError: it is on one machine's disk.
    """
    found = re.search(r"(?:^| )--workdir[= ](\S+)", " ".join(command))
    if found and "://" not in found[1]:
        raise LaunchError(f"--workdir={found[1]} is on one machine's disk: write to a bucket, --workdir=gs://…")
    return found and found[1]


def with_cache(command: list[str], folder: str | None) -> list[str]:
    """A command with the compilation cache in a folder of a bucket, by default beside its run.

    A machine that takes the place of another, and all of a job that starts again, then load what was compiled.
    """
    found = workdir(command)
    folder = folder or (found and f"{found.rstrip('/')}/compilation")
    return [*(["env", f"JAX_COMPILATION_CACHE_DIR={folder}"] if folder else []), *command]


def after_dashes(words: list[str]) -> list[str]:
    """The command of the remaining arguments.

    Raises:
      LaunchError: there is none.
    """
    command = words[1:] if words[:1] == ["--"] else words
    if not command:
        raise LaunchError("there is no command: give it after --")
    return command


def main(launch: Callable[[], int]) -> None:
    """Runs a launcher; an error becomes one line and exit status 2."""
    # Whoever stops this command gets its last word, also where a shell had the background job ignore SIGINT.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    try:
        sys.exit(launch())
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(MISTAKE)
    except KeyboardInterrupt:
        sys.exit(130)
