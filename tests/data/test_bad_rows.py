"""`data.bad_rows=skip`: the cache is that of the good rows, and what was left out is told."""

import dataclasses
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
    others = "manifest.json", "files.json", "origin.npy", "checksums.npy"
    found = {name: data for name, data in contents(folder).items() if os.path.basename(name) not in others}
    manifest = cache.read_manifest(os.path.join(folder, "a"))
    for counts in manifest["splits"].values():
        del counts["crc32"]
    return found, manifest, capsys.readouterr().out


@pytest.fixture
def make(make_run, tmp_path):
    """A run over bytes whose source is as given."""

    def make(source, bad_rows="skip"):
        run = make_run("a", eos=256, vocab_size=257, data={"validation_fraction": 0.1, "bad_rows": bad_rows})
        return dataclasses.replace(run, data=dataclasses.replace(run.data, sources={"a": source}))

    return make


def test_bad_lines_are_left_out_counted_and_told(make, tmp_path, capsys):
    good = [json.dumps({"text": text}).encode() for text in TEXTS]
    write(tmp_path / "good.jsonl", good)
    bad = [line for line, _ in BAD]
    write(tmp_path / "bad.jsonl", [*good[:7], b"", *bad[:2], *good[7:300], *bad[2:], *good[300:]])
    run = make(config.JsonLines(f"{tmp_path}/bad.jsonl"))
    found, manifest, said = prepared(run, tmp_path / "skipped", capsys)
    wanted, other, _ = prepared(make(config.JsonLines(f"{tmp_path}/good.jsonl"), "stop"), tmp_path / "wanted", capsys)
    assert found == wanted
    places = [f"{tmp_path}/bad.jsonl:{line}" for line in (9, 10, 304)]
    assert manifest["bad_rows"]["rows"] == 404 and manifest["bad_rows"]["bad"] == 4
    for place, (_, words), line in zip(places, BAD, manifest["bad_rows"]["first"], strict=False):
        assert line.startswith(f"{place} {words}") and line in said
    assert "a: skipped 4 bad rows of 404 (" in said
    assert "bad_rows" not in other and manifest["splits"] == other["splits"]
    # What is done with bad rows is a part of what the cache is.
    with pytest.raises(UserError, match=r"bad.jsonl:9 is not valid JSON"):
        preparation.prepare(make(run.data.sources["a"], "stop"), str(tmp_path / "skipped"), show_progress=False)


def test_more_than_one_in_a_hundred_stop_it(make, tmp_path):
    good, bad = [b'{"text": "x"}'] * 198, [b"{"] * 2
    write(tmp_path / "a.jsonl", [*bad, *good])
    run = make(config.JsonLines(f"{tmp_path}/a.jsonl"))
    preparation.prepare(run, str(tmp_path / "cache"), show_progress=False)
    write(tmp_path / "a.jsonl", [*bad, *good[1:]])
    before = contents(tmp_path / "cache" / "a")
    with pytest.raises(UserError, match=r"2 of the 199 rows of source 'a' are bad, more than 1% \(.*a.jsonl:1 is not"):
        preparation.prepare(run, str(tmp_path / "cache"), show_progress=False)
    assert contents(tmp_path / "cache" / "a") == before


# Of the documents that are read, file and line.
PLACES = {"line": [(0, 1), (0, 6), (1, 1)], "paragraph": [(0, 6), (1, 1)], "file": [(1, 1)]}


