"""The benchmarks of cleaning and of preparing run to their ends at tiny sizes."""

import importlib
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def test_cleaning_is_measured_against_c4(monkeypatch):
    utils = pytest.importorskip("tensorflow_datasets.text.c4_utils")
    for name in ("_SENTENCE_TOKENIZER", "get_counter_inc_fn"):  # The benchmark sets them.
        monkeypatch.setattr(utils, name, getattr(utils, name))
    result = importlib.import_module("clean").run(tiny=True)
    assert list(result["rules"]) == ["length", "lines", "language", "bad words", "all"]
    assert result["rules"]["all"]["pages"] == 20 and result["rules"]["all"]["ratio"] > 0
    assert result["rules"]["lines"]["left"] == result["rules"]["language"]["pages"] > 0


def test_preparing_is_measured():
    flags = ["--tiny", "--runners", "one_pass", "--kinds", "gpt2"]
    command = [sys.executable, str(ROOT / "benchmarks" / "prepare.py"), *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert 0.2 <= result["megabytes_of_text"] < 0.5 and result["reading"]["batches"] == 2
    assert list(result["kinds"]) == ["gpt2"]
    kind = result["kinds"]["gpt2"]
    run, rate = kind["runners"]["one_pass"], kind["bare_megabytes_per_second"]
    assert kind["caches_are_the_same"] and list(kind["runners"]) == ["one_pass"] and run["tree_megabytes"] > 50
    assert run["seconds"] > 0 and run["megabytes"][0]["resident"] > 50
    assert abs(run["ratio"] - run["megabytes_per_second"] / rate) < 0.01
