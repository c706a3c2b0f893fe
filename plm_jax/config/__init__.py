"""The schema of a run: frozen dataclasses; files, command lines and run directories hold the same tree as ConfigDicts.

A config file builds a `Run` and returns `to_config_dict(run)`; the command line overrides fields of that ConfigDict;
`resolve` turns it back into a checked `Run` with absolute paths. `Run` is what everything else takes.
"""

import dataclasses
import functools
import os
import typing
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import ml_collections

import plm_jax
from plm_jax import objectives
from plm_jax.common import trees
from plm_jax.common.errors import UserError, nearest
from plm_jax.config import checks
from plm_jax.models import settings

to_dict, to_config_dict = trees.to_dict, trees.to_config_dict
differences, brief = trees.differences, trees.brief

# What a path begins with that counts from this package's folder, as `package:data/corpora/sotu.jsonl.gz`.
PACKAGE = "package:"

# The special ids that a vocabulary may have.
SPECIALS = ("pad", "bos", "eos", "unk", "cls", "sep", "mask", "sop", "eop", "smask", "gmask", "dblock")


@dataclass(frozen=True)
class TextFiles:
    """Plain text, `.gz` allowed. `path` may be a glob. One document a file, or one a paragraph or line."""

    kind: ClassVar[str] = "text"
    path: str
    document: Literal["file", "paragraph", "line"] = "file"


@dataclass(frozen=True)
class JsonLines:
    """One JSON object a line, `.gz` allowed; `field` holds the document's text.

    Attributes:
      path, validation: the files for training and those for validation, each may be a glob; without the latter `Data`
        parts the former.
    """

    kind: ClassVar[str] = "jsonl"
    path: str
    field: str = "text"
    validation: str = ""


@dataclass(frozen=True)
class Tfds:
    """A TensorFlow Datasets builder, `name` as in `wikipedia/20230601.en`; `field` holds the document's text.

    Attributes:
      train, validation: the builder's splits that are these two; one without the second is parted by `Data`.
    """

    kind: ClassVar[str] = "tfds"
    name: str
    field: str = "text"
    data_dir: str = ""
    train: str = "train"
    validation: str = "validation"


@dataclass(frozen=True)
class SeqioTask:
    """A task, or a mixture of tasks, that `module` registers with seqio under `name`; its `field` holds text.

    Of a mixture each task is prepared and read as a source `SOURCE-TASK` of its own, and so the run's config.json holds
    these, as its `validation/…` do; of the rate of SOURCE each has the share that seqio's rates give it, which
    `prepare` works out.
    """

    kind: ClassVar[str] = "seqio"
    name: str
    module: str
    field: str = "text"


@dataclass(frozen=True)
class JsonLinesExamples:
    """One JSON object a line, `.gz` allowed, each an example with inputs and targets; `path` may be a glob.

    Attributes:
      inputs, targets: templates in which `{name}` stands for a field, as in `sentiment: {sentence}` or `{choices[0]}`.
    """

    kind: ClassVar[str] = "jsonl_examples"
    path: str
    inputs: str = "{inputs}"
    targets: str = "{targets}"


@dataclass(frozen=True)
class SeqioExamples:
    """A task, or a mixture of tasks, that `module` registers with seqio; each row is an example, inputs and targets.

    They may be texts or tokens, whose text is then taken: `inputs_pretokenized`, or what the task's vocabulary decodes.
    A mixture is read as in `SeqioTask`.
    """

    kind: ClassVar[str] = "seqio_examples"
    name: str
    module: str


# Sources of examples; the others are of documents.
ExampleSource = JsonLinesExamples | SeqioExamples
# Sources of which seqio's registry knows more.
Registered = SeqioTask | SeqioExamples


@dataclass(frozen=True)
class Examples:
    """How the examples of sources that have inputs and targets become rows, beside which the objective's are of texts.

    Attributes:
      target_length: tokens of the targets, end included, and of a decoder's row in an encoder-decoder, where None is
        the length that the objective gives it. A decoder alone needs it: its inputs get the rest of the row.
      packed: as many examples a row as fit, none of which sees another; else one.
    """

    target_length: int | None = None
    packed: bool = False


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


