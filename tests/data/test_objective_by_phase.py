"""Fields of the objective by phase, and those of validation: rows, plans, resumed runs and errors."""

import dataclasses

import numpy as np
import pytest

import plm_jax
from plm_jax import config, objectives
from plm_jax.common import overrides
from plm_jax.data.reader import Reader
from plm_jax.evaluation import perplexity
from plm_jax.experiments import examples
from plm_jax.planning import plan
from plm_jax.runs import loop, phase_costs, replay, resume, setup
from tests.support import runs
from tests.support import tiny as tiny_config
from tests.support.data import assert_rejected, changed, open_reader

IDS = {"pad": 91, "mask": 93, "sep": 94, "cls": 95}
PHASES = (
    config.PhaseConfig(until=0.5, objective={"rate": 0.5}),
    config.PhaseConfig(until=1.0, objective={"rate": 0.25, "whole_words": 1, "independent": True}),
)


@pytest.fixture
def run(write_source, make_run, random_documents):
    """A run of 8 steps of 4 rows of 16 tokens, whose rate is .5, then .25 of the words, and .125 in validation."""
    write_source("a", {"train": random_documents(1, 80), "validation": random_documents(2, 20)}, eos=None, **IDS)
    run = make_run(
        "a",
        eos=None,
        objective=objectives.MaskedLM(0.1),
        data={"length": 16},
        train={"steps": 8, "batch_size": 8, "phases": PHASES},
        **IDS,
    )
    return changed(run, evaluation={"objective": {"rate": 0.125}, "batch_size": 8, "every": 2})


def rows_of(reader, steps):
    return [reader.batch(step, range(8)) for step in steps]


def test_rows_are_those_of_runs_with_these_objectives(run):
    """Each phase equals a run without phases, and validation does in every phase."""
    reader = open_reader(run)
    for steps, fields in ((range(4), PHASES[0].objective), (range(4, 8), PHASES[1].objective)):
        alone = dataclasses.replace(run, objective=objectives.MaskedLM(**fields))
        alone = changed(alone, train={"phases": ()}, evaluation={"objective": {}})
        np.testing.assert_equal(rows_of(reader, steps), rows_of(open_reader(alone), steps))
    slots = {step: reader.batch(step, range(8))["targets"].shape[1] for step in (0, 4)}
    assert slots == {0: 8, 4: objectives.MaskedLM(0.25, whole_words=1, independent=True).target_length(16)}
    validated = changed(run, objective=objectives.MaskedLM(0.125), train={"phases": ()}, evaluation={"objective": {}})
    held_out, expected = (list(open_reader(each).in_order("validation", 8)) for each in (run, validated))
    np.testing.assert_equal(held_out, expected)
    assert held_out[0]["targets"].shape == (8, 2)


def test_costs_and_planned_batches_are_those_of_the_phase(run):
    job = setup.build(run)
    for phase in job.programs.phases:
        real = job.reader.batch(phase.first_step, range(8))
        _, planned, *_ = plan.step_inputs(job.programs, phase)
        assert {k: (v.shape, v.dtype) for k, v in planned.items()} == {k: (v.shape, v.dtype) for k, v in real.items()}
        assert phase_costs.row_lengths(run, phase)[1] == real["targets"].shape[1]
    assert plan.costliest_phase(run) == job.programs.phases[1]
    first = changed(run, train={"phases": (PHASES[0], config.PhaseConfig(until=1.0))})
    assert plan.costliest_phase(first).first_step == 0


