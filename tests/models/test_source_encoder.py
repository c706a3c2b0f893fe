"""A new encoder that replaces the token embeddings of a pretrained encoder, as in BART's translation."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import models
from plm_jax.common import trees
from plm_jax.common.errors import UserError
from plm_jax.hub import families
from plm_jax.models import registry
from plm_jax.training import trainable
from tests.support import tiny
from tests.support.random_models import random_params

MODEL = replace(tiny.BART, source_encoder=models.SourceEncoderConfig(layers=1))
# Parameters of stage 1: the new encoder, the positions, and the first layer's projections to query, key and value.
STAGE_1 = (
    "source_encoder/.*",
    "encoder_position_embedding",
    "encoder/blocks/0/attention/(query|key|value)/(kernel|bias)",
)


def build(model):
    return registry.build(model), random_params(model)


def test_source_encoder_output_replaces_embeddings():
    module, params = build(MODEL)
    tokens = np.random.default_rng(1).integers(0, 272, (2, 7), np.int32)
    mask = np.array([[1] * 7, [1] * 4 + [0] * 3], np.int32)
    encode = jax.jit(partial(module.apply, method="encode"))
    got = encode({"params": params}, tokens, mask)

    source = registry.build(MODEL.source_model)
    assert params["source_encoder"].keys() == registry.shapes(MODEL.source_model).keys()
    read = jax.jit(partial(source.apply, method="features"))({"params": params["source_encoder"]}, tokens, mask)
    plain = registry.build(tiny.BART)
    for row in range(2):  # Equals a model whose token table has the row's vectors.
        table = jnp.zeros((272, 32)).at[:7].set(read[row])
        copied = {name: leaf for name, leaf in params.items() if name != "source_encoder"} | {"token_embedding": table}
        want = plain.apply({"params": copied}, np.arange(7)[None], mask[row : row + 1], method="encode")
        np.testing.assert_allclose(got[row, : mask[row].sum()], want[0, : mask[row].sum()], atol=1e-5)
    # The decoder keeps its embeddings.
    other = params | {"token_embedding": params["token_embedding"] + 1}
    np.testing.assert_array_equal(got, encode({"params": other}, tokens, mask))


def test_source_encoder_parameters_are_counted_and_named():
    shapes, plain = registry.shapes(MODEL), registry.shapes(tiny.BART)
    assert {name: leaf for name, leaf in shapes.items() if name != "source_encoder"} == plain
    assert trees.parse(models.ModelConfig, trees.to_dict(MODEL), "model") == MODEL
    assert MODEL.stack_paths == ("encoder", "decoder", "source_encoder/stack") and len(MODEL.stacks) == 3
    added = MODEL.macs(10, 3, 5) - tiny.BART.macs(10, 3, 5)
    assert added == MODEL.source_model.macs(10, 0) > 0
    with pytest.raises(UserError, match=r"BART cannot store this model \(source_encoder must be None"):
        families.family_of(MODEL, "bart")

    trained = trainable.Trainable(STAGE_1)
    trained.check(shapes, stages=1)
    chosen = dict(trainable.named(trained.of(jax.tree.map(lambda leaf: np.zeros(leaf.shape), shapes))))
    of_source = {name for name, _ in trainable.named(shapes) if name.startswith("source_encoder/")}
    projections = {f"encoder/blocks/attention/{x}/{y}" for x in ("query", "key", "value") for y in ("kernel", "bias")}
    assert {name for name, leaf in chosen.items() if leaf.size} == of_source | projections | {
        "encoder_position_embedding"
    }
    assert all(chosen[name].shape[0] == 1 for name in projections)
