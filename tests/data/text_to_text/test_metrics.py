"""Post-processors and metrics: worked values, and T5's own of the same outputs."""

import itertools
import math

import numpy as np
import pytest

from plm_jax.common import metrics as declarations
from plm_jax.data.text_to_text import metrics, postprocessors, suite
from tests.support.task_rows import ROWS, T5_NAMES

LABELS = ([0, 1, 1, 0, 1, 0], [0, 1, 0, 1, 1, -1])
CLASSES = ([0, 1, 2, 2, 0, 1], [0, 2, 2, -1, 1, 1])
NUMBERS = ([0.0, 1.2, 3.4, 5.0, 2.2], [0.2, 1.0, 3.6, 4.0, -1.0])
WORDS = (["Ann", "Bob", "the cup"], ["Ann", "bob", "the cup"])
ANSWERS = ([["The Po", "Po river"], ["a U.S. dollar"], ["42"], ["an"]], ["po!", "us dollars (a dollar)", "43", "The"])
GROUPS = (
    [
        {"value": value, "group": group}
        for value, group in [(1, (0, 1)), (0, (0, 1)), (1, (0, 2)), (1, (1, 3)), (0, (1, 3))]
    ],
    [{"value": value} for value in (1, 0, 0, 1, 7)],
)
QUERIES = (
    [{"value": ["Ann", "Eve"], "group": (0, 0)}] * 2 + [{"value": ["Bob"], "group": (0, 1)}],
    [{"value": "ann"}, {"value": "no"}, {"value": "Bob B"}],
)
TEXTS = (
    ["It purred . The cat sat .", "Rain fell over the whole of the north all day", "a b c d"],
    ["The cat sat . A dog purred .", "Rain fell on the whole north all day", "a b c d"],
)


def t5_matthews(t5):
    return t5.sklearn_metrics_wrapper("matthews_corrcoef", metric_post_process_fn=lambda value: 100 * value)


# Metric of the suite, name of T5's metric and its arguments, targets and predictions, expected values.
CASES = [
    (metrics.accuracy, "accuracy", LABELS, {"accuracy": 1 / 2}),
    (metrics.accuracy, "accuracy", WORDS, {"accuracy": 2 / 3}),
    # Two true ones, one missed, two false ones, of which one is neither.
    (metrics.binary_f1, "f1_score_with_invalid", LABELS, {"f1": 4 / 7}),
    # F1 of the classes: 2/3, 1/2, 1/2.
    (metrics.mean_3class_f1, lambda t5: t5.mean_multiclass_f1(num_classes=3), CLASSES, {"mean_3class_f1": 5 / 9}),
    # Two of each right, one of each wrong: (4 - 1) / 9.
    (metrics.matthews_corrcoef, t5_matthews, (LABELS[0], [0, 1, 0, 1, 1, 0]), {"matthews_corrcoef": 1 / 3}),
    # Sums of products and squares around the means 2.36 and 1.56.
    (metrics.pearson_corrcoef, "pearson_corrcoef", NUMBERS, {"pearson_corrcoef": 12.832 / math.sqrt(14.992 * 18.832)}),
    # Ranks 1 2 4 5 3 and 2 3 4 5 1: 1 - 6·6 / (5·24).
    (metrics.spearman_corrcoef, "spearman_corrcoef", NUMBERS, {"spearman_corrcoef": 0.7}),
    # `po` is right; `us dollars dollar` shares two words with `us dollar`; nothing; nothing is left of articles.
    (metrics.squad, "squad", ANSWERS, {"em": 1 / 2, "f1": 0.45}),
    (metrics.on_values(metrics.binary_f1), "multirc_f1_over_all_answers", GROUPS, {"f1": 2 / 3}),
    # The first question alone has all its answers right.
    (
        metrics.mean_over_groups(metrics.all_match),
        lambda t5: t5.mean_group_metric(t5.all_match),
        GROUPS,
        {"exact_match": 1 / 3},
    ),
    # `ann` is right and its second copy does not count; `Bob B` has one word of two.
    (
        metrics.on_first_of_groups(metrics.squad),
        lambda t5: t5.deduplicate_metric(t5.squad),
        QUERIES,
        {"em": 1 / 2, "f1": 5 / 6},
    ),
    # 17 of 20 words, 11 of 17 pairs, 5 of 14 threes, 2 of 11 fours; 20 words for 21.
    (metrics.bleu, "bleu", TEXTS, {"bleu": 100 * math.exp(-1 / 20) * 28**-0.25}),
    # 4 of 5 and of 6 words, 7 of 10 and of 8, all; 2 of 4 and of 5 pairs, 4 of 9 and of 7, all. The first text has its
    # sentences in another order, which counts for nothing.
    (
        metrics.rouge,
        None,
        TEXTS,
        dict.fromkeys(("rouge1", "rougeLsum"), 100 * (8 / 11 + 7 / 9 + 1) / 3)
        | {"rouge2": 100 * (4 / 9 + 1 / 2 + 1) / 3},
    ),
]


