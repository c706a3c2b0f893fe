"""Readers of crawls: WET, WARC, JSON Lines and Parquet. A run skips unreadable records and puts them in quarantine."""

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

# C4's reader treats every line that begins with one of these as a header of a WET record.
_HEADERS = ("WARC", "CONTENT-", "Content-")
_HTML = ("text/html", "application/xhtml+xml")
_SAMPLE_CHARACTERS = 10_000
# Beginning of a gzip member: the magic number and the method "deflate".
_MAGIC = b"\x1f\x8b\x08"
_CHUNK, _MAX_MEMBER, _MAX_WASTED = 2**16, 2**28, 2**29
_LIMITS = LimitsConfig()
# Fields of JSON Lines and columns of Parquet, and rows of Parquet that are read at a time.
_ROW_FIELDS, _ROWS = ("text", "url", "timestamp"), 256
# Metadata of stores that changes with the content of a file, in lower case and without underscores.
_VERSION_FIELDS = ("mtime", "etag", "md5hash", "lastmodified", "created", "updated")


class CrawlFile(NamedTuple):
    """File of a crawl.

    Attributes:
      name: path relative to the folder that contains all files of the crawl.
      size: number of bytes.
      version: metadata that changes when the content does.
    """

    name: str
    size: int
    version: str


class Quarantined(NamedTuple):
    """Record that cannot be read.

    Attributes:
      file: name of the file.
      position: byte in an archive, line of a JSON Lines file, or row of a Parquet file.
      reason: why it cannot be read.
      sample: beginning of the record.
    """

    file: str
    position: int
    reason: str
    sample: str


def files(patterns: list[str]) -> dict[str, CrawlFile]:
    """Returns the files that match the paths or globs: a dict from path to file, sorted by path.

    The name of a file is its path relative to the folder that contains all files. The name stays the same when the
    crawl is moved.

    Raises:
      UserError: a pattern matches no file, the format of a file is not supported, a path is not UTF-8, or a store is
        unreachable.
    """
    sizes_and_versions: dict[str, tuple[int, str]] = {}
    for pattern in patterns:
        matches = _remote_files(pattern) if storage.is_remote(pattern) else _local_files(pattern)
        if not matches:
            raise UserError(f"there is no file at {pattern}: fix --input")
        sizes_and_versions |= matches
    for path in sizes_and_versions:
        try:
            path.encode("utf-8")
        except UnicodeEncodeError:
            raise UserError(f"the path {path!a} is not UTF-8: rename it") from None
        _reader(path)
    # `commonpath` does not accept a mixture of paths and URLs.
    root = os.path.commonprefix([*sizes_and_versions]).rpartition("/")[0]  # noqa: RUF071
    return {
        path: CrawlFile(path[len(root) :].lstrip("/"), *sizes_and_versions[path]) for path in sorted(sizes_and_versions)
    }


def _local_files(pattern: str) -> dict[str, tuple[int, str]]:
    """Returns the size and version of each local file that matches, by absolute path. Links are followed."""
    stats = {os.path.abspath(path): os.stat(path) for path in storage.glob(pattern)}
    return {path: (stat.st_size, str(stat.st_mtime_ns)) for path, stat in stats.items()}


def _remote_files(pattern: str) -> dict[str, tuple[int, str]]:
    """Returns the size and version of each file in a store that matches, by URL."""
    with storage.reaching(pattern):
        system = fsspec.core.url_to_fs(pattern, use_listings_cache=False)[0]
        matches = system.glob(pattern, detail=True).items()
    return {
        system.unstrip_protocol(path): (info.get("size") or 0, _version(info))
        for path, info in matches
        if info["type"] == "file"
    }


def _version(info: Mapping[str, Any]) -> str:
    """Returns metadata that changes with the content of a file. Every store has at least one of `_VERSION_FIELDS`."""
    fields = {name.lower().replace("_", ""): value for name, value in info.items()}
    return repr([fields.get(name) for name in _VERSION_FIELDS])


def _reader(path: str):
    name = os.path.basename(path).lower()
    if ".warc" in name or ".wet" in name:
        return _archive
    if name.endswith(".parquet"):
        return _parquet
    if ".json" in name:
        return _json_lines
    raise UserError(f"{path} has an unknown extension: name it *.wet.gz, *.warc.gz, *.jsonl.gz or *.parquet")


