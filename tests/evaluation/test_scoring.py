"""Whole texts: the windows, each token told once, and the perplexities of it."""

import dataclasses
import itertools
import math
import re

import flax.linen as nn
import jax
import numpy as np
import pytest

from plm_jax import config, models
from plm_jax.common.errors import UserError
from plm_jax.evaluation import perplexity, scoring, task_metrics
from plm_jax.inference.language_model import LanguageModel
from plm_jax.models import registry
from tests.support import tiny

CASES = [
    (context, stride, size)
    for context in (1, 2, 3, 5, 8)
    for stride in range(1, context + 1)
    for size in range(int(3.5 * context) + 1)
]


def test_windows_score_each_token_once_with_maximal_context():
    for context, stride, size in CASES:
        text = list(range(size))
        windows = list(scoring.windows(text, -1, context, stride))
        assert list(itertools.chain(*(window.tokens for window in windows))) == text
        for number, (before, tokens) in enumerate(windows):
            read = [*before, *tokens[:-1]]
            assert read == [-1, *text][tokens[-1] + 1 - len(read) : tokens[-1] + 1]
            assert len(read) == min(context, tokens[-1] + 1) and len(tokens) <= (stride if number else context)


def test_windows_are_those_of_lm_eval():
    utils = pytest.importorskip("lm_eval.utils")
    for context, stride, size in CASES:
        text = list(range(size))
        theirs = utils.get_rolling_token_windows(text, -1, context, context - stride + 1)
        want = list(map(utils.make_disjoint_window, theirs))
        assert [tuple(window) for window in scoring.windows(text, -1, context, stride)] == want


@pytest.mark.parametrize("stride", [0, 9])
def test_a_stride_above_the_context_is_one_line(stride):
    with pytest.raises(UserError, match=f"the stride is {stride}, and the model's context has 8 tokens: use 1 to 8"):
        list(scoring.windows([1, 2], 0, 8, stride))


def language_model(model, length=16):
    position = models.LearnedPositions(length=length)
    attention = dataclasses.replace(model.attention, position=position)
    model = dataclasses.replace(model, attention=attention, initializer=models.InitializerConfig(std=0.3))
    params = nn.unbox(jax.jit(registry.build(model).init)(jax.random.key(0), **model.init_inputs())["params"])
    ids = {"eos_token_id": 256, "cls_token_id": 258, "sep_token_id": 259, "mask_token_id": 260}
    return LanguageModel(model, params, vocabulary_spec="bytes", special_ids=ids)


TEXTS = ["a", "of a whale", "it was the ship that the sea took, and all that the captain had"]


@pytest.mark.parametrize("stride", [None, 1, 5, 16])
def test_a_decoder_tells_each_token_after_its_window(stride):
    lm = language_model(tiny.MODEL)
    scores = scoring.score_texts(lm, TEXTS, stride)
    for text, (found, tokens) in zip(TEXTS, scores, strict=True):
        ids, want = list(text.encode()), 0.0
        step = stride or 16
        for at, token in enumerate(ids):
            # The last token of the window that this one is told in.
            end = 16 if at < 16 else min(16 + step * math.ceil((at - 15) / step), len(ids))
            first = max(0, min(end, len(ids)) - 16)
            read = [256, *ids][first : at + 1]
            filled = read + [0] * (16 - len(read))  # Behind it, where it is not seen: one shape is compiled.
            want += float(jax.nn.log_softmax(lm.logits([filled])[0, len(read) - 1])[token])
        assert tokens == len(ids) and found == pytest.approx(want, abs=1e-4 * len(ids))


def test_a_masked_model_hides_one_token_of_its_window_after_another():
    lm = language_model(tiny.BERT)
    (short,) = scoring.score_texts(lm, [TEXTS[1]])
    assert short.log_likelihood == pytest.approx(float(lm.pseudo_log_likelihoods(TEXTS[1], True)[0].sum()), abs=1e-4)
    # 14 bytes and their frame fit.
    text = TEXTS[2][:20]
    (long,) = scoring.score_texts(lm, [text], stride=6)
    first, second = (lm.pseudo_log_likelihoods(part, True)[0] for part in (text[:14], text[6:]))
    assert long.tokens == 20
    assert long.log_likelihood == pytest.approx(float(first.sum() + second[-6:].sum()), abs=1e-4)


def test_perplexities_are_by_token_word_and_byte():
    texts = ["né  en\nmer", "à"]
    metrics = scoring.perplexities(texts, [scoring.TextScore(-6.0, 4), scoring.TextScore(-2.0, 1)])
    words = sum(len(re.split(r"\s+", text)) for text in texts)
    assert (metrics["tokens"], metrics["words"], metrics["bytes"]) == (5, words, 13) and words == 4
    assert metrics["token_perplexity"] == pytest.approx(math.exp(8 / 5))
    assert metrics["word_perplexity"] == pytest.approx(math.exp(8 / 4))
    assert metrics["byte_perplexity"] == pytest.approx(2 ** metrics["bits_per_byte"]) == pytest.approx(math.exp(8 / 13))


@pytest.mark.parametrize("text", ["a b", " a b", "a b\n", " \n = Title = \n\n A  page . \n", "\t"])
def test_words_and_bytes_are_counted_like_wikitext_in_lm_eval(text):
    """White space at the beginning or at the end of a text adds an empty word, as in published word perplexities."""
    wikitext = pytest.importorskip("lm_eval.tasks.wikitext.preprocess_wikitext")
    expected = wikitext.process_results({"page": text}, (-3.0,))
    metrics = scoring.perplexities([text], [scoring.TextScore(-3.0, 2)])
    assert metrics["words"] == expected["word_perplexity"][1]
    assert metrics["bytes"] == expected["byte_perplexity"][1]
    assert metrics["word_perplexity"] == pytest.approx(math.exp(3 / expected["word_perplexity"][1]))


def test_the_documents_of_a_split_are_told(tmp_path):
    texts = [f"the sea {number}" for number in range(40)]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    source = config.TextFiles(str(tmp_path / "texts.txt"), document="line")
    data = dataclasses.replace(tiny.PLAIN.data, sources={"texts": source}, mixture={}, validation_fraction=0.2)
    run, lm = dataclasses.replace(tiny.PLAIN, data=data), language_model(tiny.MODEL)
    metrics = [
        task_metrics.evaluate(lm, run, task, show_progress=False, text_scoring=scoring.TextScoring(4))
        for task in ("texts", "texts:train")
    ]
    assert metrics[0]["texts"] + metrics[1]["texts"] == 40 and 0 < metrics[0]["texts"] < 20
    nats = sum(np.log(of["token_perplexity"]) * of["tokens"] for of in metrics)
    assert nats == pytest.approx(-sum(told.log_likelihood for told in scoring.score_texts(lm, texts, 4)), rel=1e-5)
    limited = task_metrics.evaluate(lm, run, "texts", show_progress=False, text_scoring=scoring.TextScoring(4, limit=2))
    assert limited["texts"] == 2
    with pytest.raises(UserError, match="the stride is 17, and the model's context has 16 tokens"):
        scoring.evaluate(lm, run, "texts", scoring.TextScoring(17), show_progress=False)
    with pytest.raises(UserError, match="no split 'tests'"):
        scoring.evaluate(lm, run, "texts:tests", scoring.TextScoring(4), show_progress=False)
    with pytest.raises(UserError, match="does not score whole texts"):
        scoring.score_texts(LanguageModel(tiny.T5, {}, vocabulary_spec="bytes"), ["a"])
    assert perplexity.parse_task(run, "texts") == ("texts", "validation")
