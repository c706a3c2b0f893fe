"""Task heads against transformers with random weights: outputs, labels and round trips."""

import json
import warnings
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np
import pytest

import plm_jax
from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.hub import families, huggingface, tasks
from plm_jax.hub.pretrained import Pretrained
from plm_jax.models import registry
from tests.support import tiny

LENGTH, VOCAB, PAD, EOS = 8, 37, 36, 2
RIGHT = (np.arange(LENGTH) < np.array([8, 5, 6])[:, None]).astype(np.int64)
LEFT = RIGHT[:, ::-1].copy()
LABELS = ("entailment", "neutral", "contradiction")
NAMES = {"classes": LABELS, "labels": LABELS, "tags": LABELS, "score": ("grade",)}
SIDES = ("right", "left")
# Field of the dropout rate in config.json and its default, by kind of head.
RATES = [
    ("bert", 0.3, {"classes": ("classifier_dropout", 0.1), "tags": ("classifier_dropout", 0.1), "span": (None, 0.0)}),
    ("roberta", 0.3, {"classes": ("classifier_dropout", 0.1), "choice": (None, 0.1)}),
    ("mpnet", 0.3, {"classes": (None, 0.1), "span": (None, 0.0)}),
    ("albert", 0.3, {"classes": ("classifier_dropout_prob", 0.1), "span": (None, 0.0)}),
    ("electra", 0.3, {"classes": ("classifier_dropout", 0.1), "choice": ("summary_last_dropout", 0.1)}),
    ("distilbert", 0.3, {"choice": ("seq_classif_dropout", 0.2), "span": ("qa_dropout", 0.1), "tags": (None, 0.1)}),
    ("xlm", 0.3, {"classes": ("summary_first_dropout", 0.1), "tags": (None, 0.1)}),
    ("xlnet", 0.3, {"classes": ("summary_last_dropout", 0.1), "tags": (None, 0.1)}),
    ("bart", 0.3, {"classes": ("classifier_dropout", 0.0), "span": (None, 0.0)}),
    ("gpt2", 0.3, {"classes": (None, 0.0)}),
]
ENCODERS = {"Bert": {}, "Roberta": {"pad_token_id": 1}, "MPNet": {}, "Albert": {}, "Electra": {}, "DistilBert": {}}


class Case(NamedTuple):
    """A class of transformers, the kind of its head in plm_jax, and its number of outputs."""

    family: str
    kind: str
    side: str = "right"

    @property
    def architecture(self):
        is_simple = self.family in ("XLM", "XLNet") and self.kind == "span"
        return f"{self.family}{'ForQuestionAnsweringSimple' if is_simple else tasks.FORMS[self.kind]}"


CASES = [
    *(Case(family, kind) for family in ENCODERS for kind in ("classes", "choice")),
    # One table has the tags and spans of all of them but DistilBERT.
    *(Case(family, "tags") for family in ("Bert", "MPNet", "Albert", "DistilBert")),
    *(Case(family, "span") for family in ("Bert", "Roberta", "Electra", "DistilBert")),
    *(Case(family, "classes", side) for family in ("GPT2", "Llama") for side in SIDES),
    *(Case("Bert", "score"), Case("GPT2", "score", "left")),
    *(Case("Bart", kind) for kind in ("classes", "score", "span")),
    Case("Bert", "labels"),
    *(Case("XLM", kind) for kind in ("classes", "tags", "span")),
    Case("XLMRobertaXL", "classes"),
    *(Case("XLNet", kind, "left") for kind in ("classes", "tags", "span", "choice")),
    *(Case("ModernBert", kind) for kind in ("classes", "tags", "span", "choice")),
    *(Case("EuroBert", kind) for kind in ("classes", "tags")),
]


def make_model(case, reference, **fields):
    """Returns a model of a case with its own labels and a distinct dropout rate."""
    labels = NAMES.get(case.kind)
    if labels:
        fields |= {"id2label": dict(enumerate(labels)), "label2id": {name: i for i, name in enumerate(labels)}}
    if case.family in ("GPT2", "Llama"):
        fields["pad_token_id"] = PAD
    if case.kind == "labels":
        fields["problem_type"] = tasks.PROBLEMS["labels"]
    return reference.make(case.architecture, **ENCODERS.get(case.family, {}), **fields)


