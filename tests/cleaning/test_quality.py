"""Rules of Gopher and FineWeb: against datatrove, against direct computation, and at each threshold."""

import dataclasses
import gzip
import json
import pathlib
import random
import re

import pytest

from plm_jax.cleaning import quality, report, rules, settings, words
from plm_jax.cleaning.pages import Page, Tally

ROWS = json.loads(gzip.decompress((pathlib.Path(__file__).parents[1] / "golden/quality.json.gz").read_bytes()))
# datatrove's name of a reason → plm_jax's.
REASONS = {
    None: None,
    "dup_para_frac": "repeated_paragraphs",
    "dup_para_char_frac": "text_in_repeated_paragraphs",
    "dup_line_frac": "repeated_lines",
    "dup_line_char_frac": "text_in_repeated_lines",
    **{f"top_{n}_gram": f"frequent_{n}_gram" for n in (2, 3, 4)},
    **{f"duplicated_{n}_n_grams": f"repeated_{n}_grams" for n in range(5, 11)},
    "gopher_short_doc": "short_page",
    "gopher_below_avg_threshold": "short_words",
    "gopher_above_avg_threshold": "long_words",
    "gopher_too_many_hashes": "hash_signs",
    "gopher_too_many_ellipsis": "ellipses",
    "gopher_too_many_bullets": "bullet_lines",
    "gopher_too_many_end_ellipsis": "ellipsis_lines",
    "gopher_below_alpha_threshold": "few_alphabetic_words",
    "gopher_enough_stop_words": "few_stop_words",
    "line_punct_ratio": "few_punctuated_lines",
    "short_line_ratio": "short_lines",
    "char_dup_ratio": "repeated_line_text",
    "list_ratio": "few_words_per_line",
}
RULES = {
    "repetition": (quality.GopherRepetition, settings.GopherRepetitionConfig()),
    "quality": (quality.GopherQuality, settings.GopherQualityConfig()),
    "fineweb": (quality.FineWebQuality, settings.FineWebQualityConfig()),
}
MARKS = (*settings.CleanLinesConfig().end_marks, "'")
# Rules that each page passes, unless a test changes them.
LAX_REPETITION = settings.GopherRepetitionConfig(1, 1, 1, 1, (), ())
LAX_QUALITY = settings.GopherQualityConfig(
    0, 10**6, 0, 1000, 1000, max_bullet_lines=1, max_ellipsis_lines=1, min_alphabetic_words=0, min_stop_words=0
)
LAX_FINEWEB = settings.FineWebQualityConfig((".",), 0, 0, 1, 1, 1000)


def reason(rule: rules.PageRule, text: str) -> str | None:
    """Returns the reason to drop a text, None if it is kept."""
    tally = Tally()
    result = rule(Page("u", text), tally)
    if result is not None:
        assert result.text == text and not tally
        return None
    ((name, count),) = tally.items()
    assert (count.number, count.characters) == (1, len(text))
    return name


@pytest.mark.parametrize("name", RULES)
def test_decisions_equal_datatrove_given_its_words(name):
    make, rule = RULES[name]
    decisions = set()
    for row in ROWS:
        expected = REASONS[row["decisions"][name][0]]
        assert reason(make(rule, lambda text, row=row: row["words"]), row["text"]) == expected, row["text"]
        decisions.add(expected)
    # Every reason of the rule occurs, except for pages of 100,000 words.
    described = report.reasons(dataclasses.replace(settings.CleaningConfig(language=None), **{name: rule}))
    common = report.reasons(settings.CleaningConfig(language=None))
    assert decisions == {None, *described} - {"long_page", *common}


@pytest.mark.parametrize("name, least", [("repetition", 0.96), ("quality", 0.96), ("fineweb", 1)])
def test_most_decisions_equal_datatrove_with_our_words(name, least):
    make, rule = RULES[name]
    same = [(reason(make(rule), row["text"]) is None) == (row["decisions"][name][0] is None) for row in ROWS]
    assert sum(same) >= least * len(same)


