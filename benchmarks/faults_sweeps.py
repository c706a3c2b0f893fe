"""A sweep that is killed repeatedly, and a watch of a run; each is compared with an undisturbed one.

    python benchmarks/faults_sweeps.py --kills=10 --watch_kills=20 --seed=0

`sweep`: six tiny runs, three of which start from the weights of others, two at once; SIGKILL is sent to the sweep only,
and the runs that it leaves have to finish. `trained_again`: finished runs that started again; `differ`: runs whose
metrics, or the loss or batch of a step, differ from those of the undisturbed sweep. `watch`: `evaluate --watch` of a
run that advances by about one checkpoint between two kills, which come while it starts, or during its first or second
evaluation. `rows`: numbers of rows per checkpoint; `differ`: rows that differ from those of an undisturbed watch.
"""

import argparse
import collections
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

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support import resume, tiny, verbs  # noqa: E402

SWEEP = """
base = "tiny.py:dropout"

def overrides():
    for name, parent in {runs}.items():
        yield name, {{"train.steps": {steps}, "checkpoint.save_every": 40, "train.init_from": parent}}
"""
# Parents by run name, each run after its parent.
RUNS = {"a": "", "b": "", "a-1": "a", "a-2": "a-1", "b-1": "b", "c": ""}
STEPS, SAVES = 400, 12


def killed_sweep(folder: pathlib.Path, kills: int, rng: random.Random, runs: dict[str, str], steps: int) -> dict:
    """Runs the sweep undisturbed, and again with kills."""
    (folder / "sweep.py").write_text(SWEEP.format(runs=runs, steps=steps))
    began = time.monotonic()
    _to_its_end(_sweep(folder, "twin"))
    seconds, finished, trained_again, at_kills = time.monotonic() - began, {}, set(), []
    for _ in range(kills):
        process = subprocess.Popen(
            _sweep(folder, "killed"), env=resume.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + rng.uniform(1.0, 0.4 * seconds)
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
        process.wait()
        trained_again |= _again(folder / "killed", finished)
        at_kills.append(len(finished))
        print(f"sweep: {len(at_kills)} kills, {len(finished)} runs finished", file=sys.stderr, flush=True)
    _to_its_end(_sweep(folder, "killed"))
    trained_again |= _again(folder / "killed", finished)
    metrics, expected = (_metrics(folder / name) for name in ("killed", "twin"))
    differ = [
        run
        for run in runs
        if metrics[run] != expected[run] or resume.differences(folder / "killed" / run, folder / "twin" / run)
    ]
    return {
        "runs": len(runs),
        "kills": kills,
        "finished_at_kills": at_kills,
        "seconds_left_alone": round(seconds, 1),
        "starts": sum(len(list((folder / "killed" / run / "heartbeat").glob("[0-9]*"))) for run in runs),
        "trained_again": sorted(trained_again),
        "differ": differ,
    }


def _sweep(folder: pathlib.Path, name: str) -> list[str]:
    flags = [f"--sweep={folder}/sweep.py", f"--workdir={folder / name}", "--parallel=2"]
    return [sys.executable, "-m", "plm_jax", "sweep", *flags]


def _again(workdir: pathlib.Path, finished: dict[str, int]) -> set[str]:
    """Returns finished runs that started again, and updates `finished`, the number of starts of each finished run."""
    again = set()
    for log in workdir.glob("*/evaluation.jsonl"):
        starts = len(list((log.parent / "heartbeat").glob("[0-9]*")))
        if finished.setdefault(log.parent.name, starts) != starts:
            again.add(log.parent.name)
    return again


def _metrics(workdir: pathlib.Path) -> dict[str, dict[str, float]]:
    runs = json.loads((workdir / "sweep.json").read_text())["runs"]
    return {run["name"]: run["metrics"] for run in runs}


def killed_watch(folder: pathlib.Path, kills: int, rng: random.Random, saves: int) -> dict:
    """Watches a run with kills, and its copy without any; all are forked from this process, which has no threads."""
    workdir, every, at_kills = folder / "watched", 3, []
    flags = [f"--config.train.steps={every * saves}", f"--config.checkpoint.save_every={every}"]
    run = _forked(*resume.command(folder, "dropout", workdir, *flags, f"--config.checkpoint.keep_last={saves}")[3:])
    for kill in range(kills):
        # The run advances by a share of its checkpoints.
        number = -(-saves * (kill + 1) // kills)
        os.kill(run, signal.SIGCONT)
        while _number_saved(workdir) < number:
            time.sleep(0.01)
        os.kill(run, signal.SIGSTOP)
        begun = min(rng.choice((0, 1, 2)), _number_saved(workdir) - _rows(workdir).total())
        watch = _forked(*_watch(workdir), log=folder / "log")
        while (folder / "log").read_text().count("evaluating checkpoint") < begun:
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 2.0))
        os.kill(watch, signal.SIGKILL)
        os.waitpid(watch, 0)  # It may have ended before, if the run is finished.
        at_kills.append(_rows(workdir).total())
        print(f"watch: {len(at_kills)} kills, {at_kills[-1]} rows", file=sys.stderr, flush=True)
    os.kill(run, signal.SIGCONT)
    _ended(_forked(*_watch(workdir)), 0)
    _ended(run, 0)
    twin = shutil.copytree(workdir, folder / "watched-twin", ignore=shutil.ignore_patterns("evaluation*", "samples*"))
    _ended(_forked(*_watch(twin)), 0)
    watched_rows, expected = (resume.json_lines(path / "evaluation.jsonl") for path in (workdir, twin))
    steps, rows = range(every, every * saves + 1, every), _rows(workdir)
    return {
        "checkpoints": saves,
        "kills": kills,
        "rows_at_kills": at_kills,
        "rows": sorted({rows[step] for step in steps}),
        "lost": sorted({*steps} - rows.keys()),
        "differ": [row["step"] for row in watched_rows if row not in expected],
    }


