"""What is read, and how rows are made of it."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from plm_jax.common import ranges
from plm_jax.common.errors import UserError, nearest
from plm_jax.data.layouts import Blocks, Layout
from plm_jax.data.sources.source import Source


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
