"""Two segments of a document (ELECTRA); the shares of what is drawn are in test_published_rows."""

import dataclasses

import numpy as np
import pytest

from plm_jax import config, models, objectives
from plm_jax.data import layouts
from plm_jax.data.layouts import index, segments
from tests.support.data import assert_rejected, changed, open_reader

IDS = {"pad": 0, "cls": 1, "sep": 2, "mask": 3}
MASKED = objectives.MaskedLM()
SPECIAL = objectives.Special(**IDS, vocab_size=60_000)


def corpus(seed, num_documents, longest=12):
    rng = np.random.default_rng(seed)
    return [rng.integers(1, longest, rng.integers(1, 20)).tolist() for _ in range(num_documents)]


def opened(source, length=24, seed=0, whole_words=0):
    objective = objectives.get("masked_lm", SPECIAL, whole_words=whole_words)
    return config.Segments().open(layouts.RowRequest.of(source, "train", length, objective, seed))


def test_rows_take_whole_sentences_of_one_document_until_they_have_enough(write_sentences, monkeypatch):
    monkeypatch.setattr(index, "BLOCK_SENTENCES", 50)
    documents = corpus(0, 80)
    layout = opened(write_sentences({"train": documents}))
    ends = np.cumsum([size for sizes in documents for size in sizes]).tolist()
    borders = np.cumsum([sum(sizes) for sizes in documents]).tolist()
    starts = [*layout._starts.tolist(), ends[-1]]
    assert starts[0] == 0 and starts[-1] == ends[-1] and set(starts[1:]) <= set(ends) and set(borders) <= set(starts)
    short = 0
    for start, stop, target in zip(starts, starts[1:], layout._targets.tolist(), strict=False):
        before = [end for end in ends if start < end < stop]
        assert stop - start >= target or stop in borders
        assert not before or before[-1] - start < target
        short += target < 24
    assert 0 < short < len(starts) / 5


def test_the_sentences_of_the_first_segment_are_random(write_sentences):
    layout = opened(write_sentences({"train": [[3] * 40] * 5}))
    types_drawn = {tuple(layout.example(0, np.random.default_rng(seed))["token_types"]) for seed in range(40)}
    # Up to below half of the row; with the sentence that passes it; all.
    assert sorted(sum(types) for types in types_drawn) == [0, 10, 13]
    ours, again = (layout.example(1, np.random.default_rng(5)) for _ in range(2))
    assert all((ours[key] == again[key]).all() for key in ours)


def test_a_short_sentence_may_return_to_the_first_segment():
    class Draws:
        def random(self):
            return 0.9

    # 8 + 7 is too long for (30 - 3) // 2, 8 + 2 is not.
    assert segments.in_first([8, 7, 2, 9], 30, Draws()) == [True, False, True, False]


def test_word_starts_are_positions_in_the_row(write_sentences, monkeypatch):
    source = write_sentences({"train": corpus(1, 30)})
    split = source.splits["train"]
    words, column = np.arange(0, split.num_tokens, 3), split.column
    monkeypatch.setattr(split, "has", lambda name: name == "word_starts")
    monkeypatch.setattr(split, "column", lambda name: words if name == "word_starts" else column(name))
    layout = opened(source, whole_words=1)
    for item in range(layout.num_rows):
        row = layout.example(item, np.random.default_rng(item))
        # Token n of the text is 4 + n.
        begins = (row["tokens"] >= 4) & ((row["tokens"] - 4) % 3 == 0)
        assert row["word_starts"].tolist() == np.flatnonzero(begins).tolist()


@pytest.fixture
def make(make_run):
    """`make(length)` returns a masked-LM run over segments."""

    def make(length=24, token_types=2, objective=MASKED, **ids):
        data = {"layout": config.Segments(), "length": length}
        run = make_run("a", 60_000, data=data, objective=objective, **{"eos": None} | IDS | ids)
        embedding = dataclasses.replace(run.model.embedding, token_types=token_types)
        model = {"embedding": embedding}
        return changed(run, model=model | ({"pooler": models.NoHead()} if objective is MASKED else {}))

    return make


def test_an_epoch_has_every_row_once_and_a_run_resumes_anywhere(write_sentences, make):
    write_sentences({"train": corpus(0, 200)})
    run = make()
    opened = open_reader(run)
    layout = opened.rows("train", "a", 24)
    order = layouts.Order(layout, 64, 3, "a")
    for epoch in range(2):
        items = [order.item(epoch * order.num_items + i) for i in range(order.num_items)]
        assert sorted(items) == list(range(layout.num_rows))
    example = opened.example(1234)
    np.testing.assert_equal(open_reader(run).example(1234), example)
    assert example["token_types"].max() <= 1 and "pair_label" not in example


def test_bad_configs_are_rejected(make):
    adds_tokens = "objective 'causal' adds its own special tokens, but rows of two segments"
    assert_rejected(adds_tokens, make(token_types=0, objective=objectives.Causal(), eos=9))
    assert_rejected("config.data.length is 4: two segments need at least 5", make(length=4))
    assert_rejected("need special ids: set config.vocabulary.cls and config.vocabulary.sep", make(cls=None))
    assert_rejected("set config.model.embedding.token_types", make(token_types=0))
