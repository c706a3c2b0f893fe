"""What the ablations of T5's paper share (Raffel et al. 2020 §3.1): the baseline, its tasks, the columns of its tables.

The baseline is `t5:base` with 2^19 steps of 128 rows of 512 tokens of C4, each benchmark tuned apart. The paper tells
of each task the best checkpoint, here it is the last. In a demo a T5 of 2 + 2 layers reads speeches for 200 steps, and
is tuned on film reviews. This page is read by the others of the folder.
"""

from collections.abc import Iterator, Mapping

from plm_jax.configs.ablations import downstream
from plm_jax.experiments.comparison import Published

SOURCE = "Raffel et al. 2020 (arXiv:1910.10683), table"
COLUMNS = tuple(downstream.TEXT_TO_TEXT_METRICS)
# Table 1: the mean over ten runs; the deviation of the seeds is not at hand from the paper itself.
BASELINE = "83.28 19.24 80.88 71.36 26.98 39.82 27.65"
SCALES = {"paper": {"train.steps": 2**19, "train.batch_size": 128}, "demo": {"train.steps": 200}}
base = downstream.bases(paper="../t5.py:base", demo="../demo.py:t5")


def arm(name: str, changes: downstream.Changes, size: str) -> Iterator[tuple[str, downstream.Changes]]:
    """A variant of the baseline, and what it is tuned on."""
    yield name, SCALES[size] | changes
    yield from tuned(name, size)


def tuned(name: str, size: str) -> Iterator[tuple[str, downstream.Changes]]:
    """What the run of a variant is tuned on."""
    if size == "demo":
        yield downstream.in_words(name, steps=150)
    else:
        yield from downstream.of_text_to_text(name)


def published(table: int, rows: Mapping[str, str]) -> list[Published]:
    """Rows of a table: of each variant the figures of COLUMNS, parted by spaces; empty: they are not at hand."""
    return [
        Published(name, dict(zip(COLUMNS, map(float, figures.split()), strict=bool(figures))), f"{SOURCE} {table}")
        for name, figures in rows.items()
    ]


def compared(size: str = "paper") -> dict[str, object]:
    """Our metrics by the paper's names; in a demo the reviews stand beside GLUE, of which they are most like a task."""
    return {"GLUE": "sentiment/accuracy"} if size == "demo" else downstream.TEXT_TO_TEXT_METRICS
