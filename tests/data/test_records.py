"""Records of several named texts and numbers, from a table to the example that an objective reads."""

import csv
import dataclasses
import json
import typing

import numpy as np
import pytest

from plm_jax import config, objectives
from plm_jax.common.errors import UserError
from plm_jax.runs import preparation
from tests.support.data import assert_like_blank, open_reader

ROWS = [(f"question {i}", f"good answer {i}" * (i % 3), f"bad {i}", i / 4) for i in range(40)]


@dataclasses.dataclass(frozen=True)
class FirstTokens(objectives.Objective):
    """Rows with the first tokens of two texts, read in another order than they are stored, and a number."""

    kind: typing.ClassVar[str] = "first_tokens_of_records"
    architectures: typing.ClassVar[tuple[str, ...]] = ("decoder",)
    inputs: typing.ClassVar[tuple[str, ...]] = ("record",)
    targets: typing.ClassVar[str] = "nothing"
    texts: typing.ClassVar[tuple[str, ...]] = ("bad", "good")
    numbers: typing.ClassVar[tuple[str, ...]] = ("margin",)

    def apply(self, example, special, rng):
        assert example.keys() == {"length", "bad", "good", "margin"}
        row = np.zeros((2, example["length"]), np.int32)
        for number, name in enumerate(self.texts):
            text = example[name][: example["length"]]
            row[number, : len(text)] = text
        return {"tokens": row, "margin": np.asarray(example["margin"], np.float32)}


@pytest.fixture
def run(make_run, tmp_path):
    """`run(source, …)` returns a run of `FirstTokens` over the bytes of a source of records."""

    def make(source, objective=FirstTokens(), layout=config.Records(), **settings):  # noqa: B008
        changed_run = make_run("a", eos=256, vocab_size=257, data={"validation_fraction": 0.2, **settings})
        data = dataclasses.replace(changed_run.data, sources={"a": source}, layout=layout, length=32)
        return dataclasses.replace(changed_run, data=data, objective=objective)

    return make


def write(path):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("question", "good", "bad", "margin"), *ROWS])
    return str(path)


def resolve(run):
    """Checks a run as `pretrain` does."""
    return config.from_dict(config.to_dict(run))


def table(path, **settings):
    return config.RecordTable(path, ("question", "good", "bad"), ("margin",), **settings)


def prepared(run, source, folder, **settings):
    """Prepares a run over a source and returns it with its reader."""
    records_run = run(source, cache_dir=str(folder / "cache"), **settings)
    preparation.prepare(records_run, show_progress=False)
    return records_run, open_reader(records_run)


def test_an_objective_reads_texts_and_numbers_by_name(run, tmp_path):
    records_run, reader = prepared(run, table(write(tmp_path / "a.csv")), tmp_path)
    rows = [row for split in ("train", "validation") for row in read(reader, split)]
    expected = [(bad[:32], good[:32], margin) for _, good, bad, margin in ROWS]
    assert sorted(rows) == sorted(expected)
    assert_like_blank(records_run, reader.batch(0, [0, 1]))


def read(reader, split):
    """Returns the texts and the number of each row of a split."""
    number = reader.num_rows(split)["a"]
    for batch in reader.in_order(split, 1, lambda _: [0], "a", 32, number):
        texts = (bytes(text[text > 0].tolist()).decode() for text in batch["tokens"][0])
        yield (*texts, float(batch["margin"][0]))


def test_rows_with_the_same_group_stay_in_one_split(run, tmp_path):
    """The first text decides by default; here every record has the group of its margin's whole part."""
    with open(tmp_path / "a.csv", "w", newline="") as file:
        rows = [(*row, f"group {i // 4}") for i, row in enumerate(ROWS)]
        csv.writer(file).writerows([("question", "good", "bad", "margin", "group"), *rows])
    _, reader = prepared(run, table(f"{tmp_path}/a.csv", group="group"), tmp_path)
    groups = [{int(margin) for *_, margin in read(reader, split)} for split in ("train", "validation")]
    assert all(groups) and not set.intersection(*groups)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("q,g,b,high", r"a.csv:42 has \"high\" in 'margin': expected a number"),
        ("q,g,b,1e39", r"a.csv:42 has 1e\+39 in 'margin': expected a number"),
        ("q,g,b", "a.csv:42 has 3 cells, but the header has 4"),
    ],
)
def test_a_bad_row_is_one_line(row, message, run, tmp_path):
    path = write(tmp_path / "a.csv")
    with open(path, "a") as file:
        file.write(f"{row}\n")
    with pytest.raises(UserError, match=message):
        prepared(run, table(path), tmp_path)


def test_a_null_is_no_text(run, tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"question": "q", "good": None, "bad": "b", "margin": 1}))
    with pytest.raises(UserError, match=r"a.jsonl:1 has null in 'good': expected a text"):
        prepared(run, table(f"{tmp_path}/a.jsonl"), tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"texts": ("question", "good")}, "reads 'bad', which is not among the texts of source 'a'"),
        ({"numbers": ()}, "reads 'margin', which is not among the numbers of source 'a'"),
    ],
)
def test_an_objective_needs_its_fields(settings, message, run, tmp_path):
    source = dataclasses.replace(table(write(tmp_path / "a.csv")), **settings)
    with pytest.raises(UserError, match=message):
        resolve(run(source))


def test_records_need_their_layout_and_an_objective(run, make_run, tmp_path):
    path = write(tmp_path / "a.csv")
    with pytest.raises(UserError, match=r"source 'a' has records, but config.data.layout is 'blocks'"):
        resolve(run(table(path), objectives.Causal(), config.Blocks()))
    with pytest.raises(UserError, match=r"objective 'causal' does not read config.data.layout 'records': use records"):
        resolve(run(table(path), objectives.Causal()))
    with pytest.raises(
        UserError, match=r"source 'a' has no records of named texts, but config.data.layout is 'records'"
    ):
        resolve(run(config.TextTable(path)))
    for texts, numbers in (((), ()), (("a", "a"), ()), (("a",), ("a",))):
        with pytest.raises(UserError, match="name a text, and each field only once"):
            config.RecordTable(path, texts, numbers)
