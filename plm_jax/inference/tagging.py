"""Words of the texts that are tagged, and entities that are derived from tag probabilities."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from plm_jax.data import cache
from plm_jax.data.layouts.labeled import LabeledRows
from plm_jax.data.vocabularies import Vocabulary
from plm_jax.inference.predictions import Entity, TagPrediction

_CONTINUATION = "##"


def word_begins(
    example: str | Sequence[str], vocabulary: Vocabulary, table: cache.MemoryTable, document: int
) -> np.ndarray:
    """Returns the index of the first character of each word, in a text or in a list of words joined by spaces.

    A text has the same words as in transformers' token classification pipeline. With a WordPiece vocabulary, a word
    begins at each token that does not continue a word, so punctuation marks are separate words. With other
    vocabularies, words are separated by spaces.
    """
    if not isinstance(example, str):
        return np.cumsum([0, *(len(word) + 1 for word in example)])[:-1]
    starts, ends = (table.of_document(name, document) for name in ("char_starts", "char_ends"))
    begins_word = ends > starts
    if vocabulary.specials.spec.startswith("wordpiece:"):
        pieces, tokens = vocabulary.table["tokens"], table.tokens(*table.span(document))
        begins_word &= np.array([not pieces[token].startswith(_CONTINUATION) for token in tokens], np.bool_)
    else:
        follows_space = np.array([start == 0 or " " in example[start - 1 : start + 1] for start in starts], np.bool_)
        begins_word &= follows_space
    return np.unique(starts[begins_word])


def predict(
    rows: LabeledRows, document: int, example: str | Sequence[str], probabilities: np.ndarray, labels: Sequence[str]
) -> TagPrediction:
    """Returns the tags and entities of an example.

    Words that do not fit into the row belong to no entity and get the tag `O`, or the first label if there is no `O`.

    Args:
      probabilities: probability of each label for the tokens of the row [L, C].
    """
    text = example if isinstance(example, str) else " ".join(example)
    missing = "O" if "O" in labels else labels[0]
    tags: list[str] = []
    words: list[str] = []
    groups: list[list[Any]] = []
    previous = None
    for (begin, end), position in zip(_word_spans(rows, document, text), rows.word_positions(document), strict=True):
        words.append(text[begin:end])
        if position < 0:
            tags.append(missing)
            previous = None
            continue
        tag = labels[int(np.argmax(probabilities[position]))]
        tags.append(tag)
        prefix, label = (tag[0], tag[2:]) if tag[:2] in ("B-", "I-") else ("I", tag)
        if prefix == "B" or label != previous:
            groups.append([label, begin, end, []])
        groups[-1][2] = end
        groups[-1][3].append(float(probabilities[position].max()))
        previous = label
    entities = tuple(
        Entity(label, text[begin:end], begin, end, float(np.mean(scores)))
        for label, begin, end, scores in groups
        if label != "O"
    )
    return TagPrediction(tuple(words), tuple(tags), entities)


def _word_spans(rows: LabeledRows, document: int, text: str) -> list[tuple[int, int]]:
    """Returns a pair for each word: the index of its first character, and its end, exclusive."""
    begins = rows.values("word_begins", document).tolist()
    starts, ends = (rows.values(name, document) for name in ("char_starts", "char_ends"))
    limits = starts.searchsorted([*begins, np.iinfo(np.int64).max]).tolist()
    spans = []
    for begin, first, last, limit in zip(begins, limits[:-1], limits[1:], [*begins, len(text)][1:], strict=True):
        end = int(ends[first:last].max(initial=begin)) if first < last else begin + len(text[begin:limit].rstrip())
        spans.append((begin, end))
    return spans
