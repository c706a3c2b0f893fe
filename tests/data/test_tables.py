"""Data in tables: CSV, TSV, Parquet and saved datasets give the caches of the same rows in JSON Lines."""

import csv
import dataclasses
import decimal
import gzip
import io
import json
import os
import re
import subprocess
import sys

import fsspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from plm_jax import config
from plm_jax.common import extras, storage
from plm_jax.common.errors import UserError
from plm_jax.data import cache
from plm_jax.data.cache import staleness
from plm_jax.data.sources import corpus, files, tables, tasks, templates
from plm_jax.runs import preparation
from tests.data.test_prepare import contents

WORDS = [
    "Größe",
    'a "quoted" word',
    "two\nlines",
    "a, comma",
    "a\ttab",
    "'",
    "海 🙂",
    "cr\r\nlf",
    " space ",
    "[1]",
    "1.50",
    "null",
]
LABELS = ("no", "yes")


def texts(number, salt):
    return [f"{WORDS[i % len(WORDS)]} {WORDS[(i * 5 + salt) % len(WORDS)]} {salt} {i}" for i in range(number)]


def answer(i, context):
    return {"text": [context[:4]], "answer_start": [0]} if i % 3 else {"text": [], "answer_start": []}


# For each kind of source: its rows, and the source at a path.
FIRST, SECOND = texts(60, 1), texts(60, 2)
PAIRS = list(enumerate(zip(FIRST, SECOND, strict=True)))
KINDS = {
    "documents": ([{"text": a} for a in [*FIRST, "123", "[]", "true"]], config.TextTable),
    "grouped": (
        [{"text": a, "id": i // 2, "other": b} for i, (a, b) in PAIRS],
        lambda path: config.TextTable(path, group="id"),
    ),
    "classes": (
        [{"text": a, "label": i % 2} for i, (a, _) in PAIRS],
        lambda path: config.LabeledTable(path, config.ClassForm(LABELS)),
    ),
    "numbers": (
        [{"text": a, "label": ("1", "2", "007")[i % 3]} for i, (a, _) in PAIRS],
        lambda path: config.LabeledTable(path, config.ClassForm(("2", "007", "1"))),
    ),
    "pairs": (
        [{"text": a, "pair": b, "label": LABELS[i % 2]} for i, (a, b) in PAIRS],
        lambda path: config.LabeledTable(path, config.ClassForm(LABELS, pair="pair")),
    ),
    "scores": (
        [{"text": a, "score": i / 7 - 2} for i, (a, _) in PAIRS],
        lambda path: config.LabeledTable(path, config.ScoreForm()),
    ),
    "tags": (
        [{"tokens": a.split(), "tags": [i % 2] * len(a.split())} for i, (a, _) in PAIRS],
        lambda path: config.LabeledTable(path, config.TagForm(("O", "B"))),
    ),
    "answers": (
        [{"context": a, "question": b, "answers": answer(i, a)} for i, (a, b) in PAIRS],
        lambda path: config.LabeledTable(path, config.AnswerForm()),
    ),
    "choices": (
        [{"question": a, "choices": [b, "1", "0"], "label": i % 3} for i, (a, b) in PAIRS],
        lambda path: config.LabeledTable(path, config.ChoiceForm(3)),
    ),
    "inputs and targets": (
        [{"in": a, "tags": [b, "x"], "year": 1800 + i, "used": i % 5 > 0, "half": i / 2} for i, (a, b) in PAIRS],
        lambda path: config.TableInputsTargets(
            path, "{in} {year} {half:.2f}", "{tags[0]} {used}", only="used", group="year"
        ),
    ),
}


def cell(value):
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def write_csv(path, rows, delimiter=","):
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\r\n" if delimiter == "," else "\n")
    writer.writerows([list(rows[0]), *(map(cell, row.values()) for row in rows)])
    data = text.getvalue().encode("utf-8")
    storage.write(path, gzip.compress(data) if path.endswith(".gz") else data)


def write_saved(folder, rows):
    """Writes a folder as `datasets.Dataset.save_to_disk` does, next to a file that an earlier dataset has left."""
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    os.makedirs(folder)
    for name, part in zip([*names, "data-00000-of-00001.arrow"], (rows[:20], rows[20:], rows), strict=True):
        write_stream(os.path.join(folder, name), pa.Table.from_pylist(part, schema(rows)))
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "1"}
    storage.write(os.path.join(folder, "state.json"), json.dumps(state).encode())
    storage.write(os.path.join(folder, "dataset_info.json"), b"{}")


def schema(rows):
    return pa.Table.from_pylist(rows).schema


def write_stream(path, table, rows=7):
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)


