"""The pages of ablations: of each size every run makes a batch, and what is compared is there to be compared."""

import dataclasses
import inspect
import pathlib

import pytest

from plm_jax import config, objectives
from plm_jax.config import files as pages
from plm_jax.config.checks import refuse_unused
from plm_jax.data.reader import blank_batch
from plm_jax.experiments import comparison, setups, sweep

FOLDER = pathlib.Path(pages.FOLDER) / "ablations"


def sources(metric):
    """Returns the sources of a metric, SOURCE/METRIC or SOURCE:SPLIT/METRIC, or of several metrics."""
    if isinstance(metric, str):
        return {metric.partition("/")[0].partition(":")[0]}
    return set().union(*map(sources, metric))


def sized(name):
    page = pages.load(f"ablations/{name}")
    return "size" in inspect.signature(getattr(page.module, "overrides", lambda: None)).parameters


PAGES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__" and sized(path.stem))


@pytest.mark.parametrize("size", ["paper", "demo"])
@pytest.mark.parametrize("name", PAGES)
def test_every_run_can_be_trained_and_compared(name, size, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = f"ablations/{name}:{size}"
    by_name = {member.name: member for member in sweep.load_members(path, str(tmp_path / "runs"))}
    for member in by_name.values():
        run = member.run
        if run.model.is_placeholder:
            parent = by_name[pathlib.Path(member.parent).name].run
            # Of an ELECTRA, the discriminator is tuned.
            model = getattr(parent.model, "discriminator_model", parent.model)
            assert model.kind in run.objective.architectures
            continue
        if member.parent == run.train.init_from and pathlib.Path(member.parent).name in by_name:
            parent = by_name[pathlib.Path(member.parent).name].run
            assert run.model.with_dropout(0.0) == parent.model.with_dropout(0.0)
        refuse_unused(run)
        batch = blank_batch(config.reader_config(run), run.data.length)
        assert all(len(leaf) == 1 for leaf in batch.values())
    tables = sweep.load_comparisons(path, set(by_name))
    sweep.check_sources(path, tables, list(by_name.values()))
    read = {source for member in by_name.values() for source in config.read_sources(member.run)}

    metrics = [*tables["compared"].values(), *(baseline.metric for baseline in tables["baselines"])]
    assert metrics and all(sources(metric) <= read for metric in metrics)
    if size == "paper":
        # Rejects published runs that are not in the sweep.
        sweep.load_comparisons(f"ablations/{name}", set(by_name))
        figures = {figure for row in tables["published"] for figure in row.figures}
        assert not figures or figures & tables["compared"].keys()
        assert all(row.source for row in tables["published"])


def at_paper_scale(name, folder):
    """Returns the resolved configs of a page's runs by name, the published figures, and the names of the parents."""
    path = f"ablations/{name}:paper"
    members = sweep.load_members(path, str(folder))
    parents = {member.name: pathlib.Path(member.parent).name for member in members if member.parent}
    return (
        {member.name: member.run for member in members},
        sweep.load_comparisons(path, {m.name for m in members}),
        parents,
    )


@pytest.mark.parametrize("name", PAGES)
def test_every_run_with_published_figures_has_the_papers_setup_or_says_why_not(name, tmp_path):
    runs, tables, parents = at_paper_scale(name, tmp_path)
    rows = [row for row in tables["published"] if row.figures]
    stated = setups.by_run(rows)
    compared = {run for run in runs if any(comparison.counts_for(run, row.run) for row in rows)}
    assert stated.keys() == compared | {parents[run] for run in compared if run in parents}
    for run, setup in stated.items():
        differences = {difference.name: difference for difference in setups.differences(setup, runs[run])}
        unexplained = [difference for difference in differences.values() if not difference.reason]
        assert not unexplained, f"{run}: {unexplained}"
        assert setup.reasons.keys() <= differences.keys(), f"{run} gives reasons for what is the paper's"
        assert setup.source
    # A mean is over the tasks of the paper's mean.
    averages = {name: set(tasks) for row in tables["published"] for name, tasks in row.averages.items()}
    means = {name: sources(metric) for name, metric in tables["compared"].items()}
    assert {name: tasks for name, tasks in means.items() if len(tasks) > 1} == averages


@pytest.mark.parametrize(
    "page, run, change, name",
    [
        ("t5_corpora", "c4", {"objective": objectives.SpanCorruption()}, "objective.kind"),
        ("t5_repeats", "tokens_2_27-glue", {"train": {"batch_size": 2048}}, "batch_size"),
        ("t5_mixing", "k_19", {"train": {"steps": 2**19}}, "steps"),
        ("t5_objectives", "replace_spans-squad", {"schedule": config.RsqrtSchedule(1.0, 10_000)}, "learning_rate"),
        ("roberta_batch", "batch_8000", {"schedule": config.LinearSchedule(7e-4, 2500)}, "learning_rate"),
        ("albert_pairs", "sentence_order", {"data": {"layout": config.SentencePairs()}}, "rows.duplicates"),
        ("gpt1_lm_coefficient", "lambda_0.5-mrpc", {"train": {"epochs": 5.0}}, "epochs"),
        ("gpt1_lm_coefficient", "lambda_0.5-mrpc", {"data": {"length": 128}}, "length"),
        ("gpt1_lm_coefficient", "pretrained", {"train": {"batch_size": 32}}, "batch_size"),
        ("mask_replacement", "mask_80_10_10", {"train": {"phases": ()}}, "length"),
    ],
)
def test_another_setup_is_noticed(page, run, change, name, tmp_path):
    runs, tables, _ = at_paper_scale(page, tmp_path)
    sections = {
        section: dataclasses.replace(getattr(runs[run], section), **fields) if isinstance(fields, dict) else fields
        for section, fields in change.items()
    }
    changed = dataclasses.replace(runs[run], **sections)
    differences = setups.differences(setups.by_run(tables["published"])[run], changed)
    assert name in {difference.name for difference in differences if not difference.reason}
