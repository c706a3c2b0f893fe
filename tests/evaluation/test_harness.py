"""Log-probabilities for lm-eval's requests, compared with lm-eval's `hf` model, and programs that lm-eval runs."""

import itertools
import types

import numpy as np
import pytest

pytest.importorskip("lm_eval")

import plm_jax
from plm_jax.common.errors import UserError
from plm_jax.evaluation import harness
from plm_jax.generation import scoring
from plm_jax.runs import checkpoint_formats
from tests.support import exports

CONTEXTS = ("", " ", "\n", "  \n ", "The state", "The state of \n", " people")
CONTINUATIONS = ("The state", " of the Union", "\n  We the people", "a")


def saved(family, kind, folder, path):
    """A model with random weights, saved for Hugging Face."""
    model = exports.randomized(exports.pretrained(family, kind, folder), seed=2, scale=0.7)
    checkpoint_formats.save(str(path), model, "huggingface")
    return plm_jax.load(path)


def requests(pairs):
    return [types.SimpleNamespace(args=pair) for pair in pairs]


def adds_one_token(tokenizer, context, continuation):
    return list(tokenizer.encode(context + continuation))[:-1] == list(tokenizer.encode(context))


@pytest.mark.parametrize(
    ("family", "kind"),
    [("gpt2", "gpt2"), ("openai-gpt", "json"), ("llama", "unigram"), ("t5", "unigram"), ("bart", "roberta")],
)
def test_log_probabilities_are_those_of_lm_eval_s_model(family, kind, vocabulary_folder, tmp_path):
    for needed in ("torch", "transformers", "accelerate"):
        pytest.importorskip(needed)
    from lm_eval.models.huggingface import HFLM

    lm = saved(family, kind, vocabulary_folder, tmp_path)
    theirs = HFLM(pretrained=str(tmp_path), device="cpu", dtype="float32", batch_size=8)
    pairs = list(itertools.product(CONTEXTS, CONTINUATIONS))
    # Includes tokens that the model generates, which are greedy where they do not merge with the end of the prompt.
    prompts = [text[:20].strip() for text in exports.corpus("sotu", 50)]
    written = zip(prompts, lm.generate(prompts, max_new_tokens=1), strict=True)
    pairs += [pair for pair in written if pair[1].strip() and adds_one_token(lm.tokenizer, *pair)]
    asked = pairs
    if family in ("gpt2", "openai-gpt"):  # `hf` has no bos here and rejects blank contexts, which start ours.
        asked = [pair if pair[0].strip() else ("", "".join(pair)) for pair in pairs]
    want = theirs.loglikelihood(requests(asked), disable_tqdm=True)
    got = harness.HarnessModel(lm, show_progress=False).loglikelihood(requests(pairs))
    np.testing.assert_allclose([score for score, _ in got], [score for score, _ in want], atol=1e-4, rtol=1e-5)
    assert [greedy for _, greedy in got] == [greedy for _, greedy in want]
    assert any(greedy for _, greedy in got) or lm.config.has_decoder, family


def test_a_decoder_that_fills_blanks_is_asked_for_the_whole_continuation(vocabulary_folder, tmp_path):
    lm = saved("glm_original", "unigram", vocabulary_folder, tmp_path)
    pairs = list(itertools.product(CONTEXTS[4:], CONTINUATIONS))
    want = lm.score(*map(list, zip(*pairs, strict=True)))
    got = harness.HarnessModel(lm, show_progress=False).loglikelihood(requests(pairs))
    assert [scoring.ContinuationScore(*pair) for pair in got] == want
    rows = [lm.strategy.text_continuation_row(*pair) for pair in pairs]
    moved = [harness.move_spaces(*pair)[1] for pair in pairs]
    assert [list(row.targets) for row in rows] == [list(lm.tokenizer.encode(text)) for text in moved]


@pytest.mark.parametrize("context", ["", " ", "The state"])
def test_a_continuation_without_tokens_is_one_line(context, vocabulary_folder, tmp_path):
    model = harness.HarnessModel(saved("gpt2", "gpt2", vocabulary_folder, tmp_path), show_progress=False)
    with pytest.raises(UserError, match="a continuation adds no token to its context"):
        model.loglikelihood(requests([(context.rstrip(), "")]))


@pytest.mark.parametrize(("family", "kind"), [("gpt2", "gpt2"), ("bart", "roberta")])
def test_the_end_of_a_long_prompt_leaves_a_decoder_room_for_its_answer(
    family, kind, vocabulary_folder, tmp_path, monkeypatch
):
    """The answer of an encoder-decoder is not in the context of its prompt."""
    lm = saved(family, kind, vocabulary_folder, tmp_path)
    model, prompts = harness.HarnessModel(lm, show_progress=False), []
    monkeypatch.setattr(model, "_generate", lambda encoded, *_: prompts.extend(encoded) or [""] * len(encoded))
    text = "The state of the Union " * 300
    model.generate_until(requests([(text, {"max_gen_toks": 5})]))
    rest, tokens = {"gpt2": 5, "bart": 0}[family], lm.strategy.encode(text)
    assert prompts == [tokens[rest - model.max_length :]] and 5 < model.max_length < len(tokens)
    if rest:
        with pytest.raises(UserError, match="lower max_gen_toks"):
            model.generate_until(requests([("The state", {"max_gen_toks": model.max_length})]))
