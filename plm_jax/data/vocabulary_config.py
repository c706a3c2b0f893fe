"""Settings of a vocabulary, in a module that imports none of the libraries that read its files."""

from dataclasses import dataclass
from typing import Literal

from plm_jax.common import ranges
from plm_jax.common.special_ids import SpecialIds


@dataclass(frozen=True)
class VocabularyConfig(SpecialIds):
    """Vocabulary and its special ids; None for an id that it lacks.

    Attributes:
      spec: `sentencepiece:FILE`, `wordpiece:FILE`, `bpe:VOCAB,MERGES`, `tiktoken:FILE`, `json:tokenizer.json`,
        `words:FILE` or `bytes`; empty if the model comes from a checkpoint, which has its own vocabulary.
      added: number of ids above those of the file, for special tokens that it lacks.
      train_size: size to which `prepare` trains missing files of SentencePiece, WordPiece, BPE or tiktoken on the
        sources, or the maximum number of most frequent words in a missing file of words; 0 to train none.
      train_kind: kind to train: SentencePiece `unigram` (the default) or `bpe`, WordPiece `uncased` (the default) or
        `cased`. It also sets whether text is lowercased for existing WordPiece files; if it is empty, the letters in
        the file decide.
      lowercase: whether text is folded before SentencePiece encodes it or is trained on it, as ALBERT does: NFKD,
        without accents, in lower case. Other kinds ignore it.
      sentinels: number of ids added above all others, one for each span that an objective cuts out, used from the top
        down. T5's 32,000 pieces and 100 sentinels make 32,100 ids, and the first span gets 32,099. The number includes
        the sentinels at the end of a SentencePiece model itself, such as mT5's.
    """

    spec: str = ""
    train_size: ranges.LengthOrZero = 0
    train_kind: Literal["", "unigram", "bpe", "uncased", "cased"] = ""
    lowercase: bool = False
    added: ranges.LengthOrZero = 0
    sentinels: ranges.LengthOrZero = 0
