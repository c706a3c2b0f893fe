"""Log-probabilities of continuations and of masked tokens, compared with logits of single rows."""

import jax
import numpy as np
import pytest

import plm_jax
from plm_jax.common.errors import UserError
from plm_jax.data.vocabularies import Vocabulary
from plm_jax.generation import scoring
from tests import golden

MOST = 12


def pairs(vocab_size, number=16, most=MOST):
    """Returns contexts and continuations of mixed lengths, together at most `most` + 1 tokens."""
    rng = np.random.default_rng(0)
    sizes = [(n := rng.integers(1, most + 1), rng.integers(1, most + 2 - n)) for _ in range(number)]
    return [[rng.integers(0, vocab_size, size).tolist() for size in pair] for pair in sizes]


def filled(tokens):
    return tokens + [0] * (MOST + 1 - len(tokens))


def of_one_row(lm, context, continuation):
    """Returns the log-probability of a continuation from the logits of a single row, and whether it is greedy.

    Inputs of a decoder are padded on the right, which no earlier token sees, so that few programs are compiled.
    """
    if lm.config.has_decoder:
        decoder_tokens = filled([lm.strategy.text.start_id, *continuation[:-1]])[:MOST]
        mask = np.arange(MOST)[None] < len(context)
        logits = lm.logits([filled(context)[:MOST]], mask, decoder_tokens=[decoder_tokens])[0, : len(continuation)]
    else:
        logits = lm.logits([filled([*context, *continuation[:-1]])])[0, len(context) - 1 :][: len(continuation)]
    log_probabilities = np.asarray(jax.nn.log_softmax(logits))[np.arange(len(continuation)), continuation]
    return log_probabilities.sum(), np.asarray(logits).argmax(axis=1).tolist() == continuation


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "bart"])
def test_scores_are_independent_of_the_batch(name):
    lm = plm_jax.load(golden.FOLDER / name)
    examples = pairs(lm.config.vocab_size)
    # Make some continuations greedy.
    greedy = lm.generate([context for context, _ in examples[::4]], max_new_tokens=1)
    for (_, continuation), tokens in zip(examples[::4], greedy, strict=True):
        continuation[:] = tokens or continuation[:1]
    contexts, continuations = zip(*examples, strict=True)
    scores = lm.score(contexts, continuations)
    want = [of_one_row(lm, *pair) for pair in examples]
    assert [score.is_greedy for score in scores] == [greedy for _, greedy in want]
    assert {True, False} == {score.is_greedy for score in scores}
    np.testing.assert_allclose([score.log_likelihood for score in scores], [total for total, _ in want], atol=1e-4)


@Vocabulary.register
class Words:
    """A vocabulary of words: token i + 1 is a letter followed by `#`s; 0 is the end token."""

    def __init__(self, size=37):
        self.vocab_size, self.eos_id = size, 0
        self.word_initial = np.arange(size) % 3 > 0

    def encode(self, text):
        return [ord(letter) - 32 for letter in text]

    def decode(self, ids):
        return "".join(chr(i + 32) for i in ids)


def test_empty_context_and_white_space():
    lm = plm_jax.load(golden.FOLDER / "gpt2")
    lm.vocabulary = Words()
    # Token 0 is a space.
    by_texts = lm.score(["", "#", "#  ", "#"], ["$%", "$", "$", "  $"])
    before = lm.strategy.initial_ids
    by_ids = lm.score([before, [3], [3], [3]], [[4, 5], [4], [0, 0, 4], [0, 0, 4]])
    assert [score.log_likelihood for score in by_texts] == pytest.approx([s.log_likelihood for s in by_ids], abs=1e-5)
    assert lm.score([[]], [[4, 5]])[0].log_likelihood == pytest.approx(by_texts[0].log_likelihood, abs=1e-5)


