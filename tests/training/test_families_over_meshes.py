"""Every family on meshes of eight devices trains as on one device: losses, and parameters after five steps.

By default each family is on one mesh and each mesh has a family; PLM_JAX_FULL_TESTS=1 takes all of them.
"""

import dataclasses
import functools
import itertools
import os
import shutil

import flax
import numpy as np
import pytest

from plm_jax import config, models, objectives
from plm_jax.configs import deberta
from plm_jax.models import pipeline, registry
from plm_jax.training import mesh
from tests.extending.test_extending import page
from tests.support import runs
from tests.support.tiny import RUNS

# Two of the axes at a time, and three.
PAIRS = {f"{one}_{other}": {one: 2, other: 4} for one, other in itertools.combinations(mesh.AXES, 2)}
MESHES = PAIRS | {"three": {"fsdp": 2, "tensor": 2, "context": 2}}


def changed(name, **fields):
    """One of RUNS with other fields of its model."""
    return dataclasses.replace(RUNS[name], model=dataclasses.replace(RUNS[name].model, **fields))


def of_page(name):
    """A model and an objective of tests/extending, with the sizes of RUNS."""
    run = config.from_dict(page(name).get_config())
    position = run.model.attention.position
    if hasattr(position, "length"):
        position = dataclasses.replace(position, length=64)
    model = dataclasses.replace(
        run.model,
        embedding=dataclasses.replace(run.model.embedding, vocab_size=272),
        attention=dataclasses.replace(run.model.attention, heads=4, position=position),
        stack=models.StackConfig(2),
    )
    return dataclasses.replace(RUNS["plain"], model=model, objective=run.objective)


def of_deberta(version):
    """A small DeBERTa with the masks of its recipe."""
    model = deberta.model(version, 2, 32, 4, 272, 130, dropout=0.0)
    kind = objectives.ReplacedToken if version == 3 else objectives.MaskedLM
    objective = kind(windows=True, whole_words=0 if version == 3 else 3)
    return dataclasses.replace(RUNS["electra" if version == 3 else "roberta"], model=model, objective=objective)


def xlnet():
    """An XLNet with a memory, trained by the objective of tests/extending without segments."""
    run = of_page("two_stream")

    class OrderedTargets(type(run.objective)):
        kind = "ordered_targets"
        architectures = ("xlnet",)
        loss = "permutation_lm"
        carries_state = False  # The rows of the layout are shuffled.

    shared = {field.name: getattr(run.model, field.name) for field in dataclasses.fields(models.EncoderConfig)}
    model = models.XlnetConfig(**shared, memory_length=8, reuse_length=12, reverses_half=True)
    return dataclasses.replace(run, model=model, objective=OrderedTargets())


RELU = models.FeedForwardConfig(width=64, activation="relu", bias=False)
# What each published family trains, and the meshes on which the tests train it by default.
FAMILIES = {
    "bert": (RUNS["bert"], "data_context"),
    "bert packed": (RUNS["bert_packed"], "fsdp_tensor"),
    "roberta": (RUNS["roberta"], "fsdp_tensor"),
    "albert": (RUNS["albert"], "data_tensor"),
    "electra": (RUNS["electra"], "data_tensor"),
    "distilbert": (RUNS["distilbert"], "data_fsdp"),
    "spanbert": (RUNS["spanbert"], "stage_fsdp"),
    "modernbert": (RUNS["modernbert"], "fsdp_tensor"),
    "deberta v1": (of_deberta(1), "fsdp_tensor"),
    "deberta v2": (of_deberta(2), "three"),
    "deberta v3": (of_deberta(3), "fsdp_tensor"),
    "two streams": (of_page("two_stream"), "data_fsdp"),
    "xlnet": (xlnet(), "three"),
    "gpt1": (changed("plain", norm=models.NormConfig(placement="post")), "three"),
    "gpt2": (RUNS["plain"], "tensor_context"),
    "gpt3": (RUNS["gpt3"], "stage_context"),
    "llama": (RUNS["llama"], "data_tensor"),  # More devices than heads of keys.
    "glm": (RUNS["glm"], "stage_data"),
    "chatglm": (RUNS["chatglm"], "fsdp_tensor"),
    "t5": (changed("t5", feed_forward=RELU, head=models.VocabularyHead(scale_by_width=True)), "tensor_context"),
    "t5 1.1, mt5": (RUNS["t5"], "stage_tensor"),
    "bart": (RUNS["bart"], "fsdp_context"),
    "elmo": (RUNS["elmo"], "fsdp_tensor"),
}
# These train with dropout, which takes twice as long to compile. They have all kinds of dropout and of meshes.
DROPPED = ("deberta v1", "xlnet", "gpt2", "gpt3", "t5", "elmo")
CASES = [
    (family, name)
    for family, (run, of_default) in FAMILIES.items()
    for name in (MESHES if os.environ.get("PLM_JAX_FULL_TESTS") else [of_default])
    if run.model.any_order or "context" not in MESHES[name]
    if pipeline.cuts(run.model, MESHES[name].get("stage", 1))
]


@pytest.fixture(scope="module")
def folder(tiny, verb, tmp_path_factory):
    """The folder `tiny` and ELMo's words and cache."""
    made = shutil.copytree(tiny, tmp_path_factory.mktemp("meshes") / "tiny")
    finished = verb("prepare", f"--config={made}/tiny.py:elmo")
    assert finished.status == 0, finished.err
    return made


def drawn(model):
    """Parameters of a model by name; its own initializers take long to compile."""
    rng = np.random.default_rng(0)
    shapes = flax.traverse_util.flatten_dict(registry.shapes(model), sep="/")
    return {
        path: rng.normal(path.endswith("scale"), 0.05, leaf.shape).astype(np.float32) for path, leaf in shapes.items()
    }


def trained(folder, run, dropout, **sizes):
    """The losses of five steps, and the parameters before and after them."""
    run = runs.make(folder, run, dropout, mesh=config.MeshConfig(**{"data": 1} | sizes), train={"steps": 5})
    return runs.steps(run, int(np.prod(list(sizes.values()))), drawn(run.model))[:3]


@functools.cache
def on_one_device(folder, family, dropout):
    return trained(folder, FAMILIES[family][0], dropout, data=1)


@pytest.mark.parametrize(("family", "name"), CASES, ids=str)
def test_families_train_like_one_device(folder, family, name):
    dropout = 0.1 if family in DROPPED else 0.0
    want_losses, before, want = on_one_device(folder, family, dropout)
    got_losses, _, got = trained(folder, FAMILIES[family][0], dropout, **MESHES[name])
    np.testing.assert_allclose(got_losses, want_losses, rtol=1e-5)
    assert want_losses[0] - want_losses[-1] > 0.01
    for path in want:
        np.testing.assert_allclose(got[path], want[path], atol=1e-5, err_msg=path)
        if path.endswith("key/bias"):  # Its gradient is mathematically zero: what moves it is rounding.
            continue
        difference = np.linalg.norm(got[path] - want[path]) / np.linalg.norm(want[path] - before[path])
        assert difference < 1e-3, (path, difference)


def test_each_mesh_has_a_family_by_default():
    assert {name for _, name in FAMILIES.values()} == set(MESHES)
