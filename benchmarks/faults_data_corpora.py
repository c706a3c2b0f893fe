"""Hostile and malformed corpora of `faults_data.py`: JSONL, text, WET, WARC and HTML, and checks of their readers.

Good rows or records surround a bad one. The good ones must be read; the bad one must be reported with its position,
counted, or read, but never ignored.
"""

import gzip
import io
import json
import pathlib
import random
import zlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import faults_damage

from plm_jax import config
from plm_jax.cleaning import crawl
from plm_jax.cleaning.pages import Page, Tally
from plm_jax.data.sources import files
from plm_jax.data.sources.corpus import Skipped

SECONDS = 10.0
_SPACES = b" " * 2**20
_GOOD = "All is well here."


class Case(NamedTuple):
    """A file with a fault: a description, its path, and a check that reads it and prints `right` or the result."""

    what: str
    path: pathlib.Path
    check: Callable[[], None]


def _write(path: pathlib.Path, pieces: Iterable[bytes]) -> pathlib.Path:
    with open(path, "wb") as file:
        file.writelines(pieces)
    return path


def _long(what: bytes, megabytes: int) -> Iterable[bytes]:
    return (what * (2**20 // len(what)) for _ in range(megabytes))


def _nested(rng: random.Random) -> bytes:
    depth = rng.choice([600, 5000, 10**6])
    return b'{"text": ' + rng.choice([b"[" * depth, b"[" * depth + b"]" * depth + b"}", b'{"a":' * depth])


# Lines without a document, made from random numbers.
LINES: dict[str, Callable[[random.Random], Iterable[bytes]]] = {
    "a gigabyte of spaces": lambda rng: _long(b" ", 1024),
    "a text without an end": lambda rng: [b'{"text": "', *_long(rng.choice([b"a", "é🙂".encode()]), 200)],
    "half a gigabyte of text": lambda rng: [b'{"text": "', *_long(b"word ", 512), b'"}'],
    "lists in lists": lambda rng: [_nested(rng)],
    "a cut line": lambda rng: [b'{"text": "cut'],
    "no object": lambda rng: [rng.choice([b"[1]", b"5", b"null", b'"text"', b"true", b"NaN", b"[" * 50 + b"]" * 50])],
    "no text": lambda rng: [
        rng.choice([b"{}", b'{"text": 5}', b'{"text": null}', b'{"text": ["a"]}', b'{"Text": "a"}'])
    ],
    "no UTF-8": lambda rng: [b'{"text": "', bytes(rng.choices(range(128, 256), k=20)), b'"}'],
    "half of a pair": lambda rng: [b'{"text": "\\ud83d"}'],
    "a number of many digits": lambda rng: [b'{"text": ', b"9" * rng.choice([5000, 2 * 10**6]), b"}"],
    "random bytes": lambda rng: [bytes(b for b in rng.randbytes(rng.choice([3, 300])) if b not in b"\n\r") + b"\x80"],
    "zeros": lambda rng: [b"\0" * 1000],
    "UTF-16": lambda rng: ['{"text": "a"}'.encode("utf-16-le")],
}
# Lines of hundreds of megabytes.
LARGE = ("a gigabyte of spaces", "a text without an end", "half a gigabyte of text")


def _jsonl(folder: pathlib.Path, rng: random.Random) -> Case:
    """Makes lines with one bad one, as `prepare` reads them."""
    what = rng.choice(list(LINES))
    good = [json.dumps({"text": _GOOD}).encode() + b"\n"] * 3
    path, is_packed = folder / "a.jsonl", rng.random() < 0.2
    pieces = [*good[:2], *LINES[what](rng), b"\n", good[2]]
    if is_packed:
        path = folder / "a.jsonl.gz"
        with gzip.open(path, "wb", 1) as file:
            file.writelines(pieces)
    else:
        _write(path, pieces)

    def check() -> None:
        skipped = Skipped()
        read = [record.text for record in files.read(config.TextTable(str(path)), skipped=skipped)]
        reports = [line for line in skipped.first if line.startswith(f"{path}:3 ")]
        print("right" if read == [_GOOD] * 3 and skipped.bad == len(reports) == 1 else (read, skipped))

    return Case(f"{what}{', gzip' * is_packed}", path, check)


def _forms(folder: pathlib.Path, rng: random.Random) -> Case:
    """Makes lines with unusual fields, as labeled sources and sources of examples read them."""
    odd = [None, -1, 1.5, 1e400, 10**400, [], {}, [[]], "", "x", True, [None], {"a": 1}]
    odd += [json.loads("[" * 90 + "]" * 90), {"text": ["a"], "answer_start": [10**30]}, {"text": 5, "answer_start": 5}]
    odd += [[{"text": "a", "start": 0}], ["a", "b", 3], [{"text": "", "start": 0}], "\x00", "\u2028"]
    fields = ("text", "label", "question", "context", "answers", "choices", "score", "words", "tags", "a", "b")
    rows = [{field: rng.choice(odd) for field in fields if rng.random() < 0.9} for _ in range(30)]
    path = _write(folder / "a.jsonl", (json.dumps(row).encode() + b"\n" for row in rows))
    forms = [
        config.ClassForm(("x", "y")),
        config.ScoreForm(),
        config.TagForm(("x", "y")),
        config.AnswerForm(),
        config.ChoiceForm(2),
    ]
    sources: list[Any] = [config.LabeledTable(str(path), form) for form in forms]
    sources += [config.TableInputsTargets(str(path), "{a}", template) for template in ("{b}", "{b[0]}", "{b:>9}")]

    def check() -> None:
        for source in sources:
            skipped = Skipped()
            read = list(files.read(source, skipped=skipped))
            # Blank texts are not reported.
            if not skipped.bad + len(read) <= skipped.rows == len(rows) or len(skipped.first) != skipped.bad:
                print(source, read, skipped)
        print("right")

    return Case("odd fields", path, check)


def _text(folder: pathlib.Path, rng: random.Random) -> Case:
    """Makes plain text in which one document is too long or is not text."""
    document = rng.choice(["line", "paragraph"])
    what, bad = rng.choice(
        [("too long", _long(b"word ", 300)), ("spaces", _long(b" ", 300)), ("no UTF-8", [b"\xff\xfe"])]
    )
    gap = b"\n" if document == "line" else b"\n\n"
    path = _write(folder / "a.txt", [_GOOD.encode(), gap, *bad, gap, _GOOD.encode(), b"\n"])

    def check() -> None:
        skipped = Skipped()
        read = [record.text for record in files.read(config.TextFiles(str(path), document=document), skipped=skipped)]
        print(
            "right" if read == [_GOOD] * 2 and skipped.bad == 1 and f"{path}:" in skipped.first[0] else (read, skipped)
        )

    return Case(f"{document} {what}", path, check)


def _record(
    body: Iterable[bytes], kind: str = "conversion", size: int | None = None, url: str = "http://a.org/"
) -> list[bytes]:
    body = list(body)
    size = sum(map(len, body)) if size is None else size
    lines = ["WARC/1.0", f"WARC-Type: {kind}", f"WARC-Target-URI: {url}", "WARC-Date: 2019-04-24T09:23:58Z"]
    lines += [f"Content-Type: {'application/http; msgtype=response' if kind == 'response' else 'text/plain'}"]
    return [("\r\n".join([*lines, f"Content-Length: {size}"]) + "\r\n\r\n").encode(), *body, b"\r\n\r\n"]


def _response(html: bytes, *headers: str) -> list[bytes]:
    head = ["HTTP/1.1 200 OK", "Content-Type: text/html", *headers]
    return _record([("\r\n".join(head) + "\r\n\r\n").encode() + html], "response")


def _bomb(megabytes: int) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return b"".join([packer.compress(_SPACES) for _ in range(megabytes)] + [packer.flush()])


def _tags(rng: random.Random) -> bytes:
    """Makes HTML that is nested deeply, or otherwise slow to parse."""
    number = rng.choice([20_000, 200_000])
    name = rng.choice(["div", "ul><li", "table><tr><td", "b", "span", "svg", "form", "section/", "button", "dl><dt"])
    wild = {
        "nested": f"<{name}>" * number,
        "closed": "<div>" * number + "</div>" * number,
        "other attributes": "".join(f"<b id={i}>" for i in range(number)),
        "reopened": "<p>" + "".join(f"<i id={i}>" for i in range(400)) + "<p>x" * number,
        "attributes": "<div x='>' " + " ".join(f"a{i}" for i in range(number * 2)) + ">",
        "attributes without an end": " ".join(f"<p a{i}" for i in range(number)) + ">",
        "behind a comment": "<!-- --!>" + "<div>" * number,
        "in SVG": "<svg><style>" + "<g>" * number,
        "out of SVG": "<svg><p>" + "<div/>" * number,
        "tables": "<table><b>x" * number,
        "formatting": "<x><b id=1></x><font color=1>" * number,
        "templates": "<template>" * number,
        "math": "<math><mi>" + "<div/>" * number,
    }
    return wild[rng.choice(list(wild))].encode()


# Bad records, which must be reported.
_RECORDS: dict[str, Callable[[random.Random], list[bytes]]] = {
    "nesting": lambda rng: _response(_tags(rng)),
    "a bomb": lambda rng: _response(_bomb(rng.choice([64, 512])), "Content-Encoding: gzip"),
    "a gigabyte of spaces": lambda rng: _record([_SPACES] * rng.choice([64, 1024])),
    "a large page": lambda rng: _response(b"<p>x</p>" * 2**21),
    "no UTF-8": lambda rng: _record([b"\xff\xfe not UTF-8"]),
    "a damaged body": lambda rng: _response(b"\x1f\x8b\x08 no gzip", "Content-Encoding: gzip"),
    "bad chunks": lambda rng: _response(
        rng.choice([b"-5\r\nabc", b"FFFFFFFFFFFFFFFF\r\nabc", b"zz\r\n"]), "Transfer-Encoding: chunked"
    ),
    "no size": lambda rng: _record([b"hello"], size=rng.choice([-5, 10**24])),
    "a long header": lambda rng: [b"WARC/1.0\r\nX: ", *_long(b"a", 64), b"\r\n\r\n"],
    "random bytes": lambda rng: [rng.randbytes(rng.choice([5, 5000]))],
    "a cut record": lambda rng: [b"".join(_record([b"cut off here"]))[: -rng.randint(5, 15)]],
}


def _crawled(path: pathlib.Path) -> tuple[list[Page], list[Any], Tally]:
    """Returns the pages of a file of a crawl, the reports of bad ones, and the counts."""
    pages, reports, tally = [], [], Tally()
    for item in crawl.read(str(path), path.name, tally):
        (pages if isinstance(item, Page) else reports).append(item)
    return pages, reports, tally


def _archive(folder: pathlib.Path, rng: random.Random) -> Case:
    """Makes records with one bad one, as `clean` reads them."""
    what, is_packed = rng.choice(list(_RECORDS)), rng.random() < 0.5
    bad = _RECORDS[what](rng)
    path = folder / ("a.warc.gz" if is_packed else "a.warc")
    good = [[b"".join(_record([_GOOD.encode()], url=f"http://a.org/{i}"))] for i in range(3)]
    records = [*good[:2], bad, good[2]]
    if is_packed:
        packed = []
        for record in records:
            buffer = io.BytesIO()
            with gzip.GzipFile("", "wb", 1, buffer, mtime=0) as file:
                file.writelines(record)
            packed.append(buffer.getvalue())
        _write(path, packed)
    else:
        _write(path, (piece for record in records for piece in record))

    def check() -> None:
        read, reports, tally = _crawled(path)
        urls = [page.url[-1] for page in read if page.url[-1] in "012"]
        # Unless records are compressed one by one, nothing marks the beginning of the next.
        all_read = urls == ["0", "1", "2"] or (not is_packed and reports and urls == ["0", "1"])
        num_counted = sum(count.number for reason, count in tally.items() if reason != "read")
        is_right = all_read and (reports or num_counted) and all(each.position for each in reports)
        print("right" if is_right else (urls, reports, tally))

    return Case(f"{what}{', gzip' * is_packed}", path, check)


def _lines_of_crawls(folder: pathlib.Path, rng: random.Random) -> Case:
    """Makes JSON lines with one bad one, as `clean` reads them."""
    names = [name for name in LINES if name not in ("no text", "UTF-16")]
    what = rng.choice(names)
    good = [json.dumps({"text": _GOOD, "url": f"http://a.org/{i}"}).encode() + b"\n" for i in range(3)]
    path = _write(folder / "b.jsonl", [*good[:2], *LINES[what](rng), b"\n", good[2]])

    def check() -> None:
        read, reports, _ = _crawled(path)
        is_right = len(read) == 3 and [each.position for each in reports] == [3]
        print("right" if is_right else (len(read), reports))

    return Case(what, path, check)


def _garbled(folder: pathlib.Path, rng: random.Random) -> Case:
    """Makes a good archive with damage anywhere: every text that is read must be one of its own."""
    texts = [f"Record {i}: " + " ".join(rng.choices(_GOOD.split(), k=50)) for i in range(20)]
    records = [
        gzip.compress(b"".join(_record([text.encode()], url=f"http://a.org/{i}"))) for i, text in enumerate(texts)
    ]
    data = b"".join(records)
    for _ in range(rng.randint(1, 4)):
        data, _ = faults_damage.garbled(data, rng, ("flipped", "shorter", "inserted"))
    path = _write(folder / "c.wet.gz", [data])

    def check() -> None:
        pages, reports, _ = _crawled(path)
        read = [page.text for page in pages]
        print("right" if set(read) <= set(texts) and (len(read) == 20 or reports) else (read, reports))

    return Case("damage", path, check)


CAMPAIGNS: dict[str, Callable[[pathlib.Path, random.Random], Case]] = {
    "JSONL": _jsonl,
    "fields of JSONL": _forms,
    "text": _text,
    "WET, WARC and HTML": _archive,
    "JSONL of crawls": _lines_of_crawls,
    "damaged WET": _garbled,
}
