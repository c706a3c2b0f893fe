"""Readers of crawls: comparison with C4, and damaged files."""

import datetime
import gzip
import json
import os
import pathlib
import zlib

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from plm_jax.cleaning import crawl, html, settings
from plm_jax.cleaning.pages import Page, Tally
from plm_jax.common import storage
from plm_jax.common.errors import UserError
from tests.cleaning.crawls import response, warc_record, write_archive, write_json

LIMITS = settings.LimitsConfig()


def read(path, limits=LIMITS) -> tuple[list[Page], list[crawl.Quarantined], dict[str, int]]:
    tally = Tally()
    records = list(crawl.read(str(path), pathlib.Path(path).name, tally, limits))
    pages = [each for each in records if isinstance(each, Page)]
    bad = [each for each in records if not isinstance(each, Page)]
    return pages, bad, {reason: count.number for reason, count in tally.items()}


WET = [
    warc_record("http://a.org/1", "  One line. \r\n\r\n\tAnöther line.\rA third.\n".encode()),
    warc_record("http://a.org/2", b"Kept.\nContent-Security is a header, they say.\nWARCs too.\n"),
    warc_record("", b"No URL.\n"),
    warc_record("http://a.org/3", b" \n \n"),
    warc_record("http://a.org/4", b"No time.\n", date=""),
    warc_record("http://a.org/5", b"Last.\n", date="2020-01-01T00:00:00Z"),
]


def test_wet_files_are_read_like_c4(c4, tmp_path):
    path = write_archive(tmp_path / "a.warc.wet.gz", WET)
    pages, bad, counts = read(path)
    theirs = [(page.url, page.text, page.timestamp) for page in c4.split_wet_file(path, counter_inc_fn=lambda *_: None)]
    assert [(page.url, page.text, page.timestamp) for page in pages] == theirs
    assert [page.url[-1] for page in pages] == ["1", "2", "5"]
    assert pages[0].text == "One line.\nAnöther line.\nA third."
    assert counts == {"read": 3, "no_url": 1, "no_text": 1, "no_timestamp": 1} and not bad


def test_bad_wet_records_are_quarantined(tmp_path):
    records = [WET[0], warc_record("http://a.org/9", b"not \xff UTF-8\n"), WET[1]]
    path = write_archive(tmp_path / "a.wet.gz", records)
    pages, bad, counts = read(path)
    assert [page.url[-1] for page in pages] == ["1", "2"] and counts == {"read": 2}
    assert [(each.file, each.sample) for each in bad] == [("a.wet.gz", "not \\xff UTF-8\n")]
    assert gzip.decompress((tmp_path / "a.wet.gz").read_bytes()[bad[0].position :]).startswith(b"WARC/1.0")

    whole = (tmp_path / "a.wet.gz").read_bytes()
    last = len(gzip.compress(records[-1]))
    for left in (last // 2, last - 10, 1):
        (tmp_path / "cut.wet.gz").write_bytes(whole[: len(whole) - left])
        pages, bad, _ = read(tmp_path / "cut.wet.gz")
        assert [page.url[-1] for page in pages] == ["1"]
        assert (bad[-1].position, bad[-1].reason) == (len(whole) - last, "the file is cut off")

    # Only the damaged record is lost.
    spoiled = bytearray(whole)
    spoiled[len(gzip.compress(warc_record("", b"software: none", "warcinfo"))) + 60] ^= 0xFF
    (tmp_path / "spoiled.wet.gz").write_bytes(spoiled)
    pages, bad, _ = read(tmp_path / "spoiled.wet.gz")
    assert [page.url[-1] for page in pages] == ["2"] and len(bad) == 2

    plain = b"".join(records)
    (tmp_path / "cut.wet").write_bytes(plain[:-40])
    pages, bad, _ = read(tmp_path / "cut.wet")
    assert [page.url[-1] for page in pages] == ["1"] and bad[-1].reason == "the record is cut off"
    assert bad[-1].position == plain.rindex(b"WARC/1.0")

    (tmp_path / "no.wet.gz").write_bytes(b"This is no crawl. " * 100)
    pages, bad, counts = read(tmp_path / "no.wet.gz")
    assert not pages and len(bad) == 1 and not counts


HTML = """<html><head><title>A title</title><style>p {color: red}</style></head><body>
<p>One &amp; ünder.</p>
<ul><li>first</li><li>second</li></ul><script>var a = {};</script><div>Last.</div></body></html>"""


def test_warc_pages_have_visible_lines(tmp_path):
    latin = HTML.replace("<head>", '<head><meta charset="iso-8859-1">').encode("latin-1")
    records = [
        warc_record("http://a.org/1", response(HTML.encode()), "response"),
        warc_record("http://a.org/2", response(latin, kind="text/html"), "response"),
        warc_record("http://a.org/3", response(b"gone", "404 Not Found"), "response"),
        warc_record("http://a.org/4", response(b"\x89PNG", kind="image/png"), "response"),
        warc_record("http://a.org/5", response(HTML.encode(), kind="text/html; charset=nonsense"), "response"),
        warc_record("http://a.org/6", response(b"<p>", kind="text/html"), "response"),
        warc_record("http://a.org/7", b"\x00\x01 no HTTP", "response"),
    ]
    pages, bad, counts = read(write_archive(tmp_path / "a.warc.gz", records))
    assert [page.url[-1] for page in pages] == ["1", "2", "5"] and not bad
    assert {page.text for page in pages} == {"One & ünder.\nfirst\nsecond\nLast."}
    assert pages[0].timestamp == "2019-04-24T09:23:58Z"
    assert counts == {"read": 3, "no_html": 3, "no_text": 1}


def test_bad_json_lines_are_quarantined(tmp_path):
    lines = [
        b'{"text": "One.", "url": "http://a.org/1", "timestamp": "2020"}',
        b'{"text": "Two."}',
        b"",
        b'{"text": ""}',
        b'{"text": 5}',
        b'["text"]',
        b'{"text": "cut',
        b'{"text": "\xff"}',
        b'{"text": "\\ud800"}',
        b'{"text": ' + b"[" * 100_000,
        b'{"text": "Three.", "url": null, "more": {}}',
    ]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(lines))
    pages, bad, counts = read(path)
    assert pages == [Page("http://a.org/1", "One.", "2020"), Page("a.jsonl:2", "Two."), Page("a.jsonl:11", "Three.")]
    assert [each.position for each in bad] == [5, 6, 7, 8, 9, 10]
    assert counts == {"read": 3, "no_text": 1}

    whole = gzip.compress(path.read_bytes() * 100)
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    pages, bad, _ = read(tmp_path / "cut.jsonl.gz")
    assert pages and "damaged" in bad[-1].reason


