"""Predictors without a network: they find what words tell, and nothing where words tell nothing."""

import random

import numpy as np
import pytest

from plm_jax.data.sources.corpus import Record
from plm_jax.evaluation import word_baselines

FILLING = ["the", "a", "one", "of", "them", "was", "it", "with", "and", "for", "this", "that"]


def texts(number, word, seed):
    """Texts of filling words with one of `word(i)`."""
    rng = random.Random(seed)
    for i in range(number):
        words = rng.sample(FILLING, 5)
        words.insert(rng.randrange(6), word(i))
        yield " ".join(words)


def records(number, seed, classes=("dull", "fine")):
    labels = [random.Random(f"{seed} {i}").randrange(len(classes)) for i in range(number)]
    lines = texts(number, lambda i: classes[labels[i]], seed)
    return [Record(text, (), values={"label": label}) for text, label in zip(lines, labels, strict=True)]


@pytest.mark.parametrize("classes", [("dull", "fine"), ("dull", "fine", "middling")])
def test_classes_are_told_by_their_words(classes):
    train, test = records(200, 0, classes), records(60, 1, classes)
    assert list(word_baselines.classes(train, test)) == [record.values["label"] for record in test]


def test_the_words_of_a_pairs_texts_are_told_apart():
    def pairs(seed):
        return [
            Record(one.text, (other.text,), values={"label": one.values["label"]})
            for one, other in zip(records(200, seed), records(200, seed + 10), strict=True)
        ]

    test = pairs(1)
    assert np.mean(word_baselines.classes(pairs(0), test) == [record.values["label"] for record in test]) > 0.95


def test_scores_are_told_by_their_words():
    def scored(seed):
        return [Record(of.text, (), values={"score": 3.0 * of.values["label"] - 1}) for of in records(200, seed)]

    test = scored(1)
    assert np.corrcoef(word_baselines.scores(scored(0), test), [of.values["score"] for of in test])[0, 1] > 0.98


def test_a_word_has_the_tag_that_it_has_most_often():
    train = [
        Record("Ann saw May", (), values={"tags": [1, 0, 1]}),
        Record("May came in May", (), values={"tags": [2, 0, 0, 2]}),
    ]
    test = [Record("In May Ann came", (), values={})]
    assert word_baselines.tags(train, test) == [[0, 2, 1, 0]]


def test_bag_of_words_predicts_the_correct_choice():
    def questions(seed):
        rng = random.Random(seed)
        for _ in range(200):
            label, words = rng.randrange(2), rng.sample(FILLING, 4)
            endings = [f"{words[2]} dull", f"{words[3]} dull"]
            endings[label] = endings[label].replace("dull", "fine")
            yield Record(" ".join(words[:2]), tuple(endings), values={"label": label})

    test = list(questions(1))
    assert list(word_baselines.choices(list(questions(0)), test)) == [record.values["label"] for record in test]