def _watch(workdir: pathlib.Path) -> list[str]:
    return ["evaluate", f"--checkpoint={workdir}", "--watch"]


def _rows(workdir: pathlib.Path) -> collections.Counter:
    """Returns the number of rows of each step."""
    return collections.Counter(row["step"] for row in resume.json_lines(workdir / "evaluation.jsonl"))


def _number_saved(workdir: pathlib.Path) -> int:
    return len([path for path in workdir.glob("checkpoints/*") if path.name.isdecimal()])


def _forked(verb: str, *flags: str, log: pathlib.Path = pathlib.Path(os.devnull)) -> int:
    """Forks a command, whose libraries are already imported; its stderr goes to `log`."""
    log.write_text("")
    process = os.fork()
    if not process:
        verbs._child(
            f"plm_jax.cli.{verb}", list(flags), ".", {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}, [os.devnull, str(log)]
        )
    return process


def _ended(process: int, status: int) -> None:
    """Waits for a process, which must end with this status."""
    ended = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if ended != status:
        sys.exit(f"process {process} ended with {ended}")


def _to_its_end(command: list[str]) -> None:
    finished = subprocess.run(command, env=resume.environment(), capture_output=True, text=True)
    if finished.returncode:
        sys.exit(f"{' '.join(command)} ended with {finished.returncode}: {finished.stderr[-2000:]}")


def main() -> None:
    """Runs both and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="number of kills of the sweep")
    parser.add_argument("--watch_kills", type=int, default=20, help="number of kills of the watch")
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        tiny.write(folder)
        prepare = [sys.executable, "-m", "plm_jax", "prepare", f"--config={folder}/tiny.py:dropout"]
        subprocess.run(prepare, env=resume.environment(), check=True, stdout=subprocess.DEVNULL, stderr=sys.stderr)
        if flags.kills:
            results["sweep"] = killed_sweep(folder, flags.kills, random.Random(flags.seed), RUNS, STEPS)
        if flags.watch_kills:
            verbs.import_libraries()
            from plm_jax.evaluation import watch  # noqa: F401

            results["watch"] = killed_watch(folder, flags.watch_kills, random.Random(flags.seed), SAVES)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