def test_files_are_listed_with_versions(tmp_path):
    for name in ("b.jsonl", "a.warc.wet.gz"):
        (tmp_path / name).write_text("{}")
    matches = crawl.files([f"{tmp_path}/*"])
    assert list(matches) == [str(tmp_path / "a.warc.wet.gz"), str(tmp_path / "b.jsonl")]
    (tmp_path / "b.jsonl").write_text("{} ")
    changed = crawl.files([f"{tmp_path}/*"])
    assert [matches[path] == changed[path] for path in matches] == [True, False]
    (tmp_path / "c.txt").write_text("")
    with pytest.raises(UserError, match=r"c.txt has an unknown extension"):
        crawl.files([f"{tmp_path}/*"])
    with pytest.raises(UserError, match=r"there is no file at .*nothing"):
        crawl.files([f"{tmp_path}/nothing*"])
    with pytest.raises(UserError, match="cannot read"):
        read(tmp_path / "missing.jsonl")


def test_non_utf8_path_is_rejected(tmp_path):
    (tmp_path / os.fsdecode(b"\xff.jsonl")).write_text("{}")
    with pytest.raises(UserError, match=r"the path '.*\\udcff\.jsonl' is not UTF-8: rename it") as raised:
        crawl.files([f"{tmp_path}/*"])
    assert str(raised.value).isascii()


# Names of gcsfs, s3fs and adlfs.
@pytest.mark.parametrize(
    "before, after",
    [
        ({"md5Hash": "a"}, {"md5Hash": "b"}),
        ({"ETag": '"a"', "LastModified": "2024"}, {"ETag": '"b"', "LastModified": "2024"}),
        ({"LastModified": "2024"}, {"LastModified": "2025"}),
        ({"etag": None, "last_modified": "2024"}, {"etag": None, "last_modified": "2025"}),
        ({"updated": "2024"}, {"updated": "2025"}),
    ],
)
def test_changed_remote_file_has_new_version(before, after, monkeypatch):
    listings = []
    for info in (before, before, after):
        files = {"/b/a.jsonl": {"type": "file", "size": 2, **info}}
        monkeypatch.setattr(MemoryFileSystem, "glob", lambda *_, files=files, **__: files)
        listings += crawl.files(["memory://b/*"]).values()
    assert listings[0] == listings[1] != listings[2]


