"""Texts of every task: as written out in `rows`, and as T5's own preprocessors make them of the same rows."""

import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_jax.common.errors import UserError
from plm_jax.data.text_to_text import formats, suite
from tests.support.task_rows import ROWS, T5_NAMES, T5_TRAINED, TRAINED


def test_every_task_has_rows():
    assert set(ROWS) == set(suite.TASKS) == set(T5_NAMES)


@pytest.mark.parametrize("name", ROWS)
def test_texts_are_those_written_out(name):
    for split, rows in {"validation": ROWS[name], "train": TRAINED.get(name, ROWS[name])}.items():
        for row, examples in rows:
            assert suite.TASKS[name].format_of(split)(row) == examples


def fields(name):
    return tfds.builder(suite.TASKS[name].tfds).info.features.get_tensor_spec()


@pytest.mark.parametrize("name", ROWS)
def test_rows_have_the_fields_of_tfds(name):
    for row, _ in ROWS[name]:
        tf.nest.assert_same_structure(tf.nest.map_structure(lambda _: None, fields(name)), without_lists(row))


def without_lists(row):
    if isinstance(row, dict):
        return {key: without_lists(value) for key, value in row.items()}
    return None


def dataset(name):
    """The rows as TFDS reads them; fails where they have not the types of the data set."""
    spec = fields(name)
    return tf.data.Dataset.from_generator(lambda: (row for row, _ in ROWS[name]), output_signature=spec)


@pytest.mark.parametrize(
    "name, split", [*((name, "validation") for name in ROWS), *((name, "train") for name in TRAINED)]
)
def test_texts_are_t5s(name, split):
    pytest.importorskip("t5.data.tasks")
    import seqio

    processed, theirs, rows = dataset(name), T5_NAMES[name], ROWS[name]
    if split == "train":  # T5 treats a row without a label as true; the split `train` has no such row.
        theirs, rows = T5_TRAINED[name], TRAINED[name]
        processed = processed.filter(lambda row: row["label"] >= 0)
    task = seqio.TaskRegistry.get(theirs)
    for preprocessor in task.preprocessors[: task.preprocessors.index(seqio.preprocessors.tokenize)]:
        processed = preprocessor(processed)
    theirs = [tuple(row[part].decode() for part in ("inputs", "targets")) for row in processed.as_numpy_iterator()]
    ours = [(row["inputs"], row["targets"]) for _, examples in rows for row in examples]
    assert ours == theirs


TEXTS = st.text(
    st.sampled_from("aZ9 \t\n\v\f\r\u00a0\u2003\u2028.,;:!?'\"`~^_-–—()[]{}<>|/\\@#$%&*+=é東€…«»"), max_size=20
)


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_spaces_around_punctuation_are_those_of_re2(text):
    spaced = tf.strings.regex_replace(tf.strings.regex_replace(text, r"([[:punct:]])", r" \1 "), r"\s+", " ")
    row = {"question": text, "context": text, "answers": {"text": [text]}}
    [example] = formats.squad(row)
    assert example["answers"] == [spaced.numpy().decode()]
    joined = tf.strings.join(["question: ", spaced, " context: ", spaced])
    assert example["inputs"] == tf.strings.regex_replace(joined, r"\s+", " ").numpy().decode()


@settings(max_examples=300, deadline=None)
@given(st.floats(0, 5, width=32))
def test_similarity_is_rounded_as_tensorflow_rounds(label):
    [example] = formats.stsb({"sentence1": "a", "sentence2": "b", "label": label})
    label = tf.constant(label, tf.float32)
    assert example["targets"] == tf.as_string(tf.round(label * 5) / 5, precision=1).numpy().decode()


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("glue_cola", {"label": 2}, "label 2: expected 0 to 1, or -1 for none"),
        ("glue_cola", {"label": -2}, "label -2"),
        ("glue_mnli", {"label": "neutral"}, "label 'neutral': expected 0 to 2"),
        ("super_glue_wsc", {"span2_index": 3}, "word 3 of 'Ann thanked.*is not 'she'"),
        ("super_glue_wsc", {"span2_index": 99}, "word 99"),
        ("super_glue_wsc", {"span2_index": 0, "span2_text": "Ann"}, "word 0"),
        ("glue_wnli_eval", {"sentence1": "No such word."}, "no pronoun in the premise 'No such word"),
    ],
)
def test_rows_that_cannot_be_read(name, changes, message):
    row, _ = ROWS[name][0]
    with pytest.raises(UserError, match=message) as caught:
        suite.TASKS[name].examples({**row, **changes})
    assert "\n" not in str(caught.value)
