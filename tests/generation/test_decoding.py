"""Decoding: selection of tokens, end of answers, and independence of the batch."""

import itertools
from functools import cache, partial

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import settings as settings_of_test
from hypothesis import strategies as st

from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.generation import decoding
from plm_jax.generation.sampling import Sampling, next_tokens
from plm_jax.models.decoder import Decoder


@cache
def model_and_params(vocab=23, std=0.5, length=40):
    model = Decoder(
        models.DecoderConfig(
            embedding=models.EmbeddingConfig(vocab, 12),
            attention=models.AttentionConfig(
                heads=3, head_dim=4, position=models.LearnedPositions(length, init_std=std)
            ),
            feed_forward=models.FeedForwardConfig(20),
            stack=models.StackConfig(2),
            head=models.VocabularyHead(tied=False),
            initializer=models.InitializerConfig(std),
        )
    )
    variables = jax.jit(model.init)(jax.random.key(1), jnp.zeros((1, 1), jnp.int32))
    return model, flax.linen.meta.unbox(variables["params"])


@partial(jax.jit, static_argnums=0)
def full_pass(model, params, tokens):
    return jax.nn.log_softmax(model.apply({"params": params}, tokens))


def log_probs(tokens, *vocab):
    return full_pass(*model_and_params(*vocab), tokens)


PROMPTS = [[4, 8, 15], [16], [2, 3, 4, 2, 1, 0, 9, 8, 7, 6], [5, 5]]


def generate(prompts=PROMPTS, max_new_tokens=12, **kwargs):
    return decoding.generate(*model_and_params(), prompts, max_new_tokens=max_new_tokens, **kwargs)


def test_greedy_equals_full_passes():
    for prompt, new in zip(PROMPTS, generate(), strict=True):
        tokens = jnp.array([prompt + new])
        chosen = jnp.argmax(log_probs(tokens)[0], axis=-1)[len(prompt) - 1 : -1]
        assert chosen.tolist() == new


@pytest.mark.parametrize("beams", [1, 3])
def test_rows_are_independent_of_the_batch(beams):
    together = generate(num_beams=beams)
    assert together == [generate([prompt], num_beams=beams)[0] for prompt in PROMPTS]
    assert len({tuple(row) for row in together}) == len(PROMPTS)


@pytest.mark.parametrize("temperature", [None, 0, 0.0])
def test_zero_temperature_is_greedy_for_any_seed(temperature):
    assert generate(temperature=temperature, seed=5, top_k=3) == generate()


def test_seed_determines_samples():
    first = generate(temperature=1.0, seed=1)
    assert first == generate(temperature=1.0, seed=1)
    assert first != generate(temperature=1.0, seed=2)
    assert first != generate()
    assert generate(temperature=1.0, seed=1, top_k=1) == generate()
    assert generate(temperature=1.0, seed=1, top_p=1e-9) == generate()
    assert generate(temperature=1e-4, seed=1) == generate()


def test_tokens_are_sampled_independently():
    """Samples from a model of zeros, for which all tokens are equally probable."""
    model, params = model_and_params()
    zeros = jax.tree.map(jnp.zeros_like, params)
    rows = decoding.generate(model, zeros, [[4, 8, 15]] * 4, max_new_tokens=30, temperature=1.0)
    assert len({tuple(row) for row in rows}) == 4
    assert all(len(set(row)) > 8 for row in rows)


@pytest.mark.parametrize("kwargs", [{}, {"temperature": 1.0, "seed": 3}])
def test_rows_stop_at_their_end_tokens(kwargs):
    free = generate(**kwargs)
    end = free[0][4]
    ended = generate(eos_ids=[end], **kwargs)
    assert ended == [row[: row.index(end)] if end in row else row for row in free]
    assert len({len(row) for row in ended}) > 1


def test_end_token_first_returns_empty_answer():
    assert generate(PROMPTS[:1], eos_ids=[generate()[0][0]]) == [[]]


def test_single_new_token():
    assert generate(max_new_tokens=1) == [row[:1] for row in generate()]


@pytest.mark.parametrize("kwargs", [{}, {"temperature": 5.0}, {"num_beams": 3}])
def test_ids_beyond_vocabulary_are_never_chosen(kwargs):
    assert max(max(row) for row in generate(**kwargs)) >= 9
    assert max(max(row) for row in generate(vocab_size=9, **kwargs)) < 9


def beams_without_a_cache(prompt, beams, length):
    """Reference beam search with a full pass over all hypotheses at each step."""
    rows, scores = np.array([prompt]), np.zeros(1)
    for _ in range(length):
        padded = np.zeros((beams, 40), int)
        padded[: len(rows), : rows.shape[1]] = rows
        extended = scores[:, None] + np.asarray(log_probs(padded))[: len(rows), rows.shape[1] - 1]
        best = np.argsort(-extended, axis=None)[:beams]
        parents, tokens = np.unravel_index(best, extended.shape)
        rows, scores = np.column_stack([rows[parents], tokens]), extended[parents, tokens]
    return rows[0, len(prompt) :].tolist()


