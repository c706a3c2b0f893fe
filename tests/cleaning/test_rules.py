"""Every rule against C4's code, on pages near its threshold, and against worked examples."""

import collections
import hashlib
import pathlib
import random
import subprocess
import sys

import pytest

from plm_jax.cleaning import punkt, rules, settings
from plm_jax.cleaning.pages import Page, Tally, normalize_url, url_hash
from plm_jax.common.errors import UserError
from tests.cleaning.crawls import sentence

ROOT = pathlib.Path(__file__).parents[2]

# C4's name of a reason → plm_jax's.
REASONS = {
    "line-filtered:too_long_word": "long_word",
    "line-filtered:no_endmark": "no_end_mark",
    "line-filtered:too_short": "few_words",
    "line-filtered:javascript": "script",
    "line-filtered:policy": "policy",
    "filtered:loremipsum": "placeholder",
    "filtered:squigglybracket": "code",
    "filtered:too_few_sentences": "few_sentences",
}
ODD_LINES = (
    "a" * 1000 + " is a word of a thousand letters.",
    "a" * 1001 + " is a word of more letters than that.",
    "   A line with white space around it, which counts not.  ",
    "A line that ends in no mark at all",
    "A line that ends in an ellipsis, which is no end...",
    "A line that ends in the one-character ellipsis…",
    "Does this line end in a question mark?",
    "How this line ends in an exclamation!",
    'He said that "this line ends in a quotation."',
    "He said that this ends in a curly quotation.”",
    "Four words are few.",
    "Five words are enough here.",
    "Four words  and\tspaces.",
    "[1] Three words [2].",
    "This one cites something.[12]",
    "This one cites something. [3]",
    "This one wants a source[citation needed]. One may change it.[edit]",
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit.",
    "This one has lorem[1] ipsum once its citation is gone.",
    "lorem ipsum without a mark at its end",
    "Please turn on JavaScript so that this page can be seen.",
    "JavaScript and lorem ipsum stand side by side in here.",
    "JavaScript may be { like this } where it says so.",
    "function f(a) { return a + 10 } and then a mark.",
    "{ one two three four five",
    "Read our Terms of Use before you go on, please.",
    "Read our PRIVACY POLICY before you go on, please.",
    "A cookie policy, { too, is in this line here.",
    "This site uses cookies as all sites do now.",
    "We make use of cookies as all sites do now.",
    "We use cookies as all sites do now, sir.",
    "A line with a vertical\x0btab in it has two lines.",
    "A line with a\u2028separator of lines has two as well.",
    "Dr. Roberts met Mr. Smith of the U.S. Navy at noon.",
    "He came. He saw. He wrote it all down in a book.",
    "Is it so?! It is. (Or so they say.) And that is all.",
    "",
    "   ",
    "İstanbul'da kışlar ılık ve yağışlı geçer, ΣΊΣΥΦΟΣ.",
)


def pages(number: int) -> list[Page]:
    """Returns pages of up to six ordinary and unusual lines."""
    rng = random.Random(0)
    generated = []
    for i in range(number):
        lines = [
            rng.choice(ODD_LINES) if rng.random() < 0.5 else " ".join(sentence(rng) for _ in range(rng.randint(1, 2)))
            for _ in range(rng.randint(1, 6))
        ]
        generated.append(Page(f"http://site{i}.org/", rng.choice(["\n", "\n", "\r\n", "\n\n"]).join(lines)))
    return generated


def tallied(rule, page: Page) -> tuple[Page | None, dict[str, int]]:
    tally = Tally()
    return rule(page, tally), {reason: count.number for reason, count in tally.items()}