def test_replaced_file_of_same_size_has_new_version():
    listings = []
    for text in (b"{}", b"[]"):
        storage.write("memory://changing/a.jsonl", text)
        listings += [crawl.files(["memory://changing/*"]) for _ in range(2)]
    assert listings[0] == listings[1] != listings[2] == listings[3]
    storage.remove("memory://changing")


def test_file_names_are_relative_to_common_folder(tmp_path, monkeypatch):
    for folder in ("crawl-a", "crawl-b/deep"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "0.jsonl").write_text("{}")
    names = {"crawl-a/0.jsonl": str(tmp_path / "crawl-a/0.jsonl"), "crawl-b/deep/0.jsonl": "crawl-b/deep/0.jsonl"}
    monkeypatch.chdir(tmp_path)
    matches = crawl.files([*names.values(), "crawl-b/../crawl-a/*"])
    assert {file.name: path for path, file in matches.items()} == {name: str(tmp_path / name) for name in names}
    assert {file.size for file in matches.values()} == {2}
    assert [file.name for file in crawl.files([f"{tmp_path}/crawl-a/*"]).values()] == ["0.jsonl"]


def test_links_are_followed(tmp_path):
    (tmp_path / "a.jsonl").write_text("{}")
    (tmp_path / "crawl").mkdir()
    (tmp_path / "crawl" / "b.jsonl").symlink_to("../a.jsonl")
    pattern, path = f"{tmp_path}/crawl/*", str(tmp_path / "crawl/b.jsonl")
    before = crawl.files([pattern])
    assert list(before) == [path]
    (tmp_path / "a.jsonl").write_text("{} ")
    assert crawl.files([pattern])[path] != before[path]


def test_output_can_be_cleaned_again(tmp_path):
    row = {"text": "One.", "url": "http://a.org/1", "timestamp": "2020", "language": "en"}
    assert read(write_json(tmp_path / "a.jsonl.gz", [row]))[0] == [Page("http://a.org/1", "One.", "2020")]


def test_records_beyond_limits_are_quarantined(tmp_path):
    nested = b"<p>Deep.</p>" + b"<div>" * 200_000
    records = [
        warc_record("http://a.org/1", response(HTML.encode()), "response"),
        warc_record("http://a.org/2", response(nested), "response"),
        warc_record("http://a.org/3", response(b"<p>" + b"x" * 3000), "response"),
        warc_record("http://a.org/4", b"y" * 2000),
        warc_record("http://a.org/5", b"Short.\n"),
    ]
    few = settings.LimitsConfig(page_bytes=1000, body_bytes=2 * 10**6, depth=100)
    for limits, reasons in (
        (few, {2: "limits.depth=100", 4: "limits.page_bytes=1000"}),
        (settings.LimitsConfig(body_bytes=1000), {2: "limits.body_bytes=1000", 3: "limits.body_bytes=1000"}),
    ):
        pages, bad, _ = read(write_archive(tmp_path / "a.warc.gz", records), limits)
        assert {page.url[-1] for page in pages} == {str(i) for i in range(1, 6) if i not in reasons}
        begins = [gzip.decompress((tmp_path / "a.warc.gz").read_bytes()[each.position :])[:200] for each in bad]
        assert [f"a.org/{i}".encode() in begin for i, begin in zip(reasons, begins, strict=True)] == [True] * len(bad)
        assert [phrase in each.reason for phrase, each in zip(reasons.values(), bad, strict=True)] == [True] * len(bad)

    lines = [b'{"text": "One."}', b'{"text": "' + b"x" * 100 + b'"}', b'{"text": "Two.", "more": [[[[]]]]}', b" " * 500]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*lines, lines[0]]))
    pages, bad, _ = read(tmp_path / "a.jsonl", settings.LimitsConfig(line_bytes=80, depth=3))
    assert [page.url for page in pages] == ["a.jsonl:1", "a.jsonl:5"]
    assert [(each.position, each.reason.split("limits.")[1]) for each in bad] == [
        (2, "line_bytes=80"),
        (3, "depth=3"),
        (4, "line_bytes=80"),
    ]


