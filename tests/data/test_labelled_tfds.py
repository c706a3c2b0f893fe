"""Labelled examples of TensorFlow Datasets, in GLUE's and SQuAD's own forms."""

import dataclasses
import pathlib

import numpy as np
import pytest
import tensorflow_datasets as tfds

from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.data.sources import corpus, rows
from plm_jax.data.sources.corpus import Skipped

LABELS = ("entailment", "neutral", "contradiction")
CONTEXT = "In 1862 the naïve whale swam."


class TinyNli(tfds.core.GeneratorBasedBuilder):
    """MNLI's features."""

    VERSION = tfds.core.Version("1.0.0")
    pkg_dir_path = pathlib.Path(__file__).parent

    def _info(self):
        text = tfds.features.Text()
        features = {"premise": text, "hypothesis": text, "label": tfds.features.ClassLabel(names=LABELS)}
        return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features | {"idx": np.int32}))

    def _split_generators(self, manager):
        return {"train": self._generate_examples(7), "validation_matched": self._generate_examples(3)}

    def _generate_examples(self, number=0):
        for i in range(number):
            label = -1 if number == 3 and i == 2 else i % 3
            yield i, {"premise": f"é {i}", "hypothesis": f"b {i}", "label": label, "idx": i}


class TinySquad(tfds.core.GeneratorBasedBuilder):
    """SQuAD's features."""

    VERSION = tfds.core.Version("1.0.0")
    pkg_dir_path = pathlib.Path(__file__).parent

    def _info(self):
        text = tfds.features.Text()
        answers = tfds.features.Sequence({"text": text, "answer_start": np.int32})
        features = {"id": text, "title": text, "context": text, "question": text, "answers": answers}
        return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

    def _split_generators(self, manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        rest = {"id": "0", "title": "t", "context": CONTEXT}
        yield 0, {"question": "when?", "answers": {"text": ["1862", "In 1862"], "answer_start": [3, 0]}} | rest
        yield 1, {"question": "who?", "answers": {"text": ["naïve whale"], "answer_start": [12]}} | rest
        yield 2, {"question": "where?", "answers": {"text": [], "answer_start": []}} | rest


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("tfds"))


def nli(folder, **fields):
    form = config.ClassForm(LABELS, "premise", "hypothesis", **fields)
    return config.LabelledTfds("tiny_nli", form, folder, validation="validation_matched")


def test_glues_rows_are_pairs_and_classes(folder):
    corpus = nli(folder).open("a")
    assert corpus.splits == ("train", "validation")
    found = list(corpus.read("train", None))
    assert sorted((of.text, of.other_texts, of.values["label"]) for of in found) == [
        (f"é {i}", (f"b {i}",), i % 3) for i in range(7)
    ]
    assert [record.row_number for record in found] == list(range(1, 8))
    assert corpus.fingerprint() == ["tiny_nli/1.0.0", "train:7", "validation_matched:3"]
    assert corpus.progress()["total"] == 10
    with pytest.raises(UserError, match=r"validation_matched:\d has -1 in 'label', which is not in form.labels"):
        list(corpus.read("validation", None))
    skipped = Skipped()
    assert len(list(corpus.read("validation", None, skipped))) == 2 and (skipped.rows, skipped.bad) == (3, 1)


def test_squads_rows_are_questions_contexts_and_answers(folder):
    corpus = config.LabelledTfds("tiny_squad", config.AnswerForm(), folder).open("a")
    assert corpus.splits == ("train",) and corpus.keeps_offsets
    found = {of.other_texts[0]: of for of in corpus.read("train", None)}
    answers = {
        question: [of.text[a:b] for a, b in zip(of.values["answer_begins"], of.values["answer_ends"], strict=True)]
        for question, of in found.items()
    }
    assert answers == {"when?": ["1862", "In 1862"], "who?": ["naïve whale"], "where?": []}
    assert all(bytes(of.values["context_bytes"]).decode() == of.text == CONTEXT for of in found.values())


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


def test_what_a_builder_lacks_is_said(folder):
    with pytest.raises(UserError, match=r"has no field 'lable': did you mean 'label'"):
        list(nli(folder, label="lable").open("a").read("train", None))
    with pytest.raises(UserError, match=r"tiny_nli has no split 'trian': did you mean 'train'"):
        dataclasses.replace(nli(folder), train="trian").open("a")
