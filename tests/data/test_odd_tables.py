"""Odd and damaged tables: each has the rows of an independent reader, or is rejected with one line.

`cases` is a table of generators. A case has a file name, its bytes, and what may happen: "rows" must be read, "error"
must be rejected, and "either" is rejected or has the rows of the `csv` module, `json` or PyArrow.
"""

import csv
import gzip
import io
import itertools
import json
import zipfile
from typing import NamedTuple

import pyarrow as pa
import pytest
from pyarrow import parquet

from plm_jax.common.errors import UserError
from plm_jax.inference import tables

TEXTS = [
    "plain",
    "Größe, naïve",
    'a "quoted" word',
    "two\nlines",
    "a\ttab",
    "海 🙂",
    " space ",
    "'",
    "#",
    "\\",
    "007",
    "null",
]
ROWS = [{"text": text, "label": str(number % 2)} for number, text in enumerate(TEXTS)]


class Case(NamedTuple):
    name: str
    file: str
    content: bytes
    outcome: str


def csv_bytes(rows=ROWS, delimiter=",", ends="\n", quoting=csv.QUOTE_MINIMAL):
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=delimiter, lineterminator=ends, quoting=quoting)
    writer.writerows([list(rows[0]), *(list(row.values()) for row in rows)])
    return file.getvalue().encode("utf-8")


def json_bytes(rows=ROWS, **options):
    return "".join(json.dumps(row, **options) + "\n" for row in rows).encode("utf-8")


def parquet_bytes(table, **options):
    file = io.BytesIO()
    parquet.write_table(table, file, **options)
    return file.getvalue()


def arrow_bytes(table, new=pa.ipc.new_file, **options):
    file = io.BytesIO()
    with new(file, table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=5)
    return file.getvalue()


def dialects():
    for (extension, delimiter), ends, quoting, mark in itertools.product(
        {"csv": ",", "tsv": "\t"}.items(), ("\n", "\r\n"), (csv.QUOTE_MINIMAL, csv.QUOTE_ALL), (b"", b"\xef\xbb\xbf")
    ):
        content = mark + csv_bytes(delimiter=delimiter, ends=ends, quoting=quoting)
        name = f"{extension} {ends!r} quoting {quoting} mark {bool(mark)}"
        yield Case(name, f"a.{extension}", content, "rows")
        yield Case(f"{name} compressed", f"a.{extension}.gz", gzip.compress(content), "rows")


