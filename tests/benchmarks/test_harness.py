"""lm-eval's tasks by our model and, where there are torch and accelerate, by lm-eval's own: the same to rounding."""

import functools
import importlib.util
import json

import pytest

pytest.importorskip("lm_eval")


def test_ours_answers_as_theirs_does(tmp_path, scripts, monkeypatch):
    import harness

    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    harness.write_tasks(tmp_path, rows=4)
    harness.make_model(tmp_path)
    harness.evaluate_ours(tmp_path)
    ours = json.loads((tmp_path / "ours.json").read_text())
    assert ours["samples"].keys() == harness.TASKS.keys()
    assert ours["metrics"]["speeches"]["word_perplexity"] > 1
    if not all(map(importlib.util.find_spec, ("torch", "transformers", "accelerate"))):
        pytest.skip("lm-eval's own model needs torch, transformers and accelerate")
    harness.evaluate_theirs(tmp_path)
    theirs = json.loads((tmp_path / "theirs.json").read_text())
    for task, figures in harness.compared(theirs, ours, prompts={}).items():
        assert figures["requests"] >= 3 and not figures["metrics_differ"] and not figures["greedy_or_text_differs"], (
            task
        )
        if task == "speeches":
            assert figures["largest_relative_difference"] < 1e-5
        else:
            assert figures["largest_difference"] < 1e-3
        if task == "greedy":
            assert 0 < figures["greedy"] < figures["requests"]


def test_an_encoder_decoder_answers_as_theirs_does(tmp_path, scripts, monkeypatch):
    import harness

    from plm_jax.configs import t5

    for needed in ("torch", "transformers", "accelerate"):
        pytest.importorskip(needed)
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    tasks = [task for task in harness.TASKS if task != "speeches"]  # Whole texts it does not tell.
    harness.write_tasks(tmp_path, rows=4)
    # With a head of its own lm-eval 0.4.13 ties the weights of transformers 5's T5, whatever its config says.
    model = t5.model(layers=2, width=64, heads=4, head_dim=16, feed_forward=128, v1_1=False, vocab_size=50258)
    harness.make_model(tmp_path, model, pad_token_id=50257)
    harness.evaluate_ours(tmp_path, tasks)
    harness.evaluate_theirs(tmp_path, tasks)
    theirs, ours = (json.loads((tmp_path / f"{side}.json").read_text()) for side in ("theirs", "ours"))
    written = [sorted(side["samples"].pop("written"), key=str) for side in (theirs, ours)]
    for of_theirs, of_ours in zip(*written, strict=True):
        # Its limit of new tokens counts those of the encoder, too.
        assert of_theirs[:2] == of_ours[:2] and of_theirs[2][0][0].startswith(of_ours[2][0][0])
    for task, figures in harness.compared(theirs, ours, prompts={}).items():
        assert figures["requests"] >= 3 and not figures["metrics_differ"] and not figures["greedy_or_text_differs"], (
            task
        )
        assert figures["largest_difference"] < 1e-3
        assert task != "greedy" or figures["greedy"] > 0


def test_metrics_are_those_of_lm_eval_s_own_evaluation_and_no_program_is_run(tmp_path, scripts, monkeypatch, capfd):
    import harness as tasks
    import lm_eval
    from lm_eval.tasks import TaskManager

    import plm_jax
    from plm_jax.evaluation import harness

    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    tasks.write_tasks(tmp_path, rows=6)
    tasks.make_model(tmp_path)
    # Few-shot examples drawn at random, and a task without a number of them.
    (tmp_path / "drawn.yaml").write_text(
        (tmp_path / "sentiment.yaml").read_text().replace("task: sentiment", "task: drawn") + "num_fewshot: 3\n"
    )
    lm, names = plm_jax.load(tmp_path / "model"), ["drawn", "sentiment"]
    monkeypatch.chdir(tmp_path)  # Not a git repository.
    with monkeypatch.context() as patch:
        patch.setattr("subprocess.Popen", None)
        patch.setattr(harness, "TaskManager", functools.partial(TaskManager, include_defaults=False))
        metrics = harness.evaluate(lm, names, str(tmp_path), show_progress=False)
    assert "fatal" not in capfd.readouterr().err
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    model = harness.HarnessModel(lm, show_progress=False)
    expected = lm_eval.simple_evaluate(model, tasks=names, task_manager=manager, log_samples=False)["results"]
    for name in names:
        assert metrics[name]["acc"] == expected[name]["acc,none"]
        assert metrics[name]["acc_norm_stderr"] == pytest.approx(expected[name]["acc_norm_stderr,none"], abs=0.02)


def test_a_task_in_two_groups_is_one_line(tmp_path, monkeypatch):
    from lm_eval.tasks import TaskManager

    import plm_jax
    from plm_jax.common.errors import UserError
    from plm_jax.evaluation import harness
    from tests import golden

    lm = plm_jax.load(golden.FOLDER / "gpt2")
    task = f"dataset_path: json\ndataset_kwargs: {{data_files: {tmp_path}/rows.jsonl}}\ntest_split: train\n"
    task += "output_type: loglikelihood\ndoc_to_text: a\ndoc_to_target: b\ntask: mine\n"
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "mine.yaml").write_text(task)
    (tmp_path / "group.yaml").write_text("group: ours\ntask: [mine]\n")
    monkeypatch.setattr(harness, "TaskManager", functools.partial(TaskManager, include_defaults=False))
    with pytest.raises(UserError, match=r"Duplicate task 'mine'.*name each task once"):
        harness.evaluate(lm, ["mine", "ours"], include_path=str(tmp_path), show_progress=False)


def test_an_unknown_task_is_one_line(tmp_path, scripts):
    import harness as tasks

    import plm_jax
    from plm_jax.common.errors import UserError
    from plm_jax.evaluation import harness
    from tests import golden

    tasks.write_tasks(tmp_path, rows=4)
    lm = plm_jax.load(golden.FOLDER / "gpt2")
    with pytest.raises(UserError, match="lm-eval has no task 'sentimentt': did you mean 'sentiment'"):
        harness.evaluate(lm, ["sentimentt"], include_path=str(tmp_path))
    with pytest.raises(UserError, match="does not continue text"):
        harness.evaluate(plm_jax.load(golden.FOLDER / "bert"), ["sentiment"], include_path=str(tmp_path))


def test_a_task_says_how_to_decode_and_not_the_run():
    import dataclasses
    import types

    import flax.linen as nn
    import jax

    from plm_jax import config
    from plm_jax.evaluation import harness
    from plm_jax.inference.language_model import LanguageModel
    from plm_jax.models import registry
    from tests.support import tiny

    params = nn.unbox(registry.init_params(registry.build(tiny.MODEL), jax.random.key(0)))
    decoding = config.DecodingConfig(temperature=5.0, num_return_sequences=2)
    run = dataclasses.replace(tiny.PLAIN, evaluation=config.EvaluationConfig(decoding=decoding))
    request = types.SimpleNamespace(args=("The sea", {"until": ["\n"], "max_gen_toks": 8}))
    plain, configured = (
        harness.HarnessModel(
            LanguageModel(tiny.MODEL, params, vocabulary_spec="bytes", special_ids={"eos_token_id": 256}, run=of),
            show_progress=False,
        ).generate_until([request])
        for of in (None, run)
    )
    assert configured == plain
