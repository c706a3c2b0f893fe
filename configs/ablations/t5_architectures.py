"""Encoder-decoder, decoder, and decoder with a prefix, under two kinds of objective (Raffel et al. 2020 §3.2, table 2).

    python -m plm_jax.sweep --sweep=ablations/t5_architectures --workdir=runs/t5-architectures
    python -m plm_jax.sweep --sweep=ablations/t5_architectures:demo --workdir=runs/t5-architectures-demo --seeds=0,1,2

Of an encoder-decoder language modelling goes on after a prefix that the encoder has. Of the paper's rows decoders that
denoise are not here.
"""

import dataclasses

from plm_jax import config, objectives
from plm_jax.configs import demo, t5
from plm_jax.configs.ablations import t5_paper
from plm_jax.models import settings

MODELS = {"paper": t5.model(*t5.SIZES["base"][:5], v1_1=False), "demo": demo.t5().model}
base, compared = t5_paper.base, t5_paper.compared


def overrides(size="paper"):
    """(name, changes) of each run."""
    whole = MODELS[size]
    stack = whole.stack
    half = settings.Stack(layers=stack.layers // 2)
    halved = dataclasses.replace(whole, stack=half, decoder_stack=half)
    tied = dataclasses.replace(whole, tie_encoder_decoder=True)
    denoising, language_model = {"objective": objectives.ReplaceSpans()}, {"objective": objectives.PrefixLM()}
    yield from t5_paper.arm("denoise_encoder_decoder", denoising, size)
    yield from t5_paper.arm("denoise_shared", {"model": tied} | denoising, size)
    yield from t5_paper.arm("denoise_halved", {"model": halved} | denoising, size)
    yield from t5_paper.arm("lm_encoder_decoder", language_model, size)
    yield from t5_paper.arm("lm_shared", {"model": tied} | language_model, size)
    yield from t5_paper.arm("lm_halved", {"model": halved} | language_model, size)
    shared = {f.name: getattr(whole, f.name) for f in dataclasses.fields(settings.Decoder)}
    alone = {"model": settings.Decoder(**shared), "data.inputs_targets": config.InputsTargets(target_length=64)}
    yield from t5_paper.arm("lm_decoder", alone | {"objective": objectives.Causal()}, size)
    yield from t5_paper.arm("lm_prefix_decoder", alone | {"objective": objectives.DecoderPrefixLM()}, size)


def published():
    """What the paper reports."""
    return t5_paper.published(
        2,
        {
            "denoise_encoder_decoder": t5_paper.BASELINE,
            "denoise_shared": "82.81 18.78 80.63 70.73 26.72 39.03 27.46",
            "denoise_halved": "80.88 18.97 77.59 68.42 26.38 38.40 26.95",
            "lm_encoder_decoder": "79.56 18.59 76.02 64.29 26.27 39.17 26.86",
            "lm_shared": "79.60 18.13 76.35 63.50 26.62 39.17 27.05",
            "lm_halved": "78.67 18.26 75.32 64.06 26.13 38.42 26.89",
            "lm_decoder": "73.78 17.54 53.81 56.51 25.23 34.31 25.38",
            "lm_prefix_decoder": "79.68 17.84 76.87 64.86 26.28 37.51 26.76",
        },
    )
