"""What cleaning does: every rule with its thresholds, and C4's flavours (`tensorflow_datasets/text/c4.py`, 3.1.0)."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from plm_jax.common import ranges, seeds, trees
from plm_jax.common.errors import UserError, nearest
from plm_jax.config import overrides

# The languages of mC4: those of CLD3 with at least 10,000 pages.
_CODES = """
af am ar az be bg bg-Latn bn ca ceb co cs cy da de el el-Latn en eo es et eu fa fi fil fr fy ga gd gl gu ha haw
hi hi-Latn hmn ht hu hy id ig is it iw ja ja-Latn jv ka kk km kn ko ku ky la lb lo lt lv mg mi mk ml mn mr ms mt my
ne nl no ny pa pl ps pt ro ru ru-Latn sd si sk sl sm sn so sq sr st su sv sw ta te tg th tr uk ur uz vi xh yi yo zh
zh-Latn zu
"""
MC4_LANGUAGES = tuple(_CODES.split())


@dataclass(frozen=True)
class DomainsConfig:
    """Only some sites: a JSON file of registered domain → its allowed subdomains, or true for all (RealNews)."""

    kind: ClassVar[str] = "domains"
    path: str = ""


@dataclass(frozen=True)
class UrlsConfig:
    """Only pages whose normalised URL stands in a list: text files, one URL a line, `path` may be a glob (WebText)."""

    kind: ClassVar[str] = "urls"
    path: str = ""


@dataclass(frozen=True)
class ParagraphsConfig:
    """Only pages with so many lines of so many characters each."""

    kind: ClassVar[str] = "paragraphs"
    min_paragraphs: ranges.CountOrZero = 3
    min_characters: ranges.CountOrZero = 200


@dataclass(frozen=True)
class CleanLinesConfig:
    """C4's rules about lines, and about pages by their lines (Raffel et al. 2020, section 2.2).

    Sentences are those of NLTK's English Punkt; phrases are looked for in lower case.
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
    """Each line, stripped and in lower case, stays once in the corpus, as in the public code."""

    kind: ClassVar[str] = "lines"
    min_sentences: ranges.CountOrZero = 3


@dataclass(frozen=True)
class DuplicateSpansConfig:
    """Each span of `span` sentences stays once in the corpus, as in the paper (Raffel et al. 2020, section 2.2)."""

    kind: ClassVar[str] = "spans"
    span: Annotated[int, ranges.Range(1, 10**6)] = 3
    min_sentences: ranges.CountOrZero = 3


@dataclass(frozen=True)
class LangdetectConfig:
    """Only pages of one language, told by `langdetect` with seed 0, as for the English C4."""

    kind: ClassVar[str] = "langdetect"
    language: str = "en"
    min_probability: ranges.Share = 0.99


@dataclass(frozen=True)
class Cld3Config:
    """Only pages of some languages or of none for sure (`und`), told by CLD3 from their first bytes, as for mC4."""

    kind: ClassVar[str] = "cld3"
    languages: tuple[str, ...] = MC4_LANGUAGES
    min_probability: ranges.Share = 0.95
    min_bytes: ranges.CountOrZero = 100
    max_bytes: ranges.CountOrZero = 10_000


@dataclass(frozen=True)
class BadWordsConfig:
    """Drops pages with a word of their language's list: files named by the language, one word or phrase a line.

    C4 takes the lists of github.com/LDNOOBW (CC BY 4.0), English at 25e679f and the others at 5faf2ba. `path` may be a
    glob. A `fraction` under 1 keeps the other pages, chosen by a hash of the URL.
    """

    kind: ClassVar[str] = "badwords"
    path: str = ""
    fraction: ranges.Share = 1.0


@dataclass(frozen=True)
class MinHashConfig:
    """Of pages that look alike one stays (Broder 1997).

    Two pages whose sets of `words`-grams have Jaccard similarity s are taken for near-duplicates with probability
    1 - (1 - s^rows)^bands; the numbers are FineWeb's (Penedo et al. 2024): 56 % of those with s = 0.70, 92 % with 0.80.
    """

    kind: ClassVar[str] = "minhash"
    bands: Annotated[int, ranges.Range(1, 1024)] = 14
    rows: Annotated[int, ranges.Range(1, 1024)] = 8
    words: Annotated[int, ranges.Range(1, 1024)] = 5
    seed: seeds.Seed = 0


