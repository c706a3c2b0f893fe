"""Fixtures of the tests of checkpoints of other libraries."""

import pytest


@pytest.fixture(scope="session")
def vocabulary_folder(tmp_path_factory):
    """Folder of the vocabularies of `tests.support.exports`, each of which is trained once."""
    return tmp_path_factory.mktemp("vocabularies")


@pytest.fixture
def reference():
    """Module `tests.support.reference`; skips without torch."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.support import reference

    return reference
