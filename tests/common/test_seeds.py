"""64-bit seeds: every bit affects every random draw, and small seeds match JAX and NumPy."""

import itertools
import types

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from plm_jax import config
from plm_jax.cleaning import minhash
from plm_jax.common import command_line, keys, trees
from plm_jax.common.errors import UserError
from plm_jax.data.layouts import randomness
from plm_jax.inference import prompt_files
from plm_jax.models import registry
from plm_jax.training import state, step
from tests.support import tiny

EDGES = [0, 1, -1, 2**31, -(2**31), 2**32 - 1, 2**32, -(2**32), 2**32 + 1, 2**62, 2**63 - 1, -(2**63)]
SEEDS = st.integers(-(2**63), 2**63 - 1)
IMPLEMENTATIONS = {"threefry": "threefry2x32", "rbg": "rbg"}


def weights(seed):
    root = keys.from_seed(seed)
    return _embedding(root).tobytes()


@jax.jit
def _embedding(root):
    return state.init_params(registry.build(tiny.MODEL), root)["token_embedding"].value


def dropped(seed):
    keys_by_name = step.rngs(keys.from_seed(seed), 3, 1, ["dropout"])
    return jax.random.bits(keys_by_name["dropout"], (4,)).tobytes()


def rows(seed):
    return randomness.generator(seed, "train", 7).integers(2**63, size=4).tobytes()


def hashes(seed):
    return minhash.Hashes(2, 3, 5, seed).signature("a sentence of five or six words").tobytes()


def later_batches(seed):
    """Returns the seeds of the batches of a file of prompts, with one prompt per batch."""

    class Listening:
        def generate(self, prompts, seed):
            return [str(seed)] * len(prompts)

    return tuple(answer for _, (answer,) in prompt_files.answer(Listening(), ["a", "b", "c"], 1, seed))[1:]


DRAWS = [weights, dropped, rows, hashes, later_batches]


@pytest.mark.parametrize("draw", DRAWS, ids=lambda draw: draw.__name__)
def test_seeds_that_differ_in_any_bit_draw_other_numbers(draw):
    draws = {seed: draw(seed) for seed in EDGES}
    for one, other in itertools.combinations(EDGES, 2):
        assert draws[one] != draws[other], (one, other)


@pytest.mark.parametrize("prng", IMPLEMENTATIONS)
@hypothesis.given(st.integers(0, 2**32 - 1))
@hypothesis.settings(deadline=None, max_examples=30)
def test_a_seed_of_32_bits_has_the_key_of_jax(prng, seed):
    want = jax.random.key(seed, impl=IMPLEMENTATIONS[prng])
    assert keys.from_seed(seed, prng) == want
    np.testing.assert_array_equal(keys.data(seed, prng), jax.random.key_data(want))


@hypothesis.given(SEEDS)
def test_a_key_holds_the_bits_of_its_seed(seed):
    high, low = map(int, keys.data(seed))
    assert (high << 32 | low) == seed % 2**64


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 10**30])
def test_a_seed_of_more_bits_is_rejected_in_a_line(seed):
    message = rf"seed is {seed}: must be between -9,223,372,036,854,775,808 and 9,223,372,036,854,775,807$"
    with pytest.raises(UserError, match="config.train." + message):
        trees.parse(config.TrainConfig, config.to_dict(tiny.PLAIN.train) | {"seed": seed}, "config.train")
    for draw in (keys.from_seed, lambda seed: randomness.generator(seed, "train"), hashes, later_batches):
        with pytest.raises(UserError, match=message):
            draw(seed)


def test_streams_of_neighboring_counters_share_no_draws():
    counters = [(), *itertools.product(range(3)), *itertools.product(range(1, 3), repeat=2)]
    counters += itertools.product(range(1, 3), repeat=3)
    draws = [randomness.generator(0, "train", *counter).integers(2**63, size=64) for counter in counters]
    # Missing counters are 0.
    assert (draws[0] == draws[1]).all() and len(np.unique(draws[1:])) == 64 * (len(counters) - 1)


def flag(*values):
    return types.SimpleNamespace(name="seeds", value=list(values))


def test_seeds_on_a_command_line_have_64_bits_and_a_sign():
    assert command_line.seed_list(flag("0", "-1", str(2**32), str(-(2**63)))) == [0, -1, 2**32, -(2**63)]
    for values in (["1", "01"], ["0", "-0"], ["1.5"], ["one"], [""], ["--1"]):
        with pytest.raises(UserError, match=r"--seeds is .*: pass distinct integers such as 0,1,2"):
            command_line.seed_list(flag(*values))
    with pytest.raises(UserError, match=rf"--seeds is {2**63}: must be between -9,223"):
        command_line.seed_list(flag("0", str(2**63)))


def test_generate_rejects_a_seed_out_of_range(verb):
    finished = verb("generate", "--checkpoint=none", f"--seed={2**63}")
    assert finished.status == 2
    (line,) = finished.err.splitlines()
    assert f"seed={2**63}" in line and str(-(2**63)) in line
