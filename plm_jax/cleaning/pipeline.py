"""The Apache Beam pipeline of cleaning, whose output has the same bytes with any number of workers.

The order of the steps is that of `tensorflow_datasets/text/c4.py`: length, sites, newest copy, list of URLs,
paragraphs, lines, duplicates, language, bad words. Gopher's rules (repetition, quality) see the text before any line is
removed, FineWeb's rule sees it after C4's rules for lines, as in FineWeb. Decontamination sees the final text.
Near-duplicates come last. Pages are grouped by MD5 hashes, which are evenly distributed.
"""

import functools
import gzip
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsList, AsSingleton, PCollection, TaggedOutput
from apache_beam.transforms import window
from apache_beam.utils.windowed_value import WindowedValue

from plm_jax.cleaning import crawl, decontamination, duplicates, progress, quality, rules, settings
from plm_jax.cleaning.lists import Lists
from plm_jax.cleaning.pages import Page, Tally, normalize_url, url_hash
from plm_jax.common import storage
from plm_jax.data.prepare import runners

TALLY, QUARANTINE = "tally", "quarantine"
_COMPRESSION = 6


def start(options: Sequence[str]) -> beam.Pipeline:
    """Returns an empty pipeline; `options` are those of `runners.pipeline`."""
    return runners.pipeline(options)


class _Tallying(beam.DoFn):
    """Base of steps that count pages. The counts are emitted once per bundle."""

    def start_bundle(self):
        self._tally = Tally()

    def finish_bundle(self):
        counts = WindowedValue(self._tally, window.GlobalWindow().max_timestamp(), (window.GlobalWindow(),))
        yield TaggedOutput(TALLY, counts)


class _Read(_Tallying):
    """Reads the pages of files."""

    def __init__(self, limits: settings.LimitsConfig):
        self._limits = limits

    def process(self, file: tuple[str, str]) -> Iterator[Any]:
        for record in crawl.read(*file, self._tally, self._limits):
            if isinstance(record, Page):
                yield record
            else:
                self._tally.add("quarantined", Page(f"{record.file}:{record.position}", record.sample), [record.reason])
                yield TaggedOutput(QUARANTINE, record)
        progress.step("reading")


class _Apply(_Tallying):
    """Applies a rule to each page. Every worker constructs its own rule."""

    def __init__(self, stage: str, make: Callable[..., rules.PageRule], arguments: tuple[Any, ...]):
        self._stage, self._make, self._arguments = stage, make, arguments

    def setup(self):
        self._rule = self._make(*self._arguments)

    def process(self, page: Page) -> Iterator[Any]:
        result = self._rule(page, self._tally)
        if result is not None:
            self._tally.count(f"after {self._stage}", result.text)
            yield result


class _Newest(_Tallying):
    """Selects the newest page of a URL. Ties go to the smallest hash of the text, then of the URL."""

    def process(self, grouped: tuple[bytes, Iterable[Any]]) -> Iterator[Any]:
        pages = iter(grouped[1])
        newest = next(pages)
        progress.step("newest copies")
        for page in pages:
            progress.step("newest copies")
            older, newest = sorted((newest, page), key=_age)
            self._tally.add("older_copy", older, [older.text])
        self._tally.count("after newest copies", newest.text)
        yield newest


def _age(page: Page) -> tuple[str, int, int]:
    text = hashlib.md5(page.text.encode("utf-8")).digest()
    return page.timestamp, -int.from_bytes(text, "big"), -int.from_bytes(page.key, "big")


class _Listed(_Tallying):
    """Selects pages whose URL is listed."""

    def process(self, joined: tuple[bytes, dict[str, Iterable[Any]]]) -> Iterator[Any]:
        listed = any(True for _ in joined[1]["listed"])
        for page in joined[1]["pages"]:
            progress.step("list of URLs")
            if listed:
                self._tally.count("after list of URLs", page.text)
                yield page
            else:
                self._tally.add("unlisted_url", page, [page.text])


class _KeepOwned(_Tallying):
    """Removes the parts of each page that it does not own."""

    def __init__(self, stage: str, rule: Any):
        self._stage, self._rule = stage, rule

    def process(self, joined: tuple[bytes, dict[str, Iterable[Any]]]) -> Iterator[Any]:
        owned = frozenset(joined[1]["owned"])
        for page in joined[1]["pages"]:
            result = self._rule.keep(page, owned, self._tally)
            progress.step(self._stage)
            if result is not None:
                self._tally.count(f"after {self._stage}", result.text)
                yield result


