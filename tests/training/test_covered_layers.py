"""A user's model with stacked leaves that some layers lack: each row counts by the number of its layer."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import config, models
from plm_jax.common.errors import UserError
from plm_jax.models import registry
from plm_jax.models.protocol import ModelConfig, VocabularyModule
from plm_jax.runs import checkpoints, loop, setup
from plm_jax.runs.programs import Programs
from plm_jax.training import layer_decay, norms, trainable
from tests.support import runs

LAYERS, WIDTH = 4, 16


@dataclasses.dataclass(frozen=True)
class Tower(ModelConfig):
    """A sequence of dense layers, applied to each token; some of them scale their input first."""

    kind = "tower"
    architecture = "decoder"
    stack_paths = ("body",)
    vocab_size: int = 272
    scaled: str = "1:4"
    rows: int = 3

    @property
    def stacks(self):
        return (models.StackConfig(layers=LAYERS),)

    def module(self, dtype):
        return TowerModule(self, dtype)

    def macs(self, length, targets, decoder_length=0, samples=0):
        return length * LAYERS * WIDTH**2 + targets * WIDTH * self.vocab_size


class Body(nn.Module):
    model: Tower

    @nn.compact
    def __call__(self, x):
        blocks = self.param("blocks", self._init)
        scales = dict(zip(range(LAYERS)[-self.model.rows :], blocks[self.model.scaled]["norm"]["scale"], strict=True))
        for number, kernel in enumerate(blocks["dense"]["kernel"]):
            x = x + jnp.tanh((x * scales.get(number, 1.0)) @ kernel)
        return x

    def _init(self, key):
        def boxed(shape, *axes):
            values = 0.1 * jax.random.normal(key, shape)
            return nn.LogicallyPartitioned(values, ("layers", *axes))

        scale = boxed((self.model.rows, WIDTH), "embed")
        kernel = boxed((LAYERS, WIDTH, WIDTH), "embed", "mlp")
        return {"dense": {"kernel": kernel}, self.model.scaled: {"norm": {"scale": scale}}}


class TowerModule(VocabularyModule):
    def setup(self):
        init = nn.with_logical_partitioning(nn.initializers.normal(0.1), ("vocab", "embed"))
        self.embedding = self.param("token_embedding", init, (self.model.vocab_size, WIDTH))
        self.body = Body(self.model)

    def features(self, tokens, deterministic=True):
        return self.body(self.embedding[tokens].astype(self.dtype))

    def unembedding(self):
        return self.embedding, None


SCALE, KERNEL = "body/blocks/1:4/norm/scale", "body/blocks/dense/kernel"


def make(tiny, model=Tower(), steps=3, **sections):
    train = {"steps": steps, "batch_size": 8} | sections.pop("train", {})
    return runs.make(tiny, model=model, train=train, **sections)


@pytest.mark.parametrize(
    ("coverage", "numbers"),
    [("1:4", [1, 2, 3]), ("2", [2]), ("0,2:9:3", [0, 2, 5, 8]), ("0:2,3", [0, 1, 3])],
)
def test_rows_are_named_by_their_layers(coverage, numbers):
    leaf, name = np.zeros((len(numbers), 2)), f"stack/blocks/{coverage}/norm/scale"
    assert trainable.layer_numbers(name, leaf) == numbers
    assert trainable.layers(name, leaf) == [f"stack/blocks/{number}/norm/scale" for number in numbers]
    assert trainable.layers("blocks", np.zeros((2, 3))) == ["blocks/0", "blocks/1"]
    assert trainable.layers("blocksize", leaf) == []


def test_decay_depends_on_the_number_of_the_layer():
    factors = runs.flat(layer_decay.factors(Tower(), 0.5, registry.shapes(Tower())))
    # Layer i of n layers has the factor 0.5 ** (n + 1 - i).
    np.testing.assert_allclose(factors[KERNEL].ravel(), [0.5**5, 0.5**4, 0.5**3, 0.5**2])
    np.testing.assert_allclose(factors[SCALE].ravel(), [0.5**4, 0.5**3, 0.5**2])
    assert factors[SCALE].ndim == 2


def equal_rows(before, after):
    """Returns which rows of SCALE and KERNEL are equal."""
    return {name: [(a == b).all() for a, b in zip(before[name], after[name], strict=True)] for name in (SCALE, KERNEL)}


def test_training_norms_and_resuming_name_layers(tiny, tmp_path):
    train = {"trainable": (r"body/blocks/[13]/.*",), "log_norms": True}
    sections = {"train": train, "optimizer": config.LambConfig(layer_decay=0.9)}
    loop.pretrain(make(tiny, steps=2, **sections), str(tmp_path / "run"))
    loop.pretrain(make(tiny, steps=3, **sections), str(tmp_path / "run"))
    losses, before, after, job, _ = runs.steps(make(tiny, **sections), 1)
    np.testing.assert_allclose(list(runs.column(tmp_path / "run", "train/loss").values()), losses, rtol=1e-5)
    saved = runs.flat(checkpoints.load_params(str(tmp_path / "run")).params)
    for name, leaf in after.items():
        np.testing.assert_allclose(saved[name], leaf, rtol=1e-4, atol=1e-6, err_msg=name)
    assert equal_rows(before, after) == {SCALE: [False, True, False], KERNEL: [True, False, True, False]}
    names = job.program.tensor_names()
    assert names == [f"body/blocks/{n}/{leaf}" for leaf in ("norm/scale", "dense/kernel") for n in (1, 3)]
    assert trainable.Trainable().names({"blocks": {"a": np.zeros(2)}}) == ["blocks/0/a", "blocks/1/a"]
    values = np.sqrt([1.0, 2.0, 3.0, 4.0])
    assert norms.by_layer(names, values) == pytest.approx({"body/blocks/1": 2.0, "body/blocks/3": 6**0.5})


def test_top_layers_of_each_leaf_are_reinitialized(tiny, tmp_path):
    loop.pretrain(make(tiny, steps=1), str(tmp_path / "run"))
    source = runs.flat(checkpoints.load_params(str(tmp_path / "run")).params)
    init = {"init_from": str(tmp_path / "run"), "reinitialize_top": 2, "seed": 5}
    job = setup.build(make(tiny, train=init), devices=jax.devices()[:1])
    params = runs.flat(setup.initial_state(job)[0].params)
    assert equal_rows(source, params) == {SCALE: [True, False, False], KERNEL: [True, True, False, False]}


def test_layers_of_a_checkpoint_and_patterns_match_names_without_coverage(tiny, tmp_path):
    loop.pretrain(make(tiny, steps=1), str(tmp_path / "run"))
    source = runs.flat(checkpoints.load_params(str(tmp_path / "run")).params)

    def initial(*layers, names=(".*",)):
        train = {"init_from": str(tmp_path / "run"), "init_layers": layers, "init_names": names, "seed": 5}
        job = setup.build(make(tiny, Tower(scaled="2:4", rows=2), train=train), devices=jax.devices()[:1])
        return runs.flat(setup.initial_state(job)[0].params)

    scale = "body/blocks/2:4/norm/scale"
    for names in ((".*",), ("body/blocks/[a-z]+/(scale|kernel)",), (("(body/blocks/norm)/(.*)", r"\1/\2"),)):
        np.testing.assert_array_equal(initial(0, 0, 3, 1, names=names)[scale], np.asarray(source[SCALE])[[2, 0]])
    np.testing.assert_array_equal(initial(0, 0, 3, 1)[KERNEL], np.asarray(source[KERNEL])[[0, 0, 3, 1]])
    with pytest.raises(UserError, match=r"init_layers has layer 0, and body/blocks/1:4/.* has the layers 1 to 3"):
        initial(0, 0, 3, 0)
    assert trainable.Trainable(("body/blocks/[a-z]+/scale",)).names(registry.shapes(Tower())) == [
        f"body/blocks/{number}/norm/scale" for number in (1, 2, 3)
    ]


WRONG = {
    "no name": (
        Tower(scaled="some"),
        r"some/norm/scale has 3 rows for 4 layers: name .* as in blocks/1:4/",
    ),
    "too few": (Tower(scaled="1:3"), r"1:3/norm/scale has 3 rows, so '1:3' must list 3 of the 4 layers in increasing"),
    "beyond": (Tower(scaled="2:5"), r"'2:5' must list 3 of the 4 layers in increasing order"),
    "twice": (Tower(scaled="1,1:3"), r"'1,1:3' must list 3 of the 4 layers in increasing order"),
    "out of order": (Tower(scaled="3,1:3"), r"'3,1:3' must list 3 of the 4 layers in increasing order"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mismatched_rows_and_layers_are_rejected(name):
    model, message = WRONG[name]
    with pytest.raises(UserError, match=message):
        trainable.check_layers(model, 1)


def test_stages_cannot_split_partly_covered_leaves(tiny):
    with pytest.raises(UserError, match=r"1:4/norm/scale covers only some layers, but with mesh.stage=2 .*to 1"):
        Programs(make(tiny, mesh=config.MeshConfig(stage=2)), jax.devices()[:2]).check_parameters()
