import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_jax.evaluation import trivial

# Whole bins, few enough that many scores are ties.
SCORES = st.lists(st.tuples(st.integers(-8, 8).map(lambda i: i / 1024), st.booleans()), min_size=1, max_size=40)


def brute_force(scored) -> float:
    """The share of pairs of a positive and a negative that are in order, ties counted half."""
    positive, negative = ([score for score, label in scored if label == which] for which in (True, False))
    return float(np.mean([(p > n) + (p == n) / 2 for p in positive for n in negative]))


@settings(max_examples=60, deadline=None)
@given(SCORES, st.integers(0, 40))
def test_auc_is_the_share_of_ordered_pairs_in_however_many_batches(scored, cut):
    scored = [*scored, (0.0, True), (2 / 1024, False)]
    batches = [part for part in (scored[:cut], scored[cut:]) if part]
    counts = sum(
        trivial.score_counts(np.array([s for s, _ in part], np.float32), np.array([label for _, label in part]))
        for part in batches
    )
    assert counts.sum() == len(scored)
    assert trivial.auc(counts) == pytest.approx(brute_force(scored), abs=1e-12)


@pytest.mark.parametrize(("sign", "want"), [(1, 1.0), (-1, 0.0)])
def test_scores_out_of_range_keep_their_order_against_the_others(sign, want):
    scores = sign * np.array([-1e9, -40.0, 0.0, 0.5, 40.0, 1e9])
    positive = np.array([False, False, False, True, True, True])
    assert trivial.auc(trivial.score_counts(scores, positive)) == want


def test_a_constant_answer_says_the_more_frequent_label():
    labels = np.array([0, 0, 0, 1])
    want = max(np.mean(labels == answer) for answer in (0, 1))
    assert trivial.constant_accuracy(labels.mean()) == trivial.constant_accuracy(1 - labels.mean()) == want
