"""Fixtures of the tests of checkpoints of other libraries."""

import pytest


@pytest.fixture
def reference():
    """Module `tests.support.reference`; skips without torch."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.support import reference

    return reference
