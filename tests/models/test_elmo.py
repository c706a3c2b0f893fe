"""ELMo against NumPy, and dependencies of each position."""

import functools
from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import models
from plm_jax.models import elmo, layers, recurrent, registry
from tests.models import elmo_numpy
from tests.support.random_models import random_params

MODEL = models.ElmoConfig(
    embedding=models.CharacterCNNConfig(
        vocab_size=13, width=3, dim=4, filters=((1, 2), (3, 4)), max_characters=6, highway_layers=2
    ),
    lstm=models.LstmConfig(layers=3, cell=5),
)
CLIPPED = replace(MODEL, lstm=models.LstmConfig(layers=3, cell=5, cell_clip=0.3, projection_clip=0.1))
ROWS, LENGTH = 3, 4


@functools.partial(jax.jit, static_argnames=("module", "method", "deterministic"))
def apply(module, params, *inputs, method, **options):
    return module.apply({"params": params}, *inputs, method=method, **options)


def make(model=MODEL, seed=0):
    """Returns the module, parameters, characters and an initial state."""
    module, rng = registry.build(model), np.random.default_rng(seed)
    shape = (ROWS, LENGTH, model.embedding.max_characters)
    carry = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape).astype(np.float32) / 9, nn.unbox(elmo.new_carry(model, ROWS))
    )
    return module, random_params(model, scale=0.5), rng.integers(0, elmo.CHARACTERS, shape, dtype=np.int32), carry


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_streams_equal_equations(activation):
    model = replace(CLIPPED, embedding=replace(MODEL.embedding, activation=activation))
    module, params, characters, carry = make(model)
    both = np.stack([characters, characters[:, ::-1] + 1], axis=1) % elmo.CHARACTERS
    features, after = apply(module, params, both, carry, method="streams")
    clipped = 0
    for row in range(ROWS):
        for side in range(2):
            x_LD = np.array([elmo_numpy.word(params, model, word) for word in both[row, side]])
            begin = (carry["cell"][row, :, side], carry["hidden"][row, :, side])
            want, cells, hiddens = elmo_numpy.lstm(params, model, side, x_LD, *begin)
            np.testing.assert_allclose(features[row, side], want[-1], atol=1e-5)
            np.testing.assert_allclose(after["cell"][row, :, side], cells, atol=1e-5)
            np.testing.assert_allclose(after["hidden"][row, :, side], hiddens, atol=1e-5)
            clipped += (abs(cells) == 0.3).sum() * (abs(hiddens) == 0.1).sum()
    assert clipped, "nothing was clipped"


def test_layers_equal_equations():
    module, params, characters, carry = make()
    layers, _ = apply(module, params, characters, None, carry, method="layers")
    for row in range(ROWS):
        x_LD = np.array([elmo_numpy.word(params, MODEL, word) for word in characters[row]])
        for side, way in enumerate((1, -1)):
            begin = (carry["cell"][row, :, side], carry["hidden"][row, :, side])
            want, _, _ = elmo_numpy.lstm(params, MODEL, side, x_LD[::way], *begin)
            np.testing.assert_allclose(layers[0, row, side], x_LD, atol=1e-5)
            np.testing.assert_allclose(layers[1:, row, side], want[:, ::way], atol=1e-5)


