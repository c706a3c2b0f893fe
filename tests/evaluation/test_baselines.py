import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_jax.evaluation import baselines, labeled

# Few different ones, so that many are ties.
SCORES = st.lists(st.tuples(st.integers(-8, 8).map(lambda i: i / 8), st.booleans()), min_size=1, max_size=40)


def brute_force(scored) -> float:
    """The share of pairs of a positive and a negative that are in order, ties counted half."""
    positive, negative = ([score for score, label in scored if label == which] for which in (True, False))
    return float(np.mean([(p > n) + (p == n) / 2 for p in positive for n in negative]))


@settings(max_examples=60, deadline=None)
@given(SCORES)
def test_auc_is_the_share_of_ordered_pairs(scored):
    scored = [*scored, (0.0, True), (0.5, False)]
    scores, positive = np.array([s for s, _ in scored], np.float32), np.array([label for _, label in scored])
    assert baselines.auc(scores, positive) == pytest.approx(brute_force(scored), abs=1e-12)


def test_a_constant_answer_says_the_more_frequent_label():
    labels = np.array([0, 0, 0, 1])
    want = max(np.mean(labels == answer) for answer in (0, 1))
    assert baselines.constant_accuracy(labels.mean()) == baselines.constant_accuracy(1 - labels.mean()) == want


def test_a_constant_set_of_labels_has_those_of_most_rows(monkeypatch):
    """The first of four labels is in all three rows, the second in two, the third in one, and the fourth in none."""
    labels = [[0, 1], [0, 2], [0, 1]]
    rows = types.SimpleNamespace(
        objective=types.SimpleNamespace(form="labels"),
        num_documents=3,
        num_rows=3,
        values=lambda _, document: np.array(labels[document]),
    )
    monkeypatch.setattr(labeled.metrics, "compute_metrics", lambda _, outputs, names: outputs)
    outputs = labeled.trivial(rows, ("a", "b", "c", "d"))
    np.testing.assert_array_equal(np.array(outputs) > 0, [[True, True, False, False]] * 3)


def test_constant_answer_of_f1_is_the_second_class():
    """A quarter of the rows is of the second class, so the F1 of predicting it always is 2 · 1/4 / (1 + 1/4)."""
    rows = types.SimpleNamespace(
        objective=types.SimpleNamespace(form="classes"),
        num_documents=4,
        num_rows=4,
        document=lambda row: row,
        values=lambda _, document: np.array([0, 0, 1, 0][document]),
    )
    figures = labeled.trivial(rows, ("negative", "positive"))
    assert figures == {"accuracy": 0.75, "matthews": 0.0, "f1": pytest.approx(0.4)}
    assert labeled.trivial(rows, ("a", "b", "c")).keys() == {"accuracy", "matthews"}
