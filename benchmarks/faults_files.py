"""Hostile and malformed files of others: what becomes of them at `plm_jax.load` and `vocabularies.load_plain`.

    python benchmarks/faults_files.py --number=400 --seed=0

A case makes one file of a good model or vocabulary bad, in a folder of its own, and a child process opens it. The child
may end with a `UserError` of one line or, where what was made bad by chance may still be good, with a model; anything
else is a fault: `silent`, a bad file that was taken for a good one; `traceback`, any other exception, a crash, or more
than 1 GB of memory above the start; `hang`, more than 10 s. What went wrong is told on stderr.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import faults_files_arrays as arrays
import faults_files_cases as cases
import faults_files_texts as texts

CAMPAIGNS = {
    "safetensors": arrays.SAFETENSORS,
    "configs": cases.CONFIGS,
    "tokenizers": texts.TOKENIZERS,
    "vocabularies": texts.VOCABULARIES,
    "hdf5": arrays.HDF5,
}
SECONDS, BYTES = 10.0, 2**30
_PAGE = os.sysconf("SC_PAGESIZE")
_TEXT = "The state of the Union is strong: café, ½ and ＦＵＬＬ.\n"


class Row(NamedTuple):
    """What became of the cases of a campaign."""

    campaign: str
    tried: int
    handled: int
    silent: int
    traceback: int
    hang: int


def hostile(number: int, seed: int) -> list[Row]:
    """Tries so many cases, spread over all campaigns and their cases; the same seed gives the same files."""
    counts = {name: dict.fromkeys(("tried", "handled", "silent", "traceback", "hang"), 0) for name in CAMPAIGNS}
    _warm_up()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        if _child(lambda: cases.make_bases(root / "bases"), 300.0, root / "log")[0] != "opened":
            raise RuntimeError((root / "log").read_text())
        for case in cases.good(root / "bases"):
            if _child(lambda case=case: _open(case), SECONDS, root / "log")[0] != "opened":
                raise RuntimeError(f"{case} is good: {(root / 'log').read_text()}")
        for index in range(number):
            campaign = list(CAMPAIGNS)[index % len(CAMPAIGNS)]
            every = CAMPAIGNS[campaign]
            make = every[index // len(CAMPAIGNS) % len(every)]
            outcome = _try(root, make, random.Random(f"{seed} {index}"))
            counts[campaign]["tried"] += 1
            counts[campaign][outcome] += 1
    return [Row(campaign, **found) for campaign, found in counts.items()]


def _warm_up() -> None:
    """Imports what children need; nothing that starts threads, which a child would not have."""
    import plm_jax
    import plm_jax.training.checkpoint_formats
    from plm_jax.data import vocabularies

    return plm_jax.load, vocabularies.load_plain


def _try(root: pathlib.Path, make: Callable[..., Any], rng: random.Random) -> str:
    """What becomes of one case."""
    folder = root / "case"
    shutil.rmtree(folder, ignore_errors=True)
    case = make(root / "bases", folder, rng)
    outcome, told = _child(lambda: _open(case), SECONDS, root / "log")
    if outcome == "opened":
        outcome = "silent" if case.is_bad else "handled"
    if outcome != "handled":
        said = (root / "log").read_text(errors="replace")[-1500:]
        print(f"{outcome}: {make.__name__} {case.what}: {told} {said}", file=sys.stderr, flush=True)
    elif os.environ.get("FAULTS_VERBOSE"):
        print(f"{make.__name__} {case.what}: {(root / 'log').read_text(errors='replace')[-300:]}", file=sys.stderr)
    return outcome


def _open(case: cases.Case) -> None:
    """Opens a model with all its weights, or a vocabulary, and reads and writes text."""
    import plm_jax
    from plm_jax.data import vocabularies

    if case.specification is not None:
        vocabulary = vocabularies.load_plain(case.specification)
    else:
        lm = plm_jax.load(case.path)
        if not lm.has_vocabulary:
            return
        vocabulary = lm.tokenizer
    vocabulary.decode(vocabulary.encode(_TEXT))


def _child(do: Callable[[], None], seconds: float, log: pathlib.Path) -> tuple[str, str]:
    """Does something in a process of its own: opened, handled, traceback or hang; and what ended it."""
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        os.dup2(os.open(log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), 2)
        os._exit(_status(do))
    begin, start = time.monotonic(), _resident(process)
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            break
        told = "more than 1 GB" if _resident(process) - start > BYTES else ""
        told = f"more than {seconds} s" if time.monotonic() - begin > seconds else told
        if told:
            os.kill(process, 9)
            os.waitpid(process, 0)
            return ("hang" if "s" in told.split() else "traceback"), told
        time.sleep(0.01)
    code = os.waitstatus_to_exitcode(status)
    return {0: "opened", 2: "handled"}.get(code, "traceback"), f"exit status {code}"


def _status(do: Callable[[], None]) -> int:
    """The exit status of a child: 0, 2 after a `UserError` of one line, 1 after anything else."""
    from plm_jax.common.errors import UserError

    try:
        do()
        return 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if len(str(error).splitlines()) == 1 and len(str(error)) < 2000 else 1
    except BaseException:
        traceback.print_exc()
        return 1


def _resident(process: int) -> int:
    """The bytes of a process that are in memory."""
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{process}/statm") as file:
        return int(file.read().split()[1]) * _PAGE
    return 0


def _rows(number: int, seed: int) -> Iterator[dict[str, Any]]:
    yield from (row._asdict() for row in hostile(number, seed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=400, help="of cases")
    parser.add_argument("--seed", type=int, default=0, help="of what is random in them")
    arguments = parser.parse_args()
    print(json.dumps(list(_rows(arguments.number, arguments.seed)), indent=2))
