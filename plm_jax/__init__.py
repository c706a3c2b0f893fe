"""Pretraining of language models in JAX: `plm_jax.load(path)` opens a trained one."""

import _signal  # The module that `signal` wraps with much slower imports.
import os
import sys

STOPPED = "stopped; run the same command again to go on"


def end_at_interrupt() -> None:
    """Has Ctrl-C end this process with one line until `command_line.run` takes over, as while a verb is imported."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # A job in the background ignores it.
        _signal.signal(_signal.SIGINT, _end)


def _end(*_: object) -> None:
    os.write(2, f"{STOPPED}\n".encode())
    os._exit(130)


if sys.argv[:1] == ["-m"]:  # Python's name for a program until it has located the module, which imports this package.
    end_at_interrupt()


def __getattr__(name: str) -> object:
    # JAX takes seconds to import; the config and the objectives do not need it.
    if name in ("LanguageModel", "load"):
        from plm_jax.inference import language_model

        return getattr(language_model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
