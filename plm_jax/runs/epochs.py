"""`train.epochs`: a length of training in epochs, converted to steps."""

import dataclasses
import math

from plm_jax import config
from plm_jax.common import progress, trees
from plm_jax.data.reader import Reader

# Number of steps so large that no phase's end is rounded.
_MANY = 2**30


def resolve_steps(run: config.Run) -> config.Run:
    """Returns the run with the steps in which it reads the training rows of all sources together `train.epochs` times.

    A mixture with rates reads some sources more often and others less often. Phases of different lengths or batch sizes
    have different numbers of steps per epoch; each has its share of all steps.

    Raises:
      UserError: a cache is missing, or does not fit the config.
    """
    if run.train.epochs is None:
        return run
    many = dataclasses.replace(run, train=dataclasses.replace(run.train, steps=_MANY))
    with progress.doing("counting the rows of an epoch"):
        reader = Reader(config.reader_config(many))
    epochs_of_many = 0.0
    for phase in config.resolve_phases(many):
        rows = sum(reader.training_rows(name, phase).num_rows for name in reader.sources)
        epochs_of_many += (phase.end_step - phase.first_step) * phase.batch_size / rows
    # The quotient of numbers that divide may exceed an integer slightly.
    steps = max(1, math.ceil(run.train.epochs * _MANY / epochs_of_many - 1e-6))
    train = dataclasses.replace(run.train, steps=steps)
    return dataclasses.replace(run, train=trees.checked(train, "config.train"))
