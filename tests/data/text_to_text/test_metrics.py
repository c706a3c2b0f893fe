"""Post-processors and metrics: worked values, and T5's own of the same outputs."""

import numpy as np
import pytest

from plm_jax.data.text_to_text import metrics, postprocessors, suite
from tests.data.text_to_text.rows import ROWS, T5_NAMES

LABELS = ([0, 1, 1, 0, 1, 0], [0, 1, 0, 1, 1, -1])
CLASSES = ([0, 1, 2, 2, 0, 1], [0, 2, 2, -1, 1, 1])
NUMBERS = ([0.0, 1.2, 3.4, 5.0, 2.2], [0.2, 1.0, 3.6, 4.0, -1.0])
WORDS = (["Ann", "Bob", "the cup"], ["Ann", "bob", "the cup"])
ANSWERS = (
    [["The Po", "Po river"], ["a U.S. dollar"], ["42"], ["an"]],
    ["po!", "us dollars (a dollar)", "43", "The"],
)
GROUPS = (
    [{"value": value, "group": group} for value, group in [(1, (0, 1)), (0, (0, 1)), (1, (0, 2)), (1, (1, 3)), (0, (1, 3))]],
    [{"value": value} for value in (1, 0, 0, 1, 7)],
)
QUERIES = (
    [{"value": ["Ann", "Eve"], "group": (0, 0)}] * 2 + [{"value": ["Bob"], "group": (0, 1)}],
    [{"value": "ann"}, {"value": "no"}, {"value": "Bob B"}],
)
TEXTS = (
    ["The cat sat . It purred .", "Rain fell over the whole of the north all day", "a b c d"],
    ["The cat sat . A dog purred .", "Rain fell on the whole north all day", "a b c d"],
)
# The suite's metric, its name in t5.evaluation.metrics, targets and predictions, what comes out.
CASES = [
    (metrics.accuracy, "accuracy", LABELS, {"accuracy": 50.0}),
    (metrics.accuracy, "accuracy", WORDS, {"accuracy": 200 / 3}),
    # tp 2, tn 1, fp 1 and one neither, fn 1 of six.
    (metrics.binary_f1, "f1_score_with_invalid", LABELS, {"f1": 400 / 7}),
    # F1 of the classes: 2/3, 1/2, 1/2.
    (metrics.mean_3class_f1, None, CLASSES, {"mean_3class_f1": 500 / 9}),
    (metrics.matthews_corrcoef, None, (LABELS[0], [0, 1, 0, 1, 1, 0]), {"matthews_corrcoef": 100 / 3}),
    (metrics.pearson_corrcoef, "pearson_corrcoef", NUMBERS, {"pearson_corrcoef": 83.5612}),
    # Ranks 1 2 4 5 3 and 2 3 4 5 1: 1 - 6·6 / (5·24).
    (metrics.spearman_corrcoef, "spearman_corrcoef", NUMBERS, {"spearman_corrcoef": 70.0}),
    # `po` of one word each; `us dollars dollar` and `us dollar` share two of five; nothing; empty and empty.
    (metrics.squad, "squad", ANSWERS, {"em": 50.0, "f1": 45.0}),
    (metrics.of_values(metrics.binary_f1), "multirc_f1_over_all_answers", GROUPS, {"f1": 200 / 3}),
    # The first question alone has all its answers right.
    (metrics.mean_of_groups(metrics.all_match), None, GROUPS, {"exact_match": 100 / 3}),
    # `ann` is right and its second copy does not count; `Bob B` has one of two words.
    (metrics.once_a_group(metrics.squad), None, QUERIES, {"em": 50.0, "f1": 250 / 3}),
    (metrics.bleu, "bleu", TEXTS, {"bleu": 53.3787}),
    (metrics.rouge, None, TEXTS, {"rouge1": 86.3158, "rouge2": 66.3793, "rougeLsum": 86.3158}),
]


@pytest.mark.parametrize("metric, name, pair, expected", CASES)
def test_metrics(metric, name, pair, expected):
    assert metric(*pair) == pytest.approx(expected, abs=1e-3)


def theirs(metric):
    """T5's function of the same values as one of ours."""
    t5 = pytest.importorskip("t5.evaluation.metrics")
    return {
        metrics.mean_3class_f1: t5.mean_multiclass_f1(num_classes=3),
        metrics.matthews_corrcoef: t5.sklearn_metrics_wrapper("matthews_corrcoef", metric_post_process_fn=lambda x: 100 * x),
        "group": t5.mean_group_metric(t5.all_match),
        "once": t5.deduplicate_metric(t5.squad),
    }[metric]


