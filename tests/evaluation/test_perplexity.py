import json
import threading

import jax
import numpy as np
import pytest

from plm_jax.common import keys, storage
from plm_jax.common.errors import UserError
from plm_jax.data import cache
from plm_jax.evaluation import perplexity
from plm_jax.inference.language_model import LanguageModel
from plm_jax.runs.telemetry import read_lines
from plm_jax.training import state
from tests.support import runs


@pytest.fixture(scope="module")
def run(tiny):
    return runs.make(tiny, evaluation={"batch_size": 8})


@pytest.fixture(scope="module")
def lm(run):
    lm = LanguageModel(run.model, {})
    params = jax.jit(lambda: jax.tree.map(lambda x: 5 * x, state.init_params(lm.model, keys.from_seed(0))))()
    vocabulary_id = cache.read_manifest(f"{run.data.cache_dir}/a")["vocabulary"]["id"]
    return LanguageModel(run.model, jax.tree.map(np.asarray, jax.device_get(params)), vocabulary_id=vocabulary_id)


def test_other_splits_and_mistakes(run, lm):
    train = perplexity.evaluate(lm, run, "b:train", show_progress=False)
    assert train["tokens"] > perplexity.evaluate(lm, run, "b", show_progress=False)["tokens"]
    from_elsewhere = LanguageModel(lm.config, lm.params, vocabulary_spec="bytes")
    assert perplexity.evaluate(from_elsewhere, run, "b:train", show_progress=False) == train
    with pytest.raises(UserError, match="no task 'c'"):
        perplexity.evaluate(lm, run, "c")
    with pytest.raises(UserError, match="no split 'tran': did you mean 'train'"):
        perplexity.evaluate(lm, run, "a:tran")
    stranger = LanguageModel(lm.config, lm.params, vocabulary_id="0" * 64)
    with pytest.raises(UserError, match="run prepare --from=CHECKPOINT to make a cache with the model's vocabulary"):
        perplexity.evaluate(stranger, run, "a")


def test_verbs_evaluate_generate_and_report(verb, tiny, tmp_path):
    workdir = tmp_path / "run"
    assert verb("pretrain", f"--config={tiny}/tiny.py", f"--workdir={workdir}").status == 0
    checkpoint = f"--checkpoint={workdir}"
    evaluated = verb("evaluate", checkpoint, "--tasks=a,b:train", f"--output={tmp_path}/out.json")
    assert evaluated.status == 0, evaluated.err
    metrics = json.loads((tmp_path / "out.json").read_text())
    assert set(metrics) == {"a", "b:train"}
    (row,) = [json.loads(line) for line in (workdir / "evaluation.jsonl").read_text().splitlines()]
    assert row["step"] == 6
    assert row["b:train/loss"] == metrics["b:train"]["loss"]
    assert "the sea" in verb("generate", checkpoint, "--prompt=the sea", "--max_new_tokens=8").out
    (tmp_path / "prompts.txt").write_text("the sea\nthe\nof a\n")
    files = f"--prompts={tmp_path}/prompts.txt", f"--output={tmp_path}/answers.jsonl"
    options = "--batch_size=2", "--num_beams=2", "--num_return_sequences=2", "--max_new_tokens=4", "--decoding=t5"
    written = verb("generate", checkpoint, *files, *options)
    assert written.status == 0, written.err
    rows = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [(row["prompt"], len(row["answers"])) for row in rows] == [("the sea", 2), ("the", 2), ("of a", 2)]
    refused = verb("generate", checkpoint, "--num_beams=two")
    assert (refused.status, refused.errors) == (2, ["error: decoding.num_beams is 'two': must be an integer"])
    reported = verb("report", f"--workdirs={workdir}", f"--output={tmp_path}/report.html")
    assert reported.out.strip().splitlines()[-1] == str(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert f"<td>{metrics['a']['real_loss']:.3f}</td>" in page
    assert verb("report", f"--workdirs={tiny}", f"--output={tmp_path}/x.html").status == 2


def test_two_evaluations_of_a_run_at_the_same_time_keep_both_rows(tmp_path, monkeypatch):
    read, logs = storage.read, [perplexity.EvaluationLog(str(tmp_path), step) for step in (1, 2, 3)]
    other = threading.Thread(target=logs[2].write, args=({"a": {"loss": 3.0}},))

    def read_while_another_evaluation_writes(path):
        monkeypatch.setattr(storage, "read", read)
        rows = read(path)
        other.start()
        other.join(0.2)
        return rows

    logs[0].write({"a": {"loss": 1.0}})
    monkeypatch.setattr(storage, "read", read_while_another_evaluation_writes)
    logs[1].write({"a": {"loss": 2.0}})
    other.join()
    assert [row["step"] for row in read_lines(str(tmp_path / "evaluation.jsonl"))] == [1, 2, 3]
    assert storage.names(str(tmp_path)) == ["evaluation.jsonl"]
