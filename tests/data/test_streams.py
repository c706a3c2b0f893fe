"""Streams against a walk through the documents, one word after another, as bilm-tf reads them."""

import dataclasses
import itertools
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_jax import config, models, objectives
from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.data import cache, layouts
from plm_jax.data.layouts import streams
from plm_jax.data.vocabularies import words
from tests.support import caches
from tests.support.data import assert_like_blank, assert_rejected, changed, open_reader

BOS, EOS, UNK, SIZE, SPELT = 97, 98, 96, 100, 5


@pytest.fixture
def folder(write_source, random_documents, tmp_path):
    """A cache of two sources with the vocabulary beside it."""
    (tmp_path / "vocabulary").mkdir()
    file = tmp_path / "vocabulary" / "words.txt"
    file.write_text("".join(f"w{i}\n" for i in range(UNK)) + "<UNK>\n<S>\n</S>\nx\n")
    specials = {"bos": BOS, "eos": EOS, "unk": UNK, "kind": "words", "files": {"words.txt": storage.sha256(str(file))}}
    for seed, name in enumerate("ab"):
        texts = {"train": random_documents(seed, 60), "validation": random_documents(seed + 7, 9)}
        write_source(name, texts, **specials)
    return tmp_path


def make_run(folder, length=4, batch_size=3, phases=(), **changed):
    embedding = models.CharacterCNNConfig(
        vocab_size=SIZE, width=2, dim=2, filters=((1, 4),), max_characters=SPELT, highway_layers=1
    )
    fields = {
        "model": models.ElmoConfig(embedding=embedding, lstm=models.LstmConfig(cell=4)),
        "objective": objectives.BidirectionalLM(),
        "data": config.DataConfig(str(folder), length, {"a": config.TextFiles("a")}, layout=config.Streams()),
        "vocabulary": config.VocabularyConfig("words:words.txt", bos=BOS, eos=EOS, unk=UNK),
        "optimizer": config.AdagradConfig(),
        "schedule": config.ConstantSchedule(0.1),
        "train": config.TrainConfig(steps=500, batch_size=batch_size, phases=phases),
    }
    return config.Run(**fields | changed)


@pytest.mark.parametrize(("length", "batch_size"), [(4, 3), (5, 1), (2, 2)])
def test_each_row_continues_from_batch_to_batch_through_the_whole_corpus(folder, length, batch_size):
    opened = open_reader(make_run(folder, length, batch_size))
    positions = walk(train_documents())
    whole = positions.shape[1] // length
    share = whole // batch_size
    for row in range(batch_size):
        rows = [opened.example(step * batch_size + row) for step in range(2 * whole)]
        start = row * share * length
        expected = np.concatenate([positions[:, : whole * length]] * 3, axis=1)[:, start : start + 2 * whole * length]
        assert_reads(rows, expected)
    # In the first batches of a share each place comes once.
    first = [opened.example(step * batch_size + row) for row in range(batch_size) for step in range(share)]
    assert_reads(first, positions[:, : share * batch_size * length])


def walk(documents):
    """(input, target) of every place, forward and backward."""
    forward, backward = [], []
    for document in documents:
        framed = [BOS, *document, EOS]
        forward += itertools.pairwise(framed)
        backward += itertools.pairwise(framed[::-1])
    return np.array([forward, backward])


def spelling(ids):
    """The characters of words [..., SPELT]."""
    names = [f"w{i}" for i in range(UNK)] + ["<UNK>", "<S>", "</S>", "x"]
    return words.characters([names[i] for i in np.ravel(ids)], SPELT).reshape(*np.shape(ids), SPELT)


def read(rows):
    """Returns the characters and targets of the weighted positions of examples, [2, positions, …]."""
    characters = np.concatenate([row["characters"][:, row["target_weights"][0] > 0] for row in rows], axis=1)
    return characters, np.concatenate([row["targets"][:, row["target_weights"][0] > 0] for row in rows], axis=1)


def assert_reads(rows, positions):
    characters, targets = read(rows)
    np.testing.assert_array_equal(targets, positions[..., 1])
    np.testing.assert_array_equal(characters, spelling(positions[..., 0]))


def train_documents(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 90, rng.integers(1, 31)).tolist() for _ in range(60)]


