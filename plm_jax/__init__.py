"""Pretraining of language models in JAX: `plm_jax.load(path)` opens a trained model."""

import os
import sys

# Python's name for the program until it has located the module that `-m` names, which imports this package.
_IS_PROGRAM = sys.argv[:1] == ["-m"]
TYPE_CHECKING = False  # Type checkers read it as true; `typing` is slow to import.


def _drop_working_directory() -> None:
    """Removes the working directory from the front of `sys.path`, where `python -m plm_jax…` puts it.

    Keeps the directory if it contains this package. In any other directory, a `json.py` or `numpy.py` would hide the
    real module. This function therefore runs before further imports.
    """
    is_searching = _IS_PROGRAM and not sys.flags.safe_path
    names = (argument.removeprefix("-m").partition(".")[0] for argument in sys.orig_argv)
    parent = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    if is_searching and __name__ in names and os.path.realpath(sys.path[0]) == os.path.realpath(os.getcwd()) != parent:
        del sys.path[0]


_drop_working_directory()
if _IS_PROGRAM:
    from plm_jax.common import interrupts

    interrupts.end_at_interrupt()
if TYPE_CHECKING:
    from plm_jax.evaluation.evaluate import evaluate
    from plm_jax.inference.language_model import LanguageModel, load
    from plm_jax.runs.train import finetune, pretrain

__version__ = "0.2.0.dev0"
__all__ = ["LanguageModel", "__version__", "evaluate", "finetune", "load", "pretrain"]

# Modules of the public names, imported at their first use: JAX takes seconds to import, and `status` does not need it.
_MODULES = {
    "LanguageModel": "plm_jax.inference.language_model",
    "evaluate": "plm_jax.evaluation.evaluate",
    "finetune": "plm_jax.runs.train",
    "load": "plm_jax.inference.language_model",
    "pretrain": "plm_jax.runs.train",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
