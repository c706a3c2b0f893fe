"""Rules of Gopher and FineWeb: our decisions and speed compared with the filters of `datatrove`. Prints JSON.

    python benchmarks/clean_rules.py                 # 2,000 changed speeches
    python benchmarks/clean_rules.py --input=a.jsonl # the texts of pages
    python benchmarks/clean_rules.py --tiny          # completes in seconds

Needs `pip install datatrove==0.10.0 'spacy>=3.8,<3.9'`, in an environment of its own, next to plm_jax. Both contestants
process the same pages in one process and take turns. `same_given_words` counts equal decisions if our rules split words
(C4: sentences) as datatrove does, `same` if they split them as they always do.
"""

import gzip
import json
import time
from collections.abc import Callable
from typing import Any

import bench
from datatrove.data import Document
from datatrove.pipeline import filters
from datatrove.utils import text as splitting

from plm_jax.cleaning import quality, rules, settings, words
from plm_jax.cleaning.pages import Page, Tally
from tests.golden import make_quality

PUBLISHED_MARKS = (".", "'", '"', "!", "?")
C4_MARKS = (".", "?", "!", '"', "'")
THRESHOLDS = {"min_words": 3, "min_sentences": 5}


def has_sentences(lines: list[str], number: int) -> bool:
    """Whether lines have at least a number of sentences as datatrove counts them."""
    return sum(len(splitting.split_into_sentences(line)) for line in lines) >= number


def contestants() -> dict[str, tuple[Any, Callable[[], rules.PageRule], Callable[[], rules.PageRule]]]:
    """Returns datatrove's filter, our rule, and our rule with datatrove's words or sentences."""
    repetition, prose = settings.GopherRepetitionConfig(), settings.GopherQualityConfig()
    fineweb = settings.FineWebQualityConfig()
    lines = settings.CleanLinesConfig(end_marks=C4_MARKS, **THRESHOLDS)
    any_end = settings.CleanLinesConfig(end_marks=(), **THRESHOLDS)
    split = splitting.split_into_words
    return {
        "repetition": (
            filters.GopherRepetitionFilter(),
            lambda: quality.GopherRepetition(repetition),
            lambda: quality.GopherRepetition(repetition, split),
        ),
        "quality": (
            filters.GopherQualityFilter(),
            lambda: quality.GopherQuality(prose),
            lambda: quality.GopherQuality(prose, split),
        ),
        "fineweb": (
            filters.FineWebQualityFilter(stop_chars=PUBLISHED_MARKS),
            lambda: quality.FineWebQuality(fineweb),
            lambda: quality.FineWebQuality(fineweb, split),
        ),
        "c4": (
            filters.C4QualityFilter(),
            lambda: rules.LineFilter(lines),
            lambda: rules.LineFilter(lines, has_sentences),
        ),
        "c4 of FineWeb": (
            filters.C4QualityFilter(filter_no_terminal_punct=False),
            lambda: rules.LineFilter(any_end),
            lambda: rules.LineFilter(any_end, has_sentences),
        ),
    }


def filtered(each: Any, text: str) -> str | None:
    """Returns the text that datatrove's filter leaves, None if it drops the page."""
    document = Document(text=text, id="")
    return document.text if each.filter(document) is True else None


def ruled(rule: rules.PageRule, text: str) -> str | None:
    """Returns the text that our rule leaves, None if it drops the page."""
    page = rule(Page("", text), Tally())
    return None if page is None else page.text


def timed(function: Callable[[str], str | None], texts: list[str]) -> tuple[float, list[str | None]]:
    """Returns the CPU seconds and the results. No words are remembered from an earlier rule."""
    splitting.split_into_parts.cache_clear()
    words.split.cache_clear()
    start = time.process_time()
    left = [function(text) for text in texts]
    return time.process_time() - start, left


def measure(texts: list[str], rounds: int) -> dict[str, dict[str, Any]]:
    """Returns the figures of each rule."""
    size, results = sum(len(text.encode()) for text in texts), {}
    for name, (theirs, make, make_with_words) in contestants().items():
        rule, with_words = make(), make_with_words()
        functions = (lambda text, rule=rule: ruled(rule, text), lambda text, each=theirs: filtered(each, text))
        for function in functions:
            function(texts[0])  # Loads parameters.
        best, left = [float("inf")] * 2, [[], []]
        for turn in range(rounds):
            for which in (0, 1) if turn % 2 == 0 else (1, 0):
                seconds, left[which] = timed(functions[which], texts)
                best[which] = min(best[which], seconds)
        _, left_with_words = timed(lambda text, each=with_words: ruled(each, text), texts)
        results[name] = {
            "pages": len(texts),
            "left": sum(text is not None for text in left[0]),
            "left_by_datatrove": sum(text is not None for text in left[1]),
            "same": sum(a == b for a, b in zip(*left, strict=True)),
            "same_given_words": sum(a == b for a, b in zip(left_with_words, left[1], strict=True)),
            "plm_jax_mb_per_second": round(size / best[0] / 1e6, 2),
            "datatrove_mb_per_second": round(size / best[1] / 1e6, 2),
            "plm_jax_pages_per_second": round(len(texts) / best[0], 1),
            "datatrove_pages_per_second": round(len(texts) / best[1], 1),
            "ratio": round(best[1] / best[0], 2),
        }
        bench.log(f"{name}: {results[name]}")
    return results


def run(input: str = "", pages: int = 2000, rounds: int = 1, tiny: bool = False) -> dict[str, Any]:
    """Measures every rule.

    Args:
      input: JSON Lines with a field `text`, maybe compressed; by default, changed speeches.
      tiny: 20 pages, one round.
    """
    if tiny:
        pages, rounds = 20, 1
    if input:
        with gzip.open(input, "rt") if input.endswith(".gz") else open(input) as file:
            texts = [json.loads(line)["text"] for _, line in zip(range(pages), file, strict=False)]
    else:
        texts = make_quality.pages(pages)
    return {"characters": sum(map(len, texts)), "rules": measure(texts, rounds)}


if __name__ == "__main__":
    bench.main(run)
