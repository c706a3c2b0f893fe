"""Settings of models: import without JAX, hashing, JSON round trips, and the protocol of models."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from plm_jax import config, models
from plm_jax.common import trees
from plm_jax.common.errors import UserError
from plm_jax.config import files as pages
from plm_jax.models import registry
from plm_jax.models.heads import Head
from plm_jax.models.protocol import VocabularyModule
from tests.golden import make_configs
from tests.models.test_elmo import MODEL as ELMO
from tests.models.test_encoder import apply, randomized, small_encoder, small_encoder_decoder, tokens_of

PAGES = [name for name in pages.names() if make_configs.sizes(name)]


@pytest.mark.parametrize("name", PAGES)
def test_model_is_hashable_and_survives_json(name):
    for size in make_configs.sizes(name):
        model = config.from_dict(pages.load(f"{name}:{size}").config()).model
        again = trees.parse(models.ModelConfig, json.loads(json.dumps(trees.to_dict(model))), "model")
        assert again == model and again is not model and hash(again) == hash(model)


MODELS = {"encoder": small_encoder(), "encoder_decoder": small_encoder_decoder(), "elmo": ELMO}


@pytest.mark.parametrize("name", MODELS)
def test_modules_use_their_settings(name):
    model = MODELS[name]
    module, params = registry.build(model), registry.shapes(model)
    inputs = {name: jax.ShapeDtypeStruct((2, 3, *x.shape[2:]), x.dtype) for name, x in model.init_inputs().items()}
    batch = inputs | {"targets": 0, "target_weights": 0}
    assert model.read(batch) == inputs
    features = jax.eval_shape(
        lambda params, inputs: module.apply({"params": params}, **inputs, method="features"), params, inputs
    )
    logits = jax.eval_shape(lambda p, f: module.apply({"params": p}, f, method="logits"), params, features)
    assert logits.shape == (2, 3, model.vocab_size)
    assert model.has_decoder == (name == "encoder_decoder")


@dataclass(frozen=True)
class TokenClasses(Head):
    """A user's head that classifies each token."""

    kind: ClassVar[str] = "token_classes"
    classes: int = 3

    def compute(self, module, features):
        return module.dense("classes", features, self.classes).astype(jnp.float32)

    def macs(self, model, length, targets):
        return length * model.embedding.width * self.classes


@pytest.mark.parametrize("make", [small_encoder, small_encoder_decoder])
def test_user_head_is_built_named_and_counted(make):
    plain = make()
    model = replace(plain, heads=(("task", TokenClasses(5)), ("other", TokenClasses(2))))
    assert trees.to_dict(model)["heads"]["task"] == {"kind": "token_classes", "classes": 5}
    assert trees.parse(models.ModelConfig, json.loads(json.dumps(trees.to_dict(model))), "model") == model
    shapes = registry.shapes(model)
    assert {name: leaf for name, leaf in shapes.items() if not name.startswith("heads_")} == registry.shapes(plain)
    assert shapes["heads_task"]["classes"]["kernel"].shape == (12, 5)
    module, params = randomized(model)
    features = np.random.default_rng(1).normal(size=(2, 8, 12)).astype(np.float32)
    kernel, bias = (np.asarray(params["heads_task"]["classes"][name]) for name in ("kernel", "bias"))

    def compute(*head, method="head_output"):
        return module.apply({"params": params}, features, *head, method=method)

    np.testing.assert_allclose(compute("task"), features @ kernel + bias, rtol=1e-5, atol=1e-5)
    assert compute("other").shape == (2, 8, 2)
    np.testing.assert_array_equal(compute("vocabulary"), compute(method="logits"))
    assert model.macs(8, 2, 4) - plain.macs(8, 2, 4) == 8 * 12 * (5 + 2)


@pytest.mark.parametrize("names", [("vocabulary",), ("task", "task")])
def test_head_names_are_unique(names):
    with pytest.raises(UserError, match=f"model.heads has '{names[0]}', which is the name of another head"):
        small_encoder(heads=tuple((name, TokenClasses()) for name in names))


@dataclass(frozen=True)
class Words(models.ModelConfig):
    """A model that is not a transformer: a vector for each token and one for each neighbor (Mikolov et al. 2013)."""

    kind: ClassVar[str] = "words"
    vocab_size: int
    width: int = 8

    def module(self, dtype):
        return WordsModule(self, dtype)

    def macs(self, length, targets, decoder_length=0, samples=0):
        return targets * self.width * (samples + 1 if samples else self.vocab_size)


class WordsModule(VocabularyModule):
    def setup(self):
        init = nn.with_logical_partitioning(nn.initializers.normal(0.1), ("vocab", "embed"))
        shape = self.model.vocab_size, self.model.width
        self.words, self.neighbours = self.param("words", init, shape), self.param("neighbours", init, shape)

    def features(self, tokens, *, deterministic=True):
        return self.words.astype(self.dtype)[tokens]

    def unembedding(self):
        return self.neighbours, None


def test_user_model_satisfies_the_protocol():
    model = trees.parse(models.ModelConfig, {"kind": "words", "vocab_size": 31}, "model")
    assert model == Words(31) and model.architecture == "words" and model.num_positions is None
    assert not model.drops and model.with_dropout(0.5) == model and model.named_heads.keys() == {"vocabulary"}
    module, params = randomized(model)
    assert registry.new_carry(module, 3) == {}
    tokens = tokens_of()
    got = apply(module, params, **model.read({"tokens": tokens, "targets": tokens}))
    np.testing.assert_allclose(got, params["words"][tokens] @ params["neighbours"].T, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("initializer", "expected"),
    [
        # GPT-2 (Radford et al. 2019 §2.3): 1 / sqrt(N), where each block has two residual layers.
        (models.InitializerConfig(0.02, shrink_residual=True).residual(8), 0.02 / 16**0.5),
        (models.InitializerConfig(0.02).residual(8), 0.02),
        # T5 (tensorflow/mesh, attention.py): (d_model · d_kv) ** -0.5 for queries, d_model ** -0.5 for keys.
        (models.FanInConfig().query(64), (256 * 64) ** -0.5),
        (models.FanInConfig(unscaled_scores=False).query(64), 256**-0.5),
        (models.FanInConfig().matrix(), 256**-0.5),
        # PyTorch's `Linear`: uniform in ±256 ** -0.5.
        (models.TorchLinearConfig().matrix(), 256**-0.5 / 3**0.5),
    ],
)
def test_initial_matrices_have_published_standard_deviations(initializer, expected):
    values = initializer(jax.random.key(0), (256, 2048))
    assert float(values.std()) == pytest.approx(expected, rel=0.01)
    assert float(values.mean()) == pytest.approx(0.0, abs=0.01 * expected)
