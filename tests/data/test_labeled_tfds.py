"""Labeled examples of TensorFlow Datasets, in GLUE's and SQuAD's own forms."""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest
import tensorflow_datasets as tfds

from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.data.sources import corpus, rows
from plm_jax.data.sources.corpus import Skipped
from tests.support import builders

LABELS = ("entailment", "neutral", "contradiction")
CONTEXT = "In 1862 the naïve whale swam."
TEXT = tfds.features.Text()


class TinyNli(builders.Builder):
    """Data set with MNLI's features; the last validation row has no label."""

    features: ClassVar = {
        "premise": TEXT,
        "hypothesis": TEXT,
        "label": tfds.features.ClassLabel(names=LABELS),
        "idx": np.int32,
    }
    rows: ClassVar = {
        split: [
            {"premise": f"é {i}", "hypothesis": f"b {i}", "label": label, "idx": i} for i, label in enumerate(labels)
        ]
        for split, labels in {"train": [0, 1, 2, 0, 1, 2, 0], "validation_matched": [0, 1, -1]}.items()
    }


def question(text, answers, starts):
    answers = {"text": answers, "answer_start": starts}
    return {"id": "0", "title": "t", "context": CONTEXT, "question": text, "answers": answers}


class TinySquad(builders.Builder):
    """Data set with SQuAD's features."""

    features: ClassVar = {
        **dict.fromkeys(("id", "title", "context", "question"), TEXT),
        "answers": tfds.features.Sequence({"text": TEXT, "answer_start": np.int32}),
    }
    rows: ClassVar = {
        "train": [
            question("when?", ["1862", "In 1862"], [3, 0]),
            question("who?", ["naïve whale"], [12]),
            question("where?", [], []),
        ]
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("tfds"))


def nli(folder, **fields):
    form = config.ClassForm(LABELS, "premise", "hypothesis", **fields)
    return config.LabeledTfds("tiny_nli", form, folder, validation="validation_matched")


def test_glues_rows_are_pairs_and_classes(folder):
    corpus = nli(folder).open("a")
    assert corpus.splits == ("train", "validation")
    records = list(corpus.read("train", None))
    assert sorted((of.text, of.other_texts, of.values["label"]) for of in records) == [
        (f"é {i}", (f"b {i}",), i % 3) for i in range(7)
    ]
    assert [record.row_number for record in records] == list(range(1, 8))
    assert corpus.fingerprint() == ["tiny_nli/1.0.0", "train:7", "validation_matched:3"]
    assert corpus.progress()["total"] == 10
    with pytest.raises(UserError, match=r"validation_matched:\d has -1 in 'label', which is not in form.labels"):
        list(corpus.read("validation", None))
    skipped = Skipped()
    assert len(list(corpus.read("validation", None, skipped))) == 2 and (skipped.rows, skipped.bad) == (3, 1)


def test_squads_rows_are_questions_contexts_and_answers(folder):
    corpus = config.LabeledTfds("tiny_squad", config.AnswerForm(), folder).open("a")
    assert corpus.splits == ("train",) and corpus.keeps_offsets
    records = {of.other_texts[0]: of for of in corpus.read("train", None)}
    answers = {
        question: [of.text[a:b] for a, b in zip(of.values["answer_begins"], of.values["answer_ends"], strict=True)]
        for question, of in records.items()
    }
    assert answers == {"when?": ["1862", "In 1862"], "who?": ["naïve whale"], "where?": []}
    assert all(bytes(of.values["context_bytes"]).decode() == of.text == CONTEXT for of in records.values())


def test_rows_for_prompts_are_those_of_the_splits_with_all_their_fields(folder):
    def premise(row):
        return corpus.Record(row.fields["premise"])

    train, tested = rows.splits("a", nli(folder), "validation", 0.5, record=premise)
    assert sorted(row.fields["idx"] for row in train) == list(range(7)) and len(tested) == 3
    assert tested[0].fields.keys() == {"premise", "hypothesis", "label", "idx"}
    assert tested[0].location.startswith("tiny_nli validation_matched:1")
    alone = dataclasses.replace(nli(folder), validation="validation")
    parts = rows.splits("a", alone, "validation", 0.5, record=premise)
    assert all(parts) and sorted(row.fields["idx"] for part in parts for row in part) == list(range(7))
    with pytest.raises(UserError, match="'a' has no split 'validatoin': did you mean 'validation"):
        rows.splits("a", nli(folder), "validatoin", 0.5, record=premise)


def test_missing_fields_and_splits_are_rejected(folder):
    with pytest.raises(UserError, match=r"has no field 'lable': did you mean 'label'"):
        list(nli(folder, label="lable").open("a").read("train", None))
    with pytest.raises(UserError, match=r"tiny_nli has no split 'trian': did you mean 'train'"):
        dataclasses.replace(nli(folder), train="trian").open("a")
