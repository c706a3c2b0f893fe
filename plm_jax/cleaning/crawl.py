"""Crawls as pages: WET and WARC files, and JSON lines. What cannot be read is quarantined, and never stops a run."""

import contextlib
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

import fsspec

from plm_jax.cleaning import html
from plm_jax.cleaning.pages import Page, Tally
from plm_jax.cleaning.settings import LimitsConfig
from plm_jax.common import bounded, storage, strict_json
from plm_jax.common.errors import UserError, one_line

# C4's reader takes these for headers of a WET record wherever a line begins with them.
_HEADERS = ("WARC", "CONTENT-", "Content-")
_HTML = ("text/html", "application/xhtml+xml")
_SAMPLE_CHARACTERS = 10_000
# A gzip member begins so: its mark, and "deflated".
_MAGIC = b"\x1f\x8b\x08"
_CHUNK, _MAX_MEMBER, _IN_VAIN = 2**16, 2**28, 2**29
_LIMITS = LimitsConfig()
# What stores say of a file that changes with its content, but for upper case and underscores.
_CHANGING = ("mtime", "etag", "md5hash", "lastmodified", "created", "updated")


class CrawlFile(NamedTuple):
    """A file of a crawl: its name among the others, its bytes, and what changes when its content does."""

    name: str
    size: int
    changing: str


class Quarantined(NamedTuple):
    """A record that cannot be read: where (byte of an archive, line of JSON), why, and the beginning of it."""

    file: str
    position: int
    reason: str
    sample: str


def files(patterns: list[str]) -> dict[str, CrawlFile]:
    """The files that patterns or plain paths name, by path, in order.

    A file's name is its path from the folder that holds them all, so that it stays when the crawl is moved.

    Raises:
      UserError: no file at one of them, a file of another kind, a path that is not UTF-8, or a store that cannot be
        reached.
    """
    found: dict[str, tuple[int, str]] = {}
    for pattern in patterns:
        named = _remote(pattern) if storage.is_remote(pattern) else _local(pattern)
        if not named:
            raise UserError(f"there is no file at {pattern}: mend --input")
        found |= named
    for path in found:
        try:
            path.encode("utf-8")
        except UnicodeEncodeError:
            raise UserError(f"the path {path!a} is not UTF-8: rename it") from None
        _reader(path)
    # `commonpath` takes no mixture of paths and URLs.
    root = os.path.commonprefix([*found]).rpartition("/")[0]  # noqa: RUF071
    return {path: CrawlFile(path[len(root) :].lstrip("/"), *found[path]) for path in sorted(found)}


def _local(pattern: str) -> dict[str, tuple[int, str]]:
    """By path, size and what changes of files on this machine; links count as what they lead to."""
    stats = {os.path.abspath(path): os.stat(path) for path in storage.glob(pattern)}
    return {path: (stat.st_size, str(stat.st_mtime_ns)) for path, stat in stats.items()}


def _remote(pattern: str) -> dict[str, tuple[int, str]]:
    """The same of files in a store."""
    with storage.reaching(pattern):
        system = fsspec.core.url_to_fs(pattern, use_listings_cache=False)[0]
        found = system.glob(pattern, detail=True).items()
    return {
        system.unstrip_protocol(path): (info.get("size") or 0, _changing(info))
        for path, info in found
        if info["type"] == "file"
    }


def _changing(info: Mapping[str, Any]) -> str:
    """What a store says of a file that changes with its content: of each store something, under its own names."""
    known = {name.lower().replace("_", ""): value for name, value in info.items()}
    return repr([known.get(name) for name in _CHANGING])


def _reader(path: str):
    name = os.path.basename(path).lower()
    if ".warc" in name or ".wet" in name:
        return _archive
    if ".json" in name:
        return _json_lines
    raise UserError(f"{path} is by its name no WET, WARC or JSON lines: call it *.wet.gz, *.warc.gz or *.jsonl.gz")


def read(path: str, name: str, tally: Tally, limits: LimitsConfig = _LIMITS) -> Iterator[Page | Quarantined]:
    """The pages of a file; what has no URL, text or time (in JSON lines: no text) is only counted.

    What exceeds the limits, or cannot be read, is quarantined, and what follows is read on.

    A page of JSON lines is an object with `text` and, if it has them, `url` and `timestamp`; one without a URL is known
    by the file's `name` and the line.

    Raises:
      UserError: the file cannot be opened, or its store not be reached.
    """
    try:
        with storage.open_binary(path) as file:
            yield from _reader(path)(name, file, tally, limits)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def _quarantine(name: str, position: int, reason: str, data: bytes) -> Quarantined:
    sample = data[:_SAMPLE_CHARACTERS].decode("utf-8", errors="backslashreplace")
    return Quarantined(name, position, reason, sample)


def _archive(name: str, file: BinaryIO, tally: Tally, limits: LimitsConfig) -> Iterator[Page | Quarantined]:
    """The `conversion` records of a WET and the HTML `response` records of a WARC file."""
    if not name.endswith(".gz"):
        yield from _records(name, 0, file, tally, limits)
        return
    for position, member in _members(file):
        if isinstance(member, bytes):
            yield from _records(name, position, io.BytesIO(member), tally, limits)
        else:
            yield _quarantine(name, position, str(member), b"")


