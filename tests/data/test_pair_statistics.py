"""Shares of sentence pairs over a million tokens against their closed forms."""

import types

import numpy as np

from plm_jax import config, objectives
from plm_jax.data import cache, layouts

SPECIAL = objectives.Special(pad=0, cls=1, sep=2, mask=3, vocab_size=60_000)
DOCUMENTS, SENTENCES, TOKENS = 2000, 4, 125


def labels(folder, task):
    """The label of each pair, and of which document its first sentence is; a row holds any of the documents whole."""
    size = SENTENCES * TOKENS
    split = types.SimpleNamespace(
        documents=size * np.arange(DOCUMENTS + 1),
        sentences=TOKENS * np.arange(SENTENCES * DOCUMENTS),
        num_documents=DOCUMENTS,
        num_tokens=size * DOCUMENTS,
        tokens=lambda start, stop: 4 + np.arange(start, stop) // TOKENS,
    )
    source = cache.CachedSource(str(folder), "i", {}, {"train": split}, None)
    layout = config.SentencePairs(task=task, duplicates=1, short_probability=0.0)
    opened = layout.open(layouts.RowRequest.of(source, "train", 512, objectives.get("masked_lm", SPECIAL)))
    found = [opened.example(item, layouts.generator(1, "draws", item)) for item in range(opened.num_rows)]
    is_label = np.array([example["pair_label"] for example in found])
    return is_label, (np.array([example["tokens"][1] for example in found]) - 4) // SENTENCES


def test_random_next_sentences_are_more_than_half(tmp_path):
    """Of n sentences a next one takes all; a random one only its first part, and the rest makes pairs in turn."""
    is_random, document = labels(tmp_path, "next_sentence")
    random_pairs, all_pairs = [0.0, 1.0], [0.0, 1.0]
    for n in range(2, SENTENCES + 1):
        random_pairs.append(0.5 * (1 + np.mean(random_pairs[1:n])))
        all_pairs.append(1 + 0.5 * np.mean(all_pairs[1:n]))
    for weights, mean in ((is_random, random_pairs[-1]), (None, all_pairs[-1])):
        counts = np.bincount(document, weights, DOCUMENTS)
        assert abs(counts.mean() - mean) < 4 * counts.std() / DOCUMENTS**0.5
    assert random_pairs[-1] / all_pairs[-1] > 0.55


def test_half_of_the_pairs_are_swapped(tmp_path):
    is_swapped, document = labels(tmp_path, "sentence_order")
    assert len(is_swapped) == DOCUMENTS == len(set(document.tolist()))
    assert abs(is_swapped.mean() - 0.5) < 4 * (0.25 / DOCUMENTS) ** 0.5
