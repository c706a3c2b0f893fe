"""Pretraining of language models in JAX: `plm_jax.load(path)` opens a trained one."""

from typing import Any


def __getattr__(name: str) -> Any:
    # JAX takes seconds to import; the config and the objectives do not need it.
    if name in ("LanguageModel", "load"):
        from plm_jax.inference import language_model

        return getattr(language_model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
