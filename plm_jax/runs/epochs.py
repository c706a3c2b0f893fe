"""`train.epochs`: a length of training that is told in epochs, as steps."""

import dataclasses
import math

from plm_jax import config
from plm_jax.common import progress, trees
from plm_jax.data.reader import Reader

# So many steps that no phase's end is rounded.
_MANY = 2**30


def resolved(run: config.Run) -> config.Run:
    """The run with the steps in which it reads all training rows of its sources together `train.epochs` times.

    Of a mixture with rates of its own some sources are then read more often, others less. Phases of other lengths or
    batch sizes have other numbers of steps an epoch; each has its share of all steps.

    Raises:
      UserError: as `Reader`: a cache is missing, or does not fit the config.
    """
    if run.train.epochs is None:
        return run
    many = dataclasses.replace(run, train=dataclasses.replace(run.train, steps=_MANY))
    with progress.doing("counting the rows of an epoch"):
        reader = Reader(config.reader_config(many))
    epochs_of_many = 0.0
    for stage in config.resolve_phases(many):
        rows = sum(reader.num_rows("train", length=stage.length).values())
        epochs_of_many += (stage.end_step - stage.first_step) * stage.batch_size / rows
    # Of numbers that divide the quotient may be a little more than a whole one.
    steps = max(1, math.ceil(run.train.epochs * _MANY / epochs_of_many - 1e-6))
    train = dataclasses.replace(run.train, steps=steps)
    return dataclasses.replace(run, train=trees.checked(train, "config.train"))
