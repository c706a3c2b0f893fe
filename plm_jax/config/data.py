"""What is read, and with which vocabulary."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from plm_jax.common import ranges, special_ids
from plm_jax.common.errors import UserError, nearest
from plm_jax.config.sources import Source
from plm_jax.data.layouts import Blocks, Layout

# The special ids that a vocabulary may have.
SPECIALS = special_ids.NAMES


@dataclass(frozen=True)
class InputsTargetsConfig:
    """How text-to-text examples, inputs and targets, become rows; those of other sources are the objective's.

    Attributes:
      target_length: tokens of the targets, end included, and of a decoder's row in an encoder-decoder, where None is
        the length that the objective gives it. A decoder alone needs it: its inputs get the rest of the row.
      packed: as many examples a row as fit, none of which sees another; else one.
    """

    target_length: ranges.Length | None = None
    packed: bool = False


@dataclass(frozen=True)
class DataConfig:
    """What is read: sources, their mixture, and how rows are made of them.

    Attributes:
      cache_dir: what `prepare` writes and the trainer reads: one folder a source.
      length: tokens a row of the batch.
      mixture: rate of each source, in rows or, since seqio mixes before it packs, in examples where those are packed
        (`data.mixtures` has the usual rules); empty means each in proportion to its tokens, or, where a source has
        examples, to its rows. It may not be empty where a mixture of seqio's is one of several sources.
      segmenters: of sources whose words the vocabulary does not tell, as of Chinese, a Python function
        `module:function` from a text to its words in order, such as `jieba:lcut`.
      bad_rows: what `prepare` does with a line of JSONL that is none or lacks what the source asks for, and with text
        that is not UTF-8: stop, or skip and tell them, and stop if they are more than 1 % of a source's rows. A damaged
        file always stops it.
      validation_fraction: share of the groups of rows that is held out if a source has no validation split. If these
        groups have fewer than 20 rows, more are added, up to 10 % of the rows; at least one group is held out. 0: none.
      window_tokens: tokens within which examples are shuffled together; windows are shuffled too.
      threads, prefetch: batches made at once, batches made ahead, on each host. Two threads make half as many batches
        as one, since they wait for Python's lock; more than one may pay where the cache is remote and must be fetched.
      processes: of each host that make training batches in turn, each `prefetch` or more ahead, where one core's are
        too few; 0: the trainer's own threads do. The batches are the same.
    """

    cache_dir: str
    length: ranges.Length
    sources: dict[str, Source]
    mixture: dict[str, ranges.MixtureRate] = field(default_factory=dict)
    layout: Layout = field(default=Blocks())
    segmenters: dict[str, str] = field(default_factory=dict)
    inputs_targets: InputsTargetsConfig = InputsTargetsConfig()
    bad_rows: Literal["stop", "skip"] = "stop"
    validation_fraction: ranges.ShareBelowOne = 0.01
    window_tokens: Annotated[int, ranges.Range(1, 2**40)] = 2**21
    threads: Annotated[int, ranges.Range(1, 1024)] = 1
    prefetch: ranges.Workers = 4
    processes: ranges.Workers = 0

    def __post_init__(self):
        for name in self.segmenters.keys() - self.sources.keys():
            raise UserError(f"config.data.segmenters names '{name}': {nearest(name, self.sources)}")
        if not self.sources:
            raise UserError("config.data.sources is empty: name at least one corpus")


@dataclass(frozen=True)
class VocabularyConfig(special_ids.SpecialIds):
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
