"""Tasks' own metrics, from answers and from log-likelihoods."""

import collections
import dataclasses
import functools
import itertools
import json

import jax
import numpy as np
import pytest
import seqio
import tensorflow_datasets as tfds

from plm_jax import config, objectives
from plm_jax.common import users
from plm_jax.common.errors import UserError
from plm_jax.data import cache, vocabularies
from plm_jax.data.prepare import reading
from plm_jax.data.text_to_text import suite
from plm_jax.evaluation import task_metrics
from plm_jax.inference.language_model import LanguageModel
from plm_jax.models import registry
from plm_jax.runs import preparation
from tests.support import splits, tiny
from tests.support.task_rows import ROWS

MODULE = """
import seqio, tensorflow as tf

ROWS = {split: {"inputs": [f"{split} {i}" for i in range(n)], "targets": [str(i % 3) for i in range(n)],
                "number": list(range(n))} for split, n in {"train": 4, "validation": 11, "test": 3}.items()}
SEEN = {}

def postprocess(text, example, is_target):
    return (text, int(example["number"]), is_target)

def of_answers(targets, predictions):
    SEEN.setdefault("answers", []).append((targets, predictions))
    same = [t[0] == p[0] for t, p in zip(targets, predictions)]
    return {"same": seqio.metrics.Scalar(sum(same)), "never": float("nan"), "words": "none"}

def of_scores(targets, scores):
    SEEN["scores"] = targets, scores
    return {"total": sum(scores)}

def aux(targets, predictions, aux_values):
    return {}

class Fluency:
    "A metric object."

source = seqio.FunctionDataSource(
    lambda split, shuffle_files: tf.data.Dataset.from_tensor_slices(ROWS[split]), splits=list(ROWS))
text = seqio.Feature(seqio.PassThroughVocabulary(0), add_eos=False, dtype=tf.string, rank=0)
for name, functions, others in (("both", [of_answers, of_scores], []), ("none", [], []), ("aux", [aux], []),
                                ("objects", [of_answers], [Fluency])):
    seqio.TaskRegistry.add("measured_" + name, source=source, preprocessors=[], postprocess_fn=postprocess,
                           metric_fns=functions, metric_objs=others, output_features={"inputs": text, "targets": text})
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The tasks' module, registered once in a session."""
    import importlib

    path = tmp_path / "measured_tasks.py"
    path.write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    users.trust(["measured_tasks"])
    found = importlib.import_module("measured_tasks")
    found.SEEN.clear()
    return found


def run_of(objective=objectives.SpanCorruption(), model=tiny.T5):  # noqa: B008
    names = ("both", "none", "aux", "objects")
    sources = {name: config.SeqioInputsTargets(f"measured_{name}", "measured_tasks") for name in names}
    inputs_targets, evaluation = config.InputsTargetsConfig(target_length=6), config.EvaluationConfig(batch_size=4)
    run = dataclasses.replace(tiny.PLAIN, model=model, objective=objective, evaluation=evaluation)
    return with_data(run, length=24, sources=sources, inputs_targets=inputs_targets)


def with_data(run, **fields):
    return dataclasses.replace(run, data=dataclasses.replace(run.data, **fields))


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


def full_pass(lm, kind):
    """`logits(text, said)`: after the text and each of the tokens said, the scores of the next; one pass, no cache."""
    apply = jax.jit(lambda **inputs: lm.model.apply({"params": lm.params}, **inputs))

    def row(tokens, length):
        return np.array([[*tokens, *[0] * (length - len(tokens))]])

    def logits(text, said):
        prompt = list(text.encode())
        if kind == "t5":
            mask = row([1] * (len(prompt) + 1), 24)
            decoder = {"decoder_tokens": row([257, *said], 8)}
            return apply(tokens=row([*prompt, 256], 24), mask=mask, **decoder)[0, : len(said) + 1]
        prefix = {"prefix_lengths": np.array([len(prompt)])} if kind == "prefix" else {}
        scores = apply(tokens=row([*prompt, *said], 32), **prefix)[0]
        return scores[len(prompt) - 1 : len(prompt) + len(said)]

    return logits


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_get_answers_and_log_likelihoods(kind, module):
    run = run_of(*KINDS[kind])
    lm = language_model(run)
    metrics = task_metrics.evaluate(lm, run, "both", show_progress=False)
    rows, logits = module.ROWS["validation"], full_pass(lm, kind)
    targets, scores = module.SEEN["scores"]
    (_, perfect), (of_answers, answers), (_, constant) = module.SEEN["answers"]
    assert targets == of_answers == [(text, i, True) for i, text in enumerate(rows["targets"])]
    texts = zip(rows["inputs"], rows["targets"], scores, answers, strict=True)
    for text, target, score, (answer, _, is_target) in texts:
        of_target = [*target.encode(), 256]
        log_p = np.asarray(jax.nn.log_softmax(logits(text, of_target[:-1])))
        np.testing.assert_allclose(score, sum(log_p[i, token] for i, token in enumerate(of_target)), rtol=1e-4)
        answered = []
        while (
            len(answered) < 6
            and (token := int(np.argmax(logits(text, answered)[-1, : lm.vocabulary.vocab_size]))) != 256
        ):
            answered.append(token)
        assert (answer, is_target) == (lm.vocabulary.decode(answered), False)
    assert metrics["total"] == pytest.approx(sum(scores))
    assert metrics["examples"] == 11
    assert constant == [("0", i, False) for i in range(11)]
    assert perfect == [(text, i, False) for i, text in enumerate(rows["targets"])]
    assert metrics["most_frequent_same"] == collections.Counter(rows["targets"])["0"] == 4
    assert not {"never", "words", "most_frequent_never"} & metrics.keys()


