"""Steps whose numbers are lost, and spikes: what a run records of them, and what it does then."""

import json
import math
import shutil
from typing import Any

import numpy as np
import pytest

from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.data import cache
from plm_jax.runs import incidents
from plm_jax.training import spikes
from tests.support import planted, runs
from tests.support.verbs import assert_one_line, contents

TOLD = {"skip": "spike, skipped", "record": "spike, recorded", "roll_back": "spike, rolled back"}


@pytest.fixture(scope="module")
def folder(verb, tmp_path_factory):
    """The planted corpus and its cache."""
    folder = tmp_path_factory.mktemp("planted")
    planted.write(folder)
    finished = verb("prepare", f"--config={folder}/planted.py")
    assert finished.status == 0, finished.err
    return folder


@pytest.fixture(scope="module")
def train(folder, verb):
    """`train(workdir, …)` trains the planted run there."""
    return lambda workdir, *more: verb(
        "pretrain", f"--config={folder}/planted.py", f"--workdir={workdir}", *more, devices=1
    )


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory):
    """`trained(spikes)`: the directory of a run that does so with spikes, made once."""
    made = {}

    def once(spikes):
        if spikes not in made:
            made[spikes] = tmp_path_factory.mktemp("trained") / spikes
            finished = train(made[spikes], f"--config.train.incidents.spikes={spikes}")
            assert finished.status == 0, finished.err
            (made[spikes] / "said").write_text(finished.err)
        return made[spikes]

    return once


def marked_steps(verb, folder, workdir, mark):
    """Returns the number of the text with a mark, and the rows that read it by step, as `examples` reports them."""
    split = cache.open_source(str(folder / "cache_planted"), "a").splits["train"]
    (number,) = [i for i in range(split.num_documents) if mark in split.tokens(*split.documents[i : i + 2].tolist())]
    finished = verb("examples", f"--workdir={workdir}", f"--document=a:{number}", f"--module={folder}/planted.py")
    assert finished.status == 0, finished.err
    found = {}
    for line in finished.out.splitlines()[1:-1]:
        step, row = (int(word.split()[1]) for word in line.split(" (")[0].strip().split(", "))
        found.setdefault(step, []).append(row)
    return number, found


def test_incidents_are_recorded_with_their_examples(trained, folder, verb):
    workdir = trained("skip")
    rows = {row["step"]: row for row in runs.rows(workdir)}
    found = {int(path.stem): json.loads(path.read_text()) for path in (workdir / "incidents").iterdir()}
    assert {step: row["incident"] for step, row in rows.items() if "incident" in row} == {
        step: f"{of['kind']}, {of['done']}" for step, of in found.items()
    }
    by_kind = {kind: sorted(step for step, of in found.items() if of["kind"] == kind) for kind in ("lost", "spike")}
    for mark, kind in ((planted.LOST, "lost"), (planted.SPIKE, "spike")):
        number, steps = marked_steps(verb, folder, workdir, mark)
        # A document may be read in part; a spike is told once the window is full.
        assert by_kind[kind] and set(by_kind[kind]) <= steps.keys()
        for step in by_kind[kind]:
            examples = found[step]["examples"]
            assert [of["row"] for of in examples if number in of["documents"]] == steps[step]
            assert [of["example"] for of in examples] == list(range(8 * (step - 1), 8 * step))
            assert found[step]["digest"] == rows[step]["train/batch_digest"]
    assert [rows[step]["train/skipped"] for step in sorted(found)] == list(range(1, len(found) + 1))
    last = rows[30]
    assert math.isfinite(last["train/loss"]) and last["train/loss"] < rows[1]["train/loss"]
    lost = found[by_kind["lost"][0]]
    assert lost["metrics"]["loss"] == "nan" and "stack/blocks/1/feed_forward/up/kernel" in lost["gradient_norms"]
    spike = found[by_kind["spike"][0]]
    assert spike["metrics"]["loss"] > 10 * spike["limits"]["loss"]
    for line in (workdir / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)  # No NaN, which JSON has not.


@pytest.mark.parametrize("spikes", TOLD)
def test_resumed_run_repeats_its_incidents(trained, train, tmp_path, spikes):
    whole, cut = trained(spikes), tmp_path / "run"
    shutil.copytree(whole, cut)
    told = [row.get("incident") for row in runs.rows(whole)]
    assert TOLD[spikes] in told and "lost, skipped" in told
    (spike,) = [row["step"] for row in runs.rows(whole) if row.get("incident") == TOLD[spikes]]
    for path in (cut / "checkpoints").iterdir():
        if path.name.isdecimal() and int(path.name) >= spike:
            shutil.rmtree(path)
    finished = train(cut, f"--config.train.incidents.spikes={spikes}")
    assert finished.status == 0 and "resumed after step" in finished.err, finished.err
    names = ("step", "incident", "train/skipped", "train/loss", "train/grad_norm", "train/batch_digest")
    one, other = ([{name: row.get(name) for name in names} for row in runs.rows(of)] for of in (cut, whole))
    assert one == other
    read = [(of / "incidents" / f"{spike}.json").read_bytes() for of in (cut, whole)]
    assert read[0] == read[1]