@pytest.mark.parametrize("name", ROWS)
def test_metrics_are_t5s(name):
    """Of random outputs for the task's rows, through both post-processors."""
    pytest.importorskip("t5.data.tasks")
    import seqio

    task, t5_task = suite.TASKS[name], seqio.TaskRegistry.get(T5_NAMES[name])
    if not task.metric_fns:
        assert not t5_task.metric_fns
        return
    rng = np.random.default_rng(0)
    examples = [example for row, made in ROWS[name] for example in made if row.get("label", 0) != -1] * 4
    outputs = [str(rng.choice([example["targets"], examples[0]["targets"], "nonsense"])) for example in examples]
    values = {"ours": ([], []), "theirs": ([], [])}
    for example, output in zip(examples, outputs, strict=True):
        rows = {
            "ours": {key: as_read(value) for key, value in example.items()},
            "theirs": {**example, "targets_pretokenized": example["targets"].encode()},
        }
        for who, process in (("ours", task.postprocess or plain), ("theirs", t5_task.postprocessor or plain)):
            values[who][0].append(process(example["targets"], example=rows[who], is_target=True))
            values[who][1].append(process(output, example=rows[who], is_target=False))
    ungrouped = [[strip(value) for value in part] for part in values["ours"]]
    assert ungrouped == [[strip(value) for value in part] for part in values["theirs"]]
    ours = {k: v for metric in task.metric_fns for k, v in metric(*values["ours"]).items()}
    their = {k: v for metric in t5_task.metric_fns for k, v in metric(*values["theirs"]).items()}
    # T5 samples its ROUGE.
    assert ours == pytest.approx(their, abs=15 if name == "cnn_dailymail" else 1e-6, nan_ok=True)


def plain(output, **_):
    return output


def as_read(value):
    """A field as TensorFlow gives it."""
    if isinstance(value, list):
        return np.array([text.encode() for text in value], object)
    return value.encode() if isinstance(value, str) else np.int64(value)


def strip(value):
    """Without the group, which T5 gives MultiRC by the question alone."""
    return value["value"] if isinstance(value, dict) else value


def process(name, output, example, **options):
    return suite.TASKS[name].postprocess(output, example=example, **options)


def test_labels_and_numbers():
    assert [process("glue_rte", text, {}) for text in ("entailment", "not_entailment", "<unk>", "")] == [0, 1, -1, -1]
    assert [process("super_glue_wic", text, {}) for text in ("False", "True", "true")] == [0, 1, -1]
    assert [process("glue_stsb", text, {}) for text in ("3.8", "-1.0", "four", "")] == [3.8, -1.0, -1.0, -1.0]


def test_groups_and_answers():
    row = {"idx/paragraph": np.int64(4), "idx/question": np.int64(20), "idx/answer": np.int64(7)}
    assert process("super_glue_multirc", "True", row, is_target=True) == {"value": 1, "group": (4, 20)}
    assert process("super_glue_multirc", "Maybe", row) == {"value": -1}
    row = {"idx/passage": 5, "idx/query": 9, "answers": np.array([b"Ann", "Zoë".encode()], object)}
    assert process("super_glue_record", "Ann", row, is_target=True) == {"value": ["Ann", "Zoë"], "group": (5, 9)}
    assert process("super_glue_record", "Ann", row) == {"value": "Ann"}
    assert process("squad", "x", row, is_target=True) == ["Ann", "Zoë"]
    assert process("squad", "x", row) == "x"


@pytest.mark.parametrize(
    "output, referent, expected",
    [
        ("the Fuzzy bunny", "bunny", 1),
        ("bunny", "Her fuzzy bunny ", 1),
        ("fuzzy cat", "fuzzy bunny", 0),
        ("Bob", "Bob's hat", 0),
        ("Bob's", "Bob's hat", 1),
        ("the", "bunny", -1),
        ("", "bunny", -1),
        ("those cats", "Cats", 1),
    ],
)
def test_referents(output, referent, expected):
    example = {"referent": referent.encode(), "label": np.int64(1), "targets_pretokenized": referent.encode()}
    assert postprocessors.referent(output, example) == expected
    assert postprocessors.referent("anything", example, is_target=True) == 1


def test_referents_are_t5s():
    t5 = pytest.importorskip("t5.data.postprocessors")
    words = ["", "the", "a  cat", "Cat's", "cat", "THE CAT", "old cat", "her old cat's", "dog ", " every", "an  an", "'"]
    for output in words:
        for referent in words:
            example = {"referent": referent, "targets_pretokenized": referent, "label": 0}
            assert postprocessors.referent(output, example) == t5.wsc_simple(output, example), (output, referent)


def test_rouge_is_t5s_of_equal_scores():
    """Where all summaries score the same, sampling them changes nothing."""
    t5 = pytest.importorskip("t5.evaluation.metrics")
    pair = [[texts[0]] * 3 for texts in TEXTS]
    assert metrics.rouge(*pair) == pytest.approx(t5.rouge(*pair))