def test_lines_are_cleaned_like_c4(c4):
    rule, clean = rules.LineFilter(settings.CleanLinesConfig()), c4.get_clean_page_fn()
    counts, num_kept = collections.Counter(), 0
    for page in pages(600):
        theirs = collections.Counter()
        expected = list(clean(c4.PageFeatures(text=page.text), counter_inc_fn=lambda name, t=theirs: t.update([name])))
        ours, reasons = tallied(rule, page)
        assert (ours.text if ours else None) == (expected[0].text if expected else None), page.text
        assert reasons == {REASONS[name]: n for name, n in theirs.items() if name in REASONS}, page.text
        counts.update(reasons)
        num_kept += ours is not None
    assert counts.keys() == set(REASONS.values()) and min(counts.values()) > 10, counts
    assert 100 < num_kept < 500


@pytest.mark.parametrize(
    "line, reason",
    [
        ("b" * 1001 + " and some words more.", "long_word"),
        ("This line has no end", "no_end_mark"),
        ("This line trails off into nothing...", "no_end_mark"),
        ("Only four words here.", "few_words"),
        ("Enable JavaScript in your browser, please.", "script"),
        ("Here is our cookie policy for you.", "policy"),
        ("Here stands Lorem Ipsum and no more.", "placeholder"),
        ("if (x) { this is code and more.", "code"),
        ("These five words are left.", None),
        ("a" * 1000 + " and some words more.", None),
        ("This cites something of weight[12].", None),
    ],
)
def test_lines_are_removed_with_reason(line, reason):
    good = "The first line is long enough.\nThe second line is long enough.\nThe third line is long enough."
    page, reasons = tallied(rules.LineFilter(settings.CleanLinesConfig()), Page("u", f"{good}\n{line}"))
    assert reasons == ({reason: 1} if reason else {})
    if reason in ("placeholder", "code"):
        assert page is None
    else:
        assert page.text == good + ("" if reason else "\n" + line.replace("[12]", ""))


def test_marks_are_case_sensitive_and_phrases_are_not():
    marked = rules.LineFilter(
        settings.CleanLinesConfig(min_sentences=1, code_marks=("CDATA",), script_phrases=("JScript",))
    )
    text = "This line here has CDATA in it."
    assert tallied(marked, Page("u", text)) == (None, {"code": 1})
    assert tallied(marked, Page("u", text.lower())) == (Page("u", text.lower()), {})
    page, reasons = tallied(marked, Page("u", "This line here has jscript in it.\nThis line here has none of it."))
    assert (page.text, reasons) == ("This line here has none of it.", {"script": 1})


def test_thresholds_are_configurable():
    text = "Two words.\nAnd a Mr. Smith; one more sentence, then."
    strict = rules.LineFilter(settings.CleanLinesConfig())
    lax = rules.LineFilter(settings.CleanLinesConfig(min_words=2, min_sentences=2, end_marks=(".", ";")))
    assert tallied(strict, Page("u", text)) == (None, {"few_words": 1, "few_sentences": 1})
    assert tallied(lax, Page("u", text)) == (Page("u", text), {})


def test_blank_lines_are_no_sentences():
    two = rules.LineFilter(settings.CleanLinesConfig(min_words=0, min_sentences=2, end_marks=()))
    assert tallied(two, Page("u", "One sentence.\n\n \n")) == (None, {"few_sentences": 1})
    assert tallied(two, Page("u", "One sentence.\n\nAnother one."))[0] == Page("u", "One sentence.\n\nAnother one.")


@pytest.mark.parametrize(
    "text, number",
    [
        ("He came. He saw.", 2),
        ("Dr. Roberts met Mr. Smith.", 1),
        ("It looks like three...but is really one.", 1),
        ("Is it so?! It is. (Or so they say.) The end.", 4),
        ("The U.S. Navy came at noon. However, it left.", 2),
    ],
)
def test_sentences_equal_punkt(text, number):
    assert len(punkt.split(text)) == number
    assert punkt.has_sentences([text], number) and not punkt.has_sentences([text], number + 1)


def test_punkt_memory_does_not_grow():
    before = len(punkt.english()._params.ortho_context)
    punkt.split("Xyzzy. Plugh. Frotz Qwertz. Zork came.")
    assert len(punkt.english()._params.ortho_context) == before


