"""Removal of duplicates across pages. A page is a set of units (lines, spans of sentences, MinHash bands).

Each unit is a digest. Of all pages that contain a unit, the page with the smallest key owns the unit. A page keeps the
lines and spans that it owns. With MinHash, a page is kept only if it owns all of its bands. The choice depends neither
on the order of the pages nor on the number of workers, and favors no site.
"""

import hashlib
import re
from collections.abc import Iterator, Set

from plm_jax.cleaning import minhash, punkt, settings
from plm_jax.cleaning.pages import Page, Tally

_SPACE = re.compile(r"\s+")


def _digest(text: str) -> bytes:
    return hashlib.md5(text.encode("utf-8")).digest()


class LineUnits:
    """Lines, stripped and in lower case."""

    def __init__(self, rule: settings.DuplicateLinesConfig):
        self._min_sentences = rule.min_sentences

    def units(self, page: Page) -> Iterator[bytes]:
        """Returns one digest per line."""
        return (_digest(line.strip().lower()) for line in page.text.split("\n"))

    def keep(self, page: Page, owned: Set[bytes], tally: Tally) -> Page | None:
        """Returns the page with one copy of each line that it owns, or None if no text or too few sentences remain."""
        lines_to_keep, elsewhere, here = [], [], []
        units_of_page = set()
        for line, unit in zip(page.text.split("\n"), self.units(page), strict=True):
            (elsewhere if unit not in owned else here if unit in units_of_page else lines_to_keep).append(line)
            units_of_page.add(unit)
        for reason, lines in (("line_elsewhere", elsewhere), ("line_here", here)):
            if lines:
                tally.add(reason, page, lines)
        return _remaining(page, "\n".join(lines_to_keep), self._min_sentences, tally)


class SentenceSpanUnits:
    """Spans of sentences, in lower case and with single spaces. A sentence is removed if it is in a removed span."""

    def __init__(self, rule: settings.DuplicateSpansConfig):
        self._rule = rule

    def units(self, page: Page) -> Iterator[bytes]:
        """Returns one digest per span of consecutive sentences; spans overlap. A page shorter than a span has none."""
        return iter(self._digests([sentence for line in self._sentences(page) for sentence in line]))

    def _sentences(self, page: Page) -> list[list[str]]:
        return [punkt.split(line) for line in page.text.split("\n")]

    def _digests(self, sentences: list[str]) -> list[bytes]:
        plain = [_SPACE.sub(" ", sentence.strip().lower()) for sentence in sentences]
        return [_digest("\n".join(plain[i : i + self._rule.span])) for i in range(len(plain) - self._rule.span + 1)]

    def keep(self, page: Page, owned: Set[bytes], tally: Tally) -> Page | None:
        """Returns the page without repeated spans and spans that other pages own, or None if too little remains.

        A span that overlaps its first occurrence does not count as repeated.
        """
        lines = self._sentences(page)
        sentences = [sentence for line in lines for sentence in line]
        elsewhere, here, first = set(), set(), {}
        for start, unit in enumerate(self._digests(sentences)):
            span = range(start, start + self._rule.span)
            if unit not in owned:
                elsewhere.update(span)
            elif start >= first.setdefault(unit, start) + self._rule.span:
                here.update(span)
        here -= elsewhere
        for reason, numbers in (("span_elsewhere", elsewhere), ("span_here", here)):
            if numbers:
                tally.add(reason, page, [sentences[number] for number in sorted(numbers)])
        return _remaining(page, _without(page, lines, elsewhere | here), self._rule.min_sentences, tally)


def _without(page: Page, lines: list[list[str]], dropped: Set[int]) -> str:
    """Returns the text without some sentences. Lines that lose no sentence are unchanged."""
    lines_to_keep, number = [], 0
    for line, sentences in zip(page.text.split("\n"), lines, strict=True):
        left = [sentence for i, sentence in enumerate(sentences, number) if i not in dropped]
        number += len(sentences)
        if len(left) == len(sentences):
            lines_to_keep.append(line)
        elif left:
            lines_to_keep.append(" ".join(left))
    return "\n".join(lines_to_keep)


def _remaining(page: Page, text: str, min_sentences: int, tally: Tally) -> Page | None:
    """Returns the page with the remaining text, or None if that text is blank or has too few sentences."""
    if not text.strip():
        tally.add("nothing_new", page, [page.text])
    elif not punkt.has_sentences([text], min_sentences):
        tally.add("few_new_sentences", page, [page.text])
    else:
        return page._replace(text=text)
    return None


class NearDuplicates:
    """MinHash bands. A page is removed if it shares a band with a page whose key is smaller."""

    def __init__(self, rule: settings.MinHashConfig):
        self._bands = rule.bands
        self._hashes = minhash.Hashes(rule.bands, rule.rows, rule.words, rule.seed)

    def units(self, page: Page) -> list[bytes]:
        """Returns one digest per band."""
        return self._hashes.bands(page.text)

    def keep(self, page: Page, owned: Set[bytes], tally: Tally) -> Page | None:
        """Returns the page if it owns all of its bands, otherwise None."""
        # `owned` contains only bands of this page, without duplicates, so comparing the numbers is enough.
        if len(owned) == self._bands:
            return page
        tally.add("near_duplicate", page, [page.text])
        return None


KINDS = {
    settings.DuplicateLinesConfig: LineUnits,
    settings.DuplicateSpansConfig: SentenceSpanUnits,
    settings.MinHashConfig: NearDuplicates,
}
