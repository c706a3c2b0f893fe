"""Stages of cleaning: tasks that read and write files, with the same output for any number and kind of workers.

    read      pages of the crawl that pass the rules for length and site, by URL
    newest    the newest page of each URL, then the rules up to the first step that compares pages
    duplicates-owners, near_duplicates-owners
              for each unit of text (a line, a span of sentences, a MinHash band), the page that owns it
    duplicates, near_duplicates
              pages without the units that other pages own, then the next rules
    write     lines of each output file, sorted

The stages of a comparison run only if the settings have it. The order of the
steps is that of `tensorflow_datasets/text/c4.py`: length, sites, newest copy, list of URLs, paragraphs, lines,
duplicates, language, bad words. Gopher's rules (repetition, quality) see the text before any line is removed. FineWeb's
rule sees it after C4's rules for lines, as in FineWeb. Decontamination sees the final text. Near-duplicates come last.
"""

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np

from plm_jax.cleaning import crawl, decontamination, duplicates, lists, quality, records, rules, settings
from plm_jax.cleaning.pages import Count, Page, Tally, normalize_url
from plm_jax.common import parts, storage, tasks, trees

# Limits: requests of a stage (reading tasks times files that each one reads), and tasks of the stage `read`.
_MOST_REQUESTS, _MOST_TASKS = 2**20, 2**12
# A compressed crawl has about this many bytes of text per byte.
_EXPANSION = 4
_COMPRESSION = 6
_KEY = records.KEY_BYTES
# NumPy type of units and keys, and the least number of records before `_owners` merges them.
_DIGEST, _MERGED = f"S{_KEY}", 2**17
_SETTINGS = "settings.json"


class Pass(NamedTuple):
    """Rules for single pages, and the step after them that compares pages.

    Attributes:
      segments: names of groups of rules in `_segment`.
      compared: field of the settings with the comparison, `duplicates` or `near_duplicates`; None at the end.
    """

    segments: tuple[str, ...]
    compared: str | None


def passes(rule: settings.CleaningConfig) -> list[Pass]:
    """Returns the passes over pages that the settings need."""
    result, pending = [], []
    for segment, compared in (("before", "duplicates"), ("after", "near_duplicates")):
        pending.append(segment)
        if getattr(rule, compared) is not None:
            result.append(Pass(tuple(pending), compared))
            pending = []
    return [*result, Pass(tuple(pending), None)]


