"""XLNet's rows and their targets against rows written token by token, from the same random numbers."""

import itertools

import numpy as np
import pytest

from plm_jax import config, objectives
from plm_jax.data import layouts, reader
from tests.support import caches, xlnet_rows

SIZE, SEP, CLS, EOD, SEED = 400, 4, 3, 7, 3
IDS = {"pad": 5, "cls": CLS, "sep": SEP}
WORD_INITIAL = np.random.default_rng(0).random(SIZE) < 0.75
WORD_INITIAL[EOD] = True


def documents(seed, number, longest=60):
    """Returns documents of up to 12 sentences, each of up to `longest` tokens."""
    rng, made = np.random.default_rng(seed), []
    for _ in range(number):
        sizes = rng.integers(1, longest, rng.integers(1, 13))
        made.append((rng.integers(9, SIZE, sizes.sum()), np.cumsum([0, *sizes[:-1]])))
    return made


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
    "published": (512, 4, 40, {}, True, EOD),
    "one_direction": (64, 3, 600, {}, False, EOD),
    "no_separator": (64, 2, 300, {"num_predict": 21}, True, None),
    "odd": (41, 2, 500, {"perm_size": 7}, True, EOD),
    "shortest": (9, 1, 600, {"num_predict": 3}, False, EOD),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_equal_the_source(open_rows, case):
    length, batch_size, steps, fields, bi_data, eos = CASES[case]
    texts = documents(1, 60)
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
