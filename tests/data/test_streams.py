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
from plm_jax.data import cache, layouts, reader
from plm_jax.data.layouts import streams
from plm_jax.data.vocabularies import words
from tests.support import caches

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
    fields = {
        "model": models.ElmoConfig(
            embedding=models.CharacterCNNConfig(
                vocab_size=SIZE, width=2, dim=2, filters=((1, 4),), max_characters=SPELT, highway_layers=1
            ),
            lstm=models.LstmConfig(cell=4),
        ),
        "objective": objectives.BidirectionalLM(),
        "data": config.DataConfig(str(folder), length, {"a": config.TextFiles("a")}, layout=config.Streams()),
        "vocabulary": config.VocabularyConfig("words:words.txt", bos=BOS, eos=EOS, unk=UNK),
        "optimizer": config.AdagradConfig(),
        "schedule": config.ConstantSchedule(0.1),
        "train": config.TrainConfig(steps=500, batch_size=batch_size, phases=phases),
    }
    return config.from_dict(config.to_dict(config.Run(**fields | changed)))


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
    """What examples hold, one after another where they have weight: characters and targets, [2, places, …]."""
    characters = np.concatenate([row["characters"][:, row["target_weights"][0] > 0] for row in rows], axis=1)
    return characters, np.concatenate([row["targets"][:, row["target_weights"][0] > 0] for row in rows], axis=1)


def assert_reads(rows, places):
    characters, targets = read(rows)
    np.testing.assert_array_equal(targets, places[..., 1])
    np.testing.assert_array_equal(characters, spelling(places[..., 0]))


def train_documents(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 90, rng.integers(1, 31)).tolist() for _ in range(60)]


def test_the_walk_is_bilm_tfs():
    assert walk([[5, 6], [7]]).tolist() == [
        [[BOS, 5], [5, 6], [6, EOS], [BOS, 7], [7, EOS]],
        [[EOS, 6], [6, 5], [5, BOS], [EOS, 7], [7, BOS]],
    ]


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=20),
    length=st.integers(1, 9),
)
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


@pytest.mark.parametrize(("length", "batch_size"), [(4, 3), (5, 1), (20, 7), (2, 2)])
def test_each_row_goes_on_from_batch_to_batch_through_the_whole_corpus(folder, length, batch_size):
    opened = reader.Reader(config.reader_config(make_run(folder, length, batch_size)))
    places = walk(train_documents())
    whole = places.shape[1] // length
    share = whole // batch_size
    for row in range(batch_size):
        rows = [opened.example(step * batch_size + row) for step in range(2 * whole)]
        start = row * share * length
        read_on = np.concatenate([places[:, : whole * length]] * 3, axis=1)[:, start : start + 2 * whole * length]
        assert_reads(rows, read_on)
    # In the first batches of a share each place comes once.
    first = [opened.example(step * batch_size + row) for row in range(batch_size) for step in range(share)]
    assert_reads(first, places[:, : share * batch_size * length])


def test_another_batch_size_goes_on_as_many_words_into_the_text(folder):
    phases = (config.PhaseConfig(until=0.02), config.PhaseConfig(until=1.0, batch_size=5))
    run = make_run(folder, phases=phases)
    opened, alone = (
        reader.Reader(config.reader_config(run)),
        reader.Reader(config.reader_config(make_run(folder, batch_size=5))),
    )
    second = config.resolve_phases(run)[1]
    assert (second.first_step, second.first_example) == (10, 30)
    for k in range(40):  # 30 rows were read, 6 of each of 5.
        np.testing.assert_equal(opened.example(30 + k), alone.example(30 + k))


def test_a_phase_of_the_same_batch_size_goes_on_where_it_was(folder):
    phases = (config.PhaseConfig(until=0.02), config.PhaseConfig(until=1.0, dropout=0.5))
    opened, alone = (
        reader.Reader(config.reader_config(make_run(folder, phases=phases))),
        reader.Reader(config.reader_config(make_run(folder))),
    )
    for k in range(60):
        np.testing.assert_equal(opened.example(k), alone.example(k))


