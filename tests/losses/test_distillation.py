"""Distillation: loss and gradients against torch on transformers' models, on meshes, and in memory."""

import dataclasses
import functools
import math
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plm_jax import config, losses
from plm_jax.common import keys
from plm_jax.hub import families, huggingface
from plm_jax.losses import cross_entropy, distillation, means
from plm_jax.models import registry
from plm_jax.training import mesh, state, step
from tests.support import tiny, torch_weights

ROWS, LENGTH, TARGETS, VOCAB = 5, 12, 4, 61
SETTINGS = losses.Distillation(alpha_ce=5.0, alpha_lm=2.0, alpha_cos=1.0, temperature=2.0)
BERT = {"vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
BERT |= {"intermediate_size": 40, "max_position_embeddings": 16}
DISTILBERT = {"vocab_size": VOCAB, "dim": 24, "n_layers": 1, "n_heads": 3, "hidden_dim": 40}
DISTILBERT |= {"max_position_embeddings": 16}
GPT2 = {"vocab_size": VOCAB, "n_positions": 16, "n_embd": 24, "n_head": 3}
# Families and sizes of teacher and student.
PAIRS = {
    "masked_lm": (("bert", BERT), ("distilbert", DISTILBERT)),
    "next_token": (("gpt2", GPT2 | {"n_layer": 2}), ("gpt2", GPT2 | {"n_layer": 1})),
}
CLASSES = {"bert": "BertForMaskedLM", "distilbert": "DistilBertForMaskedLM", "gpt2": "GPT2LMHeadModel"}


# Logits at once.
WHOLE, CHUNKS = 2**25, 2 * 3 * ROWS * VOCAB


def batch_of(kind):
    """Returns rows of 3 to 12 tokens with 1 to 4 targets, or with a target at every token but the last."""
    rng = np.random.default_rng(0)
    lengths = np.array([12, 3, 9, 12, 5])
    mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int32)
    tokens = (1 + rng.integers(0, VOCAB - 1, (ROWS, LENGTH))) * mask
    if kind == "next_token":
        weights = (np.arange(1, LENGTH + 1) < lengths[:, None]).astype(np.float32)
        return {"tokens": tokens, "targets": np.roll(tokens, -1, 1), "target_weights": weights}
    counts = np.array([4, 1, 2, 3, 1])
    return {
        "tokens": tokens,
        "mask": mask,
        "targets": rng.integers(1, VOCAB, (ROWS, TARGETS)),
        "target_positions": np.stack([rng.permutation(3) for _ in range(ROWS)]).repeat(2, 1)[:, :TARGETS],
        "target_weights": (np.arange(TARGETS) < counts[:, None]).astype(np.float32),
    }


