"""Measurements of the input benchmark on a small cache."""

import importlib

import numpy as np
import pytest

from plm_jax import config, objectives
from plm_jax.data.reader import Reader
from tests.support.roles import built_in


@pytest.fixture
def bench():
    return importlib.import_module("input")


def test_rows_of_every_objective_of_text_are_counted(bench, tmp_path):
    bench.write_cache(str(tmp_path), 300_000)
    every = {
        kind
        for kind, objective in built_in(objectives.Objective).items()
        if not issubclass(objective, objectives.LabeledObjective)
    }
    assert set(bench.OBJECTIVES) >= every
    counts = {}
    for name in bench.OBJECTIVES:
        batch = Reader(config.reader_config(bench.make_run(str(tmp_path), name, 10))).batch(0, range(4))
        counts[name] = bench.num_tokens(batch) / 4
    for name in ("causal", "masked_lm", "span_masked_lm", "replaced_token"):
        assert counts[name] == 512
    # An encoder-decoder reads two rows, of which full LM's first is eos alone; a biLM reads one twice.
    assert (counts["full_lm"], counts["bidirectional_lm"]) == (1 + 512, 512 + 512)
    assert counts["span_corruption"] == 512 + 114 and counts["denoising_masking"] == 512 + 512
    assert min(counts.values()) == counts["single_sentences"] > 20 and max(counts.values()) <= 1024


def test_the_peer_masks_the_same_blocks(bench, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    monkeypatch.setattr(bench, "BATCH", 8)
    monkeypatch.setattr(bench.collator, "WORKERS", 0)  # A process with JAX in it must not fork.
    bench.write_cache(str(tmp_path), 20_000)
    blocks_read = []
    collate = bench.collator.batches
    monkeypatch.setattr(
        bench.collator, "batches", lambda blocks, *rest: blocks_read.append(blocks) or collate(blocks, *rest)
    )
    assert list(bench.theirs(str(tmp_path), 3)) == [8 * 512.0] * 3
    run = bench.make_run(str(tmp_path), "full_lm", 10)
    rows = [row for batch in Reader(config.reader_config(run)).in_order("train", 4) for row in batch["targets"]]
    np.testing.assert_array_equal(blocks_read[0], rows[:24])


def test_a_peer_that_is_missing_is_said(bench, monkeypatch):
    monkeypatch.setattr(bench.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(bench, "measure_apart", lambda folder, name, *rest: {"tokens_per_second": 1})
    results = bench.measure_all(20_000, ["causal", "masked_lm"], 10, 0, 1)
    assert results == {
        "causal": {"tokens_per_second": 1},
        "masked_lm": {"tokens_per_second": 1},
        "peer": "not installed",
    }
    assert list(bench.measure_all(20_000, ["causal"], 10, 0, 1)) == ["causal"]