@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=20), length=st.integers(1, 9))
@settings(max_examples=40)
def test_rows_in_order_are_the_corpus(sizes, length, tmp_path_factory):
    documents = [(np.arange(size) * 7 + number).tolist() for number, size in enumerate(sizes)]
    folder = tmp_path_factory.mktemp("split")
    caches.write(folder, "a", {"train": [(document, [0]) for document in documents]}, SIZE, {})
    split = cache.open_source(str(folder), "a").splits["train"]
    layout = streams.StreamRows(layouts.Stream(split, EOS, None), length, BOS, spelling(np.arange(SIZE)))
    bound = objectives.get("bidirectional_lm")
    rng = np.random.default_rng(0)
    rows = [bound(layout.example(item, rng), rng) for item in range(layout.num_rows)]
    assert_reads(rows, walk(documents))
    assert {(row["characters"].shape, row["targets"].shape) for row in rows} == {((2, length, SPELT), (2, length))}


@pytest.mark.parametrize("second", [{"batch_size": 5}, {"dropout": 0.5}])
def test_a_phase_continues_at_the_same_position_in_the_text(folder, second):
    phases = (config.PhaseConfig(until=0.02), config.PhaseConfig(until=1.0, **second))
    run = make_run(folder, phases=phases)
    opened = open_reader(run)
    alone = open_reader(make_run(folder, batch_size=second.get("batch_size", 3)))
    assert config.resolve_phases(run)[1].first_example == 30
    for k in range(40):  # 30 rows were read, of batches of 5 six rows each.
        np.testing.assert_equal(opened.example(30 + k), alone.example(30 + k))


def test_batches_start_anywhere_and_are_like_the_blank_batch(folder):
    run = make_run(folder)
    opened = open_reader(run)
    whole = list(itertools.islice(opened.batches(0), 30))
    for first in (1, 29):
        np.testing.assert_equal(next(opened.batches(first)), whole[first])
    assert set(whole[0]) == {"characters", "targets", "target_weights", "digest"}
    assert whole[0]["target_weights"].all()
    assert_like_blank(run, whole[0])


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_validation_is_every_place_once_in_rows_that_continue(folder, batch_size):
    opened = open_reader(make_run(folder))
    batches = list(opened.in_order("validation", batch_size))
    assert len(batches) == opened.num_batches("validation", batch_size)
    rows = [{key: value[row] for key, value in batch.items()} for row in range(batch_size) for batch in batches]
    rng = np.random.default_rng(7)
    documents = [rng.integers(0, 90, rng.integers(1, 31)).tolist() for _ in range(9)]
    assert_reads(rows, walk(documents))


def test_bad_configs_and_caches_are_rejected(folder):
    run = make_run(folder)
    two = {name: config.TextFiles(name) for name in "ab"}
    for message, sections in (
        ("use streams with bidirectional_lm", {"data": {"layout": config.Blocks()}}),
        ("one source", {"data": {"sources": two}}),
        ("config.vocabulary.bos", {"vocabulary": {"bos": None, "unk": None}}),
        ("must be less than the 100 words of the model", {"objective": objectives.BidirectionalLM(SIZE)}),
        ("trains models of kind 'decoder'", {"objective": objectives.Causal()}),
        (
            "supports neither z_loss nor label_smoothing",
            {"objective": objectives.BidirectionalLM(9), "train": {"label_smoothing": 0.1}},
        ),
    ):
        assert_rejected(message, run, **sections)
    assert open_reader(changed(run, data={"sources": two, "mixture": {"b": 1.0}})).sources.keys() == {"b"}
    with pytest.raises(UserError, match="a batch of streams needs"):
        open_reader(make_run(folder, length=20, batch_size=99))
    with pytest.raises(UserError, match="'tests_shuffled' sets `continues_rows`, but the order of its rows"):
        open_reader(changed(run, data={"layout": Shuffled()}))
    (folder / "vocabulary" / "words.txt").write_text("changed")
    with pytest.raises(UserError, match="is not the vocabulary of the cache"):
        open_reader(run).example(0)
    with pytest.raises(UserError, match="streams read whole words"):
        words.spelling(str(folder), {"kind": "bytes"}, 5)
    with pytest.raises(UserError, match=r"set config\.data\.layout to streams"):
        objectives.get("bidirectional_lm")({"tokens": np.zeros(3, np.int32)}, np.random.default_rng(0))


@dataclasses.dataclass(frozen=True)
class Shuffled(config.Streams):
    """Rows that are declared to follow each other, in the default order of layouts."""

    kind: ClassVar[str] = "tests_shuffled"

    def order(self, rows, window_tokens, batch_size, seed, name):
        return layouts.Order(rows, window_tokens, seed, name)
