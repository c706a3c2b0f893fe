"""A sweep that is killed again and again, and a watch of a run; each is compared with one that was left alone.

    python benchmarks/faults_sweeps.py --kills=10 --watch_kills=20 --seed=0

`sweep`: six tiny runs, three of which begin with the weights of others, two at once; SIGKILL reaches the sweep alone,
and the runs that it leaves have to see to their end. `trained_again`: runs that began anew when they were finished;
`differ`: runs whose metrics, or a step's loss or batch, are not those of the sweep that was left alone.
`watch`: `evaluate --watch` of a run that goes on by one checkpoint or so between two kills, which come while it starts,
or within its first or second evaluation. `rows`: how often each of the run's checkpoints has one; `differ`: rows that
are not those of a watch that was left alone.
"""

import argparse
import collections
import json
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

from tests.support import resume, tiny  # noqa: E402

SWEEP = """
base = "tiny.py:dropout"

def overrides():
    for name, parent in {runs}.items():
        yield name, {{"train.steps": {steps}, "checkpoint.save_every": 5, "train.init_from": parent}}
"""
# By their names, each after its parent.
RUNS = {"a": "", "b": "", "a-1": "a", "a-2": "a-1", "b-1": "b", "c": ""}
STEPS, SAVES = 40, 12


def killed_sweep(folder: pathlib.Path, kills: int, rng: random.Random, runs: dict[str, str], steps: int) -> dict:
    """Runs the sweep to its end, and again over so many kills."""
    (folder / "sweep.py").write_text(SWEEP.format(runs=runs, steps=steps))
    began = time.monotonic()
    _to_its_end(_sweep(folder, "twin"))
    seconds, finished, trained_again, at_kills = time.monotonic() - began, {}, set(), []
    for _ in range(kills):
        process = _started(_sweep(folder, "killed"))
        deadline = time.monotonic() + rng.uniform(1.0, 0.4 * seconds)
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
        process.wait()
        trained_again |= _again(folder / "killed", finished)
        at_kills.append(len(finished))
    _to_its_end(_sweep(folder, "killed"))
    trained_again |= _again(folder / "killed", finished)
    found, wanted = (_metrics(folder / name) for name in ("killed", "twin"))
    differ = [
        run
        for run in runs
        if found[run] != wanted[run] or resume.differences(folder / "killed" / run, folder / "twin" / run)
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
    return [sys.executable, "-m", "plm_jax.sweep", *flags]


def _again(workdir: pathlib.Path, finished: dict[str, int]) -> set[str]:
    """Which runs have begun anew since they were seen finished; `finished` are their starts, brought up to date."""
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
    """Watches a run over so many kills, and its copy without any."""
    workdir, every = folder / "watched", 3
    flags = [f"--config.train.steps={every * saves}", f"--config.checkpoint.save_every={every}"]
    run = _started(resume.command(folder, "dropout", workdir, *flags, f"--config.checkpoint.keep_last={saves}"))
    number, at_kills = 0, []
    for kill in range(kills):
        # The run goes on by a share of its checkpoints.
        number = max(number, -(-saves * (kill + 1) // kills))
        _until_saved(run, workdir, number)
        process = _started(_watch(workdir), stderr=subprocess.PIPE)
        begun = min(rng.choice((0, 1, 2)), number - len(resume.json_lines(workdir / "evaluation.jsonl")))
        for line in process.stderr if begun else ():
            begun -= b"evaluating checkpoint" in line
            if not begun:
                break
        time.sleep(rng.uniform(0.0, 3.0))
        process.kill()
        process.communicate()
        at_kills.append(len(resume.json_lines(workdir / "evaluation.jsonl")))
    run.send_signal(signal.SIGCONT)
    _to_its_end(_watch(workdir))
    assert run.wait() == 0
    twin = shutil.copytree(workdir, folder / "watched-twin", ignore=shutil.ignore_patterns("evaluation*", "samples*"))
    _to_its_end(_watch(twin))
    found, wanted = (resume.json_lines(path / "evaluation.jsonl") for path in (workdir, twin))
    rows = collections.Counter(row["step"] for row in found)
    return {
        "checkpoints": saves,
        "kills": kills,
        "rows_at_kills": at_kills,
        "rows": sorted({rows[step] for step in range(every, every * saves + 1, every)}),
        "lost": sorted(set(range(every, every * saves + 1, every)) - rows.keys()),
        "differ": [row["step"] for row in found if row not in wanted],
    }


def _watch(workdir: pathlib.Path) -> list[str]:
    return [sys.executable, "-m", "plm_jax.evaluate", f"--checkpoint={workdir}", "--watch"]


def _until_saved(run: subprocess.Popen, workdir: pathlib.Path, number: int) -> None:
    """Lets a run go on until it has so many checkpoints, or it ends."""
    run.send_signal(signal.SIGCONT)
    while (
        run.poll() is None and len([path for path in workdir.glob("checkpoints/*") if path.name.isdecimal()]) < number
    ):
        time.sleep(0.01)
    run.send_signal(signal.SIGSTOP)


def _started(command: list[str], **options: int) -> subprocess.Popen:
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, env=resume.environment(), start_new_session=True, **{**silent, **options})


def _to_its_end(command: list[str]) -> None:
    finished = subprocess.run(command, env=resume.environment(), capture_output=True, text=True)
    if finished.returncode:
        sys.exit(f"{' '.join(command)} ended with {finished.returncode}: {finished.stderr[-2000:]}")


def main() -> None:
    """Prints what became of both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="of the sweep; 0: none")
    parser.add_argument("--watch_kills", type=int, default=20, help="of the watch; 0: none")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        tiny.write(folder)
        prepare = [sys.executable, "-m", "plm_jax.prepare", f"--config={folder}/tiny.py:dropout"]
        subprocess.run(prepare, env=resume.environment(), check=True, stdout=subprocess.DEVNULL, stderr=sys.stderr)
        if given.kills:
            found["sweep"] = killed_sweep(folder, given.kills, random.Random(given.seed), RUNS, STEPS)
        if given.watch_kills:
            found["watch"] = killed_watch(folder, given.watch_kills, random.Random(given.seed), SAVES)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
