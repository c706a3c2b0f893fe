"""`prepare` at scale: speed, and the memory of every process, locally and on Beam. Prints one JSON object.

    python benchmarks/prepare.py                     # 1 GB of text, locally and with two workers of Beam
    python benchmarks/prepare.py --megabytes=200 --runners local
    python benchmarks/prepare.py --tiny              # to its end in seconds

The text is the State of the Union addresses that come with the package, over and over, each copy under another title,
as JSON lines; the vocabulary GPT-2's. The caches must be the same to the byte. Then 2,000 batches of 64 rows of 1,024
tokens are read. Memory is sampled ten times a second over the tree of processes (Linux): `resident` is the
kernel's own peak and counts pages of mapped files too, `anonymous` the largest that was seen.
"""

import argparse
import gzip
import hashlib
import itertools
import json
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import machine

from plm_jax import config
from plm_jax.data.reader import Reader

ROOT = pathlib.Path(__file__).parents[1]
CORPUS = ROOT / "plm_jax/data/corpora/sotu.jsonl.gz"
RUNNERS = {"local": [], "beam": ["--runner=beam", "--", "--direct_num_workers=2"]}
SOURCE = "webtext"
ROWS = 64


def write_text(folder: pathlib.Path, num_bytes: int, num_files: int) -> int:
    """Writes JSON lines with so much text; gives the bytes of the texts."""
    with gzip.open(CORPUS, "rt", encoding="utf-8") as file:
        speeches = [json.loads(line)["text"] for line in file]
    total = 0
    files = [open(folder / f"{i:03d}.jsonl", "w", encoding="utf-8") for i in range(num_files)]  # noqa: SIM115
    for document in itertools.count():
        if total >= num_bytes:
            break
        copy, number = divmod(document, len(speeches))
        text = f"Copy {copy} of address {number}.\n\n{speeches[number]}"
        files[document % num_files].write(json.dumps({"text": text}) + "\n")
        total += len(text.encode("utf-8"))
    for file in files:
        file.close()
    return total


def tree(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                yield from tree(int(child))
    except OSError:
        return


def memory(pid: int) -> dict[str, int]:
    """Bytes of a process: resident at most so far, anonymous now; nothing of one that has ended."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    found = {
        name: int(value.split()[0]) * 1024
        for name, _, value in (line.partition(":") for line in lines)
        if "kB" in value
    }
    return {"resident": found.get("VmHWM", 0), "anonymous": found.get("RssAnon", 0)}


def watched(command: list[str]) -> dict:
    """Runs a command; its seconds and, of its processes with more than 50 MB, the most memory."""
    peaks: dict[int, dict[str, int]] = {}
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, stdout=sys.stderr)

    def sample() -> None:
        while process.poll() is None:
            for pid in tree(process.pid):
                before = peaks.setdefault(pid, {"resident": 0, "anonymous": 0})
                peaks[pid] = before | {kind: max(before[kind], size) for kind, size in memory(pid).items()}
            time.sleep(0.1)

    thread = threading.Thread(target=sample)
    thread.start()
    status = process.wait()
    seconds = time.perf_counter() - began
    thread.join()
    if status:
        sys.exit(f"{' '.join(command)} ended with status {status}")
    largest = sorted(peaks.values(), key=lambda peak: -peak["resident"])
    megabytes = [{kind: round(size / 1e6) for kind, size in peak.items()} for peak in largest]
    return {"seconds": round(seconds, 1), "megabytes": [peak for peak in megabytes if peak["resident"] > 50]}


def digest(folder: pathlib.Path) -> str:
    """A hash of all files of a cache."""
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with open(path, "rb") as file:
            found.update(str(path.relative_to(folder)).encode() + hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


def read(batches: int, overrides: list[str]) -> None:
    """Reads batches of GPT-2's config with overrides."""
    path = ROOT / "configs/gpt2.py"
    tree = runpy.run_path(str(path))["get_config"]()
    tree.update_from_flattened_dict({"train.batch_size": ROWS, **dict(o.split("=", 1) for o in overrides)})
    for _ in itertools.islice(Reader(config.resolve(tree, str(path))).batches(0), batches):
        pass


def main() -> None:
    """Parses the flags and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=1000)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--runners", nargs="+", choices=RUNNERS, default=list(RUNNERS))
    parser.add_argument("--tiny", action="store_true", help="0.2 MB, two files, two batches")
    parser.add_argument("--read", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        read(arguments.batches, arguments.read)
        return
    if arguments.tiny:
        arguments.megabytes, arguments.files, arguments.batches = 0.2, 2, 2
    result = {"benchmark": "prepare", "machine": machine.describe(), "files": arguments.files, "runners": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text").mkdir()
        num_bytes = write_text(folder / "text", int(arguments.megabytes * 1e6), arguments.files)
        result["megabytes_of_text"] = round(num_bytes / 1e6, 1)
        digests = set()
        for runner in arguments.runners:
            paths = [f"data.sources.{SOURCE}.path={folder}/text/*.jsonl", f"data.cache_dir={folder}/{runner}"]
            overrides = [f"--config.{path}" for path in paths]
            verb = [sys.executable, "-m", "plm_jax.prepare", "--config=configs/gpt2.py:small", *overrides]
            done = watched([*verb, *RUNNERS[runner]])
            result["runners"][runner] = done | {"megabytes_per_second": round(num_bytes / 1e6 / done["seconds"], 2)}
            digests.add(digest(folder / runner / SOURCE))
        result["caches_are_the_same"] = len(digests) == 1
        command = [sys.executable, __file__, f"--batches={arguments.batches}", "--read", *paths]
        result["reading"] = {"batches": arguments.batches} | watched(command)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
