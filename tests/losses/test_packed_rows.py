"""Losses of packed rows equal those of their inner rows, each alone in a row."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import losses, models, objectives
from plm_jax.losses import replaced_token, vocabulary
from plm_jax.models import registry
from tests.support import tiny
from tests.support.random_models import random_params

LENGTH, ROWS = 48, 4
SPECIAL = objectives.Special(pad=257, cls=258, sep=259, mask=260, vocab_size=272)
WITHOUT_PADDING = dataclasses.replace(
    tiny.BERT,
    attention=dataclasses.replace(
        tiny.BERT.attention, position=models.LearnedPositions(64, offset=2, skips_padding=True)
    ),
)
ROTARY = dataclasses.replace(tiny.BERT, attention=dataclasses.replace(tiny.BERT.attention, position=models.Rotary()))
RELATIVE = dataclasses.replace(
    tiny.BERT, attention=dataclasses.replace(tiny.BERT.attention, position=models.RelativeBias())
)
CASES = {
    "pairs": (tiny.BERT, objectives.MaskedLM(), True),
    "positions of RoBERTa": (WITHOUT_PADDING, objectives.MaskedLM(), True),
    "rotary": (ROTARY, objectives.MaskedLM(), True),
    "relative bias": (RELATIVE, objectives.MaskedLM(), True),
    "spans": (tiny.SPANBERT, objectives.SpanMaskedLM(), False),
    "replaced tokens": (tiny.ELECTRA, objectives.ReplacedToken(), False),
}


def rows_of(objective, has_pairs):
    """Returns the inner rows of each packed row, noised, with 5 to 20 tokens."""
    rng, row_format = np.random.default_rng(0), objectives.RowFormat.of(SPECIAL, has_types=has_pairs)
    packed_rows = []
    for number in range(ROWS):
        inner_rows = []
        for _ in range(2 + number % 2):
            texts = [rng.integers(0, 256, rng.integers(1, 7)) for _ in range(1 + has_pairs)]
            row = row_format.row(texts, LENGTH) | {"word_starts": np.arange(LENGTH)}
            row |= {"pair_label": rng.integers(0, 2)} if has_pairs else {}
            inner_rows.append(objective.apply(row, SPECIAL, rng))
        packed_rows.append(inner_rows)
    return packed_rows


def stacked(rows):
    return {key: jnp.asarray(np.stack([row[key] for row in rows])) for key in rows[0]}


def sums(loss, module, params, batch, monkeypatch):
    """Returns terms, metrics, weights and features of a batch; samples depend on the targets alone."""
    monkeypatch.setattr(replaced_token, "_sample", lambda *_: (batch["targets"] * 5 + batch["targets"] % 2) % 256)

    @jax.jit
    def compute(params, batch):
        terms, metrics, _ = loss(module, params, batch, None, {})
        return terms, metrics, loss.weights(module, batch), vocabulary.features_of(module, params, batch, None)

    return compute(params, batch)


@pytest.mark.parametrize("name", CASES)
def test_sums_and_weights_equal_those_of_the_inner_rows(name, monkeypatch):
    model, objective, has_pairs = CASES[name]
    inner_rows = rows_of(objective, has_pairs)
    packing = objectives.PackedFormat(LENGTH, 3 * objective.target_length(20), 5, SPECIAL.pad)
    module, params = registry.build(model), jax.tree.map(jnp.asarray, random_params(model))
    loss = losses.get(objective.loss, **objective.loss_settings)
    of_packed = sums(loss, module, params, stacked([packing.join(rows) for rows in inner_rows]), monkeypatch)
    alone = [row for rows in inner_rows for row in rows]
    of_inner = sums(loss, module, params, stacked(alone), monkeypatch)
    assert set(of_inner[0]) == {"masked_lm", "pair"} or not has_pairs
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-6), of_packed[:3], of_inner[:3])
    sizes = [[int(row["mask"].sum()) for row in rows] for rows in inner_rows]
    for row, (rows, lengths) in enumerate(zip(inner_rows, sizes, strict=True)):
        first = sum(map(len, inner_rows[:row]))
        expected = [of_inner[3][first + number, :size] for number, size in enumerate(lengths)]
        features = of_packed[3][row, : sum(lengths)]
        np.testing.assert_allclose(features, np.concatenate(expected), atol=2e-6)
        assert len(rows) > 1


def test_a_row_that_fills_up_a_batch_does_not_count():
    packing = objectives.PackedFormat(LENGTH, 20, 5, SPECIAL.pad)
    rows = [packing.join(rows) for rows in rows_of(objectives.MaskedLM(), True)]
    rows.append({key: np.zeros_like(value) for key, value in rows[0].items()})
    module, params = registry.build(tiny.BERT), jax.tree.map(jnp.asarray, random_params(tiny.BERT))
    loss = losses.get("masked_lm")
    compute = jax.jit(lambda batch: loss(module, params, batch, None, {})[0])
    terms, without = (compute(stacked(some)) for some in (rows, rows[:-1]))
    weights, expected = (loss.weights(module, stacked(some)) for some in (rows, rows[:-1]))
    assert float(weights["pair"]) == float(expected["pair"]) == 10
    assert float(weights["masked_lm"]) == float(expected["masked_lm"])
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-6), terms, without)
