"""C4's own functions to compare with."""

import pytest

from plm_jax.cleaning import punkt


@pytest.fixture
def c4(monkeypatch):
    """`tensorflow_datasets.text.c4_utils`, with Punkt's parameters as we have them instead of a download."""
    utils = pytest.importorskip("tensorflow_datasets.text.c4_utils")
    monkeypatch.setattr(utils, "_SENTENCE_TOKENIZER", punkt.english())
    monkeypatch.setattr(utils, "get_counter_inc_fn", lambda namespace: lambda name, amount=1: None)
    return utils
