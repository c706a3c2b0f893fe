"""Settings of a run's data and of the reader that makes batches from it."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from plm_jax import objectives
from plm_jax.common import ranges, seeds
from plm_jax.common.errors import UserError, nearest
from plm_jax.common.phases import Phase
from plm_jax.data.layouts import Blocks, Layout, begins_with
from plm_jax.data.sources.source import InputsTargetsSource, RegisteredSource, Source
from plm_jax.data.sources.token_files import TokenFiles
from plm_jax.data.vocabulary_config import VocabularyConfig


@dataclass(frozen=True)
class InputsTargetsConfig:
    """Rows of sources with inputs and targets (text-to-text examples).

    Attributes:
      target_length: maximum number of target tokens, including eos; in an encoder-decoder, also the length of the
        decoder's rows; None: the length that the objective sets. A decoder-only model requires a value, because its
        inputs get the rest of the row.
      packed: whether a row has several examples, without attention between them. If not, it has one example.
    """

    target_length: ranges.Length | None = None
    packed: bool = False


@dataclass(frozen=True)
class DataConfig:
    """Sources of a run, their mixture, and the layout of rows.

    Attributes:
      cache_dir: folder of the cache that `prepare` writes and training reads, with a subfolder for each source.
      length: number of tokens in a row.
      sources: sources by name.
      mixture: relative sampling rate of each source, in rows. For packed examples with inputs and targets, and for
        labeled examples with several rows, the rate is in examples. If `mixture` is empty, rates are proportional to
        the numbers of training tokens, or to the numbers of rows if at least one source has inputs and targets.
        `data.mixtures` has functions for common rates. If a seqio mixture is one of several sources, `mixture` must not
        be empty.
      layout: layout, which decides the tokens of each row.
      segmenters: dict from a source to the Python function `module:function` that splits its texts into words, such as
        `jieba:lcut`. Segmenters are for languages without spaces, such as Chinese.
      similar_words: path of a text file, for an objective with `similar_share`. Each line has a word and its similar
        words, separated by tabs. `prepare` tokenizes the file. Empty: no file.
      token_types: dict from a source to the token type of all its tokens, such as the id of its language (XLM). For
        records, dict from the name of a text to the token type of this text. Empty: the layout decides.
      inputs_targets: rows of sources with inputs and targets.
      bad_rows: what `prepare` does with a bad row: `stop` with an error, or `skip` the row and report it. `skip` also
        stops if more than 1 % of the rows of a source are bad. A bad row is, for example, a line that is not JSON,
        lacks a field that the source needs, or is not UTF-8. A damaged file always stops `prepare`.
      validation_fraction: fraction of the groups of rows that is held out if a source has no validation split; 0: none.
        If these groups have fewer than 20 rows in total, more groups are held out, until 20 rows are held out or the
        next group would exceed 10 % of all rows. At least one group is held out, unless all rows belong to a single
        group.
      window_tokens: number of tokens of a shuffling window; the order of the windows and the rows within each window
        are shuffled.
      threads: number of threads on each host that make batches. Two threads together make only half as many batches as
        one thread, because they compete for Python's global interpreter lock. Several threads help only if the cache is
        remote, because they fetch rows concurrently.
      prefetch: number of batches that each host makes ahead; at least `threads`.
      processes: number of processes on each host that make training batches, for when one core is too slow. 0: threads
        of the training process make the batches. Otherwise, each of the processes makes at least `prefetch` batches
        ahead. The number of processes does not affect the batches.
    """

    cache_dir: str
    length: ranges.Length
    sources: dict[str, Source]
    mixture: dict[str, ranges.MixtureRate] = field(default_factory=dict)
    layout: Layout = field(default=Blocks())
    segmenters: dict[str, str] = field(default_factory=dict)
    similar_words: str = ""
    token_types: dict[str, Annotated[int, ranges.Range(0, 1023)]] = field(default_factory=dict)
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
        for name in self.segmenters:
            if self.sources[name].texts:
                raise UserError(
                    f"config.data.segmenters names '{name}', a source of records, to which segmenters do not "
                    "apply: remove it"
                )
        for name in (name for name, source in self.sources.items() if isinstance(source, TokenFiles)):
            if name in self.segmenters:
                raise UserError(f"config.data.segmenters names '{name}', which has tokens instead of text: remove it")
            if self.layout.num_texts > 1:
                raise UserError(
                    f"config.data.layout '{self.layout.kind}' needs sentences, which tokenized documents such as those "
                    f"of source '{name}' do not have: choose another layout"
                )

    @property
    def has_inputs_targets(self) -> bool:
        """Whether at least one source has examples with inputs and targets."""
        return any(isinstance(source, InputsTargetsSource) for source in self.sources.values())

    @property
    def modules(self) -> set[str]:
        """Names of the Python modules that register the sources' tasks or define segmenters."""
        registering = {source.module for source in self.sources.values() if isinstance(source, RegisteredSource)}
        return registering | {name.partition(":")[0] for name in self.segmenters.values()}


@dataclass(frozen=True)
class ReaderConfig:
    """Settings that determine the batches of a run.

    Attributes:
      objective: objective of training; each phase may change some of its fields.
      validation_objective: objective of validation and evaluation, in every phase.
      phases: phases to read; their mixtures may name sources that `data` no longer has.
      sources: names of the sources to read.
      vocab_size: number of token ids of the model, at least the size of the vocabulary.
      max_characters: maximum number of characters of a word, for layouts that read characters.
    """

    data: DataConfig
    vocabulary: VocabularyConfig
    objective: objectives.Objective
    validation_objective: objectives.Objective
    phases: tuple[Phase, ...]
    sources: tuple[str, ...]
    seed: seeds.Seed
    vocab_size: int
    max_characters: int = 0

    @property
    def all_objectives(self) -> list[objectives.Objective]:
        """Objectives of all phases, and the validation objective."""
        return [*map(self.in_phase, self.phases), self.validation_objective]

    def in_phase(self, phase: Phase) -> objectives.Objective:
        """Returns the objective of a phase.

        Raises:
          UserError: a field of the objective does not exist, has an invalid value, or belongs to the loss.
        """
        return self.objective.with_fields(phase.objective, "config.train.phases.objective")

    def example_rows(self, special: objectives.Special) -> objectives.ExampleRows | None:
        """Returns the object that makes rows from inputs and targets.

        Returns None if no source has inputs and targets, or if the objective does not support them.
        """
        if not self.data.has_inputs_targets or self.objective.example_rows is None:
            return None
        layout, settings = self.data.layout, self.data.inputs_targets
        segmented = settings.packed or not layout.attend_across_documents
        begin = begins_with(layout, special)
        return self.objective.example_rows(self.objective, special, settings.target_length, segmented, begin)
