"""Pretraining of language models in JAX: `plm_jax.load(path)` opens a trained one."""

import _signal  # The module that `signal` wraps with much slower imports.
import os
import sys

STOPPED = "stopped; run the same command again to go on"
# Python's name for the program until it has located the module that `-m` names, which imports this package.
_IS_PROGRAM = sys.argv[:1] == ["-m"]


def _drop_working_directory() -> None:
    """Removes the directory that `python -m plm_jax…` puts in front of `sys.path`, unless it holds this package.

    A user's data folder may have a `json.py` or a `numpy.py` in it. This runs before any other import: the modules
    above are loaded before Python looks at that directory.
    """
    is_searching = _IS_PROGRAM and not sys.flags.safe_path
    names = (argument.removeprefix("-m").partition(".")[0] for argument in sys.orig_argv)
    parent = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    if is_searching and __name__ in names and os.path.realpath(sys.path[0]) == os.path.realpath(os.getcwd()) != parent:
        del sys.path[0]


def end_at_interrupt() -> None:
    """Makes Ctrl-C end this process with one line until `command_line.run` is called, such as during imports."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # A job in the background ignores it.
        _signal.signal(_signal.SIGINT, _end)


def _end(*_: object) -> None:
    os.write(2, f"{STOPPED}\n".encode())
    os._exit(130)


_drop_working_directory()
if _IS_PROGRAM:
    end_at_interrupt()


def __getattr__(name: str) -> object:
    # JAX takes seconds to import; the config and the objectives do not need it.
    if name in ("LanguageModel", "load"):
        from plm_jax.inference import language_model

        return getattr(language_model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
