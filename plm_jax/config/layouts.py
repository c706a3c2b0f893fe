"""How documents become rows."""

from dataclasses import dataclass
from typing import ClassVar, Literal


@dataclass(frozen=True)
class Blocks:
    """Documents one after another, cut every `length` tokens.

    Attributes:
      attend_across_documents: whether a token sees earlier documents of its block; if not, the batch has segment ids.
      begin: what a decoder reads before each document, by the names of `vocabulary`'s special ids, as in `("bos",)`;
        then every prompt and every example with inputs begins with it, too.
    """

    kind: ClassVar[str] = "blocks"
    attend_across_documents: bool = True
    begin: tuple[Literal["bos", "cls", "gmask", "sop"], ...] = ()


@dataclass(frozen=True)
class SentencePairs:
    """Two stretches of text a row, of which the second follows the first or does not, as `pair_label` says.

    Attributes:
      task: what label 0, the second follows, is told from: 1, it is from another document, in half of the pairs and
        where a document has but one sentence left (`next_sentence`, BERT); or 1, the two are swapped, in half of the
        pairs, or the second is from another document where there is but one sentence (`sentence_order`, ALBERT).
      parts: stretches of several sentences that fill the row (BERT, and RoBERTa's SEGMENT-PAIR), or two single ones
        (RoBERTa's SENTENCE-PAIR). Single ones fill little of a row: a run says how much.
      short_probability: share of documents that are cut into pairs shorter than the row; single sentences are as long
        as they are.
      duplicates: different passes over each document, an epoch each; then they come again.
    """

    kind: ClassVar[str] = "sentence_pairs"
    short_probability: float = 0.1
    duplicates: int = 10
    task: Literal["next_sentence", "sentence_order"] = "next_sentence"
    parts: Literal["segments", "sentences"] = "segments"


@dataclass(frozen=True)
class WholeSentences:
    """As many whole sentences a row as fit, in the order of the text, between `cls` and `sep` (or `bos` and `eos`).

    RoBERTa's formats without pairs (Liu et al. 2019 §4.2), and BART's rows. A sentence longer than a row is cut.

    Attributes:
      cross_documents: whether a row goes on in the next document, behind an extra `sep` (FULL-SENTENCES; where a text
        is denoised, behind nothing); if not, it is padded (DOC-SENTENCES; fairseq's default for BART). RoBERTa then
        makes a batch larger until it has as many tokens; here a batch has `train.batch_size` rows, and a run says how
        many rows make up for the padding.
    """

    kind: ClassVar[str] = "whole_sentences"
    cross_documents: bool = True


@dataclass(frozen=True)
class Segments:
    """Sentences of one document in two segments, `[CLS] first [SEP] second [SEP]`, without a label (ELECTRA).

    A row takes sentences until it is full or the document ends; what is beyond its length is cut off. Up to about half
    of it they are the first segment, the others the second, and of a tenth of the rows all are the first. That is drawn
    anew in each epoch; where rows begin is not.

    Attributes:
      short_probability: share of rows that take sentences up to a length drawn from 5 to the row's.
    """

    kind: ClassVar[str] = "segments"
    short_probability: float = 0.05


@dataclass(frozen=True)
class Documents:
    """One document a row, between `cls` and `sep` (or `bos` and `eos`); a longer one is cut into several (DistilBERT).

    Left out are rows of 11 tokens or fewer, marks counted, and such of which half or more is unknown. Short documents
    fill little of a row: a run says how much.
    """

    kind: ClassVar[str] = "documents"


@dataclass(frozen=True)
class Streams:
    """Each row of a batch goes on where it ended in the batch before, with a state carried along (ELMo).

    Example k depends on the batch size too, and so each change of it begins with a fresh state.
    """

    kind: ClassVar[str] = "streams"
