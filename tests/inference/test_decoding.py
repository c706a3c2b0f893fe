"""Decoding by itself: what is chosen, when it ends, what it depends on."""

import itertools
from functools import cache

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as settings_of_test
from hypothesis import strategies as st

from plm_jax.common.errors import UserError
from plm_jax.inference import decoding
from plm_jax.inference.decoding import Sampling, next_tokens
from plm_jax.models import settings
from plm_jax.models.decoder import Decoder

EVERY = np.iinfo(np.int32).max


@cache
def model_and_params(vocab=23, std=0.5):
    model = Decoder(
        settings.Decoder(
            embedding=settings.Embedding(vocab, 12),
            attention=settings.Attention(heads=3, head_dim=4, position=settings.LearnedPositions(40, init_std=std)),
            feed_forward=settings.FeedForward(20),
            stack=settings.Stack(2),
            head=settings.VocabularyHead(tied=False),
            initializer=settings.Initializer(std),
        )
    )
    variables = jax.jit(model.init)(jax.random.key(1), jnp.zeros((1, 1), jnp.int32))
    return model, flax.linen.meta.unbox(variables["params"])


@jax.jit
def log_probs(tokens):
    model, params = model_and_params()
    return jax.nn.log_softmax(model.apply({"params": params}, tokens))


PROMPTS = [[4, 8, 15], [16], [2, 3, 4, 2, 1, 0, 9, 8, 7, 6], [5, 5]]


def generate(prompts=PROMPTS, max_new_tokens=12, **kwargs):
    return decoding.generate(*model_and_params(), prompts, max_new_tokens=max_new_tokens, **kwargs)


def test_greedy_takes_the_most_probable_token_of_the_full_pass():
    for prompt, new in zip(PROMPTS, generate(), strict=True):
        tokens = jnp.array([prompt + new])
        chosen = jnp.argmax(log_probs(tokens)[0], axis=-1)[len(prompt) - 1 : -1]
        assert chosen.tolist() == new


@pytest.mark.parametrize("beams", [1, 3])
def test_a_row_does_not_depend_on_the_rest_of_the_batch(beams):
    together = generate(num_beams=beams)
    assert together == [generate([prompt], num_beams=beams)[0] for prompt in PROMPTS]
    assert len({tuple(row) for row in together}) == len(PROMPTS)


@pytest.mark.parametrize("temperature", [None, 0, 0.0])
def test_no_temperature_is_greedy_whatever_the_seed(temperature):
    assert generate(temperature=temperature, seed=5, top_k=3) == generate()


def test_the_seed_decides_the_samples():
    first = generate(temperature=1.0, seed=1)
    assert first == generate(temperature=1.0, seed=1)
    assert first != generate(temperature=1.0, seed=2)
    assert first != generate()
    assert generate(temperature=1.0, seed=1, top_k=1) == generate()
    assert generate(temperature=1.0, seed=1, top_p=1e-9) == generate()
    assert generate(temperature=1e-4, seed=1) == generate()


def test_every_token_of_every_row_is_drawn_afresh():
    """From a model of zeros, which finds all tokens alike."""
    model, params = model_and_params()
    zeros = jax.tree.map(jnp.zeros_like, params)
    rows = decoding.generate(model, zeros, [[4, 8, 15]] * 4, max_new_tokens=30, temperature=1.0)
    assert len({tuple(row) for row in rows}) == 4
    assert all(len(set(row)) > 8 for row in rows)


@pytest.mark.parametrize("kwargs", [{}, {"temperature": 1.0, "seed": 3}])
def test_each_row_stops_at_its_own_end_token(kwargs):
    free = generate(**kwargs)
    end = free[0][4]
    ended = generate(eos_ids=[end], **kwargs)
    assert ended == [row[: row.index(end)] if end in row else row for row in free]
    assert len({len(row) for row in ended}) > 1


def test_a_first_end_token_leaves_nothing():
    assert generate(PROMPTS[:1], eos_ids=[generate()[0][0]]) == [[]]


def test_one_new_token_is_one():
    assert generate(max_new_tokens=1) == [row[:1] for row in generate()]


@pytest.mark.parametrize("kwargs", [{}, {"temperature": 5.0}, {"num_beams": 3}])
def test_ids_beyond_the_vocabulary_are_never_chosen(kwargs):
    assert max(max(row) for row in generate(**kwargs)) >= 9
    assert max(max(row) for row in generate(vocab_size=9, **kwargs)) < 9


def beams_without_a_cache(prompt, beams, length):
    """The hypothesis of highest probability, every step a full pass over all of them."""
    rows, scores = np.array([prompt]), np.zeros(1)
    for _ in range(length):
        padded = np.zeros((beams, 40), int)
        padded[: len(rows), : rows.shape[1]] = rows
        extended = scores[:, None] + np.asarray(log_probs(padded))[: len(rows), rows.shape[1] - 1]
        best = np.argsort(-extended, axis=None)[:beams]
        parents, tokens = np.unravel_index(best, extended.shape)
        rows, scores = np.column_stack([rows[parents], tokens]), extended[parents, tokens]
    return rows[0, len(prompt) :].tolist()


def test_beam_search_keeps_each_hypothesis_with_its_own_cache():
    prompts = np.random.default_rng(0).integers(0, 23, (8, 3)).tolist()
    got = generate(prompts, num_beams=4)
    assert got == [beams_without_a_cache(prompt, 4, 12) for prompt in prompts]
    assert got != generate(prompts)


