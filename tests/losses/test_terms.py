"""Terms of losses: their means, gradients for any microbatches, and terms of users."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plm_jax import config, losses, objectives
from plm_jax.common import keys
from plm_jax.common.errors import UserError
from plm_jax.losses import means
from plm_jax.losses.loss import untrained_heads
from plm_jax.models import registry
from plm_jax.models.heads import Head
from plm_jax.models.protocol import ModelConfig
from plm_jax.training import mesh, state, step
from tests.support import tiny
from tests.support.random_models import random_params

ROWS, LENGTH, TARGETS = 8, 12, 4
ROOT = keys.from_seed(0)
MODELS = {"masked_lm": tiny.BERT, "span_masked_lm": tiny.SPANBERT, "replaced_token": tiny.ELECTRA}


def batch_of(kind):
    """Returns rows of 0 to 12 tokens and 0 to 4 targets. One row is padding, and the halves of the batch differ."""
    rng = np.random.default_rng(0)
    lengths = np.array([12, 3, 11, 4, 12, 5, 7, 0])
    counts = np.array([4, 1, 4, 1, 3, 0, 2, 0])
    mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int32)
    weights = (np.arange(TARGETS) < counts[:, None]).astype(np.float32)
    batch = {
        "tokens": rng.integers(0, 256, (ROWS, LENGTH), np.int32) * mask,
        "mask": mask,
        "targets": rng.integers(0, 256, (ROWS, TARGETS), np.int32),
        "target_positions": np.tile(np.arange(TARGETS, dtype=np.int32), (ROWS, 1)),
        "target_weights": weights,
    }
    if kind == "masked_lm":
        batch["pair_label"] = rng.integers(0, 2, ROWS, np.int32)
    if kind == "span_masked_lm":
        batch["target_left"] = np.zeros((ROWS, TARGETS), np.int32)
        batch["target_right"] = np.full((ROWS, TARGETS), 5, np.int32)
        # The head predicts the first 4 tokens of a span. All targets of two rows are beyond, and some of two others.
        offsets = np.arange(TARGETS, dtype=np.int32) + np.array([0, 4, 2, 0, 3, 0, 4, 0], np.int32)[:, None]
        batch["target_offsets"] = offsets
    return batch


@functools.cache
def build(kind):
    """Returns the module, parameters and the loss. The generator always predicts the same token."""
    params = random_params(MODELS[kind])
    if kind == "replaced_token":
        params["generator"]["head_bias"] = np.where(np.arange(272) == 9, 1e4, 0.0).astype(np.float32)
    objective = objectives.Objective.choices[kind]()
    loss = losses.get(objective.loss, **objective.loss_settings)
    return registry.build(MODELS[kind]), jax.tree.map(jnp.asarray, params), loss


def by_hand(kind, batch):
    """Reference means, computed row by row with all logits."""
    module, params, _ = build(kind)
    apply = jax.jit(functools.partial(module.apply, {"params": params}), static_argnames=("method", "name"))
    rows = [row for row in range(ROWS) if batch["mask"][row].any()]
    features = apply(batch["tokens"], batch["mask"], method="features")

    def nlls(logits, labels):
        return -np.take_along_axis(np.asarray(jax.nn.log_softmax(logits), np.float64), labels[..., None], -1)[..., 0]

    if kind == "masked_lm":
        logits = np.asarray(apply(features, name="sentence_pair", method="head_output"))
        nll = nlls(logits, batch["pair_label"])
        hits = logits.argmax(-1) == batch["pair_label"]
        return {"pair_loss": np.mean([nll[row] for row in rows]), "pair_accuracy": np.mean([hits[row] for row in rows])}
    if kind == "span_masked_lm":
        spans = [batch[f"target_{name}"] for name in ("left", "right", "offsets")]
        head, matrix, bias = apply(features, *spans, method="boundary_head")
        nll = nlls(head @ matrix.T + bias, batch["targets"])
        counted = [
            (row, slot)
            for row, slot in np.argwhere(batch["target_weights"] > 0)
            if batch["target_offsets"][row, slot] < 4
        ]
        assert 0 < len(counted) < batch["target_weights"].sum()
        return {"boundary_loss": np.mean([nll[row, slot] for row, slot in counted])}
    corrupted = batch["tokens"].copy()
    original = batch["tokens"].copy()
    for row, slot in np.argwhere(batch["target_weights"] > 0):
        corrupted[row, batch["target_positions"][row, slot]] = 9
        original[row, batch["target_positions"][row, slot]] = batch["targets"][row, slot]
    hidden = apply(corrupted, batch["mask"], method="features")
    scores = np.asarray(apply(hidden, name="discriminator", method="head_output"), np.float64)
    positions = [(row, at) for row in rows for at in np.flatnonzero(batch["mask"][row])]
    signs = {position: 1.0 if corrupted[position] != original[position] else -1.0 for position in positions}
    return {
        "discriminator_loss": np.mean(
            [np.log1p(np.exp(-signs[position] * scores[position])) for position in positions]
        ),
        "discriminator_accuracy": np.mean([signs[position] * scores[position] > 0 for position in positions]),
        "replaced": np.mean([sign > 0 for sign in signs.values()]),
    }


def run_step(kind, microbatches=1, devices=1):
    """Returns the metrics of a step, and the change of each parameter: with SGD at rate 1, the gradient."""
    module, params, loss = build(kind)
    device_mesh = mesh.build(config.MeshConfig(), jax.devices()[:devices])
    run = step.train_step(loss, module, optax.sgd(1.0), microbatches)
    run = mesh.jit(run, device_mesh, config.MeshConfig().rules)
    batch = batch_of(kind) | {"digest": np.zeros((ROWS, 2), np.uint32)}
    whole = state.new_state(params, optax.sgd(1.0)), ROOT, 1.0
    current, *inputs = jax.device_put(whole, mesh.replicated(device_mesh))
    after, metrics = run(current, jax.device_put(batch, mesh.batch_sharding(device_mesh)), *inputs)
    return jax.device_get((metrics, jax.tree.map(jnp.subtract, params, jax.device_get(after.params))))


@pytest.mark.parametrize("kind", MODELS)
def test_terms_are_means_for_any_microbatches(kind):
    want, want_gradient = run_step(kind)
    for name, value in by_hand(kind, batch_of(kind)).items():
        np.testing.assert_allclose(want[name], value, rtol=2e-6, err_msg=name)
    terms = {name for name in want if name.endswith("_loss")}
    assert len(terms) == 2
    coefficients = {"discriminator_loss": 50.0}
    total = sum(coefficients.get(name, 1.0) * want[name] for name in terms)
    np.testing.assert_allclose(want["loss"], total, rtol=1e-6)
    norm = optax.global_norm(want_gradient)
    np.testing.assert_allclose(want["grad_norm"], norm, rtol=1e-5)
    actual, gradient = run_step(kind, microbatches=2, devices=4)
    difference = optax.global_norm(jax.tree.map(jnp.subtract, gradient, want_gradient))
    assert difference < 1e-6 * norm, difference / norm
    for name in want:  # Some gradients, such as those of keys' biases, are only rounding errors.
        tolerance = {"rtol": 1e-5, "atol": 1e-7} if name == "norms" else {"rtol": 2e-6}
        np.testing.assert_allclose(actual[name], want[name], **tolerance, err_msg=name)


@pytest.mark.parametrize("microbatches", [1, 2])
def test_gradient_is_that_of_the_weighted_sum_of_means(microbatches):
    class Powers(losses.Loss):
        """Means of x² over all rows and of x³ over one row."""

        @property
        def coefficients(self):
            return {"cube": 3.0}

        def weights(self, model, batch):
            return {name: batch[name].sum() for name in ("square", "cube")}

        def __call__(self, model, params, batch, rngs, carry):
            terms = {name: params["x"] ** power * batch[name].sum() for name, power in (("square", 2), ("cube", 3))}
            return terms, {name: {} for name in terms}, carry

    model: Any = None  # The loss applies none.
    rows = {"square": np.ones(4, np.float32), "cube": np.array([1, 0, 0, 0], np.float32)}
    train_step = jax.jit(step.train_step(Powers(), model, optax.sgd(1.0), microbatches))
    start = state.new_state({"x": jnp.float32(2.0)}, optax.sgd(1.0))
    after, metrics = train_step(start, rows | {"digest": np.zeros((4, 2), np.uint32)}, ROOT, 1.0)
    assert metrics["loss"] == 2**2 + 3 * 2**3
    assert after.params["x"] == 2 - (2 * 2 + 3 * 3 * 2**2)


def test_sums_over_batches_equal_sums_over_rows():
    """The halves have equally many pairs, but not targets."""
    module, params, loss = build("masked_lm")
    whole = batch_of("masked_lm")
    sums = jax.jit(lambda batch: means.sums(loss, module, params, batch, {})[0])
    total = None
    for rows in (slice(0, 5), slice(5, 8)):
        total = means.add(total, jax.device_get(sums({name: values[rows] for name, values in whole.items()})))
    actual, want = means.of_total(loss, total), means.of_total(loss, means.add(None, jax.device_get(sums(whole))))
    assert actual.keys() == want.keys() >= {"loss", "masked_lm_loss", "pair_loss", "pair_accuracy", "nll", "accuracy"}
    for name, value in want.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-6, err_msg=name)


def test_term_without_weight_has_no_mean():
    loss = losses.MaskedLMLoss()
    metrics = {"masked_lm": {"nll": 6.0}, "pair": {"pair_accuracy": 0.0}}
    actual = losses.LossSums({"masked_lm": 6.0, "pair": 0.0}, metrics, {"masked_lm": 2.0, "pair": 0.0})
    assert means.of_total(loss, actual) == {"loss": 3.0, "nll": 3.0}
    none = losses.LossSums(actual.terms, metrics, dict.fromkeys(actual.weights, 0.0))
    assert means.of_total(loss, none) == {} == means.of_total(loss, None)


@pytest.fixture
def user_classes():
    """An objective, a loss, a term and its head of a user, which are unregistered afterwards."""

    @dataclass(frozen=True)
    class EveryOther(objectives.Causal):
        """Predicts every other token, and the length of the row."""

        kind: ClassVar[str] = "every_other"
        loss: ClassVar[str] = "tempered"
        loss_fields: ClassVar[tuple[str, ...]] = ("temperature",)
        targets: ClassVar[str] = "every other token"
        temperature: float = 2.0

        def apply(self, example, special, rng):
            build = super().apply(example, special, rng)
            weights = build["target_weights"] * (np.arange(len(build["targets"])) % 2 == 0)
            return build | {"target_weights": weights.astype(np.float32)}

    @dataclass(frozen=True)
    class Tempered(losses.Loss):
        kind: ClassVar[str] = "tempered"
        temperature: float = 1.0

        @property
        def coefficients(self):
            return {"size": 0.25}

        def weights(self, model, batch):
            return {"tokens": batch["target_weights"].sum(), "size": jnp.float32(len(batch["tokens"]))}

        def __call__(self, model, params, batch, rngs, carry):
            logits = model.apply({"params": params}, batch["tokens"]) / self.temperature
            nll = -jnp.take_along_axis(jax.nn.log_softmax(logits), batch["targets"][..., None], -1)[..., 0]
            size = jnp.sum(jnp.square(logits.mean((1, 2))))
            return {"tokens": jnp.sum(nll * batch["target_weights"]), "size": size}, {"size": {"rms": size}}, carry

    @dataclass(frozen=True)
    class Norm(losses.Term):
        kind: ClassVar[str] = "norm"
        reads: ClassVar[tuple[str, ...]] = ("norms",)

        def weight(self, model, batch):
            return jnp.float32(batch["norms"].size)

        def __call__(self, loss, model, params, features, batch):
            actual = model.apply({"params": params}, features, self.head, method="head_output")
            return jnp.sum((actual - batch["norms"]) ** 2), {}

    @dataclass(frozen=True)
    class NormHead(Head):
        kind: ClassVar[str] = "norm"
        loss: ClassVar[str] = "norm"

        def compute(self, module, features):
            return jnp.square(features).sum((1, 2))

    yield EveryOther, NormHead
    for choice in (EveryOther, Tempered, Norm, NormHead):
        del choice.choices[choice.kind]


def test_user_objective_trains_with_user_loss(user_classes):
    objective, _ = user_classes
    run = dataclasses.replace(tiny.PLAIN, objective=objective(temperature=3.0))
    assert config.from_dict(config.to_dict(run)) == run
    loss = losses.get(run.objective.loss, **run.objective.loss_settings)
    assert loss.temperature == 3.0
    module, params, rng = registry.build(tiny.MODEL), random_params(tiny.MODEL), np.random.default_rng(0)
    bound = objectives.get("every_other", objectives.Special(eos=257))
    rows = [bound({"tokens": rng.integers(0, 256, 10)}, rng) for _ in range(4)]
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    assert batch["target_weights"].sum() == 4 * 5
    logits = np.asarray(jax.jit(module.apply)({"params": params}, batch["tokens"]), np.float64) / 3.0
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    tokens = -np.take_along_axis(log_p, batch["targets"][..., None], -1)[:, ::2].mean()
    size = np.square(logits.mean((1, 2))).mean()
    train_step = step.train_step(loss, module, optax.sgd(0.1), microbatches=2)
    digest = {"digest": np.zeros((4, 2), np.uint32)}
    _, metrics = jax.jit(train_step)(state.new_state(params, optax.sgd(0.1)), batch | digest, ROOT, 0.1)
    expected = {"loss": tokens + size / 4, "tokens_loss": tokens, "size_loss": size, "rms": size}
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-5, err_msg=name)


def test_user_term_is_added_if_batch_has_its_inputs(user_classes):
    _, head = user_classes
    _, params, loss = build("masked_lm")
    module = registry.build(dataclasses.replace(tiny.BERT, heads=(("size", head()),)))
    batch = batch_of("masked_lm")
    asked = batch | {"norms": np.arange(ROWS, dtype=np.float32)}
    terms, _, _ = jax.jit(lambda params: loss(module, params, asked, None, {}))(params)
    apply = jax.jit(functools.partial(module.apply, method="features"))
    features = apply({"params": params}, batch["tokens"], batch["mask"])
    want = np.square(np.square(np.asarray(features, np.float64)).sum((1, 2)) - np.arange(ROWS)).sum()
    np.testing.assert_allclose(terms["norm"], want, rtol=1e-5)
    assert loss.weights(module, asked)["norm"] == ROWS
    assert "norm" not in loss.weights(module, batch)


def test_untrained_head_is_detected(user_classes):
    _, head = user_classes
    _, _, loss = build("masked_lm")
    batch = batch_of("masked_lm")
    pairs = registry.build(tiny.BERT)
    assert untrained_heads(loss, pairs, batch) == []
    assert untrained_heads(loss, pairs, {name: batch[name] for name in batch if name != "pair_label"}) == [
        "sentence_pair"
    ]
    sized = registry.build(dataclasses.replace(tiny.BERT, heads=(("size", head()),)))
    assert untrained_heads(loss, sized, batch) == ["size"]
    assert untrained_heads(loss, sized, batch | {"norms": np.arange(ROWS, dtype=np.float32)}) == []
    _, _, loss = build("replaced_token")
    assert untrained_heads(loss, registry.build(tiny.ELECTRA), batch_of("replaced_token")) == []


def test_invalid_losses_of_heads_are_rejected(user_classes):
    _, head = user_classes

    @dataclass(frozen=True)
    class Lost(head):
        kind: ClassVar[str] = "lost"
        loss: ClassVar[str] = "nrom"

    del Head.choices["lost"]
    for heads, said in (
        ({"size": Lost()}, r"head 'size' has an unknown loss 'nrom': .*norm"),
        ({"size": head(), "width": head()}, r"heads 'size' and 'width' both have the loss 'norm'"),
    ):
        module = registry.build(dataclasses.replace(tiny.BERT, heads=tuple(heads.items())))
        with pytest.raises(UserError, match=said):
            losses.MaskedLMLoss().weights(module, batch_of("masked_lm"))


def test_unknown_loss_is_rejected():
    with pytest.raises(UserError, match=r"there is no loss 'masked'.*masked_lm"):
        losses.get("masked")
    with pytest.raises(UserError, match=r"loss 'masked_lm' has no setting 'smoothing'.*label_smoothing"):
        losses.get("masked_lm", smoothing=0.1)


@pytest.mark.parametrize("kind", objectives.Objective.choices)
def test_every_objective_has_a_matching_loss(kind):
    objective = objectives.Objective.choices[kind]()
    loss = losses.get(objective.loss, **objective.loss_settings)
    assert all(getattr(loss, name) == value for name, value in objective.loss_settings.items())
    assert objective.targets and set(objective.architectures) <= ModelConfig.choices.keys()


def test_user_loss_may_have_fields_of_any_type():
    @dataclasses.dataclass(frozen=True)
    class Scaled(losses.Loss):
        kind = "scaled_by_a_function"
        scale: Callable[[float], float] = abs
        weights: Any = None

    try:
        assert losses.get("scaled_by_a_function", scale=round).scale is round
    finally:
        del losses.Loss.choices["scaled_by_a_function"]
