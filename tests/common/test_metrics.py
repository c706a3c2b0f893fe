"""Declared units and directions of metrics, compared with the values of perfect and trivial predictions."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import losses, objectives
from plm_jax.common import metrics
from plm_jax.data.labeled import metrics as labeled
from plm_jax.data.labeled import tags
from plm_jax.losses import means, vocabulary
from plm_jax.losses.task import LOSSES
from plm_jax.models import registry
from tests.losses import test_terms

LABEL = np.array([0, 1, 1, 0, 1, 1])
NAMES = ("O", "B-A", "I-A")


def best(name):
    """Returns the value of a perfect prediction."""
    metric = metrics.declared(name)
    assert metric is not None, f"{name} is not declared"
    if metric.better == "less":
        return 0.0
    assert metric.range is not None, f"{name} has no range"
    return metric.range[1]


def check(perfect, trivial):
    """A perfect prediction has the best value of each metric, a trivial one another value in the range."""
    assert perfect.keys() == trivial.keys() and perfect
    for name, value in perfect.items():
        metric = metrics.declared(name)
        assert value == pytest.approx(best(name), abs=1e-4), name
        assert metrics.fits(metric, trivial[name]) and metric.sign * (value - trivial[name]) > 0.05, name


def rows_of(form, column, values):
    """The attributes of rows that metrics of labeled examples read, with one row per example."""
    return types.SimpleNamespace(
        objective=types.SimpleNamespace(form=form),
        num_rows=len(values),
        document=lambda item: item,
        values=lambda name, item: {column: values}[name][item],
        word_positions=lambda document: np.arange(len(values[document])),
    )


def one_hot(labels, size):
    return [np.eye(size)[label] for label in labels]


WORDS = [np.array([0, 1, 2]), np.array([1, 0, 0]), np.array([0, 0, 1])]
LABELED = {
    "classes": (objectives.Classification(), ("a", "b"), "label", LABEL, one_hot(LABEL, 2), one_hot([0] * 6, 2)),
    "choice": (objectives.MultipleChoice(), (), "label", LABEL, one_hot(LABEL, 2), one_hot([0] * 6, 2)),
    "labels": (
        *(objectives.MultiLabelClassification(), ("a", "b"), "labels", [np.array([label]) for label in LABEL]),
        *(2 * np.eye(2)[LABEL] - 1, np.full((6, 2), -1.0)),
    ),
    "score": (objectives.Regression(), (), "score", LABEL / 2, LABEL[:, None] / 2, np.full((6, 1), 0.3)),
    "tags": (objectives.Tagging(), NAMES, "tags", WORDS, one_hot(WORDS, 3), one_hot([[0, 0, 0]] * 3, 3)),
}


@pytest.mark.parametrize("form", LABELED)
def test_metrics_of_labeled_rows(form):
    objective, labels, column, values, perfect, trivial = LABELED[form]
    computed = [
        labeled.compute_metrics(rows_of(form, column, values), outputs, labels) for outputs in (perfect, trivial)
    ]
    assert list(computed[0]) == labeled.names(objective, labels)
    if form == "tags":  # No entity is predicted, so precision is 0.
        assert tags.scores([["O"]], [["O"]])["f1"] == 0.0
    check(*computed)


@pytest.mark.parametrize("kind", LOSSES)
def test_accuracies_of_tasks_losses(kind):
    label = {"score": LABEL / 2, "tags": LABEL}.get(kind, LABEL)
    batch = dict.fromkeys(("label", "score", "tags", "span_starts", "span_ends"), label)
    hot = 30.0 * jnp.eye(2)
    outputs = [hot[LABEL], hot[jnp.zeros(6, int)]]
    if kind == "span":
        outputs = [jnp.stack([output] * 2, -1) for output in outputs]
    if kind == "score":
        outputs = [label[:, None], np.full((6, 1), 0.3)]
    if kind == "labels":
        batch["labels"] = np.eye(2)[label]
        outputs = [30.0 * (2 * batch["labels"] - 1), jnp.zeros((6, 2)) - 1]
    results = [LOSSES[kind](losses.get("task"), output, batch) for output in outputs]
    names = [{"loss": each.mean()} | ({} if right is None else {"accuracy": right.mean()}) for each, right in results]
    check(*names)


@jax.jit
def found_by_losses(logits, signs):
    """Returns the metrics of losses for a model with these logits [6, 2], and [6] for its discriminator."""
    label = jnp.asarray(LABEL)
    batch = {"targets": label[None], "target_weights": jnp.ones((1, 6)), "mask": jnp.ones((6, 1)), "pair_label": label}
    batch |= {"target_offsets": jnp.zeros((1, 6), int), "target_left": label[None], "target_right": label[None]}
    head, loss = (logits[None], jnp.eye(2), None), losses.get("masked_lm")
    outputs, heads = {"head_output": logits, "boundary_head": head}, {"pair": types.SimpleNamespace(positions=4)}
    model = types.SimpleNamespace(
        apply=lambda *_, method, **__: outputs[method], model=types.SimpleNamespace(named_heads=heads)
    )
    sums = dict(vocabulary.sums(loss, *head, batch)[1])
    for kind in ("pair", "boundary"):
        sums |= losses.Term.choices[kind]("pair")(loss, model, None, None, batch)[1]
    electra = losses.get("replaced_token")
    object.__setattr__(electra, "_generate", lambda *_: (head, label[:, None]))
    object.__setattr__(electra, "_discriminate", lambda *_: (signs[:, None], label[:, None]))
    sums |= electra(model, None, batch, None, {})[1]["discriminator"]
    return {name: value / 6 for name, value in sums.items()}


def test_metrics_of_losses():
    constant = np.zeros_like(LABEL)
    computed = [found_by_losses(30.0 * np.eye(2)[of], np.where(of > 0, 30.0, -30.0)) for of in (LABEL, constant)]
    perfect, trivial = ({name: float(value) for name, value in of.items() if name != "replaced"} for of in computed)
    assert computed[0]["replaced"] == pytest.approx(LABEL.mean()) and metrics.declared("replaced").sign == 0
    check(perfect, trivial)
    for kind in test_terms.MODELS:
        module, _, loss = test_terms.build(kind)
        params = registry.shapes(test_terms.MODELS[kind])
        batch = test_terms.batch_of(kind)
        sums = jax.eval_shape(lambda params, m=module, of=loss, b=batch: means.sums(of, m, params, b, {})[0], params)
        for name in means.means(loss, jax.tree.map(lambda leaf: np.ones(leaf.shape), sums)):
            assert name in {*perfect, "loss", "replaced"} or name.endswith("_loss"), name
            assert metrics.declared(name) is not None


def test_shares_are_read_in_per_cent_and_points_and_others_as_they_are():
    read = {"a/accuracy": "83.25 %", "a/trivial_f1": "83.25 %", "a/5_shots/accuracy_deviation": "83.25 %"}
    read |= {"b/bleu": "0.8325", "b/loss": "0.8325", "b/mine": "0.8325", "c/acc_norm,none": "83.25 %"}
    assert {name: metrics.shown(name, 0.8325) for name in read} == read
    assert metrics.shown("a/examples", 1000.0) == "1,000" and metrics.shown("a/mine", 3.0) == "3"
    # A run that diverged has no mean and no deviation.
    for lost in (float("nan"), float("inf")):
        assert metrics.shown_seeds(metrics.declared("a/loss"), [lost, 2.0]).endswith("± nan")
    # A share from another program with a declared name, already in percent.
    assert metrics.shown("a/f1", 83.25) == "83.2500"
