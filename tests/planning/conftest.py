"""Compilation for TPUs on a machine without any."""

import pytest

from plm_jax.common import command_line


@pytest.fixture
def without_tpu(monkeypatch):
    """Sets the variables with which libtpu compiles without a TPU."""
    for name, value in command_line.WITHOUT_TPU.items():
        monkeypatch.setenv(name, value)
