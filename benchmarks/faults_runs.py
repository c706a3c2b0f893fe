"""Campaigns of runs that are killed, stopped, started twice, or whose disk fails, and of damaged checkpoints.

Every run trains a small encoder with dropout in two phases, within seconds. It is compared with an undisturbed twin:
batch digests and losses must be equal to the bit. `handled`: the twin's result, or one line with exit status 2 where
that is expected; `silent`: another result, or damage that is not reported; `traceback`: more than one line, or a
traceback; `hang`: more than its seconds.
"""

import contextlib
import functools
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import faults_damage  # noqa: E402
from faults_case import Campaign, child, to_its_end  # noqa: E402

from tests.support import moods, resume, tiny  # noqa: E402

NAME, STEPS = "separate", tiny.RUNS["separate"].train.steps
SECONDS = 240.0


class Base(NamedTuple):
    """Folder of the config, an undisturbed run, and the library of failing disks."""

    folder: pathlib.Path
    twin: pathlib.Path
    disk: pathlib.Path


def _base(folder: pathlib.Path) -> Base:
    # In a child process: this one must not start JAX's threads.
    to_its_end(lambda: (tiny.write(folder), moods.write(folder)), SECONDS, folder / "log")
    disk, twin = folder / "faults_disk.so", folder / "twin"
    source = ROOT / "benchmarks" / "faults_disk.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", disk, source, "-ldl"], check=True)
    keeps = "--config.checkpoint.keep_last=100"
    command = resume.command(folder, NAME, twin, keeps)
    subprocess.run(command, env=resume.environment(), check=True, stderr=subprocess.DEVNULL)
    return Base(folder, twin, disk)


def _flip(checkpoint: pathlib.Path, rng: random.Random) -> str:
    path = rng.choice([path for path in faults_damage.files_of(checkpoint) if path.stat().st_size])
    return f"{faults_damage.garble(path, rng, ('flipped',))}: {path.relative_to(checkpoint)}"


def _damage(checkpoint: pathlib.Path, rng: random.Random) -> str:
    """Damages a checkpoint; files of the one before it may replace its own."""
    steps = sorted(int(path.name) for path in checkpoint.parent.iterdir())
    before = checkpoint.with_name(str(steps[steps.index(int(checkpoint.name)) - 1]))
    return faults_damage.damage(checkpoint, [before], rng, is_replaceable=True)


def _damaged(damage: Callable) -> Callable:
    """Returns a case that damages the newest checkpoint; resuming, reading its weights and verifying must report it."""

    def case(base: Base, folder: pathlib.Path, rng: random.Random) -> tuple[str, str]:
        shutil.copytree(base.twin, folder / "run")
        checkpoint = folder / "run/checkpoints" / str(STEPS)
        before = {path: path.read_bytes() for path in faults_damage.files_of(checkpoint)}
        what = damage(checkpoint, rng)
        weights = any(
            path.relative_to(checkpoint).parts[0] in ("params", "meta", "manifest.json")
            for path in before.keys() | set(faults_damage.files_of(checkpoint))
            if not path.exists() or path.is_symlink() or before.get(path) != path.read_bytes()
        )
        opening = functools.partial(_opened, folder / "run", checkpoint, weights)
        outcome, output = child(lambda: print(opening()), SECONDS, folder / "log")
        if outcome == "ended":
            outcome = output.partition(":")[0].strip()
        return "traceback" if outcome == "handled" and "error:" in output else outcome, f"{what}: {output}"

    return case


def _opened(workdir: pathlib.Path, checkpoint: pathlib.Path, weights: bool) -> str:
    """Returns the outcome of reading a damaged checkpoint in every way."""
    from plm_jax.common.errors import UserError
    from plm_jax.runs import checkpoint_folders as folders
    from plm_jax.runs import checkpoint_lists, checkpoints

    def refused(read: Callable) -> bool:
        try:
            read()
        except UserError as error:
            return "\n" not in str(error)
        return False

    if not refused(lambda: folders.newest_intact(checkpoint.parent, refuse_damaged=True)):
        return "silent: resumed"
    if weights and not refused(lambda: checkpoints.load_params(str(checkpoint))):
        return "silent: loaded"
    if not any(entry.damage for entry in checkpoint_lists.entries(str(workdir), verify=True)):
        return "silent: verified"
    good = folders.newest_intact(checkpoint.parent, refuse_damaged=False)
    if good.checkpoint.name == checkpoint.name or int(checkpoint.name) not in good.damaged:
        return "silent: taken"
    return "handled"


class Ended(NamedTuple):
    """Exit status and stderr of a command; the status is None if it ran too long."""

    status: int | None
    errors: str