@dataclass(frozen=True)
class Data:
    """What is read.

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
      validation_fraction: share of documents held out where a source has no validation split; of several at least one.
      window_tokens: tokens within which examples are shuffled together; windows are shuffled too.
      threads, prefetch: batches made at once, batches made ahead, on each host. Two threads make half as many batches
        as one, since they wait for Python's lock; more than one may pay where the cache is remote and must be fetched.
      processes: of each host that make training batches in turn, each `prefetch` or more ahead, where one core's are
        too few; 0: the trainer's own threads do. The batches are the same.
    """

    cache_dir: str
    length: int
    sources: dict[str, TextFiles | JsonLines | Tfds | SeqioTask | JsonLinesExamples | SeqioExamples]
    mixture: dict[str, float] = field(default_factory=dict)
    layout: Blocks | SentencePairs | WholeSentences | Segments | Documents | Streams = Blocks()
    segmenters: dict[str, str] = field(default_factory=dict)
    examples: Examples = Examples()
    bad_rows: Literal["stop", "skip"] = "stop"
    validation_fraction: float = 0.01
    window_tokens: int = 2**21
    threads: int = 1
    prefetch: int = 4
    processes: int = 0


@dataclass(frozen=True)
class Vocabulary:
    """The vocabulary and its special ids (None: there is none).

    Attributes:
      spec: `sentencepiece:FILE`, `wordpiece:FILE`, `bpe:VOCAB,MERGES`, `tiktoken:FILE`, `json:tokenizer.json`,
        `words:FILE` or `bytes`.
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

    spec: str
    train_size: int = 0
    train_kind: Literal["", "unigram", "bpe", "uncased", "cased"] = ""
    lowercase: bool = False
    added: int = 0
    pad: int | None = None
    bos: int | None = None
    eos: int | None = None
    unk: int | None = None
    cls: int | None = None
    sep: int | None = None
    mask: int | None = None
    sop: int | None = None
    eop: int | None = None
    smask: int | None = None
    gmask: int | None = None
    dblock: int | None = None
    sentinels: int = 0


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay; gradients clipped to `clip_norm` (0: not).

    Attributes:
      decay_norms_and_biases: whether weight decay acts on these too, as where all parameters are one group (fairseq).
    """

    kind: ClassVar[str] = "adamw"
    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    decay_norms_and_biases: bool = False
    bias_correction: bool = True
    clip_norm: float = 1.0


@dataclass(frozen=True)
class Lamb:
    """AdamW's direction scaled to each tensor's norm, norms and biases left as they are (You et al. 2020).

    The defaults are ALBERT's (google-research/albert, lamb_optimizer.py); You et al. correct the bias.
    """

    kind: ClassVar[str] = "lamb"
    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    bias_correction: bool = False
    clip_norm: float = 1.0


@dataclass(frozen=True)
class Adafactor:
    """Adafactor without momentum (Shazeer & Stern 2018); the defaults are t5x's, by which T5 was trained.

    Attributes:
      decay_exponent: the second moment of update t decays by 1 - t^-decay_exponent.
      clipping_threshold: the largest root mean square of a tensor's direction.
      min_dim_size_to_factor: a matrix whose sides are both at least this keeps moments of its rows and columns only.
      epsilon: added to squared gradients.
      multiply_by_parameter_scale: whether the rate is relative to the root mean square of the tensor, which counts as
        at least `parameter_epsilon`.
      clip_norm: largest norm of all gradients together (0: not clipped).
    """

    kind: ClassVar[str] = "adafactor"
    decay_exponent: float = 0.8
    clipping_threshold: float = 1.0
    min_dim_size_to_factor: int = 128
    epsilon: float = 1e-30
    multiply_by_parameter_scale: bool = True
    parameter_epsilon: float = 1e-3
    clip_norm: float = 0.0


@dataclass(frozen=True)
class Adagrad:
    """Adagrad (Duchi et al. 2011); the defaults are those of ELMo's training (allenai/bilm-tf, train_elmo.py).

    Attributes:
      initial_accumulator: the sum of squared gradients before the first, TensorFlow's way to keep first steps small.
    """

    kind: ClassVar[str] = "adagrad"
    initial_accumulator: float = 1.0
    clip_norm: float = 10.0


