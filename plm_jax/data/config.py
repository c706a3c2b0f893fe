"""Settings of the data of a run, and of the reader that makes batches of it."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from plm_jax import objectives
from plm_jax.common import ranges, seeds
from plm_jax.common.errors import UserError, nearest
from plm_jax.common.phases import Phase
from plm_jax.data.layouts import Blocks, Layout, begins_with
from plm_jax.data.sources.source import InputsTargetsSource, RegisteredSource, Source
from plm_jax.data.vocabulary_config import VocabularyConfig


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

    @property
    def has_inputs_targets(self) -> bool:
        """Whether a source has examples with inputs and targets."""
        return any(isinstance(source, InputsTargetsSource) for source in self.sources.values())

    @property
    def modules(self) -> set[str]:
        """The Python modules that register the sources' tasks, and those of the segmenters."""
        registering = {source.module for source in self.sources.values() if isinstance(source, RegisteredSource)}
        return registering | {name.partition(":")[0] for name in self.segmenters.values()}


@dataclass(frozen=True)
class ReaderConfig:
    """Everything that decides the batches of a run.

    Attributes:
      phases: the phases that are read; their mixtures may name sources that `data` no longer has.
      sources: names of the sources that are read.
      vocab_size: number of ids of the model, at least as many as the vocabulary has.
      max_characters: characters of a word, for layouts that read them.
    """

    data: DataConfig
    vocabulary: VocabularyConfig
    objective: objectives.Objective
    phases: tuple[Phase, ...]
    sources: tuple[str, ...]
    seed: seeds.Seed
    vocab_size: int
    max_characters: int = 0

    def example_rows(self, special: objectives.Special) -> objectives.ExampleRows | None:
        """Returns how rows of examples with inputs and targets are made; None if no source has any."""
        if not self.data.has_inputs_targets or self.objective.example_rows is None:
            return None
        layout, settings = self.data.layout, self.data.inputs_targets
        segmented = settings.packed or not layout.attend_across_documents
        begin = begins_with(layout, special)
        return self.objective.example_rows(self.objective, special, settings.target_length, segmented, begin)
