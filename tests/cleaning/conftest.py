"""C4's functions, for comparison."""

import pytest

from plm_jax.cleaning import punkt


@pytest.fixture
def c4(monkeypatch):
    """Module `tensorflow_datasets.text.c4_utils` with local parameters of Punkt instead of a download."""
    utils = pytest.importorskip("tensorflow_datasets.text.c4_utils")
    monkeypatch.setattr(utils, "_SENTENCE_TOKENIZER", punkt.english())
    monkeypatch.setattr(utils, "get_counter_inc_fn", lambda namespace: lambda name, amount=1: None)
    return utils