def inputs_of(case, model):
    """Returns inputs by name. The padding id does not occur in texts, and each text of BART has one end token."""
    rng, mask = np.random.default_rng(0), LEFT if case.side == "left" else RIGHT
    low, high = (3, VOCAB) if "Roberta" in case.family else (3, PAD)
    if case.kind == "choice":
        mask = np.stack([mask, mask[::-1]], 1)
    pad = model.config.pad_token_id or 0
    tokens = np.where(mask == 1, rng.integers(low, high, mask.shape), pad)
    if case.family == "Bart":
        tokens[np.arange(3), mask.sum(1) - 1] = EOS
    inputs = {"tokens": tokens, "mask": mask}
    if getattr(model.config, "type_vocab_size", 0) > 1 and "Roberta" not in case.family:
        inputs["token_types"] = rng.integers(0, 2, mask.shape) * mask
    if case.family == "XLNet":
        inputs["token_types"] = rng.integers(0, 3, mask.shape)
    return inputs


def outputs(model, inputs):
    """Returns the outputs of transformers in the shapes of plm_jax."""
    torch = pytest.importorskip("torch")
    names = {"tokens": "input_ids", "mask": "attention_mask", "token_types": "token_type_ids"}
    arguments = {names[name]: torch.tensor(value) for name, value in inputs.items()}
    if model.config.model_type in ("gpt2", "llama"):
        arguments["position_ids"] = (arguments["attention_mask"].cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        result = model(**arguments)
    if "logits" in result:
        return result.logits.numpy()
    return np.stack([result.start_logits.numpy(), result.end_logits.numpy()], -1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.architecture}-{case.kind}-{case.side}")
def test_outputs_equal_transformers_in_both_directions(case, reference, tmp_path):
    model = make_model(case, reference)
    model.save_pretrained(tmp_path / "theirs")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lm = plm_jax.load(tmp_path / "theirs")
    head = dict(lm.config.heads)["task"]
    assert (head.kind, getattr(head, "labels", None)) == (case.kind, NAMES.get(case.kind))
    assert lm.num_parameters == sum(tensor.numel() for tensor in model.parameters())
    inputs = inputs_of(case, model)
    want, got = outputs(model, inputs), np.asarray(lm.logits(**inputs, head="task"))
    real = inputs["mask"] == 1 if case.kind in ("tags", "span") else np.s_[:]
    assert got.shape == want.shape and got.dtype == np.float32
    np.testing.assert_allclose(got[real], want[real], atol=1e-4)

    lm.save(tmp_path / "ours")
    again = type(model).from_pretrained(tmp_path / "ours").eval()
    reference.assert_same_state(model, again)
    np.testing.assert_allclose(outputs(again, inputs)[real], want[real], atol=1e-5)
    written, original = (json.loads((tmp_path / side / "config.json").read_text()) for side in ("ours", "theirs"))
    assert written["architectures"] == [case.architecture]
    if case.kind in NAMES:
        assert again.config.id2label == model.config.id2label and again.config.label2id == model.config.label2id
    if case.kind in tasks.PROBLEMS:
        assert written["problem_type"] == tasks.PROBLEMS[case.kind]
    differ = {key for key in written.keys() & original.keys() if written[key] != original[key]}
    assert differ <= {"n_inner", "problem_type", "classifier_dropout"}


@pytest.mark.parametrize(("family", "rate", "shown"), RATES)
def test_dropout_rate_of_head_is_preserved(family, rate, shown, tmp_path):
    model = families.registered()[family].to_settings({})
    for kind, (name, default) in shown.items():
        layout = families.registered()[family]
        config = layout.to_config(model) | {"architectures": [f"{layout.task_class}{tasks.FORMS[kind]}"]}
        config.pop(name or "", None)
        assert dict(families.to_settings(layout, config).heads)["task"].dropout == default
        if name:
            settings = families.to_settings(layout, config | {name: rate})
            assert dict(settings.heads)["task"].dropout == rate
            assert families.to_config(layout, settings)[name] == rate


def test_unsupported_heads_are_ignored_with_warning(reference, tmp_path):
    model = reference.make("BertForSequenceClassification", num_labels=3, problem_type="regression")
    model.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"left out: classifier.bias, classifier.weight"):
        lm = plm_jax.load(tmp_path)
    assert lm.config.heads == ()
    with pytest.raises(UserError, match="this model has no task head: load a checkpoint that has one"):
        lm.logits([[1, 2]], head="task")