def build_pair(kind, folder):
    """Returns teacher and student, each as the model of transformers in evaluation mode and as ours."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(1)
    models = []
    for role, (family, sizes) in zip(("teacher", "student"), PAIRS[kind], strict=True):
        settings = transformers.AutoConfig.for_model(family, initializer_range=0.2, **sizes)
        model = getattr(transformers, CLASSES[family])(settings).eval()
        for parameter in model.parameters():
            if parameter.ndim == 1:
                torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.1)
        model.save_pretrained(folder / role)
        models.append((model, huggingface.read(str(folder / role))))
    return models


def torch_loss(kind, teacher, student, batch, settings):
    """Returns the loss written with torch, with all logits in memory."""
    import torch

    functional = torch.nn.functional
    batch = {name: torch.tensor(value) for name, value in batch.items()}
    inputs = {"input_ids": batch["tokens"]} | ({"attention_mask": batch["mask"]} if "mask" in batch else {})
    with torch.no_grad():
        expected = teacher(**inputs, output_hidden_states=True)
    output = student(**inputs, output_hidden_states=True)
    real = (batch["mask"] if "mask" in batch else batch["target_weights"]).bool()
    targeted, counted = batch["target_weights"].bool(), batch["target_weights"]
    logits, expected_logits = output.logits, expected.logits
    if kind == "masked_lm":
        rows = torch.arange(ROWS)[:, None]
        logits, expected_logits = (x[rows, batch["target_positions"]] for x in (logits, expected_logits))
    nll = functional.cross_entropy(logits.mT, batch["targets"], reduction="none")
    objective_loss = (nll * counted).sum() / counted.sum()
    if settings.only_targets:
        compared = logits[targeted], expected_logits[targeted]
    else:
        compared = output.logits[real], expected.logits[real]
    t = settings.temperature
    ours, theirs = (functional.log_softmax(x / t, -1) for x in compared)
    divergence = functional.kl_div(ours, theirs, reduction="batchmean", log_target=True) * t**2
    states = output.hidden_states[-1][real], expected.hidden_states[-1][real]
    cosine = (1 - functional.cosine_similarity(*states, dim=-1)).mean()
    return settings.alpha_ce * divergence + settings.alpha_lm * objective_loss + settings.alpha_cos * cosine


@pytest.mark.parametrize(
    ("kind", "only_targets", "logits_at_once"),
    [
        ("masked_lm", False, CHUNKS),
        ("masked_lm", True, WHOLE),
        ("next_token", False, WHOLE),
        ("next_token", True, CHUNKS),
    ],
)
def test_loss_and_gradients_equal_torch(kind, only_targets, logits_at_once, tmp_path):
    settings = dataclasses.replace(SETTINGS, only_targets=only_targets)
    (teacher, ours_teacher), (student, ours) = build_pair(kind, tmp_path)
    batch = batch_of(kind)
    expected = torch_loss(kind, teacher, student, batch, settings)
    expected.backward()

    loss = settings.wrap(losses.get(kind, logits_at_once=logits_at_once))
    frozen = jax.tree.map(jnp.asarray, ours_teacher.params)
    module, references = registry.build(ours.model), {"teacher": (registry.build(ours_teacher.model), frozen)}
    loss.check_references(ours.model, {"teacher": ours_teacher.model})

    def value(params):
        terms, metrics, _ = loss(module, params, batch, None, {}, references=references)
        assert terms.keys() == metrics.keys() == loss.weights(module, batch).keys()
        return means.means(loss, means.LossSums(terms, metrics, loss.weights(module, batch)))["loss"]

    actual, gradients = jax.jit(jax.value_and_grad(value))(jax.tree.map(jnp.asarray, ours.params))
    np.testing.assert_allclose(actual, expected.item(), rtol=1e-6)
    layout = families.layout_of(families.registered()[PAIRS[kind][1][0]], ours.model)
    tensors = {name: parameter.grad.numpy() for name, parameter in student.named_parameters()}
    ours_flat = huggingface.Pretrained(ours.model, jax.device_get(gradients)).flat()
    compared = 0
    for path, _, of_torch, gradient in torch_weights.pieces(layout, tensors, ours_flat):
        np.testing.assert_allclose(gradient, of_torch, atol=1e-5, err_msg=path)
        compared += np.abs(of_torch).max() > 1e-3
    assert compared > 10


def head_of(rng, rows, vocab, width):
    shapes = (rows, LENGTH, width), (vocab, width), (vocab,)
    return tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)


def plain_divergence(head, teacher, weights):
    """Reference divergence with all logits."""
    log_q, log_p = (jax.nn.log_softmax((f @ matrix.T + bias) / 2.0) for f, matrix, bias in (head, teacher))
    return jnp.sum(weights * (jnp.exp(log_p) * (log_p - log_q)).sum(-1))


@pytest.mark.parametrize(
    ("sizes", "rows", "vocab"),
    [({"data": 8}, 8, 32), ({"data": 1, "fsdp": 2, "context": 2, "tensor": 2}, 3, 31)],  # No axis divides 3 or 31.
    ids=str,
)
def test_divergence_on_a_mesh_equals_full_logits(sizes, rows, vocab):
    rng = np.random.default_rng(0)
    head, teacher = head_of(rng, rows, vocab, 16), head_of(rng, rows, vocab, 8)
    weights = rng.random((rows, LENGTH)).astype(np.float32)
    expected = jax.jit(jax.value_and_grad(plain_divergence))(head, teacher, weights)

    def sharded(head, teacher, weights):
        with nn.logical_axis_rules(config.MeshConfig().rules):
            at_once = 4 * rows * vocab
            return jax.value_and_grad(distillation.linear_divergence)(head, teacher, weights, 2.0, at_once)

    with jax.set_mesh(mesh.build(config.MeshConfig(**sizes), jax.devices()[:8])):
        actual = jax.jit(sharded)(head, teacher, weights)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5), actual, expected)


def test_memory_of_a_step_is_bounded_by_chunks_of_logits():
    rows, length, vocab = 16, 512, 50257
    model = dataclasses.replace(
        tiny.MODEL,
        embedding=dataclasses.replace(tiny.MODEL.embedding, vocab_size=vocab, width=64),
        attention=dataclasses.replace(tiny.MODEL.attention, head_dim=16),
        feed_forward=dataclasses.replace(tiny.MODEL.feed_forward, width=256),
    )
    model = dataclasses.replace(
        model,
        attention=dataclasses.replace(
            model.attention, position=dataclasses.replace(model.attention.position, length=length)
        ),
    )
    module, shapes = registry.build(model), registry.shapes(model)
    optimizer = optax.sgd(0.1)
    loss = SETTINGS.wrap(losses.get("next_token"))
    train_step = step.train_step(loss, module, optimizer, references={"teacher": module})
    of_rows = functools.partial(jax.ShapeDtypeStruct, (rows, length))
    batch = {"tokens": of_rows(jnp.int32), "targets": of_rows(jnp.int32), "target_weights": of_rows(jnp.float32)}
    batch["digest"] = jax.ShapeDtypeStruct((rows, 2), jnp.uint32)
    begin = jax.eval_shape(functools.partial(state.new_state, optimizer=optimizer), shapes)
    root, rate = jax.eval_shape(lambda: (keys.from_seed(0), jnp.float32(0.1)))
    unoptimized = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        compiled = jax.jit(train_step).lower(begin, batch, root, rate, {"teacher": shapes}).compile()
    finally:
        jax.config.update("jax_disable_most_optimizations", unoptimized)
    assert compiled.memory_analysis().temp_size_in_bytes < 1.5 * 2**30
    sizes = [math.prod(map(int, shape.split(","))) for shape in re.findall(r"f32\[([\d,]+)\]", compiled.as_text())]
    assert vocab * 64 < max(sizes) <= cross_entropy.LOGITS_AT_ONCE
    assert rows * length * vocab > 10 * max(sizes)
    print(compiled.memory_analysis().temp_size_in_bytes / 2**30, max(sizes))
