"""Crawls as pages: WET and WARC files, and JSON lines. What cannot be read is quarantined, and never stops a run."""

import contextlib
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import fsspec

from plm_jax import storage
from plm_jax.data.cleaning.pages import Page, Tally
from plm_jax.errors import UserError, one_line

# C4's reader takes these for headers of a WET record wherever a line begins with them.
_HEADERS = ("WARC", "CONTENT-", "Content-")
_HTML = ("text/html", "application/xhtml+xml")
_SAMPLE_CHARACTERS = 10_000
# A gzip member begins so: its mark, and "deflated".
_MAGIC = b"\x1f\x8b\x08"
_CHUNK, _MAX_MEMBER = 2**16, 2**28
# What file systems say of a file that changes with its content.
_CHANGING = ("size", "mtime", "etag", "md5Hash")


class Quarantined(NamedTuple):
    """A record that cannot be read: where (byte of an archive, line of JSON), why, and the beginning of it."""

    file: str
    position: int
    reason: str
    sample: str


def files(patterns: list[str]) -> dict[str, str]:
    """The files that patterns or plain paths name, each with what changes when its content does.

    Raises:
      UserError: no file at one of them, a file of another kind, or a store that cannot be reached.
    """
    found = {}
    for pattern in patterns:
        with storage.reaching(pattern):
            system = fsspec.core.url_to_fs(pattern, use_listings_cache=False)[0]
            at = system.glob(pattern, detail=True).items()
        remote = storage.is_remote(pattern)
        named = {
            system.unstrip_protocol(path) if remote else path: [info.get(name) for name in _CHANGING]
            for path, info in at
            if info["type"] == "file"
        }
        if not named:
            raise UserError(f"there is no file at {pattern}: mend --input")
        found |= {path: repr(what) for path, what in named.items()}
    for path in found:
        _reader(path)
    return dict(sorted(found.items()))


def _reader(path: str):
    name = os.path.basename(path).lower()
    if ".warc" in name or ".wet" in name:
        return _archive
    if ".json" in name:
        return _json_lines
    raise UserError(f"{path} is by its name no WET, WARC or JSON lines: call it *.wet.gz, *.warc.gz or *.jsonl.gz")


def read(path: str, tally: Tally) -> Iterator[Page | Quarantined]:
    """The pages of a file; what has no URL, text or time (in JSON lines: no text) is only counted.

    A page of JSON lines is an object with `text` and, if it has them, `url` and `timestamp`; one without a URL is named
    by file and line.

    Raises:
      UserError: the file cannot be opened, or its store not be reached.
    """
    try:
        with storage.open_binary(path) as file:
            yield from _reader(path)(path, file, tally)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def _quarantine(path: str, position: int, reason: str, data: bytes) -> Quarantined:
    sample = data[:_SAMPLE_CHARACTERS].decode("utf-8", errors="backslashreplace")
    return Quarantined(os.path.basename(path), position, reason, sample)


def _archive(path: str, file: BinaryIO, tally: Tally) -> Iterator[Page | Quarantined]:
    """The `conversion` records of a WET and the HTML `response` records of a WARC file."""
    if not path.endswith(".gz"):
        yield from _records(path, 0, file, tally)
        return
    for position, member in _members(file):
        if isinstance(member, bytes):
            yield from _records(path, position, io.BytesIO(member), tally)
        else:
            yield _quarantine(path, position, str(member), b"")


def _members(file: BinaryIO) -> Iterator[tuple[int, bytes | Exception]]:
    """The members of a gzip file, which crawlers write one a record: where each begins, and what is in it.

    So a damaged one is lost alone; the next is looked for behind it.
    """
    start = 0
    while True:
        file.seek(start)
        try:
            data, size = _member(file)
        except (zlib.error, EOFError, ValueError) as error:
            yield start, error
            size = _next_member(file, start)
        else:
            if data is None:
                return
            yield start, data
        if not size:
            return
        start += size


def _member(file: BinaryIO) -> tuple[bytes | None, int]:
    """The content of the gzip member that begins here, None at the end of the file, and its size in the file."""
    stream, pieces, size, read = zlib.decompressobj(wbits=31), [], 0, 0
    while not stream.eof:
        chunk = file.read(_CHUNK)
        if not chunk and not read:
            return None, 0
        if not chunk:
            raise EOFError("the file is cut off")
        pieces.append(stream.decompress(chunk))
        read, size = read + len(chunk), size + len(pieces[-1])
        if size > _MAX_MEMBER:
            raise ValueError("not compressed record by record: do so, as `fastwarc recompress` does")
    return b"".join(pieces), read - len(stream.unused_data)


