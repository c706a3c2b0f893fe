"""The pages of ablations: of each size every run makes a batch, and what is compared is there to be compared."""

import inspect
import pathlib

import pytest

from plm_jax import config
from plm_jax.config import pages
from plm_jax.config.checks import refuse_unused
from plm_jax.data.reader import blank_batch
from plm_jax.experiments import sweep

FOLDER = pathlib.Path(pages.FOLDER) / "ablations"


def sized(name):
    page = pages.load(f"ablations/{name}")
    return "size" in inspect.signature(getattr(page.module, "overrides", lambda: None)).parameters


PAGES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__" and sized(path.stem))


@pytest.mark.parametrize("size", ["paper", "demo"])
@pytest.mark.parametrize("name", PAGES)
def test_every_run_can_be_trained_and_compared(name, size, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = f"ablations/{name}:{size}"
    found = {member.name: member for member in sweep.members(path, str(tmp_path / "runs"))}
    for member in found.values():
        run = member.run
        if run.model.stands_in:
            parent = found[pathlib.Path(member.parent).name].run
            assert parent.model.kind in run.objective.architectures
            continue
        if member.parent and pathlib.Path(member.parent).name in found:
            parent = found[pathlib.Path(member.parent).name].run
            assert run.model.with_dropout(0.0) == parent.model.with_dropout(0.0)
        refuse_unused(run)
        batch = blank_batch(run, run.data.length)
        assert all(len(leaf) == 1 for leaf in batch.values())
    others = sweep.others(path, set(found))
    read = {source for member in found.values() for source in config.read_sources(member.run)}

    def sources(metric):
        return {metric.partition("/")[0]} if isinstance(metric, str) else set().union(*map(sources, metric))

    metrics = [*others["compared"].values(), *(rival.metric for rival in others["rivals"])]
    assert metrics and all(sources(metric) <= read for metric in metrics)
    if size == "paper":
        sweep.others(f"ablations/{name}", set(found))  # There every published run must be one of the sweep's.
        figures = {figure for row in others["published"] for figure in row.figures}
        assert not figures or figures & others["compared"].keys()
        assert all(row.source for row in others["published"])
