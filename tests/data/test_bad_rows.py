"""`data.bad_rows=skip`: the cache is that of the good rows, and what was left out is told."""

import gzip
import json
import os

import pytest

from plm_jax import config
from plm_jax.common import trees
from plm_jax.common.errors import UserError
from plm_jax.data import cache
from plm_jax.data.sources import corpus, files, tasks
from plm_jax.runs import preparation
from tests.support.caches import contents

TEXTS = [f"Document {i}. It counts: {' '.join(map(str, range(i % 23)))}! Ünd aus" for i in range(400)]
BAD = [
    (b'{"text": "cut o', "is not valid JSON"),
    (b'{"text": "\xff"}', "is not UTF-8 text"),
    (b'{"texts": "x"}', "has no text in 'text'"),
    (rb'{"text": "half \ud83d"}', "has half of a surrogate pair"),
]


def write(path, rows):
    path.write_bytes(b"".join(row + b"\n" for row in rows))


def prepared(run, folder, capsys):
    """The contents of the cache but what tells where documents come from, its manifest, and what was said."""
    preparation.prepare(run, str(folder), show_progress=False)
    excluded = "manifest.json", "files.json", "origin.npy", "checksums.npy"
    kept_files = {name: data for name, data in contents(folder).items() if os.path.basename(name) not in excluded}
    manifest = cache.read_manifest(os.path.join(folder, "a"))
    for counts in manifest["splits"].values():
        del counts["crc32"]
    return kept_files, manifest, capsys.readouterr().out


@pytest.fixture
def make(make_run, tmp_path):
    """A run over bytes whose source is as given."""

    def make(source, bad_rows="skip"):
        data = {"validation_fraction": 0.1, "bad_rows": bad_rows, "sources": {"a": source}}
        return make_run("a", eos=256, vocab_size=257, data=data)

    return make


def test_bad_lines_are_skipped_counted_and_reported(make, tmp_path, capsys):
    good = [json.dumps({"text": text}).encode() for text in TEXTS]
    write(tmp_path / "good.jsonl", good)
    bad = [line for line, _ in BAD]
    write(tmp_path / "bad.jsonl", [*good[:7], b"", *bad[:2], *good[7:300], *bad[2:], *good[300:]])
    run = make(config.TextTable(f"{tmp_path}/bad.jsonl"))
    without_bad, manifest, output = prepared(run, tmp_path / "skipped", capsys)
    expected, other, _ = prepared(make(config.TextTable(f"{tmp_path}/good.jsonl"), "stop"), tmp_path / "wanted", capsys)
    assert without_bad == expected
    locations = [f"{tmp_path}/bad.jsonl:{line}" for line in (9, 10, 304)]
    assert manifest["bad_rows"]["rows"] == 404 and manifest["bad_rows"]["bad"] == 4
    for location, (_, words), line in zip(locations, BAD, manifest["bad_rows"]["first"], strict=False):
        assert line.startswith(f"{location} {words}") and line in output
    assert "a: skipped 4 bad rows of 404 (" in output
    assert "bad_rows" not in other and manifest["splits"] == other["splits"]
    # What is done with bad rows is a part of what the cache is.
    with pytest.raises(UserError, match=r"bad.jsonl:9 is not valid JSON .*\(--config.data.bad_rows=skip skips"):
        preparation.prepare(make(run.data.sources["a"], "stop"), str(tmp_path / "skipped"), show_progress=False)


def test_more_than_one_percent_of_bad_rows_is_an_error(make, tmp_path):
    good, bad = [b'{"text": "x"}'] * 198, [b"{"] * 2
    write(tmp_path / "a.jsonl", [*bad, *good])
    run = make(config.TextTable(f"{tmp_path}/a.jsonl"))
    preparation.prepare(run, str(tmp_path / "cache"), show_progress=False)
    write(tmp_path / "a.jsonl", [*bad, *good[1:]])
    before = contents(tmp_path / "cache" / "a")
    with pytest.raises(UserError, match=r"2 of the 199 rows of source 'a' are bad, more than 1% \(.*a.jsonl:1 is not"):
        preparation.prepare(run, str(tmp_path / "cache"), show_progress=False)
    assert contents(tmp_path / "cache" / "a") == before


# Of the documents that are read, file and line.
PLACES = {"line": [(0, 1), (0, 6), (1, 1)], "paragraph": [(0, 6), (1, 1)], "file": [(1, 1)]}


