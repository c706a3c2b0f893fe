"""The loss of fine-tuning against NumPy: each kind of head, padding, and GPT-1's auxiliary language model."""

import functools

import flax.linen as nn
import jax
import numpy as np
import pytest

from plm_jax import config, losses, models
from plm_jax.losses import means
from plm_jax.models import registry, task_heads
from plm_jax.training import mesh
from tests.support import tiny
from tests.support.random_models import random_params

ROWS, LENGTH, LABELS = 5, 9, ("a", "b", "c")
REAL = np.array([9, 3, 5, 7, 0])  # The last row is padding of the batch.
HEADS = {
    "classes": models.ClassesHead(labels=LABELS),
    "score": models.ScoreHead(feature="mean"),
    "tags": models.TagsHead(labels=LABELS),
    "span": models.SpanHead(),
    "choice": models.ChoiceHead(),
}


def batch_of(kind):
    rng = np.random.default_rng(0)
    mask = (np.arange(LENGTH) < REAL[:, None]).astype(np.int32)
    tokens = rng.integers(1, 256, (ROWS, LENGTH), np.int32) * mask
    if kind == "choice":
        tokens, mask = (np.stack([x, x[:, ::-1] if x is tokens else x], 1) for x in (tokens, mask))
        tokens *= mask
    labels = {
        "classes": {"label": rng.integers(0, 3, ROWS, np.int32)},
        "score": {"score": rng.normal(size=ROWS).astype(np.float32)},
        "tags": {"tags": rng.integers(-1, 3, (ROWS, LENGTH), np.int32)},
        "span": {name: rng.integers(0, 3, ROWS, np.int32) for name in ("span_starts", "span_ends")},
        "choice": {"label": rng.integers(0, 2, ROWS, np.int32)},
    }[kind]
    return {"tokens": tokens, "mask": mask} | {
        name: np.where((REAL > 0).reshape(-1, *[1] * (value.ndim - 1)), value, 0) for name, value in labels.items()
    }


@functools.cache
def build(kind, model=tiny.BERT):
    model = model.with_task(HEADS[kind])
    return registry.build(model), random_params(model)


def means_of(loss, module, params, batch):
    sums = jax.jit(lambda params, batch: means.sums(loss, module, params, batch, {})[0])(params, batch)
    return {name: float(value) for name, value in means.means(loss, sums).items()}


@functools.partial(jax.jit, static_argnames="module")
def output_of(module, params, batch):
    return task_heads.output(module, params, batch)[0]


def nll(logits, label):
    logits = np.asarray(logits, np.float64)
    return np.log(np.exp(logits).sum()) - logits[label]


@pytest.mark.parametrize("kind", HEADS)
def test_losses_equal_formula(kind):
    module, params = build(kind)
    batch, loss = batch_of(kind), losses.get("task")
    output = np.asarray(output_of(module, params, batch), np.float64)
    rows = range(ROWS - 1)
    if kind == "score":
        want = {"loss": np.mean([(output[row, 0] - batch["score"][row]) ** 2 for row in rows])}
    elif kind == "span":
        sides = [(output[row, :, side], batch[name][row]) for row in rows for side, name in SIDES]
        right = [np.argmax(logits) == label for logits, label in sides]
        want = {
            "loss": np.mean([nll(*side) for side in sides]),
            "accuracy": np.mean(np.all(np.reshape(right, (-1, 2)), 1)),
        }
    else:
        if kind == "tags":
            positions = [(row, at) for row in rows for at in range(REAL[row]) if batch["tags"][row, at] >= 0]
            assert 0 < len(positions) < sum(REAL)
            predictions = [(output[position], batch["tags"][position]) for position in positions]
        else:
            predictions = [(output[row], batch["label"][row]) for row in rows]
        hits = np.mean([np.argmax(logits) == label for logits, label in predictions])
        want = {"loss": np.mean([nll(*one) for one in predictions]), "accuracy": hits}
    got = means_of(loss, module, params, batch)
    assert got == pytest.approx(want, abs=1e-5)
    assert loss.heads == ("task",)


SIDES = ((0, "span_starts"), (1, "span_ends"))


def test_smoothed_cross_entropy_with_z_loss_equals_formula():
    """The smoothed labels are a mixture with the uniform distribution; z is the sum of the exponentials."""
    rng, smoothing, z_loss = np.random.default_rng(1), 0.2, 0.1
    logits, labels = rng.normal(size=(4, 3)).astype(np.float32), np.array([0, 2, 1, 1])
    z = np.exp(logits).sum(1)
    mixture = (1 - smoothing) * np.eye(3)[labels] + smoothing / 3
    expected = -(mixture * np.log(np.exp(logits) / z[:, None])).sum(1) + z_loss * np.log(z) ** 2
    loss = losses.get("task", label_smoothing=smoothing, z_loss=z_loss)
    values, is_right = loss.cross_entropy(logits, labels)
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    np.testing.assert_array_equal(is_right, logits.argmax(1) == labels)