def encodings():
    texts = {
        "latin-1": "Größe",
        "cp1252": "naïve “x”",
        "shift_jis": "海",
        "gb18030": "海",
        "koi8-r": "мир",
        "big5": "海",
    }
    texts |= dict.fromkeys(("utf-16", "utf-16-le", "utf-16-be", "utf-32"), "plain")
    for encoding, text in texts.items():
        yield Case(encoding, "a.csv", f"text,label\n{text},1\n".encode(encoding), "error")
        yield Case(encoding, "a.tsv", f"text\tlabel\n{text}\t1\n".encode(encoding), "error")
        yield Case(encoding, "a.jsonl", json.dumps({"text": text}, ensure_ascii=False).encode(encoding), "error")
        yield Case(encoding, "a.txt", f"{text}\n{text}\n".encode(encoding), "error")
    for surrogate in (b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80", b"\xff", b"a\xe4"):
        yield Case(f"bytes {surrogate!r}", "a.csv", b"text,label\nx" + surrogate + b",1\n", "error")
        yield Case(f"bytes {surrogate!r}", "a.jsonl", b'{"text": "x' + surrogate + b'"}\n', "error")


def csv_quirks():
    header = b"text,label\n"
    lines = {
        "rows": b'"",1|"a""b",1|"a,b",1|"a\nb",1|"a\r\nb",1| a ,1|\'a\',1|a\\,1|,|"",""',
        "error": b'"a"b,1|"a" ,1|"a,1|"a\nb,1|a|a,1,2|a,1,| |a\0b,1|"a\0",1|a\rb,1',
        "either": b'a"b,1|a"b"c,1| "a",1|a;1,1|a,"1"|\x1a,1|\xef\xbb\xbfx,1|"a""",1|"a"",1|\\N,1|=1+1,1',
    }
    for outcome, rows in lines.items():
        for row in rows.split(b"|"):
            yield Case(f"only {row!r}", "a.csv", header + row + b"\n", outcome)
            yield Case(f"among others {row!r}", "a.csv", header + b"x,0\n" + row + b"\ny,1\n", outcome)
    for name, space in {
        "VT": "\x0b",
        "FF": "\x0c",
        "FS": "\x1c",
        "NEL": "\x85",
        "LS": "\u2028",
        "PS": "\u2029",
    }.items():
        yield Case(f"a cell with {name}", "a.csv", f"text,label\na{space}b,1\n".encode(), "rows")
        yield Case(
            f"a string with {name}",
            "a.jsonl",
            json.dumps({"text": f"a{space}b"}, ensure_ascii=False).encode(),
            "either",
        )
    for name, size in {"long": 200_000, "longer than the csv module's limit": 2**17 + 1, "too long": 2**24 + 1}.items():
        yield Case(
            f"a {name} cell", "a.csv", b"text,label\n" + b"x" * size + b",1\n", "error" if size > 2**24 else "rows"
        )
    yield Case("many columns", "a.csv", csv_bytes([{"text": "x"} | {str(i): str(i) for i in range(3000)}]), "rows")
    yield Case("many rows", "a.csv", csv_bytes(ROWS * 500), "rows")
    yield Case("no end of line", "a.csv", csv_bytes().removesuffix(b"\n"), "rows")
    yield Case("blank lines", "a.csv", b"\n\ntext,label\n\nx,1\n\n\ny,0\n\n", "rows")
    for ends in (b"\r", b"\n\r"):
        yield Case(f"lines end with {ends!r}", "a.csv", b"text,label\nx,1\ny,0\n".replace(b"\n", ends), "error")


def headers():
    for extension in ("csv", "tsv", "csv.gz", "jsonl", "jsonl.gz", "txt", "parquet", "arrow"):
        yield Case("no bytes", f"a.{extension}", b"", "error")
    for content in (
        b"\n",
        b"\xef\xbb\xbf",
        b"text,label",
        b"text,label\n",
        b"\xef\xbb\xbftext,label\r\n\r\n",
        b"\n\n\n",
    ):
        yield Case(f"no rows {content!r}", "a.csv", content, "error")
        yield Case(f"no rows {content!r}", "a.csv.gz", gzip.compress(content), "error")
    bad = [
        "text,text",
        "text,",
        ",text",
        "Text,label",
        "x,y",
        "text;label",
        "text|label",
        "label",
        "te xt,label",
        '"text;label"',
    ]
    for header in bad:
        cells = ",".join("1" for _ in header.split(","))
        yield Case(f"header {header}", "a.csv", f"{header}\n{cells}\n".encode(), "error")
    for header in ("text,text ", '"text","a,b"', "text, label", "text,Text", "text,1", "text,ß"):
        yield Case(f"header {header}", "a.csv", f"{header}\nx,1\n".encode(), "rows")


def json_lines():
    values = ["x", "", " ", "\t", "é", "\u2028", "\x7f", "\\", '"', "[1]", "1", "null"]
    for value in values:
        yield Case(f"text {value!r}", "a.jsonl", json_bytes([{"text": value}]), "rows")
        yield Case(f"plain text {value!r}", "a.jsonl", json_bytes([{"text": value}], ensure_ascii=False), "rows")
    for other in (0, -1, 1.5, 1e300, 2**70, True, None, [], {}, [1, "a", None], {"a": {"b": [1]}}, [[[[1]]]]):
        yield Case(f"next to {other!r}", "a.jsonl", json_bytes([{"text": "x", "other": other}] * 2), "rows")
    yield Case(
        "mixed types", "a.jsonl", json_bytes([{"text": "x", "n": n} for n in (1, "1", None, [1], {"a": 1})]), "rows"
    )
    yield Case("missing and further fields", "a.jsonl", json_bytes([{"text": "x"}, {"text": "y", "n": 1}]), "rows")
    yield Case("blank lines", "a.jsonl", b'\n{"text": "x"}\n\n \n{"text": "y"}\r\n', "rows")
    yield Case("spaces", "a.jsonl", b'  {"text" : "x" }  \n', "rows")
    yield Case("nested", "a.jsonl", b'{"text": "x", "n": ' + b"[" * 300 + b"]" * 300 + b"}\n", "error")
    for line in (
        *(
            "{",
            "}",
            "x",
            "[]",
            '"x"',
            "1",
            "null",
            "{}{}",
            "{'text': 'x'}",
            '{"text": "x",}',
            '{"text": x}',
            "{text: 1}",
        ),
        *(
            '{"text": "x"} {"text": "y"}',
            '[{"text": "x"}]',
            '{"text": "x", "text": "y"}',
            '{"text": NaN}',
            "// a",
            "{\n}",
        ),
        *(
            '{"text": "x", "n": Infinity}',
            '{"text": "x", "n": 1e999}',
            '{"text": "\\ud800"}',
            '{"text": "\\x"}',
            "\ufeff{",
        ),
        *('{"text": "a\tb"}', '{"text": 1}', '{"text": null}', '{"text": ["x"]}', '{"n": "x"}', "{}", '{"text": true}'),
    ):
        yield Case(f"line {line!r}", "a.jsonl", f"{line}\n".encode(), "error")
        yield Case(f"second line {line!r}", "a.jsonl", f'{{"text": "x"}}\n{line}\n'.encode(), "error")
    whole = json_bytes(ROWS[:2])
    for size in range(4, len(whole) - 2, 6):
        yield Case(f"cut at {size}", "a.jsonl", whole[:size], "either")


def typed_columns():
    """Columns next to the texts, and whether they can be read."""
    numbers = (pa.int8(), pa.uint16(), pa.int64(), pa.uint64(), pa.float32(), pa.float64())
    texts = (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string()))
    two = [
        *(pa.array([1, None], kind) for kind in numbers),
        *(pa.array(["a", None], kind) for kind in texts),
        *(pa.array([[1], None]), pa.array([["a", None], []]), pa.array([[1.5, 2], [3, 4]], pa.list_(pa.float32(), 2))),
        *(pa.array([{"a": 1}, {"a": None}]), pa.array([[{"a": ["x"]}], []]), pa.array([True, None]), pa.nulls(2)),
    ]
    yield from ((column, "rows") for column in two)
    yield pa.array([0, 1], pa.duration("s")), "error"
    yield from ((pa.array([b"a", b"b"], kind), "error") for kind in (pa.binary(), pa.large_binary(), pa.binary(1)))
    yield pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int8())), "error"
    yield pa.array([[b"a"], []]), "error"
    yield pa.array([{"a": b"x"}] * 2), "error"