NESTED = {
    "unclosed": "<div>" * 30,
    "closed at the end": "<div>" * 30 + "</div>" * 30,
    "lists": "<ul><li>" * 30,
    "closed by others": "<b id=1></x>" * 30,
    "behind a comment": "<!-- --!>" + "<div>" * 30,
    "behind a quoted end": "<a title='>'>" + "<div>" * 30,
    "out of SVG": "<svg><p>" + "<div/>" * 30,
    "styles in SVG": "<svg><style>" + "<g>" * 30,
    "more attributes than any has": "<p " + " ".join(f"a{i}" for i in range(9000)) + ">",
    "opened anew": "<i>" * 19 + "<p>x" * 90_000,
}
FLAT = {
    "paragraphs": "<p>x" * 3000,
    "rows": "<table>" + "<tr><td>x" * 3000,
    "items": "<ul>" + "<li>x" * 3000,
    "closed": "<div><b>x</b></div>" * 3000,
    "links": "<a href=x>y" * 3000,
    "paths": "<svg>" + "<path d='M0'/>" * 3000 + "</svg><p>x",
    "scripts": "<script>" + 'document.write("<div><div>");' * 3000 + "</script>",
    "comments": "<!-- <div> -->" * 3000,
    "a picture": "<img src='data:image/png;base64," + "abc/+ " * 5000 + "'>",
}


@pytest.mark.parametrize("page", [*NESTED, *FLAT])
def test_deeply_nested_pages_are_detected(page):
    assert html.is_nested((NESTED | FLAT)[page], 20) == (page in NESTED)


def test_search_after_damaged_members_is_bounded(tmp_path, monkeypatch):
    """A damaged member may contain the magic numbers of many others."""
    packer = zlib.compressobj(0, wbits=31)
    member = packer.compress(b"\x1f\x8b\x08\0\0\0\0\0\0\0" * 20_000)  # Stored uncompressed and unterminated.
    (tmp_path / "a.wet.gz").write_bytes(member)
    monkeypatch.setattr(crawl, "_MAX_WASTED", 2**20)
    pages, bad, _ = read(tmp_path / "a.wet.gz")
    assert not pages and len(bad) < 1000 and "damaged from here" in bad[-1].reason


def write_parquet(path, rows: list[dict]) -> str:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=100, write_page_checksum=True)
    return str(path)


def test_parquet_gives_the_pages_of_json_lines(tmp_path):
    rows = [
        {"url": f"http://a.org/{i}" if i % 3 else None, "text": f"Page {i}, ökologisch.", "timestamp": "2019"}
        for i in range(999)
    ]
    rows[5]["text"], rows[6]["text"] = "", None
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    paths = [write_parquet(tmp_path / "a.parquet", rows), str(lines)]
    tallies = [Tally(), Tally()]
    pages = [list(crawl.read(path, "a", tally)) for path, tally in zip(paths, tallies, strict=True)]
    assert pages[0] == pages[1] and len(pages[0]) == 997 and tallies[0] == tallies[1]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"no parquet",
        lambda data: data[:60] + bytes(60) + data[120:],
    ],
)
def test_damaged_parquet_is_quarantined(damage, tmp_path):
    path = tmp_path / "a.parquet"
    write_parquet(path, [{"text": f"A page with the number {i}."} for i in range(99)])
    path.write_bytes(damage(path.read_bytes()))
    (*_, last) = crawl.read(str(path), "a.parquet", Tally())
    assert isinstance(last, crawl.Quarantined) and "damaged after this row" in last.reason


def test_parquet_rows_that_are_no_pages_are_quarantined(tmp_path):
    long = write_parquet(tmp_path / "a.parquet", [{"text": "long " * 99}, {"text": "short"}])
    first, second = crawl.read(long, "a", Tally(), settings.LimitsConfig(line_bytes=100))
    assert isinstance(first, crawl.Quarantined) and first.reason == "more than limits.line_bytes=100"
    assert isinstance(second, Page) and second.text == "short"
    for rows in ([{"text": 3}], [{"text": "x", "timestamp": datetime.datetime(2019, 1, 1)}], [{"text": ["x"]}]):
        (row,) = crawl.read(write_parquet(tmp_path / "b.parquet", rows), "b", Tally())
        assert isinstance(row, crawl.Quarantined) and row.position == 1
        assert row.reason.startswith("not a row with the strings")
    tally = Tally()
    assert list(crawl.read(write_parquet(tmp_path / "c.parquet", [{"content": "x"}]), "c", tally)) == []
    assert tally["no_text"].number == 1
