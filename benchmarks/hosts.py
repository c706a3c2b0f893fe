"""Bytes that one of many hosts fetches from a cache in a bucket, compared with the bytes that it uses.

    python benchmarks/hosts.py
    python benchmarks/hosts.py --hosts 64 1024 --steps=20

Simulates some hosts of a job one after another, each with the trainer's reader in its own order, over a cache of random
tokens on a disk behind a file system that counts (`counted://`). A host uses the tokens of its rows. Bytes at the start
are counted separately: the manifest, data of the vocabulary, and milestones, 8 bytes for every 2^19 tokens, with which
the indices of documents and sentences are read by range. The indices of a corpus as small as this one would be fetched
whole, so that limit is set to 0 here.
"""

import contextlib
import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import bench
import fsspec
import input
from fsspec.implementations.local import LocalFileSystem

from plm_jax import config
from plm_jax.data.cache import vectors
from plm_jax.data.reader import Reader

# Row length and global batch size of LLaMA and RoBERTa.
SETTINGS = {8192: 2048, 512: 8192}


class Counted(LocalFileSystem):
    """Local file system under another name that counts reads.

    Attributes:
      fetched: bytes and requests of all instances so far.
    """

    protocol = "counted"
    fetched: ClassVar[list[int]] = [0, 0]

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        """Reads a range of a file; a bucket sends only these bytes."""
        with open(self._strip_protocol(path), "rb") as file:
            file.seek(start or 0)
            data = file.read(-1 if end is None else end - file.tell())
        self._count(len(data))
        return data

    def get_file(self, path1: str, path2: str, **options: Any) -> None:
        """Copies a whole file."""
        super().get_file(path1, path2, **options)
        self._count(self.size(path1))

    def open(self, path: str, *words: Any, **options: Any) -> Any:
        """Opens a file that is read to its end."""
        self._count(self.size(path))
        return super().open(path, *words, **options)

    def _count(self, num_bytes: int) -> None:
        self.fetched[0] += num_bytes
        self.fetched[1] += 1


@contextlib.contextmanager
def counting() -> Iterator[list[int]]:
    """Counts the bytes and requests within the context."""
    fsspec.register_implementation("counted", Counted, clobber=True)
    Counted.fetched[:] = 0, 0
    limit, vectors._SHORT_BYTES = vectors._SHORT_BYTES, 0
    try:
        yield Counted.fetched
    finally:
        vectors._SHORT_BYTES = limit


def simulate(folder: str, length: int, batch: int, num_hosts: int, host: int, steps: int) -> dict[str, float]:
    """Returns the bytes and requests of one host, at its start (up to the first batch) and per step."""
    run = input.make_run(f"counted://{folder}", "causal", steps + 1)
    data, train = dataclasses.replace(run.data, length=length), dataclasses.replace(run.train, batch_size=batch)
    run = dataclasses.replace(run, data=data, train=train)
    rows = range(host * batch // num_hosts, (host + 1) * batch // num_hosts)
    home = os.environ["HOME"]
    with tempfile.TemporaryDirectory() as os.environ["HOME"], counting() as fetched:  # Folder of a mirror.
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
    """Returns the means over the first, middle and last host, for each setting and number of hosts."""
    results: dict[str, dict[str, dict[str, float]]] = {}
    for length, batch in SETTINGS.items():
        for number in hosts:
            chosen = sorted({0, number // 2, number - 1})
            runs = [simulate(folder, length, batch, number, host, steps) for host in chosen]
            means = {key: round(statistics.mean(run[key] for run in runs), 4) for key in runs[0]}
            bench.log(f"{length} {number} {means}")
            results.setdefault(f"{batch} x {length}", {})[str(number)] = means
    return results


def run(hosts: tuple[int, ...] = (16, 128, 1024), steps: int = 4, tokens: int = 2**27) -> dict:
    """Measures all settings.

    Args:
      hosts: numbers of hosts.
      tokens: number of tokens in the cache, 2 bytes each.
    """
    with tempfile.TemporaryDirectory() as folder:
        input.write_cache(folder, tokens)
        return {"mean_document": input.MEAN_DOCUMENT, "hosts": measure(folder, list(hosts), steps)}


if __name__ == "__main__":
    bench.main(run)
