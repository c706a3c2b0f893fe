"""Seed, rate and schedule are arguments of the compiled programs: a change of them compiles nothing."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.training import schedules
from tests.support import runs

STEPS = 4


def stairs(step):
    if step < 2:
        return 1e-3
    return 2e-3 / [1, 2, 4, 8][step]


class Stairs(config.Schedule):
    """A user's schedule in plain Python, which cannot be traced."""

    kind = "stairs"

    def rate(self, total_steps, stages=()):
        return stairs


CHANGES = {
    "seed": {"train": {"steps": STEPS, "seed": 2**32}, "schedule": config.ConstantSchedule(3e-4)},
    "of a user": {"schedule": Stairs(1.0)},
}


@pytest.fixture
def missed(tmp_path):
    """Counts the misses and hits of JAX's persistent cache, which is empty at first."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs", "jax_enable_compilation_cache")
    before, counts, is_on = {name: getattr(jax.config, name) for name in names}, Counter(), True
    prefix = "/jax/compilation_cache/cache_"

    def listen(event, **_):
        if is_on and event.startswith(prefix):
            counts[event.removeprefix(prefix)] += 1

    for name, value in zip(names, (str(tmp_path / "compiled"), 0.0, True), strict=True):
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    jax.monitoring.register_event_listener(listen)
    yield counts
    is_on = False
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def trained(tiny, **sections):
    """Returns the losses of a run on one device, from its first state."""
    first = {"train": {"steps": STEPS, "seed": 0}, "schedule": config.ConstantSchedule(1e-3)}
    losses, *_ = runs.steps(runs.make(tiny, dropout=0.1, **(first | sections)), 1)
    return losses


def test_other_seeds_and_rates_compile_nothing(tiny, missed):
    fresh = trained(tiny)
    assert missed["misses"] > 1
    missed.clear()
    assert trained(tiny) == fresh
    for name, sections in CHANGES.items():
        assert trained(tiny, **sections)[-1] != fresh[-1], name
    assert missed["misses"] == 0 < missed["hits"], missed


USERS = {
    "python": (stairs, [1e-3, 1e-3, 5e-4, 2.5e-4]),
    "noam": (lambda step: min(step**-0.5, step * 2**-1.5), [0.0, 2**-1.5, 2**-0.5, 3**-0.5]),
    "optax": (optax.linear_schedule(1.0, 0.0, 4), [1.0, 0.75, 0.5, 0.25]),
    "traced": (lambda step: jnp.asarray(step, jnp.float32).astype(int) + 1.0, [1.0, 2.0, 3.0, 4.0]),
    "array": (lambda step: np.ones(1) * step, [0.0, 1.0, 2.0, 3.0]),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", USERS)
def test_functions_of_the_step_are_schedules(name):
    rate, expected = USERS[name]
    rates = [schedules.at(rate, step) for step in range(4)]
    assert all(type(value) is np.float32 for value in rates)
    np.testing.assert_allclose(rates, expected, rtol=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300, None, "fast", np.zeros(2)])
def test_rates_that_are_not_finite_are_rejected(value):
    with pytest.raises(UserError, match=r"config.schedule returns .* as the rate of step 8: return a finite number"):
        schedules.at(lambda step: value, 7)


def test_schedules_are_computed_on_the_host():
    devices = []

    def rate(step):
        value = jnp.float32(step)
        devices.append(value.devices())
        return value

    with jax.default_device(jax.devices()[3]):  # The accelerator.
        assert schedules.at(rate, 5) == 5
    assert devices == [{jax.local_devices(backend="cpu")[0]}]