def _members(file: BinaryIO) -> Iterator[tuple[int, bytes | Exception]]:
    """The members of a gzip file, which crawlers write one a record: where each begins, and what is in it.

    So a damaged one is lost alone; the next is looked for behind it, as long as not too much was read in vain.
    """
    start = in_vain = 0
    while True:
        file.seek(start)
        try:
            data, size = _member(file)
        except (zlib.error, EOFError, ValueError) as error:
            in_vain += file.tell() - start
            if in_vain > _IN_VAIN:
                yield start, ValueError(f"damaged from here: {error}")
                return
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


def _records(name: str, start: int, file: BinaryIO, tally: Tally, limits: LimitsConfig) -> Iterator[Page | Quarantined]:
    """The pages of WARC records that are not compressed; `start` is added to their positions."""
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    wanted = WarcRecordType.conversion | WarcRecordType.response
    position = start
    try:
        for record in ArchiveIterator(file, record_types=wanted, auto_decode="all"):
            position = start + record.stream_pos
            is_response = record.record_type == WarcRecordType.response
            limit, which = (limits.body_bytes, "body") if is_response else (limits.page_bytes, "page")
            body = record.reader.read(limit + 1)
            if len(body) > limit:
                yield _quarantine(name, position, f"more than limits.{which}_bytes={limit}", body)
            elif record.is_http or len(body) == record.content_length:
                yield from _record(name, position, record, body, tally, limits)
            else:
                yield _quarantine(name, position, "the record is cut off", body)
    except OSError as error:
        if error.errno is not None:  # The disk's or the network's, not the file's.
            raise
        # Nothing tells where the next record begins.
        yield _quarantine(name, position, f"damaged from here: {error}", b"")


def _record(
    name: str, position: int, record: Any, body: bytes, tally: Tally, limits: LimitsConfig
) -> Iterator[Page | Quarantined]:
    from fastwarc.warc import WarcRecordType

    url, timestamp = (record.headers.get(f"WARC-{field}", "").strip() for field in ("Target-URI", "Date"))
    is_response = record.record_type == WarcRecordType.response
    if is_response and not _is_html(record):
        tally.count("no_html", "")
        return
    try:
        text = body.decode("utf-8") if not is_response else _html_text(record, body, limits)
    except (LookupError, ValueError) as error:
        yield _quarantine(name, position, one_line(error, None), body)
        return
    yield from _whole(Page(url, _tidy(text), timestamp), tally)


def _is_html(record: Any) -> bool:
    return bool(
        record.is_http_parsed
        and record.http_headers.status_code == 200
        and (record.http_content_type or "").lower().startswith(_HTML)
    )


def _html_text(record: Any, body: bytes, limits: LimitsConfig) -> str:
    """The visible text of a page.

    Raises:
      ValueError: its elements lie too deep in each other.
    """
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding, map_encoding_to_html5

    told = record.http_charset or detect_encoding(body, from_html_meta=True) or "utf-8"
    page = bytes_to_str(body, map_encoding_to_html5(told) or "utf-8")
    if html.is_nested(page, limits.depth):
        raise ValueError(f"nested beyond limits.depth={limits.depth}")
    return html.text(page)


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


def _json_lines(name: str, file: BinaryIO, tally: Tally, limits: LimitsConfig) -> Iterator[Page | Quarantined]:
    number = 0
    try:
        with gzip.open(file) if name.endswith(".gz") else contextlib.nullcontext(file) as lines:
            for number, line in enumerate(bounded.lines(lines, limits.line_bytes), 1):
                if line is None:
                    yield _quarantine(name, number, f"more than limits.line_bytes={limits.line_bytes}", b"")
                elif line.strip():
                    yield from _json_page(name, number, line, tally, limits)
    except (EOFError, zlib.error, gzip.BadGzipFile, bounded.BlankLinesError) as error:
        yield _quarantine(name, number, f"damaged after this line: {error}", b"")


def _json_page(name: str, number: int, line: bytes, tally: Tally, limits: LimitsConfig) -> Iterator[Page | Quarantined]:
    try:
        written = line.decode(json.detect_encoding(line), "surrogatepass")
        if bounded.is_nested(written, limits.depth):
            yield _quarantine(name, number, f"nested beyond limits.depth={limits.depth}", line)
            return
        row = strict_json.parse(written)
        text, url, timestamp = (row.get(field) or "" for field in ("text", "url", "timestamp"))
        page = Page(url.strip() or f"{name}:{number}", text, timestamp)
        "".join(page).encode("utf-8")
    except UnicodeError as error:
        yield _quarantine(name, number, f"no valid Unicode: {error}", line)
    except (ValueError, AttributeError, TypeError, RecursionError):
        yield _quarantine(name, number, "no JSON object with the strings 'text', 'url' and 'timestamp'", line)
    else:
        if page.text:
            tally.count("read", page.text)
            yield page
        else:
            tally.add("no_text", page, [""])
