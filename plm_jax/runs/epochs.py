"""Conversion of `train.epochs`, a length of training in epochs, to a number of steps."""

import dataclasses
import math

from plm_jax import config
from plm_jax.common import progress, trees
from plm_jax.data.reader import Reader

# Number of steps so large that no phase's end is rounded.
_MANY = 2**30


def resolve_steps(run: config.Run) -> config.Run:
    """Returns the run; if `train.epochs` is set, `train.steps` is computed from it and rounded up.

    An epoch reads as many rows as all sources have together. A mixture with rates reads some sources more often and
    others less often. If phases differ in row length or batch size, an epoch takes a different number of steps in each;
    every phase keeps its share of all steps.

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
