"""Model FLOPs against the products of the traced forward pass."""

import jax
import pytest

from plm_jax.models import registry, settings
from plm_jax.training import flops
from tests.models.test_encoder import small_encoder
from tests.models.test_encoder_decoder import MODELS


@pytest.mark.parametrize(
    "stack", [settings.Stack(3), settings.Stack(4, groups=1), settings.Stack(4, groups=2, inner=2)]
)
@pytest.mark.parametrize("embedding_size", [None, 5])
def test_the_flops_of_an_encoder_are_those_of_its_products(stack, embedding_size):
    embedding = settings.Embedding(31, 12, token_types=2, norm=True, embedding_size=embedding_size)
    model = small_encoder(stack=stack, embedding=embedding, pooler=settings.NoHead())
    module, tokens = registry.build(model), jax.ShapeDtypeStruct((2, 8), "int32")
    traced = jax.make_jaxpr(lambda params, tokens: module.apply({"params": params}, tokens))(
        registry.shapes(model), tokens
    )
    assert flops.of_program(traced.jaxpr) == flops.per_step(model, 2, 8, targets=8) / 3


@pytest.mark.parametrize("name", MODELS)
def test_the_flops_of_an_encoder_decoder_are_those_of_its_products(name):
    """But for the half of the decoder's attention to itself that is hidden."""
    model, rows, length, decoder_length = MODELS[name], 2, 8, 6
    module = registry.build(model)
    tokens, decoder_tokens = (jax.ShapeDtypeStruct((rows, n), "int32") for n in (length, decoder_length))
    traced = jax.make_jaxpr(lambda params, *inputs: module.apply({"params": params}, *inputs))(
        registry.shapes(model), tokens, decoder_tokens
    )
    joined = {"uneven": 2 * 5}.get(name, 3 * 4)
    hidden = 2 * rows * model.decoder_stack.layers * 2 * joined * decoder_length**2 // 2
    counted = flops.per_step(model, rows, length, targets=decoder_length, decoder_length=decoder_length) / 3
    assert flops.of_program(traced.jaxpr) == counted + hidden
