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
    found = importlib.import_module("clean").run(tiny=True)
    assert list(found["rules"]) == ["length", "lines", "language", "bad words", "all"]
    assert found["rules"]["all"]["pages"] == 20 and found["rules"]["all"]["ratio"] > 0
    assert found["rules"]["lines"]["left"] == found["rules"]["language"]["pages"] > 0


def test_preparing_is_measured():
    flags = ["--tiny", "--runners", "local", "--kinds", "sentencepiece", "gpt2"]
    command = [sys.executable, str(ROOT / "benchmarks" / "prepare.py"), *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 0.2 <= found["megabytes_of_text"] < 0.5 and found["reading"]["batches"] == 2
    assert list(found["kinds"]) == ["sentencepiece", "gpt2"]
    for kind in found["kinds"].values():
        run, rate = kind["runners"]["local"], kind["bare_megabytes_per_second"]
        assert run["seconds"] > 0 and run["megabytes"][0]["resident"] > 50
        assert abs(run["ratio"] - run["megabytes_per_second"] / rate) < 0.01