@pytest.mark.parametrize("length", [189_999, 190_000, 190_001])
def test_long_pages_are_removed(c4, length):
    page = Page("u", "x" * length)
    result, reasons = tallied(rules.MaxCharacters(190_000), page)
    assert (result is not None) == c4.is_valid_length(c4.PageFeatures(text=page.text)) == (length <= 190_000)
    assert reasons == ({} if result else {"too_long": 1})


@pytest.mark.parametrize("lengths", [(200, 200, 200), (200, 200, 199), (200, 200), (5, 300, 0, 200, 200), ()])
def test_pages_without_paragraphs_are_removed(c4, lengths):
    page = Page("u", "\n".join("x" * n for n in lengths))
    result, _ = tallied(rules.HasParagraphs(settings.ParagraphsConfig()), page)
    assert (result is not None) == c4.paragraph_filter(c4.PageFeatures(text=page.text))
    assert (result is not None) == (sum(n >= 200 for n in lengths) >= 3)


URLS = (
    "http://www.bbc.co.uk/news/1/",
    "https://bbc.co.uk/news?utm_source=x&a=b",
    "https://sport.bbc.co.uk/?ref=9",
    "http://example.com/a?feed=rss",
    "http://blog.example.com/a?b=c",
    "https://other.org//",
    "http://www.www.example.com/http://www.x.y/",
    "ftp://example.com",
)


@pytest.mark.parametrize("url", URLS)
def test_sites_and_urls_match_c4(c4, url, monkeypatch):
    import tldextract

    assert normalize_url(url) == c4.normalize_url(url)
    page = Page(url, "x")
    theirs = c4.PageFeatures(url=url, normalized_url=normalize_url(url))
    hashed = []
    c4.get_hashed_url_filter_fn(hashed.append)(theirs)
    assert hashed == [url_hash(page)]
    # C4 downloads the list of public suffixes.
    offline = tldextract.TLDExtract(cache_dir=None, suffix_list_urls=())
    monkeypatch.setattr(tldextract, "extract", offline)
    domains = {"bbc.co.uk": ["", "news"], "example.com": True}
    result, _ = tallied(rules.InDomains(domains), page)
    assert (result is not None) == c4.is_realnews_domain(theirs, domains)


def test_only_listed_sites_are_kept():
    rule = rules.InDomains({"bbc.co.uk": ["", "news"], "example.com": True})
    reasons = [tallied(rule, Page(url, "x"))[1] for url in URLS[:6]]
    assert reasons == [{}, {}, {"other_subdomain": 1}, {}, {}, {"other_domain": 1}]


WORDS = {"en": {"darn", "heck", "what the", "f*g", "ne'er"}, "ja": {"バカ"}, "fr": {"zut"}}
# Language, text and whether it has a bad word.
BAD_TEXTS = [
    ("en", "Well, darn it.", True),
    ("en", "He darned socks all day, heckling.", False),
    ("en", "DARN", True),
    ("en", "darn_it is one word", False),
    ("en", "so what the, he said", True),
    ("en", "so what\nthe, he said", False),
    ("en", "say f*g now, f*ging no", True),
    ("en", "of*g", False),
    ("en", "ne'er do well", True),
    ("en", "a line\nheck\nanother", True),
    ("en", "zut alors", False),
    ("en-Latn", "oh heck", True),
    ("ja", "あのバカもの", True),
    ("fr", "zut alors", True),
    ("fr", "azut", False),
    ("de", "darn heck zut", False),
]


