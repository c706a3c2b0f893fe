"""ChatGLM-6B to GLM-4-9B (Zeng et al. 2024): 6b, 2-6b and 3-6b 6.2e9, 4-9b 9.4e9 parameters.

    python -m plm_jax pretrain --config=configs/chatglm.py:3-6b --workdir=runs/chatglm3-6b

Published: the architectures (config.json of THUDM/chatglm-6b, chatglm2-6b, chatglm3-6b and glm-4-9b) and the tokens,
1e12 for ChatGLM, 1.4e12 for ChatGLM2 and 10e12 for GLM-4. Batch, learning rate and schedule were not published; those
of LLaMA 2 7B are used (configs/llama.py). ChatGLM3 is assumed to have seen the same number of tokens as ChatGLM2.

6b is GLM with rotary positions in two dimensions: it fills blanks, here in GLM-130B's shares (Zeng et al. 2023, §2.2:
70 % of the rows with a long blank at the end, 30 % with short spans), in rows of 2,304 slots for texts of 2,048 tokens.
In the later ones, next-token prediction replaces a mixture of objectives.

Store your documents as JSON Lines ({"text": …}) at `data.sources.text.path`, and ChatGLM's ice_text.model or ChatGLM2's
tokenizer.model at `vocabulary.spec`, or change these fields. For 4-9b, `prepare` trains a SentencePiece vocabulary of
the size of GLM-4's, below the same special ids; to read GLM-4's own tokenizer.model, set `vocabulary.spec` to
`tiktoken:FILE`.

From 2-6b on each document begins with `[gMASK] sop`, as their tokenizers begin every text, and ends with eos; the
format of their training rows was not published.
"""

import dataclasses
from typing import NamedTuple

from plm_jax import config, models, objectives
from plm_jax.configs import published_run


class Size(NamedTuple):
    """Dimensions, the longest text, the epsilon of the norms, and number of training tokens."""

    layers: int
    vocab_size: int
    length: int
    epsilon: float
    tokens: float


SIZES = {
    "6b": Size(layers=28, vocab_size=130_528, length=2048, epsilon=1e-5, tokens=1e12),
    "2-6b": Size(layers=28, vocab_size=65024, length=32_768, epsilon=1e-5, tokens=1.4e12),
    "3-6b": Size(layers=28, vocab_size=65024, length=8192, epsilon=1e-5, tokens=1.4e12),
    "4-9b": Size(layers=40, vocab_size=151_552, length=8192, epsilon=1.5625e-7, tokens=10e12),
}
# Ids above the vocabulary's file (tokenization_chatglm.py of THUDM/chatglm2-6b; tokenizer_config.json of glm-4-9b).
CHATGLM2_IDS = {"added": 5, "eos": 2, "gmask": 64_790, "sop": 64_792}
GLM4_IDS = {"train_size": 151_329, "added": 14, "eos": 151_329, "gmask": 151_331, "sop": 151_333}
LENGTH, ROWS = 4096, 1024
# Of 6b: slots of a row, tokens of its text, rows.
BLANKS_LENGTH, BLANKS_TEXT, BLANKS_ROWS = 2304, 2048, 2048
# size: (parameters of the original implementation, parameters as usually cited)
PUBLISHED = {
    "6b": (6_173_286_400, "6.2B"),
    "2-6b": (6_243_584_000, "6.2B"),
    "3-6b": (6_243_584_000, "6.2B"),
    "4-9b": (9_399_951_360, "9.4B"),
}
SOURCE = "GLM Team 2024"


def model(layers: int, vocab_size: int, length: int, epsilon: float):
    """Returns a ChatGLM2 model: rotary positions on half of each head, two groups of keys and values."""
    return models.DecoderConfig(
        embedding=models.EmbeddingConfig(vocab_size=vocab_size, width=4096),
        attention=models.AttentionConfig(
            heads=32,
            head_dim=128,
            kv_heads=2,
            position=models.Rotary(fraction=0.5, interleaved=True, length=length),
            out_bias=False,
        ),
        feed_forward=models.FeedForwardConfig(width=13_696, activation="silu", gated=True, bias=False),
        norm=models.NormConfig(kind="rms", epsilon=epsilon),
        stack=models.StackConfig(layers=layers),
        head=models.VocabularyHead(tied=False),
        initializer=models.InitializerConfig(std=0.02),
    )


def first_model(layers: int, vocab_size: int, length: int, epsilon: float):
    """Returns a ChatGLM-6B model."""
    return models.DecoderConfig(
        embedding=models.EmbeddingConfig(vocab_size=vocab_size, width=4096),
        attention=models.AttentionConfig(heads=32, head_dim=128, position=models.Rotary2D(length=length)),
        feed_forward=models.FeedForwardConfig(width=16_384, activation="gelu_tanh"),
        norm=models.NormConfig(epsilon=epsilon, placement="deep"),
        stack=models.StackConfig(layers=layers),
        initializer=models.InitializerConfig(std=0.02),
    )


def first(run: config.Run, of: Size) -> config.Run:
    """Returns the run of 6b, which differs from the later ones."""
    ids = {"pad": 3, "eos": 2, "mask": 130_000, "gmask": 130_001, "sop": 130_004, "eop": 130_005}
    spec = "sentencepiece:../vocabularies/chatglm/ice_text.model"
    return dataclasses.replace(
        run,
        model=dataclasses.replace(first_model(of.layers, of.vocab_size, of.length, of.epsilon), remat="full"),
        objective=objectives.BlankInfilling(document_rate=0.7, document_end_share=1.0),
        vocabulary=config.VocabularyConfig(spec=spec, unk=0, **ids),
        data=dataclasses.replace(run.data, cache_dir="../.cache/chatglm", layout=config.Blocks(), length=BLANKS_LENGTH),
        train=config.TrainConfig(steps=round(of.tokens / (BLANKS_ROWS * BLANKS_TEXT)), batch_size=BLANKS_ROWS),
    )


def get_config(size: str = "3-6b"):
    """Returns the run of one of SIZES."""
    of = config.choose(SIZES, size)
    name, above = ("glm4", GLM4_IDS) if size == "4-9b" else ("chatglm2", CHATGLM2_IDS)
    run = published_run(
        model=dataclasses.replace(model(of.layers, of.vocab_size, of.length, of.epsilon), remat="full"),
        objective=objectives.Causal(),
        vocabulary=config.VocabularyConfig(f"sentencepiece:../vocabularies/{name}/tokenizer.model", unk=0, **above),
        data=config.DataConfig(
            cache_dir=f"../.cache/{name}",
            sources={"text": config.TextTable(path="../corpus/*.jsonl.gz")},
            layout=config.Blocks(begin=("gmask", "sop")),
            length=LENGTH,
        ),
        optimizer=config.AdamWConfig(b1=0.9, b2=0.95, epsilon=1e-5, weight_decay=0.1, clip_norm=1.0),
        schedule=config.CosineSchedule(learning_rate=3e-4, warmup_steps=2000, final_fraction=0.1),
        train=config.TrainConfig(steps=round(of.tokens / (ROWS * LENGTH)), batch_size=ROWS),
    )
    return config.to_config_dict(first(run, of) if size == "6b" else run)
