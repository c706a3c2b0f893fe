"""A run within this process: its directory, its metrics, phases, warm starts, precision."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import types

import flax.linen as nn
import jax
import numpy as np
import pytest

import plm_jax
from plm_jax import config, models
from plm_jax.common.errors import UserError
from plm_jax.data import cache
from plm_jax.data.reader import Reader
from plm_jax.models.decoder import Decoder
from plm_jax.runs import checkpoint_folders as folders
from plm_jax.runs import checkpoints, loop, metrics_logger, run_directory, setup, telemetry
from plm_jax.runs.callbacks import TrainingContext
from plm_jax.runs.goodput import Goodput
from plm_jax.runs.metrics_logger import MetricsLogger
from plm_jax.runs.phase_costs import PhaseCosts
from plm_jax.runs.programs import Programs
from plm_jax.training import flops
from plm_jax.training import mesh as meshes
from tests.support import runs
from tests.support import tiny as tiny_runs
from tests.support.tiny import MODEL


@pytest.fixture(scope="module")
def trained(tiny, verb, tmp_path_factory):
    """Twelve steps: saved every two, logged every three, validated every four."""
    workdir = tmp_path_factory.mktemp("trained") / "run"
    fields = {
        "train": {"steps": 12, "log_every": 3},
        "checkpoint": {"save_every": 2, "keep_last": 2, "keep_every": 4},
        "evaluation": {"every": 4, "batch_size": 8},
    }
    overrides = [f"--config.{part}.{name}={x}" for part, changed in fields.items() for name, x in changed.items()]
    finished = verb("pretrain", f"--config={tiny}/tiny.py", f"--workdir={workdir}", *overrides)
    assert finished.status == 0, finished.err
    run = runs.make(tiny, **fields)
    return run, workdir


def test_run_directory_describes_the_run(trained):
    run, workdir = trained
    described = json.loads((workdir / "config.json").read_text())
    assert config.from_dict(described["config"]) == run
    assert described["versions"]["jax"] == jax.__version__
    assert described["mesh"] == {"stage": 1, "data": 1, "fsdp": 1, "tensor": 1, "context": 1}
    assert described["git_commit"] is None or len(described["git_commit"]) == 40
    assert list(workdir.glob("events.out.tfevents.*"))


def test_vocabulary_is_copied_without_temporary_files(tiny, tmp_path):
    left = f"v.txt.{'0' * 16}.tmp"
    for folder in ("cache", "run"):
        (tmp_path / folder / "vocabulary").mkdir(parents=True)
        (tmp_path / folder / "vocabulary" / left).touch()
    (tmp_path / "cache/vocabulary/v.txt").write_text("a\n")
    run = runs.make(tiny, data={"cache_dir": str(tmp_path / "cache")}, vocabulary={"spec": "wordpiece:there/v.txt"})
    run_directory.write(str(tmp_path / "run"), "a", run, {}, [])
    assert [path.name for path in (tmp_path / "run/vocabulary").iterdir()] == ["v.txt"]


def test_loading_a_checkpoint_logs_nothing(trained, capfd, caplog):
    """Orbax warns of files that it does not find."""
    plm_jax.load(trained[1])
    assert not caplog.records and "Metadata" not in capfd.readouterr().err


def test_heartbeat_accounts_for_the_time(trained):
    _, workdir = trained
    start = json.loads((workdir / "heartbeat" / "1.json").read_text())
    assert (start["first_step"], start["step"], start["ended"]) == (0, 12, "finished")
    assert [step for step, _ in start["saves"]] == [2, 4, 6, 8, 10, 12]
    assert all(start["seconds"][part] > 0 for part in ("start", "compile", "steps", "saves", "validation"))
    assert sum(start["seconds"].values()) == pytest.approx(start["alive"] - start["began"], rel=0.02)


def test_status_needs_no_jax(trained):
    _, workdir = trained
    code = "import runpy, sys; sys.modules['jax'] = None; runpy.run_module('plm_jax.cli.status', run_name='__main__')"
    found = subprocess.run([sys.executable, "-c", code, str(workdir)], capture_output=True, text=True)
    assert found.returncode == 0 and not found.stderr, found.stderr
    for words in ("finished", "12 of 12 (100.0%)", "checkpoint  12, saved", "last error  none", "1 start"):
        assert words in found.stdout


def test_caches_are_opened_with_the_share_of_the_process(tiny, monkeypatch):
    run, shares, opened = runs.make(tiny), [], cache.open_source

    def open_source(folder, name, tokens, share):
        shares.append(share)
        return opened(folder, name, tokens, share)

    monkeypatch.setattr(cache, "open_source", open_source)
    setup.build(run)
    monkeypatch.setattr(meshes, "local_rows", lambda sharding, size: np.arange(size // 4))
    setup.build(run)
    number = len(shares) // 2
    assert number and shares == [1.0] * number + [0.25] * number


def test_last_checkpoints_and_multiples_are_kept(trained):
    _, workdir = trained
    assert folders.finished(workdir / "checkpoints") == [4, 8, 10, 12]


def test_checkpoint_describes_itself(trained):
    run, workdir = trained
    meta = folders.read_meta(workdir / "checkpoints" / "8")
    assert (meta["format"], meta["step"], meta["phase"], meta["next_example"]) == (2, 8, 0, 8 * run.train.batch_size)
    assert config.from_dict(meta["config"]) == run
    assert meta["vocabulary_id"] == Reader(config.reader_config(run)).vocabulary["id"]
    loaded = checkpoints.load_params(str(workdir / "checkpoints" / "8"))
    assert loaded.params["stack"]["blocks"]["feed_forward"]["up"]["kernel"].shape == (2, 32, 64)


def test_rows_have_all_metrics(trained):
    rows = runs.rows(trained[1])
    assert [row["step"] for row in rows] == [3, 4, 6, 8, 9, 12]
    always = {"step", "train/loss", "train/grad_norm", "train/learning_rate", "train/batch_digest"}
    always |= {"train/tokens_per_second", "train/step_seconds", "train/data_wait_seconds", "train/padding_share"}
    for row in rows:
        assert always <= row.keys()
        validated = {key for key in row if key.startswith("validation/") and key.endswith("loss")}
        expected = {"validation/loss", "validation/a/loss", "validation/b/loss"} if row["step"] % 4 == 0 else set()
        assert validated == expected
        speed = 8 * 32 / row["train/step_seconds"]
        np.testing.assert_allclose(row["train/tokens_per_second"], speed)
        assert len(row["train/batch_digest"]) == 16 and row["train/data_wait_seconds"] >= 0


def test_rows_after_the_checkpoint_and_a_torn_line_are_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step, "x": 0.5}) + "\n" for step in range(1, 6)) + '{"step": 6, "x')
    with telemetry.Telemetry(str(tmp_path), 3, 10) as log:
        assert [row["step"] for row in runs.rows(tmp_path)] == [1, 2, 3]
        log.write({"step": 4, "x": 1.5})
    assert [(row["step"], row["x"]) for row in runs.rows(tmp_path)] == [(1, 0.5), (2, 0.5), (3, 0.5), (4, 1.5)]


def test_rows_are_on_disk_before_a_checkpoint_begins(tiny, tmp_path, monkeypatch):
    """Before each save, the file is synced and has all rows so far."""
    synced, saves = set(), []
    fsync, save = os.fsync, checkpoints.Checkpoints.save

    def noting_fsync(descriptor):
        fsync(descriptor)
        synced.add((os.fstat(descriptor).st_ino, os.fstat(descriptor).st_size))

    def noting_save(self, step, *rest):
        status = os.stat(tmp_path / "run" / "metrics.jsonl")
        saves.append((step, runs.rows(tmp_path / "run")[-1]["step"], (status.st_ino, status.st_size) in synced))
        save(self, step, *rest)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(checkpoints.Checkpoints, "save", noting_save)
    loop.pretrain(runs.make(tiny, train={"steps": 4}, checkpoint={"save_every": 2}), str(tmp_path / "run"))
    assert saves == [(2, 2, True), (4, 4, True)]


def test_step_seconds_exclude_validation_and_compilation(tiny, monkeypatch):
    """By a clock that moves only while a loss is waited for, and in validation."""
    clock, written = types.SimpleNamespace(now=0.0), []
    monkeypatch.setattr(metrics_logger, "time", types.SimpleNamespace(perf_counter=lambda: clock.now))

    class Loss:
        def __init__(self, seconds):
            self.seconds = seconds

        def __array__(self):
            clock.now += self.seconds
            return np.float32(1.0)

    def validate():
        clock.now += 1000
        return {"loss": 0.25}

    quiet = lambda *_, **__: contextlib.nullcontext()  # noqa: E731
    log = types.SimpleNamespace(progress=lambda *_: None, write=written.append, doing=quiet, say=print)
    job = setup.build(runs.make(tiny, train={"log_every": 2}), devices=jax.devices()[:1])
    monkeypatch.setattr(metrics_logger.flops, "chip", lambda kind: metrics_logger.flops.Chip(flops=100.0))
    costs = PhaseCosts(tokens=16, flops=1600)
    recorder = MetricsLogger(2, lambda phase: costs, log, Goodput(), setup.new_incidents(job, "none"))
    context = TrainingContext(job.programs.phases[0], job.program, None, 0, 6)
    recorder.begin_phase(context)
    for step in range(1, 8):
        loss = Loss(500 if step == 1 else step)  # The first step compiles.
        context.step, context.data_wait_seconds = step, 0.5
        context.metrics = {"loss": loss, "grad_norm": 1.0, "digest": np.array([0, 0, step], np.uint32)}
        recorder.after_step(context)
        if step == 4:
            recorder.flush(validate)
    recorder.end_phase(context)
    assert [row["step"] for row in written] == [2, 4, 6]
    assert [row["train/step_seconds"] for row in written] == [2, 3.5, 5.5]
    assert [row["train/data_wait_seconds"] for row in written] == [0.5, 0.5, 0.5]
    assert [row["train/tokens_per_second"] for row in written] == [16 / 2, 16 / 3.5, 16 / 5.5]
    peak = 100.0 * jax.device_count()
    mfu = [1600 / seconds / peak for seconds in (2, 3.5, 5.5)]
    assert [row["train/mfu"] for row in written] == pytest.approx(mfu)
    # Step k has k padding tokens; the shares include the first step of the phase.
    assert [row["train/padding_share"] for row in written] == [3 / 32, 7 / 32, 11 / 32]
    real = [value * (1 - share) for value, share in zip(mfu, (3 / 32, 7 / 32, 11 / 32), strict=True)]
    assert [row["train/real_mfu"] for row in written] == pytest.approx(real)
    assert [row.get("validation/loss") for row in written] == [None, 0.25, None]


def test_phases_change_length_batch_and_dropout(tiny):
    phases = (
        config.PhaseConfig(until=0.25, length=16, batch_size=16),
        config.PhaseConfig(until=0.5, length=16, batch_size=16, dropout=0.5),
        config.PhaseConfig(until=1.0, mixture={"a": 1.0}, microbatches=2, batch_size=32),
    )
    run = runs.make(tiny, train={"steps": 8, "phases": phases})
    stages = config.resolve_phases(run)
    assert [(s.first_step, s.end_step, s.first_example) for s in stages] == [(0, 2, 0), (2, 4, 32), (4, 8, 64)]
    job = setup.build(run, devices=jax.devices()[:1])
    shapes = [batch["tokens"].shape for batch, _ in runs.batches(job, 0)]
    assert shapes == [(16, 16)] * 4 + [(32, 32)] * 4
    # Resumed in the middle of a phase, it goes on there.
    assert [batch["tokens"].shape for batch, _ in runs.batches(job, 3)] == shapes[3:]
    assert job.program.module(stages[1].dropout).model.dropout.attention == 0.5
    assert job.program.module(stages[2].dropout).model.dropout == run.model.dropout
    batch, state = next(runs.batches(job, 0))[0], job.program.new_state(job.run.train.seed)
    lowered = [
        job.program.phase_step(stage).lower(state, batch, *job.programs.inputs(0)).as_text() for stage in stages[:2]
    ]
    assert ["threefry" in text or "random" in text for text in lowered] == [False, True]


def test_weights_are_loaded_from_a_run_by_name(trained, tiny, tmp_path):
    _, workdir = trained
    source = runs.flat(checkpoints.load_params(str(workdir)).params)
    patterns = (r"stack/.*kernel", "token_embedding")
    run = runs.make(tiny, train={"init_from": str(workdir), "init_names": patterns, "seed": 9})
    state, notes = runs.start(run)
    fresh = runs.flat(setup.build(run, devices=jax.devices()[:1]).program.new_state(run.train.seed).params)
    for name, leaf in runs.flat(state.params).items():
        taken = name == "token_embedding" or (name.startswith("stack/") and name.endswith("kernel"))
        np.testing.assert_array_equal(leaf, (source if taken else fresh)[name], err_msg=name)
        assert taken != (name in notes[1].removeprefix("new: ").split(", "))
    assert "loaded 7 of" in notes[0]


def test_head_that_nothing_trains_is_refused(tiny, tmp_path):
    untold = dataclasses.replace(MODEL, heads=(("pairs", models.Pooler()),))
    with pytest.raises(UserError, match=r"the pairs head of config\.model is not trained by objective 'causal'"):
        loop.pretrain(runs.make(tiny, model=untold), str(tmp_path / "run"))
    assert not (tmp_path / "run" / "config.json").exists()


def test_bfloat16_trains_with_float32_parameters(tiny):
    run = runs.make(
        tiny, precision=config.PrecisionConfig("bfloat16"), train={"steps": 8}, schedule={"learning_rate": 3e-3}
    )
    losses, _, after, job, state = runs.steps(run, 1)
    assert losses[0] - losses[-1] > 0.2
    assert {leaf.dtype for leaf in jax.tree.leaves((state.params, state.optimizer))} == {
        np.dtype("float32"),
        np.dtype("int32"),
    }
    assert all(leaf.dtype == np.float32 for leaf in after.values())
    train_step, (batch, _) = job.program.phase_step(job.programs.phases[0]), next(runs.batches(job, 0))
    text = train_step.lower(state, batch, *job.programs.inputs(0)).as_text()
    assert any("dot_general" in line and "bf16" in line for line in text.splitlines())


def test_flops_equal_those_of_the_compiler():
    """Compares an unrolled model; the compiler also counts the masked half of attention."""
    length, rows = 32, 4
    model = dataclasses.replace(
        MODEL,
        embedding=models.EmbeddingConfig(vocab_size=600, width=128),
        attention=models.AttentionConfig(4, 32, models.LearnedPositions(64), kv_heads=2),
        feed_forward=models.FeedForwardConfig(width=512, activation="relu"),
        scan_layers=False,
    )
    decoder, tokens = Decoder(model), np.zeros((rows, length), np.int32)
    params = nn.unbox(jax.eval_shape(decoder.init, jax.random.key(0), tokens)["params"])
    compiled = jax.jit(lambda p, t: decoder.apply({"params": p}, t)).lower(params, tokens).compile()
    masked_half = 2 * rows * 2 * length * length * 4 * 32 * model.stack.layers / 2
    counted = flops.per_step(model, rows, length, length) / 3 + masked_half
    np.testing.assert_allclose(compiled.cost_analysis()["flops"], counted, rtol=0.04)
    # By hand: the head alone, and only where there are targets.
    difference = flops.per_step(model, rows, length, length) - flops.per_step(model, rows, length, targets=5)
    assert difference == 3 * 2 * rows * (length - 5) * 128 * 600


def test_objective_without_its_head_is_rejected():
    run = tiny_runs.RUNS["roberta"]
    headless = dataclasses.replace(run, model=dataclasses.replace(run.model, head=models.NoHead()))
    with pytest.raises(UserError, match="trains the vocabulary head"):
        Programs(headless)
