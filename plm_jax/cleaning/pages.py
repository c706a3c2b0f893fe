"""A page, and the tally of what became of pages: counts and a few examples by reason."""

import hashlib
import heapq
import re
from collections.abc import Iterable
from typing import NamedTuple

# What stands before a URL that names the same page with and without it, and what may follow (C4's own rule).
_SCHEME = re.compile(r"https?://(?:www\.)?")
_TRACKING = re.compile(r"\?(?:utm_|ref|feed).*")

EXAMPLES, EXAMPLE_CHARACTERS = 3, 200


class Page(NamedTuple):
    """A page: `timestamp` as in a WARC record (ISO 8601, so later ones sort later), `language` once it is known."""

    url: str
    text: str
    timestamp: str = ""
    language: str = ""

    @property
    def key(self) -> bytes:
        """MD5 of the URL: of pages that share something, the one with the smallest key keeps it."""
        return hashlib.md5(self.url.encode("utf-8")).digest()

    @property
    def normalized_url(self) -> str:
        """The URL without scheme, `www.`, tracking and final slashes."""
        return normalize_url(self.url)


def normalize_url(url: str) -> str:
    """A URL without scheme, `www.`, tracking and final slashes: what two addresses of one page share."""
    return _TRACKING.sub("", _SCHEME.sub("", url)).rstrip("/")


def url_hash(page: Page) -> int:
    """MD5 of the normalised URL, 128 bits: what chooses pages for validation and for soft filters."""
    return int.from_bytes(hashlib.md5(page.normalized_url.encode("utf-8")).digest(), "big")


class Count(NamedTuple):
    """How many pages or lines, their characters, and those examples (key, URL, text) whose pages' keys are smallest."""

    number: int
    characters: int
    examples: tuple[tuple[bytes, str, str], ...] = ()


class Tally(dict[str, Count]):
    """`Count` by reason. Adding and merging commute, so that a tally does not depend on who counted what when."""

    def add(self, reason: str, page: Page, texts: Iterable[str]) -> None:
        """Counts pages or lines of `page`, the first of them perhaps as an example."""
        texts = list(texts)
        example = (page.key, page.url, texts[0][:EXAMPLE_CHARACTERS])
        self._merge(reason, Count(len(texts), sum(map(len, texts)), (example,)))

    def count(self, reason: str, text: str) -> None:
        """Counts a page that needs no example."""
        old = self.get(reason, Count(0, 0))
        self[reason] = Count(old.number + 1, old.characters + len(text), old.examples)

    def merge(self, other: "Tally") -> "Tally":
        """Takes the counts of another in; returns itself."""
        for reason, count in other.items():
            self._merge(reason, count)
        return self

    def _merge(self, reason: str, new: Count) -> None:
        old = self.get(reason, Count(0, 0))
        examples = tuple(heapq.nsmallest(EXAMPLES, (*old.examples, *new.examples)))
        self[reason] = Count(old.number + new.number, old.characters + new.characters, examples)