def test_splits_and_mistakes(module, tmp_path):
    run = run_of()
    lm = language_model(run)
    assert task_metrics.evaluate(lm, run, "both:test", show_progress=False)["examples"] == 3
    for task, message in (
        ("none", "task 'measured_none' has no metric_fns"),
        ("aux", "task 'measured_aux' has a metric function of aux_values"),
        ("objects", r"'measured_objects' has metric_objs \(Fluency\): replace them by metric_fns"),
        ("both:tests", "no split 'tests': did you mean 'test'"),
        ("booth", "there is no task 'booth': did you mean 'both'"),
    ):
        with pytest.raises(UserError, match=message):
            task_metrics.evaluate(lm, run, task)
    with pytest.raises(UserError, match=r"model is of kind 'decoder', but config.model.kind is 'encoder_decoder'"):
        task_metrics.evaluate(language_model(run_of(*KINDS["gpt2"])), run, "both")


def test_another_vocabulary_is_told(module):
    run = run_of()
    lm = language_model(run)
    lm.vocabulary_id = vocabularies.identity(vocabularies.load(run.vocabulary))
    other = dataclasses.replace(run, vocabulary=dataclasses.replace(run.vocabulary, eos=260))
    with pytest.raises(UserError, match=r"the model has vocabulary .*: pass a config with the model's vocabulary"):
        task_metrics.evaluate(lm, other, "both")
    same = with_data(run, cache_dir="elsewhere")
    assert task_metrics.evaluate(lm, same, "both:test", show_progress=False)["examples"] == 3


@pytest.fixture
def register():
    """As `suite.register`, of a name that is free again after the test; gives a source of the task."""
    names = []

    def make(task, source, name):
        names.append(suite.register(task, source, name=name).name)
        return config.SeqioInputsTargets(name, suite.__name__)

    yield make
    for name in names:
        seqio.TaskRegistry.remove(name)


UNLABELED = ("glue_sst2", "glue_stsb", "super_glue_multirc", "super_glue_record", "super_glue_wsc")


@pytest.mark.parametrize("task", UNLABELED)
def test_splits_without_labels_are_told(task, register, tmp_path):
    row = ROWS[task][0][0]
    row = row | ({"answers": []} if "answers" in row else {"label": -1})
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    source = register(task, suite.FromJsonLines({"test": str(tmp_path / "rows.jsonl")}), "measured:unlabeled")
    run = with_data(run_of(), sources={"a": source})
    with pytest.raises(UserError, match="'a:test' has no labels: name another split"):
        task_metrics.evaluate(language_model(run), run, "a:test")


def test_a_task_of_the_suite_is_downloaded_prepared_and_measured(register, tmp_path, monkeypatch):
    """From nothing but the builder: TFDS knows its splits only when it has prepared them."""

    def rows(split, count):
        return enumerate({"sentence": f"{split} {i}", "label": i % 2, "idx": i} for i in range(count))

    sizes = {"train": 7, "validation": 5, "test": 1}
    builder = tfds.builder("glue/sst2:2.0.0", data_dir=str(tmp_path))
    monkeypatch.setattr(type(builder), "_split_generators", lambda *_: {k: rows(k, n) for k, n in sizes.items()})
    source = register("glue_sst2", suite.FromTfds(str(tmp_path)), "measured:sst2")
    run = with_data(run_of(), sources={"a": source}, mixture={}, cache_dir=str(tmp_path / "cache"))
    preparation.prepare(run, show_progress=False)
    opened = cache.open_source(run.data.cache_dir, "a")
    assert {name: split.num_documents for name, split in opened.splits.items()} == {"train": 7, "validation": 5}
    assert bytes(opened.splits["validation"].tokens(0, 15).astype(np.uint8)) == b"sst2 sentence: "
    metrics = task_metrics.evaluate(language_model(run), run, "a", show_progress=False)
    assert metrics["examples"] == 5 and metrics["most_frequent_accuracy"] == 0.6
    # Other code of the rows is another cache.
    before = reading.identity(run.data, "a", vocabularies.load(run.vocabulary))
    monkeypatch.setattr(seqio.TaskRegistry.get("measured:sst2").source, "code", (__file__,))
    assert reading.identity(run.data, "a", vocabularies.load(run.vocabulary)) != before


