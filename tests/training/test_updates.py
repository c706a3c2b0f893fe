"""Several updates in one step: their order, the arrays that they pass on, their moments, and steps that are skipped."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plm_jax import losses
from plm_jax.common import keys
from plm_jax.training import norms, spikes, state, step, trainable, updates
from plm_jax.training.state import AverageConfig

ROOT = keys.from_seed(7)
ROWS, RATE = 12, 0.1
ACTOR, CRITIC = trainable.Trainable(("actor",)), trainable.Trainable(("critic", "shared"))


class ActorLoss(losses.Loss):
    """Mean of (actor · x - y)²; passes its residuals on."""

    def weights(self, model, batch):
        return {"actor": jnp.float32(len(batch["x"]))}

    def __call__(self, model, params, batch, rngs, carry):
        residual = params["actor"] * batch["x"] - batch["y"]
        return {"actor": jnp.sum(residual**2)}, {"actor": {"accuracy": jnp.sum(residual > 0)}}, {"residual": residual}


class CriticLoss(losses.Loss):
    """Mean of (critic · residual - actor · shared)², with residuals of the actor's update."""

    def weights(self, model, batch):
        return {"critic": jnp.float32(len(batch["x"]))}

    def __call__(self, model, params, batch, rngs, carry):
        error = params["critic"] * batch["residual"] - params["actor"] * params["shared"]
        return {"critic": jnp.sum(error**2)}, {"critic": {"accuracy": jnp.sum(error > 0)}}, carry


def batch(rng):
    x, y = rng.normal(size=(2, ROWS)).astype(np.float32)
    return {"x": x, "y": y, "digest": np.arange(2 * ROWS, dtype=np.uint32).reshape(ROWS, 2)}


def joined(optimizers):
    return updates.joined(dict(zip(("actor", "critic"), optimizers, strict=True)))


def start(optimizers):
    params = {name: jnp.float32(value) for name, value in (("actor", 0.5), ("critic", -0.25), ("shared", 2.0))}
    return state.new_state(params, joined(optimizers))


def momentum(part, decay=0.9):
    """Returns SGD with momentum over a part of the parameters, at a rate that is passed."""
    trace = optax.trace(decay)

    def update(updates, state, params=None, **extra_args):
        direction, state = trace.update(updates, state)
        return jax.tree.map(lambda each: -extra_args["learning_rate"] * each, direction), state

    return optax.GradientTransformationExtraArgs(lambda params: trace.init(part.of(params)), update)


def sequence(optimizers, microbatches=1, watch=None, average=None, log_norms=False):
    model: Any = None  # The losses apply none.
    actor = step.train_step(ActorLoss(), model, optimizers[0], microbatches, part=ACTOR, log_norms=log_norms)
    critic = step.train_step(CriticLoss(), model, optimizers[1], microbatches, part=CRITIC, log_norms=log_norms)
    return jax.jit(updates.in_sequence({"actor": actor, "critic": critic}, watch, average))


def expected_steps(batches, decay=0.9):
    """Yields the parameters, losses and gradients of each step in float64, from derivatives on paper."""
    actor, critic, shared = 0.5, -0.25, 2.0
    moments = np.zeros(3)
    for each in batches:
        x, y = (each[name].astype(np.float64) for name in ("x", "y"))
        residual = actor * x - y
        grads = [np.mean(2 * residual * x)]
        moments[0] = decay * moments[0] + grads[0]
        actor -= RATE * moments[0]
        # The residuals are those before the actor's update, and the actor is the updated one.
        error = critic * residual - actor * shared
        grads += [np.mean(2 * error * residual), np.mean(-2 * error * actor)]
        moments[1:] = decay * moments[1:] + grads[1:]
        critic, shared = (critic, shared) - RATE * moments[1:]
        params = {"actor": actor, "critic": critic, "shared": shared}
        yield params, (np.mean(residual**2), np.mean(error**2)), np.array(grads)


