"""Modules that are imported where they are first used, so that settings are read without JAX."""

import importlib
from typing import Any


class lazy:
    """Stands for a module of this name, which is imported when something of it is first asked for.

    jnp = lazy("jax.numpy")
    """

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)