class _Write(beam.DoFn):
    """Writes the rows of a file in sorted order, so that the file does not depend on the order of arrival."""

    def __init__(self, folder: str):
        self._folder = folder

    def process(self, grouped: tuple[str, Iterable[tuple[bytes, str]]]) -> Iterator[tuple[str, int, int]]:
        name, rows = grouped
        lines = [row for _, row in sorted(rows)]
        with (
            storage.writing(os.path.join(self._folder, name)) as file,
            # Without name and time, which would differ between runs.
            gzip.GzipFile("", "wb", _COMPRESSION, file, mtime=0) as packed,
        ):
            packed.writelines(line.encode("utf-8") for line in lines)
        progress.step("writing", len(lines))
        yield name, len(lines), sum(len(line) for line in lines)


class _MergeTallies(beam.CombineFn):
    def create_accumulator(self):
        return Tally()

    def add_input(self, accumulator, tally):
        return accumulator.merge(tally)

    def merge_accumulators(self, accumulators):
        return functools.reduce(Tally.merge, accumulators, Tally())

    def extract_output(self, accumulator):
        return accumulator


class Cleaning:
    """Builder of the pipeline for given settings. Each step maps pages to pages and has a tally."""

    def __init__(self, rule: settings.CleaningConfig, folder: str):
        self._rule, self._folder = rule, folder
        self._tallies: list[PCollection] = []

    def build(self, pipeline: beam.Pipeline, files: Mapping[str, crawl.CrawlFile], lists: Lists) -> None:
        """Adds all steps from reading `files` to writing the folder, with the lists that the settings name."""
        rule = self._rule
        records = (
            pipeline
            | "files" >> beam.Create([(path, file.name) for path, file in files.items()])
            | "spread files" >> beam.Reshuffle()
            | "reading" >> (beam.ParDo(_Read(rule.limits)).with_outputs(TALLY, QUARANTINE, main="pages"))
        )
        self._tallies.append(records[TALLY])
        pages = records["pages"] | "spread pages" >> beam.Reshuffle()
        pages = self._apply(pages, "length", rules.MaxCharacters, rule.max_characters)
        if isinstance(rule.pages, settings.DomainsConfig):
            pages = self._apply(pages, "sites", rules.InDomains, lists.domains)
        grouped = self._keyed(pages, "newest copies", _by_url) | "copies" >> beam.GroupByKey()
        pages = self._step(grouped, "newest copies", _Newest())
        if isinstance(rule.pages, settings.UrlsConfig):
            pages = self._listed(pages, pipeline | "URL files" >> beam.Create(lists.url_files))
        if rule.repetition is not None:
            pages = self._apply(pages, "repetition", quality.GopherRepetition, rule.repetition)
        if rule.quality is not None:
            pages = self._apply(pages, "quality", quality.GopherQuality, rule.quality)
        if rule.paragraphs is not None:
            pages = self._apply(pages, "paragraphs", rules.HasParagraphs, rule.paragraphs)
        if rule.lines is not None:
            pages = self._apply(pages, "lines", rules.LineFilter, rule.lines)
        if rule.fineweb is not None:
            pages = self._apply(pages, "FineWeb", quality.FineWebQuality, rule.fineweb)
        if rule.duplicates is not None:
            pages = self._deduplicate(pages, "duplicates", rule.duplicates)
        if rule.language is not None:
            pages = self._apply(pages, "language", rules.LANGUAGES[type(rule.language)], rule.language)
        if rule.badwords is not None:
            pages = self._apply(pages, "bad words", rules.NoBadWords, lists.badwords, rule.badwords.fraction)
        if rule.decontamination is not None:
            pages = self._apply(pages, "decontamination", decontamination.NoEvaluationText, rule.decontamination)
        if rule.near_duplicates is not None:
            pages = self._deduplicate(pages, "near-duplicates", rule.near_duplicates)
        self._write(pipeline, pages, records[QUARANTINE])

    def _step(self, pages: Any, stage: str, step: _Tallying) -> PCollection:
        outputs: Any = pages | stage >> beam.ParDo(step).with_outputs(TALLY, main="pages")
        self._tallies.append(outputs[TALLY])
        return outputs["pages"]

    def _apply(
        self, pages: PCollection, stage: str, make: Callable[..., rules.PageRule], *arguments: Any
    ) -> PCollection:
        return self._step(pages, stage, _Apply(stage, make, arguments))

    def _keyed(self, pages: PCollection, stage: str, key: Callable[[Page], bytes]) -> Any:
        return pages | f"{stage}: by key" >> beam.Map(_with_key, key, stage)

    def _listed(self, pages: PCollection, files: PCollection) -> PCollection:
        """Selects the pages whose URL is in one of the files."""
        stage = "list of URLs"
        both = {"pages": self._keyed(pages, stage, _by_url), "listed": files | "URLs" >> beam.FlatMap(_read_urls)}
        return self._step(both | f"{stage}: join" >> beam.CoGroupByKey(), stage, _Listed())

    def _deduplicate(self, pages: PCollection, stage: str, rule: Any) -> PCollection:
        """Removes the parts of pages that other pages own. `rule` is one of `duplicates.KINDS`."""
        kind = duplicates.KINDS[type(rule)](rule)
        owned = (
            pages
            | f"{stage}: units" >> beam.FlatMap(_units, kind)
            | f"{stage}: owners" >> beam.CombinePerKey(min)
            | f"{stage}: by owner" >> beam.KvSwap()
        )
        both = {"pages": self._keyed(pages, stage, _by_page), "owned": owned}
        return self._step(both | f"{stage}: join" >> beam.CoGroupByKey(), stage, _KeepOwned(stage, kind))

    def _write(self, pipeline: beam.Pipeline, pages: PCollection, quarantine: PCollection) -> None:
        """Writes the pages, the quarantined records, and the files and tally in `report.json`."""
        rows = pages | "rows" >> beam.Map(_row, self._rule)
        bad = quarantine | "quarantined rows" >> beam.Map(_quarantined_row, self._rule.num_shards)
        files: Any = (rows, bad) | beam.Flatten() | "by file" >> beam.GroupByKey() | beam.ParDo(_Write(self._folder))
        tally: Any = self._tallies | "tallies" >> beam.Flatten() | beam.CombineGlobally(_MergeTallies())
        _ = (
            pipeline
            | "once" >> beam.Create([os.path.join(self._folder, "report.json")])
            | beam.Map(_report, AsSingleton(tally), AsList(files))
        )