@pytest.mark.parametrize("kind", ["classes", "choice"])
def test_auxiliary_language_model_is_mean_over_texts(kind):
    module, params = build(kind, tiny.MODEL)
    batch = batch_of(kind)
    targets = np.roll(batch["tokens"], -1, axis=-1)
    weights = np.roll(batch["mask"], -1, axis=-1) * batch["mask"] * 1.0
    weights[..., -1] = 0
    batch |= {"targets": targets, "target_weights": weights.astype(np.float32)}
    loss = losses.get("task", lm_coefficient=0.5)
    assert loss.heads == ("task", "vocabulary")
    flat = {name: batch[name].reshape(-1, LENGTH) for name in ("tokens", "mask", "targets", "target_weights")}
    logits = np.asarray(jax.jit(module.apply)({"params": params}, flat["tokens"], flat["mask"]))
    texts = [
        np.mean(
            [nll(logits[row, at], flat["targets"][row, at]) for at in range(LENGTH) if flat["target_weights"][row, at]]
        )
        for row in range(len(logits))
        if flat["target_weights"][row].any()
    ]
    assert len(texts) == 4 * (2 if kind == "choice" else 1)
    alone = means_of(losses.get("task"), module, params, batch)
    got = means_of(loss, module, params, batch)
    assert got["lm_loss"] == pytest.approx(np.mean(texts), abs=1e-5)
    assert got[f"{kind}_loss"] == pytest.approx(alone["loss"], abs=1e-6)
    assert got["loss"] == pytest.approx(alone["loss"] + 0.5 * np.mean(texts), abs=1e-5)


def test_losses_of_classes_may_be_weighted():
    module, params = build("classes")
    batch, weights = batch_of("classes"), (1.0, 0.25, 4.0)
    output = np.asarray(output_of(module, params, batch), np.float64)
    terms = [weights[batch["label"][row]] * nll(output[row], batch["label"][row]) for row in range(ROWS - 1)]
    weighted = means_of(losses.get("task", class_weights=weights), module, params, batch)
    assert weighted["loss"] == pytest.approx(np.mean(terms), abs=1e-5)
    assert weighted["accuracy"] == means_of(losses.get("task"), module, params, batch)["accuracy"]


def test_labels_may_be_smoothed():
    module, params = build("classes")
    batch = batch_of("classes")
    output = np.asarray(output_of(module, params, batch), np.float64)[:-1]
    log = np.log(np.exp(output) / np.exp(output).sum(-1, keepdims=True))
    soft = 0.9 * np.eye(3)[batch["label"][:-1]] + 0.1 / 3
    got = means_of(losses.get("task", label_smoothing=0.1), module, params, batch)
    assert got["loss"] == pytest.approx(-(soft * log).sum(1).mean(), abs=1e-5)


@pytest.mark.parametrize(
    ("model", "head", "lm"),
    [
        (tiny.MODEL, models.ChoiceHead(feature="last"), 0.5),
        (tiny.BERT, models.TagsHead(labels=LABELS, layers=models.MixedLayers(), recurrent=models.BiLstmConfig(4)), 0.0),
    ],
    ids=["choice", "tags"],
)
def test_mesh_keeps_values_and_gradients(model, head, lm):
    module = registry.build(model.with_task(head))
    params = random_params(module.model)
    batch = {name: np.concatenate([value[:4], value[1:]]) for name, value in batch_of(head.kind).items()}
    if lm:
        batch |= {"targets": batch["tokens"], "target_weights": batch["mask"].astype(np.float32)}
    loss = losses.get("task", lm_coefficient=lm)

    def value(params, batch):
        weights = loss.weights(module, batch)
        return means.in_units(loss, loss(module, params, batch, None, {})[0], weights) / means.unit(weights)

    want = jax.jit(jax.value_and_grad(value))(params, batch)
    device_mesh = mesh.build(config.MeshConfig(data=1, fsdp=4, tensor=2), jax.devices()[:8])

    def traced(params, batch):
        with nn.logical_axis_rules(config.MeshConfig().rules):
            return jax.value_and_grad(value)(params, batch)

    with jax.set_mesh(device_mesh):
        rows = jax.sharding.NamedSharding(device_mesh, jax.sharding.PartitionSpec("fsdp"))
        got = jax.jit(traced)(params, jax.device_put(batch, rows))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, want)
