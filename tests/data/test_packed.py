"""Packed rows against next fit written again, and against their inner rows made one by one."""

import dataclasses
import gzip
import itertools
import json
import pathlib
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import plm_jax
from plm_jax import config, models, objectives
from plm_jax.data import layouts
from plm_jax.data.layouts import noising, packed
from plm_jax.objectives import packing
from tests.support.data import assert_like_blank, assert_rejected, changed, open_reader, unstack

IDS = {"pad": 0, "cls": 1, "sep": 2, "mask": 3}
SPECIAL = objectives.Special(**IDS, vocab_size=60_000)
MASKED = objectives.MaskedLM()

INNER = {
    "documents": config.Documents(),
    "next_sentence": config.SentencePairs(duplicates=3),
    "sentence_order": config.SentencePairs(duplicates=2, task="sentence_order", parts="sentences"),
    "segments": config.Segments(),
    "one_document": config.FullSentences(cross_documents=False),
}
LENGTH = 40
NONE = models.NoHead()
WORD_INITIAL = np.arange(60_000) % 3 == 0


def corpus(seed, num_documents):
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 9, rng.integers(1, 8)).tolist() for _ in range(num_documents)]


def opened(source, layout, objective="masked_lm", seed=0, **settings):
    bound = objectives.get(objective, SPECIAL, **settings)
    return layout.open(layouts.RowRequest.of(source, "train", LENGTH, bound, seed)), bound


@pytest.fixture
def packed_run(make_run, write_sentences):
    """`packed_run(inner, **sections)` returns a masked-LM run over packed rows of two sources."""

    def make(inner, **sections):
        for seed, name in enumerate("ab"):
            write_sentences({"train": corpus(seed, 60), "validation": corpus(9, 12)}, name)
        data = {"layout": config.Packed(inner=inner), "length": LENGTH, "mixture": {"a": 2.0, "b": 1.0}}
        run = make_run("ab", 60_000, None, data, objective=MASKED, **IDS)
        embedding = dataclasses.replace(run.model.embedding, token_types=2)
        model = {"embedding": embedding, "pooler": models.Pooler() if inner.labels_pairs else NONE}
        return changed(run, **{"model": model} | sections)

    return make


def greedy(sizes, targets, length, num_targets, num_rows):
    """Numbers of the first inner rows: each inner row joins the row before it if it fits."""
    firsts, tokens, slots, rows = [], np.inf, 0, 0
    for number, (size, count) in enumerate(zip(sizes, targets, strict=True)):
        if tokens + size > length or slots + count > num_targets or rows == num_rows:
            firsts.append(number)
            tokens, slots, rows = 0, 0, 0
        tokens, slots, rows = tokens + size, slots + count, rows + 1
    return firsts


@given(
    st.lists(st.integers(3, 20), min_size=1, max_size=60), st.integers(20, 50), st.integers(6, 20), st.integers(1, 9)
)
def test_rows_are_packed_by_next_fit(sizes, length, num_targets, num_rows):
    targets = np.arange(21) * 3 // 10
    format_ = objectives.PackedFormat(length, num_targets, num_rows)
    expected = greedy(sizes, targets[sizes], length, num_targets, num_rows)
    assert packed.pack(np.array(sizes), format_, targets).tolist() == expected


@pytest.mark.parametrize("name", INNER)
@pytest.mark.parametrize("objective", ["masked_lm", "span_masked_lm"])
def test_each_pass_has_every_inner_row_once_and_uncut(write_sentences, monkeypatch, name, objective):
    """Blocks of a few inner rows do not show; a row ends only before an inner row that does not fit."""
    monkeypatch.setattr(packed, "BLOCK_ROWS", 13)
    source = write_sentences({"train": corpus(0, 80)})
    layout = config.Packed(inner=INNER[name])
    rows, bound = opened(source, layout, objective)
    inner, _ = opened(source, INNER[name], objective)
    sizes = rows._inner.max_sizes(0, rows._inner.passes[-1])
    counts = np.array([bound.settings.max_targets(size) for size in np.minimum(sizes, LENGTH)])
    assert len(rows.passes) == len(inner.passes) == getattr(INNER[name], "duplicates", 1) + 1
    for number, (first, end) in enumerate(itertools.pairwise(rows.passes)):
        begin, stop = inner.passes[number : number + 2]
        numbers = [list(rows.numbers(item)) for item in range(first, end)]
        assert list(itertools.chain(*numbers)) == list(range(begin, stop))
        limits = LENGTH, rows.packing.num_targets, rows.packing.num_rows
        bounds = np.minimum(sizes[begin:stop], LENGTH), counts[begin:stop]
        assert [part[0] - begin for part in numbers] == greedy(*bounds, *limits)
    assert max(len(rows.numbers(item)) for item in range(rows.passes[-1])) > 1
    for item in range(len(sizes)):
        draws = [rows._inner.example(item, np.random.default_rng(seed))["mask"].sum() for seed in range(3)]
        assert max(draws) <= sizes[item], "a bound must hold for every draw"
        if INNER[name].labels_pairs or name == "documents":
            assert set(draws) == {min(sizes[item], LENGTH)}


