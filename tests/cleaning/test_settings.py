"""Flavors equal C4's, every threshold can be set, and mistakes are one-line errors."""

import dataclasses

import pytest

from plm_jax.cleaning import lists, settings
from plm_jax.common.errors import UserError

LISTS = ["badwords.path=x", "pages.path=y"]


def test_flavors_equal_tfds():
    c4 = pytest.importorskip("tensorflow_datasets.text.c4")
    theirs = {each.name: each for each in c4.C4.BUILDER_CONFIGS}
    assert {*theirs, "fineweb"} == set(settings.FLAVORS)
    for name, their in theirs.items():
        rule = settings.FLAVORS[name]
        assert their.clean == (rule.lines is not None)
        assert their.dedupe == (rule.duplicates is not None)
        assert their.paragraph_filter == (rule.paragraphs is not None)
        assert their.badwords_filter_fraction == (rule.badwords.fraction if rule.badwords else 0)
        assert their.realnewslike == isinstance(rule.pages, settings.DomainsConfig)
        assert their.webtextlike == isinstance(rule.pages, settings.UrlsConfig)
        languages = ["en"] if isinstance(rule.language, settings.LangdetectConfig) else list(rule.language.languages)
        assert their.languages == languages


def test_thresholds_equal_published_ones():
    english, many = settings.FLAVORS["en"], settings.FLAVORS["multilingual"]
    lines = english.lines
    assert (english.max_characters, english.validation_one_in) == (190_000, 1000)
    assert (lines.max_word_characters, lines.min_words, lines.min_sentences) == (1000, 5, 3)
    assert lines.end_marks == (".", "?", "!", '"') and len(lines.policy_phrases) == 6
    assert english.duplicates == settings.DuplicateLinesConfig(3) and english.language == settings.LangdetectConfig(
        "en", 0.99
    )
    assert many.paragraphs == settings.ParagraphsConfig(3, 200) and many.duplicates.min_sentences == 0
    assert (many.language.min_probability, many.language.min_bytes, many.language.max_bytes) == (0.95, 100, 10_000)


def test_thresholds_of_gopher_and_fineweb_equal_published_ones():
    """Rae et al. 2021, section A.1 and table A1; Penedo et al. 2024 and FineWeb's code."""
    rule = settings.FLAVORS["fineweb"]
    assert dataclasses.astuple(rule.repetition) == (
        *(0.30, 0.30, 0.20, 0.20),
        (0.20, 0.18, 0.16),
        (0.15, 0.14, 0.13, 0.12, 0.11, 0.10),
    )
    assert dataclasses.astuple(rule.quality) == (
        *(50, 100_000, 3, 10, 0.1, ("•", "-"), 0.9, 0.3, 0.8),
        ("the", "be", "to", "of", "and", "that", "have", "with"),
        2,
    )
    assert dataclasses.astuple(rule.fineweb) == ((".", "'", '"', "!", "?"), 0.12, 30, 0.67, 0.01, 0.3)
    assert (rule.lines.min_words, rule.lines.min_sentences, rule.lines.end_marks) == (3, 5, ())
    assert (rule.language.min_probability, rule.near_duplicates) == (0.65, settings.MinHashConfig(14, 8, 5))
    assert rule.paragraphs is rule.duplicates is rule.badwords is rule.decontamination is None
    evaluations = settings.DecontaminationConfig()
    assert (evaluations.words, evaluations.min_words) == (13, 8)


def test_limits_can_be_set():
    assert settings.resolve("en.noclean", ["limits.depth=20"]).limits == settings.LimitsConfig(depth=20)
    with pytest.raises(UserError, match=r"settings\.limits\.line_bytes is 0: must be between 1 and"):
        settings.resolve("en.noclean", ["limits.line_bytes=0"])
    nested = "-" * 20_000 + "1"  # Python cannot parse this.
    assert settings.resolve("en.noclean", ["lines.kind=c4", f"lines.end_marks={nested}"]).lines.end_marks == (nested,)


