"""ERNIE in Hugging Face's format: published sizes, and its table of tasks."""

import dataclasses
import math

import numpy as np
import pytest

import plm_jax
from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.hub import families, tensor_layout

LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
V1 = {"vocab_size": 18000, "max_position_embeddings": 513, "hidden_act": "relu"}
V3 = {"vocab_size": 40000, "max_position_embeddings": 2048, "type_vocab_size": 4, "use_task_id": True}
# Published `config.json` → parameters of `ErnieModel`, and with a head: of `ErnieForPreTraining`, or of
# `ErnieForMaskedLM`, which has no pooler, for ERNIE 3.0. Counted with transformers 5.23.
PUBLISHED = {
    "1.0-base-zh": (V1, 99_866_112, 100_477_778),
    "2.0-base-en": ({"type_vocab_size": 4}, 109_483_776, 110_107_964),
    "2.0-large-en": (LARGE | {"type_vocab_size": 4}, 335_143_936, 336_228_156),
    "3.0-base-zh": (V3 | {"task_type_vocab_size": 3}, 117_944_832, 117_986_368),
    "3.0-medium-zh": (V3 | {"task_type_vocab_size": 16, "num_hidden_layers": 6}, 75_427_584, 75_469_120),
}


def count(model):
    return sum(math.prod(shape) for shape in tensor_layout.shapes_of(model).values())


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name):
    fields, bare, with_head = PUBLISHED[name]
    model = families.registered()["ernie"].to_settings(fields)
    assert count(dataclasses.replace(model, head=models.NoHead(), pooler=models.Pooler(0))) == bare
    head_alone = dataclasses.replace(model, pooler=models.NoHead()) if name.startswith("3") else model
    assert count(head_alone) == with_head


def test_every_token_has_the_first_task(reference, tmp_path):
    torch = pytest.importorskip("torch")
    model = reference.make("ErnieForMaskedLM", use_task_id=True, task_type_vocab_size=5)
    model.save_pretrained(tmp_path)
    lm, tokens = plm_jax.load(tmp_path), np.random.default_rng(0).integers(0, 37, (2, 6))
    first, other = (
        model(torch.tensor(tokens), task_type_ids=torch.full((2, 6), task)).logits.detach().numpy() for task in (0, 1)
    )
    np.testing.assert_allclose(lm.logits(tokens), first, atol=1e-4)
    assert abs(lm.logits(tokens) - other).max() > 0.1


def test_tasks_need_a_family_that_has_them():
    model = families.registered()["ernie"].to_settings({"use_task_id": True})
    assert families.family_of(model, "bert").kind == "ernie"
    assert families.family_of(dataclasses.replace(model, embedding=dataclasses.replace(model.embedding, task_types=0)))
    albert = dataclasses.replace(model, stack=models.StackConfig(12, groups=1))
    with pytest.raises(UserError, match=r"embedding\.task_types|stack"):
        families.family_of(albert)
    without = {"use_task_id": False, "task_type_vocab_size": 0}  # As in the files of ERNIE 1.0.
    assert families.registered()["ernie"].to_settings(without).embedding.task_types == 0
    with pytest.raises(UserError, match="task_type_vocab_size"):
        families.registered()["ernie"].to_settings({"use_task_id": True, "task_type_vocab_size": 0})