def joined(inner_rows, length):
    """Joins rows one token and one target at a time."""
    lists = {}
    for number, row in enumerate(inner_rows, start=1):
        begin = len(lists.get("tokens", ()))
        for position in range(length):
            if row["mask"][position]:
                of_token = {key: row[key][position] for key in ("tokens", "mask", "token_types") if key in row}
                for key, value in (of_token | {"segment_ids": number, "positions": position}).items():
                    lists.setdefault(key, []).append(value)
        for slot, weight in enumerate(row["target_weights"]):
            if weight:
                for key in row.keys() & {"targets", "target_weights", "target_offsets"}:
                    lists.setdefault(key, []).append(row[key][slot])
                for key in row.keys() & {"target_positions", "target_left", "target_right"}:
                    lists.setdefault(key, []).append(begin + row[key][slot])
        if "pair_label" in row:
            for key, value in {"pair_label": row["pair_label"], "pair_positions": begin, "pair_weights": 1}.items():
                lists.setdefault(key, []).append(value)
    return lists


@pytest.mark.parametrize("name", INNER)
@pytest.mark.parametrize(
    ("objective", "settings"),
    [
        ("masked_lm", {}),
        ("masked_lm", {"windows": True, "whole_words": 2}),
        ("span_masked_lm", {}),
        ("replaced_token", {}),
    ],
)
def test_a_packed_row_is_its_inner_rows(write_sentences, name, objective, settings):
    """Inner rows are made alone in rows of the same length; unused entries are 0 (the id of padding here)."""
    source, layout = write_sentences({"train": corpus(0, 80)}), config.Packed(inner=INNER[name])
    rows, bound = opened(source, layout, objective, **settings)
    for item in range(0, rows.passes[-1], 7):
        row = noising.make(bound, rows, item, layouts.generator(1, "test", item), WORD_INITIAL)
        seeds = layouts.generator(1, "test", item).integers(2**63, size=len(rows.numbers(item))).tolist()
        inner_rows = []
        for number, seed in zip(rows.numbers(item), seeds, strict=True):
            rng = layouts.generator(seed, "inner rows")
            inner_rows.append(noising.make(bound, rows._inner, number, rng, WORD_INITIAL))
        expected = joined(inner_rows, LENGTH)
        assert row.keys() == expected.keys()
        for key, values in expected.items():
            np.testing.assert_array_equal(row[key], values + [0] * (len(row[key]) - len(values)), err_msg=key)
        for part, inner in zip(packing.split(row), inner_rows, strict=True):
            num = int(inner["mask"].sum())
            np.testing.assert_array_equal(part["tokens"], inner["tokens"][:num])
            used = inner["target_weights"] > 0
            np.testing.assert_array_equal(part["target_positions"], inner["target_positions"][used])


def test_packing_does_not_change_the_index_of_pairs(write_sentences):
    """First parts and labels are those of unpacked rows; partners are other documents' sentences."""
    documents = corpus(3, 100)
    source = write_sentences({"train": documents})
    rows, _ = opened(source, config.Packed(inner=INNER["next_sentence"]))
    unpacked, _ = opened(source, INNER["next_sentence"])
    inner, ends = rows._inner, np.cumsum([sum(sizes) for sizes in documents])
    np.testing.assert_array_equal(inner._starts, unpacked._starts)
    np.testing.assert_array_equal(inner._lengths_a, unpacked._lengths_a)
    random = unpacked._lengths_b < 0
    np.testing.assert_array_equal(inner._lengths_b < 0, random)
    np.testing.assert_array_equal(inner._lengths_b[~random], unpacked._lengths_b[~random])
    partners = ends.searchsorted(inner._starts_b[random], side="right")
    assert (partners != ends.searchsorted(inner._starts[random], side="right")).mean() > 0.99
    begins = np.concatenate([[0], np.cumsum(list(itertools.chain(*documents)))])
    stops = inner._starts_b[random] - inner._lengths_b[random]
    assert np.isin(inner._starts_b[random], begins).all() and np.isin(stops, begins).all()
    enough = -inner._lengths_b[random] >= -unpacked._lengths_b[random]
    assert (enough | np.isin(stops, ends)).all()


@pytest.mark.parametrize("name", INNER)
def test_an_epoch_reads_every_inner_row_once(packed_run, name):
    opened_reader = open_reader(packed_run(INNER[name]))
    rows = opened_reader.rows("train", "a", LENGTH)
    order = layouts.Order(rows, 64, 3, "a")
    for epoch, (first, end) in enumerate(itertools.pairwise(rows.passes)):
        items = [order.item(k) for k in range(first, end)]
        begin, stop = rows._inner.passes[epoch : epoch + 2]
        assert sorted(number for item in items for number in rows.numbers(item)) == list(range(begin, stop))
        assert items != sorted(items)