def test_beams_keep_their_own_cache():
    prompts = np.random.default_rng(0).integers(0, 23, (8, 3)).tolist()
    got = generate(prompts, num_beams=4)
    assert got == [beams_without_a_cache(prompt, 4, 12) for prompt in prompts]
    assert got != generate(prompts)


def best_by_enumeration(prompt, vocab, length, end, penalty):
    """Compares with exhaustive search for the highest log-probability divided by the penalty."""
    whole = np.array(list(itertools.product(range(vocab), repeat=length)))
    rows = np.concatenate([np.repeat([prompt], len(whole), axis=0), whole], axis=1)
    scores = log_probs(rows, vocab)[:, len(prompt) - 1 : -1]
    scores = np.take_along_axis(np.asarray(scores), whole[..., None], axis=-1)[..., 0]
    totals = {}
    for row, score in zip(whole.tolist(), scores, strict=True):
        size = row.index(end) + 1 if end in row else length
        totals[tuple(token for token in row[:size] if token != end)] = score[:size].sum() / penalty(size)
    return [list(row) for row in sorted(totals, key=totals.get, reverse=True)]


@pytest.mark.parametrize(
    ("options", "penalty"),
    [
        ({}, lambda size: size),
        ({"length_penalty": 0.0}, lambda size: 1),
        ({"length_penalty": 4.0, "early_stopping": "never"}, lambda size: size**4.0),
        (
            {"length_penalty": 4.0, "length_penalty_form": "gnmt", "early_stopping": "never"},
            lambda size: ((5 + size) / 6) ** 4.0,
        ),
    ],
    ids=["length", "sum", "never", "gnmt"],
)
def test_exhaustive_beam_search_finds_the_best(options, penalty):
    vocab, length, best = 4, 3, 3
    prompts, lengths = ([0], [1, 2], [3]), set()
    for end in (1, 3):
        answers = decoding.generate(
            *model_and_params(vocab),
            prompts,
            max_new_tokens=length,
            num_beams=vocab ** (length - 1),
            num_return_sequences=best,
            eos_ids=[end],
            **options,
        )
        for prompt, got in zip(prompts, answers, strict=True):
            want = best_by_enumeration(prompt, vocab, length, end, penalty)
            # The search may not have completed the other answers.
            assert got[0] == want[0] and (not options.get("early_stopping") or got == want[:best])
            lengths.add(len(got[0]))
    assert len(lengths) > 1


def test_early_stopping_ends_with_num_beams_finished():
    """With "never", the search finds better hypotheses, because the penalty favors long ones."""
    prompts = np.random.default_rng(0).integers(0, 23, (20, 3)).tolist()
    ends = [row[2] for row in generate()]
    answers = {
        stopping: generate(prompts, eos_ids=ends, num_beams=3, early_stopping=stopping, length_penalty=3.0)
        for stopping in (True, False, "never")
    }
    sizes = [sum(map(len, rows)) for rows in answers.values()]
    assert sizes == sorted(set(sizes))


def test_several_answers_are_best_beams_or_samples():
    best = generate(num_beams=4, num_return_sequences=3)
    assert [answers[0] for answers in best] == generate(num_beams=4)
    assert all(len({tuple(row) for row in answers}) == 3 for answers in best)
    drawn = generate(temperature=1.0, num_return_sequences=3)
    assert all(len({tuple(row) for row in answers}) == 3 for answers in drawn)


PROBABILITIES = np.array([0.05, 0.5, 0.15, 0.3])


def is_drawn_from(expected, counts):
    """Whether counts fit probabilities: tokens of probability 0 are absent, and Pearson's χ² has p above 1e-4."""
    expected, possible = np.asarray(expected), np.asarray(expected) > 0
    if counts[~possible].any():
        return False
    return possible.sum() == 1 or scipy.stats.chisquare(counts[possible], expected[possible] * counts.sum())[1] > 1e-4


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
        ({"top_k": 2, "top_p": 0.6}, [0, 1, 0, 0]),  # The first of the remaining two has 0.625.
        ({"temperature": 0.5, "top_p": 0.6}, [0, 1, 0, 0]),  # At this temperature, the first has 0.68.
        # At this temperature, the first has 0.36, of the first three 0.43, and with the second 0.76.
        ({"temperature": 2.0, "top_k": 3, "top_p": 0.7}, [0, 0.5**0.5 / (0.5**0.5 + 0.3**0.5), 0, None]),
    ],
    ids=str,
)
def test_samples_have_expected_frequencies(sampling, expected):
    expected = np.array([1 - sum(p or 0 for p in expected) if p is None else p for p in expected])
    counts = drawn(np.log(PROBABILITIES), 100_000, **sampling)
    assert is_drawn_from(expected, counts)
    assert not is_drawn_from(np.full(4, 0.25), counts)


