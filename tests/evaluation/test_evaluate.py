"""`evaluate` of a run with phases, of whose sources one holds out nothing."""

import dataclasses
import json
import re
import types

import numpy as np
import pytest

import plm_jax
from plm_jax import config
from plm_jax.evaluation import evaluate, perplexity
from plm_jax.experiments import report, summary
from plm_jax.runs import loop, train, transfer
from tests.runs import test_validation
from tests.runs.test_validation import by_hand
from tests.support import tiny as tiny_runs
from tests.support.resume import json_lines
from tests.support.verbs import assert_one_line

folder = test_validation.folder


@pytest.fixture(scope="module")
def workdir(folder, tmp_path_factory):
    """Four steps in rows of 16, then of 32, saved every two."""
    path = tmp_path_factory.mktemp("evaluate") / "run"
    phases = (config.PhaseConfig(until=0.5, length=16), config.PhaseConfig(until=1.0))
    run = test_validation.make(folder, phases=phases)
    train, checkpoint = dataclasses.replace(run.train, steps=4), config.CheckpointConfig(save_every=2)
    loop.pretrain(dataclasses.replace(run, train=train, checkpoint=checkpoint), str(path))
    return path


def rows(workdir):
    return json_lines(workdir / "evaluation.jsonl")


def test_rows_have_the_length_of_the_checkpoints_phase_and_of_the_last(workdir):
    early, late = (plm_jax.load(str(workdir / "checkpoints" / step)) for step in "24")
    metrics = perplexity.evaluate(early, early.run, "a", show_progress=False)
    assert (metrics["length"], metrics["32/length"]) == (16, 32)
    expected = [by_hand(early.run, early.params, "a", length) for length in (16, 32)]
    np.testing.assert_allclose([metrics["loss"], metrics["32/loss"]], expected, rtol=1e-5)
    metrics = perplexity.evaluate(late, late.run, "a", show_progress=False)
    assert metrics["length"] == 32 and not any(key.startswith("32/") for key in metrics)
    np.testing.assert_allclose(metrics["loss"], by_hand(late.run, late.params, "a", 32), rtol=1e-5)


def test_each_source_is_reported_and_recorded_and_one_without_held_out_text_is_a_line(verb, workdir, tmp_path):
    before, output = rows(workdir), tmp_path / "out.json"
    finished = verb("evaluate", f"--checkpoint={workdir}", f"--output={output}")
    assert finished.status == 0 and f"{workdir}: weights of step 4 of 4\n" in finished.err, finished.err
    lines = finished.out.splitlines()
    a, b = (
        next(i for i, line in enumerate(lines) if re.fullmatch(rf"{name} +value +trivial +verdict", line))
        for name in "ab"
    )
    assert a < b and any(re.fullmatch(r"  length +32", line) for line in lines[a:b])
    # The unigram model is the baseline of the loss without special tokens.
    assert any(re.fullmatch(r"  real_loss +[\d.]+ +[\d.]+ +(not )?better", line) for line in lines[a:b])
    assert not any("unigram_loss" in line for line in lines)
    assert lines[-1].startswith("c: 'c' has no validation data: name ")
    metrics = json.loads(output.read_text())
    assert metrics.keys() == {"a", "b", "c"} and metrics["c"] == {"tokens": 0}
    flat = {f"{task}/{name}": value for task, found in metrics.items() for name, value in found.items()}
    assert rows(workdir) == [*before, {"step": 4, **flat}]


def test_the_summary_of_training_has_the_baseline_of_evaluate(workdir):
    """Validation reads all rows here, so that both have the same targets."""
    lm, result = plm_jax.load(str(workdir)), train.TrainResult(str(workdir), 4, {})
    assert not lm.run.evaluation.max_batches
    lines = summary.lines([result], 1.0)
    assert lines[-1].endswith(f"convert --source={workdir} --target=DIR --format=huggingface")
    for name in "ab":
        (line,) = (line for line in lines if f"validation/{name}/nll " in line)
        unigram_loss = perplexity.evaluate(lm, lm.run, name, show_progress=False)["unigram_loss"]
        assert float(line.rpartition(" ")[2].strip("()")) == pytest.approx(unigram_loss, abs=1e-4), line


