"""XLNet's rows and their targets against rows written token by token, from the same random numbers."""

import dataclasses
import itertools

import numpy as np
import pytest

from plm_jax import config, objectives
from plm_jax.common.errors import UserError
from plm_jax.data import layouts, reader
from plm_jax.data.layouts import pair_streams
from tests.support import caches, xlnet_rows
from tests.support.data import assert_like_blank, changed, unstack

SIZE, SEP, CLS, EOD, SEED = 400, 4, 3, 7, 3
IDS = {"pad": 5, "cls": CLS, "sep": SEP}
MASKED = IDS | {"mask": 6}
WORD_INITIAL = np.random.default_rng(0).random(SIZE) < 0.75
WORD_INITIAL[EOD] = True


def documents(seed, number, longest=60):
    """Returns documents of up to 12 sentences, each of up to `longest` tokens."""
    rng, texts = np.random.default_rng(seed), []
    for _ in range(number):
        sizes = rng.integers(1, longest, rng.integers(1, 13))
        texts.append((rng.integers(9, SIZE, sizes.sum()), np.cumsum([0, *sizes[:-1]])))
    return texts


@pytest.fixture
def open_rows(tmp_path, make_run):
    """`open_rows(documents, length=, batch_size=, …)` returns the run and its reader over documents."""

    def open_rows(texts, length, batch_size, bi_data=False, eos=EOD, train=(), validation=(), **fields):
        splits = {"train": texts, **({"validation": validation} if validation else {})}
        vocabulary = {"bos": None, "unk": None, "mask": None, "eos": eos, **IDS}
        caches.write(tmp_path, "a", splits, SIZE, vocabulary, WORD_INITIAL)
        run = make_run(
            "a", SIZE, eos, objective=objectives.PermutationLM(**fields), **IDS,
            data={"length": length, "layout": config.PairStreams(bi_data=bi_data)},
            train={"batch_size": batch_size, "seed": SEED, "steps": 500, **dict(train)},
        )  # fmt: skip
        return run, reader.Reader(config.reader_config(run))

    return open_rows


