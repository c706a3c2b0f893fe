"""Status of a run, read from the files in its run directory W.

    W/lock        process that trains in the directory (`workdir_lock`)
    W/heartbeat   heartbeats of each start (`heartbeat`)

This module does not import JAX, which takes seconds.
"""

import contextlib
import itertools
import json
import os
import time
from collections.abc import Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple

from plm_jax.common import leases, progress, sealing, storage, strict_json
from plm_jax.common.errors import UserError
from plm_jax.runs import heartbeat
from plm_jax.runs.goodput import PARTS

Start = Mapping[str, Any]

# A process on another machine: seconds after which a heartbeat is stale, and seconds to wait for one. Clocks differ.
_FRESH, _WAIT = 30.0, 25.0
# Seconds without a heartbeat after which a living process is reported as stalled.
_SILENT = 60.0
# Bytes read from the end of metrics.jsonl.
_TAIL = 2**18
_THREADS = 16
# Upper bound of plausible times, in seconds since 1970.
_LATEST = 2**40
# Types of the fields of a start.
_NUMBER = int | float
_KINDS = {
    **{"began": _NUMBER, "alive": _NUMBER, "worked": _NUMBER, "seconds": dict, "saves": list},
    **{"first_step": int | None, "step": int | None, "step_seconds": _NUMBER | None},
    **{"ended": str | None, "error": str | None},
}
_STEPS, _LOST, _DOWN = "steps", "lost", "down"
_NAMES = {
    "start": "starting and ending",
    "compile": "compiling",
    "data": "waiting for data",
    "saves": "saves",
    "validation": "validation",
    "audits": "audits of the devices",
    _LOST: "lost steps",
    _DOWN: "not running",
}


class Status(NamedTuple):
    """Status of a run.

    Attributes:
      fine: whether the run is alive or finished.
      lines: lines to print.
    """

    fine: bool
    lines: list[str]


def of_run(workdir: str) -> Status:
    """Reads the status of a run.

    If the run is on another machine, this may take about half a minute, because it waits for a heartbeat.

    Raises:
      UserError: there is no run, or its store cannot be reached.
    """
    names = storage.names(workdir)
    if not {"config.json", "lock", "heartbeat", "checkpoints"} & set(names):
        raise UserError(f"{workdir} has no run: pass the --workdir of a run")
    now = time.time()
    starts, holder, alive, finished = standing(workdir)
    last = starts[-1] if starts else {}
    # A new start writes its first heartbeat only after it has found the checkpoint that it resumes from.
    is_its = holder is not None and alive and all(holder.get(name) == last.get(name) for name in ("host", "pid"))
    current, over = (last, starts[:-1]) if is_its else ({}, starts)
    rows, steps = _last_rows(workdir), _steps(workdir)
    lines = [f"{workdir}: {_life(alive, finished, holder, last, now)}"]
    lines += _progress_line(current, rows, _step(last, rows), steps)
    if alive:
        lines.append(f"doing       {current.get('doing', 'starting')}")
    lines.append(f"checkpoint  {_checkpoint(workdir, now)}")
    lines.append(f"last error  {_last_error(over, rows)}")
    if starts:
        lines += _goodput(starts, alive)
    return Status(alive or finished, lines + (_stalls(workdir) if alive else []))


class Standing(NamedTuple):
    """State of a run: its starts, and whether it is alive or finished.

    Attributes:
      starts: records of the starts of the run, as `read` returns them.
      holder: process that has locked the run directory, as `leases.taken` returns it; it may have died. None if there
        is none.
      alive: whether a process is training in the directory.
      finished: whether the run has ended because training is complete.
    """

    starts: list[Start]
    holder: Mapping[str, Any] | None
    alive: bool
    finished: bool


def standing(workdir: str) -> Standing:
    """Reads the state of a run.

    Raises:
      UserError: its store cannot be reached.
    """
    # The lock is read first, because a process records how it ended before it releases the lock.
    holder = leases.taken(_lock(workdir))
    alive = holder is not None and _is_alive(workdir, holder)
    starts = read(workdir)
    finished = not alive and bool(starts) and starts[-1]["ended"] == heartbeat.FINISHED
    if not alive and not starts:  # The run is older than heartbeats.
        finished = str(_steps(workdir)) in storage.names(os.path.join(workdir, "checkpoints"))
    return Standing(starts, holder, alive, finished)


