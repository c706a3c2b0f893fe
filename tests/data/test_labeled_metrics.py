"""Figures of labeled examples against scikit-learn, SciPy, seqeval and run_qa's rules."""

import json
import pathlib
import types

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from plm_jax.data.labeled import metrics, spans, tags

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_figures_of_classes_are_scikit_learns(classes):
    truth, predicted = np.random.default_rng(classes).integers(0, classes, (2, 200))
    assert metrics.accuracy(truth, predicted) == pytest.approx(sklearn.metrics.accuracy_score(truth, predicted))
    assert metrics.matthews(truth, predicted) == pytest.approx(sklearn.metrics.matthews_corrcoef(truth, predicted))
    if classes == 2:
        assert metrics.f1(truth, predicted) == pytest.approx(sklearn.metrics.f1_score(truth, predicted))


@pytest.mark.parametrize("num_labels", [2, 5])
def test_metrics_of_several_labels_are_those_of_scikit_learn(num_labels):
    """The last example has no label, and the first label is neither true nor predicted."""
    rng = np.random.default_rng(num_labels)
    truth, predicted = rng.random((2, 40, num_labels)) < 0.4
    truth[-1] = truth[:, 0] = predicted[:, 0] = False
    rows = types.SimpleNamespace(
        objective=types.SimpleNamespace(form="labels"),
        num_rows=40,
        document=lambda item: item,
        values=lambda name, document: np.flatnonzero(truth[document]),
    )
    figures = metrics.compute_metrics(rows, np.where(predicted, 1.5, -1.5))
    for average in ("micro", "macro"):
        expected = sklearn.metrics.f1_score(truth, predicted, average=average, zero_division=0)
        assert figures[f"f1_{average}"] == pytest.approx(expected)
    assert figures["accuracy"] == pytest.approx(sklearn.metrics.accuracy_score(truth, predicted))


def test_correlations_are_scipys_and_0_of_what_is_constant():
    rng = np.random.default_rng(0)
    truth, predicted = rng.integers(0, 9, 50) / 2, rng.normal(size=50) + rng.integers(0, 2, 50)
    for ours, theirs in ((metrics.pearson, scipy.stats.pearsonr), (metrics.spearman, scipy.stats.spearmanr)):
        assert ours(truth, predicted) == pytest.approx(theirs(truth, predicted)[0])
        assert ours(truth, np.full(50, 0.1)) == ours(np.full(50, 0.1), predicted) == 0.0
    assert metrics.matthews([0, 1, 1], [1, 1, 1]) == metrics.f1([0, 0], [0, 0]) == 0.0


def test_squads_words():
    right = ["the Blue Whale", "a whale!"]
    assert metrics.exact_match(right, "Whale") and not metrics.exact_match(right, "whales")
    assert metrics.answer_f1(right, "blue big whale") == pytest.approx(0.8)
    assert metrics.answer_f1(["the"], "") == metrics.answer_f1([], "") == metrics.answer_f1([""], "a the") == 1.0
    assert metrics.answer_f1([], "x") == metrics.answer_f1(["x"], "") == metrics.exact_match([], "x") == 0.0


TAGS = ["O", "B-A", "I-A", "B-B", "I-B", "B-A-B", "I-A-B"]


def test_entities_are_those_that_seqeval_counted():
    """2,000 random sentences of digits, which number TAGS, and what seqeval 1.2.2 says of them.

    `default` and `strict` are how many entities it finds in each of `truth`, by `get_entities` and by `Entities` of
    IOB2; the scores are those of `told` against `truth`, in percent.
    """
    golden = json.loads((GOLDEN / "labeled" / "entities.json").read_text())
    truth, predicted = ([[TAGS[int(i)] for i in sentence] for sentence in golden[of]] for of in ("truth", "told"))
    assert len(truth) == 2000
    for sentence, default, strict in zip(truth, golden["default"], golden["strict"], strict=True):
        assert (len(tags.entities(sentence)), len(tags.entities(sentence, strict=True))) == (default, strict)
    for strict, name in ((False, "default_scores"), (True, "strict_scores")):
        per_cent = {metric: 100 * value for metric, value in tags.scores(truth, predicted, strict).items()}
        assert per_cent == pytest.approx(golden[name])