def test_settings_can_be_changed():
    changes = ["lines.min_words=4", "duplicates.kind=spans", "duplicates.span=2", "language.min_probability=1"]
    rule = settings.resolve(
        "en", [*changes, "badwords=None", "near_duplicates.kind=minhash", "near_duplicates.bands=20"]
    )
    assert rule.lines.min_words == 4 and rule.duplicates == settings.DuplicateSpansConfig(2)
    assert rule.language == settings.LangdetectConfig("en", 1.0) and rule.badwords is None
    assert rule.near_duplicates == settings.MinHashConfig(bands=20)
    fields_first = ["duplicates.min_sentences=0", "duplicates.span=2", "duplicates.kind=spans"]
    assert settings.resolve("en", [*fields_first, "badwords=None"]).duplicates == settings.DuplicateSpansConfig(2, 0)
    assert settings.resolve("en.noclean", ["lines.kind=c4", "lines.end_marks=('.',)"]).lines.end_marks == (".",)


@pytest.mark.parametrize(
    "flavor, changes, says",
    [
        ("english", [], r"no flavor 'english': .*en"),
        ("en", [], "--set=badwords.path=FILE"),
        ("realnewslike", ["badwords=None"], "--set=pages.path=FILE"),
        ("webtextlike", ["badwords=None"], "--set=pages.path=FILE"),
        ("en", [*LISTS[:1], "lines.min_word=4"], r"no field settings.lines.min_word: did you mean 'min_words'"),
        ("en", [*LISTS[:1], "lines.min_words=four"], "settings.lines.min_words is 'four': must be an integer"),
        ("en", [*LISTS[:1], "lines.min_words"], "sets nothing"),
        ("en", [*LISTS[:1], "shard=4"], "no field settings.shard: did you mean 'shards'"),
        ("en", [*LISTS[:1], "shards=0"], "settings.shards is 0: must be between 1 and"),
        ("en", [*LISTS[:1], "validation_one_in=1"], "settings.validation_one_in is 1: must be between 2 and"),
        ("en", [*LISTS[:1], "lines.min_words=-1"], "settings.lines.min_words is -1"),
        (
            "en",
            [*LISTS[:1], "language.min_probability=99.0"],
            "language.min_probability is 99.0: must be between 0 and 1",
        ),
        ("en", [*LISTS[:1], "near_duplicates.bands=3"], "near_duplicates.kind too"),
        ("en", [*LISTS[:1], "kind=minhash"], "--set=kind=minhash names no section: .*near_duplicates.kind=minhash"),
        ("en", [*LISTS[:1], "duplicates.kind=words"], "settings.duplicates.kind is 'words'"),
        ("en", [*LISTS[:1], "language=None"], "badwords needs the language of each page"),
        ("en.noclean", ["near_duplicates.kind=minhash", "near_duplicates.rows=0"], "near_duplicates.rows is 0"),
    ],
)
def test_invalid_settings_are_rejected(flavor, changes, says):
    with pytest.raises(UserError, match=says) as raised:
        settings.resolve(flavor, changes)
    assert "\n" not in str(raised.value)


def test_lists_are_read_and_mistakes_reported(tmp_path):
    (tmp_path / "en").write_text("darn\n\nheck \n")
    (tmp_path / "fr").write_text("zut\n")
    (tmp_path / "fr-CA-u-sd-caqc").write_text("tabarnak\n")
    (tmp_path / "zh").write_text("性\n坏\n")
    (tmp_path / "README.md").write_text("words\n")
    (tmp_path / "urls.txt").write_text("http://a.org\n")
    loaded = lists.load(
        settings.resolve("webtextlike", [f"badwords.path={tmp_path}/[efRz]*", f"pages.path={tmp_path}/u*"])
    )
    assert loaded.badwords == {"en": {"darn", "heck"}, "fr": {"zut", "tabarnak"}, "zh": {"坏"}}
    assert loaded.url_files == [str(tmp_path / "urls.txt")] and loaded.domains == {}

    def load(flavor, *changes):
        return lists.load(settings.resolve(flavor, changes))

    with pytest.raises(UserError, match=r"there is no file at .*nothing: fix settings.badwords.path"):
        load("en", f"badwords.path={tmp_path}/nothing")
    with pytest.raises(UserError, match="has no words for en: name each file by its language"):
        load("en", f"badwords.path={tmp_path}/fr")
    with pytest.raises(UserError, match="is not a JSON object of domains"):
        load("realnewslike", "badwords=None", f"pages.path={tmp_path}/urls.txt")
    with pytest.raises(UserError, match=r"fix settings.pages.path"):
        load("webtextlike", "badwords=None", f"pages.path={tmp_path}/nothing")