def expected_row(text, start, length, goals, rng, is_backward=False, part=0):
    """Returns a row of a text (tokens, sentence ids), its targets and its hidden pairs.

    Args:
      goals: numbers of targets of both halves.
      part: number of tokens with a random order; 0 for half a row.
    """
    (tokens, ids), middle = text, start + length // 2
    pair = xlnet_rows.split_pair(ids, middle, length - length // 2 - 3, *rng.random(3))
    (a, b), reused = (tokens[slice(*span)] for span in pair), tokens[start:middle]
    row, types = [*reused, *a, SEP, *b, SEP, CLS], [0] * (len(reused) + len(a) + 1) + [1] * (len(b) + 1) + [2]
    chosen, special = [], [token in (SEP, CLS) for token in row]
    for half, goal in zip((row[: length // 2], row[length // 2 :]), goals, strict=True):
        draws, order = rng.random((goal, 2)), rng.permutation(len(half))
        starts = [bool(WORD_INITIAL[token]) or token in (SEP, CLS) for token in half]
        flags, _ = xlnet_rows.choose_tokens(starts[::-1] if is_backward else starts, goal, draws, order)
        chosen += flags[::-1] if is_backward else flags
    hidden = []
    for bounds in (slice(0, length // 2), slice(length // 2, length)):
        permutation = rng.permutation(part or len(row[bounds]))
        hidden.append(xlnet_rows.hidden_pairs(chosen[bounds], special[bounds], permutation))
    targets = [place for place in range(length) if chosen[place] and not special[place]]
    return row, types, targets, xlnet_rows.hidden_in_row(*hidden)


def assert_same(row, expected):
    tokens, types, targets, hidden = expected
    np.testing.assert_array_equal(row["tokens"], tokens)
    np.testing.assert_array_equal(row["token_types"], types)
    assert row["mask"].all()
    num = len(targets)
    np.testing.assert_array_equal(row["target_weights"], np.arange(len(row["target_weights"])) < num)
    np.testing.assert_array_equal(row["target_positions"][:num], targets)
    np.testing.assert_array_equal(row["targets"][:num], np.array(tokens)[targets])
    # The content stream also sees itself (modeling.py: `non_tgt_mask`); the query stream exists at targets alone.
    keys = row["order"]
    np.testing.assert_array_equal((keys + 1)[:, None] <= keys, hidden & ~np.eye(len(keys), dtype=bool))
    np.testing.assert_array_equal(keys[targets][:, None] <= keys, hidden[targets])


CASES = {
    "published": (512, 4, 12, {}, True, EOD),
    "one_direction": (64, 3, 80, {}, False, EOD),
    "no_separator": (64, 2, 120, {"num_predict": 21}, True, None),
    "odd": (41, 4, 100, {"perm_size": 7}, True, EOD),
    "small": (20, 3, 150, {"num_predict": 7}, False, EOD),
    "shortest": (9, 1, 300, {"num_predict": 3}, False, EOD),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_equal_the_source(open_rows, case):
    length, batch_size, steps, fields, bi_data, eos = CASES[case]
    texts = documents(1, 30)
    _, opened = open_rows(texts, length, batch_size, bi_data, eos, **fields)
    tokens, ids = xlnet_rows.flatten(texts, eos)
    directions = [(tokens, ids), (tokens[::-1], ids[::-1])]
    reuse, num = length // 2, fields.get("num_predict", length // 6)
    starts = list(itertools.takewhile(lambda start: start + length <= len(tokens), itertools.count(0, reuse)))
    per_direction = batch_size // (1 + bi_data)
    share = len(starts) // per_direction
    assert num == 85 or length < 512
    for step in range(steps):
        for row, k in enumerate(opened.numbers(step)):
            is_backward = row >= per_direction
            start = starts[(row % per_direction * share + step) % len(starts)]
            rng, goals = layouts.generator(SEED, "train", k), (num - num // 2, num // 2)
            part = fields.get("perm_size", 0)
            expected = expected_row(directions[is_backward], start, length, goals, rng, is_backward, part)
            got = opened.example(k)
            assert_same(got, expected)
            if bi_data:
                assert got["positions"].tolist() == list(range(length))[:: -1 if is_backward else 1]
            else:
                assert "positions" not in got


@pytest.mark.parametrize("bi_data", [False, True])
def test_reused_text_continues_from_batch_to_batch(open_rows, bi_data):
    texts, length, batch_size, steps = documents(2, 8), 32, 4, 150
    _, opened = open_rows(texts, length, batch_size, bi_data)
    tokens, _ = xlnet_rows.flatten(texts, EOD)
    rows = opened.training_rows("a", config.resolve_phases(open_rows(texts, length, batch_size, bi_data)[0])[0])
    num = (len(tokens) - length) // 16 + 1
    assert (rows.num_rows, rows.passes[-1]) == (num, num * (1 + bi_data)) and steps > num
    for row in range(batch_size):
        read = np.concatenate([opened.example(step * batch_size + row)["tokens"][:16] for step in range(steps)])
        text = tokens[::-1] if bi_data and row >= 2 else tokens
        start = 16 * (num // (2 if bi_data else 4)) * (row % 2 if bi_data else row)
        cycle = (text[: 16 * num] * 3)[start : start + len(read)]
        np.testing.assert_array_equal(read, cycle[: len(read)])
        for step in range(0, steps - 2, 7):  # The next row begins with the text that follows, of which A is the start.
            example = opened.example(step * batch_size + row)
            second = example["tokens"][16:].tolist()
            first = second[: second.index(SEP)]
            if (step + 1) % num != (num - start // 16) % num:
                assert first == opened.example((step + 1) * batch_size + row)["tokens"][: len(first)].tolist()


def test_any_batch_is_read_alone_and_phases_continue_in_the_text(open_rows):
    texts = documents(3, 40)
    phases = (config.PhaseConfig(until=0.1), config.PhaseConfig(until=1.0, batch_size=6))
    run, opened = open_rows(texts, 32, 4, True, train={"phases": phases})
    whole = list(itertools.islice(opened.batches(0), 60))
    for first in (1, 29, 50, 57):
        np.testing.assert_equal(next(opened.batches(first)), whole[first])
    again = reader.Reader(config.reader_config(run))
    for step in (7, 58):
        for row, expected in zip(opened.numbers(step), unstack(whole[step]), strict=True):
            np.testing.assert_equal(again.example(row), {k: v for k, v in expected.items() if k != "digest"})
    assert_like_blank(run, whole[0])
    assert_like_blank(run, whole[59])
    # 50 batches of 4 rows are 33.3 batches of 6.
    _, alone = open_rows(texts, 32, 6, True)
    reused = [batch["tokens"][:, :16] for batch in (whole[50], next(alone.batches(34)))]
    np.testing.assert_array_equal(*reused)


@pytest.mark.parametrize("bi_data", [False, True])
def test_validation_reads_the_text_forward_once(open_rows, bi_data):
    held_out = documents(4, 12)
    _, opened = open_rows(documents(3, 20), 32, 4, bi_data, validation=held_out)
    tokens, _ = xlnet_rows.flatten(held_out, EOD)
    num = (len(tokens) - 32) // 16 + 1
    batches = list(opened.in_order("validation", 4))
    rows = [unstack(batch)[row] for row in range(4) for batch in batches]
    assert opened.num_rows("validation") == {"a": num} and len(batches) == -(-num // 4)
    np.testing.assert_array_equal(np.concatenate([row["tokens"][:16] for row in rows[:num]]), tokens[: 16 * num])
    assert not any(row["target_weights"].any() for row in rows[num:])
    if bi_data:
        assert all(row["positions"].tolist() == list(range(32)) for row in rows[:num])


def test_split_too_short_for_a_row_has_none(open_rows):
    _, opened = open_rows(documents(3, 20), 64, 2, validation=[(np.arange(9, 40), [0])])
    assert opened.num_rows("validation") == {"a": 0} and not list(opened.in_order("validation", 4))


SENTENCES = ((1,), (2, 1, 1), (40,), (5, 50, 1, 7), (5, 600))
SHAPES = list(itertools.product(SENTENCES, (9, 10, 11, 16, 25)))


@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize("eos", [EOD, None])
def test_pairs_of_small_texts_equal_the_source(open_rows, is_backward, eos):
    """Documents of a sentence, of a token, and sentences longer than a row."""
    for number, (sizes, length) in enumerate(SHAPES):
        rng = np.random.default_rng(number)
        bounds = [np.cumsum([0, *sizes[: 1 + document % len(sizes)]]) for document in range(2 + 90 // sum(sizes))]
        texts = [(rng.integers(9, SIZE, bound[-1]), bound[:-1]) for bound in bounds]
        tokens, ids = xlnet_rows.flatten(texts, eos)
        if is_backward:
            tokens, ids = tokens[::-1], ids[::-1]
        run, opened = open_rows(texts, length, 2, True, eos)
        rows = opened.training_rows("a", config.resolve_phases(run)[0])
        items = [*range(rows.num_rows), *[rows.num_rows - 1, rows.num_rows - 2] * 10]
        for seed, item in enumerate(items[-30:]):
            middle = item * (length // 2) + length // 2
            draws = np.random.default_rng(seed).random(3)
            expected = xlnet_rows.split_pair(ids, middle, length - length // 2 - 3, *draws)
            row = rows.example(item + is_backward * rows.num_rows, np.random.default_rng(seed))
            (a, b), split = (tokens[slice(*span)] for span in expected), length // 2
            np.testing.assert_array_equal(row["tokens"][split:], [*a, SEP, *b, SEP, CLS])


def test_last_segment_ends_with_the_text(open_rows):
    tokens = np.arange(9, 46)
    run, opened = open_rows([(tokens, [0, 33])], 25, 2, True, eos=None)
    rows = opened.training_rows("a", config.resolve_phases(run)[0])
    row = rows.example(1, np.random.default_rng(0))  # Its first number, 0.64, stands for a B that follows A.
    np.testing.assert_array_equal(row["tokens"], [*tokens[12:30], SEP, *tokens[33:], SEP, CLS])


def test_random_segments_come_from_the_stretch_of_the_row(open_rows, monkeypatch):
    monkeypatch.setattr(pair_streams, "STRETCH_TOKENS", 100)
    texts = [(np.arange(9 + start, 22 + start), [0]) for start in range(0, 390, 13)]
    run, opened = open_rows(texts, 32, 4, True, eos=None)
    rows, firsts = opened.training_rows("a", config.resolve_phases(run)[0]), {0: [], 1: [], 2: [], 3: []}
    seeds = [seed for seed in range(60) if np.random.default_rng(seed).random() < 0.5]  # B is random.
    for item in range(rows.passes[-1]):
        for seed in seeds:
            tokens = rows.example(item, np.random.default_rng(seed))["tokens"]
            read = tokens - 9 if item < rows.num_rows else 398 - tokens  # Positions as they are read.
            first, last = read[(tokens == SEP).nonzero()[0][0] + 1], read[-3]
            stretch = min(read[0] // 100, 2)
            assert 100 * stretch <= first <= last < (390 if stretch == 2 else 100 * (stretch + 1)) - 1
            firsts[read[0] // 100].append(first)
    # The last stretch, of less than 100 tokens, is joined with the one before it.
    assert min(firsts[3]) < 250 and max(firsts[2]) > 300 and min(len(set(seconds)) for seconds in firsts.values()) > 5


def test_words_of_a_segmenter_are_positions_in_the_row(open_rows, monkeypatch):
    texts = [(np.arange(9 + start, 29 + start), [0, 7]) for start in range(0, 360, 20)]
    run, opened = open_rows(texts, 32, 4, True)
    split, words = opened.sources["a"].splits["train"], np.arange(0, 360, 3)
    column = split.column
    monkeypatch.setattr(split, "has", lambda name: name == "word_starts")
    monkeypatch.setattr(split, "column", lambda name: words if name == "word_starts" else column(name))
    rows = run.data.layout.open(layouts.RowRequest.of(opened.sources["a"], "train", 32, opened.objective))
    for item in range(rows.passes[-1]):
        row = rows.example(item, np.random.default_rng(item))
        is_start = (row["tokens"] >= 9) & ((row["tokens"] - 9) % 3 == 0)
        assert row["word_starts"].tolist() == is_start.nonzero()[0].tolist()


def test_bad_configs_and_caches_are_rejected(open_rows):
    texts = documents(3, 20)
    run, _ = open_rows(texts, 64, 4)
    with pytest.raises(UserError, match=r"batch_size is 3, but with .*bi_data .*: set an even number$"):
        open_rows(texts, 64, 3, True)
    with pytest.raises(UserError, match=r"source 'a' has 42 training tokens, but a batch of streams needs 96: lower"):
        open_rows([(np.arange(9, 29), [0]), (np.arange(9, 29), [0])], 64, 2)
    layout = config.PairStreams()
    for message, objective, special, length, names in (
        ("streams of pairs need at least 9", run.objective, run.vocabulary, 8, "a"),
        (r"set config\.vocabulary\.cls and", run.objective, config.VocabularyConfig("bytes", sep=2), 64, "a"),
        ("streams read one source", run.objective, run.vocabulary, 64, "ab"),
        ("rows of streams of pairs already have some", objectives.Causal(), run.vocabulary, 64, "a"),
    ):
        with pytest.raises(UserError, match=message):
            layout.check(objective, special, length, {name: config.TextFiles(name) for name in names})
    layout.check(run.objective, run.vocabulary, 64, run.data.sources)


def test_masked_lm_reads_the_rows_with_a_model_of_three_token_types(make_run):
    objective, layout = objectives.MaskedLM(), config.PairStreams()
    run = make_run("a", SIZE, kind="encoder", objective=objective, data={"length": 64, "layout": layout}, **MASKED)
    with pytest.raises(UserError, match=r"streams of pairs .* set config\.model\.embedding\.token_types to 3"):
        config.from_dict(config.to_dict(run))
    embedding = dataclasses.replace(run.model.embedding, token_types=3)
    accepted = changed(run, model={"embedding": embedding})
    assert config.from_dict(config.to_dict(accepted)) == accepted
