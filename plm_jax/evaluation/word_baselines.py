"""What words alone tell of labelled examples: predictors without a network, beside which a fine-tuned model is judged.

Each is fitted to training records of a labelled source (`data.sources.corpus.Record`) and predicts for others:
weighted counts of words and of pairs of words before a linear model, for classes and choices logistic regression, for
scores ridge regression; of each word the tag that it has most often.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from plm_jax.data.sources.corpus import Record


def classes(train: Sequence[Record], test: Sequence[Record]) -> np.ndarray:
    """The most probable class of each record, int [test], by logistic regression."""
    from sklearn.linear_model import LogisticRegression

    count = _counter(train)
    model = LogisticRegression(C=10, max_iter=1000).fit(count(train), [record.values["label"] for record in train])
    return model.predict(count(test))


def scores(train: Sequence[Record], test: Sequence[Record]) -> np.ndarray:
    """The score of each record, float [test], by ridge regression."""
    from sklearn.linear_model import Ridge

    count = _counter(train)
    return Ridge().fit(count(train), [record.values["score"] for record in train]).predict(count(test))


def tags(train: Sequence[Record], test: Sequence[Record]) -> list[list[int]]:
    """Of each record the tag of each word: the one that it has most often; of an unknown word the most frequent tag."""
    found: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    for record in train:
        for word, tag in zip(record.text.split(" "), record.values["tags"], strict=True):
            found[word][tag] += 1
    most_frequent = sum(found.values(), collections.Counter()).most_common(1)[0][0]
    usual = {word: counts.most_common(1)[0][0] for word, counts in found.items()}
    return [[usual.get(word, most_frequent) for word in record.text.split(" ")] for record in test]


def choices(train: Sequence[Record], test: Sequence[Record]) -> np.ndarray:
    """The number of the choice of each record that is most probably right, int [test].

    Logistic regression tells right choices from wrong ones by their words and those of the context.
    """
    from sklearn.linear_model import LogisticRegression

    def alone(records: Sequence[Record]) -> list[Record]:
        return [Record(record.text, (choice,)) for record in records for choice in record.other_texts or ()]

    right = [number == record.values["label"] for record in train for number in range(len(record.other_texts or ()))]
    count = _counter(alone(train))
    model = LogisticRegression(C=10, max_iter=1000).fit(count(alone(train)), right)
    chances = model.predict_proba(count(alone(test)))[:, 1]
    return chances.reshape(len(test), -1).argmax(1)


def _counter(records: Sequence[Record]) -> Callable[[Sequence[Record]], Any]:
    """What makes of records a matrix [records, features]: of each text the weighted words and pairs of them."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    # Logarithms of counts and a weak prior: the best of what was tried on the reviews that come with the package.
    def texts(records: Sequence[Record]) -> Any:
        return zip(*((record.text, *(record.other_texts or ())) for record in records), strict=True)

    fitted = [TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit(of) for of in texts(records)]
    return lambda records: sparse.hstack([one.transform(of) for one, of in zip(fitted, texts(records), strict=True)])