@dataclasses.dataclass(frozen=True)
class Plan:
    """Crawl and settings of a job, and the size of its tasks.

    Attributes:
      files: files of the crawl by path.
      rule: settings; the number of shards is set.
      lists: lists that the settings name.
      part_bytes: bytes of text that a task should hold in memory. It holds more if the limits of requests and tasks
        allow only larger parts. A task of `read` reads at most twice as many bytes, or one larger file.
    """

    files: Mapping[str, crawl.CrawlFile]
    rule: settings.CleaningConfig
    lists: lists.Lists
    part_bytes: int

    def num_parts(self, size: int, num_tasks: int) -> int:
        """Returns the number of parts for outputs of `num_tasks` tasks with `size` bytes in all."""
        return max(1, min(-(-size // self.part_bytes), _MOST_REQUESTS // max(num_tasks, 1)))


def build(folder: str, plan: Plan) -> list[tasks.Stage]:
    """Writes the settings and lists for the workers to the job's folder, and returns the stages.

    The result of each task has a `tally`. Results of the last stage also have `files`: path → numbers of rows and
    characters.
    """
    content = {
        "settings": trees.to_dict(plan.rule),
        "domains": plan.lists.domains,
        "badwords": {language: sorted(words) for language, words in plan.lists.badwords.items()},
        "evaluations": [evaluation.path for evaluation in plan.lists.evaluations],
    }
    storage.write(os.path.join(folder, _SETTINGS), json.dumps(content, ensure_ascii=False).encode("utf-8"))
    first, *later = passes(plan.rule)
    stages = [
        tasks.Stage("read", functools.partial(_read_tasks, plan)),
        tasks.Stage("newest", functools.partial(_newest_tasks, plan, first), ("read/pages", "read/urls")),
    ]
    source, compared = "newest", first.compared
    for step in later:
        assert compared is not None
        owners = f"{compared}-owners"
        stages.append(tasks.Stage(owners, functools.partial(_owner_tasks, source), (f"{source}/units",)))
        make = functools.partial(_keep_tasks, plan, source, owners, compared, step)
        stages.append(tasks.Stage(compared, make, (source, owners)))
        source, compared = compared, step.compared
    stages.append(tasks.Stage("write", functools.partial(_write_tasks, plan, source), (source, "read")))
    return stages


def tally(marks: tasks.Marks) -> Tally:
    """Returns the tally of all tasks."""
    total = Tally()
    for stage in marks.values():
        for mark in stage:
            total.merge(decode_tally(mark.result["tally"]))
    return total


def encode_tally(counts: Tally) -> dict[str, Any]:
    """Returns a tally as a JSON value."""
    return {
        reason: [count.number, count.characters, [[key.hex(), *rest] for key, *rest in count.examples]]
        for reason, count in sorted(counts.items())
    }


def decode_tally(value: Mapping[str, Any]) -> Tally:
    """Returns the tally of a JSON value."""
    return Tally(
        {
            reason: Count(number, characters, tuple((bytes.fromhex(key), url, text) for key, url, text in examples))
            for reason, (number, characters, examples) in value.items()
        }
    )


class _Knowledge(NamedTuple):
    """Settings and lists of a job, as the workers read them from its folder."""

    rule: settings.CleaningConfig
    domains: Mapping[str, Any]
    badwords: Mapping[str, set[str]]
    evaluations: Sequence[str]


@functools.lru_cache(2)
def _knowledge(folder: str, identity: str) -> _Knowledge:
    del identity
    content = json.loads(storage.read(os.path.join(folder, _SETTINGS)))
    rule = trees.parse(settings.CleaningConfig, content["settings"], "settings")
    badwords = {language: set(words) for language, words in content["badwords"].items()}
    return _Knowledge(rule, content["domains"], badwords, content["evaluations"])


@functools.lru_cache(8)
def _segment(folder: str, identity: str, name: str) -> list[tuple[str, rules.PageRule]]:
    """Returns the rules of a segment by step. Each process makes them once, because detectors of languages are slow."""
    known = _knowledge(folder, identity)
    rule, result = known.rule, []
    if name == "read":
        result.append(("length", rules.MaxCharacters(rule.max_characters)))
        if isinstance(rule.pages, settings.DomainsConfig):
            result.append(("sites", rules.InDomains(known.domains)))
    elif name == "before":
        if rule.repetition is not None:
            result.append(("repetition", quality.GopherRepetition(rule.repetition)))
        if rule.quality is not None:
            result.append(("quality", quality.GopherQuality(rule.quality)))
        if rule.paragraphs is not None:
            result.append(("paragraphs", rules.HasParagraphs(rule.paragraphs)))
        if rule.lines is not None:
            result.append(("lines", rules.LineFilter(rule.lines)))
        if rule.fineweb is not None:
            result.append(("FineWeb", quality.FineWebQuality(rule.fineweb)))
    else:
        if rule.language is not None:
            result.append(("language", rules.LANGUAGES[type(rule.language)](rule.language)))
        if rule.badwords is not None:
            result.append(("bad words", rules.NoBadWords(known.badwords, rule.badwords.fraction)))
        if rule.decontamination is not None:
            result.append(
                ("decontamination", decontamination.NoEvaluationText(rule.decontamination, known.evaluations))
            )
    return result


def _apply(workspace: tasks.Workspace, segments: Iterable[str], pages: Iterable[Page], counts: Tally) -> Iterator[Page]:
    """Applies the rules of segments. Iterates over the remaining pages."""
    steps = [step for name in segments for step in _segment(workspace.folder, workspace.identity, name)]
    for page in pages:
        result: Page | None = page
        for name, rule in steps:
            result = rule(result, counts)
            if result is None:
                break
            counts.count(f"after {name}", result.text)
        else:
            yield result


class _Spread(NamedTuple):
    """Output with parts, as it is in the result of a task.

    Attributes:
      output: index among the outputs of the task.
      offsets: offset of each part, and the size of the file.
      sizes: bytes of each part before compression.
    """

    output: int
    offsets: list[int]
    sizes: list[int]


def _write_parts(workspace: tasks.Workspace, name: str, writer: parts.PartsWriter) -> _Spread:
    with workspace.writing(name) as file:
        offsets = writer.write(file)
    return _Spread(len(workspace.outputs) - 1, offsets, list(writer.sizes))


class _Part(NamedTuple):
    """Slices of one part of several outputs, and these outputs."""

    slices: tuple[parts.Slice, ...]
    outputs: tuple[tasks.Output, ...]


def _slices(marks: Iterable[tasks.Mark], field: str, part: int) -> _Part:
    """Collects the non-empty slices of one part from the outputs that a field of the results refers to."""
    slices, outputs = [], []
    for mark in marks:
        if (value := mark.result.get(field)) is not None:
            spread = _Spread(*value)
            if spread.sizes[part]:
                output = mark.outputs[spread.output]
                outputs.append(output)
                start, stop = spread.offsets[part : part + 2]
                slices.append(parts.Slice(output.path, start, stop, spread.sizes[part]))
    return _Part(tuple(slices), tuple(outputs))


def _located(workspace: tasks.Workspace, slices: Iterable[parts.Slice]) -> list[parts.Slice]:
    return [each._replace(path=workspace.path(each.path)) for each in slices]


def _read_tasks(plan: Plan, marks: tasks.Marks) -> list[tasks.Task]:
    del marks
    total = sum(file.size for file in plan.files.values())
    sized = [((path, file.name), file.size) for path, file in plan.files.items()]
    groups = tasks.groups(sized, max(2 * plan.part_bytes, total // _MOST_TASKS))
    text = sum(file.size * (_EXPANSION if file.name.endswith(".gz") else 1) for file in plan.files.values())
    url_files = plan.lists.url_files
    num_parts = plan.num_parts(text, len(groups) + len(url_files))
    # Files of quarantined records are small; one task writes those of a part.
    num_bad = min(plan.rule.num_shards, max(1, _MOST_REQUESTS // max(len(groups), 1)))
    result = [
        tasks.Task(f"{number:06d}", _read, (tuple(group), num_parts, num_bad), subject=group[0][0])
        for number, group in enumerate(groups)
    ]
    return result + [
        tasks.Task(f"urls-{number:06d}", _read_urls, (path, num_parts), subject=path)
        for number, path in enumerate(url_files)
    ]


def _read(workspace: tasks.Workspace, files: Sequence[tuple[str, str]], num_parts: int, num_bad: int) -> dict[str, Any]:
    """Reads files of the crawl, and writes their pages by URL."""
    rule, counts = _knowledge(workspace.folder, workspace.identity).rule, Tally()
    by_url, bad, name = parts.PartsWriter(num_parts), parts.PartsWriter(num_bad), workspace.task

    def read() -> Iterator[Page]:
        for path, file in files:
            for record in crawl.read(path, file, counts, rule.limits):
                if isinstance(record, Page):
                    yield record
                    continue
                sample = Page(f"{record.file}:{record.position}", record.sample)
                counts.add("quarantined", sample, [record.reason])
                number, row = records.quarantined_row(record, rule.num_shards)
                bad.add(number * num_bad // rule.num_shards, records.encode_row(row))

    for page in _apply(workspace, ["read"], read(), counts):
        by_url.add(records.position(_url_digest(page.normalized_url), num_parts), records.encode(page))
    return {
        "pages": _write_parts(workspace, f"pages/{name}", by_url),
        "bad": _write_parts(workspace, f"bad/{name}", bad),
        "tally": encode_tally(counts),
    }


def _url_digest(url: str) -> bytes:
    return hashlib.md5(url.encode("utf-8")).digest()


def _read_urls(workspace: tasks.Workspace, path: str, num_parts: int) -> dict[str, Any]:
    """Reads a list of URLs, and writes their digests."""
    writer = parts.PartsWriter(num_parts)
    with storage.open_binary(path) as file:
        for line in file:
            digest = _url_digest(normalize_url(line.decode("utf-8", errors="replace").strip()))
            writer.add(records.position(digest, num_parts), digest)
    return {"urls": _write_parts(workspace, f"urls/{workspace.task}", writer), "tally": {}}


def _newest_tasks(plan: Plan, step: Pass, marks: tasks.Marks) -> list[tasks.Task]:
    source = marks["read"]
    sizes = _sizes(source, "pages")
    sink = _sink(plan, step, sum(sizes), len(sizes))
    result = []
    for part in range(len(sizes)):
        pages, page_files = _slices(source, "pages", part)
        urls, url_files = _slices(source, "urls", part)
        result.append(tasks.Task(f"{part:06d}", _newest, (pages, urls, step, sink), page_files + url_files))
    return result


def _sizes(marks: Iterable[tasks.Mark], field: str) -> list[int]:
    """Returns the bytes of each part of the outputs that a field of the results names."""
    columns = [_Spread(*mark.result[field]).sizes for mark in marks if field in mark.result]
    return [sum(column) for column in zip(*columns, strict=True)]


def _newest(
    workspace: tasks.Workspace, slices: Sequence[parts.Slice], urls: Sequence[parts.Slice], step: Pass, sink: "_Sink"
) -> dict[str, Any]:
    """Selects the newest page of each URL, and writes the pages that pass further rules."""
    rule, counts = _knowledge(workspace.folder, workspace.identity).rule, Tally()
    newest: dict[bytes, Page] = {}
    for page in records.pages(_located(workspace, slices)):
        key = _url_digest(page.normalized_url)
        if (other := newest.get(key)) is not None:
            older, page = sorted((other, page), key=_recency)
            counts.add("older_copy", older, [older.text])
        newest[key] = page
    listed = None
    if isinstance(rule.pages, settings.UrlsConfig):
        data = records.digests(_located(workspace, urls))
        listed = {data[start : start + _KEY] for start in range(0, len(data), _KEY)}

    def selected() -> Iterator[Page]:
        for key in list(newest):
            page = newest.pop(key)
            counts.count("after newest copies", page.text)
            if listed is not None:
                if key not in listed:
                    counts.add("unlisted_url", page, [page.text])
                    continue
                counts.count("after list of URLs", page.text)
            yield page

    return _write_pages(workspace, _apply(workspace, step.segments, selected(), counts), step, sink, counts)


def _recency(page: Page) -> tuple[str, int, int]:
    """Returns a key that is largest for the newest copy. Ties go to the smallest hash of the text, then of the URL."""
    text = hashlib.md5(page.text.encode("utf-8")).digest()
    return page.timestamp, -int.from_bytes(text, "big"), -int.from_bytes(page.key, "big")


class _Sink(NamedTuple):
    """Numbers of parts of the output of a pass.

    Attributes:
      units: parts of the units, or 0 if the pass is the last one.
      ranges: number of key ranges into which the rows of each output file are divided in the last pass; otherwise 0.
    """

    units: int
    ranges: int


def _sink(plan: Plan, step: Pass, size: int, num_tasks: int) -> _Sink:
    # Units of short lines are as large as their text.
    num_parts = plan.num_parts(size, num_tasks)
    return _Sink(num_parts, 0) if step.compared is not None else _Sink(0, -(-num_parts // records.num_files(plan.rule)))


def _write_pages(
    workspace: tasks.Workspace, pages: Iterable[Page], step: Pass, sink: _Sink, counts: Tally
) -> dict[str, Any]:
    """Writes pages with their units for the next comparison, or as rows of the output files."""
    rule, name = _knowledge(workspace.folder, workspace.identity).rule, workspace.task
    if step.compared is None:
        rows = parts.PartsWriter(records.num_files(rule) * sink.ranges)
        for page in pages:
            number, row = records.page_row(page, rule)
            rows.add(number * sink.ranges + records.position(row.key, sink.ranges), records.encode_row(row))
        return {"rows": _write_parts(workspace, f"rows/{name}", rows), "tally": encode_tally(counts)}
    kind = _kind(rule, step.compared)
    writer, units = parts.PartsWriter(1), parts.PartsWriter(sink.units)
    for page in pages:
        writer.add(0, records.encode(page))
        key = page.key
        for unit in sorted(set(kind.units(page))):  # The order of a set differs between processes.
            unit = unit.ljust(_KEY, b"\0")
            units.add(records.position(unit, sink.units), unit + key)
    return {
        "pages": _write_parts(workspace, f"pages/{name}", writer),
        "units": _write_parts(workspace, f"units/{name}", units),
        "tally": encode_tally(counts),
    }


@functools.lru_cache(4)
def _kind(rule: settings.CleaningConfig, compared: str) -> Any:
    config = getattr(rule, compared)
    return duplicates.KINDS[type(config)](config)


def _owner_tasks(source: str, marks: tasks.Marks) -> list[tasks.Task]:
    sources = marks[source]
    result = []
    for part in range(len(_sizes(sources, "units"))):
        slices, inputs = [], []
        for number, mark in enumerate(sources):
            each, outputs = _slices([mark], "units", part)
            slices += [(number, one) for one in each]
            inputs += outputs
        result.append(tasks.Task(f"{part:06d}", _owners, (tuple(slices), len(sources)), tuple(inputs)))
    return result


def _owners(workspace: tasks.Workspace, slices: Sequence[tuple[int, parts.Slice]], num_sources: int) -> dict[str, Any]:
    """Finds the owner of each unit, the page with the smallest key. Writes the records of all other pages with it."""
    units, owners = np.zeros(0, _DIGEST), np.zeros(0, _DIGEST)
    pending: list[np.ndarray] = []
    for block in (block for _, each in slices for block in _records(workspace, each)):
        pending.append(block)
        if sum(map(len, pending)) > len(units) + _MERGED:
            units, owners = _merge(units, owners, pending)
            pending = []
    units, owners = _merge(units, owners, pending)
    # In a second pass, so that memory depends on the number of different units only: some are on most pages.
    writer = parts.PartsWriter(num_sources)
    for number, each in slices:
        for block in _records(workspace, each):
            is_lost = owners[np.searchsorted(units, block["unit"])] != block["key"]
            if is_lost.any():
                writer.add(number, block[is_lost].tobytes())
    return {"lost": _write_parts(workspace, f"lost/{workspace.task}", writer), "tally": {}}


def _records(workspace: tasks.Workspace, part: parts.Slice) -> Iterator[np.ndarray]:
    """Iterates over blocks of units and keys of pages, structured arrays."""
    for block in parts.blocks(*_located(workspace, [part])):
        yield np.frombuffer(block, [("unit", _DIGEST), ("key", _DIGEST)])


def _merge(units: np.ndarray, owners: np.ndarray, pending: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns all different units, sorted, and the smallest key of each."""
    units = np.concatenate([units, *(block["unit"] for block in pending)])
    keys = np.concatenate([owners, *(block["key"] for block in pending)])
    order = np.lexsort((keys, units))
    units, keys = units[order], keys[order]
    is_first = np.ones(len(units), bool)
    is_first[1:] = units[1:] != units[:-1]
    return units[is_first], keys[is_first]


def _keep_tasks(
    plan: Plan, source: str, owners: str, compared: str, step: Pass, marks: tasks.Marks
) -> list[tasks.Task]:
    sources = marks[source]
    sink = _sink(plan, step, sum(_sizes(sources, "pages")), len(sources))
    result = []
    for number, mark in enumerate(sources):
        pages, page_files = _slices([mark], "pages", 0)
        lost, lost_files = _slices(marks[owners], "lost", number)
        result.append(tasks.Task(f"{number:06d}", _keep, (pages, lost, compared, step, sink), page_files + lost_files))
    return result


def _keep(
    workspace: tasks.Workspace,
    slices: Sequence[parts.Slice],
    lost_slices: Sequence[parts.Slice],
    compared: str,
    step: Pass,
    sink: _Sink,
) -> dict[str, Any]:
    """Removes from each page the units that other pages own, and writes the pages that pass the next rules."""
    rule, counts = _knowledge(workspace.folder, workspace.identity).rule, Tally()
    kind, name = _kind(rule, compared), compared.replace("_", "-")
    lost = _by_key(records.digests(_located(workspace, lost_slices)))

    def owned() -> Iterator[Page]:
        for page in records.pages(_located(workspace, slices)):
            missing = lost(page.key)
            units = frozenset(unit for unit in kind.units(page) if unit.ljust(_KEY, b"\0") not in missing)
            result = kind.keep(page, units, counts)
            if result is not None:
                counts.count(f"after {name}", result.text)
                yield result

    return _write_pages(workspace, _apply(workspace, step.segments, owned(), counts), step, sink, counts)


def _by_key(data: bytes) -> Callable[[bytes], Set[bytes]]:
    """Indexes records of unit and key by page. Returns a function from a page's key to its units that others own."""
    words = np.frombuffer(data, ">u8").reshape(-1, 4)
    words = words[np.lexsort((words[:, 3], words[:, 2]))]
    keys, ordered = words[:, 2:].tobytes(), words[:, :2].tobytes()
    firsts = np.flatnonzero((words[1:, 2:] != words[:-1, 2:]).any(1)) + 1
    bounds = [0, *firsts.tolist(), len(words)]
    ranges = {keys[_KEY * start : _KEY * (start + 1)]: (start, stop) for start, stop in itertools.pairwise(bounds)}

    def units(key: bytes) -> Set[bytes]:
        start, stop = ranges.get(key, (0, 0))
        return {ordered[_KEY * number : _KEY * (number + 1)] for number in range(start, stop)}

    return units


def _write_tasks(plan: Plan, source: str, marks: tasks.Marks) -> list[tasks.Task]:
    ranges = len(_sizes(marks[source], "rows")) // records.num_files(plan.rule)
    result = []
    for number in range(records.num_files(plan.rule)):
        each = [_slices(marks[source], "rows", number * ranges + part) for part in range(ranges)]
        result.append(_write_task(f"{number:06d}", each))
    for number in range(len(_sizes(marks["read"], "bad"))):
        result.append(_write_task(f"quarantine-{number:06d}", [_slices(marks["read"], "bad", number)]))
    return [task for task in result if task.inputs]


def _write_task(name: str, each: Sequence[_Part]) -> tasks.Task:
    inputs = {output.path: output for _, outputs in each for output in outputs}
    return tasks.Task(name, _write, (tuple(slices for slices, _ in each),), tuple(inputs.values()))


def _write(workspace: tasks.Workspace, ranges: Sequence[Sequence[parts.Slice]]) -> dict[str, Any]:
    """Writes rows to their output files, sorted by key.

    Args:
      ranges: slices of each key range, in increasing order; they may contain rows of several files.
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
    return {"files": written, "tally": {}}
