"""Campaigns of hostile and malformed files of other programs, opened by `plm_jax.load` and `vocabularies.load_plain`.

A case changes one file of a copy of a good model or vocabulary, and a child process opens it. The child may end with a
`UserError` of one line, or with a model if the change may do no harm. Other outcomes: `silent`, a wrong file that was
accepted; `traceback`, another exception, a crash, or more than 1 GB of memory; `hang`, more than 10 s.
"""

import functools
import pathlib
import random
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import faults_files_arrays as arrays
import faults_files_cases as cases
import faults_files_texts as texts
from faults_case import Campaign, child, to_its_end

SECONDS = 10.0
_TEXT = "The state of the Union is strong: café, ½ and ＦＵＬＬ.\n"


def _base(root: pathlib.Path) -> pathlib.Path:
    """Writes good models and vocabularies, and checks that each opens."""
    _warm_up()
    to_its_end(lambda: cases.make_bases(root / "bases"), 300.0, root / "log")
    for case in cases.good(root / "bases"):
        to_its_end(lambda case=case: _open(case), SECONDS, root / "log")
    return root


def _warm_up() -> None:
    """Imports the modules that children need; they must not start threads, which a child would lack."""
    import plm_jax
    import plm_jax.runs.checkpoint_formats
    from plm_jax.data import vocabularies

    return plm_jax.load, vocabularies.load_plain


def _try(makes: Sequence[Callable[..., Any]], root: pathlib.Path, number: int, rng: random.Random) -> tuple[str, str]:
    """Makes a case with one of the functions, in turn, and opens it."""
    folder = root / "case"
    shutil.rmtree(folder, ignore_errors=True)
    case = makes[number % len(makes)](root / "bases", folder, rng)
    outcome, output = child(lambda: _open(case), SECONDS, root / "log")
    if outcome == "ended":
        outcome = "silent" if case.is_bad else "handled"
    return outcome, f"{case.what}: {output}"


def _open(case: cases.Case) -> None:
    """Opens a model with all its weights, or a vocabulary, and encodes and decodes text."""
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


CAMPAIGNS = [
    Campaign(f"files: {name}", 80, _base, functools.partial(_try, makes))
    for name, makes in {
        "safetensors": arrays.SAFETENSORS,
        "configs": cases.CONFIGS,
        "tokenizers": texts.TOKENIZERS,
        "vocabularies": texts.VOCABULARIES,
        "hdf5": arrays.HDF5,
    }.items()
]
