"""What a run's parts ask of each other is said in one line before anything begins."""

import dataclasses
import math

import pytest

from plm_jax import config, objectives
from plm_jax.common.errors import UserError
from tests.support.tiny import RUNS


def phases(**changed):
    return {"train": {"phases": (config.Phase(until=0.5), config.Phase(until=1.0, **changed))}}


MISTAKES = [
    ({"train": {"phases": (config.Phase(until=math.inf),)}}, "phases end at .inf.: give rising fractions"),
    ({"train": {"phases": (config.Phase(until=math.nan),)}}, "phases end at .nan.: give rising fractions"),
    ({"train": {"phases": (config.Phase(until=0.5),)}}, "the last is 1.0"),
    (phases(microbatches=0), "microbatches 0: give at least 1"),
    (phases(batch_size=0), "batch_size 0: give at least 1"),
    (phases(length=-3), "length -3: give at least 1"),
    (phases(mixture={"a": -1.0}), "config.data.mixture.a is -1.0"),
    ({"train": {"steps": 0}}, "config.train.steps is 0: give at least 1"),
    ({"data": {"window_tokens": 0}}, "config.data.window_tokens is 0: give at least 1"),
    ({"checkpoint": {"save_every": 0}}, "config.checkpoint.save_every is 0: give at least 1"),
    ({"evaluation": {"batch_size": 0}}, "config.evaluation.batch_size is 0: give at least 1"),
    ({"objective": objectives.MaskedLM()}, "trains a model of kind 'encoder', config.model.kind is 'decoder'"),
]


@pytest.mark.parametrize(("changes", "said"), MISTAKES, ids=[said for _, said in MISTAKES])
def test_a_mistake_is_said(changes, said):
    run = RUNS["plain"]
    for section, change in changes.items():
        made = dataclasses.replace(getattr(run, section), **change) if isinstance(change, dict) else change
        run = dataclasses.replace(run, **{section: made})
    assert config.from_dict(config.to_dict(RUNS["plain"])) == RUNS["plain"]
    with pytest.raises(UserError, match=said):
        config.from_dict(config.to_dict(run))
