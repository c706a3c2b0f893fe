"""Runs in which each task of seqio's mixtures is a source of its own."""

import dataclasses
from collections.abc import Mapping

from plm_jax.common import trees
from plm_jax.common.errors import UserError
from plm_jax.config.phases import read_sources, resolve_phases
from plm_jax.config.reading import from_dict
from plm_jax.config.run import Run
from plm_jax.data.sources import task_mixtures


def expand_mixtures(run: Run, parts: Mapping[str, task_mixtures.Parts] | None = None) -> Run:
    """Returns the run with each source that is a seqio mixture replaced by one source per task.

    The tasks divide the rate of the mixture in proportion to their rates. Other sources are unchanged. A run without
    mixtures is returned as it is.

    Args:
      parts: for each source that is a mixture, its tasks and their rates; None: those that the prepared caches record.

    Raises:
      UserError: the source of a task has the name of another source, there are other sources next to a mixture and no
        rates, or the new config is invalid.
    """
    parts = task_mixtures.prepared(run.data.cache_dir, read_sources(run)) if parts is None else parts
    if not parts:
        return run
    if len(run.data.sources) > 1 and not all(phase.mixture for phase in resolve_phases(run)):
        raise UserError(
            f"'{next(iter(parts))}' is a mixture among other sources: set the rate of each in config.data.mixture"
        )
    phases = tuple(
        phase
        if phase.mixture is None
        else dataclasses.replace(phase, mixture=task_mixtures.expanded_rates(phase.mixture, run.data.sources, parts))
        for phase in run.train.phases
    )
    train = dataclasses.replace(run.train, phases=phases)
    # Checked again, since settings that are valid for one source may be invalid for several.
    return from_dict(trees.to_dict(dataclasses.replace(run, data=task_mixtures.expanded(run.data, parts), train=train)))
