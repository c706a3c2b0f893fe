"""Pages, and the tally of removed and kept pages: counts and a few examples by reason."""

import hashlib
import heapq
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

# Beginning and end of a URL that do not affect the page (C4's rule).
_SCHEME = re.compile(r"https?://(?:www\.)?")
_TRACKING = re.compile(r"\?(?:utm_|ref|feed).*")

EXAMPLES, EXAMPLE_CHARACTERS = 3, 200


class Page(NamedTuple):
    """Page of a crawl.

    Attributes:
      url: address of the page.
      text: visible text.
      timestamp: time as in a WARC record (ISO 8601, which sorts by time); empty if it is unknown.
      language: code of the language; empty until it is detected.
    """

    url: str
    text: str
    timestamp: str = ""
    language: str = ""

    @property
    def key(self) -> bytes:
        """MD5 of the URL. Text that several pages share stays in the page with the smallest key."""
        return hashlib.md5(self.url.encode("utf-8")).digest()

    @property
    def normalized_url(self) -> str:
        """URL as `normalize_url` returns it."""
        return normalize_url(self.url)


def normalize_url(url: str) -> str:
    """Returns a URL without scheme, `www.` after the scheme, and final slashes, as in C4.

    A query that begins with `utm_`, `ref` or `feed` is also removed.
    """
    return _TRACKING.sub("", _SCHEME.sub("", url)).rstrip("/")


def url_hash(page: Page) -> int:
    """Returns the MD5 of the normalized URL as an integer of 128 bits.

    The hash selects the pages for validation. It also selects the pages to drop among the pages with bad words.
    """
    return int.from_bytes(hashlib.md5(page.normalized_url.encode("utf-8")).digest(), "big")


class Count(NamedTuple):
    """Count of pages or lines.

    Attributes:
      number: number of pages or lines.
      characters: number of characters of these pages or lines.
      examples: up to `EXAMPLES` examples (key, URL, text) with the smallest keys.
    """

    number: int
    characters: int
    examples: tuple[tuple[bytes, str, str], ...] = ()


class Tally(dict[str, Count]):
    """Dict from a reason to its `Count`. The order of additions and merges does not matter."""

    def add(self, reason: str, page: Page, texts: Iterable[str]) -> None:
        """Counts texts (a page, or some of its lines) under a reason. The first text may become an example.

        There must be at least one text.
        """
        texts = list(texts)
        example = (page.key, page.url, texts[0][:EXAMPLE_CHARACTERS])
        self._merge(reason, Count(len(texts), sum(map(len, texts)), (example,)))

    def count(self, reason: str, text: str) -> None:
        """Counts a page with this text under a reason, without an example."""
        old = self.get(reason, Count(0, 0))
        self[reason] = Count(old.number + 1, old.characters + len(text), old.examples)

    def to_json(self) -> dict[str, Any]:
        """Returns the tally as a JSON value."""
        return {
            reason: [count.number, count.characters, [[key.hex(), *rest] for key, *rest in count.examples]]
            for reason, count in sorted(self.items())
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Tally":
        """Converts a JSON value of `to_json` to a tally."""
        return cls(
            {
                reason: Count(number, characters, tuple((bytes.fromhex(key), url, text) for key, url, text in examples))
                for reason, (number, characters, examples) in value.items()
            }
        )

    def merge(self, other: "Tally") -> "Tally":
        """Adds the counts of another tally. Returns this tally."""
        for reason, count in other.items():
            self._merge(reason, count)
        return self

    def _merge(self, reason: str, new: Count) -> None:
        old = self.get(reason, Count(0, 0))
        examples = tuple(heapq.nsmallest(EXAMPLES, (*old.examples, *new.examples)))
        self[reason] = Count(old.number + new.number, old.characters + new.characters, examples)