def test_batches_start_anywhere(folder):
    opened = reader.Reader(config.reader_config(make_run(folder)))
    whole = list(itertools.islice(opened.batches(0), 30))
    for first in (1, 29):
        np.testing.assert_equal(next(opened.batches(first)), whole[first])
    assert set(whole[0]) == {"characters", "targets", "target_weights", "digest"}
    assert whole[0]["target_weights"].all()


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_validation_is_every_place_once_in_rows_that_go_on(folder, batch_size):
    opened = reader.Reader(config.reader_config(make_run(folder)))
    batches = list(opened.in_order("validation", batch_size))
    assert len(batches) == opened.num_batches("validation", batch_size)
    rows = [{key: value[row] for key, value in batch.items()} for row in range(batch_size) for batch in batches]
    rng = np.random.default_rng(7)
    documents = [rng.integers(0, 90, rng.integers(1, 31)).tolist() for _ in range(9)]
    assert_reads(rows, walk(documents))


def test_the_blank_batch_is_like_the_others(folder):
    run = make_run(folder)
    blank, batch = (
        reader.blank_batch(config.reader_config(run), 4),
        reader.Reader(config.reader_config(run)).batch(0, range(1)),
    )
    assert {k: (v.shape, v.dtype) for k, v in blank.items()} == {k: (v.shape, v.dtype) for k, v in batch.items()}


def test_what_streams_cannot_read_is_refused(folder):
    two = {name: config.TextFiles(name) for name in "ab"}
    data = make_run(folder).data
    for changed, says in (
        ({"data": config.DataConfig(str(folder), 4, data.sources)}, "use streams with bidirectional_lm"),
        ({"data": config.DataConfig(str(folder), 4, two, layout=config.Streams())}, "one source"),
        ({"vocabulary": config.VocabularyConfig("words:words.txt", eos=EOS)}, "config.vocabulary.bos"),
        ({"objective": objectives.BidirectionalLM(SIZE)}, "the model has 100 words: must be smaller"),
        ({"objective": objectives.Causal()}, "trains a model of kind 'decoder'"),
        (
            {
                "objective": objectives.BidirectionalLM(9),
                "train": config.TrainConfig(steps=1, batch_size=1, label_smoothing=0.1),
            },
            "supports neither z_loss nor label_smoothing",
        ),
    ):
        with pytest.raises(UserError, match=says):
            make_run(folder, **changed)
    mixed = config.DataConfig(str(folder), 4, two, {"b": 1.0}, layout=config.Streams())
    assert reader.Reader(config.reader_config(make_run(folder, data=mixed))).sources.keys() == {"b"}
    with pytest.raises(UserError, match="a batch of streams needs"):
        reader.Reader(config.reader_config(make_run(folder, length=20, batch_size=99)))
    (folder / "vocabulary" / "words.txt").write_text("changed")
    with pytest.raises(UserError, match="is not the vocabulary of the cache"):
        reader.Reader(config.reader_config(make_run(folder))).example(0)
    with pytest.raises(UserError, match="streams read whole words"):
        words.spelling(str(folder), {"kind": "bytes"}, 5)
    with pytest.raises(UserError, match=r"set config\.data\.layout to streams"):
        objectives.get("bidirectional_lm")({"tokens": np.zeros(3, np.int32)}, np.random.default_rng(0))


@dataclasses.dataclass(frozen=True)
class SaysSo(config.Streams):
    """Rows that are declared to follow each other, in the default order of layouts."""

    kind: ClassVar[str] = "tests_says_so"

    def order(self, rows, window_tokens, batch_size, seed, name):
        return layouts.Order(rows, window_tokens, seed, name)


def test_a_layout_that_shuffles_rows_that_it_says_follow_each_other_is_refused(folder):
    run = make_run(folder)
    reader.Reader(config.reader_config(run))
    with pytest.raises(UserError, match="'tests_says_so' sets `continues_rows`, but the order of its rows is shuffled"):
        reader.Reader(
            config.reader_config(dataclasses.replace(run, data=dataclasses.replace(run.data, layout=SaysSo())))
        )