def columnar():
    plain = pa.table({name: [row[name] for row in ROWS] for name in ROWS[0]})
    files = {"parquet": parquet_bytes, "arrow": arrow_bytes}
    for (column, outcome), (extension, write) in itertools.product(typed_columns(), files.items()):
        table = pa.table({"text": ["x", "y"], "other": column})
        yield Case(f"column {column.type}", f"a.{extension}", write(table), outcome)
    for compression in ("none", "snappy", "gzip", "zstd", "lz4", "brotli"):
        yield Case(f"compressed by {compression}", "a.parquet", parquet_bytes(plain, compression=compression), "rows")
    for options in ({"row_group_size": 1}, {"use_dictionary": False}, {"data_page_version": "2.0"}, {"version": "1.0"}):
        yield Case(f"options {options}", "a.parquet", parquet_bytes(plain, **options), "rows")
    for compression in ("lz4", "zstd"):
        options = pa.ipc.IpcWriteOptions(compression=compression)
        yield Case(f"compressed by {compression}", "a.arrow", arrow_bytes(plain, options=options), "rows")
    yield Case("a stream", "a.arrow", arrow_bytes(plain, pa.ipc.new_stream), "rows")
    bad = {"no rows": plain.slice(0, 0), "no columns": pa.table({}), "no text": plain.select(["label"])}
    bad |= {
        "two columns text": pa.table([["a"], ["b"]], ["text", "text"]),
        "no name": pa.table([["a"], ["b"]], ["text", ""]),
    }
    bad |= {
        "null": pa.table({"text": ["a", None]}),
        "numbers": pa.table({"text": [1]}),
        "lists": pa.table({"text": [["a"]]}),
    }
    for (name, table), (extension, write) in itertools.product(bad.items(), files.items()):
        yield Case(name, f"a.{extension}", write(table), "error")


