"""Memory of a process that tokenizes, measured inside it."""

import pathlib
import sys
from collections.abc import Callable
from typing import NamedTuple

from plm_jax.data.prepare import tokenizing


class WorkerState(NamedTuple):
    """State of a process after it has tokenized a batch; memory in bytes.

    Attributes:
      num_documents: number of documents of the batch.
      modules: names of the packages that are imported.
      resident_at_start: resident memory before the first batch.
      anonymous: memory that no other process shares.
    """

    num_documents: int
    modules: set[str]
    resident_at_start: int
    anonymous: int


def memory(field: str) -> int:
    """Returns a field of this process's status, such as `VmRSS`, in bytes."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def measuring(task: tokenizing.TokenizingTask) -> Callable[[tokenizing.Batch], WorkerState]:
    """Returns a function that tokenizes a batch as a worker of `prepare` does, and measures this process."""
    encode, resident = tokenizing.encoder(task), memory("VmRSS")

    def measure(batch: tokenizing.Batch) -> WorkerState:
        block = encode(batch)
        packages = {name.partition(".")[0] for name in sys.modules}
        return WorkerState(block.documents, packages, resident, memory("RssAnon"))

    return measure