def pretrained(model):
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), registry.shapes(model))
    return Pretrained(model, params, {"pad_token_id": 0})


def test_unnamed_score_stays_unnamed(tmp_path):
    model = replace(tiny.BERT, head=models.NoHead(), pooler=models.Pooler(0))
    model = replace(model, heads=(("task", models.ScoreHead(feature="pooler")),))
    huggingface.write(tmp_path, pretrained(model))
    assert json.loads((tmp_path / "config.json").read_text())["id2label"] == {"0": "LABEL_0"}
    assert dict(plm_jax.load(tmp_path).config.heads)["task"] == models.ScoreHead(feature="pooler")


@pytest.mark.parametrize("config", [{"id2label": {"0": "a", "2": "b"}}, {"id2label": {"1": "a"}}])
def test_labels_are_numbered_from_0(config):
    with pytest.raises(UserError, match="number them from 0"):
        tasks.labels_of(config)
    assert tasks.labels_of({}) == ("LABEL_0", "LABEL_1") and tasks.labels_of({"num_labels": 1}) == ("LABEL_0",)


def test_new_head_has_form_of_family():
    def new(kind, model, family=None):
        return tasks.new(kind, model, NAMES.get(kind, ()), families.registered().get(family))

    bert = replace(tiny.BERT, dropout=models.DropoutConfig(residual=0.2))
    pooled = models.ClassesHead(labels=LABELS, feature="pooler", dropout=0.2)
    assert new("classes", bert, "bert") == pooled
    assert new("span", bert, "bert") == models.SpanHead()
    expected = models.ClassesHead(labels=LABELS, feature="first", transform="tanh", dropout=0.2, input_dropout=0.2)
    assert new("classes", bert, "roberta") == expected
    # A missing pooler is created with the head.
    without = replace(bert, pooler=models.NoHead())
    assert new("classes", without, "bert") == pooled and without.with_task(pooled).pooler == models.Pooler(0)
    assert new("choice", tiny.MODEL) == models.ChoiceHead(feature="last", bias=False)
    assert new("score", tiny.BART, "bart") == models.ScoreHead(labels=("grade",), feature="last", transform="tanh")
    assert new("tags", tiny.T5, "t5") == models.TagsHead(labels=LABELS)
    with pytest.raises(UserError, match="there is no task head of kind 'summary'"):
        new("summary", bert)


def test_invalid_rows_of_texts_are_rejected(reference, tmp_path):
    case = Case("Bert", "choice")
    model = make_model(case, reference)
    model.save_pretrained(tmp_path)
    lm, inputs = plm_jax.load(tmp_path), inputs_of(case, model)
    with pytest.raises(UserError, match=r"inputs have shapes \(3, 2, 8\) and \(3, 8\): pass the same rows of texts"):
        lm.logits(inputs["tokens"], inputs["mask"][:, 0], head="task")
    with pytest.raises(UserError, match=r"tokens have shape \(3, 2, 8\): expected \[batch, length\]"):
        lm.logits(inputs["tokens"], head="pooled")
    # One text per row is one choice.
    one = lm.logits(inputs["tokens"][:, 0], inputs["mask"][:, 0], inputs["token_types"][:, 0], head="task")
    np.testing.assert_allclose(one[:, 0], lm.logits(**inputs, head="task")[:, 0], atol=1e-5)


def test_classifier_does_not_generate_text(reference, tmp_path):
    make_model(Case("Llama", "classes"), reference).save_pretrained(tmp_path)
    lm = plm_jax.load(tmp_path)
    assert isinstance(lm.config.head, models.NoHead)
    with pytest.raises(UserError, match="this model has no vocabulary head"):
        lm.generate([[3, 4]])