def from_percent(values):
    """Returns T5's values in the declared units of our metrics."""
    return {name: declarations.declared(name).from_percent(value) for name, value in values.items()}


@pytest.mark.parametrize("metric, theirs, pair, expected", CASES)
def test_metrics(metric, theirs, pair, expected):
    """Compares the units, too: correct predictions have the largest value, wrong ones another value in the range."""
    assert metric(*pair) == pytest.approx(expected)
    # The last of ANSWERS is only an article.
    targets, wrong = (part[:3] for part in pair) if pair is ANSWERS else pair
    correct = [target if isinstance(wrong[0], type(target)) else target[0] for target in targets]
    if isinstance(wrong[0], dict):
        correct = [{"value": of["value"] if isinstance(of["value"], int) else of["value"][0]} for of in targets]
    best, worse = metric(targets, correct), metric(targets, wrong)
    for name, value in best.items():
        declared = declarations.declared(name)
        assert value == pytest.approx(declared.range[1]) and declared.sign == 1 and declared.rows[0] == "examples"
        assert declarations.fits(declared, worse[name]) and worse[name] < 0.95 * value


@pytest.mark.parametrize("metric, theirs, pair", [case[:3] for case in CASES if case[1]])
def test_metrics_are_t5s(metric, theirs, pair):
    t5 = pytest.importorskip("t5.evaluation.metrics")
    theirs = getattr(t5, theirs) if isinstance(theirs, str) else theirs(t5)
    assert metric(*pair) == pytest.approx(from_percent(theirs(*pair)))


@pytest.mark.parametrize("name", ROWS)
def test_scores_of_outputs_are_t5s(name):
    """Scores correct, wrong and meaningless outputs with the post-processors and metrics of each task."""
    pytest.importorskip("t5.data.tasks")
    import seqio

    task, theirs = suite.TASKS[name], seqio.TaskRegistry.get(T5_NAMES[name])
    rows = [as_example for row, as_example in ROWS[name] if row.get("label") != -1 and row.get("answers") != []]
    examples = [example for as_example in rows for example in as_example] * 4
    rng = np.random.default_rng(0)
    outputs = [str(rng.choice([example["targets"], examples[0]["targets"], "nonsense"])) for example in examples]
    pairs = []
    for process, as_example in [(task.postprocess or plain, as_read), (theirs.postprocessor or plain, as_t5_reads)]:
        targets = [process(e["targets"], example=as_example(e), is_target=True) for e in examples]
        predictions = [
            process(output, example=as_example(e), is_target=False) for e, output in zip(examples, outputs, strict=True)
        ]
        pairs.append((targets, predictions))
    ours, t5s = ([[values(value) for value in part] for part in pair] for pair in pairs)
    assert ours == t5s
    assert len(task.metric_fns) == len(theirs.metric_fns)
    for metric, their in zip(task.metric_fns, theirs.metric_fns, strict=True):
        if metric is not metrics.rouge:  # T5 draws samples of it.
            assert metric(*pairs[0]) == pytest.approx(from_percent(their(*pairs[1])))


def plain(output, **_):
    return output


def as_read(value):
    """An example, or a field of one, as TensorFlow gives it."""
    if isinstance(value, dict):
        return {name: as_read(field) for name, field in value.items()}
    if isinstance(value, list):
        return np.array([text.encode() for text in value], object)
    return value.encode() if isinstance(value, str) else np.int64(value)


def as_t5_reads(example):
    return {**as_read(example), "targets_pretokenized": example["targets"].encode()}


def values(value):
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
    words = [
        "",
        "the",
        "a  cat",
        "Cat's",
        "cat",
        "THE CAT",
        "old cat",
        "her old cat's",
        "dog ",
        " every",
        "an  an",
        "'",
    ]
    for output, referent in itertools.product(words, words):
        example = {"referent": referent, "targets_pretokenized": referent, "label": 0}
        assert postprocessors.referent(output, example) == t5.wsc_simple(output, example), (output, referent)


def test_rouge_is_t5s_of_equal_scores():
    """If all summaries have the same score, sampling them changes nothing."""
    t5 = pytest.importorskip("t5.evaluation.metrics")
    pair = [[texts[0]] * 3 for texts in TEXTS]
    assert metrics.rouge(*pair) == pytest.approx(t5.rouge(*pair))