@pytest.mark.parametrize("name, marks", [("c4", MARKS), ("c4_of_fineweb", ())])
def test_lines_equal_datatrove_given_its_sentences(name, marks):
    rule = settings.CleanLinesConfig(end_marks=marks, min_words=3, min_sentences=5)
    kept_pages = changed_pages = 0
    for row in ROWS:
        lines = [re.sub(r"\[\d*\]|\[edit\]|\[citation needed\]", "", line.strip()) for line in row["text"].splitlines()]
        sentences = dict(zip(lines, row["sentences"], strict=True))
        rule_of_row = rules.LineFilter(rule, lambda good, n, sentences=sentences: sum(map(sentences.get, good)) >= n)
        page = rule_of_row(Page("u", row["text"]), Tally())
        expected = row["decisions"][name][1]
        assert (page.text if page else None) == expected
        kept_pages += page is not None
        changed_pages += page is not None and page.text != row["text"]
    assert kept_pages > 50 and changed_pages > 15


def most_frequent(text: list[str], n: int) -> int:
    ngrams = [" ".join(text[i : i + n]) for i in range(len(text) - n + 1)]
    top = max(ngrams, key=ngrams.count, default="")
    return len(top) * ngrams.count(top)


def repeats(text: list[str], n: int) -> int:
    characters, i, earlier = 0, 0, []
    while i + n <= len(text):
        ngram = text[i : i + n]
        if ngram in earlier:
            characters += sum(map(len, ngram))
            i += n
        else:
            earlier.append(ngram)
            i += 1
    return characters


def test_ngrams_equal_direct_counts():
    rng = random.Random(0)
    for vocabulary in (1, 2, 3, 10, 50):
        for length in (0, 1, 2, 3, 9, 10, 11, 80):
            text = [rng.choice("abcdefghij") * rng.randint(1, 4) for _ in range(vocabulary)]
            text = [rng.choice(text) for _ in range(length)]
            ngrams = words.NGrams(text)
            for n in range(2, 11):
                ngrams.grow_to(n)
                assert ngrams.most_frequent() == most_frequent(text, n), (text, n)
                assert ngrams.repeats() == repeats(text, n), (text, n)


def test_repeated_ngrams_are_those_at_word_boundaries():
    """datatrove joins words without spaces and takes these for the same 2-gram."""
    ngrams = words.NGrams(["ab", "c", "a", "bc"])
    ngrams.grow_to(2)
    assert ngrams.repeats() == 0


# A rule's change, a text, and the number that the threshold limits in that text.
SHARES = [
    ({"max_line_share": 3 / 10}, "\n".join("abcdefgaaa"), "repeated_lines"),
    ({"max_paragraph_share": 3 / 10}, "\n\n".join("abcdefgaaa"), "repeated_paragraphs"),
    ({"max_line_characters": 8 / 30}, "first\nfour\nline four\nfour\nfour", "text_in_repeated_lines"),
    ({"max_paragraph_characters": 8 / 27}, "four\n\nfour\n\nfour\nfour\n\nfour", "text_in_repeated_paragraphs"),
    ({"max_frequent_ngrams": (14 / 29,)}, "ab cdef x ab cdef y z ghijk l", "frequent_2_gram"),
    ({"max_frequent_ngrams": (9, 10 / 23)}, "a b c z a b c y w u x v", "frequent_3_gram"),
    ({"max_repeated_ngrams": (5 / 21,)}, "a b c d e x a b c d e", "repeated_5_grams"),
    ({"max_repeated_ngrams": (1, 7 / 27)}, "aa b c d e f x aa b c d e f", "repeated_6_grams"),
]


@pytest.mark.parametrize("change, text, expected", SHARES)
def test_repetition_above_a_threshold_is_dropped(change, text, expected):
    def decide(change):
        return reason(quality.GopherRepetition(dataclasses.replace(LAX_REPETITION, **change)), text)

    assert decide(change) is None
    ((name, limit),) = change.items()
    lower = (*limit[:-1], limit[-1] - 1e-9) if isinstance(limit, tuple) else limit - 1e-9
    assert decide({name: lower}) == expected


@pytest.mark.parametrize("text", ["\na\nb\n", "\n\na\n\n"])
def test_line_breaks_around_a_page_are_no_lines(text):
    """datatrove counts an empty line at both ends as a repeated one."""
    assert reason(quality.GopherRepetition(settings.GopherRepetitionConfig(max_frequent_ngrams=())), text) is None