def write_file(path, table):
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=9)


def write(path, rows):
    """Writes rows in the format of a path's extension."""
    name = path.removesuffix(".gz")
    if name.endswith(".jsonl"):
        storage.write(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
    elif name.endswith((".csv", ".tsv")):
        write_csv(path, rows, "\t" if name.endswith(".tsv") else ",")
    elif name.endswith(".parquet"):
        parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=11)
    elif name.endswith(".arrow"):
        write_file(path, pa.Table.from_pylist(rows))
    else:
        write_saved(path, rows)
    return path


@pytest.fixture
def run(make_run):
    """`run(source)` returns a run over the bytes of a source `a`."""

    def make(source, **data):
        changed_run = make_run("a", eos=256, vocab_size=257, data={"validation_fraction": 0.2, **data})
        return dataclasses.replace(changed_run, data=dataclasses.replace(changed_run.data, sources={"a": source}))

    return make


def prepare(run, folder, ignored=()):
    """Returns the contents of a cache, and the counts in its manifest, without what depends on the paths."""
    preparation.prepare(run, str(folder), show_progress=False)
    ignored = ("manifest.json", "files.json", "checksums.npy", *ignored)
    manifest = cache.read_manifest(os.path.join(folder, "a"))
    for counts in manifest["splits"].values():
        del counts["crc32"]
    files = {name: data for name, data in contents(folder).items() if os.path.basename(name) not in ignored}
    return files, manifest["splits"], manifest["validation"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_rows_give_the_same_cache_in_every_format(kind, run, few_shards, tmp_path):
    rows, source = KINDS[kind]
    for name in ("a.csv", "a.tsv.gz", "a.parquet", "a.arrow", "saved"):
        # In CSV, the header and the lines within cells count; the saved dataset has two files.
        ignored = () if name in ("a.parquet", "a.arrow") else ("origin.npy",)
        expected = prepare(run(source(write(f"{tmp_path}/a.jsonl", rows))), tmp_path / "expected", ignored)
        prepared = prepare(run(source(write(f"{tmp_path}/{name}", rows))), tmp_path / f"cache-{name}", ignored)
        assert prepared == expected, name


def test_rows_have_locations_and_plain_values(tmp_path):
    rows = [{"text": "a\nb", "label": 1, "list": ["x"]}, {"text": "c", "label": 0, "list": []}]
    for name, second in {"a.jsonl": ":2", "a.csv": ":4", "a.parquet": ":row 2", "a.arrow": ":row 2"}.items():
        path = write(f"{tmp_path}/{name}", rows)
        (first, row), (location, _) = tables.read_rows(path, ["label", "list", "text"], required=["text"])
        assert location == path + second and first[len(path) :] in (":1", ":2", ":row 1")
        assert {name: tables.cell_value(value) for name, value in row.items()} == rows[0]
    for name in ("a.parquet", "a.arrow"):
        assert [row for _, row in tables.read_rows(f"{tmp_path}/{name}", ["label"])] == [{"label": 1}, {"label": 0}]
        assert [row for _, row in tables.read_rows(f"{tmp_path}/{name}", ["none"])] == [{}, {}]
    folder = write(f"{tmp_path}/saved", rows * 15)
    assert [row for _, row in tables.read_rows(folder)] == rows * 15
    with pytest.raises(UserError, match="has no column 'texts': did you mean 'text'"):
        list(tables.read_rows(path, required=["texts"]))


def test_a_cell_is_a_text_unless_its_column_is_not(tmp_path):
    assert [tables.Cell(text).value for text in ("1", "[1]", "x", "", "NaN", "007", r'"\ud83d"', "[" * 10**5)] == [
        *(1, [1], "x", "", "NaN", "007", r'"\ud83d"', "[" * 10**5),
    ]
    row = {"a": tables.Cell('["x", "y"]'), "n": tables.Cell("2.5")}
    assert templates.render("{a[1]} {a} {n:.2f} {n:>4}", "", row, "inputs") == 'y ["x", "y"] 2.50  2.5'
    assert templates.render_all("{a}", "", row, "inputs") == ("x", "y")
    assert templates.fields("{a[1]} {b.c:{d}} {{e}} {f!r}") == {"a", "b", "d", "f"}
    (tmp_path / "a.csv").write_text('text,label\n123,"1"\n,0\n"",1\n')
    (tmp_path / "b.csv").write_bytes(b'\xef\xbb\xbf"text",label\r\n"a\r\nb ""c""",1\r\n\r\nd,0')
    rows = [row for _, row in tables.read_rows(f"{tmp_path}/b.csv")]
    assert rows == [{"text": 'a\r\nb "c"', "label": "1"}, {"text": "d", "label": "0"}]
    source = config.LabeledTable(f"{tmp_path}/a.csv", config.ClassForm(LABELS))
    record = next(files.read(source))
    assert (record.text, type(record.text), record.values) == ("123", str, {"label": 1})
    with pytest.raises(UserError, match=r"a.csv:3 has no text: remove this row"):
        list(files.read(source))


def test_types_of_columns(tmp_path):
    table = pa.table(
        {
            "text": pa.array(["a", "b"], pa.large_string()),
            "category": pa.array(["x", "x"]).dictionary_encode(),
            "half": pa.array([0.5, 2.0], pa.float16()),
            "byte": pa.array([1, None], pa.uint8()),
            "money": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(9, 2)),
            "whole": pa.array([[decimal.Decimal(7)], []], pa.list_(pa.decimal256(40, 0))),
            "is": [True, None],
            "none": pa.nulls(2),
            "nested": [[{"a": ["b"]}], None],
            "view": pa.array(["v", "w"], pa.string_view()),
            "when": pa.array([0, 1], pa.timestamp("s")),
        }
    )
    first = {"text": "a", "category": "x", "half": 0.5, "byte": 1, "money": 1.5, "whole": [7], "is": True}
    second = {"text": "b", "category": "x", "half": 2.0, "byte": None, "money": None, "whole": [], "is": None}
    first |= {"none": None, "nested": [{"a": ["b"]}], "view": "v"}
    second |= {"none": None, "nested": None, "view": "w"}
    names = [name for name in table.column_names if name != "when"]
    parquet.write_table(table, f"{tmp_path}/a.parquet")
    write_file(f"{tmp_path}/file.arrow", table)
    write_stream(f"{tmp_path}/stream.arrow", table)
    for name in ("a.parquet", "file.arrow", "stream.arrow"):
        rows = [row for _, row in tables.read_rows(f"{tmp_path}/{name}", names)]
        assert rows == [first, second]
        assert type(rows[0]["whole"][0]) is int and type(rows[0]["half"]) is float
        with pytest.raises(UserError, match=r"has the column 'when' of type timestamp\[m?s\]: convert it to text"):
            list(tables.read_rows(f"{tmp_path}/{name}"))
    empty = table.slice(0, 0).select(["text"])
    parquet.write_table(empty, f"{tmp_path}/empty.parquet")
    write_stream(f"{tmp_path}/empty.arrow", empty)
    assert not [*tables.read_rows(f"{tmp_path}/empty.parquet"), *tables.read_rows(f"{tmp_path}/empty.arrow")]


