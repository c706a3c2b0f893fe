"""Parts that all sweeps of ablations have: values that depend on the size, and the rows of a paper's table."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from plm_jax import config
from plm_jax.experiments.comparison import Published
from plm_jax.experiments.setups import Setup, of_run


def by_size(**values: Any) -> Callable[[str], Any]:
    """Returns a page's `base` or `compared`: the value for a size, by default for the first one."""
    default = next(iter(values))
    return lambda size=default: config.choose(values, size)


def variants(setup: Setup, changes: Mapping[str, Mapping[str, Any]]) -> dict[str, Setup]:
    """Returns a set-up for each run by name: `setup` with some fields replaced."""
    return {name: dataclasses.replace(setup, **fields) for name, fields in changes.items()}


def table(
    source: str,
    columns: Sequence[str],
    rows: Mapping[str, str | None],
    setups: Setup | Mapping[str, Setup] | None = None,
    tuning: Mapping[str, Setup] = {},
    averages: Mapping[str, Collection[str]] = {},
    missing: str = "",
) -> Callable[[], list[Published]]:
    """Returns a page's `published`: the rows of a paper's table.

    Args:
      source: paper and table.
      columns: names of the metrics.
      rows: figures by run name, separated by spaces; None for a run that the paper does not have.
      setups: the paper's set-up for pretraining, one for every run or one for each run.
      tuning: set-ups of tuned runs, by name suffix.
      averages: `Published.averages`.
      missing: why the paper has no figures for the other runs.
    """

    def published() -> list[Published]:
        published_rows = []
        for name, figures in rows.items():
            if figures is None:
                published_rows.append(Published(name, {}, missing))
                continue
            setup = setups if isinstance(setups, Setup) else setups[name]
            named = dict(zip(columns, map(float, figures.split()), strict=True))
            published_rows.append(Published(name, named, source, of_run(name, setup, tuning), averages))
        return published_rows

    return published


def unpublished(names: Collection[str], reason: str) -> Callable[[], list[Published]]:
    """Returns the `published` of a page whose runs have no figures in a paper."""
    return table("", (), dict.fromkeys(names), missing=reason)