@dataclass(frozen=True)
class LimitsConfig:
    """What is read of a crawl at most; what is larger, or more nested, is quarantined with its place.

    Attributes:
      line_bytes: of a line of JSON.
      page_bytes: of the text of a record of a WET file.
      body_bytes: of the page in a record of a WARC file, decompressed; Common Crawl cuts them there.
      depth: of HTML elements in each other, as deep as browsers have them, and of lists and objects of JSON.
    """

    line_bytes: Annotated[int, ranges.Range(1, 2**31 - 1)] = 2**24
    page_bytes: Annotated[int, ranges.Range(1, 2**31 - 1)] = 2**23
    body_bytes: Annotated[int, ranges.Range(1, 2**31 - 1)] = 5 * 2**20
    depth: Annotated[int, ranges.Range(1, 512)] = 512


@dataclass(frozen=True)
class CleaningConfig:
    """What happens to the pages of a crawl, in this order; None leaves a step out.

    Pages with more than `max_characters` go first, then all but the newest page of each URL. One page in
    `validation_one_in`, by a hash of its URL, is for validation.

    Attributes:
      shards: files of the training split, of which a worker holds one in memory; None: one for every 256 MiB that the
        crawl's files have. Validation has its share of as many; one that gets no page is not written.
    """

    max_characters: ranges.CountOrZero = 190_000
    pages: DomainsConfig | UrlsConfig | None = None
    paragraphs: ParagraphsConfig | None = None
    lines: CleanLinesConfig | None = None
    duplicates: DuplicateLinesConfig | DuplicateSpansConfig | None = None
    language: LangdetectConfig | Cld3Config | None = field(default_factory=LangdetectConfig)
    badwords: BadWordsConfig | None = None
    near_duplicates: MinHashConfig | None = None
    validation_one_in: Annotated[int, ranges.Range(2, 10**9)] = 1000
    shards: Annotated[int, ranges.Range(1, 10**6)] | None = None
    limits: LimitsConfig = LimitsConfig()

    @property
    def num_shards(self) -> int:
        """Number of files of the training split; 1 if `shards` is not set."""
        return self.shards or 1


_EN = CleaningConfig(lines=CleanLinesConfig(), duplicates=DuplicateLinesConfig(), badwords=BadWordsConfig())
FLAVOURS = {
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
}


def resolve(flavour: str, changes: Sequence[str] = ()) -> CleaningConfig:
    """A flavour with some changes, each as in `lines.min_words=4`, `near_duplicates.kind=minhash` or `badwords=None`.

    Raises:
      UserError: no such flavour or field, a value of the wrong type or out of range, a missing path.
    """
    if flavour not in FLAVOURS:
        raise UserError(f"there is no flavour '{flavour}': {nearest(flavour, FLAVOURS)}")
    given = []
    for change in changes:
        path, equals, value = change.partition("=")
        if not equals:
            raise UserError(f"--set={change} sets nothing: write it as in --set=lines.min_words=4")
        if path == "kind":
            raise UserError(f"--set={change} names no section: write it as in --set=near_duplicates.kind=minhash")
        given.append((path, value))
    tree = overrides.apply(trees.to_dict(FLAVOURS[flavour]), given, CleaningConfig, "settings")
    settings = trees.parse(CleaningConfig, tree, "settings")
    _check(settings)
    return settings


def _check(settings: CleaningConfig) -> None:
    for section, what in (("pages", "lists of allowed pages"), ("badwords", "lists of bad words")):
        part = getattr(settings, section)
        if part is not None and not part.path:
            raise UserError(
                f"{what} is not part of plm_jax: give it with --set={section}.path=FILE or set {section}=None"
            )
    if settings.badwords is not None and settings.language is None:
        raise UserError("bad words are listed by language: set badwords=None, or language.kind to langdetect or cld3")
