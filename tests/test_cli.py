"""What the verbs' command lines mean."""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys

import flax

import plm_jax
from plm_jax import config
from tests.support import tiny as tiny_config


def test_relative_paths_in_overrides_start_at_the_working_directory(tmp_path, monkeypatch):
    """Each kind of place; those of the file count from the file, and absolute and remote ones stay."""
    monkeypatch.chdir(tmp_path)
    tree = config.to_config_dict(tiny_config.PLAIN)
    tree.train.init_from, tree.vocabulary.spec = "runs/a", "bpe:v.json,/m.txt"
    tree.data.sources.b.path = "gs://bucket/b.jsonl"

    def places(*overridden):
        run = config.resolve(tree, "configs/tiny.py", overridden)
        paths = [source.path for source in run.data.sources.values()]
        return [*paths, run.data.cache_dir, run.vocabulary.spec, run.train.init_from]

    file, here = f"{tmp_path}/configs", str(tmp_path)
    remote = "gs://bucket/b.jsonl"
    assert places() == [f"{file}/a.jsonl", remote, f"{file}/cache", f"bpe:{file}/v.json,/m.txt", f"{file}/runs/a"]
    fields = ["data.sources.a.path", "data.sources.b.path", "data.cache_dir", "vocabulary.spec", "train.init_from"]
    assert places(*fields) == [
        f"{here}/a.jsonl",
        remote,
        f"{here}/cache",
        f"bpe:{here}/v.json,/m.txt",
        f"{here}/runs/a",
    ]
    assert places("data", "vocabulary", "train") == places(*fields)
    mixed = places("data.sources.a.path")
    assert mixed[0] == f"{here}/a.jsonl" and mixed[2:] == places()[2:]


def test_prepare_and_pretrain_read_the_overrides_of_where_the_user_stands(tiny, verb, tmp_path):
    shutil.copy(tiny / "a.jsonl", tmp_path / "mine.jsonl")
    config_file = os.path.relpath(tiny / "tiny.py", tmp_path)
    flags = [f"--config={config_file}", "--config.data.sources.a.path=mine.jsonl", "--config.data.cache_dir=mine"]
    prepared = verb("prepare", *flags, folder=tmp_path)
    assert prepared.status == 0, prepared.err
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["a", "b"]
    # It prepares nothing of its own.
    validating = ("--config.evaluation.every=1", "--config.evaluation.max_batches=1")
    trained = verb("pretrain", *flags, "--workdir=run", "--config.train.steps=1", *validating, folder=tmp_path)
    assert trained.status == 0 and "preparing" not in trained.err, trained.err
    for what in ("step 1", "validation, and validating"):
        assert re.search(rf"^compiling {what}: \d+\.\d s$", trained.err, re.MULTILINE), trained.err
    assert "\r" not in trained.err
    data = json.loads((tmp_path / "run" / "config.json").read_text())["config"]["data"]
    assert data["cache_dir"] == f"{tmp_path}/mine" and data["sources"]["a"]["path"] == f"{tmp_path}/mine.jsonl"
    assert data["sources"]["b"]["path"] == f"{tiny}/b.jsonl"


# The time from which on something is told is no time at all, and what is told is told once.
PATIENT = """
import runpy, sys
from plm_jax.common import progress
progress.SILENCE_SECONDS, progress.pause = 0, lambda seconds, terminal: 1000
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def test_generate_says_what_it_waits_for_beside_the_text(tiny, verb, tmp_path):
    workdir = tmp_path / "run"
    trained = verb("pretrain", f"--config={tiny}/tiny.py", f"--workdir={workdir}", "--config.train.steps=1")
    assert trained.status == 0, trained.err
    command = [sys.executable, "-c", PATIENT, "plm_jax.cli.generate", f"--checkpoint={workdir}", "--prompt=of a"]
    done = subprocess.run([*command, "--max_new_tokens=3"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("of a") and "loading" not in done.stdout and done.stdout.count("\n") == 1
    matches = re.findall(r"^(.*): \d+ s$", done.stderr, re.MULTILINE)
    verified = f"verifying {workdir}/checkpoints/1"
    assert matches == [
        "loading JAX",
        verified,
        f"loading {workdir}",
        "loading the vocabulary",
        "compiling and generating",
    ]


def test_version_prints_what_a_report_of_a_bug_needs():
    command = [sys.executable, "-m", "plm_jax", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    versions = dict(line.split(" ") for line in done.stdout.splitlines())
    assert versions["plm_jax"] == plm_jax.__version__ and versions["python"] == platform.python_version()
    assert versions["jax"] == importlib.metadata.version("jax") and versions["flax"] == flax.__version__