# A rule's change that a text just passes, one that it just fails, and the reason.
QUALITY = [
    ({"min_words": 3}, {"min_words": 4}, "A few words, -- !", "short_page"),
    ({"max_words": 3}, {"max_words": 2}, "A few words, -- !", "long_page"),
    ({"min_word_characters": 3}, {"min_word_characters": 3.01}, "abc, de, fghi", "short_words"),
    ({"max_word_characters": 3}, {"max_word_characters": 2.99}, "abc, de, fghi", "long_words"),
    ({"max_symbols": 2 / 5}, {"max_symbols": 0.39}, "# one # two three", "hash_signs"),
    ({"max_symbols": 2 / 5}, {"max_symbols": 0.39}, "… one ... two three", "ellipses"),
    ({"max_bullet_lines": 2 / 3}, {"max_bullet_lines": 0.66}, "- a\n  • b\nc - d", "bullet_lines"),
    ({"max_ellipsis_lines": 2 / 3}, {"max_ellipsis_lines": 0.66}, "a...\n b… \nc... d", "ellipsis_lines"),
    ({"min_alphabetic_words": 3 / 5}, {"min_alphabetic_words": 0.61}, "a1 b c 12 !", "few_alphabetic_words"),
    ({"min_stop_words": 2}, {"min_stop_words": 3}, "the the of The", "few_stop_words"),
]


@pytest.mark.parametrize("passed, failed, text, expected", QUALITY)
def test_quality_at_each_threshold(passed, failed, text, expected):
    assert reason(quality.GopherQuality(dataclasses.replace(LAX_QUALITY, **passed)), text) is None
    assert reason(quality.GopherQuality(dataclasses.replace(LAX_QUALITY, **failed)), text) == expected


FINEWEB = [
    ({"min_punctuated_lines": 1 / 3}, {"min_punctuated_lines": 0.34}, "a.\n\nb\nc. d", "few_punctuated_lines"),
    (
        {"short_line_characters": 4, "max_short_lines": 2 / 3},
        {"short_line_characters": 4, "max_short_lines": 0.66},
        "abcd\nabc\n\nabcde",
        "short_lines",
    ),
    ({"max_repeated_characters": 4 / 12}, {"max_repeated_characters": 0.33}, "four\nfour\nfive", "repeated_line_text"),
    ({"max_lines_per_word": 3 / 4}, {"max_lines_per_word": 0.74}, "one, two\n\n\nthree", "few_words_per_line"),
]


@pytest.mark.parametrize("passed, failed, text, expected", FINEWEB)
def test_fineweb_at_each_threshold(passed, failed, text, expected):
    assert reason(quality.FineWebQuality(dataclasses.replace(LAX_FINEWEB, **passed)), text) is None
    assert reason(quality.FineWebQuality(dataclasses.replace(LAX_FINEWEB, **failed)), text) == expected


@pytest.mark.parametrize("text", ["", " ", "\n\n", "…", "#"])
def test_pages_without_words_are_dropped(text):
    """datatrove divides by zero."""
    assert reason(quality.GopherQuality(settings.GopherQualityConfig()), text) == "short_page"
    expected = "few_punctuated_lines"
    assert reason(quality.FineWebQuality(settings.FineWebQualityConfig()), text) == expected
    assert reason(quality.GopherRepetition(LAX_REPETITION), text) is None


@pytest.mark.parametrize(
    "text, expected",
    [
        ('The U.S. can\'t, "she" said...', ["The", "U.S.", "can", "'t", ",", '"', "she", '"', "said", "..."]),
        ("It’s 1,000.50 km (or 3-4 days)", ["It", "’s", "1,000.50", "km", "(", "or", "3", "-", "4", "days", ")"]),
        ("See http://a.org/b?c=d, foo_bar -- 21st", ["See", "http://a.org/b?c=d,", "foo_bar", "--", "21st"]),
        ("Über naïve 未抵", ["Über", "naïve", "未抵"]),
        (" \n", []),
    ],
)
def test_words(text, expected):
    assert list(words.split(text)) == expected