@pytest.mark.parametrize("microbatches", [1, 3])
def test_later_updates_use_new_parameters_and_earlier_arrays(microbatches):
    optimizers = momentum(ACTOR), momentum(CRITIC)
    run, current, rng = sequence(optimizers, microbatches, log_norms=True), start(optimizers), np.random.default_rng(0)
    batches = [batch(rng) for _ in range(4)]
    for each, (params, (actor, critic), grads) in zip(batches, expected_steps(batches), strict=True):
        current, metrics = run(current, each, ROOT, jnp.float32(RATE))
        for name, value in params.items():
            np.testing.assert_allclose(current.params[name], value, rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(metrics["loss/actor"], actor, rtol=1e-5)
        np.testing.assert_allclose(metrics["loss/critic"], critic, rtol=1e-5)
        np.testing.assert_allclose(metrics["loss"], actor + critic, rtol=1e-5)
        np.testing.assert_allclose(metrics["grad_norm"], np.linalg.norm(grads), rtol=1e-5)
        np.testing.assert_allclose(metrics["grad_norm/critic"], np.linalg.norm(grads[1:]), rtol=1e-5)
        np.testing.assert_allclose(metrics["norms"][0], np.abs(grads), rtol=1e-5)
        assert metrics["norms"].shape == (3, 3) and {"accuracy/actor", "accuracy/critic"} <= metrics.keys()
        np.testing.assert_array_equal(metrics["digest"], each["digest"].sum(0))
    assert int(current.step) == 4 and current.carry == {}


@pytest.mark.parametrize("name", ["actor", "critic"])
def test_no_update_is_made_if_one_is_not_finite(name):
    optimizers = momentum(ACTOR), momentum(CRITIC)
    average = AverageConfig(decay=0.5)
    run, before = sequence(optimizers, average=average), start(optimizers)
    before, _ = run(before.replace(average=before.params), batch(np.random.default_rng(0)), ROOT, jnp.float32(RATE))
    # An infinite `critic` leaves the actor's update finite.
    lost = before.replace(params=before.params | {name: jnp.float32(np.inf)})
    after, metrics = run(lost, batch(np.random.default_rng(1)), ROOT, jnp.float32(RATE))
    assert metrics["incident"] == spikes.LOST
    assert int(after.step) == int(lost.step) + 1
    for part in ("params", "optimizer", "average"):
        jax.tree.map(np.testing.assert_array_equal, getattr(after, part), getattr(lost, part))


def test_average_is_of_the_parameters_after_the_last_update():
    optimizers = momentum(ACTOR), momentum(CRITIC)
    run, before = sequence(optimizers, average=AverageConfig(decay=0.75)), start(optimizers)
    after, _ = run(before.replace(average=before.params), batch(np.random.default_rng(0)), ROOT, jnp.float32(RATE))
    for name, value in after.params.items():
        expected = 0.75 * before.params[name] + 0.25 * value
        np.testing.assert_allclose(after.average[name], expected, rtol=1e-6, err_msg=name)
        assert value != before.params[name]


def test_each_update_has_the_key_of_the_step_and_the_carry_before_it():
    @dataclass(frozen=True)
    class Adding(losses.Loss):
        """Adds an amount to the carry; reports a random number."""

        samples: ClassVar[bool] = True
        amount: float = 0.0

        def weights(self, model, batch):
            return {"term": jnp.float32(1)}

        def __call__(self, model, params, batch, rngs, carry):
            term = params["actor"] ** 2 + params["critic"] ** 2
            draw = jax.random.uniform(rngs["sample"])
            return {"term": term}, {"term": {"draw": draw}}, {"total": carry["total"] + self.amount}

    model: Any = None
    optimizers = momentum(ACTOR), momentum(CRITIC)
    both = {
        name: step.train_step(Adding(amount=amount), model, optimizer, part=part)
        for name, amount, optimizer, part in zip(
            ("actor", "critic"), (1.0, 10.0), optimizers, (ACTOR, CRITIC), strict=True
        )
    }
    run, current = jax.jit(updates.in_sequence(both, None, None)), start(optimizers)
    current = current.replace(carry={"total": jnp.zeros(ROWS)})
    for number in range(2):
        current, metrics = run(current, batch(np.random.default_rng(0)), ROOT, jnp.float32(RATE))
        draw = jax.random.uniform(step.rngs(ROOT, number, 0, ["sample"])["sample"])
        assert metrics["draw/actor"] == metrics["draw/critic"] == draw
        np.testing.assert_array_equal(current.carry["total"], 10.0 * (number + 1))


def test_spike_of_the_sum_skips_every_update():
    optimizers = momentum(ACTOR), momentum(CRITIC)
    watch = spikes.Watch(deviations=2.0, skips=True, window=4)
    run = sequence(optimizers, watch=watch)
    params = start(optimizers).params
    current, usual = (
        state.new_state(params, joined(optimizers), window=4),
        batch(np.random.default_rng(0)),
    )
    for _ in range(4):
        current, metrics = run(current, usual, ROOT, jnp.float32(1e-6))
        assert metrics["incident"] == spikes.NONE
    after, metrics = run(current, usual | {"y": usual["y"] + 30}, ROOT, jnp.float32(1e-6))
    assert metrics["incident"] == spikes.SPIKE and metrics["loss"] > metrics["limits"][0]
    jax.tree.map(np.testing.assert_array_equal, after.params, current.params)
    jax.tree.map(np.testing.assert_array_equal, after.optimizer, current.optimizer)


def test_norms_of_updates_that_train_the_same_layers_stay_apart():
    names = [
        f"{tensor} ({update})" for update in ("actor", "critic") for tensor in ("stack/blocks/0/k", "stack/blocks/0/b")
    ]
    expected = {"stack/blocks/0 (actor)": 5.0, "stack/blocks/0 (critic)": 13.0}
    assert norms.by_layer(names, np.array([3.0, 4.0, 5.0, 12.0])) == expected
