"""Bag-of-words baselines for labeled examples, with which fine-tuned models are compared.

Each function fits a model to the training records of a labeled source (`data.sources.corpus.Record`) and predicts the
test records. Classes and choices are predicted by logistic regression, scores by ridge regression. The features of
these models are weighted counts of words and word pairs. Tags are predicted by the most frequent tag of each word.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from plm_jax.data.sources.corpus import Record


def classes(train: Sequence[Record], test: Sequence[Record]) -> np.ndarray:
    """Predicts the class of each test record by logistic regression; returns class indices, int [len(test)]."""
    from sklearn.linear_model import LogisticRegression

    count = _counter(train)
    model = LogisticRegression(C=10, max_iter=1000).fit(count(train), [record.values["label"] for record in train])
    return model.predict(count(test))


def scores(train: Sequence[Record], test: Sequence[Record]) -> np.ndarray:
    """Predicts the score of each test record by ridge regression; returns floats [len(test)]."""
    from sklearn.linear_model import Ridge

    count = _counter(train)
    return Ridge().fit(count(train), [record.values["score"] for record in train]).predict(count(test))


def tags(train: Sequence[Record], test: Sequence[Record]) -> list[list[int]]:
    """Predicts the tag that each word has most often in the training records.

    Words that do not occur there get the most frequent tag of all words.

    Returns:
      A list for each test record, with the index of the tag of each word.
    """
    counts_by_word: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    for record in train:
        for word, tag in zip(record.text.split(" "), record.values["tags"], strict=True):
            counts_by_word[word][tag] += 1
    most_frequent = sum(counts_by_word.values(), collections.Counter()).most_common(1)[0][0]
    tag_by_word = {word: counts.most_common(1)[0][0] for word, counts in counts_by_word.items()}
    return [[tag_by_word.get(word, most_frequent) for word in record.text.split(" ")] for record in test]


def choices(train: Sequence[Record], test: Sequence[Record]) -> np.ndarray:
    """Predicts the index of the correct choice of each test record; returns int [len(test)].

    Logistic regression separates correct choices from wrong choices, by the words of the choice and of the context. All
    test records must have the same number of choices.
    """
    from sklearn.linear_model import LogisticRegression

    def separate_choices(records: Sequence[Record]) -> list[Record]:
        return [Record(record.text, (choice,)) for record in records for choice in record.other_texts or ()]

    is_right = [index == record.values["label"] for record in train for index in range(len(record.other_texts or ()))]
    count = _counter(separate_choices(train))
    model = LogisticRegression(C=10, max_iter=1000).fit(count(separate_choices(train)), is_right)
    probabilities = model.predict_proba(count(separate_choices(test)))[:, 1]
    return probabilities.reshape(len(test), -1).argmax(1)


def _counter(records: Sequence[Record]) -> Callable[[Sequence[Record]], Any]:
    """Returns a function that converts records to a matrix [records, features] of weighted counts.

    The features are words and word pairs.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    # Logarithmic counts and weak regularization did best on the movie reviews in the package.
    def texts(records: Sequence[Record]) -> Any:
        return zip(*(record.texts for record in records), strict=True)

    vectorizers = [TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit(column) for column in texts(records)]
    return lambda records: sparse.hstack(
        [vectorizer.transform(column) for vectorizer, column in zip(vectorizers, texts(records), strict=True)]
    )