def read(path: str, name: str, tally: Tally, limits: LimitsConfig = _LIMITS) -> Iterator[Page | Quarantined]:
    """Yields the pages of a file, and a `Quarantined` for each record that exceeds the limits or cannot be read.

    Responses other than HTML with status 200, and records without URL, text or time, are skipped and counted. In JSON
    Lines and Parquet, only the text is required.

    A line of JSON Lines is an object with `text` and optionally `url` and `timestamp`; Parquet files have columns of
    the same names. The file's `name` and the number of the line or row replace a missing URL.

    Raises:
      UserError: the file cannot be opened, or its store cannot be reached.
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
    """Iterates over the `conversion` records of a WET file and the HTML `response` records of a WARC file."""
    if not name.endswith(".gz"):
        yield from _records(name, 0, file, tally, limits)
        return
    for position, member in _members(file):
        if isinstance(member, bytes):
            yield from _records(name, position, io.BytesIO(member), tally, limits)
        else:
            yield _quarantine(name, position, str(member), b"")


def _members(file: BinaryIO) -> Iterator[tuple[int, bytes | Exception]]:
    """Yields a pair per member of a gzip file: the member's position, and its content or its error.

    Crawlers write one member per record. After a damaged member, the reader searches for the next member. It stops
    after more than `_MAX_WASTED` bytes of damaged members.
    """
    start = wasted = 0
    while True:
        file.seek(start)
        try:
            data, size = _member(file)
        except (zlib.error, EOFError, ValueError) as error:
            wasted += file.tell() - start
            if wasted > _MAX_WASTED:
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
    """Returns a pair: the content of the next gzip member (None at the end of the file), and its compressed size."""
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
    """Returns the distance from `start` to the next possible gzip member, or 0 if no member follows."""
    file.seek(start + 1)
    before, passed = b"", 1
    while chunk := file.read(_CHUNK):
        offset = (before + chunk).find(_MAGIC)
        if offset >= 0:
            return passed - len(before) + offset
        passed += len(chunk)
        before = (before + chunk)[-len(_MAGIC) + 1 :]
    return 0


def _records(name: str, start: int, file: BinaryIO, tally: Tally, limits: LimitsConfig) -> Iterator[Page | Quarantined]:
    """Iterates over the pages of uncompressed WARC records. `start` is added to the positions of records."""
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    record_types = WarcRecordType.conversion | WarcRecordType.response
    position = start
    try:
        for record in ArchiveIterator(file, record_types=record_types, auto_decode="all"):
            position = start + record.stream_pos
            is_response = record.record_type == WarcRecordType.response
            limit, field = (limits.body_bytes, "body") if is_response else (limits.page_bytes, "page")
            body = record.reader.read(limit + 1)
            if len(body) > limit:
                yield _quarantine(name, position, f"more than limits.{field}_bytes={limit}", body)
            elif record.is_http or len(body) == record.content_length:
                yield from _record(name, position, record, body, tally, limits)
            else:
                yield _quarantine(name, position, "the record is cut off", body)
    except OSError as error:
        if error.errno is not None:  # An error of the disk or the network, not of the file.
            raise
        # The beginning of the next record is unknown.
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
    yield from _complete(Page(url, _tidy(text), timestamp), tally)


def _is_html(record: Any) -> bool:
    return bool(
        record.is_http_parsed
        and record.http_headers.status_code == 200
        and (record.http_content_type or "").lower().startswith(_HTML)
    )


def _html_text(record: Any, body: bytes, limits: LimitsConfig) -> str:
    """Returns the visible text of a page.

    Raises:
      ValueError: the elements of the page are nested too deeply.
    """
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding, map_encoding_to_html5

    encoding = record.http_charset or detect_encoding(body, from_html_meta=True) or "utf-8"
    page = bytes_to_str(body, map_encoding_to_html5(encoding) or "utf-8")
    if html.is_nested(page, limits.depth):
        raise ValueError(f"nested beyond limits.depth={limits.depth}")
    return html.text(page)


def _tidy(text: str) -> str:
    """Strips lines, and removes blank lines and lines that C4 treats as headers."""
    lines = (line.strip() for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    return "\n".join(line for line in lines if line and not line.startswith(_HEADERS))


def _complete(page: Page, tally: Tally) -> Iterator[Page]:
    """Yields the page if it has URL, text and time."""
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
        decoded = line.decode(json.detect_encoding(line), "surrogatepass")
        if bounded.is_nested(decoded, limits.depth):
            yield _quarantine(name, number, f"nested beyond limits.depth={limits.depth}", line)
            return
        page = _row_page(name, number, strict_json.parse(decoded))
    except UnicodeError as error:
        yield _quarantine(name, number, f"invalid Unicode: {error}", line)
    except (ValueError, AttributeError, TypeError, RecursionError):
        yield _quarantine(name, number, "not a JSON object with the strings 'text', 'url' and 'timestamp'", line)
    else:
        yield from _with_text(page, tally)


def _row_page(name: str, number: int, row: Mapping[str, Any]) -> Page:
    """Returns the page of a row.

    Raises:
      AttributeError, TypeError, ValueError: the row is not a page.
    """
    text, url, timestamp = (row.get(field) or "" for field in _ROW_FIELDS)
    page = Page(url.strip() or f"{name}:{number}", text, timestamp)
    "".join(page).encode("utf-8")
    return page


def _with_text(page: Page, tally: Tally) -> Iterator[Page]:
    """Yields the page if it has a text."""
    if page.text:
        tally.count("read", page.text)
        yield page
    else:
        tally.add("no_text", page, [""])


def _parquet(name: str, file: BinaryIO, tally: Tally, limits: LimitsConfig) -> Iterator[Page | Quarantined]:
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
        table = parquet.ParquetFile(file, pre_buffer=False, page_checksum_verification=True)
        columns = [field for field in _ROW_FIELDS if field in table.schema_arrow.names]
        for batch in table.iter_batches(_ROWS, columns=columns):
            for row in batch.to_pylist():
                number += 1
                sample = repr(row)[:_SAMPLE_CHARACTERS].encode("utf-8", "backslashreplace")
                try:
                    page = _row_page(name, number, row)
                except (ValueError, AttributeError, TypeError):
                    yield _quarantine(name, number, "not a row with the strings 'text', 'url' and 'timestamp'", sample)
                    continue
                if len(page.text) > limits.line_bytes:
                    yield _quarantine(name, number, f"more than limits.line_bytes={limits.line_bytes}", sample)
                else:
                    yield from _with_text(page, tally)
    except pyarrow.ArrowException as error:
        yield _quarantine(name, number, f"damaged after this row: {one_line(error)}", b"")
    except OSError as error:
        if error.errno is not None:  # An error of the disk or the network, not of the file.
            raise
        yield _quarantine(name, number, f"damaged after this row: {one_line(error)}", b"")