def _next_member(file: BinaryIO, start: int) -> int:
    """How far behind `start` the next gzip member may begin, 0 if nowhere."""
    file.seek(start + 1)
    before, passed = b"", 1
    while chunk := file.read(_CHUNK):
        found = (before + chunk).find(_MAGIC)
        if found >= 0:
            return passed - len(before) + found
        passed += len(chunk)
        before = (before + chunk)[-len(_MAGIC) + 1 :]
    return 0


def _records(path: str, start: int, file: BinaryIO, tally: Tally) -> Iterator[Page | Quarantined]:
    """The pages of WARC records that are not compressed; `start` is added to their positions."""
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    wanted = WarcRecordType.conversion | WarcRecordType.response
    position = start
    try:
        for record in ArchiveIterator(file, record_types=wanted, auto_decode="all"):
            position = start + record.stream_pos
            body = record.reader.read()
            if record.is_http or len(body) == record.content_length:
                yield from _record(path, position, record, body, tally)
            else:
                yield _quarantine(path, position, "the record is cut off", body)
    except OSError as error:
        if error.errno is not None:  # The disk's or the network's, not the file's.
            raise
        # Nothing tells where the next record begins.
        yield _quarantine(path, position, f"damaged from here: {error}", b"")


def _record(path: str, position: int, record: Any, body: bytes, tally: Tally) -> Iterator[Page | Quarantined]:
    from fastwarc.warc import WarcRecordType

    url, timestamp = (record.headers.get(f"WARC-{name}", "").strip() for name in ("Target-URI", "Date"))
    is_response = record.record_type == WarcRecordType.response
    if is_response and not _is_html(record):
        tally.count("no_html", "")
        return
    try:
        text = _html_text(record, body) if is_response else body.decode("utf-8")
    except (LookupError, ValueError) as error:
        yield _quarantine(path, position, one_line(error, None), body)
        return
    yield from _whole(Page(url, _tidy(text), timestamp), tally)


def _is_html(record: Any) -> bool:
    return bool(
        record.is_http_parsed
        and record.http_headers.status_code == 200
        and (record.http_content_type or "").lower().startswith(_HTML)
    )


def _html_text(record: Any, body: bytes) -> str:
    """The visible text of a page, a line a block, like that of a WET file."""
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding, map_encoding_to_html5

    told = record.http_charset or detect_encoding(body, from_html_meta=True) or "utf-8"
    html = bytes_to_str(body, map_encoding_to_html5(told))
    return extract_plain_text(html, preserve_formatting=True, list_bullets=False, alt_texts=False)


def _tidy(text: str) -> str:
    """Lines without white space around them, without blank ones and without what C4 takes for headers."""
    lines = (line.strip() for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    return "\n".join(line for line in lines if line and not line.startswith(_HEADERS))


def _whole(page: Page, tally: Tally) -> Iterator[Page]:
    """The page, if it has URL, text and time."""
    for reason, field in (("no_url", page.url), ("no_text", page.text), ("no_timestamp", page.timestamp)):
        if not field:
            tally.add(reason, page, [page.text])
            return
    tally.count("read", page.text)
    yield page


def _json_lines(path: str, file: BinaryIO, tally: Tally) -> Iterator[Page | Quarantined]:
    number = 0
    try:
        with gzip.open(file) if path.endswith(".gz") else contextlib.nullcontext(file) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield from _json_page(path, number, line, tally)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        yield _quarantine(path, number, f"damaged after this line: {error}", b"")


def _json_page(path: str, number: int, line: bytes, tally: Tally) -> Iterator[Page | Quarantined]:
    try:
        row = json.loads(line)
        text, url, timestamp = (row.get(name) or "" for name in ("text", "url", "timestamp"))
        page = Page(url.strip() or f"{os.path.basename(path)}:{number}", text, timestamp)
        "".join(page).encode("utf-8")
    except UnicodeError as error:
        yield _quarantine(path, number, f"no valid Unicode: {error}", line)
    except (ValueError, AttributeError, TypeError):
        yield _quarantine(path, number, "no JSON object with the strings 'text', 'url' and 'timestamp'", line)
    else:
        if page.text:
            tally.count("read", page.text)
            yield page
        else:
            tally.add("no_text", page, [""])