def windows(golden, number):
    """The windows of a case, whose scores are in 256ths."""
    begins = golden["begins"][golden["context_ends"][number] : golden["context_ends"][number + 1]]
    stops = golden["stops"][golden["context_ends"][number] : golden["context_ends"][number + 1]]
    all_windows = []
    for row in range(golden["row_ends"][number], golden["row_ends"][number + 1]):
        offset, first, size = golden["parts"][row].tolist()
        scores = golden["scores"][row] / 256
        context_bytes, at = np.full((2, scores.shape[1]), -1), slice(offset, offset + size)
        context_bytes[:, at] = begins[first : first + size], stops[first : first + size]
        all_windows.append(
            (spans.AnswerWindow(*scores, *context_bytes, np.ones(scores.shape[1], np.bool_)), (first, size), at)
        )
    if golden["most_context"][number]:
        for (window, _, at), most in zip(
            all_windows, spans.most_context([part for _, part, _ in all_windows]), strict=True
        ):
            window.may_start[:] = False
            window.may_start[at] = most
    return [window for window, _, _ in all_windows]


def test_null_scores_are_those_of_the_null_position():
    """A window of a question without an answer, with cls at the end."""
    starts, ends = np.array([9.0, 1.0, 2.0, 0.0, 5.0]), np.array([9.0, 0.0, 2.5, 0.0, 5.0])
    begins, stops = np.array([-1, 0, 2, -1, -1]), np.array([-1, 1, 3, -1, -1])
    window = spans.AnswerWindow(starts, ends, begins, stops, begins >= 0, null=4)
    answered = spans.answer("a b", [window], unanswerable=True)
    assert (answered.text, answered.null_difference) == ("", 10.0 - 4.5)
    assert spans.answer("a b", [window], unanswerable=True, null_threshold=6.0).text == "b"
    assert spans.answer("a b", [window._replace(null=3)], unanswerable=True).text == "b"


def test_answers_are_utils_qas():
    """300 cases of random scores and what `postprocess_qa_predictions` of transformers' utils_qa.py tells of them.

    Answers have at most 6 tokens. Every tenth case has ties, of which any of the equals is right, and no two need agree
    where one begin alone is looked at. Every third tells it where windows have most context. `best` are its three best.
    """
    golden = np.load(GOLDEN / "labeled" / "spans.npz")
    predicted = json.loads(bytes(golden["told"]))
    contexts = json.loads(bytes(golden["contexts"]))
    assert len(contexts) == 300
    empty = null = 0
    for number, context in enumerate(contexts):
        case_windows, ties = windows(golden, number), number % 10 == 0
        for n_best, unanswerable in ((1, False), (20, False), (1, True), (20, True)):
            if ties and n_best == 1:
                continue
            theirs = predicted[number][f"{n_best} {unanswerable}"]
            ours = spans.answer(context, case_windows, n_best, 6, unanswerable)
            best = [(context[span.begin : span.stop], span.score) for span in ours.spans]
            equals = {text for text, score in best if score == best[0][1]} if ours.text else {""}
            assert theirs["text"] in equals
            empty, null = empty + (not best), null + (unanswerable and not ours.text)
            # The null answer among theirs is no span of ours.
            scores = [score for text, score in theirs["best"] if text]
            scores = scores[: 1 if ties else 3]
            np.testing.assert_allclose([score for _, score in best][: len(scores)], scores, rtol=1e-6)
            if n_best == 20 and unanswerable and best:
                assert ours.null_difference == pytest.approx(theirs["difference"], rel=1e-5, abs=1e-5)
    assert empty > 10 and null > 30


def test_most_context_is_where_berts_code_has_it():
    """`_check_is_max_context` of google-research/bert's run_squad.py, reread."""
    for parts in ([(0, 5), (3, 5), (6, 4)], [(0, 3)], [(0, 8), (2, 8), (4, 8), (6, 3)], [(0, 4), (1, 6)]):
        most = spans.most_context(parts)
        for token in range(max(first + size for first, size in parts)):
            scores = {
                number: min(token - first, first + size - 1 - token) + 0.01 * size
                for number, (first, size) in enumerate(parts)
                if first <= token < first + size
            }
            expected = max(scores, key=lambda number: (scores[number], -number))
            for number in scores:
                assert most[number][token - parts[number][0]] == (number == expected)
