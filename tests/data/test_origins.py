"""Documents of a row and rows of a document; the tokens show their document."""

import dataclasses
import types

import numpy as np
import pytest

from plm_jax import config, objectives
from plm_jax.data import mixtures, reader
from plm_jax.data.layouts import streams

MASKED = objectives.MaskedLM(random_share=0.0)
SPECIALS = {"pad": 0, "cls": 1, "sep": 2, "mask": 3}
LAYOUTS = {
    "blocks": (config.Blocks(), objectives.Causal()),
    "masked_blocks": (config.Blocks(), MASKED),
    "full_sentences": (config.FullSentences(), MASKED),
    "one_document": (config.FullSentences(cross_documents=False), MASKED),
    "documents": (config.Documents(), MASKED),
    "segments": (config.Segments(), objectives.ReplacedToken()),
    "next_sentence": (config.SentencePairs(duplicates=3), MASKED),
    "sentence_order": (config.SentencePairs(task="sentence_order", duplicates=2), MASKED),
    "packed_documents": (config.Packed(), MASKED),
    "packed_pairs": (config.Packed(inner=config.SentencePairs(duplicates=3)), MASKED),
    "packed_static": (config.Packed(inner=config.SentencePairs()), dataclasses.replace(MASKED, duplicates=2)),
    "static": (config.SentencePairs(), dataclasses.replace(MASKED, duplicates=2)),
    "pair_streams": (config.PairStreams(bi_data=True), objectives.PermutationLM()),
}
PHASES = (
    config.PhaseConfig(until=0.3),
    config.PhaseConfig(until=0.5, batch_size=6),
    config.PhaseConfig(until=1.0, length=20),
)


@pytest.fixture
def documents(write_sentences):
    """Lengths of the sentences of each document of two sources; token n of each split is 4 + n."""
    rng = np.random.default_rng(0)
    sizes_by_source = {
        name: [rng.integers(1, 9, rng.integers(1, 6)).tolist() for _ in range(number)]
        for name, number in {"a": 30, "b": 12}.items()
    }
    for name, texts in sizes_by_source.items():
        write_sentences({"train": texts}, name)
    return sizes_by_source


def written(example):
    """The tokens of text that are in an example, before noise."""
    shown = np.concatenate([np.ravel(example[key]) for key in ("tokens", "targets") if key in example])
    return np.unique(shown[shown >= 4]) - 4


@pytest.mark.parametrize("name", LAYOUTS)
def test_documents_of_rows_are_those_whose_tokens_they_have(documents, make_run, name):
    layout, objective = LAYOUTS[name]
    run = make_run(
        documents, 60_000, eos=None, objective=objective, **SPECIALS,
        data={"layout": layout, "length": 16, "mixture": {"a": 2.0, "b": 1.0}}, train={"phases": PHASES, "steps": 40},
    )  # fmt: skip
    opened = reader.Reader(config.reader_config(run))
    ends = {source: np.cumsum([sum(sizes) for sizes in texts]) for source, texts in documents.items()}
    rows_of = {}
    for step in range(30):
        for row, k in enumerate(opened.numbers(step)):
            assert opened.locate(k) == (step, row)
            source, numbers = opened.origin(k)
            has = np.unique(ends[source].searchsorted(written(opened.example(k)), side="right")).tolist()
            assert sorted(set(numbers)) == has, (k, numbers, has)
            for number in set(numbers):
                rows_of.setdefault((source, number), []).append(k)
    assert len(rows_of) > 25 and max(map(len, rows_of.values())) > 1
    for source, texts in documents.items():
        for number in range(len(texts)):
            assert list(opened.examples_with(source, number, 30)) == rows_of.get((source, number), []), number


@pytest.mark.parametrize("passes", [(0, 24), (0, 23, 46)])
def test_positions_of_rows_of_streams(passes):
    text = types.SimpleNamespace(num_whole=23, passes=passes)
    order = streams.StreamOrder(text, 4)
    items = [order.item(k) for k in range(400)]
    assert set(items) == set(range(23 * (len(passes) - 1)))
    for item in range(passes[-1]):
        expected = [k for k in range(37, 391) if items[k] == item]
        assert order.positions([item], 37, 391).tolist() == expected


@pytest.mark.parametrize("rates", [{"a": 1.0}, {"a": 1.0, "b": 2.5, "c": 0.01}])
def test_position_is_the_inverse_of_locate(rates):
    mixture = mixtures.Mixture(rates)
    for k in [*range(300), 10**12, 10**12 + 1]:
        assert mixture.position(*mixture.locate(k)) == k
