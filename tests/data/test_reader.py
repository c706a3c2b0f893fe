import itertools
import pathlib
import pickle
import struct
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest

from plm_jax import config, objectives
from plm_jax.common.errors import UserError
from plm_jax.data import layouts, reader
from tests.support import caches
from tests.support.data import changed, open_reader, unstack

PHASES = (
    config.PhaseConfig(until=0.2),
    config.PhaseConfig(until=0.4, batch_size=7),
    config.PhaseConfig(until=0.6, batch_size=7, length=20),
    config.PhaseConfig(until=0.8, mixture={"a": 1.0, "b": 0.0}),
    config.PhaseConfig(until=1.0, length=5, mixture={"a": 1.0, "b": 4.0}),
)


@pytest.fixture
def documents(write_source, random_documents):
    """Two sources, `a` of 40 and `b` of 25 documents."""
    documents_by_source = {"a": random_documents(1, 40), "b": random_documents(2, 25)}
    for name, texts in documents_by_source.items():
        write_source(name, {"train": texts, "validation": texts[:7]})
    return documents_by_source


def epoch_order(flat, length, window, seed, name, epoch):
    """All block starts of an epoch, by listing every block and grouping them."""
    starts = [s for s in range(0, len(flat), length) if s + length + 1 <= len(flat)]
    num_windows = -(-len(flat) // window)
    order = []
    for w in layouts.generator(seed, f"windows/{name}", epoch).permutation(num_windows):
        members = [s for s in starts if s // window == w]
        rng = layouts.generator(seed, f"blocks/{name}", epoch, int(w))
        order += [members[i] for i in rng.permutation(len(members))]
    return order


def walk(run, documents):
    """Every example of the run from the first on, one after another, without the reader's arithmetic."""
    flats = {name: [t for d in texts for t in [*d, 99]] for name, texts in documents.items()}
    epochs, position = dict.fromkeys(flats, 0), dict.fromkeys(flats, 0)
    credit, mixture, length_before = [], None, None
    for stage in config.resolve_phases(run):
        rates = stage.mixture or {name: sum(map(len, texts)) for name, texts in documents.items()}
        names = [name for name in flats if rates.get(name, 0) > 0]
        if stage.mixture != mixture:
            credit = [0] * len(names)
            mixture = stage.mixture
        if length_before not in (None, stage.length):
            position = {n: -(-p * length_before // stage.length) for n, p in position.items()}
        length_before = stage.length
        for _ in range((stage.end_step - stage.first_step) * stage.batch_size):
            for level, name in enumerate(names):
                credit[level] += round(rates[name] / sum(rates[n] for n in names[level:]) * 2**32)
                if credit[level] >= 2**32:
                    credit[level] -= 2**32
                    break
            args = (flats[name], stage.length, run.data.window_tokens, run.train.seed, name)
            order = epoch_order(*args, epochs[name])
            if position[name] >= len(order):
                epochs[name], position[name] = epochs[name] + 1, 0
                order = epoch_order(*args, epochs[name])
            start = order[position[name]]
            position[name] += 1
            yield flats[name][start : start + stage.length + 1]


@pytest.mark.parametrize(
    "data, train",
    [
        ({"mixture": {"a": 1.0, "b": 0.0}}, {}),
        ({}, {}),
        ({"mixture": {"a": 0.3, "b": 0.7}}, {}),
        ({"mixture": {"a": 0.3, "b": 0.7}}, {"phases": PHASES}),
        ({}, {"phases": (config.PhaseConfig(until=0.5), config.PhaseConfig(until=1.0, batch_size=2, length=16))}),
    ],
)
def test_example_k_is_that_of_a_walk_from_the_start(documents, make_run, data, train):
    run = make_run("ab", data=data, train=train)
    expected = list(walk(run, documents))
    opened = open_reader(run)
    for k in np.random.default_rng(0).permutation(len(expected)):
        example = opened.example(int(k))
        assert [*example["tokens"].tolist(), example["targets"][-1]] == expected[k]
        assert example["targets"].tolist() == expected[k][1:]
        assert example["target_weights"].sum() == len(expected[k]) - 1


def independent_crc(example):
    data = b""
    for key, value in sorted(example.items()):
        value = value.astype(value.dtype.newbyteorder("<"))
        data += key.encode() + struct.pack(f"<{value.ndim}q", *value.shape) + value.tobytes()
    return zlib.crc32(data)


def test_each_row_has_the_crc_of_its_own_bytes():
    rng = np.random.default_rng(0)
    batch = {
        "tokens": rng.integers(0, 9, (5, 7), np.int32),
        "characters": rng.integers(0, 9, (5, 2, 3, 4), np.int32),
        "target_weights": rng.random((5, 6), np.float32),
        "pair_label": rng.integers(0, 2, 5, np.int32),
        "targets": rng.integers(0, 9, (6, 5), np.int32).T,
        "positions": rng.integers(0, 9, (5, 3)).astype(">i4"),
    }
    rows = [{key: value[i] for key, value in batch.items()} for i in range(5)]
    assert reader.crcs(batch).tolist() == [independent_crc(row) for row in rows]


def test_rows_of_any_hosts_make_the_same_batch_and_digest(documents, make_run):
    opened = open_reader(make_run("ab", train={"phases": PHASES}))
    for step in (0, 9, 10, 25, 49):
        size = next(s.batch_size for s in reversed(opened._phases) if s.first_step <= step)
        whole = opened.batch(step, range(size))
        parts = [opened.batch(step, range(i, size, 3)) for i in range(3)]
        for i, part in enumerate(parts):
            np.testing.assert_equal(part, {key: value[i::3] for key, value in whole.items()})
        examples = unstack({key: value for key, value in whole.items() if key != "digest"})
        expected = f"{sum(map(independent_crc, examples)) % 2**64:016x}"
        assert reader.digest_hex(sum(part["digest"].sum(axis=0, dtype=np.uint32) for part in parts)) == expected


def test_each_example_of_a_mixture_has_its_own_random_draws(documents, make_run):
    opened = open_reader(make_run("ab", train={"phases": PHASES}))
    sources, draws = [], []
    for k in range(100):
        _, source, _, _, rng = opened._draw(k)
        sources.append(source)
        draws.append(rng.random())
    assert set(sources) == {"a", "b"} and len(set(draws)) == 100


def test_batches_start_anywhere_and_end_with_the_run(documents, make_run):
    opened = open_reader(make_run("ab", train={"phases": PHASES}))
    whole = list(opened.batches(0))
    assert len(whole) == 50
    for first in (1, 17, 49, 50):
        np.testing.assert_equal(list(opened.batches(first)), whole[first:])
    halves = opened.batches(20, rows=lambda stage: range(stage.batch_size // 2, stage.batch_size))
    np.testing.assert_equal(next(halves), {k: v[3:] for k, v in whole[20].items()})


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_processes_make_the_same_batches(documents, make_run):
    runs = [make_run("ab", data={"processes": number}, train={"phases": PHASES}) for number in (0, 2)]
    alone, several = (list(open_reader(run).batches(17, lambda stage: range(1, stage.batch_size))) for run in runs)
    assert len(alone) == 33
    np.testing.assert_equal(several, alone)


def test_processes_end_with_a_parent_that_is_killed(documents, make_run, tmp_path):
    (tmp_path / "run").write_bytes(pickle.dumps(make_run("ab", data={"processes": 2})))
    program = """
import multiprocessing, pickle, sys, time
from plm_jax import config
from plm_jax.data.reader import Reader
batches = Reader(config.reader_config(pickle.load(open(sys.argv[1], "rb")))).batches(0)
next(batches), next(batches)
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
time.sleep(600)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        children = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(children) == 2 and all(map(is_running, children))
        parent.kill()
    deadline = time.monotonic() + 60
    while any(map(is_running, children)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("attend", [True, False])
def test_validation_is_every_token_once_in_order(documents, make_run, attend):
    opened = open_reader(make_run("ab", data={"layout": config.Blocks(attend_across_documents=attend)}))
    batches = list(opened.in_order("validation", 3))
    assert len(batches) == opened.num_batches("validation", 3)
    assert {k: v.shape for k, v in batches[-1].items()} == {k: v.shape for k, v in batches[0].items()}
    flats = [[[*d, 99] for d in documents[name][:7]] for name in "ab"]
    targets = [t for b in batches for t in b["targets"][b["target_weights"] > 0]]
    keys = {"tokens", "targets", "target_weights"}
    if attend:
        assert targets == [t for texts in flats for t in list(itertools.chain(*texts))[1:]]
        assert set(batches[0]) == keys
    else:
        assert targets == [t for texts in flats for d in texts for t in d[1:]]
        assert set(batches[0]) == keys | {"segment_ids", "positions"}
    split = [opened.in_order("validation", 3, rows=lambda n, i=i: range(i, n, 3)) for i in range(3)]
    for batch, *parts in zip(batches, *split, strict=True):
        np.testing.assert_equal({key: np.concatenate([p[key] for p in parts]) for key in batch}, batch)


def clean_rows(batch, special):
    """Yields the text of each row without its noise."""
    for row in unstack(batch):
        tokens, is_target = row["tokens"].copy(), row["target_weights"] > 0
        targets = row["targets"][is_target]
        if "decoder_tokens" in row:
            (at,) = np.isin(targets, special.sentinels).nonzero()
            cut = {int(span[0]): span[1:].tolist() for span in np.split(targets[:-1], at)[1:]}
            yield [t for token in tokens[row["mask"] > 0][:-1].tolist() for t in cut.get(token, [token])]
        else:
            tokens[row["target_positions"][is_target]] = targets
            yield tokens[row["mask"] > 0].tolist()


@pytest.mark.parametrize("objective", [objectives.MaskedLM(0.3), objectives.SpanCorruption(0.4)], ids=lambda o: o.kind)
def test_noise_leaves_every_token_once(write_source, random_documents, make_run, objective):
    """Reads validation in order, and each epoch of training in blocks that do not overlap."""
    ids = {"pad": 91, "eos": 92, "mask": 93, "sentinels": 4}
    texts = {"train": random_documents(1, 60), "validation": random_documents(2, 9)}
    write_source("a", texts, **ids)
    opened = open_reader(make_run("a", objective=objective, data={"length": 16}, **ids))
    eos = [92] if objective.kind == "masked_lm" else []
    train, validation = ([t for d in texts[split] for t in [*d, *eos]] for split in ("train", "validation"))
    special, n = opened.objective.special, opened.objective.input_length(16)
    batches = list(opened.in_order("validation", 3))
    assert [token for batch in batches for row in clean_rows(batch, special) for token in row] == validation
    assert {batch["tokens"].shape for batch in batches} == {(3, 16)}
    whole = [train[i : i + n] for i in range(0, len(train) - n + 1, n)]
    steps = 2 * len(whole)
    rows = [row for k in range(steps) for row in clean_rows(reader._stack([opened.example(k)]), special)]
    assert sorted(rows[: len(whole)]) == sorted(rows[len(whole) :]) == sorted(whole)
    assert any((opened.example(k)["tokens"] != opened.example(k + len(whole))["tokens"]).any() for k in range(3))


def test_blanks_leave_every_token_once(write_source, random_documents, make_run):
    """Reads validation in order, each row after cls; each document is one sentence, and each blank a sentence."""
    ids = {"pad": 91, "eos": 92, "cls": 94, "mask": 93, "smask": 93, "sop": 95, "eop": 96}
    texts = {"train": random_documents(1, 60), "validation": random_documents(2, 9)}
    write_source("a", texts, **ids)
    objective = objectives.BlankInfilling(sentence_rate=1.0)
    flat, read = [t for d in texts["validation"] for t in [*d, 92]], []
    opened = open_reader(make_run("a", objective=objective, data={"length": 32}, **ids))
    for row in itertools.chain(*map(unstack, opened.in_order("validation", 2))):
        assert row["tokens"].shape == (32,) and row["prefix_lengths"].shape == ()
        text = [[token] for token in row["tokens"][: row["prefix_lengths"]].tolist()]
        cut = {}
        for at in row["target_positions"][row["target_weights"] > 0].tolist():
            if row["block_positions"][at] > 1:
                cut.setdefault(int(row["positions"][at]), []).append(int(row["tokens"][at]))
        for position, blank in cut.items():
            assert text[position] == [93]
            text[position] = blank
        assert not any(92 in blank for blank in cut.values())
        read += [token for part in text[1:] for token in part]
    assert read == flat


def test_a_missing_split_gives_no_batch_and_sources_of_rate_zero_are_not_opened(
    write_source, random_documents, make_run
):
    write_source("a", {"train": random_documents(0, 9)})
    opened = open_reader(make_run("ab", data={"mixture": {"a": 1.0}}))
    assert list(opened.sources) == ["a"]
    assert (opened.num_batches("validation", 4), list(opened.in_order("validation", 4))) == (0, [])


def test_caches_that_do_not_match_are_rejected(write_source, random_documents, make_run):
    texts = {"train": random_documents(0, 9)}
    write_source("a", texts)
    write_source("b", texts, vocabulary_id="other")
    write_source("small", {"train": [[1, 2]]})
    for run, message in (
        (make_run("ab"), "'a' and 'b' differ in vocabulary"),
        (make_run("a", eos=None), r"vocabulary.eos is None, but that of the cache is 99"),
        (make_run("a", vocab_size=64), "vocab_size is 64: set it to at least the vocabulary's size, 100"),
        (make_run(["small"]), "has 3 training tokens, but a row needs 9"),
        (make_run("c"), "there is no cache .*run `python -m plm_jax prepare --config"),
        (
            changed(make_run("a"), vocabulary={"spec": "sentencepiece:x"}),
            r"spec is sentencepiece, but that of the cache is bytes",
        ),
    ):
        with pytest.raises(UserError, match=message):
            open_reader(run)


@pytest.mark.parametrize("processes", [0, 1])
def test_a_corrupt_record_stops_the_iterator_with_its_line(
    processes, write_source, random_documents, make_run, tmp_path
):
    write_source("a", {"train": random_documents(0, 30)})
    caches.flip(tmp_path / "a/train/tokens-00000.array_record", 100)
    with pytest.raises(UserError, match=r"tokens-00000\.array_record is damaged"):
        next(open_reader(make_run("a", data={"processes": processes})).batches(0))
