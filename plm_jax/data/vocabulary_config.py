"""Settings of a vocabulary, apart from the libraries that read its files."""

from dataclasses import dataclass
from typing import Literal

from plm_jax.common import ranges
from plm_jax.common.special_ids import SpecialIds


@dataclass(frozen=True)
class VocabularyConfig(SpecialIds):
    """The vocabulary and its special ids (None: there is none).

    Attributes:
      spec: `sentencepiece:FILE`, `wordpiece:FILE`, `bpe:VOCAB,MERGES`, `tiktoken:FILE`, `json:tokenizer.json`,
        `words:FILE` or `bytes`. Empty where the model is that of a checkpoint, which brings its own.
      added: ids above the file's own, for special ones that it lacks.
      train_size: if files of SentencePiece, WordPiece, BPE or tiktoken are missing, `prepare` trains them to this size
        on the sources; a missing file of words is made of as many of the most frequent words, as far as there are.
      train_kind: how: SentencePiece `unigram` (the default) or `bpe`, WordPiece `uncased` (the default) or `cased`. Of
        WordPiece files that are there it also says how text is read; if it is empty, their letters tell.
      lowercase: of SentencePiece alone: whether text is folded before it is encoded and before a model is trained on
        it, as ALBERT's is: NFKD, without accents, in lower case.
      sentinels: ids added above all others, one for each span that an objective cuts out, used from the top down:
        T5's 32,000 pieces and 100 sentinels make 32,100 ids, of which the first span takes 32,099. The sentinels with
        which a SentencePiece model itself ends, as mT5's does, count among them.
    """

    spec: str = ""
    train_size: ranges.LengthOrZero = 0
    train_kind: Literal["", "unigram", "bpe", "uncased", "cased"] = ""
    lowercase: bool = False
    added: ranges.LengthOrZero = 0
    sentinels: ranges.LengthOrZero = 0
