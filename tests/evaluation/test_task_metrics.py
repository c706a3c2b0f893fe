"""Tasks' own metrics, from answers and from log-likelihoods."""

import collections
import dataclasses
import json

import jax
import numpy as np
import pytest

from plm_jax import config, objectives
from plm_jax.data import prepare
from plm_jax.errors import UserError
from plm_jax.evaluation import task_metrics
from plm_jax.evaluation.language_model import LanguageModel
from plm_jax.models import registry
from tests.training import tiny

MODULE = """
import seqio, tensorflow as tf

ROWS = {split: {"inputs": [f"{split} {i}" for i in range(n)], "targets": [str(i % 3) for i in range(n)],
                "number": list(range(n))} for split, n in {"train": 4, "validation": 11, "test": 3}.items()}
SEEN = {}

def postprocess(text, example, is_target):
    return (text, int(example["number"]), is_target)

def of_answers(targets, predictions):
    SEEN["answers"] = targets, predictions
    same = [t[0] == p[0] for t, p in zip(targets, predictions)]
    return {"same": seqio.metrics.Scalar(sum(same)), "never": float("nan"), "words": "none"}

def of_scores(targets, scores):
    SEEN["scores"] = targets, scores
    return {"total": sum(scores)}

def aux(targets, predictions, aux_values):
    return {}

source = seqio.FunctionDataSource(
    lambda split, shuffle_files: tf.data.Dataset.from_tensor_slices(ROWS[split]), splits=list(ROWS))
text = seqio.Feature(seqio.PassThroughVocabulary(0), add_eos=False, dtype=tf.string, rank=0)
for name, functions in {"both": [of_answers, of_scores], "none": [], "aux": [aux]}.items():
    seqio.TaskRegistry.add("measured_" + name, source=source, preprocessors=[], postprocess_fn=postprocess,
                           metric_fns=functions, output_features={"inputs": text, "targets": text})
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The tasks' module, registered once in a session."""
    import importlib

    path = tmp_path / "measured_tasks.py"
    path.write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return importlib.import_module("measured_tasks")


def run_of(objective=objectives.SpanCorruption(), model=tiny.T5, target_length=6):  # noqa: B008
    sources = {name: config.SeqioExamples(f"measured_{name}", "measured_tasks") for name in ("both", "none", "aux")}
    data = dataclasses.replace(
        tiny.PLAIN.data, length=24, sources=sources, examples=config.Examples(target_length=target_length)
    )
    evaluation = config.Evaluation(batch_size=4)
    return dataclasses.replace(tiny.PLAIN, model=model, objective=objective, data=data, evaluation=evaluation)


def language_model(run):
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), registry.shapes(run.model))
    special = {"eos_token_id": 256, "pad_token_id": 257}
    if run.model.kind == "decoder":
        special = {"eos_token_id": 256}
    return LanguageModel(run.model, params, run=run, vocabulary_spec="bytes", special_ids=special)