def test_text_answer_follows_start_ids():
    lm = plm_jax.load(golden.FOLDER / "bart")
    lm.vocabulary = Words()
    (scores,) = lm.score("#$", "%&'")
    start, bos = lm.strategy.text.start_id, lm.special_ids["bos_token_id"]
    logits = lm.logits([lm.strategy.encode("#$")], decoder_tokens=[[start, bos, 5, 6]])[0, 1:]
    log_probabilities = np.asarray(jax.nn.log_softmax(logits))[np.arange(3), [5, 6, 7]]
    assert scores.log_likelihood == pytest.approx(log_probabilities.sum(), abs=1e-4)


def test_long_context_is_truncated_on_the_left():
    lm = plm_jax.load(golden.FOLDER / "gpt2")
    most, rng = lm.config.num_positions, np.random.default_rng(1)
    context, continuation = rng.integers(0, 37, 50).tolist(), rng.integers(0, 37, 3).tolist()
    (whole,), (end,) = lm.score(context, continuation), lm.score(context[-(most - 2) :], continuation)
    assert whole.log_likelihood == end.log_likelihood
    assert abs(whole.log_likelihood - lm.score(context[-2:], continuation)[0].log_likelihood) > 1e-3


def test_invalid_scoring_requests_are_rejected():
    lm = plm_jax.load(golden.FOLDER / "gpt2")
    for contexts, continuations, says in (
        ([[1]], [[2], [3]], "1 contexts and 2 continuations"),
        ([[1]], ["a"], "one kind"),
        ([[1]], [[]], "not empty"),
        ([[1]], [[2] * 99], "shorten it"),
        ([[1]], [[99]], "targets range from"),
    ):
        with pytest.raises(UserError, match=says):
            lm.score(contexts, continuations)
    with pytest.raises(UserError, match="does not continue text"):
        plm_jax.load(golden.FOLDER / "bert").score([[1]], [[2]])
    assert lm.score([], []) == []


def test_further_requests_compile_nothing():
    lm, rng = plm_jax.load(golden.FOLDER / "gpt2"), np.random.default_rng(2)

    def request(number, context, continuation):
        return lm.score(
            *([rng.integers(0, 37, size).tolist() for _ in range(number)] for size in (context, continuation))
        )

    scoring._target_scores.clear_cache()
    for number, context, continuation in ((64, 3, 2), (64, 6, 4)):
        request(number, context, continuation)
    known = scoring._target_scores._cache_size()
    for number in range(33, 65, 5):
        for context in range(1, 7):
            request(number, context, int(rng.integers(2, 5)))
    assert scoring._target_scores._cache_size() == known


@pytest.mark.parametrize("word_l2r", [False, True])
def test_pseudo_log_likelihoods_equal_single_masks(word_l2r):
    lm = plm_jax.load(golden.FOLDER / "bert")
    lm.vocabulary, lm.special_ids = Words(), lm.special_ids | {"mask_token_id": 36}
    before, after = lm.strategy.frame
    texts = ["ABC:;", "!", "?8%&/"]
    for text, log_likelihoods in zip(texts, lm.pseudo_log_likelihoods(texts, word_l2r=word_l2r), strict=True):
        tokens = lm.vocabulary.encode(text)
        assert len(log_likelihoods) == len(tokens)
        for i, token in enumerate(tokens):
            row = list(tokens)
            row[i] = 36
            for j in range(i + 1, len(tokens)):
                if not word_l2r or lm.vocabulary.word_initial[tokens[j]]:
                    break
                row[j] = 36
            logits = lm.logits([[*before, *row, *after]])[0, len(before) + i]
            assert log_likelihoods[i] == pytest.approx(float(jax.nn.log_softmax(logits)[token]), abs=1e-4)
    plain, hidden = (lm.pseudo_log_likelihoods("ABC:;", word_l2r=which)[0] for which in (False, True))
    assert not np.allclose(plain, hidden)


def test_decoder_has_no_pseudo_log_likelihoods():
    with pytest.raises(UserError, match="use `score`"):
        lm = plm_jax.load(golden.FOLDER / "gpt2")
        lm.vocabulary = Words()
        lm.pseudo_log_likelihoods(["AB"])