@pytest.mark.parametrize("projected", [True, False])
def test_gradients_equal_finite_differences(projected):
    """Gradients of all parameters and of the state, with masked steps and some clipped values in ELMo's LSTM."""
    cell, width, rng = 3, 2 if projected else 3, np.random.default_rng(0)
    lstm = models.LstmConfig(cell=cell, cell_clip=0.5, projection_clip=0.2) if projected else None
    shapes = {"input": {"kernel": (2, 2, 4, cell), "bias": (2, 4, cell)}, "recurrent": {"kernel": (2, width, 4, cell)}}
    shapes |= {"projection": {"kernel": (2, cell, width)}} if projected else {}
    block = jax.tree.map(lambda shape: rng.normal(size=shape) / 2, shapes, is_leaf=lambda leaf: isinstance(leaf, tuple))
    x, weigh = rng.normal(size=(2, 2, 5, 2)), rng.normal(size=(2, 2, 5, width))
    state = {"cell": rng.normal(size=(2, 2, cell)) / 9, "hidden": rng.normal(size=(2, 2, width)) / 9}
    steps = rng.random((5, 2, 2)) < 0.7

    @jax.jit
    def weighed(block, x, state):
        outputs, after = recurrent.run(block, x, state, steps, lstm, jnp.float32)
        return (outputs * weigh).sum() + sum((leaf**2).sum() for leaf in jax.tree.leaves(after)) / 2, outputs

    of_all = (block, x, state)
    assert not projected or 0 < (abs(weighed(*of_all)[1]) == 0.2).mean() < 1
    gradient = jax.grad(weighed, argnums=(0, 1, 2), has_aux=True)(*of_all)[0]
    for leaf, got in zip(jax.tree.leaves(of_all), jax.tree.leaves(gradient), strict=True):
        want = np.zeros_like(leaf)
        for index in np.ndindex(leaf.shape):
            here, ends = leaf[index], []
            for change in (0.01, -0.01):
                leaf[index] = here + change
                ends.append(float(weighed(*of_all)[0]))
            leaf[index], want[index] = here, (ends[0] - ends[1]) / 0.02
        np.testing.assert_allclose(got, want, atol=0.02 * np.abs(want).max())


@pytest.mark.parametrize("front", [True, False])
def test_padding_on_either_side_is_ignored(front):
    module, params, characters, carry = make()
    want, want_after = apply(module, params, characters, None, carry, method="layers")
    pad = ((0, 0), (2, 0) if front else (0, 2), (0, 0))
    mask = np.pad(np.ones((ROWS, LENGTH), np.int32), pad[:2])
    padded = np.pad(characters, pad, constant_values=7)
    got, after = apply(module, params, padded, mask, carry, method="layers")
    real = slice(2, None) if front else slice(LENGTH)
    np.testing.assert_allclose(got[:, :, :, real], want, atol=1e-6)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6), after, want_after)


def test_stream_in_two_parts_equals_whole():
    module, params, characters, carry = make()
    both = np.stack([characters, characters], axis=1)
    whole, after = apply(module, params, both, carry, method="streams")
    first, between = apply(module, params, both[:, :, :1], carry, method="streams")
    second, end = apply(module, params, both[:, :, 1:], between, method="streams")
    np.testing.assert_allclose(np.concatenate([first, second], axis=2), whole, atol=1e-6)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6), end, after)


def test_logits_depend_only_on_their_direction():
    module, params, characters, _ = make()

    def logits(characters):
        features = apply(module, params, characters, method="features")
        return [apply(module, params, features, method=way) for way in ("logits", "backward_logits")]

    before = logits(characters)
    for position in range(LENGTH):
        changed = characters.copy()
        changed[:, position] = (changed[:, position] + 5) % elmo.CHARACTERS
        for way, (one, other) in enumerate(zip(before, logits(changed), strict=True)):
            assert one.shape == (ROWS, LENGTH, 13) and one.dtype == jnp.float32
            differs = [bool(abs(one[:, i] - other[:, i]).max() > 1e-6) for i in range(LENGTH)]
            assert differs == [i >= position if way == 0 else i <= position for i in range(LENGTH)]


def test_directions_share_only_words_and_softmax():
    shapes = registry.shapes(MODEL)
    assert {path: leaf.shape[1] for path, leaf in shapes["lstm"]["blocks"]["input"].items()} == {"kernel": 2, "bias": 2}
    assert shapes["head"].shape == (13, 3) and shapes["head_bias"].shape == (13,)
    without = registry.shapes(replace(MODEL, head=models.NoHead()))
    assert set(shapes) - set(without) == {"head", "head_bias"}


