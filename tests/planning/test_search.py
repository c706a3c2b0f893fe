"""What a search tries, and in which order."""

import dataclasses
import math

import jax
import pytest

from plm_jax import config, models, objectives
from plm_jax.common import overrides
from plm_jax.common.errors import UserError
from plm_jax.config import files as pages
from plm_jax.models import registry
from plm_jax.planning import plan as planning
from plm_jax.planning import search
from plm_jax.runs import phase_costs
from plm_jax.training import flops, mesh
from tests.planning.test_plan import SHARDED
from tests.support.tiny import T5

CHIP = flops.CHIPS["v5p"]
RUN = dataclasses.replace(SHARDED, model=dataclasses.replace(SHARDED.model, remat="none"))


def found(run=RUN, devices=8, chip=CHIP):
    (stage,) = config.resolve_phases(run)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(registry.shapes(run.model)))
    return search.candidates(run, stage, parameters, chip, devices)


def test_all_that_divides_is_tried_and_nothing_else():
    candidates = found()
    for candidate in candidates:
        mesh = candidate.run.mesh
        shards = mesh.data * mesh.fsdp
        assert shards * mesh.tensor * mesh.context * getattr(mesh, "stage", 1) == 8
        assert (64 // candidate.run.train.microbatches) % shards == 0
    assert {c.run.mesh.tensor for c in candidates} == {1, 2, 4}  # Of four heads.
    assert {c.run.mesh.data for c in candidates} >= {1, 2, 4, 8}
    assert {c.run.model.remat for c in candidates} == set(RUN.model.remat_levels)
    assert len({str(c.settings) for c in candidates}) == len(candidates)
    estimates = [c.cost.seconds for c in candidates]
    assert estimates == sorted(estimates)


def test_stages_are_tried_where_they_cut_the_layers():
    def stages(model):
        run = dataclasses.replace(RUN, model=model)
        return {candidate.run.mesh.stage for candidate in found(run)}

    four = dataclasses.replace(RUN.model, stack=models.StackConfig(layers=4))
    assert stages(four) == {1, 2, 4} and stages(RUN.model) == {1}
    assert stages(dataclasses.replace(T5, stack=four.stack, decoder_stack=models.StackConfig(layers=2))) == {1, 2}


def test_what_is_far_too_large_is_left_out():
    state = 16 * sum(leaf.size for leaf in jax.tree.leaves(registry.shapes(RUN.model)))
    small = dataclasses.replace(CHIP, hbm_bytes=state // 4)
    assert all(c.run.mesh.data <= 2 for c in found(chip=small))
    assert not found(chip=dataclasses.replace(CHIP, hbm_bytes=state // 100))


def test_long_rows_are_cut_where_rows_are_few():
    run = config.from_dict(pages.load("configs/llama.py:3.1-8b").config())
    run = dataclasses.replace(
        run,
        data=dataclasses.replace(run.data, length=131072),
        train=dataclasses.replace(run.train, batch_size=16, microbatches=1, phases=()),
    )
    candidates = found(run, 64)
    assert candidates and {c.run.mesh.context for c in candidates} <= {1, 2, 4, 8, 16}
    assert all(c.run.mesh.context * c.run.mesh.tensor >= 4 for c in candidates)


def compiled_as(monkeypatch, seconds):
    """Replaces the compiler: the middle of each program's time is what `seconds` says of it, None: it does not fit.

    The lower bound ranks the programs the other way round.
    """
    tried = []

    def compiled(program, say, price=0.0):
        tried.append(program)
        middle = seconds(program)
        report = {"bytes_per_device": {"total": 10**9}, "fits": middle is not None}
        if middle is None:
            return report
        bracket = {"optimistic": middle / 1.1, "middle": middle, "pessimistic": middle * 1.1}
        return report | {"estimate": {"seconds": bracket, "bound_seconds": 1 / middle}}

    monkeypatch.setattr(planning, "_compiled", compiled)
    monkeypatch.setattr(planning, "slice_devices", lambda topology, slices: jax.devices()[:8])
    monkeypatch.setattr(flops, "chip", lambda device: CHIP)
    return tried


def test_a_search_ranks_what_it_compiled_by_its_estimate(monkeypatch):
    tried = compiled_as(monkeypatch, lambda program: None if len(tried) == 2 else 10.0 / len(tried))
    report = planning.plan(RUN, "v5p:2x2x2", run_search=True)
    assert len(tried) == 1 + planning.MAX_FITTING + 1
    estimates = [one["estimate"]["seconds"]["middle"] for one in report["tried"] if one["fits"]]
    assert estimates == sorted(estimates) and report["estimate"]["seconds"]["middle"] == estimates[0]
    assert not report["tried"][-1]["fits"]
    assert report["settings"] and report["candidates"] == len(found())
    assert {} in [one["settings"] for one in report["tried"]], "the run as it is"
    lines = planning._tried_lines(report)
    assert lines[0].startswith("2 s (1.82 to 2.2), 1.0 GB: --config.mesh.") and lines[-1].startswith("does not fit")
    assert all("no clear difference" not in line for line in lines)


def test_a_search_says_which_candidates_it_cannot_separate(monkeypatch):
    tried = compiled_as(monkeypatch, lambda program: (1.0, 1.05, 1.3, 1.08)[len(tried) - 1])
    report = planning.plan(RUN, "v5p:2x2x2", run_search=True)
    assert [one.get("differs_from_best") for one in report["tried"]] == [None, False, False, True]
    lines = planning._tried_lines(report)
    assert ["no clear difference from option 1" in line for line in lines] == [False, True, True, False]


def test_a_search_ends_where_nothing_fits(monkeypatch):
    tried = compiled_as(monkeypatch, lambda program: None)
    report = planning.plan(RUN, "v5p:2x2x2", run_search=True)
    assert not report["fits"] and len(tried) == planning.MAX_COMPILED + 1


def test_a_search_counts_candidates_where_the_mesh_of_the_config_does_not_divide_the_batch(monkeypatch):
    tried = compiled_as(monkeypatch, lambda program: 1.0)
    run = dataclasses.replace(RUN, train=dataclasses.replace(RUN.train, batch_size=4))
    report = planning.plan(run, "v5p:2x2x2", run_search=True)
    assert len(tried) == planning.MAX_FITTING and all(one["settings"] for one in report["tried"])


def test_a_batch_that_no_mesh_divides_is_said(monkeypatch):
    compiled_as(monkeypatch, lambda program: 1.0)
    run = dataclasses.replace(RUN, train=dataclasses.replace(RUN.train, batch_size=3))
    with pytest.raises(UserError, match="no mesh of these devices divides"):
        planning.plan(run, "v5p:2x2x2", run_search=True)


@pytest.mark.parametrize(
    "objective", [objectives.FullLM(), objectives.Denoising(insert=0.6)], ids=lambda objective: objective.kind
)
def test_rows_of_any_length_have_candidates(objective):
    """The rows of these objectives do not have the `length` of the config."""
    model = RUN.model if objective.kind == "full_lm" else T5
    run = dataclasses.replace(RUN, model=model, objective=objective)
    (phase,) = config.resolve_phases(run)
    assert objective.row_length(phase.length) % 2 and search.candidates(run, phase, 10**6, CHIP, 8)


def test_every_candidate_gives_all_phases_its_mesh():
    phases = (config.PhaseConfig(until=0.5, length=16), config.PhaseConfig(until=1.0, mesh={"data": 1, "fsdp": 8}))
    run = dataclasses.replace(RUN, train=dataclasses.replace(RUN.train, microbatches=1, phases=phases))
    longest = config.resolve_phases(run)[1]
    for settings, changed in [
        *((each.settings, each.run) for each in search.candidates(run, longest, 10**6, CHIP, 8)),
        *planning.remedies(run, 8),
    ]:
        assert settings["train.phases.1.mesh"] is None
        assert all(config.mesh_of(changed, phase) == changed.mesh for phase in config.resolve_phases(changed))
        assert math.prod(mesh.sizes(changed.mesh)) == 8
        assert config.from_dict(overrides.overridden(run, settings)) == changed


def test_the_guess_knows_what_costs():
    (stage,) = config.resolve_phases(RUN)
    sizes = {"data": 1, "fsdp": 8, "tensor": 1, "context": 1}

    def guess(microbatches=1, remat="none", **changed):
        return search.estimate_cost(RUN, stage, 10**9, CHIP, sizes | changed, microbatches, remat)

    assert guess(remat="full").memory < guess(remat="dots").memory < guess().memory
    assert guess(remat="full").seconds >= guess().seconds
    assert guess(microbatches=4).memory < guess().memory
    assert guess(microbatches=4).seconds > guess().seconds, "weights are gathered once more for each"
    assert guess(data=8, fsdp=1).memory > guess().memory
    assert math.isclose(guess(data=8, fsdp=1).memory - guess().memory, 16 * 10**9 * 7 / 8)


@pytest.mark.parametrize(("is_gated", "num_activations"), [(False, 2), (True, 3)])
def test_a_recomputed_layer_is_in_memory_while_its_gradient_is_computed(is_gated, num_activations):
    """A device then holds the inputs of all layers and, in two bytes each, the activations of a single layer."""
    (phase,) = config.resolve_phases(RUN)
    sizes = {"data": 1, "fsdp": 8, "tensor": 1, "context": 1}

    def memory(width):
        feed_forward = dataclasses.replace(RUN.model.feed_forward, width=width, gated=is_gated)
        run = dataclasses.replace(RUN, model=dataclasses.replace(RUN.model, feed_forward=feed_forward))
        return search.estimate_cost(run, phase, 10**9, CHIP, sizes, 1, "full").memory

    tokens = phase.batch_size // 8 * phase.length
    assert math.isclose(memory(1064) - memory(64), 2 * num_activations * 1000 * tokens)


@pytest.mark.parametrize(("num_stages", "microbatches", "bubble"), [(1, 1, 0), (1, 4, 0), (2, 4, 1 / 4), (4, 2, 3 / 2)])
def test_stages_wait_for_the_first_and_the_last_microbatch(num_stages, microbatches, bubble):
    """The bubble is a share (p - 1) / m of the time of computation (Huang et al. 2019 §2.3, arXiv:1811.06965)."""
    (phase,) = config.resolve_phases(RUN)
    chip = dataclasses.replace(CHIP, hbm_bandwidth=1e30, network_bandwidth=1e30)
    sizes = {"stage": num_stages, "data": 8 // num_stages, "fsdp": 1, "tensor": 1, "context": 1}
    cost = search.estimate_cost(RUN, phase, 10**9, chip, sizes, microbatches, "none")
    computing = phase_costs.model_flops(RUN, phase) / 8 / (search.PRODUCTS_SHARE * chip.flops)
    assert math.isclose(cost.seconds, computing * (1 + bubble), rel_tol=1e-6)
