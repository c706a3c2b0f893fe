"""Decoding with an encoder-decoder, against transformers' T5."""

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

# Ours, in a block → T5's module in a block of the encoder and of the decoder.
MODULES = {
    "attention": ("layer.0.SelfAttention", "layer.0.SelfAttention"),
    "attention_norm": ("layer.0.layer_norm", "layer.0.layer_norm"),
    "cross_attention": (None, "layer.1.EncDecAttention"),
    "cross_attention_norm": (None, "layer.1.layer_norm"),
    "feed_forward": ("layer.1.DenseReluDense", "layer.2.DenseReluDense"),
    "feed_forward_norm": ("layer.1.layer_norm", "layer.2.layer_norm"),
}
MATRICES = {"query": "q", "key": "k", "value": "v", "out": "o", "up": "wi", "down": "wo"}


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


def their_tensors(params):
    tensors = {"shared.weight": params["token_embedding"]}
    for side, stack in enumerate(("encoder", "decoder")):
        tensors[f"{stack}.final_layer_norm.weight"] = params[stack]["final_norm"]["scale"]
        first = f"{stack}.block.0.{MODULES['attention'][side]}"
        tensors[f"{first}.relative_attention_bias.weight"] = params[stack]["relative_bias"]
        for layer in range(LAYERS):
            for name, module in params[stack]["blocks"].items():
                at = f"{stack}.block.{layer}.{MODULES[name][side]}"
                if "scale" in module:
                    tensors[f"{at}.weight"] = module["scale"][layer]
                else:
                    tensors |= {f"{at}.{MATRICES[n]}.weight": m["kernel"][layer].T for n, m in module.items()}
    return tensors


@pytest.fixture(scope="module")
def theirs():
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=VOCAB,
            d_model=WIDTH,
            num_heads=HEADS,
            d_kv=HEAD_DIM,
            d_ff=MLP,
            num_layers=LAYERS,
            relative_attention_num_buckets=BUCKETS,
            relative_attention_max_distance=9,
            decoder_start_token_id=0,
        )
    ).eval()
    tensors = {name: torch.tensor(value) for name, value in their_tensors(model_and_params()[1]).items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert set(missing) <= {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"}
    tokens, mask = decoding.pad(PROMPTS, max(map(len, PROMPTS)))

    def generate(beams, end):
        with torch.no_grad():
            out = model.generate(
                input_ids=torch.tensor(tokens).long(),
                attention_mask=torch.tensor(mask).long(),
                max_new_tokens=12,
                num_beams=beams,
                do_sample=False,
                eos_token_id=end,
            )
        rows = [row[1:] for row in out.tolist()]
        return [row[: row.index(end)] if end in row else row for row in rows]

    return generate


def generate(prompts=PROMPTS, max_new_tokens=12, end=1, **kwargs):
    return decoding.generate(*model_and_params(), prompts, max_new_tokens=max_new_tokens, eos_ids=[end], **kwargs)


@pytest.mark.parametrize("beams", [1, 3])
def test_the_answers_are_those_of_transformers(theirs, beams):
    end = generate(num_beams=beams)[0][4]
    got = generate(num_beams=beams, end=end)
    assert got == theirs(beams, end)
    assert len({tuple(row) for row in got}) > 2
    assert len({len(row) for row in got}) > 1


def test_greedy_takes_the_most_probable_token_of_the_full_pass_after_the_start_token():
    module, params = model_and_params()
    tokens, mask = decoding.pad(PROMPTS, max(map(len, PROMPTS)))
    answers = {start: generate(start_id=start) for start in (0, 7)}
    assert answers[0] != answers[7]
    for start, rows in answers.items():
        decoder_tokens, _ = decoding.pad([[start, *row] for row in rows], 13)  # Causal: what follows is not seen.
        logits = jax.jit(module.apply)({"params": params}, tokens, decoder_tokens, mask)
        for row, chosen in zip(rows, logits.argmax(-1).tolist(), strict=True):
            assert chosen[: len(row)] == row
            assert len(row) == 12 or chosen[len(row)] == 1


def test_samples_come_from_the_seed():
    first = generate(temperature=2.0, seed=1)
    assert first == generate(temperature=2.0, seed=1) != generate(temperature=2.0, seed=2)
    assert generate(temperature=2.0, top_k=1) == generate()


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