def test_a_finished_phase_keeps_its_objective(run):
    """A resumed run may have other objectives from now on; examples that were read stay as they were."""
    before = config.resolve_phases(run)
    later = changed(run, train={"phases": (PHASES[0], config.PhaseConfig(until=1.0, objective={"rate": 0.4}))})
    phases = resume.plan_phases(before, config.resolve_phases(later), 4)
    assert [phase.objective for phase in phases] == [{"rate": 0.5}, {"rate": 0.4}]
    assert resume.spans_of_rows(before, 4) == resume.spans_of_rows(config.resolve_phases(later), 4)
    assert resume.spans_of_rows(before, 5) != resume.spans_of_rows(config.resolve_phases(later), 5)
    reader = open_reader(later)
    np.testing.assert_equal(rows_of(open_reader(run), range(4)), rows_of(reader, range(4)))
    assert reader.batch(4, range(8))["targets"].shape[1] == 6
    saved = dataclasses.replace(before[1], objective={"ngram_weights": [0.5, 0.5], "whole_words": 2})
    assert config.PhaseConfig(1.0, objective=dict(saved.objective)).objective == saved.objective


def test_a_replay_equals_the_run_and_evaluate_has_the_objective_of_validation(tiny, tmp_path):
    """Bit for bit, from a checkpoint within the phase before."""
    phases = (config.PhaseConfig(until=0.67, objective={"rate": 0.4}), config.PhaseConfig(until=1.0))
    run = runs.make(
        tiny,
        tiny_config.RUNS["roberta"],
        train={"phases": phases},
        evaluation={"every": 3, "batch_size": 8, "objective": {"rate": 0.3}},
    )
    loop.pretrain(run, str(tmp_path / "run"))
    lines = []
    replay.replay(str(tmp_path / "run"), 5, lines.append)
    assert lines[-1].startswith("bit-identical")
    for step in (2, 6):
        assert ", equal to metrics.jsonl" in next(examples.of_step(str(tmp_path / "run"), step))
    lm = plm_jax.load(str(tmp_path / "run"))
    assert lm.run is not None
    evaluated = perplexity.evaluate(lm, lm.run, "a", show_progress=False)
    validated = runs.column(tmp_path / "run", "validation/a/loss")[6]
    np.testing.assert_allclose(evaluated["loss"], validated, rtol=1e-5)
    rows = Reader(config.reader_config(run)).num_rows("validation")["a"]
    assert evaluated["tokens"] > 0.25 * 32 * (rows - 1)  # Of the last row's padding none is predicted.


def test_other_fields_are_one_line(run):
    def phase(**fields):
        return {"phases": (config.PhaseConfig(until=1.0, objective=fields),)}

    assert_rejected("there is no field config.train.phases.objective.rat:", run, train=phase(rat=0.3))
    assert_rejected("config.train.phases.objective.rate is 2", run, train=phase(rate=2.0))
    assert_rejected("kind is 'causal'", run, train=phase(kind="causal"))
    assert_rejected("config.evaluation.objective.rate is 'a'", run, evaluation={"objective": {"rate": "a"}})
    assert_rejected("set config.data.similar_words", run, train=phase(similar_share=0.1, whole_words=1))
    electra = dataclasses.replace(run, objective=objectives.ReplacedToken(), model=tiny_config.ELECTRA)
    assert_rejected("discriminator_weight is a setting of the loss", electra, train=phase(discriminator_weight=1.0))
    tables = {"b": config.TableInputsTargets("b.csv", inputs="x", targets="y")}
    t5 = dataclasses.replace(run, objective=objectives.SpanCorruption(), model=tiny_config.T5)
    t5 = changed(t5, vocabulary={"sentinels": 8}, evaluation={"objective": {}}, train={"phases": ()})
    assert_rejected("leave out their objective", t5, data={"sources": tables}, train=phase(noise_density=0.3))


def test_flags_set_fields_of_a_phase_and_of_validation(run):
    tree = config.to_dict(run)
    changes = [("train.phases.0.objective.rate", "0.3"), ("evaluation.objective.ngram_weights", "(0.5, 0.5)")]
    changes += [("evaluation.objective.whole_words", "2"), ("evaluation.objective.rate", "0.2")]
    after = config.from_dict(overrides.apply(tree, changes, config.Run))
    assert after.train.phases[0].objective == {"rate": 0.3}
    assert config.in_validation(after).objective == objectives.MaskedLM(0.2, whole_words=2, ngram_weights=(0.5, 0.5))
