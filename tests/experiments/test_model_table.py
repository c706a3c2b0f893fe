"""The table of published models, and that the docs have it."""

import pathlib
import re
from dataclasses import replace

import pytest

from plm_jax import config, models
from plm_jax.experiments import model_table
from plm_jax.hub.family import Family
from tests.support.roles import built_in

DOCS = pathlib.Path(__file__).parents[2] / "docs/reference/models.md"
CONFIG = """
from plm_jax import config, objectives
from plm_jax import models
PUBLISHED = {"one": (20, "20"), "two": (21, "21")}
SOURCE = "somewhere"
def get_config(size):
    model = models.DecoderConfig(
        embedding=models.EmbeddingConfig(7, 4), feed_forward=models.FeedForwardConfig(8),
        stack=models.StackConfig(1),
        attention=models.AttentionConfig(2, 2, models.LearnedPositions(16), bias=size == "one"),
    )
    make = config.PhaseConfig
    phases = (make(until=0.5, length=8), make(until=0.75), make(until=1.0, batch_size=2000))
    return config.to_config_dict(config.Run(
        model=model, objective=objectives.Causal(), vocabulary=config.VocabularyConfig("bytes"),
        data=config.DataConfig(cache_dir="c", length=16, sources={"a": config.TextFiles("a")}),
        optimizer=config.LambConfig(), schedule=config.CosineSchedule(1.5e-4),
        train=config.TrainConfig(steps=4000, batch_size=10, phases=phases),
    ))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "small.py").write_text(CONFIG)
    (tmp_path / "demo.py").write_text("raise_no_error = 1\n")
    (tmp_path / "notes.txt").write_text("")
    return str(tmp_path)


def test_the_page_of_models_has_this_table(monkeypatch):
    """The counts are the published ones, with which tests/test_configs.py compares ours."""
    entries = model_table.entries()
    published = {entry.run.model: entry.counted for entry in entries}
    family_of, families = model_table._hugging_face, {}

    def family(model):
        """Looks the family up once for models that differ in numbers only."""
        alike = re.sub(r"\d[\d.e+-]*", "", repr(model))
        if alike not in families:
            families[alike] = family_of(model)
        return families[alike]

    monkeypatch.setattr(Family, "choices", built_in(Family))
    monkeypatch.setattr(model_table, "_hugging_face", family)
    monkeypatch.setattr(model_table, "count", published.__getitem__)
    table = model_table.table(entries)
    assert len(table.splitlines()) > 80
    assert f"\n\n{table}\n" in DOCS.read_text(), "run python docs/reference.py"


def test_a_row_has_size_recipe_and_source(folder):
    lines = model_table.table(model_table.entries(folder)).splitlines()
    # Embeddings, positions, attention with its biases, feed-forward, three norms.
    count = 7 * 4 + 16 * 4 + 4 * (16 + 4) + 4 * 8 + 8 + 8 * 4 + 4 + 3 * 8
    recipe = "causal | 10 → 2,000 × 8 → 16 × 4,000 | Lamb 0.00015, cosine"
    assert lines[2:] == [
        f"| `small:one` | {count} | 20 | {recipe} | GPT-2 | somewhere |",
        f"| `small:two` | {count - 16} | 21 | {recipe} | – | somewhere |",
    ]
    assert {line.count("|") for line in lines} == {len(model_table.COLUMNS) + 1}


def test_a_row_names_sentence_pairs(folder):
    entry = model_table.entries(folder)[0]
    run = replace(entry.run, data=replace(entry.run.data, layout=config.SentencePairs()))
    assert "| causal, sentence_pairs |" in model_table.table([replace(entry, run=run)])


def test_tied_weights_count_once(folder):
    model = model_table.entries(folder)[0].run.model
    untied = replace(model, head=models.VocabularyHead(tied=False))
    assert model_table.count(untied) == model_table.count(model) + 7 * 4
