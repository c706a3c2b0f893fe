"""Held-out rows: whole groups, by one rule for every kind of source, and counts of rows in both splits."""

import collections
import functools
import itertools
import json
import random
import re
import unicodedata

import numpy as np
import pytest

from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.data import cache
from plm_jax.data.prepare import groups, reading, tokenizing
from plm_jax.data.sources import corpus, files
from plm_jax.runs import preparation
from tests.support import splits

WORDS = ["né", "sea", "ship", "Ünd", "wind", "海", "storm", "café", "über\u00a0all", "mast", "½", "sail", "öde"]
LABELS = ("no", "yes")
# Numbers of rows in a file.
SIZES = (1, 2, 3, 7, 19, 30, 120, 300, 700)
FRACTIONS = (0.01, 0.05, 0.3, 0.0)


def varied(rng, text):
    """Returns a copy of a text, usually with different white space or in another Unicode form."""
    return rng.choice(
        [
            text,
            unicodedata.normalize("NFD", text),
            f"  {text}\u2003",
            re.sub(" ", lambda _: rng.choice([" ", "  ", "\t", "\u00a0 "]), text),
        ]
    )


def texts(rng, number):
    """Returns texts, about a third of them copies, unchanged or varied."""
    results = []
    for _ in range(number):
        again = results and rng.random() < 0.35
        new = " ".join(rng.choices(WORDS, k=rng.randint(1, 9))) + f" {rng.randint(0, 4 * number)}"
        results.append(varied(rng, rng.choice(results)) if again else new)
    return results


