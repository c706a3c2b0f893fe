"""Corpora of published models, by name, and their mixtures.

    data = config.DataConfig(cache_dir="../.cache/bert", length=128, **corpora.mixture("bert"))

Corpora that TensorFlow Datasets provides are read from there. Other corpora were not released, or may not be
redistributed. For these corpora, you provide files with one JSON object {"text": …} per line, at
`../corpora/NAME/*.jsonl.gz` relative to the config file or at `data.sources.NAME.path`. A source with a rate of 0 is
neither prepared nor read.
"""

from dataclasses import dataclass
from typing import Any

from plm_jax.common.errors import UserError, nearest
from plm_jax.data.sources.files import TextTable
from plm_jax.data.sources.tensorflow_sources import Tfds

Source = TextTable | Tfds


@dataclass(frozen=True)
class PublishedCorpus:
    """A corpus that published models were trained on.

    Attributes:
      source: source of the documents.
      size: amount of text with its unit, such as `745 GB`, according to `reference`.
      reference: paper that describes the corpus.
    """

    source: Source
    size: str
    reference: str


@dataclass(frozen=True)
class PublishedMixture:
    """The corpora that a published model was trained on.

    Attributes:
      rates: relative rate at which rows are drawn from each corpus.
      reference: the paper and the section or table with the rates.
    """

    rates: dict[str, float]
    reference: str


def _files(name: str) -> TextTable:
    return TextTable(path=f"../corpora/{name}/*.jsonl.gz")


CORPORA = {
    "wikipedia": PublishedCorpus(Tfds("wikipedia/20230601.en"), "2.5e9 words in 2018", "Devlin et al. 2019, §3.1"),
    "c4": PublishedCorpus(Tfds("c4/en"), "745 GB", "Raffel et al. 2020, table 8"),
    "c4_noclean": PublishedCorpus(Tfds("c4/en.noclean"), "6.1 TB", "Raffel et al. 2020, table 8"),
    "realnewslike": PublishedCorpus(Tfds("c4/realnewslike"), "35 GB", "Raffel et al. 2020, table 8"),
    "webtextlike": PublishedCorpus(Tfds("c4/webtextlike"), "17 GB", "Raffel et al. 2020, table 8"),
    "lm1b": PublishedCorpus(Tfds("lm1b"), "0.8e9 words", "Chelba et al. 2013, §3"),
    "pg19": PublishedCorpus(Tfds("pg19", field="book_text"), "11 GB, 28,752 books", "Rae et al. 2020, §4"),
    "books": PublishedCorpus(_files("books"), "0.8e9 words", "Devlin et al. 2019, §3.1; Zhu et al. 2015"),
    "cc_news": PublishedCorpus(_files("cc_news"), "76 GB", "Liu et al. 2019, §3.2"),
    "openwebtext": PublishedCorpus(_files("openwebtext"), "38 GB", "Liu et al. 2019, §3.2"),
    "stories": PublishedCorpus(_files("stories"), "31 GB", "Liu et al. 2019, §3.2; Trinh & Le 2018"),
    "webtext": PublishedCorpus(_files("webtext"), "40 GB, 8e6 documents", "Radford et al. 2019, §2.1"),
    "common_crawl": PublishedCorpus(_files("common_crawl"), "410e9 tokens, 570 GB", "Brown et al. 2020, §2.2"),
    "webtext2": PublishedCorpus(_files("webtext2"), "19e9 tokens", "Brown et al. 2020, table 2.2"),
    "books1": PublishedCorpus(_files("books1"), "12e9 tokens", "Brown et al. 2020, table 2.2"),
    "books2": PublishedCorpus(_files("books2"), "55e9 tokens", "Brown et al. 2020, table 2.2"),
    "ccnet": PublishedCorpus(_files("ccnet"), "3.3 TB", "Touvron et al. 2023a, table 1; Wenzek et al. 2020"),
    "github": PublishedCorpus(_files("github"), "328 GB", "Touvron et al. 2023a, table 1"),
    "wikipedia_20_languages": PublishedCorpus(
        _files("wikipedia_20_languages"), "83 GB", "Touvron et al. 2023a, table 1"
    ),
    "gutenberg_books3": PublishedCorpus(_files("gutenberg_books3"), "85 GB", "Touvron et al. 2023a, table 1"),
    "arxiv": PublishedCorpus(_files("arxiv"), "92 GB", "Touvron et al. 2023a, table 1"),
    "stack_exchange": PublishedCorpus(_files("stack_exchange"), "78 GB", "Touvron et al. 2023a, table 1"),
}

