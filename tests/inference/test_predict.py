"""Predictions against the pipelines of transformers on the exported model, and against `evaluate`."""

import dataclasses

import jax
import numpy as np
import pytest

import plm_jax
from plm_jax.common.errors import UserError
from plm_jax.data.labelled import spans
from plm_jax.hub import families, tasks
from plm_jax.hub.pretrained import Pretrained
from plm_jax.inference import predictor
from plm_jax.models import registry
from plm_jax.runs import checkpoint_formats
from tests.support import exports

LABELS = ("negative", "neutral", "positive")
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
# Family, kind of its vocabulary, and the heads that transformers has a pipeline or an Auto class for.
ENCODERS = {"bert": "uncased", "roberta": "roberta", "albert": "unigram", "electra": "cased", "distilbert": "uncased"}
CLASSIFIERS = ENCODERS | {"gpt2": "gpt2", "llama": "unigram", "bart": "roberta"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("vocabularies")


@pytest.fixture(scope="module")
def transformers():
    pytest.importorskip("torch")
    return pytest.importorskip("transformers")


def with_head(family, vocabulary_kind, kind, folder, labels=()):
    """Returns a random model with a task head that depends strongly on its input."""
    base = exports.pretrained(family, vocabulary_kind, folder)
    head = tasks.new(kind, base.model, labels, families.registered()[family])
    model = base.model.with_task(head)
    special = dict(base.special_ids)
    if model.architecture == "decoder":
        pad = special.get("pad_token_id", model.vocab_size - 1)
        special |= {"begins_with": [], "ends_with": [], "pad_token_id": pad}
    rng = np.random.default_rng(0)
    shapes = registry.shapes(model)
    params = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape).astype(np.float32), shapes)
    return dataclasses.replace(base, model=model, params=params, special_ids=special)


def export(pretrained: Pretrained, path):
    checkpoint_formats.save(str(path), pretrained, "huggingface")
    return plm_jax.load(path)


def texts(count, longest=40):
    """Returns lines of many scripts, and an empty one; half of them are longer than the models."""
    lines = list(exports.lines(count - 2))
    return ["", *lines, " ".join(lines[:20])]


def pipeline_of(transformers, task, path, **options):
    return transformers.pipeline(task, model=str(path), tokenizer=str(path), framework="pt", device="cpu", **options)


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_classes_equal_transformers(family, folder, transformers, tmp_path):
    lm = export(with_head(family, CLASSIFIERS[family], "classes", folder, LABELS), tmp_path)
    lines = [line for line in texts(300) if line or family not in ("gpt2", "llama")]
    pipe = transformers.pipeline("text-classification", model=str(tmp_path), top_k=None)
    if family == "bart":
        lines = [line for line in lines if line]
    wanted = [
        {each["label"]: each["score"] for each in pipe(line, truncation=True)[0]} if True else None for line in lines
    ]
    predicted = lm.predict(lines)
    for line, expected, prediction in zip(lines, wanted, predicted, strict=True):
        assert prediction.probabilities == pytest.approx(expected, abs=1e-4), line
        assert prediction.label == max(expected, key=expected.get)
    assert len({prediction.label for prediction in predicted}) > 1
