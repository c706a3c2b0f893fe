"""Settings of cleaning: rules with their thresholds, and flavors.

The flavors follow C4 (`tensorflow_datasets/text/c4.py`, 3.1.0) and FineWeb.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from plm_jax.common import overrides, ranges, seeds, trees
from plm_jax.common.errors import UserError, nearest

# Languages of mC4: the languages of CLD3 with at least 10,000 pages.
_CODES = """
af am ar az be bg bg-Latn bn ca ceb co cs cy da de el el-Latn en eo es et eu fa fi fil fr fy ga gd gl gu ha haw
hi hi-Latn hmn ht hu hy id ig is it iw ja ja-Latn jv ka kk km kn ko ku ky la lb lo lt lv mg mi mk ml mn mr ms mt my
ne nl no ny pa pl ps pt ro ru ru-Latn sd si sk sl sm sn so sq sr st su sv sw ta te tg th tr uk ur uz vi xh yi yo zh
zh-Latn zu
"""
MC4_LANGUAGES = tuple(_CODES.split())


@dataclass(frozen=True)
class DomainsConfig:
    """Keeps only pages of listed sites (RealNews).

    Attributes:
      path: JSON file that maps a registered domain to its allowed subdomains, or to true for all of them; may be a
        glob.
    """

    kind: ClassVar[str] = "domains"
    path: str = ""


@dataclass(frozen=True)
class UrlsConfig:
    """Keeps only pages whose normalized URL is listed (WebText).

    Attributes:
      path: text file with one URL per line; may be a glob.
    """

    kind: ClassVar[str] = "urls"
    path: str = ""


@dataclass(frozen=True)
class ParagraphsConfig:
    """Keeps only pages with at least `min_paragraphs` lines of at least `min_characters` characters.

    Attributes:
      min_paragraphs: minimum number of long lines of a page.
      min_characters: minimum number of characters of a long line.
    """

    kind: ClassVar[str] = "paragraphs"
    min_paragraphs: ranges.CountOrZero = 3
    min_characters: ranges.CountOrZero = 200


@dataclass(frozen=True)
class CleanLinesConfig:
    """C4's rules for lines, and for pages based on their lines (Raffel et al. 2020, section 2.2).

    NLTK's English Punkt splits lines into sentences. Phrases are compared in lower case, `code_marks` with case. A
    phrase counts only in lines that pass the rules for words and ends.

    Attributes:
      max_word_characters: maximum length of a word; lines with a longer word are dropped.
      end_marks: strings that may end a line; lines with another end or with an ellipsis are dropped; empty: any end is
        accepted.
      min_words: minimum number of words of a line; shorter lines are dropped.
      placeholder_phrases: phrases of placeholder text; pages with such a phrase are dropped.
      script_phrases: phrases about scripts; lines with such a phrase are dropped.
      code_marks: characters of program code; pages with such a character are dropped.
      policy_phrases: phrases about policies; lines with such a phrase are dropped.
      min_sentences: minimum number of sentences of the remaining lines; pages with fewer are dropped.
    """

    kind: ClassVar[str] = "c4"
    max_word_characters: ranges.CountOrZero = 1000
    end_marks: tuple[str, ...] = (".", "?", "!", '"')
    min_words: ranges.CountOrZero = 5
    placeholder_phrases: tuple[str, ...] = ("lorem ipsum",)
    script_phrases: tuple[str, ...] = ("javascript",)
    code_marks: tuple[str, ...] = ("{",)
    policy_phrases: tuple[str, ...] = (
        "terms of use",
        "privacy policy",
        "cookie policy",
        "uses cookies",
        "use of cookies",
        "use cookies",
    )
    min_sentences: ranges.CountOrZero = 3


@dataclass(frozen=True)
class DuplicateLinesConfig:
    """Removes repeated lines, compared in lower case and without surrounding white space, as in the code of C4.

    Attributes:
      min_sentences: minimum number of sentences of the remaining lines; pages with fewer are dropped.
    """

    kind: ClassVar[str] = "lines"
    min_sentences: ranges.CountOrZero = 3


@dataclass(frozen=True)
class DuplicateSpansConfig:
    """Removes repeated spans of sentences, as in the paper about C4 (Raffel et al. 2020, section 2.2).

    Attributes:
      span: number of sentences of a span.
      min_sentences: minimum number of sentences of the remaining text; pages with fewer are dropped.
    """

    kind: ClassVar[str] = "spans"
    span: Annotated[int, ranges.Range(1, 10**6)] = 3
    min_sentences: ranges.CountOrZero = 3


@dataclass(frozen=True)
class LangdetectConfig:
    """Keeps only pages in one language, detected by `langdetect` with seed 0, as in the English C4.

    Attributes:
      language: code of the language.
      min_probability: minimum probability of the detected language; less certain pages are dropped.
    """

    kind: ClassVar[str] = "langdetect"
    language: str = "en"
    min_probability: ranges.Share = 0.99


@dataclass(frozen=True)
class Cld3Config:
    """Keeps only pages in listed or undetermined (`und`) languages, detected by CLD3, as in mC4.

    Attributes:
      languages: codes of the languages, as CLD3 returns them.
      min_probability: minimum probability of the detected language; below it, or if CLD3 calls its result unreliable,
        the language of a page is undetermined.
      min_bytes: minimum number of bytes for which CLD3 detects a language (`min_num_bytes`).
      max_bytes: maximum number of bytes of a page that CLD3 reads (`max_num_bytes`).
    """

    kind: ClassVar[str] = "cld3"
    languages: tuple[str, ...] = MC4_LANGUAGES
    min_probability: ranges.Share = 0.95
    min_bytes: ranges.CountOrZero = 100
    max_bytes: ranges.CountOrZero = 10_000


@dataclass(frozen=True)
class BadWordsConfig:
    """Drops pages that contain a word or phrase on the list of their language.

    C4 uses the lists of github.com/LDNOOBW (CC BY 4.0), English at 25e679f and the other languages at 5faf2ba.

    Attributes:
      path: path or glob of the lists, which are text files with one word or phrase per line. The name of each file is
        its language.
      fraction: share of the pages with a bad word that is dropped, selected by a hash of the URL.
    """

    kind: ClassVar[str] = "badwords"
    path: str = ""
    fraction: ranges.Share = 1.0


@dataclass(frozen=True)
class MinHashConfig:
    """Drops a page if it is a near-duplicate of a page with a smaller hash of the URL (Broder 1997).

    Two pages whose sets of `words`-grams have Jaccard similarity s count as near-duplicates with probability
    1 - (1 - s^rows)^bands. With the defaults of FineWeb (Penedo et al. 2024): 56 % for s = 0.70, 92 % for s = 0.80.

    Attributes:
      bands: number of bands of a signature; pages that share a band are near-duplicates.
      rows: number of hashes in a band.
      words: length n of the word n-grams that are hashed.
      seed: seed of the hash functions.
    """

    kind: ClassVar[str] = "minhash"
    bands: Annotated[int, ranges.Range(1, 1024)] = 14
    rows: Annotated[int, ranges.Range(1, 1024)] = 8
    words: Annotated[int, ranges.Range(1, 1024)] = 5
    seed: seeds.Seed = 0


@dataclass(frozen=True)
class GopherRepetitionConfig:
    """Drops pages that repeat themselves (Rae et al. 2021, arXiv:2112.11446, section A.1 and table A1).

    Shares of characters are shares of the page's characters. A page is dropped if a share exceeds its limit.

    Attributes:
      max_line_share: maximum share of lines that repeat an earlier line of the page (published: 0.30).
      max_paragraph_share: maximum share of paragraphs, separated by blank lines, that repeat an earlier paragraph
        (published: 0.30).
      max_line_characters: maximum share of characters in repeated lines (published: 0.20).
      max_paragraph_characters: maximum share of characters in repeated paragraphs (published: 0.20).
      max_frequent_ngrams: maximum shares of characters in the most frequent n-gram of 2, 3, … words (published: 0.20,
        0.18, 0.16).
      max_repeated_ngrams: maximum shares of characters in repeated n-grams of 5, 6, … words (published: 0.15, 0.14,
        0.13, 0.12, 0.11, 0.10).
    """

    kind: ClassVar[str] = "gopher"
    max_line_share: ranges.Share = 0.30
    max_paragraph_share: ranges.Share = 0.30
    max_line_characters: ranges.Share = 0.20
    max_paragraph_characters: ranges.Share = 0.20
    max_frequent_ngrams: tuple[ranges.Scale, ...] = (0.20, 0.18, 0.16)
    max_repeated_ngrams: tuple[ranges.Share, ...] = (0.15, 0.14, 0.13, 0.12, 0.11, 0.10)


@dataclass(frozen=True)
class GopherQualityConfig:
    """Drops pages that are not English prose (Rae et al. 2021, arXiv:2112.11446, section A.1).

    Attributes:
      min_words: minimum number of words, not counting punctuation (published: 50).
      max_words: maximum number of words, not counting punctuation (published: 100,000).
      min_word_characters: minimum mean length of words, not counting punctuation (published: 3).
      max_word_characters: maximum mean length of words, not counting punctuation (published: 10).
      max_symbols: maximum number of hash signs per word, and of ellipses per word (published: 0.1).
      bullets: strings that make a line a bullet point if it starts with one of them (not published; as in datatrove).
      max_bullet_lines: maximum share of lines that start with a bullet point (published: 0.9).
      max_ellipsis_lines: maximum share of lines that end with an ellipsis (published: 0.3).
      min_alphabetic_words: minimum share of words that contain a letter (published: 0.8).
      stop_words: stop words, case-sensitive (published: these eight).
      min_stop_words: minimum number of distinct stop words in the page (published: 2).
    """

    kind: ClassVar[str] = "gopher"
    min_words: ranges.CountOrZero = 50
    max_words: ranges.CountOrZero = 100_000
    min_word_characters: ranges.Scale = 3.0
    max_word_characters: ranges.Scale = 10.0
    max_symbols: ranges.Scale = 0.1
    bullets: tuple[str, ...] = ("•", "-")
    max_bullet_lines: ranges.Share = 0.9
    max_ellipsis_lines: ranges.Share = 0.3
    min_alphabetic_words: ranges.Share = 0.8
    stop_words: tuple[str, ...] = ("the", "be", "to", "of", "and", "that", "have", "with")
    min_stop_words: ranges.CountOrZero = 2


@dataclass(frozen=True)
class FineWebQualityConfig:
    """Drops lists and pages with repeated lines (Penedo et al. 2024, arXiv:2406.17557, section 3.6).

    Blank lines do not count, except in `max_lines_per_word`.

    Attributes:
      end_marks: characters that count as punctuation at the end of a line (as in the code that produced FineWeb).
      min_punctuated_lines: minimum share of lines that end in punctuation (published: 0.12).
      short_line_characters: maximum length of a short line (published: 30).
      max_short_lines: maximum share of short lines (published: 0.67).
      max_repeated_characters: maximum share of characters in repeated lines (published: 0.01 in the code, 0.1 in the
        paper).
      max_lines_per_word: maximum number of line breaks per word (published: 0.3, in the code only).
    """

    kind: ClassVar[str] = "fineweb"
    end_marks: tuple[str, ...] = (".", "'", '"', "!", "?")
    min_punctuated_lines: ranges.Share = 0.12
    short_line_characters: ranges.CountOrZero = 30
    max_short_lines: ranges.Share = 0.67
    max_repeated_characters: ranges.Share = 0.01
    max_lines_per_word: ranges.Scale = 0.3


@dataclass(frozen=True)
class DecontaminationConfig:
    """Drops pages that share a word n-gram with an evaluation set (Brown et al. 2020, arXiv:2005.14165, appendix C).

    Words are in lower case, without punctuation, and separated by white space, as in the paper. Unlike in the paper,
    whole pages are dropped, and frequent n-grams count too.

    Attributes:
      paths: paths or globs of tables (JSON Lines, CSV, TSV or Parquet), or of plain text whose examples are separated
        by blank lines (`.txt`). Text files may be compressed (`.gz`).
      fields: names of the fields that contain the texts of an example; empty: all fields. If a field is a list or an
        object, all texts in it are used.
      words: length n of the n-grams (published: 13).
      min_words: minimum number of words that a text of an evaluation set must have; shorter texts are ignored
        (published: n-grams of at least 8 words). Texts with at least `min_words` but fewer than `words` words are
        compared as a whole.
    """

    kind: ClassVar[str] = "ngrams"
    paths: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    words: Annotated[int, ranges.Range(1, 1024)] = 13
    min_words: Annotated[int, ranges.Range(1, 1024)] = 8


@dataclass(frozen=True)
class LimitsConfig:
    """Maximum sizes of records; larger or more deeply nested records are quarantined with their position.

    Attributes:
      line_bytes: maximum number of bytes of a line of JSON, and of characters of the text in a row of a Parquet file.
      page_bytes: maximum number of bytes of the text in a record of a WET file.
      body_bytes: maximum number of bytes, after decompression, of the page in a record of a WARC file. Common Crawl
        truncates pages at the default.
      depth: maximum nesting depth of HTML elements, and of lists and objects in JSON; the default is the limit of
        browsers.
    """

    line_bytes: Annotated[int, ranges.Range(1, 2**31 - 1)] = 2**24
    page_bytes: Annotated[int, ranges.Range(1, 2**31 - 1)] = 2**23
    body_bytes: Annotated[int, ranges.Range(1, 2**31 - 1)] = 5 * 2**20
    depth: Annotated[int, ranges.Range(1, 512)] = 512


@dataclass(frozen=True)
class CleaningConfig:
    """Steps of cleaning, in this order; a step that is None is skipped.

    Only the newest page of each URL is kept.

    Attributes:
      max_characters: maximum number of characters of a page; longer pages are dropped.
      pages: sites or URLs whose pages are kept; None: all pages.
      repetition: Gopher's limits on repeated text within a page.
      quality: Gopher's limits on the words and lines of a page.
      paragraphs: minimum number of long lines of a page.
      lines: C4's rules for lines.
      fineweb: FineWeb's limits on the lines of a page.
      duplicates: removal of text that occurs more than once, in one page or several, by line or by span of sentences.
      language: detection of languages, and the languages to keep; None: all languages.
      badwords: removal of pages with words on a list.
      decontamination: removal of pages that contain parts of evaluation sets.
      near_duplicates: removal of near-duplicate pages.
      validation_one_in: number n; about one page in n, selected by a hash of its URL, goes to the validation split.
      shards: number of files of the training split; None: one per 256 MiB of the crawl's files. The number of
        validation files is proportional to the number of training files. Empty files are not written.
      limits: maximum sizes of records.
    """

    max_characters: ranges.CountOrZero = 190_000
    pages: DomainsConfig | UrlsConfig | None = None
    repetition: GopherRepetitionConfig | None = None
    quality: GopherQualityConfig | None = None
    paragraphs: ParagraphsConfig | None = None
    lines: CleanLinesConfig | None = None
    fineweb: FineWebQualityConfig | None = None
    duplicates: DuplicateLinesConfig | DuplicateSpansConfig | None = None
    language: LangdetectConfig | Cld3Config | None = field(default_factory=LangdetectConfig)
    badwords: BadWordsConfig | None = None
    decontamination: DecontaminationConfig | None = None
    near_duplicates: MinHashConfig | None = None
    validation_one_in: Annotated[int, ranges.Range(2, 10**9)] = 1000
    shards: Annotated[int, ranges.Range(1, 10**6)] | None = None
    limits: LimitsConfig = LimitsConfig()

    @property
    def num_shards(self) -> int:
        """Number of files of the training split; 1 if `shards` is not set."""
        return self.shards or 1


_EN = CleaningConfig(lines=CleanLinesConfig(), duplicates=DuplicateLinesConfig(), badwords=BadWordsConfig())
FLAVORS = {
    "en": _EN,
    "en.noclean": CleaningConfig(),
    "realnewslike": dataclasses.replace(_EN, pages=DomainsConfig()),
    "webtextlike": dataclasses.replace(_EN, pages=UrlsConfig()),
    "multilingual": CleaningConfig(
        paragraphs=ParagraphsConfig(),
        duplicates=DuplicateLinesConfig(min_sentences=0),
        language=Cld3Config(),
        badwords=BadWordsConfig(fraction=0.999),
    ),
    # The filters of FineWeb's code. The language is identified by another library and after the other filters.
    "fineweb": CleaningConfig(
        max_characters=10**9,
        repetition=GopherRepetitionConfig(),
        quality=GopherQualityConfig(),
        lines=CleanLinesConfig(end_marks=(), min_words=3, min_sentences=5),
        fineweb=FineWebQualityConfig(),
        language=LangdetectConfig(min_probability=0.65),
        near_duplicates=MinHashConfig(),
    ),
}


def resolve(flavor: str, changes: Sequence[str] = ()) -> CleaningConfig:
    """Returns a flavor with changes such as `lines.min_words=4`, `near_duplicates.kind=minhash` or `badwords=None`.

    Raises:
      UserError: the flavor or a field is unknown, a value has the wrong type or is out of range, a required path is not
        set, or the settings contradict each other.
    """
    if flavor not in FLAVORS:
        raise UserError(f"there is no flavor '{flavor}': {nearest(flavor, FLAVORS)}")
    assignments = []
    for change in changes:
        path, equals, value = change.partition("=")
        if not equals:
            raise UserError(f"--set={change} sets nothing: write, for example, --set=lines.min_words=4")
        if path == "kind":
            raise UserError(f"--set={change} names no section: write, for example, --set=near_duplicates.kind=minhash")
        assignments.append((path, value))
    tree = overrides.apply(trees.to_dict(FLAVORS[flavor]), assignments, CleaningConfig, "settings")
    settings = trees.parse(CleaningConfig, tree, "settings")
    _check(settings)
    return settings


def _check(settings: CleaningConfig) -> None:
    for section, name in (("pages", "lists of allowed pages"), ("badwords", "lists of bad words")):
        part = getattr(settings, section)
        if part is not None and not part.path:
            raise UserError(
                f"{name} are not part of plm_jax: pass them with --set={section}.path=FILE or set {section}=None"
            )
    if (decontamination := settings.decontamination) is not None:
        if not decontamination.paths:
            raise UserError("evaluation sets are not part of plm_jax: pass them with --set=decontamination.paths=FILE")
        if decontamination.min_words > decontamination.words:
            raise UserError(
                f"decontamination.min_words is {decontamination.min_words}: must be at most decontamination.words, "
                f"{decontamination.words}"
            )
    if settings.badwords is not None and settings.language is None:
        raise UserError(
            "badwords needs the language of each page: set badwords=None, or language.kind to langdetect or cld3"
        )