UTF16 = "text,label\nxy,1\n".encode("utf-16")
# Files of text: name, content, and the one line that says what is wrong.
ODD_TEXT = [
    ("a.csv", b"", "a.csv is empty: its first line must be the names"),
    ("a.csv", b"\n\n", "a.csv is empty"),
    ("a.csv", b"\xef\xbb\xbf", "a.csv is empty"),
    ("a.csv", b"text,label\n", "a.csv has a header, but no rows"),
    ("a.csv", b"text,label\r\n\r\n", "a.csv has a header, but no rows"),
    ("a.csv.gz", gzip.compress(b""), "a.csv.gz is empty"),
    ("a.csv.gz", gzip.compress(b"text,label\n" + b"x,1\n" * 99)[:-9], "a.csv.gz is damaged"),
    ("a.csv.gz", b"text,label\nx,1\n", "a.csv.gz is damaged"),
    ("a.csv", b"text,text,label\nx,y,1\n", "a.csv has several columns 'text'"),
    ("a.csv", b"label,text,label\n1,y,1\n", "a.csv has several columns 'label'"),
    ("a.csv", b",text,label\n0,x,1\n", "a.csv has no name for column 1: .*pandas"),
    ("a.csv", b"text,label,\nx,1,\n", "a.csv has no name for column 3"),
    ("a.csv", b"text,lable\nx,1\n", "a.csv has no column 'label': did you mean 'lable'"),
    ("a.csv", b"x,1\ny,0\n", "a.csv has no column 'label': choose from: 1, x"),
    ("a.csv", b"text;label\nx;1\n", "no column 'label': its header seems to be separated by semicolons, so separate"),
    ("a.csv", b"text\tlabel\nx\t1\n", "no column 'label': its header seems to be .* tabs, so name it .tsv"),
    ("a.tsv", b"text,label\nx,1\n", "a.tsv has no column 'label': .* commas, so name it .csv"),
    ("a.csv", b"text,label\nx\n", "a.csv:2 has 1 cells, but the header has 2"),
    ("a.csv", b"text,label\nx,1\n\ny,1,2\n", "a.csv:4 has 3 cells, but the header has 2"),
    ("a.csv", b'text,label\n"x\ny",1\nz,1,\n', "a.csv:4 has 3 cells"),
    ("a.csv", b'text,label\n"x,1\n', "a.csv:2 is not valid CSV .unexpected end of data"),
    ("a.csv", b'text,label\n"x,1\ny,0\nz,1\n', "a.csv:2 opens a quoted cell that does not end correctly by line 4"),
    ("a.csv", b'text,label\n"x,1\ny,0\n"z",1\n', "a.csv:2 opens a quoted cell that does not end correctly by line 4"),
    ("a.csv", b'text,label\n"x" y,1\n', "a.csv:2 is not valid CSV .*: double each"),
    ("a.csv", b'"text,label\nx,1\n', "a.csv:1 opens a quoted cell"),
    ("a.csv", b'"te"xt,label\nx,1\n', "a.csv:1 is not valid CSV"),
    ("a.csv", b"text,label\rx,1\ry,0\r", "a.csv:1 is not valid CSV .new-line character seen in unquoted field"),
    ("a.csv", b"text,label\nx\ry,1\n", "a.csv:2 is not valid CSV"),
    ("a.csv", b"text,label\nx\0,1\n", "a.csv:2 has a NUL character: remove it"),
    ("a.csv", b"te\0xt,label\nx,1\n", "a.csv:1 has a NUL character"),
    ("a.csv", b"text,label\nx\xff,1\n", "a.csv:2 is not UTF-8 text: convert it"),
    ("a.csv", b'text,label\n"x\n\xe4",1\n', "a.csv:2 is not UTF-8 text"),
    ("a.csv", b"te\xe4xt,label\nx,1\n", "a.csv:1 is not UTF-8 text"),
    ("a.csv", UTF16, "a.csv:1 (is not UTF-8 text|has a NUL character)"),
    ("a.csv", b"text,label\n" + b"x" * 120 + b",1\n", "a.csv:2 has more than 100 characters"),
    ("a.csv", b'text,label\n"' + b"x\n" * 60 + b'",1\n', "a.csv:2 opens a quoted cell"),
    ("a.csv", b"text,label\nx,2\n", "a.csv:2 has 2 in 'label', which is not in form.labels"),
    ("a.csv", b"text,label\nx,\n", "a.csv:2 has \"\" in 'label', which is not in form.labels"),
    ("a.csv", b"text,label\nx,maybe\n", "a.csv:2 has \"maybe\" in 'label'"),
    ("a.csv", b"text,label\nx," + b"much" * 20 + b"\n", f"a.csv:2 has \"{('much' * 20)[:38]}…\" in 'label', which"),
    ("a.csv", b"text,label\n ,1\n", "a.csv:2 has no text"),
    ("a.TSV", b"text\tlabel\nx\n", "a.TSV:2 has 1 cells"),
    ("a.jsonl", b"text,label\nx,1\n", "a.jsonl:1 is not valid JSON"),
    (
        "a.txt",
        b"Once upon a time\n",
        "a.txt:1 is not valid JSON .* fix or remove .* plain text by a source of kind 'text'",
    ),
    ("a.xlsx", b"PK", "cannot read .*a.xlsx: convert it to .jsonl, .csv, .tsv"),
    ("a.parquet.gz", gzip.compress(b"PAR1"), "cannot read .*a.parquet.gz: convert it"),
    ("a.parquet", b"", "a.parquet is empty: replace it with a Parquet file"),
    ("a.parquet", b"PAR1", "a.parquet is damaged or not a Parquet file"),
    ("a.parquet", b"text,label\nx,1\n", "a.parquet is damaged or not a Parquet file"),
    ("a.parquet", b"PAR1" * 9, "a.parquet is damaged or not a Parquet file"),
    ("a.arrow", b"", "a.arrow is empty: replace it with an Arrow file"),
    ("a.arrow", b"text,label\nx,1\n", "a.arrow is not an Arrow file, or was cut off"),
    ("a.arrow", b"ARROW1\0\0", "a.arrow is damaged or not an Arrow file"),
    ("a.arrow", b"\xff\xff\xff\xff\0\0\0\0", "a.arrow is damaged or not an Arrow file"),
]


