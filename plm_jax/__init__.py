"""Pretraining of language models in JAX: `plm_jax.load(path)` opens a trained one."""

import os
import sys


def _drop_working_directory() -> None:
    """Removes the directory that `python -m plm_jax…` puts in front of `sys.path`, unless it holds this package.

    A user's data folder may have a `json.py` or a `numpy.py` in it. This runs before any other import: both modules
    above are loaded before Python looks at that directory.
    """
    # Python has "-m" for the program's name until it has located the module, which imports this package.
    is_searching = sys.argv[:1] == ["-m"] and not sys.flags.safe_path
    names = (argument.removeprefix("-m").partition(".")[0] for argument in sys.orig_argv)
    parent = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    if is_searching and __name__ in names and os.path.realpath(sys.path[0]) == os.path.realpath(os.getcwd()) != parent:
        del sys.path[0]


_drop_working_directory()


def __getattr__(name: str) -> object:
    # JAX takes seconds to import; the config and the objectives do not need it.
    if name in ("LanguageModel", "load"):
        from plm_jax.inference import language_model

        return getattr(language_model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
