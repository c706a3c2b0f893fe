"""ELECTRA's pair and SpanBERT's head: shared parameters, dependencies and formulas."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.models import electra, registry
from plm_jax.models.encoder import Encoder
from tests.models.test_encoder import VOCAB, apply, randomized, small_encoder, tokens_of


def small_electra(**fields) -> models.ElectraConfig:
    encoder = small_encoder(**fields)
    parts = {name: getattr(encoder, name) for name in models.TransformerConfig.__dataclass_fields__}
    embedding = replace(encoder.embedding, embedding_size=9)
    generator = models.GeneratorConfig(width=6, heads=2, head_dim=3, feed_forward=10, layers=1)
    return models.ElectraConfig(**parts | {"embedding": embedding}, generator=generator)


def test_pair_has_encoder_and_generator_parameters():
    model = small_electra()
    pair, generator = registry.shapes(model), registry.shapes(model.generator_model)
    assert {name: leaf for name, leaf in pair.items() if name != "generator"} == registry.shapes(
        model.discriminator_model
    )
    leaves, tables = (
        pair["generator"],
        ("token_embedding", "position_embedding", "token_type_embedding", "embedding_norm"),
    )
    assert leaves.keys() == generator.keys() - set(tables)
    assert leaves == {name: generator[name] for name in leaves}
    assert generator["token_embedding"] == pair["token_embedding"]
    assert leaves["stack"]["blocks"]["attention"]["query"]["kernel"].shape == (1, 6, 6)
    assert leaves["embedding_projection"]["kernel"].shape == (9, 6)
    assert leaves["head_transform"]["kernel"].shape == (6, 9)


def test_generator_is_initialized_like_an_encoder():
    model = replace(small_electra(), initializer=models.InitializerConfig(0.5, truncated=True))
    module = registry.build(model)
    params = jax.jit(lambda key: registry.init_params(module, key))(jax.random.key(0))
    kernel = jax.tree.leaves(params["generator"]["stack"]["blocks"]["feed_forward"]["up"]["kernel"])[0]
    assert 0.9 < np.abs(kernel).max() <= 1.0
    assert not np.array_equal(kernel[0, :, 0], kernel[0, :, 1])


@pytest.mark.parametrize("table", ["token_embedding", "generator"])
def test_tables_are_shared_and_stacks_separate(table):
    module, params = randomized(small_electra())
    moved = params | {table: jax.tree.map(lambda leaf: leaf + 0.1, params[table])}
    tokens = tokens_of()

    def outputs(params):
        features = apply(module, params, tokens, method="features")
        generator, generator_params = electra.generator(module, params)
        return apply(module, params, features, name="discriminator", method="head_output"), apply(
            generator, generator_params, tokens
        )

    (before, other), (after, changed) = outputs(params), outputs(moved)
    assert before.shape == (2, 8) and other.shape == (2, 8, VOCAB)
    assert np.array_equal(before, after) == (table == "generator")
    assert not np.allclose(other, changed, atol=1e-3)


def test_discriminator_head_equals_formula():
    module, params = randomized(small_electra())
    features = np.random.default_rng(3).normal(size=(2, 5, 12)).astype(np.float32)
    got = apply(module, params, features, name="discriminator", method="head_output")
    dense, last = params["discriminator_transform"], params["discriminator"]
    x = features @ dense["kernel"] + dense["bias"]
    x = x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    np.testing.assert_allclose(got, (x @ last["kernel"] + last["bias"])[..., 0], atol=1e-5)
    assert got.dtype == jnp.float32


def test_generator_needs_head_transform():
    generator = models.GeneratorConfig(
        width=6, heads=2, head_dim=3, feed_forward=10, layers=1, head=models.VocabularyHead()
    )
    with pytest.raises(UserError, match=r"set head\.transform"):
        replace(small_electra(), generator=generator)


def span_boundary(params, features, left, right, offsets):
    """Implements equations 3 to 5 of Joshi et al. 2020 for one target at a time."""
    head, norm_epsilon = params["span_boundary"], 1e-12
    logits = np.zeros((*left.shape, VOCAB))
    for row, target in np.ndindex(left.shape):
        number = head["position_embedding"][min(offsets[row, target], len(head["position_embedding"]) - 1)]
        x = np.concatenate([features[row, left[row, target]], features[row, right[row, target]], number])
        for i in (0, 1):
            dense, norm = head[f"transform_{i}"], head[f"norm_{i}"]
            x = x @ dense["kernel"] + dense["bias"]
            x = x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
            x = (x - x.mean()) / np.sqrt(x.var() + norm_epsilon) * norm["scale"] + norm["bias"]
        logits[row, target] = params["token_embedding"] @ x + head["bias"]
    return logits


@pytest.mark.parametrize("embedding_size", [None, 7])
def test_span_boundary_head_equals_formula(embedding_size):
    model = small_encoder(span_boundary=models.SpanBoundary(positions=3, width=4))
    model = replace(model, embedding=replace(model.embedding, embedding_size=embedding_size))
    module, params = randomized(model)
    rng = np.random.default_rng(5)
    features = rng.normal(size=(2, 9, 12)).astype(np.float32)
    left, right, offsets = spans = [rng.integers(0, end, (2, 4)) for end in (9, 9, 5)]
    got, matrix, bias = apply(module, params, features, *spans, method="boundary_head")
    want = span_boundary(params, features, left, right, offsets)
    np.testing.assert_allclose(np.asarray(got) @ np.asarray(matrix).T + np.asarray(bias), want, atol=2e-4)


def test_missing_heads_have_no_parameters():
    assert not {"discriminator", "span_boundary", "generator"} & registry.shapes(small_encoder()).keys()
    assert isinstance(electra.generator(*randomized(small_electra()))[0], Encoder)
