"""Steps that leave the state as it was, the window in which spikes are told, and norms by layer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import config
from plm_jax.runs import setup
from plm_jax.training import norms, spikes
from tests.support import runs
from tests.support import tiny as tiny_runs

CASES = {
    "plain": ({"train": {"microbatches": 2, "trainable": (r"stack/blocks/1/.*", "head_norm.*|token.*")}}, 8),
    "elmo": ({}, 1),
    "albert": ({"precision": {"compute": "bfloat16"}}, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_non_finite_step_changes_only_the_step(tiny_copy, verb, name):
    """Frozen parameters over a mesh in microbatches; a state that is carried; LAMB in bfloat16 with two terms."""
    changed, devices = CASES[name]
    if name == "elmo":
        assert verb("prepare", f"--config={tiny_copy}/tiny.py:elmo").status == 0
    changed = {**changed, "train": {"log_norms": True, **changed.get("train", {})}}
    mesh = config.MeshConfig(data=2, fsdp=2, tensor=2) if devices > 1 else config.MeshConfig()
    job = setup.build(runs.make(tiny_copy, tiny_runs.RUNS[name], mesh=mesh, **changed), devices=jax.devices()[:devices])
    state, train_step = job.program.new_state(job.run.train.seed), job.program.phase_step(job.programs.phases[0])
    batches, fresh = runs.batches(job, 0), jax.device_get(state)
    state, metrics = train_step(state, next(batches)[0], *job.programs.inputs(0))
    assert int(metrics["incident"]) == spikes.NONE
    check_norms(job, jax.device_get(metrics), fresh.params, jax.device_get(state.params))
    leaves, tree = jax.tree.flatten(state.params)
    spoilt = state.replace(params=jax.tree.unflatten(tree, [leaves[0] * jnp.nan, *leaves[1:]]))
    before = jax.device_get(spoilt)
    after, metrics = train_step(spoilt, next(batches)[0], *job.programs.inputs(1))
    after = jax.device_get(after)
    assert int(metrics["incident"]) == spikes.LOST and not np.isfinite(metrics["grad_norm"])
    assert (int(before.step), int(after.step)) == (1, 2)
    *own, schedule = after.optimizer
    *own_before, schedule_before = before.optimizer
    assert (int(schedule_before.count), int(schedule.count)) == (1, 2)
    for one, other in ((after.params, before.params), (own, own_before), (after.carry, before.carry)):
        jax.tree.map(np.testing.assert_array_equal, one, other)
    np.testing.assert_array_equal(after.recent, before.recent)


def check_norms(job, metrics, before, after):
    """Compares the norms of parameters and updates with NumPy, and those of gradients with their global norm."""
    names = job.program.tensor_names()
    gradients, parameters, updates = metrics["norms"]
    assert len(names) == len(set(names)) == len(gradients)
    np.testing.assert_allclose(np.linalg.norm(gradients), metrics["grad_norm"], rtol=1e-5)
    before, after = runs.flat(before), runs.flat(after)
    for name, parameter, update in zip(names, parameters, updates, strict=True):
        start, _, end = name.partition("/blocks/")
        layer, _, rest = end.partition("/")
        leaf = f"{start}/blocks/{rest}" if end else name
        one, other = ((of[leaf][int(layer)] if end else of[leaf]).astype(np.float64) for of in (before, after))
        size = job.run.model.vocab_size if leaf == "token_embedding" else len(np.atleast_1d(one))
        one, other = np.atleast_1d(one)[:size], np.atleast_1d(other)[:size]
        np.testing.assert_allclose(parameter, np.linalg.norm(one), rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(update, np.linalg.norm(other - one), rtol=2e-2, atol=1e-6, err_msg=name)
    changed = {name for name in before if (before[name] != after[name]).any()}
    assert {name.replace("/blocks/0/", "/blocks/").replace("/blocks/1/", "/blocks/") for name in names} >= changed


def test_norms_of_layers_combine_their_tensors():
    names = ["embedding", "stack/blocks/0/a/kernel", "stack/blocks/1/a/kernel", "stack/blocks/0/b", "stack/blocks/1/b"]
    found = norms.by_layer(names, np.array([7.0, 3.0, 5.0, 4.0, 12.0]))
    assert found == {"embedding": 7.0, "stack/blocks/0": 5.0, "stack/blocks/1": 13.0}


@pytest.mark.parametrize("skips", [False, True])
def test_spikes_exceed_the_window_of_previous_steps(skips):
    """Against the rule written out in Python; the window begins anew with a phase."""
    rng, size, first = np.random.default_rng(1), 8, 50
    series = np.float32(rng.normal([5.0, 1.0], [0.1, 0.3], (100, 2)))
    for at, value in ((20, 9.0), (21, 9.5), (30, np.nan), (31, np.inf), (55, 90.0), (70, 5.9)):
        series[at, at % 2] = value
    watch = spikes.Watch(deviations=6.0, skips=skips, first_step=first)
    recent, window, told = spikes.window(size), [], []
    judge = jax.jit(functools.partial(spikes.judge, watch))
    for step, values in enumerate(series):
        if step == first:
            window = []
        expected = np.full(2, np.inf)
        if len(window) == size:
            mean = np.mean(window, axis=0)
            distance = np.abs(np.array(window) - mean).mean(0)
            expected = mean + 6.0 * np.maximum(distance, np.maximum(0.01 * mean, 0.001))
        verdict = judge(recent, step, values)
        np.testing.assert_allclose(verdict.limits, expected, rtol=1e-4)
        recent = verdict.recent
        is_spike = bool(np.isfinite(values).all() and (values > expected).any())
        assert verdict.incident == (
            spikes.SPIKE if is_spike else spikes.NONE if np.isfinite(values).all() else spikes.LOST
        )
        assert verdict.is_taken == (np.isfinite(values).all() and not (is_spike and skips))
        if np.isfinite(values).all():
            window = [*window, np.minimum(values, expected)][-size:]
            told += [step] * bool((values > expected).any())
    assert {20, 21, 70} <= set(told) and 55 not in told and len(told) < 8