def assert_one_line(source, message):
    with pytest.raises(UserError) as caught:
        list(files.read(source))
    line = str(caught.value)
    assert re.search(message, line) and "\n" not in line, line


@pytest.mark.parametrize(("name", "data", "message"), ODD_TEXT, ids=range(len(ODD_TEXT)))
def test_an_odd_file_is_one_line(name, data, message, tmp_path):
    (tmp_path / name).write_bytes(data)
    source = config.LabeledTable(f"{tmp_path}/{name}", config.ClassForm(LABELS), max_characters=100)
    assert_one_line(source, message)


def binary(array):
    return array.cast(pa.binary())


PLAIN = {"text": ["a", "b"], "label": [1, 0]}
# Tables for Parquet and Arrow files, and the one line that says what is wrong.
ODD_COLUMNS = [
    ({"text": ["a", None], "label": [1, 0]}, "row 2 has null in 'text': expected a text"),
    ({"text": ["a", "b"], "label": [1, None]}, "row 2 has null in 'label'"),
    ({"text": ["a", "b"], "label": [1, 5]}, "row 2 has 5 in 'label'"),
    ({"text": ["a", "b"], "label": [1.0, float("nan")]}, "row 1 has 1.0 in 'label'"),
    ({"text": ["a", "b"], "label": [[1], [0]]}, "row 1 has .1. in 'label'"),
    ({"text": [1, 2], "label": [1, 0]}, "row 1 has 1 in 'text': expected a text"),
    ({"text": [["a"], ["b"]], "label": [1, 0]}, "row 1 has ..\"a\".. in 'text': expected a text".replace("..", "..?")),
    ({"text": [{"a": 1}, None], "label": [1, 0]}, "row 1 has .* in 'text': expected a text"),
    ({"text": [True, False], "label": [1, 0]}, "row 1 has true in 'text'"),
    ({"text": pa.nulls(2), "label": [1, 0]}, "row 1 has null in 'text'"),
    ({"text": pa.array([b"a", b"b"]), "label": [1, 0]}, "has the column 'text' of type binary: convert it"),
    ({"text": ["a", "b"], "label": pa.array([0, 1], pa.timestamp("us"))}, "'label' of type timestamp"),
    ({"text": ["a", "b"], "label": pa.array([0, 1], pa.date32())}, "'label' of type date32"),
    ({"text": ["a", "b"], "label": pa.array([0, 1], pa.time32("s"))}, "'label' of type time32"),
    ({"text": ["a", "b"], "label": pa.array([[0], [1]], pa.list_(pa.date32()))}, "'label' of type list"),
    ({"text": ["a", "b"], "label": pa.array([{"x": b"1"}] * 2)}, "'label' of type struct"),
    ({"text": ["a", "b"], "label": pa.array([[(1, 2)]] * 2, pa.map_(pa.int8(), pa.int8()))}, "'label' of type map"),
    ({"texts": ["a", "b"], "label": [1, 0]}, "has no column 'text': did you mean 'texts'"),
    ({"body": ["a", "b"], "label": [1, 0]}, "has no column 'text': choose from: body, label"),
    ({"text": ["a", "x" * 200], "label": [1, 0]}, "row 2 has more than 100 characters"),
    ({"text": ["a", " "], "label": [1, 0]}, "row 2 has no text: remove this row"),
]