@dataclass(frozen=True)
class Schedule:
    """The learning rate of each step.

    Attributes:
      kind: after the linear warm-up, constant, or linear or cosine down to `final_fraction` of the peak at
        `decay_steps` (0: at train.steps), then flat; `rsqrt` is learning_rate / sqrt(max(step, warmup_steps)),
        without a ramp, as T5 had it; `rsqrt_warmup` is the same with one (Vaswani et al. 2017 §5.3).
      decay_counts_warmup: the decay counts from step 0 and not from the warm-up's end, where the rate then steps down
        a little, as BERT's does (google-research/bert, optimization.py).
      by_tokens: warm-up and decay go by the tokens read so far and not evenly from step to step, so that a batch that
        grows does not make the rate fall too soon (GPT-3). Where they end is given in steps all the same.
    """

    kind: Literal["constant", "linear", "cosine", "rsqrt", "rsqrt_warmup"]
    learning_rate: float
    warmup_steps: int = 0
    decay_steps: int = 0
    final_fraction: float = 0.0
    decay_counts_warmup: bool = False
    by_tokens: bool = False


@dataclass(frozen=True)
class Mesh:
    """Devices along each axis (one may be -1: what is left) and the rules that lay logical axes onto them.

    Attributes:
      rules: (logical axis, mesh axis), in order: a mesh axis is given to the first logical axis of an array that names
        it and that it divides, once per array.
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1
    context: int = 1
    rules: tuple[tuple[str, str], ...] = (
        ("batch", "data"),
        ("batch", "fsdp"),
        ("vocab", "tensor"),
        ("heads", "tensor"),
        ("mlp", "tensor"),
        ("cell", "tensor"),
        ("embed", "fsdp"),
        ("mlp", "fsdp"),
        ("heads", "fsdp"),
        ("head_dim", "fsdp"),
        ("vocab", "fsdp"),
    )


@dataclass(frozen=True)
class Phase:
    """A stretch of the run, up to the fraction `until` of its steps; what is not set stays as in the config."""

    until: float
    length: int | None = None
    batch_size: int | None = None
    microbatches: int | None = None
    mixture: dict[str, float] | None = None
    dropout: float | None = None


@dataclass(frozen=True)
class Train:
    """The run itself.

    Attributes:
      batch_size: rows of the global batch; `microbatches` divides it, one after another within a step.
      init_from: any checkpoint to take weights from; of them the names that a regular expression in `init_names`
        matches whole.
      prng: `rbg` is faster on TPUs and gives up that losses are the same on every mesh.
    """

    steps: int
    batch_size: int
    microbatches: int = 1
    seed: int = 0
    log_every: int = 10
    phases: tuple[Phase, ...] = ()
    init_from: str = ""
    init_names: tuple[str, ...] = (".*",)
    z_loss: float = 0.0
    label_smoothing: float = 0.0
    prng: Literal["threefry", "rbg"] = "threefry"


@dataclass(frozen=True)
class Precision:
    """`compute` is the type of activations; parameters, optimizer state and the loss stay float32."""

    compute: Literal["float32", "bfloat16"] = "float32"


@dataclass(frozen=True)
class Checkpoint:
    """Saved every `save_every` steps and at the end; the last `keep_last` stay, and each multiple of `keep_every`."""

    save_every: int = 1000
    keep_last: int = 2
    keep_every: int = 0


@dataclass(frozen=True)
class Evaluation:
    """Validation loss during training, in rows of the phase's length and, where it is another, of the last phase's.

    Attributes:
      every: after how many steps (0: never).
      max_batches: of all sources together, each of which has its share by the mixture's rates, but at least one batch
        (0: all that is held out). The whole is the mean of the sources' losses by these rates, which are of rows.
    """

    every: int = 0
    batch_size: int = 32
    max_batches: int = 0


@dataclass(frozen=True)
class Run:
    """Everything that a run is."""

    model: settings.Decoder | settings.Encoder | settings.Electra | settings.EncoderDecoder | settings.Elmo
    objective: objectives.Objective
    data: Data
    vocabulary: Vocabulary
    optimizer: AdamW | Lamb | Adafactor | Adagrad
    schedule: Schedule
    train: Train
    mesh: Mesh = Mesh()
    precision: Precision = Precision()
    checkpoint: Checkpoint = Checkpoint()
    evaluation: Evaluation = Evaluation()


@dataclass(frozen=True)
class Stage:
    """A phase with everything filled in: steps [first_step, end_step), examples from `first_example`.

    Rates of the mixture are in the order of the sources.
    """

    first_step: int
    end_step: int
    first_example: int
    length: int
    batch_size: int
    microbatches: int
    mixture: dict[str, float]
    dropout: float | None


def stages(run: Run) -> tuple[Stage, ...]:
    """The phases of a run, resolved; a run without phases is one stage."""
    found, step, example = [], 0, 0
    for phase in run.train.phases or (Phase(until=1.0),):
        end = round(phase.until * run.train.steps)
        rates = run.data.mixture if phase.mixture is None else phase.mixture
        stage = Stage(
            first_step=step,
            end_step=end,
            first_example=example,
            length=run.data.length if phase.length is None else phase.length,
            batch_size=run.train.batch_size if phase.batch_size is None else phase.batch_size,
            microbatches=run.train.microbatches if phase.microbatches is None else phase.microbatches,
            mixture={name: rates[name] for name in dict.fromkeys([*run.data.sources, *rates]) if name in rates},
            dropout=phase.dropout,
        )
        found.append(stage)
        step, example = end, example + (end - step) * stage.batch_size
    return tuple(found)


def places(source: Any) -> tuple[str, ...]:
    """The fields of a source that say where it lies, and nothing of what it is."""
    if isinstance(source, JsonLines):
        return ("path", "validation")
    return tuple(name for name in ("path", "data_dir") if hasattr(source, name))


def read_sources(run: Run) -> dict[str, Any]:
    """The sources of a run with a rate above 0 in some stage: what is prepared and read."""
    mixtures = [stage.mixture for stage in stages(run)]
    return {name: s for name, s in run.data.sources.items() if any(m.get(name, not m) > 0 for m in mixtures)}


def has_examples(run: Run) -> bool:
    """Whether a source has examples with inputs and targets."""
    return any(isinstance(source, ExampleSource) for source in run.data.sources.values())


def target_length(run: Run, length: int) -> int:
    """Slots for targets in a row of `length`; in an encoder-decoder the length of the decoder's row."""
    if has_examples(run) and run.data.examples.target_length and isinstance(run.model, settings.EncoderDecoder):
        return run.data.examples.target_length
    return run.objective.target_length(length)


