"""The config of a run."""

from dataclasses import dataclass

from plm_jax import objectives
from plm_jax.config.training import CheckpointConfig, EvaluationConfig, TrainConfig, UpdateConfig
from plm_jax.data.config import DataConfig
from plm_jax.data.vocabulary_config import VocabularyConfig
from plm_jax.models import ModelConfig
from plm_jax.training.mesh import MeshConfig
from plm_jax.training.optimizers import OptimizerConfig
from plm_jax.training.program import PrecisionConfig
from plm_jax.training.schedules import Schedule


@dataclass(frozen=True)
class Run:
    """Complete config of a run."""

    model: ModelConfig
    objective: objectives.Objective
    data: DataConfig
    vocabulary: VocabularyConfig
    optimizer: OptimizerConfig
    schedule: Schedule
    train: TrainConfig
    mesh: MeshConfig = MeshConfig()
    precision: PrecisionConfig = PrecisionConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    @property
    def updates(self) -> tuple[UpdateConfig, ...]:
        """Updates of a step in order: `train.updates`, or one update with an empty name and the settings of `train`."""
        return self.train.updates or (UpdateConfig("", self.train.loss, self.train.trainable),)

    def optimizer_of(self, update: UpdateConfig) -> OptimizerConfig:
        """Returns the optimizer settings of an update: its own, or else those of the run."""
        return update.optimizer or self.optimizer