def test_answers_follow_model_probabilities():
    """Samples 40,000 tokens after one prompt with `generate`."""
    rows = generate([[4, 8, 15]] * 40, 1, temperature=2.0, top_k=10, top_p=0.9, num_return_sequences=1000)
    counts = np.bincount(np.concatenate(list(itertools.chain(*rows))), minlength=23)
    logits = np.asarray(log_probs(jnp.array([[4, 8, 15]])), np.float64)[0, -1] / 2
    ranked = np.argsort(-logits)[:10]
    probabilities = np.exp(logits[ranked]) / np.exp(logits[ranked]).sum()
    nucleus = probabilities.cumsum() - probabilities < 0.9
    expected = np.zeros(23)
    expected[ranked[nucleus]] = probabilities[nucleus] / probabilities[nucleus].sum()
    assert 2 < nucleus.sum() < 10 and is_drawn_from(expected, counts)


def drawn(logits, draws, temperature=1.0, top_k=None, top_p=None):
    """Returns the relative frequency of each token."""
    rows = jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (draws, len(logits)))
    draw = jax.jit(next_tokens, static_argnames="top_k")
    tokens = draw(rows, Sampling(temperature, top_p), jax.random.key(0), top_k=top_k)
    return np.bincount(tokens, minlength=len(logits))


@settings_of_test(deadline=None)
@given(
    # Multiples of 1/16, so that values that float32 cannot distinguish are equal.
    st.lists(st.integers(-128, 128).map(lambda n: n / 16), min_size=6, max_size=6, unique=True),
    st.integers(1, 6),
    st.floats(0.01, 1.0),
)
def test_samples_are_within_top_p(logits, top_k, top_p):
    logits = np.array(logits, np.float64)
    ranked = np.argsort(-logits)[:top_k]
    probabilities = np.exp(logits[ranked] - logits[ranked].max())
    before = np.cumsum(probabilities / probabilities.sum()) - probabilities / probabilities.sum()
    allowed = set(ranked[before < top_p + 1e-5])  # float32 may round across the boundary.
    assert set(np.flatnonzero(drawn(logits, 64, top_k=top_k, top_p=top_p))) <= allowed


def test_ties_go_to_the_lower_id():
    logits = jnp.array([[0.0, 2.0, 1.0, 2.0]])
    assert next_tokens(logits, None, jax.random.key(0)).tolist() == [1]
    assert next_tokens(logits, Sampling(1.0, 1.0), jax.random.key(0), top_k=1).tolist() == [1]


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"prompts": []}, "empty prompt"),
        ({"prompts": [[1], []]}, "empty prompt"),
        ({"prompts": [[1, 23]]}, "token 23, the model's vocabulary size is 23"),
        ({"prompts": [[-1]]}, "token -1"),
        ({"prompts": [[1] * 30], "max_new_tokens": 11}, "exceed the model's 40 positions"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"num_beams": 0}, "num_beams is 0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": 1.0, "top_k": 0}, "top_k is 0"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p is 0.0"),
        ({"temperature": 1.0, "top_p": 1.1}, "top_p is 1.1"),
        ({"temperature": 1.0, "num_beams": 2}, "beam search does not sample"),
        ({"num_return_sequences": 2}, "raise num_beams, or set temperature"),
        ({"num_beams": 2, "num_return_sequences": 3}, "num_return_sequences is 3, num_beams 2"),
        ({"min_new_tokens": 13}, "min_new_tokens is 13, max_new_tokens 12"),
        ({"min_new_tokens": -1}, "min_new_tokens is -1"),
        ({"length_penalty": float("nan")}, "length_penalty is nan"),
        ({"length_penalty_form": "log"}, "choose from: gnmt, power"),
        ({"early_stopping": "always"}, "early_stopping is 'always'"),
        ({"forced_bos_token_id": 23}, "answers have token 23"),
        ({"forced_eos_token_id": 23}, "answers have token 23"),
        ({"forced_prefix": (1,) * 13}, "13 tokens are forced, max_new_tokens is 12"),
        ({"forced_prefix": "a text"}, "there is no vocabulary: pass ids"),
        ({"stop_strings": ("a", "")}, "none of them empty"),
        ({"num_beam": 2}, "there is no option 'num_beam': did you mean 'num_beams'"),
    ],
)
def test_invalid_arguments_are_rejected(kwargs, words):
    with pytest.raises(UserError, match=words):
        generate(**kwargs)


def test_last_position_can_be_filled():
    assert len(generate([[1] * 30], max_new_tokens=10)[0]) == 10


def test_prompts_of_similar_length_share_a_program():
    """The longest prompts have 33 to 63 tokens."""
    model, params = model_and_params(length=128)
    rng, compiled = np.random.default_rng(0), []
    for number, longest in enumerate(np.linspace(33, 63, 20).astype(int)):
        prompts = [rng.integers(0, 23, size).tolist() for size in (longest, *rng.integers(1, longest + 1, 3))]
        if number == 1:
            jax.monitoring.register_event_duration_secs_listener(lambda event, _, **__: compiled.append(event))
        decoding.generate(model, params, prompts, max_new_tokens=3, temperature=1.0 + number, num_beams=1)
    assert not [event for event in compiled if "compile" in event]
