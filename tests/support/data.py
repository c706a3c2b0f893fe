"""Runs over caches, their readers, and the rows of batches."""

import dataclasses

import pytest

from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.data import reader


def changed(run, **sections):
    """Returns the run with changed sections or fields of sections, such as `data={"length": 16}`."""
    replaced = {
        name: dataclasses.replace(getattr(run, name), **fields) if isinstance(fields, dict) else fields
        for name, fields in sections.items()
    }
    return dataclasses.replace(run, **replaced)


def assert_rejected(message, run, **sections):
    """Asserts that the config of the changed run is an error with this message."""
    with pytest.raises(UserError, match=message):
        config.from_dict(config.to_dict(changed(run, **sections)))


def open_reader(run, **options):
    """Returns the reader of a run, whose config survives being saved."""
    assert config.from_dict(config.to_dict(run)) == run
    return reader.Reader(config.reader_config(run), **options)


def unstack(batch):
    """Returns the rows of a batch."""
    return [{name: value[i] for name, value in batch.items()} for i in range(len(next(iter(batch.values()))))]


def assert_like_blank(run, batch, length=None):
    """Asserts that a batch has the names, shapes and types of the run's blank batch."""
    blank = reader.blank_batch(config.reader_config(run), length or run.data.length)
    shapes = [{name: (value.shape[1:], value.dtype) for name, value in of.items()} for of in (blank, batch)]
    assert shapes[0] == shapes[1]
