"""Settings of training: steps, batches and phases, incidents, checkpoints and validation."""

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from plm_jax.common import ranges, seeds
from plm_jax.common.errors import UserError, nearest
from plm_jax.generation.decoding_config import DecodingConfig
from plm_jax.losses import LossWrapper
from plm_jax.training.mesh import MeshConfig
from plm_jax.training.optimizers import OptimizerConfig
from plm_jax.training.state import AverageConfig


@dataclass(frozen=True)
class PhaseConfig:
    """Phase of a run. Fields that are not set have the values of the config.

    Attributes:
      until: fraction of the run's steps at which the phase ends; 1 for the last phase.
      length: number of tokens in a row.
      batch_size: number of rows in the global batch.
      microbatches: number of microbatches that a batch is divided into.
      mixture: rate of each source.
      dropout: rate of every dropout layer.
      objective: fields of the objective that change, with their values, such as `{"rate": 0.3}`; the arrays of a batch
        must have the same names and dtypes as in the other phases, but may have other lengths.
      mesh: sizes of the mesh axes that change, by name; the state is resharded at the beginning of the phase.
    """

    until: ranges.ShareAboveZero
    length: ranges.Length | None = None
    batch_size: ranges.Batch | None = None
    microbatches: ranges.Batch | None = None
    mixture: dict[str, ranges.MixtureRate] | None = None
    dropout: ranges.ShareBelowOne | None = None
    objective: dict[str, Any] = field(default_factory=dict)
    mesh: dict[str, Annotated[int, ranges.Range(1, 2**20, also=-1)]] | None = None

    def __post_init__(self):
        axes = [axis.name for axis in dataclasses.fields(MeshConfig) if isinstance(axis.default, int)]
        for axis in self.mesh or {}:
            if axis not in axes:
                raise UserError(f"a phase of config.train.phases has mesh axis '{axis}': {nearest(axis, axes)}")


@dataclass(frozen=True)
class IncidentsConfig:
    """Handling of steps with a spike, or with a loss or gradients that are not finite.

    Up to 1000 such steps are recorded in the folder `incidents` of the run directory. The update of a step that is not
    finite is skipped, and the run continues with the next batch. A spike is a loss or a gradient norm that exceeds its
    mean over the last `window` steps by more than `deviations` times the mean absolute deviation of these steps. This
    deviation is taken to be at least 1 % of the mean and at least 0.001. The first `window` steps of a phase are never
    spikes.

    Attributes:
      spikes: handling of spikes: `record` only records them; `skip` also skips the update; `roll_back` restores the
        weights and the optimizer from the last checkpoint at a multiple of `checkpoint.save_every` and continues with
        the next batch. With `roll_back`, the host waits for each step.
      window: number of recent steps that a step is compared with.
      deviations: number of mean absolute deviations above the mean from which a step counts as a spike.
      max_consecutive: maximum number of consecutive steps without an update; the run fails at the next one.
    """

    spikes: Literal["record", "skip", "roll_back"] = "record"
    window: Annotated[int, ranges.Range(2, 10**6)] = 128
    deviations: ranges.Positive = 10.0
    max_consecutive: ranges.CountOrZero = 10


@dataclass(frozen=True)
class AuditsConfig:
    """Audits for silent data corruption, which check that the devices compute correctly.

    An audit computes the gradients of a batch twice and compares their bits. A difference is only reported. The audit
    then lets each device compute the same fixed block of a transformer. If the results of a device differ from those of
    the majority, the run fails with an error that names the device. If there is too little memory, the audit is left
    out.

    Attributes:
      every: number of steps between audits; 0: none at regular intervals.
      at_incidents: whether a step with a spike or with non-finite values is audited, unless the last audit was less
        than `incidents.window` steps ago.
      libtpu_checker: whether the gradients of an audit are also checked by libtpu, which runs every instruction twice
        and logs differences; only on TPUs.
    """

    every: ranges.StepsOrZero = 0
    at_incidents: bool = True
    libtpu_checker: bool = False


@dataclass(frozen=True)
class ReferenceConfig:
    """A frozen second model that the loss reads, such as the teacher of a distillation.

    Its parameters are sharded like those of the model, and checkpoints record only their hash.

    Attributes:
      source: run directory, checkpoint, converted or Hugging Face directory, or `hf:ORG/NAME[@REVISION]`.
      dtype: dtype of its parameters on the devices; its activations have the dtype `precision.compute`.
    """

    source: str
    dtype: Literal["float32", "bfloat16"] = "float32"