def test_files_are_measured_on_what_prepare_holds_out(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"inputs": str(i), "targets": "ab"[i % 2], "part": i // 4} for i in range(60)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = with_data(run_of(), sources={"a": config.TableInputsTargets(str(path))}, validation_fraction=0.3)
    lm = language_model(run)
    held_out = sum(splits.held_out([str(i) for i in range(60)], 0.3)[1])
    assert 5 < held_out < 40
    assert task_metrics.evaluate(lm, run, "a", show_progress=False)["examples"] == held_out
    metrics = task_metrics.evaluate(lm, run, "a:train", show_progress=False)
    assert metrics["examples"] == 60 - held_out and 0.5 <= metrics["most_frequent_accuracy"] < 0.8
    grouped = with_data(run, sources={"a": config.TableInputsTargets(str(path), group="part")})
    metrics = task_metrics.evaluate(lm, grouped, "a", show_progress=False)
    assert metrics["examples"] == sum(splits.held_out([str(i // 4) for i in range(60)], 0.3)[1])
    with pytest.raises(UserError, match="'a' has no examples"):
        task_metrics.evaluate(lm, with_data(run, validation_fraction=0.0), "a")
    few = with_data(run, validation_fraction=1e-4, cache_dir=str(tmp_path / "cache"))
    preparation.prepare(few, show_progress=False)
    rule, are_held_out = splits.held_out([str(i) for i in range(60)], 1e-4)
    assert (rule, sum(are_held_out)) == ("top-up", 6)
    split = cache.open_source(few.data.cache_dir, "a").splits["validation"]
    rows = [bytes(split.tokens(*of).astype(np.uint8)).decode() for of in itertools.pairwise(split.documents)]
    assert sorted(rows) == sorted(f"{i}{'ab'[i % 2]}" for i in itertools.compress(range(60), are_held_out))
    assert task_metrics.evaluate(lm, few, "a", show_progress=False)["examples"] == 6
    assert task_metrics.evaluate(lm, few, "a:train", show_progress=False)["examples"] == 54


def test_a_metric_function_in_per_cent_is_refused_before_anything_is_decoded(register, tmp_path, monkeypatch):
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROWS["glue_sst2"][0][0]) + "\n")
    paths = {split: str(tmp_path / "rows.jsonl") for split in ("train", "validation")}
    source = register("glue_sst2", suite.FromJsonLines(paths), "measured:percent")

    def percent(targets, predictions):
        return {"f1": 100 * np.mean(np.equal(targets, predictions))}

    task = seqio.TaskRegistry.get("measured:percent")
    monkeypatch.setattr(type(task), "predict_metric_fns", [percent])
    run = with_data(run_of(), sources={"a": source})
    monkeypatch.setattr(task_metrics._Answerer, "answers", lambda self: pytest.fail("it decodes"))
    with pytest.raises(UserError, match="returns f1 100, which is declared as a fraction"):
        task_metrics.evaluate(language_model(run), run, "a", show_progress=False)


def test_a_metric_function_gives_the_unit_that_is_declared_and_t5s_gives_per_cent():
    def measure(targets, predictions):
        right = 100 * np.mean(np.equal(targets, predictions))
        return {"accuracy": right, "mine": right, "bleu": right, "nothing": float("nan"), "text": "x"}

    with pytest.raises(UserError, match="accuracy 75, which is declared as a fraction from 0 to 1: return a value"):
        task_metrics._values(measure, [1, 2, 3, 4], [1, 2, 3, 0])
    measure.__module__ = "t5.evaluation.metrics"
    for function in (measure, functools.partial(measure)):
        values = task_metrics._values(function, [1, 2, 3, 4], [1, 2, 3, 0], "trivial_")
        assert values == {"trivial_accuracy": 0.75, "trivial_mine": 75.0, "trivial_bleu": 75.0}