def read(workdir: str) -> list[Start]:
    """Returns the contents of the heartbeat file of each start of a run, in order; skips files that cannot be read.

    Raises:
      UserError: the store cannot be reached.
    """

    def read_start(number: int) -> Start | None:
        with contextlib.suppress(ValueError, FileNotFoundError):
            record = strict_json.read(heartbeat.path(workdir, number))
            return record if _is_whole(record) else None
        return None

    with futures.ThreadPoolExecutor(_THREADS) as pool:
        return [start for start in pool.map(read_start, heartbeat.numbers(workdir)) if start]


def _is_whole(record: Any) -> bool:
    """Whether a record has the fields and values that `heartbeat` writes."""
    if not isinstance(record, dict) or not record.keys() >= _KINDS.keys():
        return False
    if not all(isinstance(record[name], kind) for name, kind in _KINDS.items()):
        return False
    if record["seconds"].keys() != set(PARTS) or (record["first_step"] is None) != (record["step"] is None):
        return False
    if not all(isinstance(mark, list) and len(mark) == 2 for mark in record["saves"]):
        return False
    times = (record[name] for name in ("began", "alive", "worked"))
    numbers = itertools.chain(times, record["seconds"].values(), *record["saves"])
    return all(isinstance(number, _NUMBER) and abs(number) < _LATEST for number in numbers)


def account(starts: Sequence[Start]) -> dict[str, float]:
    """Splits the seconds from the first start to the last heartbeat by use.

    Args:
      starts: records of all starts of the run, as `read` returns them.

    Returns:
      A dict from use to seconds. `lost` is the time of training steps that a later start had to repeat, and `steps` is
      the time of all other training steps. `down` is the time from the end of a start to the next start. The time after
      a start that finished the run is not counted. The remaining keys are the remaining parts in `goodput.PARTS`.
    """
    totals = dict.fromkeys((_STEPS, *_NAMES), 0.0)
    resumed_at = float("inf")
    for start in reversed(starts):
        seconds = dict(start["seconds"])
        worked = seconds.pop(_STEPS)
        useful = min(worked, _worked_until(start, resumed_at))
        totals[_STEPS] += useful
        totals[_LOST] += worked - useful
        for part, spent in seconds.items():
            totals[part] += spent
        if start["first_step"] is not None:
            resumed_at = min(resumed_at, start["first_step"])
    for before, after in itertools.pairwise(starts):
        if before["ended"] != heartbeat.FINISHED:
            # By the clocks of two machines, a start may begin before the earlier one ended.
            totals[_DOWN] += max(0.0, after["began"] - before["began"] - sum(before["seconds"].values()))
    return totals


def _worked_until(start: Start, step: float) -> float:
    """Returns the seconds that a start spent on steps up to `step`, interpolated between its saves.

    The result is infinite if the start did not reach `step`.
    """
    if start["first_step"] is None or step > start["step"]:
        return float("inf")
    at, worked = start["first_step"], 0.0
    for next_at, next_worked in [*start["saves"], (start["step"], start["worked"])]:
        if step <= next_at:
            share = (step - at) / (next_at - at) if next_at > at else 1.0
            return worked + max(0.0, share) * (next_worked - worked)
        at, worked = next_at, next_worked
    return worked


def _lock(workdir: str) -> str:
    return os.path.join(workdir, "lock")


def _is_alive(workdir: str, holder: dict[str, Any]) -> bool:
    if abs(time.time() - holder.get("alive", 0.0)) < _FRESH:
        # On another machine, only the heartbeat of a process is known; on this machine, also whether it exists.
        return leases.is_alive(_lock(workdir), wait=0.0) or not leases.is_here(holder)
    with progress.doing(f"waiting for a heartbeat of process {holder.get('pid')} on {holder.get('host')}"):
        return leases.is_alive(_lock(workdir), _WAIT)


def _life(alive: bool, finished: bool, holder: Any, last: Start, now: float) -> str:
    if alive:
        silent = now - holder.get("alive", now)
        still = ": it is stalled, or cannot write" if silent > _SILENT else ""
        return f"alive, process {holder.get('pid')} on {holder.get('host')}, last heartbeat {_ago(silent)}{still}"
    when = f"last heartbeat {_ago(now - last['alive'])}" if last else "it sent no heartbeat"
    if finished:
        return f"finished, {when}"
    return f"not running, {when}: {_why(last)}"


def _why(start: Start) -> str:
    return start["error"] or "it died without an error message" if start else "it died before its first step"


