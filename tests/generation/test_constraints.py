"""Constraints on answers: repetition, length, forced tokens and stop strings."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as settings_of_test
from hypothesis import strategies as st

from plm_jax.generation import constraints, decoding, ranking
from tests.generation.test_decoding import PROMPTS, generate, model_and_params

EITHER = pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=str)


def repeats(row, size):
    """Whether an n-gram of this size occurs twice."""
    ngrams = list(zip(*(row[i:] for i in range(size)), strict=False))
    return len(ngrams) > len(set(ngrams))


def test_ngrams_are_not_repeated():
    model, params = model_and_params(6)
    prompts = [[2, 3, 1], [4], [0, 1, 2, 3, 0]]
    free, bound = (
        decoding.generate(model, params, prompts, max_new_tokens=12, no_repeat_ngram_size=size) for size in (0, 2)
    )
    assert any(repeats(prompt + row, 2) for prompt, row in zip(prompts, free, strict=True))
    assert not any(repeats(prompt + row, 2) for prompt, row in zip(prompts, bound, strict=True))


def test_banned_tokens_are_those_that_repeat():
    """Nothing else is banned, and padding does not count as text."""
    begun = np.array([[0, 0, 1, 0, 2, 1, 0], [0, 0, 0, 0, 0, 0, 3]]), np.array([[0, 0, 1, 1, 1, 1, 1], [0] * 6 + [1]])
    answers = np.array([[[2, 1, 0, -1]], [[0, 0, 0, -1]]])
    for step, size in itertools.product(range(4), range(1, 4)):
        banned = constraints.repeating(size, jnp.asarray(answers), begun, step, 4)
        for row in range(2):
            text = [*begun[0][row][begun[1][row] > 0], *answers[row, 0, :step]]
            ngrams = set(zip(*(text[i:] for i in range(size)), strict=False))
            last = tuple(text[len(text) - size + 1 :])
            want = [len(last) == size - 1 and (*last, token) in ngrams for token in range(4)]
            assert banned[row, 0].tolist() == want


def test_answers_have_minimum_length():
    ends = [row[1] for row in generate()]
    assert min(map(len, generate(eos_ids=ends))) < 4
    assert min(map(len, generate(eos_ids=ends, min_new_tokens=4))) >= 4


def test_an_answer_may_end_at_its_minimum_length():
    (free,) = generate(PROMPTS[:1])
    size = next(size for size in range(2, len(free)) if free[size] not in free[:size])
    assert generate(PROMPTS[:1], eos_ids=[free[size]], min_new_tokens=size) == [free[:size]]


def test_first_and_last_tokens_are_forced():
    forced = {"forced_bos_token_id": 7, "forced_prefix": [1, 2], "forced_eos_token_id": 9, "num_beams": 3}
    for row in generate(eos_ids=[9], **forced):
        assert row[:3] == [7, 1, 2] and len(row) <= 11
    assert all(row[-1] == 9 and len(row) == 12 for row in generate(**forced))


def test_forced_prefix_continues_like_prompt():
    continued = generate([[*prompt, 5, 6] for prompt in PROMPTS], max_new_tokens=10)
    assert generate(forced_prefix=[5, 6]) == [[5, 6, *row] for row in continued]


LETTERS = "ab.c \n"


@settings_of_test(deadline=None, max_examples=60)
@given(
    st.lists(st.text(LETTERS, max_size=3), min_size=8, max_size=8),
    st.lists(st.text(LETTERS, min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 7), max_size=12),
)
def test_answer_stops_when_stop_string_is_complete(added, texts, tokens):
    next_SV = constraints.stops(texts, added.__getitem__, len(added))
    state = 0
    for end in range(1, len(tokens) + 1):
        state = next_SV[state, tokens[end - 1]]
        written = "".join(added[token] for token in tokens[:end])
        assert (state == len(next_SV) - 1) == any(text in written for text in texts)


@EITHER
def test_completing_token_is_part_of_answer(options):
    """Also in beam search, where such hypotheses finish."""
    free = generate(**options)
    stop = free[0][2:4]
    stops = constraints.stops([chr(65 + stop[0]) + chr(65 + stop[1])], lambda token: chr(65 + token), 23)
    for row, unbound in zip(generate(stops=stops, **options), free, strict=True):
        pairs = list(itertools.pairwise(row))
        assert tuple(stop) not in pairs[:-1]
        assert len(row) == 12 or pairs[-1] == tuple(stop)
        if not options.get("num_beams"):
            assert row == unbound[: len(row)]
    assert len(generate(PROMPTS[:1], stops=stops, **options)[0]) <= 4


def test_text_is_cut_before_first_stop_string():
    assert constraints.cut("one. two\nthree", ["\n", ". "]) == "one"
    assert constraints.cut("one", ["two"]) == "one"


@settings_of_test(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from([1, 3]), st.integers(2, 12))
def test_top_k_equals_jax_with_ties(seed, k, different):
    x = np.random.default_rng(seed).integers(0, different, (2, 1700)).astype(np.float32)
    x[0, : seed % 1700] = -np.inf
    for got, want in zip(ranking.top_k(jnp.asarray(x), k), jax.lax.top_k(x, k), strict=True):
        np.testing.assert_array_equal(got, want)
