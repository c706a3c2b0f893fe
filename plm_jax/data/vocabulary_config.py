"""Settings of a vocabulary, in a module that imports none of the libraries that read its files."""

from dataclasses import dataclass
from typing import Literal

from plm_jax.common import ranges
from plm_jax.common.special_ids import SpecialIds


@dataclass(frozen=True)
class VocabularyConfig(SpecialIds):
    """Vocabulary and its special ids. A special id is None if the vocabulary lacks it.

    Attributes:
      spec: kind and files of the vocabulary: `sentencepiece:FILE`, `wordpiece:FILE`, `bpe:VOCAB,MERGES`,
        `tiktoken:FILE`, `json:tokenizer.json`, `words:FILE` or `bytes`; empty if the model and its vocabulary come from
        a checkpoint.
      added: number of ids that are added to the ids of the file, for special tokens that the file lacks.
      train_size: size of the vocabulary that `prepare` trains on the sources if a file of `spec` is missing; 0: no
        training. The size is a number of tokens (SentencePiece, WordPiece, BPE or tiktoken) or the maximum number of
        words of a file of words. If the size is above 0, `prepare` rejects an existing vocabulary that it trained with
        other settings, or on none of the files of the sources.
      train_kind: kind of vocabulary to train: `unigram` (the default) or `bpe` for SentencePiece, `uncased` (the
        default) or `cased` for WordPiece. For existing WordPiece files, the kind sets whether text is lowercased; if
        the kind is empty, the letters in the file decide.
      lowercase: whether SentencePiece reads lowercased text without accents, after NFKD normalization, in training and
        in encoding (ALBERT). With other kinds of vocabulary, it must be False.
      sentinels: number of sentinel ids, which are added after all other ids and used in descending order, one for each
        span that an objective cuts out. T5's 32,000 pieces and 100 sentinels make 32,100 ids, and the first span gets
        32,099. The number includes the sentinels that a SentencePiece model itself has at its end, such as the
        sentinels of mT5.
    """

    spec: str = ""
    train_size: ranges.LengthOrZero = 0
    train_kind: Literal["", "unigram", "bpe", "uncased", "cased"] = ""
    lowercase: bool = False
    added: ranges.LengthOrZero = 0
    sentinels: ranges.LengthOrZero = 0