@pytest.mark.parametrize(("columns", "message"), ODD_COLUMNS, ids=range(len(ODD_COLUMNS)))
def test_an_odd_column_is_one_line(columns, message, tmp_path):
    table = pa.table(columns)
    parquet.write_table(table, f"{tmp_path}/a.parquet")
    write_stream(f"{tmp_path}/b.arrow", table)
    write_file(f"{tmp_path}/c.arrow", table)
    for name in ("a.parquet", "b.arrow", "c.arrow"):
        source = config.LabeledTable(f"{tmp_path}/{name}", config.ClassForm(LABELS), max_characters=100)
        assert_one_line(source, f"{re.escape(str(tmp_path))}/{name}(:| ).*{message}|{name}.*{message}")


def test_names_of_columns_that_are_ambiguous_are_one_line(tmp_path):
    table = pa.table([["a"], ["b"], [1]], names=["text", "text", "label"])
    write_stream(f"{tmp_path}/a.arrow", table)
    assert_one_line(config.TextTable(f"{tmp_path}/a.arrow"), "a.arrow has several columns 'text'")
    parquet.write_table(pa.table([["a"], [1]], names=["text", ""]), f"{tmp_path}/a.parquet")
    assert_one_line(config.TextTable(f"{tmp_path}/a.parquet"), "a.parquet has no name for column 2")


