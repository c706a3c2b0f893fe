"""Masks of the reader: words of the cache and fixed masks of each epoch."""

import numpy as np

from plm_jax import config, objectives
from tests.support.data import open_reader

IDS = {"pad": 91, "mask": 93, "sep": 94}


def masked(example):
    return example["target_positions"][example["target_weights"] > 0].tolist()


def opened(write_source, make_run, random_documents, objective, **train):
    write_source("a", {"train": random_documents(1, 80)}, eos=None, **IDS)
    return open_reader(make_run("a", eos=None, objective=objective, data={"length": 16}, train=train, **IDS))


def text(example):
    tokens = example["tokens"].copy()
    tokens[masked(example)] = example["targets"][example["target_weights"] > 0]
    return tuple(tokens.tolist())


def test_fixed_masks_repeat_after_their_number_of_epochs(write_source, make_run, random_documents):
    reader = opened(write_source, make_run, random_documents, objectives.MaskedLM(0.3, duplicates=3))
    rows = reader._segments[0].orders["a"].num_items
    epochs = [{text(e): e for e in map(reader.example, range(i * rows, (i + 1) * rows))} for i in range(7)]
    assert all(epoch.keys() == epochs[0].keys() and len(epoch) == rows for epoch in epochs)
    for number, epoch in enumerate(epochs):
        for row, example in epoch.items():
            np.testing.assert_equal(example, epochs[number % 3][row])
    for other in epochs[1:3]:
        assert np.mean([masked(epochs[0][row]) == masked(other[row]) for row in other]) < 0.2


def test_fixed_masks_do_not_depend_on_earlier_reads(write_source, make_run, random_documents):
    phases = (config.PhaseConfig(until=0.5), config.PhaseConfig(until=1.0, length=8))
    objective = objectives.MaskedLM(0.3, duplicates=2)
    reader = opened(write_source, make_run, random_documents, objective, phases=phases)
    whole = [reader.example(k) for k in range(200)]
    assert {len(example["tokens"]) for example in whole} == {16, 8}
    for k in np.random.default_rng(0).permutation(200):
        np.testing.assert_equal(reader.example(int(k)), whole[k])


def test_fixed_masks_of_another_length_are_independent(write_source, make_run, random_documents):
    phases = (config.PhaseConfig(until=0.5), config.PhaseConfig(until=1.0, length=8))
    reader = opened(write_source, make_run, random_documents, objectives.MaskedLM(0.5, duplicates=1), phases=phases)
    masks = {16: {}, 8: {}}
    for k in range(400):
        example, (_, _, _, item, _) = reader.example(k), reader._draw(k)
        masks[len(example["tokens"])][item] = np.isin(np.arange(8), masked(example))
    rows = masks[16].keys() & masks[8].keys()
    assert len(rows) > 40
    assert 0.4 < np.mean([masks[16][row] == masks[8][row] for row in rows]) < 0.6


def test_masks_are_otherwise_new_in_each_epoch(write_source, make_run, random_documents):
    reader = opened(write_source, make_run, random_documents, objectives.MaskedLM(0.3))
    rows = reader._segments[0].orders["a"].num_items
    epochs = [{text(e): masked(e) for e in map(reader.example, range(i * rows, (i + 1) * rows))} for i in range(2)]
    assert np.mean([epochs[0][row] == at for row, at in epochs[1].items()]) < 0.2


def test_whole_words_are_those_of_the_cache(write_source, make_run, random_documents):
    """Tokens with even ids begin words in this cache."""
    reader = opened(write_source, make_run, random_documents, objectives.MaskedLM(0.3, whole_words=1))
    cut = 0
    for k in range(200):
        example = reader.example(k)
        tokens, at = np.array(text(example)), set(masked(example))
        fixed = tokens == IDS["sep"]
        begins = (tokens % 2 == 0) | np.concatenate([[True], fixed[:-1]])
        words = np.split(np.arange(16), np.flatnonzero(begins | fixed)[1:])
        for word in words:
            inside = [i in at for i in word.tolist()]
            assert all(inside) or not any(inside)
            cut += len(inside) > 1 and all(inside)
    assert cut > 20


def test_smoothing_counts_tokens_of_the_training_split(write_source, make_run, random_documents):
    """A large exponent predicts the tokens of a row that are rarest in the training split."""
    documents = random_documents(1, 80)
    counts = np.bincount(np.concatenate(documents), minlength=100)
    reader = opened(write_source, make_run, random_documents, objectives.MaskedLM(0.3, smoothing=50.0))
    rarer = 0
    for k in range(200):
        example = reader.example(k)
        tokens = np.array(text(example))
        candidates = np.flatnonzero(tokens != IDS["sep"])
        at = masked(example)
        rest = np.setdiff1d(candidates, at)
        rarer += counts[tokens[at]].max() <= counts[tokens[rest]].min()
    assert rarer > 190  # Ties of counts and of floating point.
