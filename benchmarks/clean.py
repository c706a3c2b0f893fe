"""Cleaning pages: our rules against `tensorflow_datasets/text/c4_utils.py`, pages a second on one core. Prints JSON.

    python benchmarks/clean.py                       # 1,000 made pages, 5 rounds
    python benchmarks/clean.py --input=a.warc.wet.gz # the pages of a crawl
    python benchmarks/clean.py --tiny                # to its end in seconds

Both have the same pages in one process and take turns, rule by rule, each round in the other order; a rule's time is
the best of its rounds. Each gets what the rule before it has left, as in the English C4, and they must agree about each
page. Both split sentences with the same Punkt and tell languages with the same langdetect. Theirs counts with functions
that do nothing; ours keeps its tally.
"""

import gzip
import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import bench
from tensorflow_datasets.text import c4_utils

import plm_jax
from plm_jax.cleaning import crawl, punkt, rules, settings
from plm_jax.cleaning.pages import Page, Tally
from plm_jax.data.vocabularies import sentences

SPEECHES = os.path.join(os.path.dirname(plm_jax.__file__), "data/corpora/sotu.jsonl.gz")
_LETTERS = random.Random(0)
# Stand-ins for the bad words of C4's English list: the same number, of frequent English letters, some of two words.
BADWORDS = {
    " ".join("".join(_LETTERS.choices("etaoinshrdlucmfwypvbgk", k=7)) for _ in range(2 if i < 60 else 1))
    for i in range(403)
}


def generate(number: int) -> list[Page]:
    """Makes pages with lines like those of a crawl: menus, headings, prose of the State of the Union, notices, code."""
    rng = random.Random(0)
    with gzip.open(SPEECHES, "rt") as file:
        speeches = [sentences.split(json.loads(line)["text"]) for line in file]
    odd = ("This site uses cookies, as you know.", "Please enable JavaScript to see this.", "f(x) { return x; }.")
    pages = []
    for i in range(number):
        speech, lines = rng.choice(speeches), []
        for _ in range(rng.randint(10, 60)):
            kind, start = rng.random(), rng.randrange(len(speech))
            if kind < 0.6:
                lines.append(" ".join(speech[start].split()[: rng.randint(1, 6)]).title())
            elif kind < 0.995:
                lines.append("".join(speech[start : start + rng.randint(1, 6)]).strip())
            else:
                lines.append(rng.choice(odd))
        pages.append(Page(f"https://www.site{i % 997}.org/{i}?utm_source=x", "\n".join(lines), "2019-04-24T09:23:58Z"))
    return pages


def contestants() -> dict[str, tuple[Callable[[Page], Any], Callable[[Any], Any]]]:
    """Returns our and their function of each rule, from a page to a page or None."""
    tally = Tally()

    def ours(rule: rules.PageRule) -> Callable[[Page], Page | None]:
        return lambda page: rule(page, tally)

    c4_clean = c4_utils.get_clean_page_fn()
    c4_badwords = c4_utils.get_badwords_filter_fn({"en": BADWORDS})
    c4_utils.get_counter_inc_fn = lambda namespace: lambda name, amount=1: None

    def first(pages):
        return next(iter(pages), None)

    return {
        "length": (ours(rules.MaxCharacters(190_000)), lambda p: p if c4_utils.is_valid_length(p) else None),
        "lines": (
            ours(rules.LineFilter(settings.CleanLinesConfig())),
            lambda p: first(c4_clean(p, counter_inc_fn=lambda name, amount=1: None)),
        ),
        "language": (
            ours(rules.LangdetectFilter(settings.LangdetectConfig())),
            lambda p: first(c4_utils.detect_english(p)),
        ),
        "bad words": (ours(rules.NoBadWords({"en": BADWORDS}, 1.0)), lambda p: p if c4_badwords(p) else None),
    }


def timed(function: Callable[[Any], Any], pages: list[Any]) -> tuple[float, list[Any]]:
    """Returns the CPU seconds, and the result for each page."""
    start = time.process_time()
    left = [function(page) for page in pages]
    return time.process_time() - start, left


def measure(pages: list[Page], rounds: int) -> dict[str, dict[str, Any]]:
    """Returns the figures of each rule; exits if the two results differ."""
    ours = pages
    theirs = [
        c4_utils.PageFeatures(
            url=page.url, normalized_url=page.normalized_url, text=page.text, timestamp=page.timestamp
        )
        for page in pages
    ]
    results, total = {}, [0.0, 0.0]
    for name, functions in contestants().items():
        best, left = [float("inf")] * 2, [[], []]
        for turn in range(rounds):
            for which in (0, 1) if turn % 2 == 0 else (1, 0):
                seconds, left[which] = timed(functions[which], (ours, theirs)[which])
                best[which] = min(best[which], seconds)
        if [page and page.text for page in left[0]] != [page and page.text for page in left[1]]:
            sys.exit(f"{name}: the two do not agree")
        rates = [len(ours) / seconds for seconds in best]
        results[name] = {
            "pages": len(ours),
            "left": sum(page is not None for page in left[0]),
            "plm_jax_pages_per_second": round(rates[0], 1),
            "c4_utils_pages_per_second": round(rates[1], 1),
            "ratio": round(rates[0] / rates[1], 3),
        }
        bench.log(f"{name}: {results[name]}")
        total = [all_seconds + seconds for all_seconds, seconds in zip(total, best, strict=True)]
        ours, theirs = ([page for page in each if page is not None] for each in left)
    results["all"] = {"pages": len(pages), "left": len(ours), "ratio": round(total[1] / total[0], 3)}
    return results


def run(input: str = "", pages: int = 1000, rounds: int = 5, tiny: bool = False) -> dict[str, Any]:
    """Measures every rule.

    Args:
      input: a WET, WARC or JSON lines file; by default pages are made.
      tiny: 20 pages, one round.
    """
    if tiny:
        pages, rounds = 20, 1
    c4_utils._SENTENCE_TOKENIZER = punkt.english()
    if input:
        read = (item for item in crawl.read(input, input, Tally()) if isinstance(item, Page))
        chosen = [page for page, _ in zip(read, range(pages), strict=False)]
    else:
        chosen = generate(pages)
    return {"characters": sum(len(page.text) for page in chosen), "rules": measure(chosen, rounds)}


if __name__ == "__main__":
    bench.main(run)