def test_text_in_parquet_that_is_not_utf8_is_a_bad_row(tmp_path):
    texts = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"\xff", b"c"]).buffers())
    parquet.write_table(pa.table({"text": texts}), f"{tmp_path}/a.parquet")
    source, skipped = config.TextTable(f"{tmp_path}/a.parquet"), corpus.Skipped()
    assert [record.text for record in files.read(source, skipped=skipped)] == ["a", "c"]
    assert skipped.first == [f"{tmp_path}/a.parquet:row 2 is not UTF-8 text: convert it to UTF-8"]
    write_stream(f"{tmp_path}/a.arrow", pa.table({"text": texts}))
    assert_one_line(config.TextTable(f"{tmp_path}/a.arrow"), "a.arrow is damaged .*UTF8")


@pytest.mark.parametrize("kind", ["parquet", "stream", "file"])
def test_damage_anywhere_is_one_line_or_a_change_of_values(kind, tmp_path):
    rows = [{"text": text, "label": i % 2, "list": ["x"] * (i % 3)} for i, text in enumerate(FIRST)]
    path = f"{tmp_path}/a.{'parquet' if kind == 'parquet' else 'arrow'}"
    writers = {"parquet": lambda path, table: parquet.write_table(table, path, row_group_size=20)}
    writers |= {"stream": write_stream, "file": write_file}
    writers[kind](path, pa.Table.from_pylist(rows))
    whole = storage.read(path)
    size = len(whole)
    cut = [whole[: size * i // 16] for i in range(16)] + [whole[: size - i] for i in (1, 4, 8, 12)]
    flipped = [whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :] for at in range(3, size, size // 40)]
    for data in (*cut, *flipped):
        storage.write(path, data)
        try:
            number = len(list(tables.read_rows(path, ["text", "list"])))
        except UserError as error:
            assert str(error).startswith(path) and "\n" not in str(error), error
        else:
            assert data in flipped and number <= len(rows), "a file that was cut is noticed"


def test_bad_rows_are_skipped(run, few_shards, tmp_path):
    good = [f'"text {i}\nof two lines",{i % 2}\n' for i in range(400)]
    bad = ["one\n", "x,1,2\n", '"x" y,1\n', "\0,1\n"]
    (tmp_path / "good.csv").write_text("text,label\n" + "".join(good))
    (tmp_path / "bad.csv").write_text("text,label\n" + "".join([*good[:9], *bad[:2], *good[9:], *bad[2:]]))
    source = config.TextTable(f"{tmp_path}/good.csv")
    expected = prepare(run(source), tmp_path / "expected", ["origin.npy"])
    source = config.TextTable(f"{tmp_path}/bad.csv")
    assert prepare(run(source, bad_rows="skip"), tmp_path / "skipped", ["origin.npy"]) == expected
    counts = cache.read_manifest(str(tmp_path / "skipped/a"))["bad_rows"]
    line_numbers = [line.removeprefix(f"{tmp_path}/bad.csv:").split(" ")[0] for line in counts["first"]]
    assert (counts["rows"], counts["bad"], line_numbers) == (404, 4, ["20", "21", "804", "805"])
    texts = [text for text in FIRST for _ in range(5)] + [None]
    parquet.write_table(pa.table({"text": texts}), f"{tmp_path}/a.parquet", row_group_size=50)
    skipped = corpus.Skipped()
    records = list(files.read(config.TextTable(f"{tmp_path}/a.parquet"), skipped=skipped))
    assert [record.row_number for record in records] == list(range(1, 301)) and skipped.bad == 1
    assert skipped.first[0].endswith("a.parquet:row 301 has no text in 'text': expected a text, not null")


def test_a_changed_file_is_noticed(run, few_shards, tmp_path):
    for name in ("a.csv", "a.parquet", "saved"):
        rows = [{"text": text} for text in FIRST]
        table_run = run(config.TextTable(write(f"{tmp_path}/{name}", rows)), cache_dir=f"{tmp_path}/cache-{name}")
        preparation.prepare(table_run, show_progress=False)
        assert staleness.compare(table_run.data, "a") == staleness.Comparison(), name
        rows[3]["text"] = rows[3]["text"].swapcase()
        if name == "saved":
            write_stream(f"{tmp_path}/saved/data-00000-of-00002.arrow", pa.Table.from_pylist(rows[:20]))
        else:
            write(f"{tmp_path}/{name}", rows)
        assert re.search("has changed|has another size", staleness.compare(table_run.data, "a").changed)
    other = config.TextTable(f"{tmp_path}/a.tsv")
    os.link(f"{tmp_path}/a.csv", other.path)
    assert other.open("a").fingerprint() != config.TextTable(f"{tmp_path}/a.csv").open("a").fingerprint()


def test_paths_that_name_no_files_are_one_line(tmp_path):
    rows = [{"text": text} for text in FIRST]
    write(f"{tmp_path}/set/train", rows)
    (tmp_path / "set/dataset_dict.json").write_text('{"splits": ["train"]}')
    (tmp_path / "tables").mkdir()
    write(f"{tmp_path}/tables/part-0.parquet", rows)
    (tmp_path / "tables/_SUCCESS").touch()
    files.check("mine", config.TextTable(f"{tmp_path}/set/train"))
    field = "config.data.sources.mine.path"
    for path, message in {
        "set": f"{tmp_path}/set has a dataset for each split: choose one of them, {tmp_path}/set/train",
        "tables": f"is a folder: set {field} to {tmp_path}/tables/*.parquet",
        "tables/part-0.parq": f"there is no file at .*: did you mean '{tmp_path}/tables/part-0.parquet'? Set {field}",
        "none/*.csv": f"there is no file at .*: put the documents of 'mine' there, or set {field}",
    }.items():
        with pytest.raises(UserError, match=re.escape(message).replace(r"\.\*", ".*")):
            files.check("mine", config.TextTable(f"{tmp_path}/{path}"))
    (tmp_path / "a.xlsx").touch()
    with pytest.raises(UserError, match=r"cannot read .*a.xlsx: convert it"):
        files.check("mine", config.TextTable(f"{tmp_path}/a.xlsx"))
    files.check("mine", config.TextFiles(f"{tmp_path}/a.xlsx"))
    os.remove(tmp_path / "set/train/data-00001-of-00002.arrow")
    with pytest.raises(UserError, match=r"train lacks data-00001-of-00002.arrow, which its state.json lists"):
        files.check("mine", config.TextTable(f"{tmp_path}/set/train"))
    for state in ("{", "[]", '{"_data_files": [], "_indices_data_files": [{"filename": "a"}]}', '{"_data_files": [1]}'):
        (tmp_path / "set/train/state.json").write_text(state)
        with pytest.raises(UserError, match=r"state.json .*save"):
            files.check("mine", config.TextTable(f"{tmp_path}/set/train"))


def test_a_dataset_that_the_library_saves_is_read_without_it(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [{"text": text, "answers": answer(i, text), "label": i % 2} for i, text in enumerate(FIRST)]
    saved = datasets.Dataset.from_list(rows).filter(lambda row: row["label"] == 1)
    saved.save_to_disk(f"{tmp_path}/saved", num_shards=3)
    assert [row for _, row in tables.read_rows(f"{tmp_path}/saved")] == rows[1::2]
    code = "import sys; from plm_jax.data.sources import tables; print(len(list(tables.read_rows(sys.argv[1])))); "
    code += "assert 'pyarrow' in sys.modules and 'datasets' not in sys.modules"
    command = [sys.executable, "-c", code, f"{tmp_path}/saved"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "30\n"
    datasets.DatasetDict({"train": saved, "test": saved}).save_to_disk(f"{tmp_path}/both")
    with pytest.raises(UserError, match=r"both has a dataset for each split: choose one of them, .*train or .*test"):
        files.paths(config.TextTable(f"{tmp_path}/both"))


def test_files_in_buckets(tmp_path):
    rows = [{"text": text} for text in FIRST]
    for name in ("a.csv.gz", "a.parquet", "a.arrow", "saved"):
        write(f"{tmp_path}/{name}", rows)
        fsspec.filesystem("memory").put(f"{tmp_path}/{name}", f"memory://bucket/{name}", recursive=True)
        texts = [record.text for record in files.read(config.TextTable(f"memory://bucket/{name}"))]
        assert texts == FIRST, name
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize(
    ("path", "module", "extra"),
    [("a.parquet", "pyarrow", "tables"), ("hf://datasets/a/b/c.parquet", "huggingface_hub", "hub")],
)
def test_a_missing_extra_is_one_line(path, module, extra, tmp_path, monkeypatch):
    write(f"{tmp_path}/a.parquet", [{"text": "x"}])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    for name in [name for name in sys.modules if name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "hf", raising=False)
    with pytest.raises(UserError, match=rf"{module} is not installed: run pip install '\.\[{extra}\]'"):
        list(files.read(config.TextTable(path)))
    assert module in extras.EXTRAS[extra]


def test_seqio_reads_tables(tmp_path):
    rows = [{"a": text, "b": i} for i, text in enumerate(FIRST)]
    source = config.TableInputsTargets(write(f"{tmp_path}/a.csv", rows), "{a}", "{b}")
    expected = [(text, str(i)) for i, text in enumerate(FIRST)]
    assert [example[:2] for example in tasks.examples(tasks.registered("a", source), "train")] == expected


PEAK = """
import resource, sys
from plm_jax import config
from plm_jax.data.sources import files
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
list(files.read(config.LabeledTable(sys.argv[1], config.ClassForm(("no", "yes")))))
before = peak()
number = sum(1 for _ in files.read(config.LabeledTable(sys.argv[2], config.ClassForm(("no", "yes")))))
print(number, peak() - before)
"""


def test_a_large_file_needs_little_memory(tmp_path):
    texts = pa.array(["a text " * 400 + str(i) for i in range(2000)])
    table = pa.table({"text": texts, "label": pa.array([0, 1] * 1000), "other": texts})
    parquet.write_table(table.slice(0, 9), f"{tmp_path}/small.parquet")
    with parquet.ParquetWriter(f"{tmp_path}/large.parquet", table.schema) as writer:
        for _ in range(30):
            writer.write_table(table)
    command = [sys.executable, "-c", PEAK, f"{tmp_path}/small.parquet", f"{tmp_path}/large.parquet"]
    number, growth = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert number == 60_000 and growth < 100e6
