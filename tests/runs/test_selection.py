"""The best weights of a run are kept, and worse ones never replace them without a message."""

import collections
import dataclasses
import json
import math
import pathlib
import random
import shutil
import types

import jax
import numpy as np
import pytest

from plm_jax import config, objectives
from plm_jax.common.errors import UserError
from plm_jax.runs import checkpoint_folders as folders
from plm_jax.runs import loop, selection, setup
from plm_jax.runs.checkpoints import Checkpoints
from plm_jax.runs.validation import Validation
from tests.support import runs
from tests.support import tiny as tiny_runs

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def faults():
    """The campaign of damage to best weights."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        import faults_best

        yield faults_best


@pytest.fixture(scope="module")
def base(faults, tmp_path_factory):
    """A run of four steps with best weights, and a converted directory."""
    return faults.make_base(tmp_path_factory.mktemp("base"))


class Steps:
    """A simulated run with given validation values, and the checkpoints that it resumes from."""

    def __init__(self, workdir, select="mood/f1", validation_hash="a"):
        self.workdir, self.best = workdir, workdir / "checkpoints/best"
        self.validation = types.SimpleNamespace(
            selected=lambda found: found[select], is_better=lambda value, than: value > than
        )
        self.select, self.validation_hash, self.saved = select, validation_hash, {0: {}}
        self.settings = config.EvaluationConfig(every=1, select=select)

    def train(self, values, first_step=0):
        """Resumes from a step; returns the lines that were printed at the start and at the end."""
        resumed = types.SimpleNamespace(step=first_step, meta=self.saved[first_step]) if first_step else None
        start = selection.read_start(self.select, str(self.workdir), resumed, self.validation_hash)
        lines = [*start.notes, *selection.set_aside(start)]
        with Checkpoints(str(self.workdir), config.CheckpointConfig(), run_id="a") as checkpoints:
            selector = selection.Selection(self.validation, checkpoints, self.settings, start)
            for step, value in enumerate(values, first_step + 1):
                if selector.update(step, {self.select: value}):
                    selector.save(step, {"x": np.float32([step])}, {"config": {}, "selected": selector.state()})
                # As read back from JSON.
                self.saved[step] = json.loads(json.dumps({"selected": selector.state()}))
        return lines, selector.describe_lost()

    @property
    def kept(self):
        """Returns the step of the best weights."""
        return folders.checked(folders.of_run(str(self.workdir)) / "best")["step"]


def test_first_best_weights_are_saved_again_after_rewinding(tmp_path):
    run = Steps(tmp_path)
    assert run.train([10.0, 30.0, 30.0, 20.0]) == ([], None) and run.kept == 2
    assert run.train([30.0, 29.0], 4) == ([], None) and run.kept == 2
    assert run.train([31.0], 4) == ([], None) and run.kept == 5
    # After a resume from step 3, step 5 is reached again. If it is not best again, the weights of step 2 are lost.
    lines, lost = run.train([1.0, 2.0], 3)
    assert "of step 5 (mood/f1 31), and the run resumes from step 3" in lines[0] and "step 2 (mood/f1 30)" in lines[0]
    assert "of step 2 (mood/f1 30), are lost" in lost and run.kept == 5
    assert run.train([31.0], 4)[1] is None and run.kept == 5
    # Values that are not finite are never the best.
    other = Steps(tmp_path / "other")
    assert other.train([math.nan, -1.0, -2.0, math.inf])[1] is None and other.kept == 2


def test_changed_metric_starts_a_new_selection(tmp_path):
    Steps(tmp_path).train([10.0, 30.0])
    run = Steps(tmp_path, "mood/accuracy")
    run.saved[3] = {"selected": {"by": "mood/f1", "value": 30.0, "history": [[1, 10.0], [2, 30.0]], "validation": "a"}}
    lines, lost = run.train([0.5, 0.4], 3)
    assert lines == [
        "checkpoints/best contains the weights of step 2 (mood/f1 30): the first weights that mood/accuracy selects "
        "replace them"
    ]
    assert lost is None and run.kept == 4
    # If nothing was selected in between, the earlier selection counts.
    for step in (4, 5):
        run.saved[step] = {"selected": {}}
        assert run.train([0.4], step) == ([], None) and run.kept == 4
    run.saved[5] = {"selected": {}}
    assert run.train([0.6], 5) == ([], None) and run.kept == 6


def test_changed_validation_starts_a_new_selection(tmp_path):
    first = Steps(tmp_path)
    first.train([10.0, 30.0])
    run = Steps(tmp_path, validation_hash="b")
    run.saved = first.saved
    lines, lost = run.train([0.5, 0.4], 2)
    assert lines == [
        "checkpoints/best contains the weights of step 2 (mood/f1 30), measured by another validation: the weights of "
        "the next one replace them"
    ]
    assert lost is None and run.kept == 3
    # It begins again too if no validation came in between, and the values of each validation count on.
    back = Steps(tmp_path)
    back.saved = run.saved
    assert "another validation" in back.train([], 4)[0][0] and back.kept == 3
    assert "another validation" in back.train([20.0], 4)[0][0] and back.kept == 5


def test_hash_of_validation_depends_on_what_it_measures(tiny):
    def hash_of(**sections):
        run = runs.make(tiny, tiny_runs.RUNS["bert"], **sections)
        return selection.hash_validation(run, setup.build(run, devices=jax.devices()[:1]).reader)

    expected = hash_of()
    same = [
        {"evaluation": {"every": 7, "batch_size": 4}},
        {"train": {"log_every": 3}, "schedule": config.ConstantSchedule(0.5)},
        {"data": {"threads": 3, "prefetch": 9}},
    ]
    other = [
        {"evaluation": {"objective": {"rate": 0.5}}},
        {"evaluation": {"max_batches": 1}},
        {"objective": objectives.MaskedLM(rate=0.5)},
        {"data": {"mixture": {"a": 1.0, "b": 5.0}}},
        {"data": {"length": 24}},
        {"train": {"phases": (config.PhaseConfig(until=0.5), config.PhaseConfig(until=1.0, length=24))}},
    ]
    assert [hash_of(**sections) == expected for sections in same] == [True] * len(same)
    assert [hash_of(**sections) != expected for sections in other] == [True] * len(other)
    # An objective of its own hides that of training.
    fixed = {"evaluation": {"objective": {"rate": 0.5}}}
    assert hash_of(objective=objectives.MaskedLM(rate=0.5)) == hash_of(**fixed)


@pytest.mark.parametrize("seed", range(6))
def test_best_value_never_decreases_without_a_message(seed, tmp_path):
    """Compares with the best value of each timeline, for random values, rewinds and damage."""
    rng, run = random.Random(seed), Steps(tmp_path)
    timeline, step = {}, 0
    for _ in range(6):
        holds = run.kept if run.best.exists() else None
        expected = max(timeline, key=lambda at: (timeline[at], -at), default=None)
        damage = rng.choice(["none", "none", "flip", "missing", "other run"]) if holds else "none"
        if damage == "missing":
            shutil.rmtree(run.best)
        elif damage == "flip":
            path = max(run.best.rglob("d/*"), key=lambda path: path.stat().st_size)
            path.write_bytes(path.read_bytes()[:-1] + b"?")
        elif damage == "other run":
            (tmp_path / "config.json").write_text('{"run_id": "b"}')
        values = [float(rng.randrange(8)) for _ in range(rng.randint(1, 3))]
        is_whole = damage == "none" and holds == expected and not (holds and holds > step)
        lines, lost = run.train(values, step)
        (tmp_path / "config.json").unlink(missing_ok=True)
        assert len(lines) == (expected is not None or holds is not None) * (not is_whole) + (
            damage in ("flip", "other run")
        )
        for at, value in enumerate(values, step + 1):
            timeline[at] = value
        best = max(timeline, key=lambda at: (timeline[at], -at))
        improves = expected is None or timeline[best] > timeline[expected]
        assert bool(lost) == (not improves and not is_whole)
        if not lost:
            assert run.kept == best
        step = rng.randint(1, max(timeline))
        timeline = {at: value for at, value in timeline.items() if at <= step}
    assert {path.name.partition(".")[0] for path in (tmp_path / "checkpoints").iterdir()} <= {"best"}


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_damaged_best_weights_are_not_replaced_by_worse_ones(base, faults, tmp_path, monkeypatch, capsys):
    workdir = shutil.copytree(base.run, tmp_path / "run")
    best = workdir / "checkpoints/best"
    history = json.loads((best / "meta/metadata").read_text())["selected"]["history"]
    values = {row["step"]: row["validation/mood/loss"] for row in runs.rows(workdir)}
    assert history[-1] == [min(values, key=values.get), min(values.values())]
    path = max(best.rglob("d/*"), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    damaged = files(best)
    with pytest.raises(UserError, match="best is damaged"):
        loop.pretrain(base.config, str(workdir), refuse_damaged=True)
    assert files(best) == damaged

    monkeypatch.setattr(Validation, "__call__", lambda *_: {"mood/loss": 99.0})
    train = dataclasses.replace(base.config.train, steps=6)
    capsys.readouterr()
    loop.pretrain(dataclasses.replace(base.config, train=train), str(workdir))
    err = capsys.readouterr().err.splitlines()
    lines = [line for line in err if "best" in line and "step/s" not in line]
    lost = f"of step {history[-1][0]} (mood/loss {history[-1][1]:.6g}), are lost"
    assert lines[0].startswith("checkpoints/best is damaged (params/") and lost in lines[0]
    assert lines[1] == "the damaged checkpoints/best is kept as best.damaged" and lost in lines[2] and len(lines) == 3
    assert files(workdir / "checkpoints/best.damaged") == damaged and not best.exists()


def test_campaign_of_damage_is_handled(base, faults, tmp_path):
    counts = collections.Counter()
    for case in range(20):
        scratch = tmp_path / str(case)
        scratch.mkdir()
        campaign = ("best", "converted")[case % 2]
        outcome, what = faults.try_case(base, campaign, scratch, random.Random(case))
        counts[outcome] += 1
        assert outcome == "handled", what
    assert counts == {"handled": 20}
