"""Everything that a run is."""

from dataclasses import dataclass

from plm_jax import objectives
from plm_jax.config.data import Data, Vocabulary
from plm_jax.config.optimizers import Optimizer
from plm_jax.config.schedules import Schedule
from plm_jax.config.training import Checkpoint, Evaluation, Mesh, Precision, Train
from plm_jax.models.settings import Model


@dataclass(frozen=True)
class Run:
    """The whole config of a run: model, objective, data, optimizer and all else."""

    model: Model
    objective: objectives.Objective
    data: Data
    vocabulary: Vocabulary
    optimizer: Optimizer
    schedule: Schedule
    train: Train
    mesh: Mesh = Mesh()
    precision: Precision = Precision()
    checkpoint: Checkpoint = Checkpoint()
    evaluation: Evaluation = Evaluation()
