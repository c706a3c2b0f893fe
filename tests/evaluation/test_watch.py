"""`evaluate --watch`: each checkpoint has one row, whatever becomes of the watch, the run or the checkpoint."""

import json
import pathlib
import re
import shutil
import threading
import types

import pytest
from tensorboardX.proto import event_pb2

import plm_jax
from plm_jax import config
from plm_jax.common import leases, storage
from plm_jax.common.errors import UserError
from plm_jax.evaluation import perplexity, samples, watch
from plm_jax.runs import heartbeat, loop
from tests.support import runs, verbs
from tests.support.resume import json_lines

STEPS = [2, 4, 6]
SAMPLE_TASK = samples.sample_task


@pytest.fixture(scope="module")
def finished(tiny, tmp_path_factory):
    """A finished run with three checkpoints: leave it as it is."""
    path = tmp_path_factory.mktemp("watched") / "run"
    checkpoint = config.CheckpointConfig(save_every=2, keep_last=9)
    loop.pretrain(runs.make(tiny, train={"steps": 6}, checkpoint=checkpoint), str(path))
    return path


@pytest.fixture
def workdir(finished, tmp_path) -> pathlib.Path:
    """A copy of the finished run."""
    return pathlib.Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Checks often, and generates no samples, which take long to compile."""
    monkeypatch.setattr(watch, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(samples, "sample_task", lambda lm, run, task: [])


def rows(workdir) -> list[dict]:
    return json_lines(workdir / "evaluation.jsonl")


def follow(workdir, **options):
    watch.follow(str(workdir), tasks=["a"], **options)


def events(workdir) -> dict[int, dict[str, float]]:
    """Returns TensorBoard's values by step. Its file has records: a length, its CRC, an event, its CRC."""
    (path,) = (workdir / "evaluation").iterdir()
    values: dict[int, dict[str, float]] = {}
    data = path.read_bytes()
    while data:
        end = 12 + int.from_bytes(data[:8], "little")
        event, data = event_pb2.Event.FromString(data[12:end]), data[end + 4 :]
        for value in event.summary.value:
            values.setdefault(event.step, {})[value.tag] = value.simple_value
    return values


def test_each_checkpoint_has_one_row_which_is_that_of_evaluate(workdir):
    reported = []
    follow(workdir, report=reported.append)
    assert [row["step"] for row in rows(workdir)] == STEPS and len(reported) == 3
    lm = plm_jax.load(str(workdir / "checkpoints" / "4"))
    expected = perplexity.evaluate(lm, lm.run, "a", show_progress=False)
    assert rows(workdir)[1] == {"step": 4} | {f"a/{name}": value for name, value in expected.items()}
    assert reported[1] == {"a": expected}
    before = (workdir / "evaluation.jsonl").read_bytes()
    follow(workdir)
    assert (workdir / "evaluation.jsonl").read_bytes() == before
    shown = events(workdir)
    assert {step: values["a/loss"] for step, values in shown.items()} == pytest.approx(
        {row["step"]: row["a/loss"] for row in rows(workdir)}
    )


def test_samples_go_on_with_held_out_documents_once_a_checkpoint(workdir, monkeypatch):
    monkeypatch.setattr(samples, "sample_task", SAMPLE_TASK)
    (workdir / "samples.jsonl").write_text('{"step": 2, "task": "a", "prompt": "cut off before the row"}\n')
    follow(workdir)
    rows = json_lines(workdir / "samples.jsonl")
    assert [row["step"] for row in rows] == [step for step in STEPS for _ in range(3)]
    lm = plm_jax.load(str(workdir / "checkpoints" / "4"))
    for row in rows[3:6]:
        assert row["answer"] == lm.generate([row["prompt"]], max_new_tokens=32)[0]
    texts = [row["text"] for row in json_lines(pathlib.Path(lm.run.data.sources["a"].path))]
    assert all(any(text.startswith(row["prompt"] + row["target"]) for text in texts) for row in rows)


def test_a_row_of_other_tasks_does_not_count(workdir):
    (workdir / "evaluation.jsonl").write_text('{"step": 2, "a:train/loss": 1.0}\n')
    follow(workdir)
    assert [row["step"] for row in rows(workdir)] == [2, *STEPS]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("written", [False, True], ids=["before the row", "after it"])
def test_killed_again_and_again_each_checkpoint_still_has_one_row(workdir, monkeypatch, written):
    write = storage.write

    def dying(path, data):
        if not path.endswith("evaluation.jsonl"):
            return write(path, data)
        if written:
            write(path, data)
        monkeypatch.setattr(storage, "write", write)  # The next attempt lives on.
        raise Killed

    for _ in range(3):
        monkeypatch.setattr(storage, "write", dying)
        with pytest.raises(Killed):
            follow(workdir)
        assert len(rows(workdir)) <= 3
        if len(rows(workdir)) == 3:
            break
    monkeypatch.setattr(storage, "write", write)
    follow(workdir)
    assert [row["step"] for row in rows(workdir)] == STEPS