def test_finished_tasks_are_recorded_if_a_later_one_fails(verb, workdir):
    before = rows(workdir)
    finished = verb("evaluate", f"--checkpoint={workdir}", "--tasks=a,b:tran")
    assert finished.status == 2 and "no split 'tran'" in finished.err
    assert re.search(r"^a +value", finished.out, re.MULTILINE)
    *same, added = rows(workdir)
    assert same == before and {key.partition("/")[0] for key in added} == {"step", "a"}
    # A misspelled source is reported before anything is evaluated.
    before = rows(workdir)
    finished = verb("evaluate", f"--checkpoint={workdir}", "--config.data.length=16")
    assert_one_line(finished, "--config.data.length overrides a field of a config, but --config is missing: pass both")
    for tasks, message in (("a,z", "there is no task 'z'"), ("c", "'c' has no validation data: name another")):
        finished = verb("evaluate", f"--checkpoint={workdir}", f"--tasks={tasks}")
        assert_one_line(finished, message)
        assert rows(workdir) == before and "value" not in finished.out and message not in finished.out


def test_the_report_shows_the_validation_of_each_source(workdir, tmp_path):
    report.write([str(workdir)], str(tmp_path / "report.html"), str(tmp_path / "png"))
    pictures = {path.stem: path.read_bytes()[1:4] for path in (tmp_path / "png").iterdir()}
    names = ("loss", "validation_loss_by_source", "accuracy", "throughput", "learning_rate", "gradient_norm")
    assert pictures == dict.fromkeys(names, b"PNG")
    page = (tmp_path / "report.html").read_text()
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    measures = next(card["choices"] for card in data["cards"] if card["title"] == "Other metrics")
    assert {"a/loss", "b/loss", "32/loss"} <= measures.keys()
    assert {"validation/loss", "validation/a/loss"} <= data["runs"][0]["curves"].keys()


def test_a_single_source_run_drops_the_segmenters_of_other_sources():
    run = tiny_runs.PLAIN
    run = dataclasses.replace(run, data=dataclasses.replace(run.data, segmenters={"b": "jieba:lcut"}))
    only = perplexity.single_source_run(run, types.SimpleNamespace(config=run.model), "a", 16)
    assert (list(only.data.sources), only.data.segmenters, only.data.length) == (["a"], {}, 16)


def test_a_config_reads_the_caches_of_a_model_if_one_of_them_exists(tmp_path, monkeypatch):
    run = tiny_runs.PLAIN
    of_model = dataclasses.replace(run, data=dataclasses.replace(run.data, cache_dir=str(tmp_path)))
    monkeypatch.setattr(transfer, "resolve", lambda *_: of_model)
    assert len(config.read_sources(of_model)) > 1
    assert evaluate._with_caches_of(run, "model") is run
    (tmp_path / next(iter(config.read_sources(of_model)))).mkdir()
    assert evaluate._with_caches_of(run, "model") is of_model


def test_caches_of_prepare_from_serve_a_run_and_its_export(workdir, tiny, verb, tmp_path):
    converted = verb("convert", f"--source={workdir}", f"--target={tmp_path}/export")
    assert converted.status == 0, converted.err
    shared = (f"--config={tiny}/tiny.py", f"--config.data.cache_dir={tmp_path}/shared", "--tasks=a")
    metrics = []
    for number, model in enumerate((workdir, tmp_path / "export")):
        prepared = verb("prepare", *shared[:2], f"--from={model}")
        assert prepared.status == 0 and ("a: up to date" in prepared.out) == (number > 0), prepared.err
        evaluated = verb("evaluate", *shared, f"--checkpoint={model}", f"--output={tmp_path}/{number}.json")
        assert evaluated.status == 0, evaluated.err
        metrics.append(json.loads((tmp_path / f"{number}.json").read_text())["a"])
    (vocabulary,) = (tmp_path / "shared").iterdir()
    assert metrics[0] == metrics[1] and metrics[0]["tokens"] > 100
    assert vocabulary.name == plm_jax.load(str(workdir)).vocabulary_id[:12]