def best_by_enumeration(prompt, vocab, length, end):
    """Of all continuations the one with the highest mean log-probability."""
    model, params = model_and_params(vocab)
    whole = np.array(list(itertools.product(range(vocab), repeat=length)))
    rows = np.concatenate([np.repeat([prompt], len(whole), axis=0), whole], axis=1)
    scores = jax.nn.log_softmax(jax.jit(model.apply)({"params": params}, rows))[:, len(prompt) - 1 : -1]
    scores = np.take_along_axis(np.asarray(scores), whole[..., None], axis=-1)[..., 0]
    found = {}
    for row, score in zip(whole.tolist(), scores, strict=True):
        size = row.index(end) + 1 if end in row else length
        found[tuple(token for token in row[:size] if token != end)] = score[:size].mean()
    return list(max(found, key=found.get))


def test_beam_search_as_wide_as_the_space_finds_the_best_of_all():
    vocab, length = 4, 3
    model, params = model_and_params(vocab)
    lengths = set()
    for prompt, end in itertools.product(([0], [1, 2], [3]), (1, 3)):
        got = decoding.generate(
            model, params, [prompt], max_new_tokens=length, num_beams=vocab ** (length - 1), eos_ids=[end]
        )
        assert got == [best_by_enumeration(prompt, vocab, length, end)]
        lengths.add(len(got[0]))
    assert len(lengths) > 1


def frequencies(logits, draws=20_000, **sampling):
    sampling = Sampling(**{"temperature": 1.0, "top_k": EVERY, "top_p": 1.0, **sampling})
    rows = jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (draws, len(logits)))
    drawn = jax.jit(next_tokens)(rows, sampling, jax.random.key(0))
    return np.bincount(drawn, minlength=len(logits)) / draws


PROBABILITIES = np.array([0.05, 0.5, 0.15, 0.3])


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({}, [0.05, 0.5, 0.15, 0.3]),
        ({"temperature": 0.5}, PROBABILITIES**2 / (PROBABILITIES**2).sum()),
        ({"temperature": 2.0}, PROBABILITIES**0.5 / (PROBABILITIES**0.5).sum()),
        ({"top_k": 2}, [0, 0.5 / 0.8, 0, 0.3 / 0.8]),
        ({"top_k": 9}, [0.05, 0.5, 0.15, 0.3]),
        ({"top_p": 0.49}, [0, 1, 0, 0]),
        ({"top_p": 0.51}, [0, 0.5 / 0.8, 0, 0.3 / 0.8]),
        ({"top_p": 0.81}, [0, 0.5 / 0.95, 0.15 / 0.95, 0.3 / 0.95]),
        ({"top_k": 2, "top_p": 0.6}, [0, 1, 0, 0]),  # The first of two has 0.625 once the others are gone.
        ({"temperature": 0.5, "top_p": 0.6}, [0, 1, 0, 0]),  # At this temperature it has 0.68.
    ],
)
def test_samples_have_the_right_support_and_frequencies(sampling, expected):
    expected = np.asarray(expected)
    got = frequencies(np.log(PROBABILITIES), **sampling)
    assert np.all((got > 0) == (expected > 0))
    assert np.all(np.abs(got - expected) <= 4 * (expected * (1 - expected) / 20_000) ** 0.5)


@settings_of_test(deadline=None)
@given(
    # Sixteenths: what is nearer than float32 can tell is drawn as equal.
    st.lists(st.integers(-128, 128).map(lambda n: n / 16), min_size=6, max_size=6, unique=True),
    st.integers(1, 6),
    st.floats(0.01, 1.0),
)
def test_a_sample_is_one_of_the_fewest_tokens_that_reach_top_p(logits, top_k, top_p):
    logits = np.array(logits, np.float64)
    ranked = np.argsort(-logits)[:top_k]
    probabilities = np.exp(logits[ranked] - logits[ranked].max())
    before = np.cumsum(probabilities / probabilities.sum()) - probabilities / probabilities.sum()
    allowed = set(ranked[before < top_p + 1e-5])  # float32 may round across the border
    drawn = np.flatnonzero(frequencies(logits, draws=64, top_k=top_k, top_p=top_p))
    assert set(drawn) <= allowed


def test_equal_logits_go_to_the_lower_id():
    logits = jnp.array([[0.0, 2.0, 1.0, 2.0]])
    assert next_tokens(logits, None, jax.random.key(0)).tolist() == [1]
    assert next_tokens(logits, Sampling(1.0, 1, 1.0), jax.random.key(0)).tolist() == [1]


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"prompts": []}, "empty prompt"),
        ({"prompts": [[1], []]}, "empty prompt"),
        ({"prompts": [[1, 23]]}, "token 23, the model's vocabulary 23"),
        ({"prompts": [[-1]]}, "token -1"),
        ({"prompts": [[1] * 30], "max_new_tokens": 11}, "exceed the model's 40 positions"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"num_beams": 0}, "num_beams 0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": 1.0, "top_k": 0}, "top_k is 0"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p is 0.0"),
        ({"temperature": 1.0, "top_p": 1.1}, "top_p is 1.1"),
        ({"temperature": 1.0, "num_beams": 2}, "beam search does not sample"),
    ],
)
def test_what_cannot_be_done_is_said(kwargs, words):
    with pytest.raises(UserError, match=words):
        generate(**kwargs)


def test_the_last_position_can_be_filled():
    assert len(generate([[1] * 30], max_new_tokens=10)[0]) == 10