KINDS = {
    "t5": (objectives.SpanCorruption(), tiny.T5),
    "gpt2": (objectives.Causal(), tiny.MODEL),
    "prefix": (objectives.DecoderPrefixLM(), tiny.MODEL),
}


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_get_answers_and_log_likelihoods(kind, module):
    run = run_of(*KINDS[kind])
    lm = language_model(run)
    found = task_metrics.evaluate(lm, run, "both", show_progress=False)
    rows = module.ROWS["validation"]
    targets, scores = module.SEEN["scores"]
    assert targets == [(text, i, True) for i, text in enumerate(rows["targets"])]
    logits = lm.logits
    for text, target, score in zip(rows["inputs"], rows["targets"], scores, strict=True):
        inputs, answer = list(text.encode()), [*target.encode(), 256]
        if kind == "t5":
            log_p = jax.nn.log_softmax(logits([[*inputs, 256]], decoder_tokens=[[257, *answer[:-1]]])[0])
        else:
            every = np.array([[*inputs, *answer[:-1]]])
            prefix = {"prefix_lengths": np.array([len(inputs)])} if kind == "prefix" else {}
            log_p = jax.nn.log_softmax(lm.model.apply({"params": lm.params}, every, **prefix)[0, len(inputs) - 1 :])
        want = float(sum(log_p[i, token] for i, token in enumerate(answer)))
        np.testing.assert_allclose(score, want, rtol=1e-4)
    assert found["total"] == pytest.approx(sum(scores))
    assert found["examples"] == 11
    # The constant comes last: what was seen then is what the most frequent answer makes.
    targets, constant = module.SEEN["answers"]
    assert constant == [("0", i, False) for i in range(11)]
    most = collections.Counter(rows["targets"]).most_common(1)[0][1]
    assert found["most_frequent_same"] == most == 4
    assert not {"never", "words", "most_frequent_never"} & found.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_the_most_probable_tokens(kind, module, monkeypatch):
    """Token by token with the whole pass, no cache."""
    run = run_of(*KINDS[kind])
    lm = language_model(run)
    answers = []
    monkeypatch.setattr(module, "SEEN", {})
    task = __import__("seqio").TaskRegistry.get("measured_both")
    monkeypatch.setattr(
        task, "_metric_fn_constructor_args", [lambda targets, predictions: answers.append(predictions) or {}]
    )
    task_metrics.evaluate(lm, run, "both", show_progress=False)
    for text, (answer, _, _) in zip(module.ROWS["validation"]["inputs"], answers[0], strict=True):
        inputs, said = list(text.encode()), []
        while len(said) < 6:
            if kind == "t5":
                logits = lm.logits([[*inputs, 256]], decoder_tokens=[[257, *said]])[0, -1]
            else:
                prefix = {"prefix_lengths": np.array([len(inputs)])} if kind == "prefix" else {}
                logits = lm.model.apply({"params": lm.params}, np.array([[*inputs, *said]]), **prefix)[0, -1]
            token = int(np.argmax(logits[: lm.vocabulary.vocab_size]))
            if token == 256:
                break
            said.append(token)
        assert answer == lm.vocabulary.decode(said)


def test_splits_and_mistakes(module, tmp_path):
    run = run_of()
    lm = language_model(run)
    assert task_metrics.evaluate(lm, run, "both:test", show_progress=False)["examples"] == 3
    with pytest.raises(UserError, match="task 'measured_none' has no metric_fns"):
        task_metrics.evaluate(lm, run, "none")
    with pytest.raises(UserError, match="task 'measured_aux' has a metric of aux_values"):
        task_metrics.evaluate(lm, run, "aux")
    with pytest.raises(UserError, match="no split 'tests': did you mean 'test'"):
        task_metrics.evaluate(lm, run, "both:tests")
    with pytest.raises(UserError, match="there is no task 'booth': did you mean 'both'"):
        task_metrics.evaluate(lm, run, "booth")
    with pytest.raises(UserError, match="the model is of kind 'decoder', the config trains 'encoder_decoder'"):
        task_metrics.evaluate(language_model(run_of(*KINDS["gpt2"])), run, "both")


def test_files_are_measured_on_what_prepare_holds_out(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"inputs": str(i), "targets": "ab"[i % 2]}) + "\n" for i in range(60)))
    run = run_of()
    data = dataclasses.replace(run.data, sources={"a": config.JsonLinesExamples(str(path))}, validation_fraction=0.3)
    run = dataclasses.replace(run, data=data)
    lm = language_model(run)
    held_out = sum(prepare.held_out(str(i), 0.3) for i in range(60))
    assert 5 < held_out < 40
    assert task_metrics.evaluate(lm, run, "a", show_progress=False)["examples"] == held_out
    found = task_metrics.evaluate(lm, run, "a:train", show_progress=False)
    assert found["examples"] == 60 - held_out and 0.5 <= found["most_frequent_accuracy"] < 0.8
    without = dataclasses.replace(run, data=dataclasses.replace(data, validation_fraction=0.0))
    with pytest.raises(UserError, match="'a' has no examples"):
        task_metrics.evaluate(lm, without, "a")