@pytest.mark.parametrize(
    ("document", "locations"), [("line", [":2", ":4"]), ("paragraph", [":1", ":4"]), ("file", [""])]
)
def test_invalid_utf8_is_skipped_by_the_document(document, locations, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\n\xfftwo\n\nthr\xfee\n\nfour \xc3\xa9\n")
    (tmp_path / "b.txt").write_text("five\n")
    source, skipped = config.TextFiles(f"{tmp_path}/?.txt", document=document), corpus.Skipped()
    records = list(files.read(source, skipped=skipped))
    last = ["five\n"] if document == "file" else ["five"]
    texts = [record.text for record in records]
    assert texts == {"line": ["one", "four é"], "paragraph": ["four é"], "file": []}[document] + last
    assert [record[2:4] for record in records] == PLACES[document]
    assert [line.partition(" is not UTF-8")[0] for line in skipped.first] == [
        f"{tmp_path}/a.txt{at}" for at in locations
    ]
    assert (skipped.bad, skipped.rows) == (len(locations), len(locations) + len(records))
    with pytest.raises(UserError, match=rf"a.txt{locations[0]} is not UTF-8"):
        list(files.read(source))


def test_bad_examples_are_skipped_in_preparation_and_evaluation(tmp_path):
    write(tmp_path / "a.jsonl", [b'{"a": "x", "b": 1}', b'{"a": "x"}', b'{"a": null, "b": 2}', b'{"a": "y", "b": 3}'])
    source, skipped = config.TableInputsTargets(f"{tmp_path}/a.jsonl", "in {a}", "{b}"), corpus.Skipped()
    expected = [("in x", "1"), ("in y", "3")]
    pairs = [(record.text, *record.other_texts) for record in files.read(source, skipped=skipped)]
    assert pairs == expected and (skipped.bad, skipped.rows) == (2, 4)
    task = tasks.registered("a", source, "skip")
    assert [example[:2] for example in tasks.examples(task, "train")] == expected
    with pytest.raises(UserError, match=r"a.jsonl:2 has no field 'b'"):
        list(tasks.examples(tasks.registered("a", source), "train"))


def test_a_damaged_file_is_always_an_error(make, tmp_path):
    whole = gzip.compress(b'{"text": "x"}\n' * 1000)
    (tmp_path / "a.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"a.jsonl.gz is damaged"):
        preparation.prepare(make(config.TextTable(f"{tmp_path}/a.jsonl.gz")), show_progress=False)


def test_a_row_beyond_the_limits_is_a_bad_one_with_its_place(make, tmp_path, capsys):
    rows = [b'{"text": "a"}', b'{"text": "' + b"x" * 60 + b'"}', b" " * 300, b'{"text": "b", "c": [[[[]]]]}']
    rows += [b'{"text": "[[[[[[[[]"}', b'{"text": "c", "d": "\\"[[[["}', b'{"e": ' + b"[" * 40 + b"}"]
    write(tmp_path / "a.jsonl", rows)
    source, skipped = config.TextTable(f"{tmp_path}/a.jsonl", max_characters=60, max_depth=3), corpus.Skipped()
    assert [record.text for record in files.read(source, skipped=skipped)] == ["a", "[[[[[[[[]", "c"]
    reported = [line.split(": ")[0].removeprefix(f"{tmp_path}/a.jsonl:") for line in skipped.first]
    long, deep = "has more than 60 characters", "is nested more than 3 levels deep"
    assert reported == [f"2 {long}", f"3 {long}", f"4 {deep}", f"7 {deep}"] and skipped.rows == 7
    with pytest.raises(UserError, match=r"a.jsonl:2 has more than 60 characters: split it, or raise .*max_characters"):
        list(files.read(source))
    # What is not told on the screen stands in the manifest.
    many = [b'{"text": "x"}'] * 600 + [b"{"] * 5
    write(tmp_path / "a.jsonl", many)
    preparation.prepare(make(config.TextTable(f"{tmp_path}/a.jsonl")), str(tmp_path / "cache"), show_progress=False)
    noted = cache.read_manifest(str(tmp_path / "cache" / "a"))["bad_rows"]["first"]
    assert [line.split(" ")[0] for line in noted] == [f"{tmp_path}/a.jsonl:{i}" for i in range(601, 606)]
    assert "a.jsonl:603 is not valid JSON" in (said := capsys.readouterr().out) and "a.jsonl:604" not in said


def test_texts_beyond_the_limit_are_skipped_by_the_document(tmp_path):
    (tmp_path / "a.txt").write_text("one\n" + "two " * 9 + "\nthree\n\n" + "four\n" * 4 + "\nfive\n")
    texts = {}
    for document in ("line", "paragraph", "file"):
        skipped = corpus.Skipped()
        source = config.TextFiles(f"{tmp_path}/a.txt", document=document, max_characters=18)
        texts[document] = [[record.text for record in files.read(source, skipped=skipped)], skipped.bad]
    assert texts["line"] == [["one", "three", *["four"] * 4, "five"], 1]
    assert texts["paragraph"] == [["five"], 2] and texts["file"] == [[], 1]


def test_limits_are_checked():
    with pytest.raises(UserError, match="max_characters is 0"):
        trees.checked(config.TextFiles("x", max_characters=0), "source")
