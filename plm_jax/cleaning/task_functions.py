"""Functions of the tasks of cleaning. They read files, write files, and return descriptions of the files they wrote."""

import contextlib
import gzip
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from plm_jax.cleaning import crawl, job_rules, lists, ownership, records, settings
from plm_jax.cleaning.pages import Page, Tally, normalize_url
from plm_jax.common import parts, shuffle, storage, tasks

_COMPRESSION = 6
_KEY = records.KEY_BYTES


class Pass(NamedTuple):
    """Rules for single pages, and the comparison of pages that follows the rules.

    Attributes:
      segments: names of groups of rules in `job_rules.apply`.
      compared: settings field of the comparison, `duplicates` or `near_duplicates`; None in the last pass.
    """

    segments: tuple[str, ...]
    compared: str | None


class Sink(NamedTuple):
    """Division of the output of a pass.

    Attributes:
      division: parts of the units to compare; in the last pass, parts of the rows of output files.
      ranges: number of parts per output file in the last pass, one per range of keys; otherwise 0.
    """

    division: shuffle.Division
    ranges: int


def read(
    workspace: tasks.Workspace, files: Sequence[tuple[str, str]], division: shuffle.Division, num_bad: int
) -> dict[str, Any]:
    """Reads files of the crawl, and writes the pages that pass the rules for length and site.

    Divides pages by a hash of the URL, and quarantined records into `num_bad` parts.
    """
    rule, counts = job_rules.config(workspace), Tally()
    bad_division = shuffle.Division(num_bad)
    by_url, bad, name = division.writer(), bad_division.writer(), workspace.task

    def pages() -> Iterator[Page]:
        for path, file in files:
            for record in crawl.read(path, file, counts, rule.limits):
                if isinstance(record, Page):
                    yield record
                    continue
                sample = Page(f"{record.file}:{record.position}", record.sample)
                counts.add("quarantined", sample, [record.reason])
                number, row = records.quarantined_row(record, rule.num_shards)
                bad.add(number * num_bad // rule.num_shards, records.encode_row(row))

    for page in job_rules.apply(workspace, ["read"], pages(), counts):
        by_url.add(records.position(_url_digest(page.normalized_url), division.num_parts), records.encode(page))
    return {
        "pages": shuffle.write(workspace, f"pages/{name}", by_url, division),
        "bad": shuffle.write(workspace, f"bad/{name}", bad, bad_division),
        "tally": counts.to_json(),
    }


def _url_digest(url: str) -> bytes:
    return hashlib.md5(url.encode("utf-8")).digest()


def read_urls(workspace: tasks.Workspace, path: str, sha256: str, division: shuffle.Division) -> dict[str, Any]:
    """Reads a list of URLs, and writes their digests.

    Raises:
      UserError: the hash of the file is not `sha256`.
    """
    writer, content = division.writer(), hashlib.sha256()
    with storage.open_binary(path) as file:
        for line in file:
            content.update(line)
            digest = _url_digest(normalize_url(line.decode("utf-8", errors="replace").strip()))
            writer.add(records.position(digest, division.num_parts), digest)
    lists.check_unchanged(path, content.hexdigest(), sha256)
    return {"urls": shuffle.write(workspace, f"urls/{workspace.task}", writer, division), "tally": {}}


def newest(
    workspace: tasks.Workspace, slices: Sequence[parts.Slice], urls: Sequence[parts.Slice], step: Pass, sink: Sink
) -> dict[str, Any]:
    """Selects the newest page of each URL, and writes the pages that pass the list of URLs and further rules."""
    rule, counts = job_rules.config(workspace), Tally()
    # Encoded, because text takes up to four times as many bytes in memory.
    newest_pages: dict[bytes, bytes] = {}
    for encoded in records.encoded_pages(_located(workspace, slices)):
        page = records.decode(encoded)
        key = _url_digest(page.normalized_url)
        if (other := newest_pages.get(key)) is not None:
            older, page = sorted((records.decode(other), page), key=_recency)
            counts.add("older_copy", older, [older.text])
            encoded = records.encode(page)
        newest_pages[key] = encoded
    listed = None
    if isinstance(rule.pages, settings.UrlsConfig):
        data = records.digests(_located(workspace, urls))
        listed = {data[start : start + _KEY] for start in range(0, len(data), _KEY)}

    def selected() -> Iterator[Page]:
        for key in list(newest_pages):
            page = records.decode(newest_pages.pop(key))
            counts.count("after newest copies", page.text)
            if listed is not None:
                if key not in listed:
                    counts.add("unlisted_url", page, [page.text])
                    continue
                counts.count("after list of URLs", page.text)
            yield page

    return _write_pages(workspace, selected(), step, sink, counts)


def _recency(page: Page) -> tuple[str, int, int]:
    """Returns a key that is largest for the newest copy. Ties go to the smallest hash of the text, then of the URL."""
    text = hashlib.md5(page.text.encode("utf-8")).digest()
    return page.timestamp, -int.from_bytes(text, "big"), -int.from_bytes(page.key, "big")


def _write_pages(
    workspace: tasks.Workspace, pages: Iterable[Page], step: Pass, sink: Sink, counts: Tally
) -> dict[str, Any]:
    """Applies rules. Writes the remaining pages and the units to compare; in the last pass, rows of output files."""
    rule, name, division = job_rules.config(workspace), workspace.task, sink.division
    pages = job_rules.apply(workspace, step.segments, pages, counts)
    if step.compared is None:
        rows = division.writer()
        for page in pages:
            number, row = records.page_row(page, rule)
            rows.add(number * sink.ranges + records.position(row.key, sink.ranges), records.encode_row(row))
        return {"rows": shuffle.write(workspace, f"rows/{name}", rows, division), "tally": counts.to_json()}
    kind, task = job_rules.comparison(rule, step.compared), int(name)
    whole = shuffle.Division(1)
    writer, units = whole.writer(), division.writer()
    for page in pages:
        writer.add(0, records.encode(page))
        key = page.key
        for unit in sorted(set(kind.units(page))):  # The order of a set differs between processes.
            unit = ownership.padded(unit)
            units.add(records.position(unit, division.num_parts), ownership.record(unit, key, task))
    return {
        "pages": shuffle.write(workspace, f"pages/{name}", writer, whole),
        "units": shuffle.write(workspace, f"units/{name}", units, division),
        "tally": counts.to_json(),
    }


def find_owners(
    workspace: tasks.Workspace, slices: Sequence[parts.Slice], division: shuffle.Division
) -> dict[str, Any]:
    """Finds the owner of each unit. Writes, for each task that wrote pages, the units that its pages do not own."""
    writer = division.writer()
    for task, data in ownership.losses(_located(workspace, slices)):
        writer.add(task, data)
    return {"lost": shuffle.write(workspace, f"lost/{workspace.task}", writer, division)}


def keep(
    workspace: tasks.Workspace,
    slices: Sequence[parts.Slice],
    lost_slices: Sequence[parts.Slice],
    compared: str,
    step: Pass,
    sink: Sink,
) -> dict[str, Any]:
    """Removes the units of each page that other pages own (`ownership`), and writes the pages that pass the next rules.

    Units are lines, spans of sentences or MinHash bands; a page that does not own all of its bands is dropped.
    """
    counts = Tally()
    kind, name = job_rules.comparison(job_rules.config(workspace), compared), compared.replace("_", "-")
    lost = ownership.by_key(records.digests(_located(workspace, lost_slices)))

    def owned() -> Iterator[Page]:
        for page in records.pages(_located(workspace, slices)):
            missing = lost(page.key)
            units = frozenset(unit for unit in kind.units(page) if ownership.padded(unit) not in missing)
            result = kind.keep(page, units, counts)
            if result is not None:
                counts.count(f"after {name}", result.text)
                yield result

    return _write_pages(workspace, owned(), step, sink, counts)


def write(workspace: tasks.Workspace, ranges: Sequence[Sequence[parts.Slice]]) -> dict[str, Any]:
    """Writes rows to their output files, sorted by key.

    Args:
      ranges: slices of each range of keys, in increasing order of keys. A range may contain rows of several files.
    """
    files: dict[str, gzip.GzipFile] = {}
    written: dict[str, list[int]] = {}
    with contextlib.ExitStack() as stack:
        for slices in ranges:
            for row in sorted(records.rows(_located(workspace, slices)), key=lambda row: (row.name, row.key, row.line)):
                if row.name not in files:
                    file: Any = stack.enter_context(workspace.writing(row.name))
                    # Without name and time, which would differ between runs.
                    files[row.name] = stack.enter_context(gzip.GzipFile("", "wb", _COMPRESSION, file, mtime=0))
                    written[row.name] = [0, 0]
                files[row.name].write(row.line)
                written[row.name][0] += 1
                written[row.name][1] += len(row.line.decode("utf-8"))
    return {"files": written}


def _located(workspace: tasks.Workspace, slices: Iterable[parts.Slice]) -> list[parts.Slice]:
    return [each._replace(path=workspace.path(each.path)) for each in slices]