def test_rollback_restores_the_checkpoint_and_skips_the_batches(trained):
    """A row's loss is that of the weights that the step before left."""
    workdir = trained("roll_back")
    rows = {row["step"]: row for row in runs.rows(workdir)}
    (spike,) = [step for step, row in rows.items() if row.get("incident") == TOLD["roll_back"]]
    target = incidents.read(str(workdir), spike)["checkpoint"]
    assert target == (spike - 1) // 5 * 5 > 0
    skipped = {row["step"]: row for row in runs.rows(trained("skip"))}
    assert rows[spike]["train/loss"] == skipped[spike]["train/loss"]
    assert rows[spike + 1]["train/batch_digest"] == skipped[spike + 1]["train/batch_digest"]
    assert rows[spike + 1]["train/loss"] != skipped[spike + 1]["train/loss"]
    assert f"to the weights of step {target}" in (workdir / "said").read_text()


@pytest.mark.parametrize("spikes", ["skip", "roll_back"])
def test_replay_of_incidents_is_exact(trained, verb, folder, spikes):
    workdir = trained(spikes)
    before = contents(workdir)
    steps = [row["step"] for row in runs.rows(workdir) if "incident" in row]
    for step in {steps[-1], steps[0] + 1}:
        finished = verb("replay", str(workdir), f"--step={step}", f"--module={folder}/planted.py")
        assert finished.status == 0 and "bit-identical" in finished.out, finished.err
        assert f" {(step - 1) % 5 + 1} step" in finished.out
    assert contents(workdir) == before


def test_differing_replay_is_reported(trained, verb, folder, tmp_path):
    workdir = shutil.copytree(trained("skip"), tmp_path / "run")
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    lines.append(json.dumps({"step": 12, "checkpoint/error": "it hides nothing of what the step found"}))
    row = json.loads(lines[11])
    replay = ("replay", str(workdir), "--step=12", f"--module={folder}/planted.py")

    def note(**changed):
        lines[11] = json.dumps(row | {f"train/{name}": value for name, value in changed.items()})
        (workdir / "metrics.jsonl").write_text("\n".join(lines) + "\n")

    note(loss=float(np.nextafter(np.float32(row["train/loss"]), np.float32(0))))
    assert_one_line(verb(*replay), "step 12 differs by more than", "are the same as in the run")
    note(batch_digest="0" * 16)
    assert_one_line(verb(*replay), "read another batch", "0" * 16)
    del lines[11], lines[-1]
    (workdir / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert_one_line(verb(*replay), "no row of step 12", "11 and 13")


def test_too_many_incidents_end_the_run(train, tmp_path):
    arguments = ["--config.train.incidents.spikes=skip", "--config.train.incidents.max_consecutive=0"]
    finished = train(tmp_path / "run", *arguments)
    assert_one_line(finished, "loss nan", "of step", "batch digest", "1 in a row", f"{tmp_path}/run/incidents")
    (path,) = (tmp_path / "run/incidents").iterdir()
    assert f"of step {path.stem} " in finished.err


def test_run_ends_if_more_steps_in_a_row_are_skipped_than_the_maximum(tmp_path):
    reader: Any = None  # Only reports read it.
    counted = incidents.Incidents(config.IncidentsConfig(max_consecutive=2), str(tmp_path), reader, [], {})
    lost = {"incident": spikes.LOST, "loss": math.nan, "grad_norm": 1.0, "digest": np.zeros(3, np.uint32)}
    for step, metrics in enumerate([lost, lost, {"incident": spikes.NONE}, lost, lost], 1):
        counted.record(step, metrics, None)
    with pytest.raises(UserError, match=r"step 6 .*it is step 3 in a row without an update"):
        counted.record(6, lost, None)


def test_unwritable_incident_does_not_end_the_run(train, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "incidents").write_text("in the way")
    finished = train(tmp_path / "run", "--config.train.steps=4")
    assert finished.status == 0 and "incidents/3.json cannot be written" in finished.err, finished.err
    (row,) = [row for row in runs.rows(tmp_path / "run") if "incident" in row]
    assert (row["step"], row["incident"]) == (3, "lost, skipped")
