"""Initial weights under other names and from some layers of a checkpoint."""

import dataclasses

import jax
import numpy as np
import pytest

from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.hub.pretrained import Pretrained
from plm_jax.runs import checkpoint_formats, setup
from tests.support import runs
from tests.support import tiny as tiny_runs
from tests.support.random_models import random_params

TEACHER = dataclasses.replace(tiny_runs.BERT, stack=models.StackConfig(layers=12))
LAYERS = (0, 2, 4, 7, 9, 11)
STUDENT = dataclasses.replace(tiny_runs.DISTILBERT, stack=models.StackConfig(layers=6))
# Everything except the transform of the head, as `extract_distilbert.py` without `--vocab_transform`.
WITHOUT_TRANSFORM = (r"(?!head_(transform|norm)/).*",)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """Folder of a converted teacher, and its parameters by name."""
    folder, params = tmp_path_factory.mktemp("teacher") / "model", random_params(TEACHER)
    checkpoint_formats.save(str(folder), Pretrained(TEACHER, params), "plm_jax")
    return folder, runs.flat(params)


def started(tiny, folder, model=STUDENT, run=tiny_runs.RUNS["distilbert"], **train):
    """Returns the initial and the freshly drawn parameters by name, and the notes."""
    run = runs.make(tiny, run, model=model, train={"init_from": str(folder), "seed": 7, **train})
    job = setup.build(run, devices=jax.devices()[:1])
    state, notes = setup.starting_state(job, None)
    return runs.flat(state.params), runs.flat(job.program.new_state(run.train.seed).params), notes


def test_student_starts_from_layers_of_the_teacher(tiny, teacher):
    folder, expected = teacher
    params, fresh, notes = started(tiny, folder, init_names=WITHOUT_TRANSFORM, init_layers=LAYERS)
    assert len(params) > 20
    for name, leaf in params.items():
        if name.startswith(("head_transform", "head_norm")):
            np.testing.assert_array_equal(leaf, fresh[name], err_msg=name)
        elif "/blocks/" in name:
            for layer, number in enumerate(LAYERS):
                np.testing.assert_array_equal(leaf[layer], expected[name][number], err_msg=name)
        else:
            np.testing.assert_array_equal(leaf, expected[name], err_msg=name)
    assert "token_type_embedding" in notes[2] and "pooler" in notes[2], notes
    params, *_ = started(tiny, folder, init_layers=LAYERS)
    np.testing.assert_array_equal(params["head_transform/kernel"], expected["head_transform/kernel"])


def test_weights_are_loaded_under_other_names(tiny, teacher):
    """A decoder and a source encoder that both start from the stack of an encoder."""
    folder, expected = teacher
    bart = dataclasses.replace(
        tiny_runs.BART, stack=models.StackConfig(layers=12), decoder_stack=models.StackConfig(layers=12)
    )
    names = (
        (r"stack/(.*/attention(?:_norm)?/.*)", r"encoder/\1"),
        (r"stack/(blocks)/(attention.*|feed_forward.*)", r"decoder/\1/\2"),
    )
    params, fresh, notes = started(tiny, folder, bart, tiny_runs.RUNS["bart"], init_names=names)
    for name, leaf in params.items():
        stack, _, rest = name.partition("/")
        source = f"stack/{rest}"
        taken = source in expected and (stack == "decoder" or (stack == "encoder" and "/attention" in name))
        np.testing.assert_array_equal(leaf, (expected[source] if taken else fresh[name]), err_msg=name)
    assert notes[0].startswith("loaded ") and int(notes[0].split()[1]) > 20


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"init_layers": (0, 2, 4, 7, 9, 12)}, r"init_layers has layer 12, and stack/.* has the layers 0 to 11"),
        ({"init_layers": (0, 2)}, r"init_layers has 2 layers, but stack has 6: name one layer of"),
        ({"init_names": (("stack/(.*)", r"stakc/\1"),)}, r"maps 'stack/\(\.\*\)' to stakc/.*, which the model lacks"),
        ({"init_names": (("stack/(.*)", r"stack/\2"),)}, r"has a name 'stack/\\2' that is invalid"),
        ({"init_names": (".*", ("position.*", "token_embedding"))}, "to token_embedding: map them to different names"),
    ],
)
def test_unfitting_maps_are_rejected(train, message, tiny, teacher):
    with pytest.raises(UserError, match=message):
        started(tiny, teacher[0], **train)
