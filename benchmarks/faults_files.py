"""Hostile and malformed files of others: what becomes of them at `plm_jax.load` and `vocabularies.load_plain`.

    python benchmarks/faults_files.py --number=400 --seed=0

A case makes one file of a good model or vocabulary bad, in a folder of its own, and a child process opens it. The child
may end with a `UserError` of one line or, where what was made bad by chance may still be good, with a model; anything
else is a fault: `silent`, a bad file that was taken for a good one; `traceback`, any other exception, a crash, or more
than 1 GB of memory above the start; `hang`, more than 10 s. What went wrong is told on stderr.
"""

import argparse
import collections
import json
import pathlib
import random
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import faults_files_arrays as arrays
import faults_files_cases as cases
import faults_files_texts as texts
from faults_case import Row, child, count, row

CAMPAIGNS = {
    "safetensors": arrays.SAFETENSORS,
    "configs": cases.CONFIGS,
    "tokenizers": texts.TOKENIZERS,
    "vocabularies": texts.VOCABULARIES,
    "hdf5": arrays.HDF5,
}
SECONDS = 10.0
_TEXT = "The state of the Union is strong: café, ½ and ＦＵＬＬ.\n"


def hostile(number: int, seed: int) -> list[Row]:
    """Tries so many cases, spread over all campaigns and their cases; the same seed gives the same files."""
    counts = {name: collections.Counter() for name in CAMPAIGNS}
    _warm_up()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        _check(lambda: cases.make_bases(root / "bases"), 300.0, root / "log")
        for case in cases.good(root / "bases"):
            _check(lambda case=case: _open(case), SECONDS, root / "log")
        for index in range(number):
            campaign = list(CAMPAIGNS)[index % len(CAMPAIGNS)]
            every = CAMPAIGNS[campaign]
            make = every[index // len(CAMPAIGNS) % len(every)]
            count(counts[campaign], *_try(root, make, random.Random(f"{seed} {index}")))
    return [row(campaign, found) for campaign, found in counts.items()]


def _check(do: Callable[[], None], seconds: float, log: pathlib.Path) -> None:
    """Does what must succeed in a process of its own."""
    outcome, told = child(do, seconds, log)
    if outcome != "ended":
        raise RuntimeError(f"{outcome}, though all is good: {told}")


def _warm_up() -> None:
    """Imports what children need; nothing that starts threads, which a child would not have."""
    import plm_jax
    import plm_jax.training.checkpoint_formats
    from plm_jax.data import vocabularies

    return plm_jax.load, vocabularies.load_plain


def _try(root: pathlib.Path, make: Callable[..., Any], rng: random.Random) -> tuple[str, str]:
    """What becomes of one case, and what is told of it."""
    folder = root / "case"
    shutil.rmtree(folder, ignore_errors=True)
    case = make(root / "bases", folder, rng)
    outcome, told = child(lambda: _open(case), SECONDS, root / "log")
    if outcome == "ended":
        outcome = "silent" if case.is_bad else "handled"
    return outcome, f"{make.__name__} {case.what}: {told}"


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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=400, help="of cases")
    parser.add_argument("--seed", type=int, default=0, help="of what is random in them")
    arguments = parser.parse_args()
    print(json.dumps([one._asdict() for one in hostile(arguments.number, arguments.seed)], indent=2))
