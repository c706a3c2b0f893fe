"""An encoder and a decoder that share their parameters, against two stacks whose parameters are equal."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest

from plm_jax import models
from plm_jax.common import trees
from plm_jax.common.errors import UserError
from plm_jax.configs import t5
from plm_jax.experiments import model_table
from plm_jax.hub import families
from plm_jax.inference.language_model import LanguageModel
from plm_jax.models import registry
from tests.models import test_encoder_decoder
from tests.models.test_encoder import apply, randomized, small_encoder_decoder, tokens_of

STACK = models.StackConfig(2)
T5 = small_encoder_decoder(stack=STACK, decoder_stack=STACK, tie_encoder_decoder=True)
BART = replace(test_encoder_decoder.BART, stack=STACK, decoder_stack=STACK, tie_encoder_decoder=True)
MODELS = {"t5": T5, "unrolled": replace(T5, scan_layers=False, remat="full"), "bart": BART}


def untied(model, params):
    """Returns the same model with two stacks."""
    blocks = {k: v for k, v in params["decoder"]["blocks"].items() if not k.startswith("cross_attention")}
    of_encoder = {f"encoder_{k.removeprefix('decoder_')}": v for k, v in params.items() if k.startswith("decoder_")}
    copies = params | of_encoder | {"encoder": params["decoder"] | {"blocks": blocks}}
    model = replace(model, tie_encoder_decoder=False, scan_layers=True, remat="none")
    assert jax.tree.map(np.shape, copies) == jax.tree.map(np.shape, registry.shapes(model))
    return registry.build(model), copies


@partial(jax.jit, static_argnames="module")
def gradients(module, params, *inputs):
    def loss(params):
        features = module.apply({"params": params}, *inputs, method="features")
        return (features**2 * np.arange(features.shape[-1])).mean()

    return jax.grad(loss)(params)


@pytest.mark.parametrize("name", MODELS)
def test_shared_stack_equals_two_stacks(name):
    """Compares logits and gradients, which are the sums over both stacks."""
    module, params = randomized(MODELS[name])
    inputs = tokens_of(), tokens_of(1, length=6), np.array([[1] * 8, [1] * 5 + [0] * 3])
    two, copies = untied(MODELS[name], params)
    np.testing.assert_allclose(apply(module, params, *inputs), apply(two, copies, *inputs), atol=1e-4)

    got, of_two = gradients(module, params, *inputs), gradients(two, copies, *inputs)

    def added(of_decoder, of_encoder):
        return {
            k: v if k not in of_encoder else added(v, of_encoder[k]) if isinstance(v, dict) else v + of_encoder[k]
            for k, v in of_decoder.items()
        }

    of_encoder = {"decoder": of_two.pop("encoder")}
    of_encoder |= {k.replace("encoder_", "decoder_"): of_two.pop(k) for k in [*of_two] if k.startswith("encoder_")}
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), got, added(of_two, of_encoder))


def test_decoding_equals_two_stacks():
    _, params = randomized(T5)
    two, copies = untied(T5, params)
    tied, apart = LanguageModel(T5, params), LanguageModel(two.model, copies)
    assert tied.num_parameters < apart.num_parameters
    prompts = [[5, 6, 7], [9, 8, 7, 6, 5]]
    assert tied.generate(prompts, max_new_tokens=5) == apart.generate(prompts, max_new_tokens=5)
    for arguments in ((tokens_of(),), (tokens_of(), None, None, tokens_of(1, length=6))):
        states = tied.hidden_states(*arguments)
        assert states.shape[0] == 3
        np.testing.assert_allclose(states, apart.hidden_states(*arguments), atol=1e-4)


def test_each_pass_has_its_own_dropout():
    module, params = randomized(replace(T5, dropout=models.DropoutConfig(output=0.5)))
    tokens = tokens_of()

    def both(module):
        memory = module.encode(tokens, deterministic=False)
        return memory, module.decode(tokens, memory, deterministic=False)

    rngs = {"dropout": jax.random.key(0)}
    encoded, decoded = (np.asarray(x) == 0 for x in module.apply({"params": params}, method=both, rngs=rngs))
    assert abs(encoded.mean() - 0.5) < 0.15 and abs(decoded.mean() - 0.5) < 0.15
    assert (encoded != decoded).mean() > 0.25


def test_shared_parameters_count_once_and_flops_twice():
    """T5's base by hand: V 32,128, D 768, 12 layers of 12 heads of 64, feed-forward of 3,072, 32 buckets."""
    whole = t5.model(*t5.SIZES["base"][:5], v1_1=False)
    tied = replace(whole, tie_encoder_decoder=True)
    attention, feed_forward = 4 * 768 * 768, 2 * 768 * 3072
    layer = 2 * attention + feed_forward + 3 * 768
    assert model_table.count(tied) == 32_128 * 768 + 12 * layer + 32 * 12 + 768 == 137_949_312
    of_encoder = 12 * (attention + feed_forward + 2 * 768) + 32 * 12 + 768
    assert model_table.count(whole) - model_table.count(tied) == of_encoder
    assert tied.macs(512, 114, 114) == whole.macs(512, 114, 114)
    assert (tied.stack_paths, tied.stacks) == (("decoder",), (whole.stack,))
    assert trees.parse(models.ModelConfig, trees.to_dict(tied), "model") == tied


def test_invalid_settings_are_rejected():
    with pytest.raises(UserError, match="equal stacks: set decoder_stack to the values of stack"):
        replace(T5, stack=models.StackConfig(1))
    with pytest.raises(UserError, match="leave out decoder_heads"):
        replace(T5, decoder_heads=2)
    with pytest.raises(UserError, match=r"T5 cannot store this model \(tie_encoder_decoder must be False"):
        families.family_of(T5, "t5")