@pytest.mark.parametrize("fraction", [1.0, 0.999, 0.5])
def test_bad_words_match_c4(c4, fraction):
    rule, theirs = rules.NoBadWords(WORDS, fraction), c4.get_badwords_filter_fn(WORDS, fraction)
    dropped = 0
    for i in range(40):
        for language, text, _ in BAD_TEXTS:
            page = Page(f"http://site{i}.org/", text, language=language)
            features = c4.PageFeatures(text=text, normalized_url=f"site{i}.org", language=language)
            result, reasons = tallied(rule, page)
            assert (result is not None) == theirs(features), (page, fraction)
            assert reasons == ({} if result else {"bad_word": 1})
            dropped += result is None
    bad = 40 * sum(is_bad for *_, is_bad in BAD_TEXTS)
    assert abs(dropped - fraction * bad) <= (0 if fraction == 1 else 120)


def test_bad_words_match_whole_words():
    rule = rules.NoBadWords(WORDS, 1.0)
    for language, text, is_bad in BAD_TEXTS:
        assert (tallied(rule, Page("u", text, language=language))[0] is None) == is_bad, text


TEXTS = {
    "en": "The teacher of the village crossed the river every winter and remembered the letters of the captain.",
    "de": "Die Lehrerin aus dem Dorf ging jeden Winter über den Fluss und dachte an die Briefe des Kapitäns zurück.",
    "fr": "La maîtresse du village traversait la rivière chaque hiver et se souvenait des lettres du capitaine absent.",
    "ru": "Учительница из деревни каждую зиму переходила реку и вспоминала письма старого капитана дальнего плавания.",
    "zh": "村里的老师每年冬天都要过河，她常常想起船长的来信，讲的都是海上的故事，孩子们都喜欢听她念。",
    "mixed": "The teacher Die Lehrerin La maîtresse of aus dem du village Dorf village crossed ging the Fluss",
    "short": "Hello there.",
    "digits": "1234 5678 9012 3456 7890",
    "empty": " ",
}


def test_languages_match_c4(c4):
    rule = rules.LangdetectFilter(settings.LangdetectConfig())
    for name, text in TEXTS.items():
        theirs = [detected.language for detected in c4.detect_english(c4.PageFeatures(text=text))]
        result, reasons = tallied(rule, Page("u", text))
        assert ([result.language] if result else []) == theirs, name
        if name != "short":
            expected = {"en": set(), "de": {"other_language"}, "empty": {"unsure_language"}}
            assert set(reasons) == expected.get(name, set(reasons)) and (result is not None) == (name == "en"), name


def test_many_languages_match_c4():
    """Runs in a separate process, because CLD3 and TensorFlow crash in a shared one."""
    code = "from tests.cleaning import test_rules; test_rules.compare_many_languages()"
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


def compare_many_languages() -> None:
    from tensorflow_datasets.text import c4_utils

    class Pages:
        """Captures the function that C4 would apply to pages."""

        def __or__(self, applied):
            return applied.fn

    kept_languages = ("en", "de", "zh")
    theirs = c4_utils.detect_languages(Pages(), kept_languages)
    theirs.start_bundle()
    rule = rules.Cld3Filter(settings.Cld3Config(languages=kept_languages))
    languages = {}
    for name, text in TEXTS.items():
        expected = [page.language for page in theirs.process(c4_utils.PageFeatures(text=text))]
        result, _ = tallied(rule, Page("u", text))
        languages[name] = result.language if result else None
        assert ([result.language] if result else []) == expected, name
    assert languages["en"] == "en" and languages["de"] == "de" and languages["zh"] == "zh"
    assert languages["fr"] is None and languages["short"] == languages["empty"] == "und"


def test_cld3_is_rejected_after_tensorflow(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", object())
    with pytest.raises(UserError, match="by itself"):
        rules.Cld3Filter(settings.Cld3Config())


def test_validation_is_one_in_thousand_by_hash():
    chosen = sum(url_hash(Page(f"http://site.org/{i}", "x")) % 1000 == 0 for i in range(50_000))
    assert abs(chosen - 50) < 4 * 50**0.5
    expected = int(hashlib.md5(b"site.org/7").hexdigest(), 16)
    assert url_hash(Page("https://www.site.org/7/", "x")) == expected
