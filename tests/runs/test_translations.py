"""Runs on pairs of translations and on text of each language: resuming, evaluation and the description of a step."""

import dataclasses
import json
import re

import numpy as np
import pytest

from plm_jax import config, losses, models, objectives
from plm_jax.data.reader import Reader
from plm_jax.evaluation import perplexity
from plm_jax.experiments import examples
from plm_jax.inference.language_model import load
from plm_jax.models import registry
from plm_jax.runs import loop, preparation
from tests.support import runs, tiny
from tests.support.random_models import random_params

XLM = dataclasses.replace(tiny.BERT, head=models.VocabularyHead(bias=True), pooler=models.NoHead())


@pytest.fixture
def run(tiny_copy):
    """A prepared run of an XLM on two texts and on pairs whose halves are the same letters in lower and upper case."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdef"), rng.integers(1, 12))) for _ in range(60)]
    (tiny_copy / "pairs.jsonl").write_text("".join(json.dumps({"x": w, "y": w.upper()}) + "\n" for w in words))
    plain = tiny.PLAIN
    data = dataclasses.replace(
        plain.data,
        cache_dir="cache_pairs",
        sources=plain.data.sources | {"pairs": config.RecordTable("pairs.jsonl", ("x", "y"))},
        mixture={"a": 1.0, "b": 1.0, "pairs": 2.0},
        token_types={"a": 0, "b": 1, "x": 0, "y": 1},
        layout=config.Translations(swapped=0.5),
    )
    run = runs.make(tiny_copy, dataclasses.replace(plain, model=XLM, objective=objectives.TranslationLM(), data=data))
    preparation.prepare(run, show_progress=False)
    return run


def test_run_on_pairs_and_texts_resumes_exactly_and_is_described(run, tmp_path):
    workdir, again = tmp_path / "run", tmp_path / "again"
    loop.pretrain(run, str(workdir))
    runs.copy_at(workdir, again, 3)
    loop.pretrain(run, str(again))
    for name in ("train/batch_digest", "train/loss"):
        assert runs.column(again, name) == runs.column(workdir, name)
        assert len(set(runs.column(again, name).values())) == 6

    lines = "\n".join(examples.of_step(str(workdir), 5))
    assert "equal to metrics.jsonl" in lines
    rows = lines.split("\n\n")[1:]
    assert len(rows) == 8
    for row in rows:
        assert re.search(r"example \d+ of (a|b|pairs); documents \S+:\d+ \(\w+\.jsonl, \d+\)", row)
        is_pair = " of pairs;" in row
        assert bool(re.search(r"  token_types: [01] ×\d+, [01] ×\d+$", row, re.MULTILINE)) == is_pair
        assert (row.count(" 0, 1, 2") == 2) == is_pair  # Positions.

    lm = load(workdir)
    metrics = {name: perplexity.evaluate(lm, run, name, show_progress=False) for name in ("a", "pairs")}
    assert all(0 < of_source["loss"] < 8 and of_source["tokens"] > 20 for of_source in metrics.values())


def test_model_reads_the_positions_and_token_types_of_a_row(run):
    module, params = registry.build(XLM), random_params(XLM, seed=0, scale=0.3)
    batch, loss = Reader(config.reader_config(run)).batch(0, range(8)), losses.get(run.objective.loss)

    def value(**changes):
        return float(loss(module, params, batch | changes, None, {})[0]["masked_lm"])

    assert value(positions=np.tile(np.arange(32), (8, 1))) != value() != value(token_types=0 * batch["token_types"])