def damage():
    plain = pa.table({name: [row[name] for row in ROWS] for name in ROWS[0]})
    wholes = {
        "a.parquet": parquet_bytes(plain, row_group_size=4),
        "file.arrow": arrow_bytes(plain),
        "stream.arrow": arrow_bytes(plain, pa.ipc.new_stream),
        "a.csv.gz": gzip.compress(csv_bytes(ROWS * 20), mtime=0),
        "a.jsonl.gz": gzip.compress(json_bytes(ROWS * 20), mtime=0),
    }
    for file, whole in wholes.items():
        positions = sorted(
            {*(len(whole) * part // 12 for part in range(12)), *(len(whole) - back for back in (1, 4, 8, 9))}
        )
        for size in positions:
            yield Case(f"cut at {size}", file, whole[:size], "error")
        if file.endswith(".gz"):
            for at in range(0, len(whole), len(whole) // 12):
                flipped = whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]
                yield Case(f"changed at {at}", file, flipped, "either")
    whole = csv_bytes()
    for size in range(3, len(whole), len(whole) // 20):
        yield Case(f"cut at {size}", "a.csv", whole[:size], "either")


def wrong_extensions():
    plain = pa.table({name: [row[name] for row in ROWS] for name in ROWS[0]})
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.csv", csv_bytes())
    contents = {"csv": csv_bytes(), "jsonl": json_bytes(), "parquet": parquet_bytes(plain), "arrow": arrow_bytes(plain)}
    contents |= {"csv.gz": gzip.compress(csv_bytes()), "zip": archive.getvalue(), "tsv": csv_bytes(delimiter="\t")}
    extensions = (
        "csv",
        "tsv",
        "jsonl",
        "parquet",
        "arrow",
        "csv.gz",
        "jsonl.gz",
        "parquet.gz",
        "xlsx",
        "zip",
        "feather",
    )
    for (kind, content), extension in itertools.product(contents.items(), extensions):
        if kind != extension:
            yield Case(f"{kind} as {extension}", f"a.{extension}", content, "error")


GENERATORS = (dialects, encodings, csv_quirks, headers, json_lines, columnar, damage, wrong_extensions)


def cases():
    return [(generator, case) for generator in GENERATORS for case in generator()]


def expected(file, content):
    """Returns the rows by an independent reader, or None if it rejects the file."""
    try:
        if file.endswith(".gz"):
            file, content = file.removesuffix(".gz"), gzip.decompress(content)
        if file.endswith((".csv", ".tsv")):
            csv.field_size_limit(2**31 - 1)
            text = io.StringIO(content.decode("utf-8-sig"), newline="")
            header, *lines = filter(
                None, csv.reader(text, delimiter="\t" if file.endswith("tsv") else ",", strict=True)
            )
            return [dict(zip(header, line, strict=True)) for line in lines]
        if file.endswith(".jsonl"):
            return [json.loads(line) for line in content.decode("utf-8").split("\n") if line.strip()]
        if file.endswith(".parquet"):
            return parquet.read_table(io.BytesIO(content)).to_pylist()
        if file.endswith(".arrow"):
            is_file = content.startswith(b"ARROW1")
            return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(content).read_all().to_pylist()
        return [{"text": line} for line in content.decode("utf-8").split("\n")[:-1]]
    except (ValueError, EOFError, OSError, csv.Error, pa.ArrowException):
        return None


def read(path):
    """Returns the rows that `predict` and `embed` read, or the message of the error."""
    make = tables.example_maker(None, None, ["text"])
    rows = []
    try:
        for location, row in tables.read(path, "out.jsonl"):
            assert isinstance(make(location, row), str)
            rows.append({name: str(value) if isinstance(value, str) else value for name, value in row.items()})
    except UserError as error:
        return str(error)
    return rows


def test_there_are_many_different_cases():
    contents = {(case.file, case.content) for _, case in cases()}
    assert len(contents) > 400


@pytest.mark.parametrize("generator", GENERATORS, ids=lambda generator: generator.__name__)
def test_each_table_has_the_rows_of_an_independent_reader_or_is_one_line(generator, tmp_path):
    problems = []
    for case in generator():
        path = tmp_path / case.file
        path.write_bytes(case.content)
        result = read(str(path))
        if isinstance(result, str):
            is_right = case.outcome != "rows" and "\n" not in result and str(path) in result and len(result) < 600
        else:
            is_right = case.outcome != "error" and result == expected(case.file, case.content)
        if not is_right:
            problems.append((case.name, case.file, case.outcome, str(result)[:300]))
    assert not problems


@pytest.mark.parametrize("number", [3, 120, 260, 400])
def test_a_command_exits_with_status_2_and_one_line(number, verb, tmp_path):
    rejected = [case for _, case in cases() if case.outcome == "error"]
    case = rejected[number % len(rejected)]
    (tmp_path / case.file).write_bytes(case.content)
    arguments = (f"--input={tmp_path}/{case.file}", f"--output={tmp_path}/out.jsonl", "--checkpoint=none")
    finished = verb("predict", *arguments)
    assert finished.status == 2 and len(finished.errors) == 1 and "Traceback" not in finished.err
