"""Deduplication of pages that share lines, spans of sentences or most of their words."""

import random

from plm_jax.cleaning import duplicates, settings
from plm_jax.cleaning.pages import Page, Tally


def deduplicate(kind, pages: list[Page]) -> tuple[dict[str, str], dict[str, int]]:
    """Returns URL → text of the remaining pages and the tally, by a simple reference implementation."""
    owners = {}
    for page in pages:
        for unit in kind.units(page):
            owners[unit] = min(page.key, owners.get(unit, page.key))
    tally = Tally()
    remaining = [kind.keep(page, {u for u, key in owners.items() if key == page.key}, tally) for page in pages]
    return {page.url: page.text for page in remaining if page}, {
        reason: count.number for reason, count in tally.items()
    }


def by_key(*texts: str) -> list[Page]:
    """Returns pages of the texts whose keys are in the order of the texts."""
    urls = sorted((f"http://site.org/{i}" for i in range(len(texts))), key=lambda url: Page(url, "").key)
    return [Page(url, text) for url, text in zip(urls, texts, strict=True)]


def test_lines_are_kept_once():
    pages = by_key(
        "Shared line one.\nMine.\nmine. \nAlso mine.\nAnd mine.",
        "  SHARED line one.\nYours. It has two.\nAnd a third.",
        "shared line ONE.\nThird page. Not enough.",
        "Mine.",
    )
    for order in (pages, pages[::-1]):
        texts, counts = deduplicate(duplicates.LineUnits(settings.DuplicateLinesConfig()), order)
        assert texts == {
            pages[0].url: "Shared line one.\nMine.\nAlso mine.\nAnd mine.",
            pages[1].url: "Yours. It has two.\nAnd a third.",
        }
        assert counts == {"line_elsewhere": 3, "line_here": 1, "few_new_sentences": 1, "nothing_new": 1}


def test_lines_without_minimum_sentences():
    pages = by_key("a\nb", "b\nc", "a\nb")
    texts, counts = deduplicate(duplicates.LineUnits(settings.DuplicateLinesConfig(min_sentences=0)), pages)
    assert texts == {pages[0].url: "a\nb", pages[1].url: "c"}
    assert counts == {"line_elsewhere": 3, "nothing_new": 1}


def test_only_blank_lines_are_nothing_new():
    pages = by_key("a\nb", "a\n \nb")
    texts, counts = deduplicate(duplicates.LineUnits(settings.DuplicateLinesConfig(min_sentences=0)), pages)
    assert texts == {pages[0].url: "a\nb"} and counts == {"line_elsewhere": 2, "nothing_new": 1}


A, B, C, D, E, F, G = (f"Sentence {letter} is here." for letter in "ABCDEFG")


def test_spans_are_kept_on_one_page():
    pages = by_key(
        f"{A} {B}\n{C} {D}",
        f"{E} {A} {B} {C.upper()}\n{D} {F} {G}",  # The first page owns A B C and B C D, across its lines.
        f"{A} {B} {E} {F}",  # Two sentences are not a span.
        f"{B}  {C} {D}",
    )
    texts, counts = deduplicate(duplicates.SentenceSpanUnits(settings.DuplicateSpansConfig()), pages)
    assert texts == {pages[0].url: pages[0].text, pages[1].url: f"{E}\n{F} {G}", pages[2].url: pages[2].text}
    assert counts == {"span_elsewhere": 7, "nothing_new": 1}


def test_repeated_span_is_kept_once():
    rule = duplicates.SentenceSpanUnits(settings.DuplicateSpansConfig())
    (page,) = by_key(f"{A} {B} {C}\n{D}\n{A} {B} {C} {E}")
    assert deduplicate(rule, [page]) == ({page.url: f"{A} {B} {C}\n{D}\n{E}"}, {"span_here": 3})
    (page,) = by_key(f"{A} " * 4 + A)  # Overlapping spans are not copies.
    assert deduplicate(rule, [page]) == ({page.url: page.text}, {})
    (page,) = by_key(f"{A} " * 6 + A)
    assert deduplicate(rule, [page]) == ({page.url: " ".join([A] * 3)}, {"span_here": 4})


def test_one_of_similar_pages_is_kept():
    rng = random.Random(0)
    words = [f"word{i}" for i in range(300)]
    other = [f"other{i}" for i in range(300)]
    changed = [*words[:299], "changed"]
    rng.shuffle(other)
    pages = by_key(" ".join(words), " ".join(changed), " ".join(other), " ".join(words).upper())
    texts, counts = deduplicate(duplicates.NearDuplicates(settings.MinHashConfig()), pages)
    assert set(texts) == {pages[0].url, pages[2].url}
    assert counts == {"near_duplicate": 2}
