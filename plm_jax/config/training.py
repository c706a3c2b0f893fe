"""How a run trains: its steps, phases and devices, and when it saves and validates."""

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Literal

from plm_jax.common import ranges, seeds
from plm_jax.common.errors import UserError, nearest
from plm_jax.generation.decoding_config import DecodingConfig
from plm_jax.training.mesh import MeshConfig


@dataclass(frozen=True)
class PhaseConfig:
    """A stretch of the run, up to the fraction `until` of its steps; what is not set stays as in the config.

    Attributes:
      mesh: sizes of axes of the mesh, by their names; where it begins, the state is laid out anew.
    """

    until: ranges.ShareAboveZero
    length: ranges.Length | None = None
    batch_size: ranges.Batch | None = None
    microbatches: ranges.Batch | None = None
    mixture: dict[str, ranges.MixtureRate] | None = None
    dropout: ranges.ShareBelowOne | None = None
    mesh: dict[str, Annotated[int, ranges.Range(1, 2**20, also=-1)]] | None = None

    def __post_init__(self):
        axes = [axis.name for axis in dataclasses.fields(MeshConfig) if isinstance(axis.default, int)]
        for axis in self.mesh or {}:
            if axis not in axes:
                raise UserError(f"a phase of config.train.phases has mesh axis '{axis}': {nearest(axis, axes)}")


@dataclass(frozen=True)
class IncidentsConfig:
    """What a run does about a step whose loss or gradients are not finite, or a spike; `W/incidents` has each of them.

    Numbers that are not finite leave the state as it was, and the run goes on with the next batch. A spike is a loss or
    a gradient norm above the mean of the last `window` steps of the same phase by more than `deviations` times their
    mean distance from it (which counts as at least a hundredth of the mean, and 0.001).

    Attributes:
      spikes: `record`: they change nothing; `skip`: they, too, leave the state as it was; `roll_back`: weights and
        optimizer become those of the last checkpoint at a multiple of `checkpoint.save_every`, and the run goes on with
        the next batch; each step is then waited for.
      most_in_a_row: steps without an update after which a run goes on; with one more it ends.
    """

    spikes: Literal["record", "skip", "roll_back"] = "record"
    window: Annotated[int, ranges.Range(2, 10**6)] = 128
    deviations: ranges.Positive = 10.0
    most_in_a_row: ranges.CountOrZero = 10


@dataclass(frozen=True)
class TrainConfig:
    """How long and in what batches a run trains, and what it begins with.

    Attributes:
      steps: how many; where `epochs` are given, their steps are put here when the caches are opened.
      epochs: how often all rows of all sources are read; None: `steps` says how long.
      batch_size: rows of the global batch; `microbatches` divides it, one after another within a step.
      seed: seed of the weights, of dropout, and of the order and noise of the data: any signed 64-bit integer.
      stall_minutes: after so many without a step each host says what it waits for (0: only once a step has taken ten
        times the median, and a second).
      init_from: any checkpoint to take weights from; of them the names that a regular expression in `init_names`
        matches whole: with none of these no weight is taken, but the model where the config has none of its own.
      new_tokens: of the vocabulary's last tokens how many `init_from` has no rows for: these are drawn with a standard
        deviation of 0.02.
      reinitialise_top: of these weights the layers at the top of each stack that are drawn anew, so many.
      trainable: the parameters that are trained, those whose names one of these regular expressions matches whole. The
        layers of a stack are told apart by their numbers, as in `stack/blocks/11/.*`. The others stay as they are.
      prng: `rbg` is faster on TPUs and gives up that losses are the same on every mesh.
      log_norms: whether rows of metrics have the norms of gradients, parameters and updates of each layer.
      profile_steps: of which `jax.profiler` writes a trace to `W/profile`, each with those that follow it in the list.
      wandb_project: of Weights & Biases, where the metrics go, too; empty: to none.
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
    init_names: tuple[str, ...] = (".*",)
    new_tokens: ranges.LengthOrZero = 0
    reinitialise_top: Annotated[int, ranges.Range(0, 4096)] = 0
    trainable: tuple[str, ...] = (".*",)
    z_loss: ranges.Scale = 0.0
    label_smoothing: ranges.ShareBelowOne = 0.0
    prng: Literal["threefry", "rbg"] = "threefry"
    incidents: IncidentsConfig = IncidentsConfig()
    log_norms: bool = False
    profile_steps: tuple[ranges.Steps, ...] = ()
    wandb_project: str = ""

    def __post_init__(self):
        if self.epochs is None and self.steps < 1:
            raise UserError(f"config.train.steps is {self.steps}: give at least 1, or set config.train.epochs")
        untils = [phase.until for phase in self.phases]
        if untils and (untils != sorted(set(untils)) or untils[0] <= 0 or untils[-1] != 1.0):
            raise UserError(f"config.train.phases end at {untils}: give rising fractions of which the last is 1.0")


@dataclass(frozen=True)
class CheckpointConfig:
    """Saved every `save_every` steps and at the end; the last `keep_last` stay, and each multiple of `keep_every`.

    Attributes:
      save_minutes: after so many since the last one began it is saved, too (0: never).
      grace_seconds: from a signal, or a preemption notice, to the end of the process at the latest.
      max_failures: so many saves that fail in a row end the run; each is tried again before, later and later.
    """

    save_every: ranges.Steps = 1000
    save_minutes: ranges.Scale = 15.0
    keep_last: ranges.Count = 2
    keep_every: ranges.StepsOrZero = 0
    grace_seconds: ranges.Scale = 120.0
    max_failures: ranges.Count = 5


@dataclass(frozen=True)
class EvaluationConfig:
    """Validation loss during training, in rows of the phase's length and, where it is another, of the last phase's.

    Attributes:
      every: after how many steps (0: never).
      max_batches: of all sources together, each of which has its share by the mixture's rates, but at least one batch
        (0: all that is held out). The whole is the mean of the sources' losses by these rates, which are of rows. Of
        labelled examples all are read.
      select: `SOURCE/METRIC`, of `validation/SOURCE/METRIC`: the weights of the step at which it was best stay in
        `checkpoints/best`, of several the first one. `common.metrics` declares the direction of each metric.
      tasks: SOURCE or SOURCE:SPLIT, which `evaluate --watch` scores at each checkpoint, with samples of what the model
        writes, in a process beside the run's first one, on the CPU of its host.
      decoding: how the model answers, in `evaluate` and, where nothing else is asked for, in `generate`.
    """

    every: ranges.StepsOrZero = 0
    batch_size: ranges.Batch = 32
    max_batches: ranges.CountOrZero = 0
    select: str = ""
    tasks: tuple[str, ...] = ()
    decoding: DecodingConfig = DecodingConfig()

    def __post_init__(self):
        if self.select and not self.every:
            raise UserError(f"config.evaluation.select is '{self.select}': set config.evaluation.every too")