def test_initialization_equals_bilm_tf():
    model = replace(
        MODEL,
        embedding=replace(MODEL.embedding, width=64, filters=((1, 100), (3, 156)), vocab_size=500),
        lstm=models.LstmConfig(cell=128),
    )
    params = nn.unbox(jax.jit(functools.partial(registry.init_params, registry.build(model)))(jax.random.key(0)))
    embedding, blocks = params["embedding"], params["lstm"]["blocks"]
    uniform = {
        1.0: embedding["characters"],
        0.05: embedding["filters"]["1"]["kernel"],
        (6 / (2 * 64 + 4 * 128)) ** 0.5: blocks["recurrent"]["kernel"],
        (6 / (64 + 128)) ** 0.5: blocks["projection"]["kernel"],
    }
    for largest, leaf in uniform.items():
        assert 0.95 * largest < abs(leaf).max() <= largest
        np.testing.assert_allclose(leaf.std(), largest / 3**0.5, rtol=0.1)
    normal = [
        (256**-0.5, embedding["blocks"]["carry"]["kernel"]),
        (256**-0.5, embedding["projection"]["kernel"]),
        (64**-0.5, params["head"]),
    ]
    for std, leaf in normal:
        np.testing.assert_allclose(leaf.std(), std, rtol=0.05)
    assert (embedding["blocks"]["carry"]["bias"] == -2).all()
    for leaf in (embedding["blocks"]["transform"]["bias"], blocks["input"]["bias"], params["head_bias"]):
        assert not leaf.any()


@functools.cache
def gradients(model):
    module, params, characters, carry = make(model)
    both, rngs = np.stack([characters, characters], axis=1), {"dropout": jax.random.key(3)}

    def loss(params):
        features, _ = apply(module, params, both, carry, deterministic=False, rngs=rngs, method="streams")
        return (features**2).sum()

    return jax.jit(jax.value_and_grad(loss))(params)


@pytest.mark.parametrize("switches", [{"scan_layers": False}, {"remat": "full"}], ids=str)
def test_speed_options_keep_values_and_gradients(switches):
    model = replace(MODEL, dropout=models.LstmDropoutConfig(input=0.3, output=0.3))
    want, got = gradients(model), gradients(replace(model, **switches))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6), want, got)


def test_dropout_on_lstm_inputs_and_output():
    characters = make()[2]
    both = np.stack([characters, characters], axis=1)

    def streams(**rates):
        module, params, _, carry = make(replace(MODEL, dropout=models.LstmDropoutConfig(**rates)))
        rngs = {"dropout": jax.random.key(0)}
        return apply(module, params, both, carry, deterministic=False, rngs=rngs, method="streams")

    (plain, state), (dropped, same) = streams(), streams(output=0.5)
    zero = dropped == 0
    assert 0.3 < zero.mean() < 0.7
    np.testing.assert_allclose(dropped[~zero], 2 * plain[~zero], rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, same, state)
    other = streams(input=0.5)[1]["hidden"]
    assert all(abs(other - state["hidden"])[:, layer].max() > 1e-6 for layer in range(3))


def test_scalar_mix_equals_formula():
    states = np.random.default_rng(0).normal(size=(3, 2, 4)).astype(np.float32)
    mix = layers.ScalarMix()
    np.testing.assert_allclose(mix.apply(mix.init(jax.random.key(0), states), states), states.mean(0), atol=1e-6)
    weights = np.array([0.5, -1.0, 2.0], np.float32)
    shares = np.exp(weights) / np.exp(weights).sum()
    got = mix.apply({"params": {"weights": weights, "scale": np.float32(1.5)}}, states)
    np.testing.assert_allclose(got, 1.5 * sum(s * layer for s, layer in zip(shares, states, strict=True)), atol=1e-6)