@dataclass(frozen=True)
class UpdateConfig:
    """Update of parameters with its own loss; a step may make several updates.

    Attributes:
      name: name in metrics, such as `loss/NAME`, and messages.
      loss: wrapper of the objective's loss; the update minimizes its result. None: the objective's own loss.
      trainable: regular expressions, as in `train.trainable`, of the parameters that the update trains. Several updates
        may train a parameter, each with its own moments.
      optimizer: optimizer of these parameters; None: the optimizer of the config. The learning rate always comes from
        the config's schedule.
    """

    name: str
    loss: LossWrapper | None = None
    trainable: tuple[str, ...] = (".*",)
    optimizer: OptimizerConfig | None = None


@dataclass(frozen=True)
class TrainConfig:
    """Length of training, batches, initial weights and logging.

    Attributes:
      steps: number of training steps; if `epochs` is set, the number is computed from `epochs`.
      epochs: length of training in epochs; an epoch reads as many rows as all sources have together. None: train for
        `steps`.
      batch_size: number of rows in the global batch.
      microbatches: number of microbatches that a batch is divided into; their gradients are accumulated.
      seed: seed of the initial weights, of dropout, and of the order and noise of the data; any signed 64-bit integer.
      log_every: number of steps between logged metrics.
      stall_minutes: minutes without a finished step after which each process reports what it is waiting for; 0: never.
        Steps that take at least ten times the median, and at least a second, are reported in any case.
      phases: phases of the run, in order; empty: a single phase with the values of the config.
      init_from: checkpoint, or model of the Hugging Face Hub (`hf:ORG/NAME`), from which the initial weights are
        loaded; empty: random initialization. If `init_names` is empty, no weights are loaded, and the checkpoint only
        provides the model of a config without one.
      init_names: regular expressions. Weights of `init_from` are loaded if their full name matches at least one of
        them. An entry (expression, name) loads the matching weights under another name, which may refer to groups of
        the expression, as in `re.sub`: `("decoder/(.*)", r"stack/\\1")`. A weight that matches several entries is
        loaded under each of their names.
      init_layers: for each layer of a stack, the index (from 0) of the layer of `init_from` from which it is loaded;
        empty: the same index. If layers share parameters (ALBERT), the indices count the stored layers.
      new_tokens: number of tokens at the end of the vocabulary that `init_from` lacks; their embeddings are drawn with
        a standard deviation of 0.02, and their biases are 0.
      reinitialize_top: number of layers at the top of each stack that are initialized randomly instead of from
        `init_from`.
      trainable: regular expressions; parameters whose full name matches any of them are trained, and all other
        parameters are frozen. Layers of a stack are distinguished by their numbers, as in `stack/blocks/11/.*`.
      references: frozen models that the loss reads, by name.
      loss: wrapper of the objective's loss in training, such as `distillation`; None: the objective's own loss.
        Validation always uses the objective's own loss.
      updates: updates of the parameters in each step, made one after another; empty: a single update, with `loss`,
        `trainable` and the optimizer of the config.
      average: moving average of the parameters, which is saved in checkpoints and validated next to the parameters;
        None: no average.
      z_loss: weight of the squared logarithm of the softmax normalizer in the loss.
      label_smoothing: share of the target probability that is spread evenly over the vocabulary.
      prng: random number generator of JAX. `rbg` is faster on TPUs, but losses then depend on the mesh.
      incidents: handling of spikes and of steps that are not finite.
      audits: audits for silent data corruption.
      log_norms: whether the norms of the gradients, parameters and updates of each layer are logged.
      profile_steps: steps that `jax.profiler` traces, in `profile` in the run directory; consecutive steps share a
        trace.
      wandb_project: project of Weights & Biases to which metrics are also logged; empty: no logging to W&B.
    """

    steps: ranges.StepsOrZero = field(default=0, kw_only=True)
    epochs: Annotated[float, ranges.Range(0, 1e9, above=True)] | None = field(default=None, kw_only=True)
    batch_size: ranges.Batch
    microbatches: ranges.Batch = 1
    seed: seeds.Seed = 0
    log_every: ranges.Steps = 10
    stall_minutes: ranges.Scale = 10.0
    phases: tuple[PhaseConfig, ...] = ()
    init_from: str = ""
    init_names: tuple[str | tuple[str, str], ...] = (".*",)
    init_layers: tuple[Annotated[int, ranges.Range(0, 4096)], ...] = ()
    new_tokens: ranges.LengthOrZero = 0
    reinitialize_top: Annotated[int, ranges.Range(0, 4096)] = 0
    trainable: tuple[str, ...] = (".*",)
    references: dict[str, ReferenceConfig] = field(default_factory=dict)
    loss: LossWrapper | None = None
    updates: tuple[UpdateConfig, ...] = ()
    average: AverageConfig | None = None
    z_loss: ranges.Scale = 0.0
    label_smoothing: ranges.ShareBelowOne = 0.0
    prng: Literal["threefry", "rbg"] = "threefry"
    incidents: IncidentsConfig = IncidentsConfig()
    audits: AuditsConfig = AuditsConfig()
    log_norms: bool = False
    profile_steps: tuple[ranges.Steps, ...] = ()
    wandb_project: str = ""

    def __post_init__(self):
        if self.epochs is None and self.steps < 1:
            raise UserError(
                f"config.train.steps is {self.steps}: must be at least 1, unless config.train.epochs is set"
            )
        untils = [phase.until for phase in self.phases]
        if untils and (untils != sorted(set(untils)) or untils[0] <= 0 or untils[-1] != 1.0):
            raise UserError(
                f"config.train.phases end at {untils}: the fractions must increase, and the last must be 1.0"
            )
        names = [update.name for update in self.updates]
        if len(set(names)) < len(names) or not all(re.fullmatch(r"[\w-]+", name) for name in names):
            raise UserError(
                f"config.train.updates have the names {names}: give each a name of its own, of letters, digits, '_' "
                "and '-'"
            )
        if self.loss is not None and self.loss.needs_updates and not self.updates:
            raise UserError(
                f"config.train.loss is '{self.loss.kind}': set it as the loss of one of config.train.updates"
            )
        if self.updates and (self.loss is not None or self.trainable != (".*",)):
            raise UserError(
                "config.train.updates have losses and parameters of their own: leave out config.train.loss and "
                "config.train.trainable"
            )


@dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints, which are saved every `save_every` steps and at the end of the run.

    Attributes:
      save_every: number of steps between checkpoints.
      save_minutes: maximum number of minutes between the starts of two saves; 0: no limit. This limit may cause saves
        at steps that are not multiples of `save_every`.
      keep_last: number of newest checkpoints to keep. The best weights, and the checkpoint to which a spike rolls the
        run back, are also kept.
      keep_every: also keep checkpoints at multiples of this number of steps; 0: keep no further checkpoints.
      grace_seconds: maximum number of seconds from a signal or a preemption notice to the end of the process.
      max_failures: number of consecutive failed saves after which the run fails; the time between attempts increases.
    """

    save_every: ranges.Steps = 1000
    save_minutes: ranges.Scale = 15.0
    keep_last: ranges.Count = 2
    keep_every: ranges.StepsOrZero = 0
    grace_seconds: ranges.Scale = 120.0
    max_failures: ranges.Count = 5


@dataclass(frozen=True)
class EvaluationConfig:
    """Validation during training, at the row length of the current phase and, if different, that of the last phase.

    Attributes:
      every: number of steps between validations; 0: never.
      batch_size: number of rows in a batch, rounded up to a multiple of the number of devices that split the rows.
      max_batches: maximum number of batches per validation and row length, divided among the sources in proportion to
        the mixture, with at least one per source; 0: all held-out rows. The loss is the mean over the losses of the
        sources, weighted by the rates of the mixture. Labeled examples are always read in full.
      objective: fields of the objective that have other values in validation and `evaluate`, such as `{"rate": 0.15}`;
        all remaining fields have the values of the run's `objective`, not the values of a phase.
      select: validation metric `SOURCE/METRIC` that selects the best weights, which are kept in `checkpoints/best`; the
        first of equal values wins. `common.metrics` declares the direction of each metric.
      patience: number of consecutive validations without a better value of `select` after which training ends; 0: train
        all steps. In a sweep, it must be 0.
      tasks: tasks, `SOURCE` or `SOURCE:SPLIT`, that are evaluated at each checkpoint, with samples of generated text;
        the run starts `evaluate --watch` for this, as a child of its first process, on the CPU of that host.
      decoding: default decoding settings of `evaluate` and `generate`.
    """

    every: ranges.StepsOrZero = 0
    batch_size: ranges.Batch = 32
    max_batches: ranges.CountOrZero = 0
    objective: dict[str, Any] = field(default_factory=dict)
    select: str = ""
    patience: ranges.CountOrZero = 0
    tasks: tuple[str, ...] = ()
    decoding: DecodingConfig = DecodingConfig()

    def __post_init__(self):
        if self.select and not self.every:
            raise UserError(f"config.evaluation.select is '{self.select}': set config.evaluation.every too")
        if self.patience and not self.select:
            raise UserError(f"config.evaluation.patience is {self.patience}: set config.evaluation.select too")