def _started(command: list, **environment: str) -> subprocess.Popen:
    """Starts a command in its own process group, so that its children can be killed, too."""
    everything = resume.environment() | environment
    return subprocess.Popen(command, env=everything, stderr=subprocess.PIPE, text=True, start_new_session=True)


def _ended(process: subprocess.Popen, seconds: float = SECONDS) -> Ended:
    try:
        errors = process.communicate(timeout=seconds)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return Ended(None, process.communicate()[1])
    return Ended(process.returncode, errors)


def _at_step(process: subprocess.Popen, workdir: pathlib.Path, step: int) -> bool:
    """Waits until a run reaches a step; returns whether it did before it ended."""
    deadline = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if resume.last_step(workdir) >= step:
            return True
        time.sleep(0.001)
    return False


def _judged(twin: pathlib.Path, workdir: pathlib.Path, ended: Ended) -> tuple[str, str]:
    """Returns the outcome of a disturbed run, compared with its twin."""
    if ended.status is None:
        return "hang", ended.errors
    if "Traceback" in ended.errors or ended.status not in (0, 2):
        return "traceback", ended.errors
    if ended.status == 2:
        return "silent", f"it did not end: {ended.errors}"
    rows, expected = [row for row in resume.rows(workdir) if "train/loss" in row], resume.rows(twin)
    for row, twin_row in zip(rows, expected, strict=False):
        if any(row[name] != twin_row[name] for name in ("step", "train/loss", "train/batch_digest")):
            return "silent", f"step {row['step']} is not the twin's"
    return ("handled", "") if len(rows) == len(expected) else ("silent", f"{len(rows)} rows")


def _again(base: Base, workdir: pathlib.Path) -> tuple[str, str]:
    return _judged(base.twin, workdir, _ended(_started(resume.command(base.folder, NAME, workdir))))


def _killed(base: Base, folder: pathlib.Path, rng: random.Random) -> tuple[str, str]:
    """Sends SIGKILL at a random step, or during a save."""
    process = _started(resume.command(base.folder, NAME, folder / "run"))
    resume.kill_at(process, folder / "run", rng.randint(1, STEPS - 4), rng.random() < 0.5, rng.random() / 20)
    return _again(base, folder / "run")


def _stopped(base: Base, folder: pathlib.Path, rng: random.Random) -> tuple[str, str]:
    """Sends SIGTERM at a random step, which must be saved; the run resumes from it."""
    process = _started(resume.command(base.folder, NAME, folder / "run"))
    if _at_step(process, folder / "run", rng.randint(1, STEPS - 4)):
        process.send_signal(signal.SIGTERM)
    ended, step = _ended(process), resume.last_step(folder / "run")
    if ended.status == 0 and step == STEPS:  # The signal came too late.
        return _judged(base.twin, folder / "run", ended)
    if ended.status != 75 or not (folder / "run/checkpoints" / str(step) / "manifest.json").exists():
        return "silent", f"status {ended.status}, step {step}: {ended.errors}"
    return _again(base, folder / "run")


def _tuning_killed(base: Base, folder: pathlib.Path, rng: random.Random) -> tuple[str, str]:
    """Sends SIGKILL to `finetune` three times, before its first step, between steps or during a save."""
    twin, workdir = base.folder / "tuned", folder / "run"
    if not twin.exists():
        subprocess.run(_tuning(base, twin), env=resume.environment(), check=True, capture_output=True)
    last = resume.last_step(twin)
    for number in range(3):
        process = _started(_tuning(base, workdir))
        if rng.random() < 0.3:
            time.sleep(10 * rng.random())
            process.kill()
            process.communicate()
        else:
            step = round((number + rng.random()) * (last - 6) / 3)
            resume.kill_at(process, workdir, step, rng.random() < 0.5, rng.random() / 20)
    outcome, description = _judged(twin, workdir, _ended(_started(_tuning(base, workdir))))
    if outcome == "handled":
        of_both = [[row.get("validation/loss") for row in resume.rows(run)] for run in (twin, workdir)]
        best = [json.loads((run / "checkpoints/best/manifest.json").read_text())["step"] for run in (twin, workdir)]
        if of_both[0] != of_both[1] or best[0] != best[1]:
            return "silent", f"the best weights are of step {best[1]}, the twin's of {best[0]}"
    return outcome, description


def _tuning(base: Base, workdir: pathlib.Path) -> list[str]:
    flags = (f"--config={base.folder}/moods.py", f"--checkpoint={base.folder}/encoder", f"--workdir={workdir}")
    return [sys.executable, "-m", "plm_jax", "finetune", *flags]


