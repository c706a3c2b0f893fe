"""Memory, CPU time and bytes of whole cleaning jobs, on this machine and on real engines. Prints one JSON object.

    python benchmarks/clean_jobs.py                                      # 50, 200 and 800 MB of text, two processes
    python benchmarks/clean_jobs.py --megabytes 200 --workers 1          # one process
    python benchmarks/clean_jobs.py --megabytes 20 --engines dask,ray,spark --kill   # needs tests/engines.txt

A tenth of the pages are nearly copies of others; the lines of the rest are different. All rules of the English C4
except bad words run, and MinHash. Memory is the sum of the proportional set sizes of all processes, sampled four times
a second, at its largest. On an engine, a worker is killed with all its processes while the job runs. The hashes of the
outputs must be those of this machine's processes.
"""

import gzip
import hashlib
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from typing import Any

import bench
import clean as pages_of
import psutil

ROOT = pathlib.Path(__file__).parents[1]
SETTINGS = ("badwords=None", "near_duplicates.kind=minhash", "shards=4")
_FILE_BYTES = 2**25
_SAMPLE_SECONDS = 0.25


def write_crawl(folder: pathlib.Path, num_bytes: int) -> int:
    """Writes files with `num_bytes` bytes of text. Returns the number of pages."""
    folder.mkdir()
    rng, written, number = random.Random(1), 0, 0
    source = pages_of.generate(4000)
    while written < num_bytes:
        with gzip.open(folder / f"{number:04d}.jsonl.gz", "wt", compresslevel=1) as file:
            size = 0
            while size < _FILE_BYTES and written + size < num_bytes:
                page = source[rng.randrange(len(source))]
                lines = page.text.split("\n")
                if rng.random() > 0.1:  # Otherwise the same lines in another order, and another word.
                    lines = [line for each in rng.sample(source, 3) for line in rng.sample(each.text.split("\n"), 9)]
                    lines = [f"{rng.randrange(10**9)} {line}" for line in lines]
                rng.shuffle(lines)
                text = "\n".join([*lines, f"This page has the number {rng.randrange(10**9)} of all pages."])
                url = f"https://site{rng.randrange(997)}.org/{rng.randrange(10**12)}"
                file.write(json.dumps({"url": url, "text": text, "timestamp": page.timestamp}) + "\n")
                size += len(text)
        written, number = written + size, number + 1
    return number


def hashes(output: pathlib.Path) -> str:
    """Returns the SHA-256 of the names and contents of all files of an output, except its manifest."""
    digest = hashlib.sha256()
    for path in sorted(output.rglob("*")):
        if path.is_file() and path.name != "manifest.json":
            digest.update(str(path.relative_to(output)).encode() + path.read_bytes())
    return digest.hexdigest()


def watched(command: list[str], folder: pathlib.Path, events: Any = None) -> dict[str, Any]:
    """Runs a command. Returns its seconds, CPU seconds, peak memory and peak size of `folder`."""
    began, peak, disk, turn = time.monotonic(), 0, 0, 0
    before = psutil.Process().cpu_times()
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    root = psutil.Process(process.pid)
    while process.poll() is None:
        peak = max(peak, sum(map(_memory, [process.pid, *(child.pid for child in _children(root))])))
        if turn % 8 == 0:
            # It also returns an error if files are removed meanwhile.
            used = subprocess.run(["du", "-sk", folder], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
            disk = max(disk, int(used.stdout.split()[0]) * 1024)
        if events:
            events(time.monotonic() - began)
        turn += 1
        time.sleep(_SAMPLE_SECONDS)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed with status {process.returncode}")
    after = psutil.Process().cpu_times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {
        "seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(cpu, 1),
        "peak_megabytes": round(peak / 1e6),
        "peak_disk_megabytes": round(disk / 1e6),
    }


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _memory(pid: int) -> int:
    try:
        lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def command(crawl: pathlib.Path, output: pathlib.Path, engine: str, options: list[str]) -> list[str]:
    """Returns the command of a job."""
    flags = [f"--input={crawl}/*", f"--output={output}", f"--runner={engine}", *(f"--set={each}" for each in SETTINGS)]
    return [sys.executable, "-m", "plm_jax", "clean", *flags, "--", *options]


def on_engine(engine: str, crawl: pathlib.Path, folder: pathlib.Path, kill: bool) -> dict[str, Any]:
    """Runs a job on a cluster of this machine, and kills a worker meanwhile."""
    sys.path.insert(0, str(ROOT))
    from tests.support import clusters

    killed: list[float] = []
    with clusters.CLUSTERS[engine](folder) as cluster:

        def events(seconds: float) -> None:
            if kill and not killed and seconds > 25:
                clusters.kill(cluster.workers[-1])
                killed.append(round(seconds, 1))

        figures = watched(command(crawl, folder / engine, engine, cluster.options), folder, events)
    return {"seconds": figures["seconds"], "killed_after_seconds": killed, "sha256": hashes(folder / engine)}


def run(
    megabytes: tuple[int, ...] = (50, 200, 800), workers: int = 2, engines: str = "", kill: bool = False
) -> dict[str, Any]:
    """Runs a job for each size.

    Args:
      megabytes: bytes of text of the crawls.
      workers: processes on this machine.
      engines: further engines, such as `dask,ray,spark`.
      kill: whether to kill a worker of each engine.
    """
    results = {}
    for size in megabytes:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            write_crawl(folder / "crawl", size * 10**6)
            local = command(folder / "crawl", folder / "local", "local", [f"--workers={workers}"])
            figures = watched(local, folder)
            figures["peak_disk_megabytes"] -= round(sum(f.stat().st_size for f in (folder / "crawl").iterdir()) / 1e6)
            figures["sha256"] = hashes(folder / "local")
            for engine in filter(None, engines.split(",")):
                figures[engine] = on_engine(engine, folder / "crawl", folder, kill)
                if figures[engine]["sha256"] != figures["sha256"]:
                    sys.exit(f"{engine} does not give the same bytes")
            results[f"{size} MB"] = figures
            bench.log(f"{size} MB: {figures}")
    return {"workers": workers, "sizes": results}


if __name__ == "__main__":
    bench.main(run)