# BERT's corpus was 2.5e9 words of Wikipedia followed by 0.8e9 of books; RoBERTa counts them as 16 GB.
_BERT = {"wikipedia": 2.5, "books": 0.8}
_BERT_GIGABYTES = {name: 16 * words / sum(_BERT.values()) for name, words in _BERT.items()}

MIXTURES = {
    "bert": PublishedMixture(_BERT, "Devlin et al. 2019, §3.1: in proportion to their words"),
    "roberta": PublishedMixture(
        {**_BERT_GIGABYTES, "cc_news": 76, "openwebtext": 38, "stories": 31},
        "Liu et al. 2019, §3.2: in proportion to their gigabytes",
    ),
    "deberta": PublishedMixture(
        {"wikipedia": 12, "books": 6, "openwebtext": 38, "stories": 31},
        "He et al. 2021, appendix A.2: in proportion to their gigabytes",
    ),
    "gpt1": PublishedMixture({"books": 1}, "Radford et al. 2018, §4.1"),
    "gpt2": PublishedMixture({"webtext": 1}, "Radford et al. 2019, §2.1"),
    # The shares in the table are rounded and add up to 101.
    "gpt3": PublishedMixture(
        {"common_crawl": 60, "webtext2": 22, "books1": 8, "books2": 8, "wikipedia": 3},
        "Brown et al. 2020, table 2.2",
    ),
    "llama": PublishedMixture(
        {
            "ccnet": 67,
            "c4": 15,
            "github": 4.5,
            "wikipedia_20_languages": 4.5,
            "gutenberg_books3": 4.5,
            "arxiv": 2.5,
            "stack_exchange": 2,
        },
        "Touvron et al. 2023a, table 1",
    ),
    "t5": PublishedMixture({"c4": 1}, "Raffel et al. 2020, §2.2"),
    "elmo": PublishedMixture({"lm1b": 1}, "Peters et al. 2018, §3.4"),
}


def sources(*names: str) -> dict[str, Source]:
    """Returns the source of each named corpus.

    `c4_multilingual:sw` is the Swahili part of mC4. In the keys of the result, `_` replaces the colon.

    Raises:
      UserError: a corpus is unknown.
    """
    return {name.replace(":", "_"): _source(name) for name in names}


def _source(name: str) -> Source:
    corpus, colon, language = name.partition(":")
    if colon and corpus == "c4_multilingual":
        return Tfds("c4/multilingual", train=language, validation=f"{language}-validation")
    if name not in CORPORA:
        raise UserError(f"there is no corpus '{name}': {nearest(name, [*CORPORA, 'c4_multilingual:LANGUAGE'])}")
    return CORPORA[name].source


def mixture(name: str) -> dict[str, Any]:
    """Returns the fields `sources` and `mixture` of `config.DataConfig` for the mixture `name` in MIXTURES.

    Raises:
      UserError: the mixture is unknown.
    """
    if name not in MIXTURES:
        raise UserError(f"there is no mixture '{name}': {nearest(name, MIXTURES)}")
    rates = MIXTURES[name].rates
    return {"sources": sources(*rates), "mixture": {corpus: float(rate) for corpus, rate in rates.items()}}