def _one_of_two(base: Base, folder: pathlib.Path, rng: random.Random) -> tuple[str, str]:
    """Sends SIGKILL to one of two processes under the launcher, which restarts both."""
    launch = [sys.executable, str(ROOT / "launch/local.py"), "--processes=2", "--devices=1", "--"]
    run = resume.command(base.folder, NAME, folder / "run", "--config.mesh.data=2")
    twin = base.folder / "twin-of-two"
    if not twin.exists():
        subprocess.run(
            [*launch, *resume.command(base.folder, NAME, twin, "--config.mesh.data=2")],
            env=resume.environment(),
            check=True,
            stderr=subprocess.DEVNULL,
        )
    process = _started([*launch, *run])
    if _at_step(process, folder / "run", rng.randint(1, STEPS - 6)):
        victims = [pid for pid in _children(process.pid) if f"JAX_PROCESS_ID={rng.randrange(2)}" in _variables(pid)]
        for pid in victims[:1]:
            os.kill(pid, signal.SIGKILL)
    return _judged(twin, folder / "run", _ended(process))


def _children(parent: int) -> Iterator[int]:
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            if int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == parent:
                yield pid


def _variables(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    return []


def _twice(base: Base, folder: pathlib.Path, rng: random.Random) -> tuple[str, str]:
    """Starts two runs in one directory: one trains, and the other reports that in one line."""
    processes = [_started(resume.command(base.folder, NAME, folder / "run")) for _ in range(2)]
    del rng
    ended = sorted((_ended(process) for process in processes), key=lambda one: one.status is None or one.status)
    lines = [line for line in ended[1].errors.splitlines() if line.startswith("error:")]
    finished = ended[1].status == 0 and "is finished at step" in ended[1].errors  # It came too late.
    if not finished and (ended[1].status != 2 or len(lines) != 1 or "another process trains in" not in lines[0]):
        return "traceback" if "Traceback" in ended[1].errors else "silent", ended[1].errors
    return _judged(base.twin, folder / "run", ended[0])


def _on_disk(**faults: str) -> Callable:
    """Returns a case with a failing disk under the checkpoints or the whole run directory."""

    def case(base: Base, folder: pathlib.Path, rng: random.Random) -> tuple[str, str]:
        workdir, full = folder / "run", folder / "full"
        fails = workdir / "checkpoints" if rng.random() < 0.5 else workdir
        faulty = {"LD_PRELOAD": str(base.disk), "FAULTS_FOLDER": str(fails), "FAULTS_FULL": str(full)} | faults
        often = ("--config.checkpoint.max_failures=50", "--config.checkpoint.save_every=2")
        process = _started(resume.command(base.folder, NAME, workdir, *often), **faulty)
        if not faults and _at_step(process, workdir, rng.randint(1, STEPS - 8)):
            full.touch()
            time.sleep(rng.random())
            full.unlink()
        ended = _ended(process)
        if ended.status == 2 and "Traceback" not in ended.errors and ended.errors.count("error:") == 1:
            # It could not start, or not finish, and reported that; the same command resumes.
            return _again(base, workdir)
        failed_saves = [row for row in resume.rows(workdir) if "checkpoint/error" in row]
        if ended.errors.count("could not be saved") > len(failed_saves):
            return "silent", f"{len(failed_saves)} rows report failed saves: {ended.errors}"
        return _judged(base.twin, workdir, ended)

    return case


def _in_folder(case: Callable, base: Base, number: int, rng: random.Random) -> tuple[str, str]:
    """Runs a case in a temporary folder."""
    with tempfile.TemporaryDirectory(dir=base.folder.parent) as folder:
        outcome, description = case(base, pathlib.Path(folder), rng)
    return outcome, f"case {number}: {description}"


CAMPAIGNS = [
    Campaign(name, times, _base, functools.partial(_in_folder, case))
    for name, times, case in (
        ("checkpoints: flips", 400, _damaged(_flip)),
        ("checkpoints: other damages", 200, _damaged(_damage)),
        ("runs: SIGKILL", 50, _killed),
        ("runs: SIGTERM", 20, _stopped),
        ("runs: SIGKILL of finetune", 20, _tuning_killed),
        ("runs: one of two processes killed", 10, _one_of_two),
        ("runs: two on one directory", 20, _twice),
        ("disks: full for a while", 6, _on_disk()),
        ("disks: a write fails now and then", 6, _on_disk(FAULTS_EVERY="150")),
        ("disks: slow", 3, _on_disk(FAULTS_MICROSECONDS="20000")),
    )
]
