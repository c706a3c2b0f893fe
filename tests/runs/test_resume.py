"""Resuming exactly: after kills, on other devices, with other settings of speed."""

import json
import os
import subprocess

import numpy as np
import pytest

from plm_jax import config
from plm_jax.data import reader
from tests.support import resume, runs
from tests.support.tiny import RUNS


@pytest.fixture(scope="module")
def uninterrupted(tiny, verb, tmp_path_factory):
    """Function that returns the directory of an uninterrupted run on one device by its name."""
    folder = tmp_path_factory.mktemp("uninterrupted")

    def get(name):
        if not (folder / name).exists():
            finished = verb("pretrain", f"--config={tiny}/tiny.py:{name}", f"--workdir={folder / name}")
            assert finished.status == 0, finished.err
        return folder / name

    return get


# Each takes long: PLM_JAX_FULL_TESTS=1 runs every family.
FULL = bool(os.environ.get("PLM_JAX_FULL_TESTS"))
FAMILIES = ("everything", "bert_everything", "bert_packed_everything", "t5_everything", "electra_everything")


@pytest.mark.parametrize(("name", "kills"), [("separate", 1), *(((n, 2) for n in FAMILIES) if FULL else ())])
def test_killed_run_equals_uninterrupted_run(name, kills, tiny, verb, uninterrupted, tmp_path):
    reference = uninterrupted(name)
    cut_off = resume.train_with_kills(verb, tiny, name, tmp_path / "killed", kills, seed=1)
    assert cut_off >= 1, "no kill interrupted a save"
    assert resume.last_step(reference) == RUNS[name].train.steps
    assert resume.differences(tmp_path / "killed", reference) == []


def assert_same_within(tolerance, workdir, reference):
    digests, losses = (runs.column(workdir, f"train/{name}") for name in ("batch_digest", "loss"))
    assert digests == runs.column(reference, "train/batch_digest")
    expected = runs.column(reference, "train/loss")
    assert losses.keys() == expected.keys()
    for step in expected:
        np.testing.assert_allclose(losses[step], expected[step], rtol=tolerance, err_msg=str(step))


RUNS_AND_STEPS = [(name, 8) for name in FAMILIES] if FULL else [("dropout", 3)]


@pytest.mark.parametrize(("name", "step"), RUNS_AND_STEPS)
def test_run_resumes_on_eight_devices(name, step, tiny, uninterrupted, tmp_path):
    reference = uninterrupted(name)
    workdir = runs.copy_at(reference, tmp_path / "eight", step)
    assert os.listdir(os.environ["JAX_COMPILATION_CACHE_DIR"])
    meshes = ("--config.mesh.data=2", "--config.mesh.fsdp=4")
    finished = subprocess.run(
        resume.command(tiny, name, workdir, *meshes),
        env=resume.environment(8) | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled")},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0 and f"resumed after step {step}" in finished.stderr, finished.stderr
    assert_same_within(1e-5, workdir, reference)
    # Programs for several CPU devices deadlock when they are loaded from the cache.
    assert not list(tmp_path.glob("compiled/*-cache"))


@pytest.mark.parametrize(("name", "step"), RUNS_AND_STEPS)
def test_run_resumes_with_two_processes(name, step, tiny, verb, uninterrupted, tmp_path):
    reference = uninterrupted(name)
    workdir = runs.copy_at(reference, tmp_path / "two", step)
    words = (f"--config={tiny}/tiny.py:{name}", f"--workdir={workdir}", "--config.mesh.data=1", "--config.mesh.fsdp=2")
    for process in [each.finished() for each in verb.start_job("pretrain", *words)]:
        assert process.status == 0, process.err
    assert json.loads((workdir / "config.json").read_text())["history"][-1]["step"] == step
    assert_same_within(1e-5, workdir, reference)
    assert not list((workdir / "checkpoints").glob("*tmp*"))


@pytest.mark.parametrize(
    "switches", [{"scan_layers": False}, {"remat": "full", "attention_kernel": "cudnn"}, {"remat": "dots"}], ids=str
)
def test_speed_settings_keep_the_losses(switches, tiny, verb, uninterrupted, tmp_path):
    reference = uninterrupted("dropout")
    workdir = runs.copy_at(reference, tmp_path / "switched", 3)
    options = [f"--config.model.{name}={value}" for name, value in switches.items()]
    finished = verb("pretrain", f"--config={tiny}/tiny.py:dropout", f"--workdir={workdir}", *options)
    assert finished.status == 0 and "resumed after step 3" in finished.err, finished.err
    assert_same_within(1e-6, workdir, reference)
    model = json.loads((workdir / "config.json").read_text())["config"]["model"]
    assert {name: model[name] for name in switches} == switches
    assert finished.err.count("attention of 'stack' uses the xla kernel") == 1
    assert ("cudnn needs an NVIDIA GPU, not a cpu" in finished.err) == ("attention_kernel" in switches)


def test_resumed_reader_reads_no_earlier_examples(tiny):
    run = runs.make(tiny, RUNS["plain"], train={"steps": 2_000_000})
    for step in (10, 1_000_000):
        opened, numbers = reader.Reader(config.reader_config(run)), []
        example = opened.example

        def count(k, numbers=numbers, example=example):
            numbers.append(k)
            return example(k)

        opened.example = count
        batches = opened.batches(step)
        for _ in range(3):
            next(batches)
        batches.close()
        size = run.train.batch_size
        assert min(numbers) == step * size
        ahead = 3 + run.data.prefetch + 2 * run.data.threads
        assert 3 * size <= len(set(numbers)) == len(numbers) <= ahead * size
