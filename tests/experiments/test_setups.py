"""Set-ups of papers compared with resolved configs: differences, values that are not stated, and their table."""

import dataclasses

import pytest

from plm_jax import config, objectives
from plm_jax.experiments import setups
from plm_jax.experiments.setups import NOT_STATED, BestOf, Setup
from plm_jax.training import schedules
from tests.support import tiny

RUN = dataclasses.replace(
    tiny.PLAIN,
    objective=objectives.MaskedLM(rate=0.2, duplicates=10),
    data=dataclasses.replace(tiny.PLAIN.data, length=64),
    schedule=config.LinearSchedule(learning_rate=3e-4, warmup_steps=20),
    train=config.TrainConfig(steps=200, batch_size=16),
)
SETUP = Setup(
    source="table 1",
    objective={"kind": "masked_lm", "rate": 0.2, "duplicates": 10},
    sources=list(RUN.data.sources),
    model={"kind": RUN.model.kind, "stack.layers": RUN.model.stack.layers},
    batch_size=16,
    steps=200,
    learning_rate=3e-4,
    warmup=20,
    length=64,
)


def names(setup, run=RUN):
    return [difference.name for difference in setups.differences(setup, run)]


def test_the_same_setup_has_no_differences():
    assert names(SETUP) == []
    assert names(dataclasses.replace(SETUP, learning_rate=BestOf((1e-4, 3e-4)))) == []


@pytest.mark.parametrize(
    "changes, name",
    [
        ({"objective": {"kind": "masked_lm", "rate": 0.15}}, "objective.rate"),
        ({"objective": {"kind": "causal"}}, "objective.kind"),
        ({"objective": {"kind": "masked_lm", "no_such_field": 1}}, "objective.no_such_field"),
        ({"model": {"stack.layers": 48}}, "model.stack.layers"),
        ({"rows": {"kind": "sentence_pairs"}}, "rows.kind"),
        ({"sources": ["another"]}, "sources"),
        ({"batch_size": 17}, "batch_size"),
        ({"batch_size": "as many as fit"}, "batch_size"),
        ({"steps": 201}, "steps"),
        ({"epochs": 3}, "epochs"),
        ({"learning_rate": 3.1e-4}, "learning_rate"),
        ({"learning_rate": BestOf((1e-4, 2e-4))}, "learning_rate"),
        ({"warmup": 0.1}, "warmup"),
        ({"length": ((0.9, 32), (1.0, 64))}, "length"),
        *(({name: NOT_STATED}, name) for name in ("objective", "model", "batch_size", "steps", "warmup", "length")),
    ],
)
def test_each_value_that_differs_or_is_not_stated_is_one_difference(changes, name):
    changed = dataclasses.replace(SETUP, **changes)
    (difference,) = setups.differences(changed, RUN)
    assert difference.name == name and difference.reason == ""
    (difference,) = setups.differences(changed.because(**{name.replace(".", "__"): "no room"}), RUN)
    assert difference.reason == "no room"


def test_epochs_and_phases_are_those_of_the_config():
    run = dataclasses.replace(RUN, train=config.TrainConfig(epochs=3.0, batch_size=16))
    assert names(dataclasses.replace(SETUP, steps=NOT_STATED, epochs=3), run) == []
    assert names(SETUP, run) == ["steps", "epochs"]
    phases = (config.PhaseConfig(until=0.9, length=32), config.PhaseConfig(until=1.0, batch_size=8))
    run = dataclasses.replace(RUN, train=dataclasses.replace(RUN.train, phases=phases))
    differences = {difference.name: difference.ours for difference in setups.differences(SETUP, run)}
    assert differences == {"batch_size": ((0.9, 16), (1.0, 8)), "length": ((0.9, 32), (1.0, 64))}


@pytest.mark.parametrize(
    "schedule",
    [
        config.ConstantSchedule(1e-3),
        config.LinearSchedule(2e-4, warmup_steps=100),
        config.LinearSchedule(2e-4, warmup_fraction=0.1),
        config.CosineSchedule(5e-4, warmup_steps=50),
        config.RsqrtSchedule(1.0, warmup_steps=400),
        config.RsqrtWarmupSchedule(2.0, warmup_steps=100),
    ],
)
def test_the_learning_rate_is_the_highest_that_the_schedule_reaches(schedule):
    steps = 1000
    highest = max(float(schedules.at(schedule.rate(steps), step)) for step in range(steps))
    run = dataclasses.replace(RUN, schedule=schedule, train=config.TrainConfig(steps=steps, batch_size=16))
    (reported,) = (
        d.ours for d in setups.differences(dataclasses.replace(SETUP, learning_rate=9.0), run) if d.paper == 9.0
    )
    assert reported == pytest.approx(highest, rel=1e-5)


def test_runs_with_the_same_difference_share_a_row_of_the_table():
    stated = {
        "a": dataclasses.replace(SETUP, steps=1_000_000).because(steps="too long"),
        "b": dataclasses.replace(SETUP, steps=1_000_000).because(steps="too long"),
        "c": dataclasses.replace(SETUP, warmup=NOT_STATED).because(warmup="BERT's"),
    }
    assert setups.table(dict.fromkeys(stated, RUN), stated)[1:] == [
        ("a, b", "steps", "1,000,000", "200", "too long", "table 1"),
        ("c", "warmup", "not stated", "20", "BERT's", "table 1"),
    ]
    assert setups.table({"a": RUN}, {"a": SETUP}) == []


def test_tuples_of_a_config_are_compared_and_shown_as_tuples():
    assert setups._is_same((0, 128), [0, 128]) and not setups._is_same((0, 128), [0, 64])
    assert (setups._text([0, 128]), setups._text(True), setups._text(2_048)) == ("0, 128", "True", "2,048")
