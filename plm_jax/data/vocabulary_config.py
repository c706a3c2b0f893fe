"""Settings of a vocabulary, in a module that imports none of the libraries that read its files."""

from dataclasses import dataclass
from typing import Literal

from plm_jax.common import ranges
from plm_jax.common.special_ids import SpecialIds


@dataclass(frozen=True)
class VocabularyConfig(SpecialIds):
    """Vocabulary and its special ids, which are None if the vocabulary lacks them.

    Attributes:
      spec: files of the vocabulary: `sentencepiece:FILE`, `wordpiece:FILE`, `bpe:VOCAB,MERGES`, `tiktoken:FILE`,
        `json:tokenizer.json`, `words:FILE` or `bytes`; empty if the model comes from a checkpoint, which contains its
        vocabulary.
      added: number of ids that are added to those of the file, for special tokens that it lacks.
      train_size: number of tokens of a vocabulary (SentencePiece, WordPiece, BPE or tiktoken) that `prepare` trains on
        the sources if its files are missing, or maximum number of words if a file of words is missing; 0: no training.
        A vocabulary is rejected if none of the files of the sources was used to train it.
      train_kind: kind of vocabulary to train: `unigram` (the default) or `bpe` for SentencePiece, `uncased` (the
        default) or `cased` for WordPiece. It also sets whether text is lowercased for existing WordPiece files; if it
        is empty, the letters in the file decide.
      lowercase: whether SentencePiece reads lowercased text without accents, after NFKD normalization, in training and
        in encoding (ALBERT). Other kinds ignore it.
      sentinels: number of sentinel ids, which are added after all other ids and used in descending order, one for each
        span that an objective cuts out. T5's 32,000 pieces and 100 sentinels make 32,100 ids, and the first span gets
        32,099. The number includes the sentinels at the end of a SentencePiece model itself, such as mT5's.
    """

    spec: str = ""
    train_size: ranges.LengthOrZero = 0
    train_kind: Literal["", "unigram", "bpe", "uncased", "cased"] = ""
    lowercase: bool = False
    added: ranges.LengthOrZero = 0
    sentinels: ranges.LengthOrZero = 0
