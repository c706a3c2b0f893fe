"""Attention kernel of every published model on TPUs and NVIDIA GPUs, and its table in docs/gpu-clusters.md."""

import logging
import pathlib
from functools import cache

import jax
import jax.numpy as jnp
import pytest

from plm_jax import config, models
from plm_jax.config import files as pages
from plm_jax.models import registry
from plm_jax.models.kernels import Context, choose, pick
from plm_jax.models.positions import Position
from tests.golden.make_configs import sizes
from tests.models.test_kernels import HOPPER, TPU, devices

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "gpu-clusters.md"
FAMILIES = [name for name in pages.names() if sizes(name)]


@cache
def kernels(family):
    """Returns the kernels of a family's published configs in training, a set by platform, empty without attention."""
    chosen = {"tpu": set(), "cuda": set()}
    for size in sizes(family):
        run = config.from_dict(pages.load(f"{family}:{size}").config())
        if (attention := getattr(run.model, "attention", None)) is None:
            continue
        for stage in config.resolve_phases(run):
            lengths = {stage.length, config.target_length(run, stage.length) if run.model.has_decoder else stage.length}
            for platform, names in chosen.items():
                names |= {taken(run, attention, platform, queries, keys) for queries in lengths for keys in lengths}
    return chosen


def taken(run, attention, platform, queries, keys):
    """Returns the kernel of attention between queries and keys, with every input that such a model may have."""
    position, generator = type(attention.position), getattr(run.model, "generator_model", None)
    heads = {attention.head_dim, *([generator.attention.head_dim] if generator else [])}
    chosen = {
        choose(
            run.model.attention_kernel,
            platform,
            dtype=jnp.dtype(run.precision.compute),
            head_dim=head_dim,
            queries=queries,
            keys=keys,
            distance_bias=position.distance_bias is not Position.distance_bias,
            bias=position.bias is not Position.bias or attention.position.expands_scores(in_order=True),
            dense=True,
            prefix=True,
            dropout=run.model.dropout.attention > 0,
            windows=any(attention.windows),
        )
        for head_dim in heads
    }
    assert not any(reason for _, reason in chosen), (chosen, run.model)
    return "/".join(sorted(kernel for kernel, _ in chosen))


@pytest.mark.parametrize("order", [True, False])
def test_flash_supports_an_order_but_no_mask_for_each_query(order):
    ranks = jnp.zeros((1, 8), jnp.int32)
    context = Context(order=(ranks, ranks)) if order else Context(mask=jnp.ones((1, 8, 8), jnp.int32))
    sizes = {"dtype": jnp.bfloat16, "head_dim": 64, "groups": 2, "queries": 8, "keys": 8}
    with devices(TPU):
        kernel = pick("attention", "auto", context, adds_bias=False, expanded=False, **sizes)
    assert kernel == ("flash" if order else "xla")


@pytest.mark.parametrize("setting", ["auto", "cudnn"])
@pytest.mark.parametrize("position", [models.Disentangled(), models.RelativeSinusoids()], ids=lambda each: each.kind)
def test_cudnn_never_drops_the_scores_that_layers_add(position, setting, caplog):
    """Without dropout, cudnn supports everything else that these models need."""
    kind = models.XlnetConfig if isinstance(position, models.RelativeSinusoids) else models.EncoderConfig
    model = kind(
        embedding=models.EmbeddingConfig(32, 32),
        attention=models.AttentionConfig(heads=2, head_dim=16, position=position),
        feed_forward=models.FeedForwardConfig(32),
        stack=models.StackConfig(2),
        head=models.VocabularyHead(),
        attention_kernel=setting,
    )
    params, tokens = registry.shapes(model), jnp.zeros((2, 8), jnp.int32)
    caplog.set_level(logging.INFO)
    with devices(HOPPER):
        module = registry.build(model, jnp.bfloat16)
        jax.eval_shape(lambda params: module.apply({"params": params}, tokens, method="features"), params)
    messages = {record.getMessage() for record in caplog.records}
    reason = " (cudnn would hold a bias of all scores in memory)" if setting == "cudnn" else ""
    assert messages == {f"attention of 'stack' uses the flash kernel{reason}"}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_published_model_uses_a_flash_kernel(family):
    chosen = kernels(family)
    assert chosen["tpu"] == (set() if family == "elmo" else {"flash"})
    assert chosen["cuda"] <= {"flash", "cudnn"} and bool(chosen["cuda"]) == (family != "elmo")


def test_docs_list_the_kernels():
    table = {}
    for family in FAMILIES:
        names = (sorted(kernels(family)[platform]) for platform in ("tpu", "cuda"))
        row = tuple(" or ".join(f"`{name}`" for name in cell) or "has no attention" for cell in names)
        table.setdefault(row, []).append(f"`{family}`")
    lines = [f"| {', '.join(families)} | {' | '.join(row)} |" for row, families in table.items()]
    _, _, after = DOCS.read_text().partition("| family | TPU | NVIDIA GPU |\n|---|---|---|\n")
    assert after.partition("\n\n")[0].splitlines() == lines, "\n".join(lines)