@pytest.mark.parametrize("static", [0, 2])
def test_any_host_reads_any_example_alike(packed_run, static):
    run = packed_run(INNER["next_sentence"], objective=objectives.MaskedLM(duplicates=static))
    first, second = open_reader(run), open_reader(run)
    batch = first.batch(7, range(4))
    assert_like_blank(run, batch)
    for row, (ours, theirs) in enumerate(zip(unstack(batch), unstack(second.batch(7, range(4))), strict=True)):
        np.testing.assert_equal(ours, theirs)
        np.testing.assert_equal(unstack(open_reader(run).batch(7, [row]))[0], ours)
    resumed = next(iter(second.batches(7)))
    np.testing.assert_equal(resumed, batch)
    halves = [next(iter(open_reader(run).batches(7, lambda phase, half=half: half))) for half in ((0, 1), (2, 3))]
    for key, values in batch.items():
        np.testing.assert_array_equal(np.concatenate([half[key] for half in halves]), values)


def test_validation_reads_every_inner_row_once(packed_run):
    reader = open_reader(packed_run(INNER["documents"]))
    rows = reader.rows("validation", "a", LENGTH)
    batches = list(reader.in_order("validation", 5, name="a"))
    assert sum(batch["segment_ids"].max(1).sum() for batch in batches) == rows._inner.num_rows
    assert all((batch["mask"].sum(1) == (batch["segment_ids"] > 0).sum(1)).all() for batch in batches)


def sentiment_texts():
    """Numbers of words and punctuation marks in 2,000 texts of the corpus that comes with the package."""
    path = pathlib.Path(plm_jax.__file__).parent / "data/corpora/movie_sentiment.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [
            [len(re.findall(r"\w+|[^\w\s]", json.loads(line)["sentence"]))] for line in itertools.islice(file, 2000)
        ]


def test_short_texts_fill_packed_rows(write_sentences, make_run):
    write_sentences({"train": sentiment_texts()})
    run = make_run("a", 60_000, None, {"layout": config.Packed(), "length": 512}, objective=MASKED, **IDS)
    reader = open_reader(changed(run, model={"pooler": NONE}))
    share, unpacked = reader.padding(config.resolve_phases(run)[0])
    assert share < 0.05 and 0.94 < unpacked < 0.96
    assert any(f"{share:.1%} of packed rows of 512, {unpacked:.1%} without" in note for note in reader.notes())


def test_pairs_fill_packed_rows(write_sentences, make_run):
    """Real tokens of a step are at least .9 of those of rows without any padding; documents fill many rows."""
    write_sentences({"train": [np.random.default_rng(n).integers(5, 30, 60).tolist() for n in range(50)]})
    data = {"layout": config.Packed(inner=config.SentencePairs()), "length": 128}
    run = make_run("a", 60_000, None, data, objective=MASKED, **IDS)
    share, unpacked = open_reader(run).padding(config.resolve_phases(run)[0])
    assert unpacked > 0.05 > share and 1 - share > 0.9


def test_bad_configs_are_rejected(packed_run, monkeypatch):
    run = packed_run(INNER["documents"])
    blocks = {"layout": config.Packed(inner=config.Blocks())}
    assert_rejected("layout.inner is 'blocks', whose rows for objective 'masked_lm' cannot be packed", run, data=blocks)
    twice = {"layout": config.Packed(inner=config.Packed())}
    assert_rejected("makes rows with `segment_ids`, which cannot be packed", run, data=twice)
    labeled = {"layout": config.Packed(inner=config.LabeledLayout())}
    assert_rejected("does not read config.data.layout 'labeled'", run, data=labeled)
    assert_rejected("config.data.length is 11: documents need at least 12", run, data={"length": 11})
    with monkeypatch.context() as changes:
        changes.setattr(models.EncoderConfig, "inputs", ("tokens", "mask", "token_types", "positions"))
        assert_rejected("need a model that reads `segment_ids`, but model 'encoder' does not", run)
    apply = objectives.MaskedLM.apply
    with monkeypatch.context() as changes:
        changes.setattr(objectives.MaskedLM, "apply", lambda *args: apply(*args) | {"order": np.zeros(LENGTH)})
        assert_rejected("objective 'masked_lm' with .* makes rows with `order`, which cannot be packed", run)
    pairs = packed_run(INNER["next_sentence"])
    assert_rejected("need a model with a pooler of two classes", pairs, model={"pooler": NONE})


@pytest.mark.parametrize("length", [64, 128, 200])
def test_a_packed_row_has_slots_for_the_targets_of_all_inner_rows(length):
    """The most targets of any inner rows that fit into a row, by dynamic programming over their sizes."""
    objective, layout = objectives.MaskedLM(), config.Packed()
    most = [0] * (length + 1)
    for total in range(1, length + 1):
        sizes = range(layout.least_length, total + 1)
        most[total] = max((objective.max_targets(size) + most[total - size] for size in sizes), default=0)
    slots = layout.target_length(objective, length)
    assert most[length] <= slots <= 1.5 * most[length] and most[length] > objective.target_length(length)
