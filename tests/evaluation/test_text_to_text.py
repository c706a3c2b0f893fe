"""Greedy decoding with an encoder-decoder and its positions."""

from functools import cache

import jax
import numpy as np
import pytest

from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.generation import decoding
from plm_jax.inference.language_model import LanguageModel
from plm_jax.models import registry

VOCAB, WIDTH, HEADS, HEAD_DIM, MLP, LAYERS, BUCKETS = 31, 12, 3, 5, 20, 2, 6
PROMPTS = [[4, 8, 15, 16, 1], [23, 1], [2, 3, 4, 2, 1, 6, 9, 8, 7, 6, 11, 1], [5, 5, 1]]


@cache
def model_and_params():
    module = registry.build(
        models.EncoderDecoderConfig(
            embedding=models.EmbeddingConfig(VOCAB, WIDTH),
            attention=models.AttentionConfig(
                HEADS, HEAD_DIM, models.RelativeBias(BUCKETS, 9), bias=False, score_scale=1.0
            ),
            feed_forward=models.FeedForwardConfig(MLP, "relu", bias=False),
            norm=models.NormConfig(1e-6, kind="rms"),
            stack=models.StackConfig(LAYERS),
            decoder_stack=models.StackConfig(LAYERS),
            head=models.VocabularyHead(scale_by_width=True),
        )
    )
    rng = np.random.default_rng(0)
    draw = lambda leaf: (0.5 * rng.normal(size=leaf.shape)).astype(np.float32)  # noqa: E731
    params = jax.tree.map(draw, registry.shapes(module.model))
    params["token_embedding"] *= 4
    return module, params


def test_greedy_takes_the_most_probable_token_of_the_full_pass_after_the_start_token():
    module, params = model_and_params()
    tokens, mask = decoding.pad(PROMPTS, max(map(len, PROMPTS)))
    options = {"max_new_tokens": 12, "eos_ids": [1]}
    answers = {start: decoding.generate(module, params, PROMPTS, start_id=start, **options) for start in (0, 7)}
    assert answers[0] != answers[7]
    for start, rows in answers.items():
        decoder_tokens, _ = decoding.pad([[start, *row] for row in rows], 13)  # Causal: what follows is not seen.
        logits = jax.jit(module.apply)({"params": params}, tokens, decoder_tokens, mask)
        for row, chosen in zip(rows, logits.argmax(-1).tolist(), strict=True):
            assert chosen[: len(row)] == row
            assert len(row) == 12 or chosen[len(row)] == 1


def test_prompt_and_answer_each_have_all_positions():
    model = models.EncoderDecoderConfig(
        embedding=models.EmbeddingConfig(VOCAB, WIDTH),
        attention=models.AttentionConfig(HEADS, HEAD_DIM, models.LearnedPositions(8)),
        feed_forward=models.FeedForwardConfig(MLP),
        stack=models.StackConfig(1),
        decoder_stack=models.StackConfig(1),
    )
    module = registry.build(model)
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), registry.shapes(model))
    assert len(decoding.generate(module, params, [[3] * 8], max_new_tokens=8)[0]) == 8
    with pytest.raises(UserError, match="9 tokens exceed the model's 8 positions"):
        LanguageModel(model, params).logits([[3] * 8], decoder_tokens=[[3] * 9])
    for length, new in ((9, 1), (1, 9)):
        with pytest.raises(UserError, match="exceed the model's 8 positions"):
            decoding.generate(module, params, [[3] * length], max_new_tokens=new)
