"""lm-eval's tasks by our model and, where there are torch and accelerate, by lm-eval's own: the same to rounding."""

import dataclasses
import functools
import json
import types

import flax.linen as nn
import jax
import pytest

pytest.importorskip("lm_eval")

import plm_jax
from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.configs import t5
from plm_jax.evaluation import harness
from plm_jax.inference.language_model import LanguageModel
from plm_jax.models import registry
from tests import golden
from tests.support import tiny

PEERS = ("torch", "transformers", "accelerate")  # lm-eval's own model needs them.


@pytest.fixture
def folder(tmp_path, scripts, monkeypatch):
    """A folder for tasks and models; no hub is reached."""
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def few_tasks(monkeypatch):
    """Leaves out lm-eval's own tasks, whose list takes seconds to read."""
    from lm_eval.tasks import TaskManager

    monkeypatch.setattr(harness, "TaskManager", functools.partial(TaskManager, include_defaults=False))


def read(folder, side):
    return json.loads((folder / f"{side}.json").read_text())


def assert_same_answers(figures, task):
    assert figures["requests"] >= 3 and not figures["metrics_differ"] and not figures["greedy_or_text_differs"], task


def test_answers_equal_those_of_transformers(folder):
    import harness as bench

    for peer in PEERS:
        pytest.importorskip(peer)
    bench.write_tasks(folder, rows=4)
    bench.make_model(folder)
    bench.evaluate_ours(folder)
    ours = read(folder, "ours")
    assert ours["samples"].keys() == bench.TASKS.keys()
    assert ours["metrics"]["speeches"]["word_perplexity"] > 1
    bench.evaluate_theirs(folder)
    for task, figures in bench.compared(read(folder, "theirs"), ours, prompts={}).items():
        assert_same_answers(figures, task)
        if task == "speeches":
            assert figures["largest_relative_difference"] < 1e-5
        else:
            assert figures["largest_difference"] < 1e-3
        assert task != "greedy" or 0 < figures["greedy"] < figures["requests"]


def test_an_encoder_decoder_answers_as_theirs_does(folder):
    import harness as bench

    for peer in PEERS:
        pytest.importorskip(peer)
    tasks = [task for task in bench.TASKS if task != "speeches"]  # It does not score whole texts.
    bench.write_tasks(folder, rows=4)
    # With untied weights lm-eval 0.4.13 ties those of transformers 5's T5, whatever its config says.
    model = t5.model(layers=2, width=64, heads=4, head_dim=16, feed_forward=128, v1_1=False, vocab_size=50258)
    bench.make_model(folder, model, pad_token_id=50257)
    bench.evaluate_ours(folder, tasks)
    bench.evaluate_theirs(folder, tasks)
    theirs, ours = read(folder, "theirs"), read(folder, "ours")
    written = [sorted(side["samples"].pop("written"), key=str) for side in (theirs, ours)]
    for their_row, our_row in zip(*written, strict=True):
        # Its limit of new tokens counts those of the encoder, too.
        assert their_row[:2] == our_row[:2] and their_row[2][0][0].startswith(our_row[2][0][0])
    for task, figures in bench.compared(theirs, ours, prompts={}).items():
        assert_same_answers(figures, task)
        assert figures["largest_difference"] < 1e-3
        assert task != "greedy" or figures["greedy"] > 0


def test_metrics_are_those_of_lm_eval_s_own_evaluation_and_no_program_is_run(folder, few_tasks, monkeypatch, capfd):
    import harness as bench
    import lm_eval
    from lm_eval.tasks import TaskManager

    bench.write_tasks(folder, rows=6)
    bench.make_model(folder)
    # Few-shot examples drawn at random, and a task without a number of them.
    text = (folder / "sentiment.yaml").read_text().replace("task: sentiment", "task: drawn")
    (folder / "drawn.yaml").write_text(f"{text}num_fewshot: 3\n")
    lm, names = plm_jax.load(folder / "model"), ["drawn", "sentiment"]
    monkeypatch.chdir(folder)  # Not a git repository.
    with monkeypatch.context() as patch:
        patch.setattr("subprocess.Popen", None)
        metrics = harness.evaluate(lm, names, str(folder), show_progress=False)
    assert "fatal" not in capfd.readouterr().err
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    model = harness.HarnessModel(lm, show_progress=False)
    expected = lm_eval.simple_evaluate(model, tasks=names, task_manager=manager, log_samples=False)["results"]
    for name in names:
        assert metrics[name]["acc"] == expected[name]["acc,none"]
        assert metrics[name]["acc_norm_stderr"] == pytest.approx(expected[name]["acc_norm_stderr,none"], abs=0.02)


def test_an_unknown_or_repeated_task_is_one_line(tmp_path, few_tasks):
    lm = plm_jax.load(golden.FOLDER / "gpt2")
    task = f"dataset_path: json\ndataset_kwargs: {{data_files: {tmp_path}/rows.jsonl}}\ntest_split: train\n"
    task += "output_type: loglikelihood\ndoc_to_text: a\ndoc_to_target: b\ntask: mine\n"
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "mine.yaml").write_text(task)
    (tmp_path / "group.yaml").write_text("group: ours\ntask: [mine]\n")
    for model, tasks, message in (
        (lm, ["mine", "ours"], r"Duplicate task 'mine'.*name each task once"),
        (lm, ["mines"], "lm-eval has no task 'mines': did you mean 'mine'"),
        (plm_jax.load(golden.FOLDER / "bert"), ["mine"], "does not continue text"),
    ):
        with pytest.raises(UserError, match=message):
            harness.evaluate(model, tasks, include_path=str(tmp_path), show_progress=False)


def test_decoding_is_set_by_the_task_and_not_by_the_run():
    params = nn.unbox(registry.init_params(registry.build(tiny.MODEL), jax.random.key(0)))
    decoding = config.DecodingConfig(temperature=5.0, num_return_sequences=2)
    run = dataclasses.replace(tiny.PLAIN, evaluation=config.EvaluationConfig(decoding=decoding))
    request = types.SimpleNamespace(args=("The sea", {"until": ["\n"], "max_gen_toks": 8}))
    models = [
        LanguageModel(tiny.MODEL, params, vocabulary_spec="bytes", special_ids={"eos_token_id": 256}, run=lm_run)
        for lm_run in (None, run)
    ]
    plain, configured = (harness.HarnessModel(lm, show_progress=False).generate_until([request]) for lm in models)
    assert configured == plain
