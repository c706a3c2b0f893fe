"""Gopher's and FineWeb's rules for single pages.

If the papers leave a choice open, the rules decide like the filters of `datatrove` 0.10.0, which is FineWeb's code.
Given the same words, the decisions are the same, except for the differences that docs/cleaning.md lists.
"""

import re
from collections.abc import Iterator

from plm_jax.cleaning import settings, words
from plm_jax.cleaning.pages import Page, Tally

_PARAGRAPHS = re.compile(r"\n{2,}")
_ELLIPSES = ("...", "…")


class GopherRepetition:
    """Drops pages with repeated lines, paragraphs or word n-grams.

    Args:
      split: function that splits a text into words.
    """

    def __init__(self, rule: settings.GopherRepetitionConfig, split: words.Splitter = words.split):
        self._rule, self._split = rule, split

    def __call__(self, page: Page, tally: Tally) -> Page | None:
        """Returns the page, or None to drop it."""
        return _drop_for(next(self._reasons(page.text), None), page, tally)

    def _reasons(self, text: str) -> Iterator[str]:
        rule, length = self._rule, max(len(text), 1)
        stripped = text.strip()
        paragraphs = _PARAGRAPHS.split(stripped) if "\n\n" in stripped else [stripped]
        lines = [line for line in stripped.split("\n") if line] or [""]
        for unit, parts, max_share, max_characters in (
            ("paragraphs", paragraphs, rule.max_paragraph_share, rule.max_paragraph_characters),
            ("lines", lines, rule.max_line_share, rule.max_line_characters),
        ):
            number, characters = words.repeated(parts)
            if number / len(parts) > max_share:
                yield f"repeated_{unit}"
            if characters / length > max_characters:
                yield f"text_in_repeated_{unit}"
        ngrams = words.NGrams(self._split(text))
        for size, limit in enumerate(rule.max_frequent_ngrams, 2):
            ngrams.grow_to(size)
            if ngrams.most_frequent() / length > limit:
                yield f"frequent_{size}_gram"
        for size, limit in enumerate(rule.max_repeated_ngrams, 5):
            ngrams.grow_to(size)
            if ngrams.repeats() / length > limit:
                yield f"repeated_{size}_grams"


class GopherQuality:
    """Drops pages whose words and lines do not look like English prose.

    Args:
      split: function that splits a text into words.
    """

    def __init__(self, rule: settings.GopherQualityConfig, split: words.Splitter = words.split):
        self._rule, self._split = rule, split
        self._stop_words = frozenset(rule.stop_words)

    def __call__(self, page: Page, tally: Tally) -> Page | None:
        """Returns the page, or None to drop it."""
        return _drop_for(next(self._reasons(page.text), None), page, tally)

    def _reasons(self, text: str) -> Iterator[str]:
        rule, all_words = self._rule, self._split(text)
        counted = [word for word in all_words if not words.is_punctuation(word)]
        number = len(counted)
        if not rule.min_words <= number <= rule.max_words:
            yield "short_page" if number < rule.min_words else "long_page"
        mean = sum(map(len, counted)) / max(number, 1)
        if not rule.min_word_characters <= mean <= rule.max_word_characters:
            yield "short_words" if mean < rule.min_word_characters else "long_words"
        total = max(len(all_words), 1)
        if text.count("#") / total > rule.max_symbols:
            yield "hash_signs"
        if sum(map(text.count, _ELLIPSES)) / total > rule.max_symbols:
            yield "ellipses"
        lines = text.splitlines()
        num_lines = max(len(lines), 1)
        if sum(line.lstrip().startswith(rule.bullets) for line in lines) / num_lines > rule.max_bullet_lines:
            yield "bullet_lines"
        if sum(line.rstrip().endswith(_ELLIPSES) for line in lines) / num_lines > rule.max_ellipsis_lines:
            yield "ellipsis_lines"
        if sum(word.isalpha() or any(map(str.isalpha, word)) for word in all_words) / total < rule.min_alphabetic_words:
            yield "few_alphabetic_words"
        if len(self._stop_words.intersection(all_words)) < rule.min_stop_words:
            yield "few_stop_words"


class FineWebQuality:
    """Drops pages with few lines that end in punctuation, many short lines, repeated lines or few words per line.

    Args:
      split: function that splits a text into words.
    """

    def __init__(self, rule: settings.FineWebQualityConfig, split: words.Splitter = words.split):
        self._rule, self._split = rule, split

    def __call__(self, page: Page, tally: Tally) -> Page | None:
        """Returns the page, or None to drop it."""
        return _drop_for(next(self._reasons(page.text), None), page, tally)

    def _reasons(self, text: str) -> Iterator[str]:
        rule = self._rule
        lines = [line for line in text.split("\n") if line.strip()]
        if not lines:
            yield "few_punctuated_lines"
            return
        if sum(line.endswith(rule.end_marks) for line in lines) / len(lines) < rule.min_punctuated_lines:
            yield "few_punctuated_lines"
        if sum(len(line) <= rule.short_line_characters for line in lines) / len(lines) > rule.max_short_lines:
            yield "short_lines"
        line_breaks = text.count("\n")
        if words.repeated(lines)[1] / (len(text) - line_breaks) > rule.max_repeated_characters:
            yield "repeated_line_text"
        if line_breaks and line_breaks / max(len(self._split(text)), 1) > rule.max_lines_per_word:
            yield "few_words_per_line"


def _drop_for(reason: str | None, page: Page, tally: Tally) -> Page | None:
    if reason is None:
        return page
    tally.add(reason, page, [page.text])
    return None
