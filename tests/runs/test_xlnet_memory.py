"""XLNet's memory over the steps of a run: on several devices, and after resuming."""

import dataclasses

from plm_jax import config, models, objectives
from plm_jax.configs import xlnet
from tests.runs.test_references import assert_resumed_equals_whole
from tests.support import runs
from tests.support import tiny as tiny_runs


def of_memory(folder, train=None, dropout=0.0, **sections):
    """Returns a run of a small XLNet whose memory is longer than the half row that a batch adds to it."""
    model = xlnet.model(2, 32, 4, 272, memory_length=24, reuse_length=16, dropout=dropout)
    model = dataclasses.replace(model, initializer=models.InitializerConfig(std=0.2))
    return runs.make(
        folder,
        tiny_runs.PLAIN,
        model=model,
        objective=objectives.PermutationLM(),
        data={"layout": config.PairStreams(bi_data=True), "sources": {"a": config.TextTable("a.jsonl")}},
        train=train or {},
        **sections,
    )


def test_eight_devices_equal_one(tiny):
    runs.assert_eight_devices_equal_one(of_memory(tiny, train={"steps": 4}))


def test_resumed_run_equals_uninterrupted_one(tiny_copy, verb, tmp_path):
    checkpoint = config.CheckpointConfig(save_every=2, keep_last=9)
    run = of_memory(tiny_copy, train={"steps": 6}, dropout=0.1, checkpoint=checkpoint)
    assert_resumed_equals_whole(run, tiny_copy, verb, tmp_path)