def from_dict(tree: Any) -> Run:
    """The `Run` that a ConfigDict or a JSON tree describes.

    Raises:
      UserError: an unknown field (the nearest name is given), a missing one, or a value of the wrong type.
    """
    if isinstance(tree, ml_collections.ConfigDict):
        tree = tree.to_dict()
    run = trees.parse(Run, tree, "config")
    checks.run(run, functools.partial(stages, run), functools.partial(target_length, run))
    return run


def model_from_dict(tree: Any, where: str) -> Any:
    """The settings of a model that a JSON tree describes; `where` is what errors call it. Raises as `from_dict`."""
    return trees.parse(typing.get_type_hints(Run)["model"], tree, where)


def choose(table: dict[str, Any], name: str) -> Any:
    """The entry of a config file's table of sizes.

    Raises:
      UserError: there is none of that name.
    """
    if name not in table:
        raise UserError(f"there is no size '{name}' in this config: {nearest(name, table)}")
    return table[name]


def resolve(tree: Any, config_file: str, overridden: Collection[str] = ()) -> Run:
    """The checked `Run` of a config file's tree, its relative paths made absolute from the file's folder.

    Args:
      overridden: the fields, as `train.init_from`, whose relative paths count from the working directory instead.
    """
    run = from_dict(tree)
    folder = os.path.dirname(os.path.abspath(config_file))

    def absolute(path: str, field: str) -> str:
        if path.startswith(PACKAGE):
            return os.path.join(os.path.dirname(os.path.abspath(plm_jax.__file__)), path.removeprefix(PACKAGE))
        if not path or "://" in path or os.path.isabs(path):
            return path
        return os.path.abspath(path if field in overridden else os.path.join(folder, path))

    sources = {
        name: dataclasses.replace(
            source,
            **{place: absolute(getattr(source, place), f"data.sources.{name}.{place}") for place in places(source)},
        )
        for name, source in run.data.sources.items()
    }
    scheme, colon, files = run.vocabulary.spec.partition(":")
    spec = scheme + colon + ",".join(absolute(file, "vocabulary.spec") for file in files.split(","))
    cache_dir = absolute(run.data.cache_dir, "data.cache_dir")
    return dataclasses.replace(
        run,
        data=dataclasses.replace(run.data, cache_dir=cache_dir, sources=sources),
        vocabulary=dataclasses.replace(run.vocabulary, spec=spec),
        train=dataclasses.replace(run.train, init_from=absolute(run.train.init_from, "train.init_from")),
    )