@pytest.mark.parametrize(("document", "places"), [("line", [":2", ":4"]), ("paragraph", [":1", ":4"]), ("file", [""])])
def test_text_that_is_no_utf8_is_left_out_by_what_a_document_is(document, places, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\n\xfftwo\n\nthr\xfee\n\nfour \xc3\xa9\n")
    (tmp_path / "b.txt").write_text("five\n")
    source, skipped = config.TextFiles(f"{tmp_path}/?.txt", document=document), corpus.Skipped()
    found = list(files.read(source, skipped=skipped))
    last = ["five\n"] if document == "file" else ["five"]
    texts = [record.text for record in found]
    assert texts == {"line": ["one", "four é"], "paragraph": ["four é"], "file": []}[document] + last
    assert [record[2:4] for record in found] == PLACES[document]
    assert [line.partition(" is not UTF-8")[0] for line in skipped.first] == [f"{tmp_path}/a.txt{at}" for at in places]
    assert (skipped.bad, skipped.rows) == (len(places), len(places) + len(found))
    with pytest.raises(UserError, match=rf"a.txt{places[0]} is not UTF-8"):
        list(files.read(source))


def test_examples_are_left_out_as_well_where_they_are_prepared_as_where_they_are_evaluated(tmp_path):
    write(tmp_path / "a.jsonl", [b'{"a": "x", "b": 1}', b'{"a": "x"}', b'{"a": null, "b": 2}', b'{"a": "y", "b": 3}'])
    source, skipped = config.JsonLinesInputsTargets(f"{tmp_path}/a.jsonl", "in {a}", "{b}"), corpus.Skipped()
    wanted = [("in x", "1"), ("in y", "3")]
    found = [(record.text, *record.other_texts) for record in files.read(source, skipped=skipped)]
    assert found == wanted and (skipped.bad, skipped.rows) == (2, 4)
    task = tasks.registered("a", source, "skip")
    assert [example[:2] for example in tasks.examples(task, "train")] == wanted
    with pytest.raises(UserError, match=r"a.jsonl:2 has no field 'b'"):
        list(tasks.examples(tasks.registered("a", source), "train"))


def test_a_damaged_file_stops_it_always(make, tmp_path):
    whole = gzip.compress(b'{"text": "x"}\n' * 1000)
    (tmp_path / "a.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"a.jsonl.gz is damaged"):
        preparation.prepare(make(config.JsonLines(f"{tmp_path}/a.jsonl.gz")), show_progress=False)


def test_a_row_beyond_the_limits_is_a_bad_one_with_its_place(make, tmp_path, capsys):
    rows = [b'{"text": "a"}', b'{"text": "' + b"x" * 60 + b'"}', b" " * 300, b'{"text": "b", "c": [[[[]]]]}']
    rows += [b'{"text": "[[[[[[[[]"}', b'{"text": "c", "d": "\\"[[[["}', b'{"e": ' + b"[" * 40 + b"}"]
    write(tmp_path / "a.jsonl", rows)
    source, skipped = config.JsonLines(f"{tmp_path}/a.jsonl", max_characters=60, max_depth=3), corpus.Skipped()
    assert [record.text for record in files.read(source, skipped=skipped)] == ["a", "[[[[[[[[]", "c"]
    told = [line.split(": ")[0].removeprefix(f"{tmp_path}/a.jsonl:") for line in skipped.first]
    long, deep = "has more than 60 characters", "is nested more than 3 levels deep"
    assert told == [f"2 {long}", f"3 {long}", f"4 {deep}", f"7 {deep}"] and skipped.rows == 7
    with pytest.raises(UserError, match=r"a.jsonl:2 has more than 60 characters: split it, or raise .*max_characters"):
        list(files.read(source))
    # What is not told on the screen stands in the manifest.
    many = [b'{"text": "x"}'] * 600 + [b"{"] * 5
    write(tmp_path / "a.jsonl", many)
    preparation.prepare(make(config.JsonLines(f"{tmp_path}/a.jsonl")), str(tmp_path / "cache"), show_progress=False)
    noted = cache.read_manifest(str(tmp_path / "cache" / "a"))["bad_rows"]["first"]
    assert [line.split(" ")[0] for line in noted] == [f"{tmp_path}/a.jsonl:{i}" for i in range(601, 606)]
    assert "a.jsonl:603 is not valid JSON" in (said := capsys.readouterr().out) and "a.jsonl:604" not in said


def test_texts_beyond_the_limit_are_passed_over_by_what_a_document_is(tmp_path):
    (tmp_path / "a.txt").write_text("one\n" + "two " * 9 + "\nthree\n\n" + "four\n" * 4 + "\nfive\n")
    found = {}
    for document in ("line", "paragraph", "file"):
        skipped = corpus.Skipped()
        source = config.TextFiles(f"{tmp_path}/a.txt", document=document, max_characters=18)
        found[document] = [[record.text for record in files.read(source, skipped=skipped)], skipped.bad]
    assert found["line"] == [["one", "three", *["four"] * 4, "five"], 1]
    assert found["paragraph"] == [["five"], 2] and found["file"] == [[], 1]


def test_limits_that_are_not_given_are_no_part_of_what_a_source_is():
    """So that caches of before there were any are what the config names."""
    assert files.definition(config.JsonLines("x")) == {"kind": "jsonl", "field": "text"}
    assert files.definition(config.TextFiles("x")) == {"kind": "text", "document": "file"}
    assert files.definition(config.JsonLines("x", max_depth=9))["max_depth"] == 9
    with pytest.raises(UserError, match="max_characters is 0"):
        trees.checked(config.TextFiles("x", max_characters=0), "source")
