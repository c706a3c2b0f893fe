"""Encoder-decoder, decoder, and decoder with a prefix, under two kinds of objective (Raffel et al. 2020 §3.2, table 2).

    python -m plm_jax sweep --sweep=ablations/t5_architectures --workdir=runs/t5-architectures
    python -m plm_jax sweep --sweep=ablations/t5_architectures:demo --workdir=runs/t5-architectures-demo --seeds=0,1,2

For language modeling, the encoder of an encoder-decoder reads a prefix and the decoder continues it. A decoder that
denoises has the inputs and the targets in one row.
"""

import dataclasses
from collections.abc import Iterator

from plm_jax import models, objectives
from plm_jax.configs import demo, t5
from plm_jax.configs.ablations import downstream, t5_paper
from plm_jax.experiments.setups import Setup

MODELS = {"paper": t5.model(*t5.SIZES["base"][:5], v1_1=False), "demo": demo.t5().model}
# Number of tokens in a text that is denoised, and in a row that the inputs and targets of a task share.
LENGTHS = {"paper": (512, 512 + 512), "demo": (128, 128 + 24)}
NOISE = objectives.ReplaceSpans()
# Reasons why the decoders' runs differ from the set-up that the paper states for all models.
_SHARED = "a row has the inputs followed by the targets"
_ONE_PREFIX = "a row has one prefix"
base, compared = t5_paper.base, t5_paper.compared


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    whole = MODELS[size]
    half = models.StackConfig(layers=whole.stack.layers // 2)
    shapes = {
        "encoder_decoder": whole,
        "shared": dataclasses.replace(whole, tie_encoder_decoder=True),
        "halved": dataclasses.replace(whole, stack=half, decoder_stack=half),
    }
    for name, model in shapes.items():
        yield from t5_paper.arm(f"denoise_{name}", {"model": model, "objective": NOISE}, size)
        yield from t5_paper.arm(f"lm_{name}", {"model": model, "objective": objectives.PrefixLM()}, size)
    of_noise = {"data.length": sum(NOISE.lengths(NOISE.input_length(LENGTHS[size][0]))) - 1}
    for name, prefix, of_text in (
        ("decoder", False, objectives.Causal()),
        ("prefix_decoder", True, objectives.DecoderPrefixLM()),
    ):
        noise = {"objective": objectives.DecoderTextToText(NOISE, prefix)}
        yield from _decoder(f"denoise_{name}", noise | of_noise, size)
        yield from _decoder(f"lm_{name}", {"objective": of_text}, size)


evaluations = t5_paper.evaluations(overrides)


def _decoder(name: str, changes: downstream.Changes, size: str) -> Iterator[tuple[str, downstream.Changes]]:
    """Yields a decoder as large as the baseline's, and the runs that tune it."""
    fields = {field.name: getattr(MODELS[size], field.name) for field in dataclasses.fields(models.DecoderConfig)}
    pretrained, *tuned = t5_paper.arm(name, {"model": models.DecoderConfig(**fields)} | changes, size)
    yield pretrained
    for task, of_task in tuned:
        rows = {"data.length": LENGTHS[size][1]}
        if changes["objective"].has_prefix:
            rows |= {"data.inputs_targets.packed": False}
        yield task, of_task | rows | {"objective": changes["objective"]}


def published():
    """Returns the paper's figures."""
    rows = {
        "denoise_encoder_decoder": t5_paper.BASELINE,
        "denoise_shared": "82.81 18.78 80.63 70.73 26.72 39.03 27.46",
        "denoise_halved": "80.88 18.97 77.59 68.42 26.38 38.40 26.95",
        "denoise_decoder": "74.70 17.93 61.14 55.02 25.09 35.28 25.86",
        "denoise_prefix_decoder": "81.82 18.61 78.94 68.11 26.43 37.98 27.39",
        "lm_encoder_decoder": "79.56 18.59 76.02 64.29 26.27 39.17 26.86",
        "lm_shared": "79.60 18.13 76.35 63.50 26.62 39.17 27.05",
        "lm_halved": "78.67 18.26 75.32 64.06 26.13 38.42 26.89",
        "lm_decoder": "73.78 17.54 53.81 56.51 25.23 34.31 25.38",
        "lm_prefix_decoder": "79.68 17.84 76.87 64.86 26.28 37.51 26.76",
    }
    published_rows = []
    for name, figures in rows.items():
        tuning = t5_paper.TUNING
        if _is_decoder(name):
            reasons = {"length": _SHARED} | ({"rows.packed": _ONE_PREFIX} if "prefix" in name else {})
            tuning = {end: dataclasses.replace(setup, reasons=reasons) for end, setup in tuning.items()}
        published_rows += t5_paper.published(2, {name: figures}, setup=_setup(name), tuning=tuning)()
    return published_rows


def _is_decoder(name: str) -> bool:
    return name.partition("_")[2] in ("decoder", "prefix_decoder")


def _setup(name: str) -> Setup:
    """Returns the paper's set-up for pretraining a variant."""
    aim, _, architecture = name.partition("_")
    changes = {"shared": {"tie_encoder_decoder": True}, "halved": {"stack.layers": 6, "decoder_stack.layers": 6}}
    of = dataclasses.replace(
        t5_paper.PRETRAINING,
        source="Raffel et al. 2020, §3.2.2 to 3.2.4 (variants) and §3.1 (all else)",
        model=dict(t5_paper.PRETRAINING.model) | changes.get(architecture, {}),
    )
    if aim == "lm":
        of = dataclasses.replace(of, objective={"kind": "prefix_lm"})
    if not _is_decoder(name):
        return of
    decoder = {path: value for path, value in of.model.items() if not path.startswith("decoder_stack")}
    of = dataclasses.replace(of, model=decoder | {"kind": "decoder"})
    is_prefix = architecture == "prefix_decoder"
    if aim == "lm":
        return dataclasses.replace(of, objective={"kind": "decoder_prefix_lm" if is_prefix else "causal"})
    noise = {"kind": "decoder_text_to_text", "prefix": is_prefix, "noise.kind": "replace_spans"}
    return dataclasses.replace(of, objective=noise | {"noise.noise_density": 0.15}, reasons={"length": _SHARED})