def _with_key(page: Page, key: Callable[[Page], bytes], stage: str) -> tuple[bytes, Any]:
    progress.expect(stage)
    return key(page), page


def _by_url(page: Page) -> bytes:
    return hashlib.md5(page.normalized_url.encode("utf-8")).digest()


def _by_page(page: Page) -> bytes:
    return page.key


def _units(page: Page, kind: Any) -> Iterator[tuple[bytes, bytes]]:
    key = page.key
    return ((unit, key) for unit in set(kind.units(page)))


def _read_urls(path: str) -> Iterator[tuple[bytes, None]]:
    with storage.open_binary(path) as file:
        for line in file:
            url = normalize_url(line.decode("utf-8", errors="replace").strip())
            yield hashlib.md5(url.encode("utf-8")).digest(), None


def _row(page: Page, rule: settings.CleaningConfig) -> tuple[str, tuple[bytes, str]]:
    """Returns the file of a page, and the key and text of its line. With several languages, each has a folder."""
    progress.expect("writing")
    # The remainder selects the split, so only the quotient is free to select the shard.
    number, remainder = divmod(url_hash(page), rule.validation_one_in)
    num_shards = rule.num_shards
    split, shards = ("train", num_shards) if remainder else ("validation", -(-num_shards // rule.validation_one_in))
    name = f"{split}-{number % shards:05d}.jsonl.gz"
    folder = page.language if isinstance(rule.language, settings.Cld3Config) else ""
    row = {"text": page.text, "url": page.url, "timestamp": page.timestamp, "language": page.language}
    return os.path.join(folder, name), (page.key, json.dumps(row, ensure_ascii=False) + "\n")


def _quarantined_row(record: crawl.Quarantined, shards: int) -> tuple[str, tuple[bytes, str]]:
    progress.expect("writing")
    line = json.dumps(record._asdict(), ensure_ascii=False) + "\n"
    key = hashlib.md5(line.encode("utf-8")).digest()
    return f"quarantine/{int.from_bytes(key, 'big') % shards:05d}.jsonl.gz", (key, line)


def _report(path: str, tally: Tally, files: list[tuple[str, int, int]]) -> None:
    counts = {
        reason: {
            "number": count.number,
            "characters": count.characters,
            "examples": [{"url": url, "text": text} for _, url, text in count.examples],
        }
        for reason, count in sorted(tally.items())
    }
    written = {name: {"rows": rows, "characters": characters} for name, rows, characters in sorted(files)}
    storage.write(path, json.dumps({"files": written, "counts": counts}, ensure_ascii=False, indent=1).encode("utf-8"))