def _progress_line(current: Start, rows: Sequence[Mapping[str, Any]], step: int | None, steps: int | None) -> list[str]:
    count = f"{0 if step is None else step:,}"
    if steps:
        count += f" of {steps:,} ({(step or 0) / steps:.1%})"
    parts = [count]
    if current.get("step_seconds"):
        parts.append(f"{current['step_seconds']:.3g} s per step")
    speeds = [row["train/tokens_per_second"] for row in rows if "train/tokens_per_second" in row]
    if current and speeds:
        parts.append(f"{speeds[-1]:,.0f} tokens/s")
    if steps and current and (rate := _rate(current)):
        parts.append(f"about {_span((steps - (step or 0)) * rate)} left")
    return [f"step        {', '.join(parts)}"]


def _rate(start: Start) -> float | None:
    """Returns the mean seconds per step of a start, including waits and saves; None if it has finished no step."""
    if start["first_step"] is None or start["step"] == start["first_step"]:
        return None
    spent = sum(spent for part, spent in start["seconds"].items() if part not in ("start", "compile"))
    return spent / (start["step"] - start["first_step"])


def _step(last: Start, rows: Sequence[Mapping[str, Any]]) -> int | None:
    if last.get("step") is not None:
        return last["step"]
    return rows[-1]["step"] if rows else None


def _steps(workdir: str) -> int | None:
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        steps = strict_json.read(os.path.join(workdir, "config.json"))["config"]["train"]["steps"]
        return steps if isinstance(steps, int) else None
    return None


def _last_rows(workdir: str) -> list[dict[str, Any]]:
    """Returns the last rows of metrics.jsonl that can be read."""
    path, rows = os.path.join(workdir, "metrics.jsonl"), []
    if not storage.exists(path):
        return rows
    size = storage.size(path)
    lines = storage.read_range(path, max(0, size - _TAIL), size).split(b"\n")
    for line in lines[(size > _TAIL) : -1]:
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                rows.append(row)
    return rows


def _last_error(starts: Sequence[Start], rows: Sequence[Mapping[str, Any]]) -> str:
    errors = [
        f"after step {row['step']}: {value}"
        for row in rows
        for name, value in row.items()
        if "/error" in name or name == "incident"
    ]
    ends = [
        f"start {number} ended after step {start['step'] or 0}: {_why(start)}"
        for number, start in enumerate(starts, 1)
        if start["ended"] in (None, heartbeat.FAILED)
    ]
    return "; ".join([*errors[-1:], *ends[-1:]]) or "none"


def _checkpoint(workdir: str, now: float) -> str:
    folder = os.path.join(workdir, "checkpoints")
    for step in reversed(storage.numbers(folder)):
        with contextlib.suppress(sealing.DamagedError, FileNotFoundError, KeyError, TypeError):
            return f"{step}, saved {_ago(now - sealing.read(os.path.join(folder, str(step)))['sealed'])}"
        if not storage.is_remote(folder):
            return f"{step} (without a manifest, or damaged: `plm_jax checkpoints verify {workdir}`)"
    return "none"


def _goodput(starts: Sequence[Start], alive: bool) -> list[str]:
    totals = account(starts)
    whole = sum(totals.values()) or 1.0
    since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(starts[0]["began"]))
    other_uses = ", ".join(f"{name} {totals[part] / whole:.1%}" for part, name in _NAMES.items())
    period = f"since the start at {since}" if alive else f"of this run, which started at {since},"
    number = f"{len(starts)} starts" if len(starts) > 1 else "1 start"
    share = f"{totals[_STEPS] / whole:.1%} of the {_span(whole)} {period}"
    return [
        f"goodput     {share} were spent on training steps; {number}",
        f"            {other_uses}",
    ]


def _stalls(workdir: str) -> list[str]:
    lines = []
    for name in storage.names(heartbeat.folder(workdir)):
        if name.startswith("stalled-"):
            with contextlib.suppress(ValueError, FileNotFoundError, KeyError, TypeError):
                stall = strict_json.read(os.path.join(heartbeat.folder(workdir), name))
                lines.append(f"stalled     {stall['says']} (reported {_ago(time.time() - stall['time'])})")
    return lines


def _ago(seconds: float) -> str:
    return f"{_span(max(0.0, seconds))} ago"


def _span(seconds: float) -> str:
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86400
    if days >= 2:
        return f"{days:.1f} days"
    if hours >= 2:
        return f"{hours:.1f} hours"
    return f"{minutes:.0f} minutes" if minutes >= 2 else f"{seconds:.0f} s"
