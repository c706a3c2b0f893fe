"""Rules for single pages. A rule returns the page, possibly changed, or None to drop it.

The decisions are the same as in `tensorflow_datasets/text/c4_utils.py` (3.1.0), with less computation.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from plm_jax.cleaning import punkt, settings
from plm_jax.cleaning.pages import Page, Tally, url_hash
from plm_jax.common.errors import UserError

UNKNOWN_LANGUAGE = "und"
# Languages written without spaces. Their bad words are also searched for inside words. Like C4, the rule ignores those
# words of their lists that are parts of common words.
UNSPACED = ("ja", "th", "zh")
ALLOWED_WORDS = {"ja": {"sm", "グロ", "女の子"}, "zh": {"性"}}

_CITATIONS = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
_ELLIPSIS = "..."
_WORDS = re.compile(r"\w+")


class PageRule(Protocol):
    """Interface of the rules."""

    def __call__(self, page: Page, tally: Tally) -> Page | None:
        """Returns the page, possibly changed, or None to drop it. Adds dropped text to the tally."""


class MaxCharacters:
    """Drops pages with more than `limit` characters."""

    def __init__(self, limit: int):
        self._limit = limit

    def __call__(self, page: Page, tally: Tally) -> Page | None:
        """Returns the page, or None to drop it."""
        if len(page.text) <= self._limit:
            return page
        tally.add("too_long", page, [page.text])
        return None


class InDomains:
    """Drops pages of sites or subdomains that are not listed.

    Args:
      domains: dict from a registered domain (`bbc.co.uk`) to the list of its allowed subdomains; a value that is not a
        list allows all subdomains.
    """

    def __init__(self, domains: Mapping[str, Any]):
        import tldextract

        self._domains = domains
        # The list of public suffixes in the package, which needs no network and is the same on every worker.
        self._extract = tldextract.TLDExtract(cache_dir=None, suffix_list_urls=())

    def __call__(self, page: Page, tally: Tally) -> Page | None:
        """Returns the page, or None to drop it."""
        parts = self._extract(page.normalized_url)
        allowed = self._domains.get(f"{parts.domain}.{parts.suffix}")
        if allowed is None:
            tally.add("other_domain", page, [page.text])
        elif isinstance(allowed, list) and parts.subdomain not in allowed:
            tally.add("other_subdomain", page, [page.text])
        else:
            return page
        return None


class HasParagraphs:
    """Drops pages with too few long lines."""

    def __init__(self, rule: settings.ParagraphsConfig):
        self._rule = rule

    def __call__(self, page: Page, tally: Tally) -> Page | None:
        """Returns the page, or None to drop it."""
        num_long = sum(len(line) >= self._rule.min_characters for line in page.text.split("\n"))
        if num_long >= self._rule.min_paragraphs:
            return page
        tally.add("few_paragraphs", page, [page.text])
        return None


class LineFilter:
    """Drops lines that are not prose, and pages with placeholder text, code or too few sentences.

    Removes citations such as `[1]` from the other lines.

    Args:
      has_sentences: function that returns whether nonblank lines together have at least the given number of sentences.
    """

    def __init__(
        self,
        rule: settings.CleanLinesConfig,
        has_sentences: Callable[[Sequence[str], int], bool] = punkt.has_sentences,
    ):
        self._rule, self._has_sentences = rule, has_sentences
        self._placeholders, self._scripts, self._policies = (
            [phrase.lower() for phrase in phrases]
            for phrases in (rule.placeholder_phrases, rule.script_phrases, rule.policy_phrases)
        )

    def __call__(self, page: Page, tally: Tally) -> Page | None:
        """Returns the page with its good lines, or None to drop it."""
        dropped: dict[str, list[str]] = {}
        lines, verdict = self._lines(page.text, dropped)
        if verdict is None and not self._has_sentences(lines, self._rule.min_sentences):
            verdict = "few_sentences"
        for reason, texts in dropped.items():
            tally.add(reason, page, texts)
        if verdict is not None:
            tally.add(verdict, page, [page.text])
            return None
        return page._replace(text="\n".join(lines).strip())

    def _lines(self, text: str, dropped: dict[str, list[str]]) -> tuple[list[str], str | None]:
        """Returns the good lines, and the reason to drop the page (or None). Adds the other lines to `dropped`."""
        rule, lines = self._rule, []
        suspicious = self._is_suspicious(text)
        for line in text.splitlines():
            line = line.strip()
            reason = None
            if len(line) > rule.max_word_characters and max(map(len, line.split())) > rule.max_word_characters:
                reason = "long_word"
            else:
                if "[" in line:
                    line = _CITATIONS.sub("", line)
                if rule.end_marks and (not line.endswith(rule.end_marks) or line.endswith(_ELLIPSIS)):
                    reason = "no_end_mark"
                elif len(line.split(None, rule.min_words)) < rule.min_words:
                    reason = "few_words"
                elif suspicious:
                    reason, verdict = self._phrase(line)
                    if verdict is not None:
                        return lines, verdict
            if reason is None:
                lines.append(line)
            else:
                dropped.setdefault(reason, []).append(line)
        return lines, None

    def _is_suspicious(self, text: str) -> bool:
        """Whether a page contains a phrase or a code mark. Lines of other pages need not be searched one by one."""
        text = _CITATIONS.sub("", text) if "[" in text else text
        lower = text.lower()
        return any(phrase in lower for phrase in (*self._placeholders, *self._scripts, *self._policies)) or any(
            mark in text for mark in self._rule.code_marks
        )

    def _phrase(self, line: str) -> tuple[str | None, str | None]:
        """Searches a line for phrases.

        Returns:
          A pair: the reason to drop the line, and the reason to drop the page. Each is None if there is no such reason.
        """
        lower = line.lower()
        if any(phrase in lower for phrase in self._placeholders):
            return None, "placeholder"
        if any(phrase in lower for phrase in self._scripts):
            return "script", None
        if any(mark in line for mark in self._rule.code_marks):
            return None, "code"
        if any(phrase in lower for phrase in self._policies):
            return "policy", None
        return None, None


class LangdetectFilter:
    """Drops pages in other languages and pages whose language is uncertain. The results are deterministic."""

    def __init__(self, rule: settings.LangdetectConfig):
        from langdetect import detector_factory

        self._rule = rule
        self._factory = detector_factory.DetectorFactory()
        self._factory.load_profile(detector_factory.PROFILES_DIRECTORY)
        self._factory.set_seed(0)

    def __call__(self, page: Page, tally: Tally) -> Page | None:
        """Returns the page with its language, or None to drop it."""
        from langdetect.lang_detect_exception import LangDetectException

        detector = self._factory.create()
        detector.append(page.text)
        try:
            languages = detector.get_probabilities()
        except LangDetectException:  # The text has no letters.
            languages = []
        if not languages or languages[0].prob < self._rule.min_probability:
            tally.add("unsure_language", page, [page.text])
            return None
        if languages[0].lang != self._rule.language:
            tally.add("other_language", page, [page.text])
            return None
        return page._replace(language=languages[0].lang)


class Cld3Filter:
    """Sets the language of pages, and drops pages in languages that are not listed.

    A page whose language is uncertain gets the language `und` and is kept.

    Raises:
      UserError: this process has imported TensorFlow.
    """

    def __init__(self, rule: settings.Cld3Config):
        if "tensorflow" in sys.modules:
            raise UserError(
                "CLD3 crashes in a process that has imported TensorFlow: run `python -m plm_jax clean` by itself"
            )
        import gcld3

        self._rule = rule
        self._languages = frozenset(rule.languages)
        self._identifier = gcld3.NNetLanguageIdentifier(min_num_bytes=rule.min_bytes, max_num_bytes=rule.max_bytes)

    def __call__(self, page: Page, tally: Tally) -> Page | None:
        """Returns the page with its language, or None to drop it."""
        result = self._identifier.FindLanguage(page.text)
        if not result.is_reliable or result.probability < self._rule.min_probability:
            return page._replace(language=UNKNOWN_LANGUAGE)
        if result.language not in self._languages:
            tally.add("other_language", page, [page.text])
            return None
        return page._replace(language=result.language)


LANGUAGES = {settings.LangdetectConfig: LangdetectFilter, settings.Cld3Config: Cld3Filter}


class NoBadWords:
    """Drops pages that contain a word on the list of their language. Pages in a language without a list are kept.

    Args:
      words: dict from a language to its words and phrases, in lower case.
      fraction: share of the pages with a listed word that is dropped.
    """

    def __init__(self, words: Mapping[str, set[str]], fraction: float):
        # A float is a quotient of two integers. Integer arithmetic decides exactly like C4's code.
        self._numerator, self._denominator = fraction.as_integer_ratio()
        self._find = {
            language: _contains(listed) if language in UNSPACED else _WordSearch(listed)
            for language, listed in words.items()
        }

    def __call__(self, page: Page, tally: Tally) -> Page | None:
        """Returns the page, or None to drop it."""
        find = self._find.get(page.language.split("-")[0])
        if find is None or not find(page.text.lower()):
            return page
        if url_hash(page) % self._denominator >= self._numerator:
            return page
        tally.add("bad_word", page, [page.text])
        return None


def _contains(words: set[str]):
    return re.compile("|".join(re.escape(word) for word in sorted(words))).search


class _WordSearch:
    """Search for words or phrases that are surrounded by characters that are not word characters."""

    def __init__(self, listed: set[str]):
        # A listed run of word characters matches exactly if it is one of the text's words, which is a set lookup.
        self._words = {word for word in listed if _WORDS.fullmatch(word)}
        phrases = [re.escape(phrase) for phrase in sorted(listed - self._words)]
        self._phrases = re.compile(rf"(?:\W|^)(?:{'|'.join(phrases)})(?:\W|$)") if phrases else None

    def __call__(self, text: str) -> bool:
        words = _WORDS.findall(text)
        return not self._words.isdisjoint(words) or bool(self._phrases and self._phrases.search(text))
