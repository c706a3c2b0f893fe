"""Resuming exactly: after kills, on other devices, with other settings of speed."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from plm_jax import config
from plm_jax.data import reader
from tests.support import resume, runs
from tests.support.tiny import RUNS

LAUNCH = pathlib.Path(__file__).parents[2] / "launch" / "local.py"


@pytest.fixture(scope="module")
def left_alone(tiny, verb, tmp_path_factory):
    """`left_alone(name)` is the run directory of an uninterrupted run on one device."""
    folder = tmp_path_factory.mktemp("left_alone")

    def get(name):
        if not (folder / name).exists():
            finished = verb("pretrain", f"--config={tiny}/tiny.py:{name}", f"--workdir={folder / name}")
            assert finished.status == 0, finished.err
        return folder / name

    return get


def back_at(workdir: pathlib.Path, copy: pathlib.Path, step: int) -> pathlib.Path:
    """A copy of a run directory as it was when its newest checkpoint was that of `step`."""
    shutil.copytree(workdir, copy)
    later = [path for path in (copy / "checkpoints").iterdir() if int(path.name) > step]
    assert later and (copy / "checkpoints" / str(step)).exists()
    for path in later:
        shutil.rmtree(path)
    return copy


# Each takes long: PLM_JAX_FULL_TESTS=1 takes every family everywhere.
FULL = bool(os.environ.get("PLM_JAX_FULL_TESTS"))
FAMILIES = ("everything", "bert_everything", "t5_everything", "electra_everything")


@pytest.mark.parametrize(("name", "kills"), [("separate", 1), *(((n, 2) for n in FAMILIES) if FULL else ())])
def test_a_killed_run_is_the_same_to_the_bit(name, kills, tiny, left_alone, tmp_path):
    reference = left_alone(name)
    cut_off = resume.train_with_kills(tiny, name, tmp_path / "killed", kills, seed=1)
    assert cut_off >= 1, "no kill fell into a save"
    assert resume.last_step(reference) == RUNS[name].train.steps
    assert resume.differences(tmp_path / "killed", reference) == []


def test_the_run_that_is_killed_has_what_makes_it_hard(tiny):
    for name, separate in (("separate", True), ("everything", False)):
        run = runs.make(tiny, RUNS[name])
        opened = reader.Reader(config.reader_config(run))
        assert len(opened.sources) == 2 and run.train.microbatches == 2 and run.model.dropout.attention == 0.1
        assert run.data.layout.attend_across_documents is not separate
        first, second = opened._phases
        assert first.length != second.length and (first.end_step, second.end_step) == (12, 24)
        last = second.first_example + (second.end_step - second.first_step) * second.batch_size
        for source, items in opened._segments[-1].positions(last).items():
            assert items > opened._segments[-1].orders[source].num_items, "an epoch ends inside the run"


def assert_same_within(tolerance, workdir, reference):
    digests, losses = (runs.column(workdir, f"train/{name}") for name in ("batch_digest", "loss"))
    assert digests == runs.column(reference, "train/batch_digest")
    want = runs.column(reference, "train/loss")
    assert losses.keys() == want.keys()
    for step in want:
        np.testing.assert_allclose(losses[step], want[step], rtol=tolerance, err_msg=str(step))


RUNS_AND_STEPS = [(name, 8) for name in FAMILIES] if FULL else [("dropout", 3)]


@pytest.mark.parametrize(("name", "step"), RUNS_AND_STEPS)
def test_one_device_then_eight_is_the_same_run(name, step, tiny, verb, left_alone, tmp_path):
    reference = left_alone(name)
    workdir = back_at(reference, tmp_path / "eight", step)
    compiled = set(os.listdir(os.environ["JAX_COMPILATION_CACHE_DIR"]))
    assert compiled
    meshes = ("--config.mesh.data=2", "--config.mesh.fsdp=4")
    finished = verb("pretrain", f"--config={tiny}/tiny.py:{name}", f"--workdir={workdir}", *meshes, devices=8)
    assert finished.status == 0 and f"resumed after step {step}" in finished.err, finished.err
    assert_same_within(1e-5, workdir, reference)
    # Programs for several CPU devices deadlock when they are read back.
    assert set(os.listdir(os.environ["JAX_COMPILATION_CACHE_DIR"])) == compiled


@pytest.mark.parametrize(("name", "step"), RUNS_AND_STEPS)
def test_one_process_then_two_is_the_same_run(name, step, tiny, left_alone, tmp_path):
    reference = left_alone(name)
    workdir = back_at(reference, tmp_path / "two", step)
    launch = [sys.executable, str(LAUNCH), "--processes=2", "--devices=4", "--"]
    meshes = ("--config.mesh.data=2", "--config.mesh.fsdp=4")
    finished = subprocess.run(
        [*launch, *resume.command(tiny, name, workdir, *meshes)],
        env=resume.environment(),
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0 and f"resumed after step {step}" in finished.stderr, finished.stderr
    assert_same_within(1e-5, workdir, reference)
    assert not list((workdir / "checkpoints").glob("*tmp*"))


@pytest.mark.parametrize(
    "switches", [{"scan_layers": False}, {"remat": "full", "attention_kernel": "cudnn"}, {"remat": "dots"}], ids=str
)
def test_switches_of_speed_leave_the_losses(switches, tiny, verb, left_alone, tmp_path):
    reference = left_alone("dropout")
    workdir = back_at(reference, tmp_path / "switched", 3)
    options = [f"--config.model.{name}={value}" for name, value in switches.items()]
    finished = verb("pretrain", f"--config={tiny}/tiny.py:dropout", f"--workdir={workdir}", *options)
    assert finished.status == 0 and "resumed after step 3" in finished.err, finished.err
    assert_same_within(1e-6, workdir, reference)
    model = json.loads((workdir / "config.json").read_text())["config"]["model"]
    assert {name: model[name] for name in switches} == switches
    assert finished.err.count("stack attention: kernel xla") == 1
    assert ("cudnn needs an NVIDIA GPU, not a cpu" in finished.err) == ("attention_kernel" in switches)


def test_a_reader_restored_far_on_touches_no_more_examples(tiny):
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
