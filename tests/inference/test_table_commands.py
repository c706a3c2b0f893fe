"""`predict` and `embed` on the rows of a table, and the messages that they share with `finetune`."""

import csv
import dataclasses
import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import plm_jax
from plm_jax.common.errors import UserError
from plm_jax.data.sources.tables import read_rows
from plm_jax.hub import tasks
from plm_jax.inference import tables
from plm_jax.runs import checkpoint_formats
from tests.support import moods, tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Path of a model with random weights that predicts a class."""
    path = str(tmp_path_factory.mktemp("model") / "classes")
    encoder = tiny.BERT.with_task(tasks.new("classes", tiny.BERT, moods.LABELS))
    checkpoint_formats.save(path, moods.pretrained(encoder), "plm_jax")
    return path


def test_rows_without_text_have_outputs_and_are_counted(model, verb, tmp_path):
    texts = ["fine", "", "dull", " \t"]
    table = tmp_path / "new.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *enumerate(texts)])
    warning = f"warning: 2 of 4 rows have no text, the first one is {table}:3: their output is that of an empty text"
    for command, output in (("predict", "predictions.jsonl"), ("embed", "vectors.npy")):
        arguments = (f"--checkpoint={model}", f"--input={table}", f"--output={tmp_path}/{output}")
        finished = verb(command, *arguments)
        assert finished.status == 0 and finished.err.splitlines().count(warning) == 1, finished.err
    lm = plm_jax.load(model)
    np.testing.assert_allclose(np.load(tmp_path / "vectors.npy"), lm.embed(texts), atol=1e-6)
    rows = [json.loads(line) for line in (tmp_path / "predictions.jsonl").open()]
    assert [row["text"] for row in rows] == texts
    probabilities = [prediction.probabilities for prediction in lm.predict(texts)]
    for row, expected in zip(rows, probabilities, strict=True):
        assert row["predicted_probabilities"] == pytest.approx(expected, abs=1e-6)


MOMENTS = [
    (pa.timestamp("ms"), ["1970-01-01T00:00:00.001", None]),
    (pa.timestamp("ns"), ["1970-01-01T00:00:00.000000001", None]),
    (pa.timestamp("us", "UTC"), ["1970-01-01T00:00:00.000001Z", None]),
    (pa.date32(), ["1970-01-02", None]),
    (pa.time64("us"), ["00:00:00.000001", None]),
]
OTHERS = [
    pa.array([1, None], pa.duration("s")),
    pa.array([b"\xff", None]),
    pa.array([None, [("a", 1)]], pa.map_(pa.string(), pa.int8())),
    pa.array([None, [1]], pa.list_(pa.timestamp("s"))),
    pa.array([{"bytes": b"x", "path": None}, None]),
    pa.array([b"0123456789abcdef", None], pa.uuid()),
]


def copied(path, output, repetitions=1):
    """Reads a table, and writes its rows in chunks of one row; returns the path of the output."""
    with tables.writing(str(output)) as write:
        for _ in range(repetitions):
            for _, row in tables.read(str(path), str(output)):
                write(tables.joined([row], [{"predicted_label": "x"}], "table"))
    return output


@pytest.mark.parametrize("extension", ["parquet", "arrow"])
def test_columns_of_any_type_are_copied_to_parquet_unchanged(extension, tmp_path):
    columns = [*OTHERS, *(pa.array([1, None], kind) for kind, _ in MOMENTS)]
    table = pa.table({"text": ["a", "b"]} | {f"c{number}": column for number, column in enumerate(columns)})
    path = tmp_path / f"in.{extension}"
    if extension == "parquet":
        parquet.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    result = parquet.read_table(copied(path, tmp_path / "out.parquet", repetitions=2))
    parquet.write_table(pa.concat_tables([table, table]), tmp_path / "expected.parquet")
    expected = parquet.read_table(tmp_path / "expected.parquet")
    assert result.column_names == [*table.column_names, "predicted_label"]
    assert result.drop_columns("predicted_label").equals(expected)


@pytest.mark.parametrize("extension", ["jsonl", "csv"])
def test_dates_and_times_become_text_and_other_types_are_reported(extension, tmp_path):
    path = tmp_path / "in.parquet"
    table = pa.table({f"c{number}": pa.array([1, None], kind) for number, (kind, _) in enumerate(MOMENTS)})
    parquet.write_table(table, path)
    rows = [row for _, row in read_rows(str(copied(path, tmp_path / f"out.{extension}")))]
    for number, (_, values) in enumerate(MOMENTS):
        assert [row[f"c{number}"] or None for row in rows] == values
    for column in OTHERS:
        parquet.write_table(pa.table({"text": ["a", "b"], "other": column}), path)
        with pytest.raises(UserError, match=r"has the column 'other' of type .*, remove it, or write a .parquet file$"):
            tables.read(str(path), f"out.{extension}")


def test_a_type_that_parquet_cannot_store_is_reported(tmp_path):
    table = pa.table({"text": ["a"], "other": [pa.MonthDayNano([1, 2, 3])]})
    with pa.ipc.new_file(tmp_path / "in.arrow", table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(UserError, match=r"Parquet cannot store a column \(.*month_day_nano.*\): convert or remove"):
        copied(tmp_path / "in.arrow", tmp_path / "out.parquet")


def test_columns_that_are_not_used_may_have_any_type(model, verb, tmp_path):
    path = tmp_path / "in.parquet"
    parquet.write_table(pa.table({"text": ["a", "b"], "image": [b"x", None]}), path)
    for command, name in (("predict", "out.parquet"), ("embed", "out.npy"), ("embed", "vectors.parquet")):
        finished = verb(command, f"--checkpoint={model}", f"--input={path}", f"--output={tmp_path}/{name}")
        assert finished.status == 0, finished.err
    assert parquet.read_table(tmp_path / "out.parquet").column("image").to_pylist() == [b"x", None]


def test_a_text_that_does_not_fit_the_model_is_reported_with_its_line(verb, tmp_path):
    masked = moods.pretrained(tiny.BERT)
    masked = dataclasses.replace(masked, special_ids=dict(masked.special_ids) | {"mask_token_id": 260})
    choice = moods.pretrained(tiny.BERT.with_task(tasks.new("choice", tiny.BERT)))
    rows = {
        "masked": [{"text": "a [MASK]"}] * 2 + [{"text": "no blank"}],
        "choice": [{"question": "a", "choices": ["b", "c"]}] * 2 + [{"question": "a", "choices": ["b"]}],
    }
    problems = {
        "masked": "has no [MASK]: write one where a token is missing",
        "choice": "does not fit the task of the model: expected a context and a list of at least two choices",
    }
    for name, pretrained in {"masked": masked, "choice": choice}.items():
        checkpoint_formats.save(str(tmp_path / name), pretrained, "plm_jax")
        table = tmp_path / f"{name}.jsonl"
        table.write_text("".join(json.dumps(row) + "\n" for row in rows[name]))
        arguments = f"--checkpoint={tmp_path}/{name}", f"--input={table}", f"--output={tmp_path}/out.jsonl"
        finished = verb("predict", *arguments, "--batch_size=1")
        assert finished.errors == [f"error: {table}:3 {problems[name]}"], finished.err


@pytest.mark.parametrize(
    ("example", "is_empty"),
    [("", True), (" \n", True), ("a", False), (("", " "), True), (("", "a"), False), (["", ""], True), ([], True)],
)
def test_an_example_is_empty_without_any_text(example, is_empty, capsys):
    tables.process(iter([("t:1", {})]), lambda location, row: example, 8, "reading", lambda rows, examples: None)
    assert ("1 of 1 rows have no text, the first one is t:1" in capsys.readouterr().err) == is_empty


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text;label\nx;1\n", "its header seems to be separated by semicolons, so separate it by commas"),
        (
            "a.csv",
            "text\tlabel\nx\t1\n",
            "its header seems to be separated by tabs, so name it .tsv, or separate it by commas",
        ),
        (
            "a.tsv",
            "text,label\nx,1\n",
            "its header seems to be separated by commas, so name it .csv, or separate it by tabs",
        ),
        ("a.csv", "texts,label\nx,1\n", "did you mean 'texts'?"),
    ],
    ids=["semicolons", "tabs", "commas", "another name"],
)
def test_a_missing_column_has_the_same_message_everywhere(name, content, message, model, verb, tmp_path):
    table = tmp_path / name
    table.write_text(content)
    checkpoint = f"--checkpoint={model}"
    commands = {
        "predict": [f"--input={table}", f"--output={tmp_path}/out.jsonl"],
        "embed": [f"--input={table}", f"--output={tmp_path}/out.npy"],
        "finetune": [f"--train={table}", "--text=text", "--label=label", f"--workdir={tmp_path}/run"],
    }
    for command, arguments in commands.items():
        finished = verb(command, checkpoint, *arguments)
        can_select = command != "finetune" and not message.startswith("its header")
        selection = " (--text selects another one)" if can_select else ""
        assert finished.status == 2
        assert finished.errors == [f"error: {table} has no column 'text'{selection}: {message}"], command