def test_a_run_that_died_is_followed_on_when_it_is_started_again(workdir, tmp_path, capsys):
    aside = tmp_path / "aside"
    shutil.move(workdir / "checkpoints", aside)
    (workdir / "checkpoints").mkdir()
    start = pathlib.Path(heartbeat.path(str(workdir), 1))
    ended = json.loads(start.read_text())
    start.write_text(json.dumps(ended | {"ended": None}))  # As SIGKILL leaves it.
    watching = threading.Thread(target=follow, args=[workdir])
    watching.start()
    try:
        for step in STEPS:
            shutil.move(aside / str(step), workdir / "checkpoints")
            while len(rows(workdir)) < STEPS.index(step) + 1:
                assert watching.is_alive()
        watching.join(0.2)
        assert watching.is_alive()
    finally:
        start.write_text(json.dumps(ended))
    watching.join(60)
    assert not watching.is_alive() and [row["step"] for row in rows(workdir)] == STEPS
    assert "is neither running nor finished: waiting" in capsys.readouterr().err


@pytest.mark.parametrize("opened", ["2", "4"], ids=["before its turn", "as it is opened"])
def test_a_checkpoint_that_is_removed_meanwhile_is_named(workdir, monkeypatch, capsys, opened):
    load = watch.language_model.load

    def removing(path):
        if path.endswith(f"/{opened}"):
            shutil.rmtree(workdir / "checkpoints" / "4")
        return load(path)

    monkeypatch.setattr(watch.language_model, "load", removing)
    follow(workdir)
    assert [row["step"] for row in rows(workdir)] == [2, 6]
    assert "checkpoint 4 is skipped: the run removed it" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_named(workdir, capsys):
    path = next(path for path in (workdir / "checkpoints/4/params").rglob("*") if path.is_file())
    path.write_bytes(path.read_bytes() + b" ")
    follow(workdir)
    assert [row["step"] for row in rows(workdir)] == [2, 6]
    assert "checkpoint 4 is skipped: " in capsys.readouterr().err


def test_a_damaged_checkpoint_that_is_saved_again_is_evaluated(workdir, monkeypatch, tmp_path):
    good = shutil.copytree(workdir / "checkpoints" / "4", tmp_path / "4")
    shutil.rmtree(workdir / "checkpoints" / "4" / "params")
    load = watch.language_model.load

    def mending(path):
        if path.endswith("/6"):
            # The run has found it damaged, and made the step again.
            shutil.move(workdir / "checkpoints" / "4", workdir / "checkpoints" / "4.damaged")
            again = types.SimpleNamespace(sleep=lambda seconds: shutil.move(good, workdir / "checkpoints" / "4"))
            monkeypatch.setattr(watch, "time", again)
            monkeypatch.setattr(watch.run_status, "standing", standing(monkeypatch))
        return load(path)

    monkeypatch.setattr(watch.language_model, "load", mending)
    follow(workdir)
    assert [row["step"] for row in rows(workdir)] == [2, 6, 4]


def standing(monkeypatch):
    """Tells once more that the run goes on."""
    tell = watch.run_status.standing

    def once(workdir):
        monkeypatch.setattr(watch.run_status, "standing", tell)
        return tell(workdir)._replace(alive=True, finished=False)

    return once


def test_two_watches_of_one_run_are_refused(workdir):
    message = r"another process watches .*run \(process \d+ on .*or stop it"
    with leases.held(str(workdir / "watch"), "watches"), pytest.raises(UserError, match=message):
        follow(workdir)
    assert not rows(workdir)


def test_a_folder_without_a_run_is_one_line(verb, workdir, tmp_path):
    for path in (tmp_path, tmp_path / "nowhere", workdir / "checkpoints" / "2"):
        finished = verb("evaluate", f"--checkpoint={path}", "--watch")
        verbs.assert_one_line(finished, "has no run to watch: pass the --workdir of a started run")


def test_the_verb_watches_and_writes_the_last_checkpoints_metrics(verb, workdir, tmp_path):
    output = tmp_path / "metrics.json"
    finished = verb("evaluate", f"--checkpoint={workdir}", "--watch", "--tasks=b", f"--output={output}")
    assert finished.status == 0, finished.err
    assert [row["step"] for row in rows(workdir)] == STEPS
    assert json.loads(output.read_text())["b"]["loss"] == rows(workdir)[-1]["b/loss"]
    assert len(re.findall(r"^b +value", finished.out, re.MULTILINE)) == 3
