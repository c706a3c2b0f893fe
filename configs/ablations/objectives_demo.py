"""Every pretraining objective on the State of the Union addresses, each beside a predictor that looks at no input.

    python -m plm_jax.sweep --sweep=configs/ablations/objectives_demo.py --workdir=runs/objectives [--seeds=0,1,2]

The runs `bert`, `gpt2`, `t5`, `bart` are the demos of their families; another objective of the same architecture
begins with their weights (`train.init_from`). A run takes two idle cores up to eight minutes, most one or two.

On held-out speeches each has to beat a predictor of its own: denoisers and language models the training text's add-one
unigram on the text among their targets (`real_loss`), sentence pairs the more frequent label (`pair_accuracy`),
replaced-token detection the same (`discriminator_accuracy`) and chance (`discriminator_auc`).

Sentences here are long: in rows of 64 tokens most segments that `bert` reads have but one, which makes three quarters
of its pairs random. Pairs of single sentences, as in `next_sentence` and `sentence_order`, have both labels alike.
"""

import dataclasses
import os
import runpy

from plm_jax import config, objectives
from plm_jax.models import settings
from plm_jax.objectives import denoising

base = "../demo.py:bert"
DEMO = runpy.run_path(os.path.join(os.path.dirname(__file__), "..", "demo.py"))

NO_PAIRS = {"data.layout": config.WholeSentences()}


def overrides():
    """(name, changes) of each run."""
    yield from _encoders()
    yield from _decoders()
    yield from _text_to_text()
    yield from _denoisers()


def _after(name: str, steps: int, learning_rate: float) -> dict:
    """A short run that begins with another one's weights."""
    return {
        "train.init_from": name,
        "train.steps": steps,
        "schedule.learning_rate": learning_rate,
        "schedule.warmup_steps": 20,
    }


def _encoders():
    """Masked language models with and without pairs, and what is built on them."""
    after = _after("bert", 100, 1e-3)
    yield "bert", {}
    for task in ("next_sentence", "sentence_order"):
        yield task, {"data.layout": config.SentencePairs(task=task, parts="sentences"), **after, "train.steps": 300}
    yield "masked_lm", {**NO_PAIRS, **after}
    yield "masked_lm_static", {**NO_PAIRS, "objective": objectives.MaskedLM(duplicates=10), **after}
    yield "masked_lm_whole_words", {**NO_PAIRS, "objective": objectives.MaskedLM(whole_words=1), **after}
    yield "masked_lm_n_grams", {**NO_PAIRS, "objective": objectives.MaskedLM(whole_words=3), **after}
    spanbert = dataclasses.replace(
        DEMO["bert"]().model, pooler=settings.NoHead(), span_boundary=settings.SpanBoundary(width=32)
    )
    spans = {"model": spanbert, "objective": objectives.SpanMaskedLM()}
    yield "span_masked_lm", {**spans, "data.layout": config.WholeSentences(cross_documents=False), **after}
    yield "replaced_token", {**vars(DEMO["electra"]()), **_after("bert", 200, 1e-3)}


def _decoders():
    """Language models in one direction, after a prefix, in both directions."""
    yield "gpt2", vars(DEMO["gpt2"]())
    prefix_lm = {**vars(DEMO["gpt2"]()), "objective": objectives.DecoderPrefixLM()}
    yield "decoder_prefix_lm", {**prefix_lm, **_after("gpt2", 30, 5e-4)}
    yield "elmo", vars(DEMO["elmo"]())


def _text_to_text():
    """T5's span corruption, what it was compared with, and UL2; where labelled tasks that go on from `t5` belong."""
    yield "t5", vars(DEMO["t5"]())
    compared = {
        "replace_spans": objectives.ReplaceSpans(),
        "mask_tokens_bert_style": objectives.MaskTokens(),
        "mask_tokens_mass_style": objectives.MaskTokens(random_share=0.0),
        "drop_tokens": objectives.DropTokens(),
        "deshuffling": objectives.Deshuffling(),
        "prefix_lm": objectives.PrefixLM(),
        "full_lm": objectives.FullLM(),
        "ul2": objectives.UL2(),
    }
    for name, objective in compared.items():
        yield name, {**vars(DEMO["t5"]()), "objective": objective, "train.init_from": "t5", "train.steps": 60}


def _denoisers():
    """BART's noises and GLM's blanks."""
    yield "bart", vars(DEMO["bart"]())
    noises = {
        "token_masking": objectives.Denoising(permute_sentences=0.0, noise=denoising.TokenMasking()),
        "token_deletion": objectives.Denoising(permute_sentences=0.0, noise=denoising.TokenDeletion()),
        "document_rotation": objectives.Denoising(permute_sentences=0.0, noise=denoising.NoNoise(), rotate=1.0),
    }
    for name, objective in noises.items():
        yield name, {**vars(DEMO["bart"]()), "objective": objective, **_after("bart", 60, 1e-3)}
    yield "glm", vars(DEMO["glm"]())