def contexts(rng, number):
    """Returns contexts, each shared by about five consecutive rows."""
    few = texts(rng, -(-number // 5))
    return [varied(rng, few[i // 5]) for i in range(number)]


def span(rng, context, question):
    return {"context": context, "question": question, "answers": {"text": [], "answer_start": []}}


def tags(rng, first, second):
    words = [word for word in first.split(" ") if word.strip()]
    return {"tokens": words, "tags": [0] * len(words)}


# For each kind of source: a function that makes a row, one that makes the source of a path, and, unless they are the
# default, the texts and the group of a row.
ROW = {
    "text": lambda rng, first, second: {"text": first},
    "classes": lambda rng, first, second: {"text": first, "label": rng.randint(0, 1)},
    "pair": lambda rng, first, second: {"text": first, "pair": second, "label": rng.randint(0, 1)},
    "score": lambda rng, first, second: {"text": first, "pair": second, "score": rng.random()},
    "tags": tags,
    "span": span,
    "choice": lambda rng, first, second: {"question": first, "choices": [second, "a"], "label": 0},
    "translation": lambda rng, first, second: {"inputs": first, "targets": second},
    "group": lambda rng, first, second: {"text": second, "id": first},
    "answered": lambda rng, first, second: {"inputs": f"{second} {first}", "targets": "a", "context": first},
}


def labeled(form):
    return functools.partial(config.LabeledTable, form=form)


SOURCE = {
    "text": config.TextTable,
    "classes": labeled(config.ClassForm(LABELS)),
    "pair": labeled(config.ClassForm(LABELS, pair="pair")),
    "score": labeled(config.ScoreForm(pair="pair")),
    "tags": labeled(config.TagForm(("O", "B"))),
    "span": labeled(config.AnswerForm()),
    "choice": labeled(config.ChoiceForm(2)),
    "translation": config.TableInputsTargets,
    "group": functools.partial(config.TextTable, group="id"),
    "answered": functools.partial(config.TableInputsTargets, group="context"),
}
TEXTS = {
    "tags": lambda row: (" ".join(row["tokens"]),),
    "choice": lambda row: (row["question"], *row["choices"]),
    "span": lambda row: (row["context"], row["question"]),
    "translation": lambda row: (row["inputs"], row["targets"]),
    "answered": lambda row: (row["inputs"], row["targets"]),
}
GROUP = {"group": lambda row: row["id"], "answered": lambda row: row["context"]}


def texts_of(kind, row):
    return TEXTS.get(kind, lambda row: tuple(row[name] for name in ("text", "pair") if name in row))(row)


def group_of(kind, row):
    return GROUP.get(kind, lambda row: texts_of(kind, row)[0])(row)


def rows_of(kind, seed, number):
    rng = random.Random(seed)
    firsts = (contexts if kind in ("span", "choice", "group", "answered") else texts)(rng, number)
    seconds = texts(rng, number)
    return [ROW[kind](rng, first, second) for first, second in zip(firsts, seconds, strict=True)]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def run(make_run):
    """`run(source, fraction)` returns a run over the bytes of a source `a`."""

    def make(source, fraction):
        data = {"validation_fraction": fraction, "sources": {"a": source}}
        return make_run("a", eos=256, vocab_size=257, data=data)

    return make


def stored(folder):
    """Returns the line of each row of each split of a cache, from 0."""
    source = cache.open_source(str(folder), "a")
    return {
        name: sorted(source.origin(name, document)[1] - 1 for document in range(split.num_documents))
        for name, split in source.splits.items()
    }


def shared(train, validation, key):
    """Returns the number of rows of each split whose key is also in the other split."""
    keys = [[key(row) for row in rows] for rows in (train, validation)]
    common = set(keys[0]) & set(keys[1])
    return {"train": sum(of in common for of in keys[0]), "validation": sum(of in common for of in keys[1])}


def overlap(kind, train, validation):
    """Returns the expected overlap in the manifest."""
    return {
        "exact": shared(train, validation, lambda row: texts_of(kind, row)),
        "normalized": shared(train, validation, lambda row: tuple(map(splits.normalized, texts_of(kind, row)))),
        "group": shared(train, validation, lambda row: splits.normalized(group_of(kind, row))),
    }


def check_report(out, counts, is_overlapping):
    """Compares what `prepare` prints with the overlap."""
    (line,) = re.findall(r"of [\d,]+ validation documents, .*", out.out)
    numbers = [int(number) for number in re.findall(r"\d+", line)][1:]
    assert numbers == [counts[level]["validation"] for level in ("exact", "normalized", "group")]
    assert ("overlap" in out.err) == is_overlapping


# Each kind with two of the sizes.
CASES = [(kind, i + 10 * j) for i, kind in enumerate(SOURCE) for j in range(2)]


@pytest.mark.usefixtures("few_shards")
@pytest.mark.parametrize(("kind", "seed"), CASES)
def test_whole_groups_are_held_out_by_the_rule_and_overlap_is_counted(run, tmp_path, capsys, monkeypatch, kind, seed):
    rng = random.Random(seed)
    rows = rows_of(kind, seed, SIZES[seed % len(SIZES)])
    fraction = rng.choice(FRACTIONS)
    source_run = run(SOURCE[kind](write(tmp_path / "a.jsonl", rows)), fraction)
    rule, held_out = splits.held_out([group_of(kind, row) for row in rows], fraction)
    monkeypatch.setattr(tokenizing, "_BATCH_CHARACTERS", rng.choice([1000, 10**6]))
    if all(held_out):
        with pytest.raises(UserError, match=r"lower config\.data\.validation_fraction"):
            preparation.prepare(source_run, show_progress=False)
        return
    preparation.prepare(source_run, show_progress=False)
    lines = {
        name: [i for i, is_held_out in enumerate(held_out) if is_held_out == (name == "validation")]
        for name in cache.SPLITS
    }
    assert stored(tmp_path) == {name: of for name, of in lines.items() if of}
    manifest = cache.read_manifest(str(tmp_path / "a"))["validation"]
    train, validation = ([rows[i] for i in lines[name]] for name in cache.SPLITS)
    assert manifest == {"rule": rule, "overlap": overlap(kind, train, validation)}
    assert manifest["overlap"]["group"] == {"train": 0, "validation": 0}
    out = capsys.readouterr()
    if validation:
        # Equal texts may be in two declared groups.
        check_report(out, manifest["overlap"], manifest["overlap"]["normalized"]["train"] > 0)
    else:
        assert out.err.startswith("warning: no held-out rows in 'a'") and out.err.count("\n") == 1


OWN = [("text", 3), ("text", 700), ("classes", 40), ("pair", 60), ("span", 55), ("tags", 25), ("group", 40)]


@pytest.mark.usefixtures("few_shards")
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("kind", "number"), OWN)
def test_a_validation_file_that_overlaps_the_training_file_is_reported_to_the_row(
    run, tmp_path, capsys, monkeypatch, kind, number, seed
):
    monkeypatch.setattr(groups, "_PART_ROWS", 20)
    monkeypatch.setattr(groups, "_BLOCK_ROWS", 7)
    rng = random.Random(seed)
    train, validation = rows_of(kind, f"{kind}{seed}", number), rows_of(kind, f"{kind}{seed} too", 30)
    validation += [rng.choice(train) for _ in range(number // 4 * seed)]
    paths = [write(tmp_path / f"{name}.jsonl", of) for name, of in (("a", train), ("b", validation))]
    preparation.prepare(run(SOURCE[kind](paths[0], validation=paths[1]), 0.05), show_progress=False)
    assert stored(tmp_path) == {"train": [*range(number)], "validation": [*range(len(validation))]}
    manifest = cache.read_manifest(str(tmp_path / "a"))["validation"]
    assert manifest == {"rule": "source", "overlap": overlap(kind, train, validation)}
    counts = [of["train"] for of in manifest["overlap"].values()]
    assert not seed or number < 4 or min(counts) > 0
    check_report(capsys.readouterr(), manifest["overlap"], any(counts))


def test_groups_of_parts_add_up_to_those_of_the_whole():
    rng = np.random.default_rng(0)
    for number in (1, 2, 19, 20, 21, 500):
        hashes = rng.integers(0, 2**64, number, np.uint64)[rng.integers(0, number, 4 * number)]
        whole = groups.Groups()
        for part in np.array_split(rng.permutation(hashes), 7):
            whole.add(groups.Groups.of(part))
        sizes = collections.Counter(hashes.tolist())
        assert whole.rows == len(hashes)
        assert whole.smallest == {of: sizes[of] for of in sorted(sizes)[:20]}


def test_a_hash_equal_to_the_threshold_is_the_first_that_is_added():
    """Half of all hashes are below 2^63; the next group would exceed a tenth of the rows."""
    counted = groups.Groups(rows=300, smallest={2**63: 1, 2**63 + 7: 299})
    assert counted.rule(0.5) == groups.HeldOutRule("top-up", 2**63 + 1)


@pytest.mark.parametrize(("below", "expected"), [(19, ("top-up", 2**63 + 1)), (20, ("hash", 2**63))])
def test_a_hash_equal_to_the_threshold_is_not_below_it(below, expected):
    """Twenty rows below 2^63 settle the rule; with nineteen, the row at the threshold is the twentieth."""
    counted = groups.Groups(rows=1000, smallest={7: below, 2**63: 1, 2**63 + 7: 1})
    assert counted.rule(0.5) == groups.HeldOutRule(*expected)
    assert counted.is_settled(0.5) == (below == 20)


def test_a_vocabulary_is_trained_on_the_rows_that_are_not_held_out(run, tmp_path):
    """The first rows settle the rule if enough of them are below the threshold."""
    for number, fraction in ((30, 0.01), (400, 0.2), (3000, 0.5), (40, 0.0)):
        rows = rows_of("text", number, number)
        source_run = run(config.TextTable(write(tmp_path / f"{number}.jsonl", rows)), fraction)
        rule = reading.rule(source_run.data, "a")
        expected = splits.held_out([row["text"] for row in rows], fraction)
        assert [document.is_held_out(rule) for document in reading.all_documents(source_run.data, "a")] == expected[1]
        assert rule.name == expected[0]
        records = list(files.read(source_run.data.sources["a"]))
        assert reading.hold_out([*records, corpus.Record("  ")], fraction) == [*expected[1], False]


def test_a_group_must_be_text_or_an_integer(tmp_path):
    source = config.TextTable(str(tmp_path / "a.jsonl"), group="id")
    (tmp_path / "a.jsonl").write_text('{"text": "a", "id": 7}\n{"text": "b", "id": "7"}\n')
    assert [record.group for record in files.read(source)] == ["7", "7"]
    for bad in ('{"text": "a", "ids": 7}', '{"text": "a", "id": null}', '{"text": "a", "id": true}'):
        (tmp_path / "a.jsonl").write_text(bad)
        with pytest.raises(UserError, match=r"a.jsonl:1 has no text or integer in 'id', the source's group"):
            list(itertools.islice(files.read(source), 1))
