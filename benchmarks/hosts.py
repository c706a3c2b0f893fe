"""What a host of many fetches of a cache in a bucket, beside what it uses. Prints one JSON object.

    python benchmarks/hosts.py
    python benchmarks/hosts.py --hosts 64 1024 --steps=20

Some hosts of a job are simulated one after another, each with the trainer's own reader, in its own order, over a cache
of random tokens on a disk that is read through a file system that counts (`counted://`). A host uses the tokens of its
rows. What it fetches at its start is told apart: it is the manifest, what a vocabulary has, and milestones, 8 bytes
every 2^19 tokens of the corpus, by which the indices of documents and sentences are then read by range. Those of a
corpus as small as this one would be fetched whole, and so that limit is set to 0 here.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import fsspec
import input
import machine
from fsspec.implementations.local import LocalFileSystem

from plm_jax import config
from plm_jax.data.cache import vectors
from plm_jax.data.reader import Reader

# Tokens of a row, and rows of the global batch: LLaMA's and RoBERTa's.
SETTINGS = {8192: 2048, 512: 8192}


class Counted(LocalFileSystem):
    """The local file system by another name; it counts what is read.

    Attributes:
      fetched: bytes read and requests made so far, by all.
    """

    protocol = "counted"
    fetched: ClassVar[list[int]] = [0, 0]

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        """A part of a file; a bucket sends no more than is asked for."""
        with open(self._strip_protocol(path), "rb") as file:
            file.seek(start or 0)
            data = file.read(-1 if end is None else end - file.tell())
        self._count(len(data))
        return data

    def get_file(self, path1: str, path2: str, **options: Any) -> None:
        """A file fetched whole."""
        super().get_file(path1, path2, **options)
        self._count(self.size(path1))

    def open(self, path: str, *words: Any, **options: Any) -> Any:
        """A file that is read to its end."""
        self._count(self.size(path))
        return super().open(path, *words, **options)

    def _count(self, num_bytes: int) -> None:
        self.fetched[0] += num_bytes
        self.fetched[1] += 1


@contextlib.contextmanager
def counting() -> Iterator[list[int]]:
    """Bytes and requests within."""
    fsspec.register_implementation("counted", Counted, clobber=True)
    Counted.fetched[:] = 0, 0
    limit, vectors._SHORT_BYTES = vectors._SHORT_BYTES, 0
    try:
        yield Counted.fetched
    finally:
        vectors._SHORT_BYTES = limit


def simulate(folder: str, length: int, batch: int, num_hosts: int, host: int, steps: int) -> dict[str, float]:
    """One host of a job: bytes and requests at its start, up to its first batch, and a step."""
    run = input.make_run(f"counted://{folder}", "causal", steps + 1)
    data, train = dataclasses.replace(run.data, length=length), dataclasses.replace(run.train, batch_size=batch)
    run = dataclasses.replace(run, data=data, train=train)
    rows = range(host * batch // num_hosts, (host + 1) * batch // num_hosts)
    home = os.environ["HOME"]
    with tempfile.TemporaryDirectory() as os.environ["HOME"], counting() as fetched:  # Where a mirror would be.
        opened = Reader(config.reader_config(run), share=len(rows) / batch)
        opened.batch(0, rows)
        start, begin = list(fetched), time.perf_counter()
        for step in range(1, steps + 1):
            opened.batch(step, rows)
        seconds = time.perf_counter() - begin
    os.environ["HOME"] = home
    num_bytes, requests = ((now - before) / steps for now, before in zip(fetched, start, strict=True))
    used = len(rows) * length * 2
    return {
        "start_bytes": start[0],
        "bytes_a_step": num_bytes,
        "requests_a_step": requests,
        "used_a_step": used,
        "ratio": num_bytes / used,
        "seconds_a_step": seconds / steps,
    }


def measure(folder: str, hosts: list[int], steps: int) -> dict[str, dict[str, dict[str, float]]]:
    """Of each setting and number of hosts the means over a job's first, middle and last host."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for length, batch in SETTINGS.items():
        for number in hosts:
            chosen = sorted({0, number // 2, number - 1})
            runs = [simulate(folder, length, batch, number, host, steps) for host in chosen]
            means = {key: round(statistics.mean(run[key] for run in runs), 4) for key in runs[0]}
            print(length, number, means, file=sys.stderr)
            found.setdefault(f"{batch} x {length}", {})[str(number)] = means
    return found


def main() -> None:
    """Parses the flags and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[16, 128, 1024])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--tokens", type=float, default=2**27, help="of the cache, 2 bytes each")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        input.write_cache(folder, int(flags.tokens))
        hosts = measure(folder, flags.hosts, flags.steps)
    settings = {"steps": flags.steps, "tokens": int(flags.tokens), "mean_document": input.MEAN_DOCUMENT}
    print(
        json.dumps(
            {"benchmark": "hosts", "machine": machine.describe(), "settings": settings, "hosts": hosts}, indent=2
        )
    )


if __name__ == "__main__":
    main()
