"""Sweeps: which runs a file describes, that they are trained, evaluated and left alone, and what is said of them."""

import collections
import dataclasses
import functools
import json
import pathlib
import re
import shutil
import signal
import time
import types

import jax
import pytest

from plm_jax import config, objectives
from plm_jax.common.errors import UserError
from plm_jax.data.reader import blank_batch
from plm_jax.experiments import launchers, members, sweep
from plm_jax.experiments.comparison import table, to_markdown
from plm_jax.models import registry
from tests.support import moods, resume
from tests.support import tiny as tiny_config
from tests.support.roles import built_in

DEMO = pathlib.Path(__file__).parents[2] / "configs" / "ablations" / "objectives_demo.py"
SWEEP = """
from plm_jax import config

base = "{base}"

def overrides():
    yield "bad", {{"train.steps": 2, "train.init_from": "nowhere"}}
    yield "good", {{"train.steps": {steps}, "evaluation": config.EvaluationConfig(batch_size=8)}}
    {more}
"""


def write(folder, base, steps=2, more="") -> str:
    """A sweep's file over `tiny.py`."""
    path = folder / "sweep.py"
    path.write_text(SWEEP.format(base=base, steps=steps, more=more))
    return str(path)


def replace_call(monkeypatch, call):
    """Replaces the start of verbs by `call(verb, *flags)`."""
    monkeypatch.setattr(launchers, "_call", lambda processes, output, environment, *words: call(*words))


def append(path, text):
    """Adds code to a sweep's file."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)


@pytest.fixture
def calls(monkeypatch):
    """Verbs that a sweep in this process calls; all of them fail."""
    verbs_called = []

    def call(verb, *flags):
        verbs_called.append((verb, pathlib.Path(flags[-1]).name))
        raise UserError("no more")

    replace_call(monkeypatch, call)
    return verbs_called


class Verbs:
    """Stands for the verbs: each takes a minute, leaves what a sweep looks for, and is noted; some fail.

    Attributes:
      calls: the verb and the run of each call so far.
      failing: those that fail, and leave nothing.
    """

    def __init__(self):
        self.calls, self.failing, self._now = [], set(), 0.0

    def time(self) -> float:
        return self._now

    def call(self, verb, *flags):
        self._now += 60
        workdir = pathlib.Path(flags[-1].partition("=")[2])
        self.calls.append((verb, workdir.name))
        if self.calls[-1] in self.failing:
            raise UserError("no more")
        steps = json.loads((workdir / "config.json").read_text())["config"]["train"]["steps"]
        if verb == "pretrain":
            (workdir / "checkpoints" / str(steps)).mkdir(parents=True, exist_ok=True)
        else:
            log(workdir, step=steps, **{"a/real_loss": 4.0, "a/unigram_loss": 5.0, "b/loss": 3.0})


def fake_verbs(monkeypatch) -> Verbs:
    """Replaces the verbs and the clock of sweeps."""
    fake = Verbs()
    replace_call(monkeypatch, fake.call)
    monkeypatch.setattr(members, "time", types.SimpleNamespace(time=fake.time, monotonic=fake.time, sleep=time.sleep))
    return fake


@pytest.fixture
def verbs(monkeypatch):
    return fake_verbs(monkeypatch)


@pytest.fixture(scope="module")
def swept(tiny, tmp_path_factory):
    """The folder of a sweep in which one run fails and one finishes; the verbs are fakes."""
    folder = tmp_path_factory.mktemp("sweep")
    with pytest.MonkeyPatch.context() as monkeypatch:
        fake_verbs(monkeypatch).failing = {("pretrain", "bad")}
        with pytest.raises(UserError, match="1 of 2 runs failed"):
            sweep.run(write(folder, tiny / "tiny.py"), str(folder / "runs"))
    return folder


@pytest.fixture
def warm(tiny, tmp_path):
    """A sweep's file with a run that begins with the weights of another, `warm` with those of `good`."""
    return write(tmp_path, tiny / "tiny.py", more='yield "warm", {"train.init_from": "good"}')


def log(workdir, **row):
    """Adds a row to a run's evaluation.jsonl."""
    with open(workdir / "evaluation.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def test_a_failure_is_reported_and_stops_no_other(tiny, verb, tmp_path):
    finished = verb("sweep", f"--sweep={write(tmp_path, tiny / 'tiny.py')}", f"--workdir={tmp_path / 'runs'}")
    assert finished.status == 2
    # What the runs say is heard, an error too.
    of_run, error = finished.errors
    assert error.startswith("error: 1 of 2 runs failed (bad: ") and of_run.removeprefix("error: ") in error
    assert "nowhere does not exist" in of_run
    assert "== 2/2 good finished" in finished.err
    bad, good = json.loads((tmp_path / "runs" / "sweep.json").read_text())["runs"]
    assert (bad["name"], good["name"]) == ("bad", "good")
    assert (bad["error"], good["error"]) == (of_run.removeprefix("error: "), None)
    assert good["overrides"]["evaluation"]["batch_size"] == 8
    (row,) = map(json.loads, (tmp_path / "runs" / "good" / "evaluation.jsonl").read_text().splitlines())
    assert row["step"] == 2
    assert good["metrics"] == {key: value for key, value in row.items() if key != "step"}
    table_text = (tmp_path / "runs" / "table.md").read_text()
    assert table_text == to_markdown(table([bad, good]))
    assert finished.out.endswith(table_text)
    assert "| bad | failed: " in table_text


def test_run_again_only_what_failed_is_tried(swept, calls, capsys):
    before = (swept / "runs" / "good" / "config.json").read_text()
    with pytest.raises(UserError, match=r"1 of 2 runs failed \(bad: no more\)"):
        sweep.run(str(swept / "sweep.py"), str(swept / "runs"))
    assert calls == [("pretrain", "bad")]
    printed = capsys.readouterr()
    assert "2 runs, 1 of them already finished" in printed.err
    assert "| good | a/real_loss |" in printed.out
    assert (swept / "runs" / "good" / "config.json").read_text() == before


def test_another_config_in_the_directory_of_a_run_is_reported_and_left(swept, calls, tiny, tmp_path):
    path = write(tmp_path, tiny / "tiny.py", steps=3)
    with pytest.raises(UserError, match=r"a run with another config \(train.steps was 2 and is 3\): delete it"):
        sweep.run(path, str(swept / "runs"))
    assert ("pretrain", "good") not in calls
    assert json.loads((swept / "runs" / "good" / "config.json").read_text())["config"]["train"]["steps"] == 2


def test_a_run_without_its_evaluation_is_not_finished(swept, calls, tmp_path):
    _, member = sweep.load_members(str(swept / "sweep.py"), str(swept / "runs"))
    assert members.is_finished(member)
    evaluated = pathlib.Path(member.workdir) / "evaluation.jsonl"
    rows = evaluated.read_text()
    evaluated.write_text(rows.replace('"step": 2', '"step": 1'))
    assert not members.is_finished(member)
    evaluated.write_text(rows)


def test_other_evaluations_are_not_in_the_table(swept):
    _, member = sweep.load_members(str(swept / "sweep.py"), str(swept / "runs"))
    evaluated = pathlib.Path(member.workdir) / "evaluation.jsonl"
    rows, before = evaluated.read_text(), members._metrics(member)
    assert {"a/real_loss", "b/loss"} <= before.keys() and "step" not in before
    log(evaluated.parent, step=2, **{"a:train/real_loss": 0.0})
    log(evaluated.parent, step=1, **{"a/real_loss": 0.0})
    assert members._metrics(member) == before
    # A source without any figure is yet to be evaluated.
    evaluated.write_text("")
    log(evaluated.parent, step=2, **{"a/real_loss": 0.0})
    assert not members.is_finished(member)
    evaluated.write_text(rows)


def test_a_run_waits_for_the_one_whose_weights_it_takes(verbs, warm, tmp_path):
    verbs.failing = {("evaluate", "good")}
    for _ in range(2):  # Trained but not evaluated, it is not finished either.
        with pytest.raises(UserError, match=r"2 of 3 runs failed \(good: no more; warm: waits for good\)"):
            sweep.run(warm, str(tmp_path))
    assert not (tmp_path / "warm").exists()
    verbs.failing = set()
    sweep.run(warm, str(tmp_path))
    assert verbs.calls[-2:] == [("pretrain", "warm"), ("evaluate", "warm")]


def test_minutes_are_those_of_all_attempts(verbs, warm, tmp_path):
    verbs.failing = {("evaluate", "good")}
    with pytest.raises(UserError):
        sweep.run(warm, str(tmp_path))
    verbs.failing = set()
    sweep.run(warm, str(tmp_path))
    results = json.loads((tmp_path / "sweep.json").read_text())["runs"]
    assert {result["name"]: result["minutes"] for result in results} == {"bad": 2.0, "good": 4.0, "warm": 2.0}


def test_a_run_whose_parent_was_trained_again_is_reported_and_left(verbs, warm, tmp_path, capsys):
    sweep.run(warm, str(tmp_path))
    shutil.rmtree(tmp_path / "good")
    with pytest.raises(UserError, match=r"warm started from weights of good, which was trained again since: delete"):
        sweep.run(warm, str(tmp_path))
    assert collections.Counter(verbs.calls)["pretrain", "good"] == 2
    assert collections.Counter(verbs.calls)["pretrain", "warm"] == 1
    shutil.rmtree(tmp_path / "warm")
    sweep.run(warm, str(tmp_path))
    capsys.readouterr()
    sweep.run(warm, str(tmp_path))
    assert "3 runs, 3 of them already finished" in capsys.readouterr().err


def test_runs_of_weights_that_are_refused_are_not_in_the_table(verbs, tiny, tmp_path, capsys):
    more = 'yield "warm", {"train.init_from": "good"}; yield "warmer", {"train.init_from": "warm"}'
    sweep.run(write(tmp_path, tiny / "tiny.py", more=more), str(tmp_path))
    before = len(verbs.calls)
    capsys.readouterr()
    with pytest.raises(UserError, match=r"3 of 4 runs failed \(good: .*another config.*warm: waits .*warmer: waits"):
        sweep.run(write(tmp_path, tiny / "tiny.py", steps=3, more=more), str(tmp_path))
    assert len(verbs.calls) == before and "| warm | a/" not in capsys.readouterr().out


def test_the_table_is_written_after_each_run(verbs, warm, tmp_path, monkeypatch):
    tables = []

    def call(verb, *flags):
        tables.append((tmp_path / "table.md").read_text())
        verbs.call(verb, *flags)

    replace_call(monkeypatch, call)
    sweep.run(warm, str(tmp_path))
    assert "| good | not run yet" in tables[2] and "| warm | not run yet" in tables[4]
    assert "| bad | a/real_loss | 4.000" in tables[2] and "| good | a/real_loss | 4.000" in tables[4]
    assert not re.search("failed|not run", (tmp_path / "table.md").read_text())


RIVALS = """
from plm_jax.experiments.comparison import Baselines

def baselines():
    return [Baselines("{run}", "a/real_loss", {{"trivial": "a/unigram_loss", "words": 3.5, "before": "{other}"}})]
"""


def test_runs_are_compared_with_their_baselines(verbs, warm, tmp_path):
    append(warm, RIVALS.format(run="warm", other="good"))
    sweep.run(warm, str(tmp_path))
    row = "| warm | a/real_loss | 4.000 | 5.000 | +1.000 | 3.500 | -0.500 | 4.000 | +0.000 |"
    assert row in (tmp_path / "table.md").read_text().splitlines()


EVALUATIONS = """
def evaluations():
    yield "good", {"tasks": "b", "shots": (0, 5), "balanced": True}
    yield "good", {"stride": 4}
"""


def test_a_run_is_evaluated_in_further_ways(verbs, warm, tmp_path, monkeypatch):
    evaluations = []

    def call(verb, *flags):
        if verb == "evaluate" and "good" in flags[-1]:
            evaluations.append(flags[:-1])
        verbs.call(verb, *flags)
        if flags[0] == "--tasks=b":
            log(tmp_path / "good", step=2, **{"c/5_shots/accuracy": 0.61})

    replace_call(monkeypatch, call)
    sweep.run(warm, str(tmp_path))
    assert evaluations == [()]
    path = pathlib.Path(warm)
    before = path.read_text()
    path.write_text(before + EVALUATIONS)
    sweep.run(warm, str(tmp_path))
    assert evaluations[2:] == [("--tasks=b", "--shots=0,5", "--balanced=True"), ("--stride=4",)]
    assert "| good | c/5_shots/accuracy | 61.00 % |" in (tmp_path / "table.md").read_text()
    sweep.run(warm, str(tmp_path))  # All of it is done.
    path.write_text(before)
    sweep.run(warm, str(tmp_path))
    assert len(evaluations) == 4 and "5_shots" not in (tmp_path / "table.md").read_text()


@pytest.mark.parametrize("changes", ["{}", '{"evaluation.objective": {"rate": 0.15}}'])
def test_runs_with_other_targets_are_compared_only_if_validation_is_equal(verbs, tiny, tmp_path, capsys, changes):
    path = tmp_path / "rates.py"
    path.write_text(
        f'base = "{tiny}/tiny.py:roberta"\ndef overrides():\n    for rate in (0.15, 0.4):\n'
        f'        yield f"rate-{{rate}}", {{"objective.rate": rate}} | {changes}\n'
    )
    sweep.run(str(path), str(tmp_path / "runs"))
    table_text = (tmp_path / "runs" / "table.md").read_text()
    assert capsys.readouterr().out.endswith(table_text)
    reason = "\nno comparison: the runs differ in objective.rate, so "
    example = 'such as compared = {"real_loss": "a/real_loss"}\n'
    assert (reason in table_text) == table_text.endswith(example) == (changes == "{}")
    note = json.loads((tmp_path / "runs" / "sweep.json").read_text())["note"]
    assert note == (table_text[table_text.index(reason) :].strip() if changes == "{}" else "")
    assert ("| a/real_loss | rate-0.4 | 4.000 | +0.000 |" in table_text) == (changes != "{}")


PUBLISHED = """
from plm_jax.experiments.comparison import Published

compared = {{"MNLI": "a/real_loss"}}

def published():
    return [Published("good", {{"MNLI": 84.0, "RACE": 64.2}}, "Table 2"), {row}]
"""


def test_runs_are_compared_with_a_papers_figures(verbs, warm, tmp_path):
    append(warm, PUBLISHED.format(row="Published('warm', {'MNLI': 84.5}, 'Table 2')"))
    sweep.run(warm, str(tmp_path))
    (last,) = [line for line in (tmp_path / "table.md").read_text().splitlines() if line.startswith("| MNLI ")][1:]
    row = "| MNLI vs. our a/real_loss | warm | 84.500 | +0.500 | 4.000 | +0.000 | no verdict: one seed | 1 |"
    assert last == row
    tables = json.loads((tmp_path / "sweep.json").read_text())
    assert tables["compared"] == {"MNLI": "a/real_loss"} and tables["baselines"] == []
    first = {"run": "good", "figures": {"MNLI": 84.0, "RACE": 64.2}, "source": "Table 2"}
    assert tables["published"] == [first, {"run": "warm", "figures": {"MNLI": 84.5}, "source": "Table 2"}]
    assert tables["base"]["train"]["steps"] > 2 and tables["base"].keys() >= {"model", "objective", "data"}
    assert tables["setups"] == []


STATED = """
from plm_jax.experiments.comparison import Published
from plm_jax.experiments.setups import NOT_STATED, Setup

compared = {{"MNLI": "a/real_loss"}}

def published():
    setup = Setup(source="page 3", objective=NOT_STATED, sources=None, batch_size=NOT_STATED, learning_rate=NOT_STATED,
                  warmup=NOT_STATED, length=NOT_STATED, steps=7, reasons={{"steps": "too long"}})
    return [Published("good", {{"MNLI": 84.0}}, "{source}", {{"good{end}": setup}})]
"""


def test_the_setup_of_a_paper_is_noted_beside_what_runs_have(verbs, warm, tmp_path):
    path = pathlib.Path(warm)
    text = path.read_text()
    path.write_text(text + STATED.format(source="Table 2", end=""))
    sweep.run(warm, str(tmp_path / "runs"))
    tables = json.loads((tmp_path / "runs" / "sweep.json").read_text())
    rows = {row[1]: row for row in tables["setups"]}
    steps = str(sweep.load_members(warm, str(tmp_path))[0].run.train.steps)
    assert rows["steps"] == ["good", "steps", "7", steps, "too long", "page 3"]
    assert rows["warmup"][2:] == ["not stated", "0", "", "page 3"]
    for source, end, message in (
        ("", "", "figures of 'good' without a source"),
        ("x", "-sst", "setup of run 'good-sst'"),
    ):
        path.write_text(text + STATED.format(source=source, end=end))
        with pytest.raises(UserError, match=message):
            sweep.load_comparisons(warm, {"good", "warm"})


EVALUATION = "\ndef evaluations():\n    yield {}\n"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (RIVALS.format(run="warn", other="good"), "names a run 'warn': did you mean"),
        (RIVALS.format(run="warm", other="god"), "names a run 'god': did you mean"),
        (EVALUATION.format('"god", {"stride": 4}'), "`evaluations` of .* names a run 'god': did you mean"),
        (EVALUATION.format('"good", {"strides": 4}'), "has a flag 'strides': did you mean 'stride'"),
        (EVALUATION.format('"good", "stride"'), "expected the name of a run and a dictionary of flags"),
        (PUBLISHED.format(row="Published('warn', {}, '')"), "names a run 'warn': did you mean"),
        (PUBLISHED.format(row="Published('warm', {'MNLI': '84'}, '')"), "a figure that is not a number"),
        (PUBLISHED.format(row="('warm', {}, '')"), "must return a list of comparison.Published"),
        (
            'compared = {"loss": "aa/real_loss"}',
            "`compared` of .* names a metric 'aa/real_loss', but .*: did you mean 'a'",
        ),
        ('compared = {"loss": ("a/real_loss", "c/loss")}', "no run has a source or task 'c': choose from: a, b$"),
        ('compared = {"loss": "loss"}', "`compared` of .* names a metric 'loss': expected SOURCE/METRIC"),
        ('compared = {"loss": ["a/loss", 3]}', "`compared` of .* has .* for 'loss': expected SOURCE/METRIC or a tuple"),
        ('compared = ["a/loss"]', "`compared` of .* is .*: expected a dictionary"),
        (
            RIVALS.format(run="warm", other="z/loss"),
            "`baselines` of .* names a metric 'z/loss', but no run has a source",
        ),
    ],
)
def test_a_mistake_in_baselines_evaluations_or_comparisons_is_one_line(verbs, warm, tmp_path, code, message):
    append(warm, code)
    with pytest.raises(UserError, match=message):
        sweep.run(warm, str(tmp_path))
    assert not verbs.calls


@pytest.mark.parametrize(
    ("flags", "source"),
    [
        ("{}", "b"),
        ('{"tasks": ("a:train", "sentiment"), "shots": 2}', "sentiment"),
        ('{"tasks": ("a:train", "sentiment"), "shots": 2}', "a:train"),
        ('{"harness": "arc"}', "arc_easy"),
        ('{"config": "tasks/glue:rte"}', "rte"),
    ],
)
def test_metrics_of_further_evaluations_can_be_compared(tiny, tmp_path, flags, source):
    path = write(tmp_path, tiny / "tiny.py")
    append(path, EVALUATION.format(f'"good", {flags}') + f'compared = {{"x": "{source}/0_shots/accuracy"}}\n')
    loaded = sweep.load_members(path, str(tmp_path))
    sweep.check_sources(path, sweep.load_comparisons(path, {"bad", "good"}), loaded)


def test_a_metric_that_finished_runs_lack_is_not_pending(verbs, warm, tmp_path, capsys):
    verbs.failing = {("pretrain", "warm")}
    append(warm, 'compared = {"loss": "a/reel_loss", "other": "b/x"}\n' + RIVALS.format(run="good", other="a/f1"))
    with pytest.raises(UserError, match="1 of 3 runs failed"):
        sweep.run(warm, str(tmp_path))
    lines = (tmp_path / "table.md").read_text().splitlines()
    hint = "no metric 'a/reel_loss'; did you mean 'a/real_loss'?"
    title = "loss (a/reel_loss)"
    assert f"| {title} | bad | {hint} |  | reference |  |" in lines
    assert f"| {title} | good | {hint} |  | no verdict: the metric is missing |  |" in lines
    assert f"| {title} | warm | not run yet |  | not run yet |  |" in lines
    assert "| other (b/x) | good | no metric 'b/x'; choose from: b/loss |  |  |  |" in lines
    assert [line for line in lines if "no metric 'a/f1'; choose from: a/real_loss, a/unigram_loss" in line]


TUNED = """
base = "moods.py"

def overrides():
    yield "tuned", {"train.init_from": "encoder"}
    yield "random", {"train.init_from": "encoder", "train.init_names": ()}
    yield "further", {"train.init_from": "tuned"}
"""


def test_a_run_takes_its_model_from_the_checkpoint_that_it_begins_with(verbs, tmp_path):
    moods.write(tmp_path)
    (tmp_path / "sweep.py").write_text(TUNED)
    loaded = sweep.load_members(str(tmp_path / "sweep.py"), str(tmp_path / "runs"))
    with pytest.raises(UserError, match="further"):  # Its parent is none in truth.
        sweep.run(str(tmp_path / "sweep.py"), str(tmp_path / "runs"))
    assert [call for call in verbs.calls if call[0] == "pretrain"] == [("pretrain", "tuned"), ("pretrain", "random")]
    for member in loaded[:2]:
        run = config.from_dict(members.get_config(member.workdir))
        assert run.model.kind == "encoder" and run.model.named_heads["task"].labels == moods.LABELS
        assert run.train.init_from == str(tmp_path / "encoder")
    assert run.train.init_names == ()


def test_a_folder_that_cannot_be_written_is_rejected_before_anything_runs(verbs, warm, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*file .*: use another --workdir"):
        sweep.run(warm, str(tmp_path / "file"))
    assert not verbs.calls


def test_a_run_that_failed_at_once_may_get_another_config(verbs, tiny, tmp_path):
    verbs.failing = {("pretrain", "good")}
    with pytest.raises(UserError, match="good: no more"):
        sweep.run(write(tmp_path, tiny / "tiny.py", steps=2), str(tmp_path))
    verbs.failing = set()
    sweep.run(write(tmp_path, tiny / "tiny.py", steps=3), str(tmp_path))
    assert (tmp_path / "good" / "checkpoints" / "3").exists()


@pytest.mark.parametrize("name", ["evaluation.jsonl", "attempts.json"])
def test_a_damaged_file_stops_its_own_run_alone(verbs, warm, tmp_path, name, capsys):
    sweep.run(warm, str(tmp_path))
    shutil.rmtree(tmp_path / "warm")
    (tmp_path / "bad" / name).write_text("{\n")
    capsys.readouterr()
    with pytest.raises(UserError, match=f"1 of 3 runs failed .*{name}.* is damaged"):
        sweep.run(warm, str(tmp_path))
    assert verbs.calls[-1] == ("evaluate", "warm")
    assert "| warm | a/real_loss | 4.000 | 5.000 | +1.000 |" in capsys.readouterr().out


def test_a_run_directory_is_a_config(swept):
    _, member = sweep.load_members(str(swept / "sweep.py"), str(swept / "runs"))
    assert config.from_dict(members.get_config(member.workdir)) == member.run


def test_mistakes_on_the_command_line_are_one_line(verb, tmp_path):
    sweep_file = f"--sweep={tmp_path}/none.py"
    for flags, said in (
        (["--launcher=moon", sweep_file, f"--workdir={tmp_path}"], "--launcher=moon"),
        ([sweep_file], "--workdir is missing"),
        ([sweep_file, f"--workdir={tmp_path}", "--seeds=0,one"], "--seeds is 0,one: pass distinct integers"),
    ):
        finished = verb("sweep", *flags)
        assert finished.status == 2
        (error,) = finished.errors
        assert said in error


def test_seeds_have_directories_of_their_own(tiny, tmp_path):
    path = write(tmp_path, tiny / "tiny.py", more='yield "warm", {"train.init_from": "good"}')
    loaded = sweep.load_members(path, str(tmp_path), (1, 5))
    # The config's own seed is 1.
    names = ["bad", "good", "warm", "bad-seed5", "good-seed5", "warm-seed5"]
    assert [pathlib.Path(member.workdir).name for member in loaded] == names
    assert [member.run.train.seed for member in loaded] == [1, 1, 1, 5, 5, 5]
    assert [member.name for member in loaded] == ["bad", "good", "warm"] * 2
    # An earlier run of the same seed; other paths are those of the base.
    assert [loaded[i].run.train.init_from for i in (2, 5)] == [loaded[1].workdir, loaded[4].workdir]
    assert loaded[0].run.train.init_from == str(tiny / "nowhere")
    assert loaded[0].run.data.cache_dir == str(tiny / "cache")


REFERENCES = """from plm_jax import losses
    references = {"teacher": config.ReferenceConfig(TEACHER)}
    yield "other", {"train.steps": 2, "train.seed": 1}
    yield "student", {"train.references": references, "train.loss": losses.Distillation(), "train.init_from": FROM}
"""


@pytest.mark.parametrize(
    ("init_from", "teacher", "parents"),
    [
        ("", "good", ["good", "good-seed5"]),
        ("good", "good", ["good", "good-seed5"]),
        ("", "other", ["other", "other"]),  # It has one seed, which students of all seeds read.
    ],
)
def test_references_may_be_runs_of_a_sweep(init_from, teacher, parents, tiny, tmp_path):
    more = REFERENCES.replace("FROM", repr(init_from)).replace("TEACHER", repr(teacher))
    loaded = sweep.load_members(write(tmp_path, tiny / "tiny.py", more=more), str(tmp_path), (1, 5))
    students = [member for member in loaded if member.name == "student"]
    assert [member.parent for member in students] == [str(tmp_path / name) for name in parents]
    for member in students:
        assert member.run.train.references["teacher"].source == member.parent
        assert member.run.train.init_from == (member.parent if init_from else "")


def test_a_run_that_reads_two_runs_is_rejected(tiny, tmp_path):
    more = REFERENCES.replace("FROM", '"other"').replace("TEACHER", '"good"')
    with pytest.raises(UserError, match=r"run 'student' of .* reads the runs other and good: name only one"):
        sweep.load_members(write(tmp_path, tiny / "tiny.py", more=more), str(tmp_path))


def test_a_run_that_sets_its_seed_has_that_alone(tiny, tmp_path):
    more = 'yield "once", {"train.init_from": "good", "train.seed": 1}'
    for seeds, parent, number in (((5, 1), "good", 5), ((5, 6), "good-seed5", 5), ((), "good", 3)):
        loaded = sweep.load_members(write(tmp_path, tiny / "tiny.py", more=more), str(tmp_path), seeds)
        (once,) = (member for member in loaded if member.name == "once")
        assert (once.run.train.seed, pathlib.Path(once.workdir).name) == (1, "once") and len(loaded) == number
        # Its parent is that of its seed, or the one that there is.
        assert pathlib.Path(once.parent).name == parent


def test_a_sweep_that_is_stopped_has_the_step_of_its_run_saved_and_goes_on(tiny, verb, tmp_path, monkeypatch):
    path = tmp_path / "sweep.py"
    changes = '{"train.steps": 150, "checkpoint.save_every": 1000, "train.log_every": 1}'
    path.write_text(f'base = "{tiny}/tiny.py"\ndef overrides():\n    yield "one", {changes}\n')
    process = verb.start("sweep", f"--sweep={path}", f"--workdir={tmp_path}/runs")
    while resume.last_step(tmp_path / "runs/one") < 10:
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGTERM)
    status, _, errors = process.finished()
    assert status == 75
    assert errors.splitlines()[-1] == "the sweep was stopped: run the same command again to continue"
    (step,) = (int(path.name) for path in (tmp_path / "runs/one/checkpoints").iterdir())
    assert 10 <= step < 150 and f"after step {step}, which is saved" in errors
    fake = fake_verbs(monkeypatch)
    sweep.run(str(path), str(tmp_path / "runs"))
    assert fake.calls == [("pretrain", "one"), ("evaluate", "one")]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ('yield "a", {"train.stepz": 1}', "run 'a' of .*: there is no field config.train.stepz: did you mean 'steps'"),
        ('yield "a", {"trane.steps": 1}', "there is no field config.trane: did you mean 'train'"),
        (
            'yield "a", {"train.steps.x": 1}',
            "there is no field config.train.steps.x: config.train.steps is not a section",
        ),
        ('yield "a", {"train.steps": "one"}', "config.train.steps is 'one': must be an integer"),
        (
            'yield "a", {"evaluation.every": 1, "evaluation.select": "a/loss", "evaluation.patience": 2}',
            "run 'a' of .* may stop early: set evaluation.patience to 0",
        ),
        ('yield "a/b", {}', "a run 'a/b': use another name"),
        ('yield "table.md", {}', "a run 'table.md': use another name"),
        ('yield "a"', "yields 'a': expected a name and a dictionary of changes"),
        ('yield "a", {}; yield "a", {}', "two runs 'a'"),
        ("yield from ()", "has no runs"),
        ("return 5", "`overrides` of .* returns 5: expected a Python file"),
        ("pass\noverrides = {1: 2}.items", "`overrides` of .* is not a Python function: expected a Python file"),
        ('yield "a", {', r"sweep.py:3: SyntaxError: '{' was never closed"),
        ("yield rate", r"sweep.py:3: NameError: name 'rate' is not defined"),
    ],
)
def test_a_mistake_in_the_file_is_one_line(tiny, tmp_path, overrides, said):
    path = tmp_path / "sweep.py"
    path.write_text(f'base = "{tiny}/tiny.py:plain"\ndef overrides():\n    {overrides}\n')
    with pytest.raises(UserError, match=said):
        sweep.load_members(str(path), str(tmp_path))


def test_a_file_that_is_no_sweep_is_rejected(tiny, tmp_path):
    with pytest.raises(UserError, match=r"--sweep=.*none\.py: there is no such file; pass a sweep file, such as"):
        sweep.load_members(str(tmp_path / "none.py"), str(tmp_path))
    with pytest.raises(UserError, match=r"no sweep has that name .*; did you mean 'ablations/positions'"):
        sweep.load_members("ablations/position", str(tmp_path))
    with pytest.raises(
        UserError, match=r"no sweep has that name .*; choose from: ablations/albert_embedding, .*span_length$"
    ):
        sweep.load_members("zzzzzz", str(tmp_path))
    with pytest.raises(UserError, match="has no `base`"):
        sweep.load_members(str(tiny / "tiny.py"), str(tmp_path))
    (tmp_path / "base.py").write_text("base = 3\noverrides = []\n")
    with pytest.raises(UserError, match=r"`base` of .* is not a path"):
        sweep.load_members(str(tmp_path / "base.py"), str(tmp_path))
    with pytest.raises(UserError, match="list each seed once"):
        sweep.load_members(write(tmp_path, tiny / "tiny.py"), str(tmp_path), (2, 2))


def test_a_page_may_have_sizes(tiny, tmp_path):
    path = tmp_path / "sized.py"
    bases = {"small": f"{tiny}/tiny.py:plain", "large": f"{tiny}/tiny.py:electra"}
    path.write_text(
        f"def base(size='small'):\n    return {bases}[size]\n"
        "def overrides(size='small'):\n    yield 'one', {'train.steps': len(size)}\n"
    )
    found = {given: sweep.load_members(f"{path}{given}", str(tmp_path))[0].run for given in ("", ":small", ":large")}
    assert found[""] == found[":small"] and found[""].model == tiny_config.PLAIN.model
    assert found[":large"].model == tiny_config.ELECTRA
    with pytest.raises(UserError, match="KeyError: 'huge'"):
        sweep.load_members(f"{path}:huge", str(tmp_path))
    with pytest.raises(UserError, match=r"`overrides` of .* does not accept size 'small'"):
        sweep.load_members(f"{write(tmp_path, tiny / 'tiny.py')}:small", str(tmp_path))


def test_a_section_may_come_from_another_run(tiny, tmp_path):
    path = tmp_path / "sweep.py"
    path.write_text(
        f'from plm_jax.common import users\nbase = "{tiny}/tiny.py:plain"\nRUNS = users.module("{tiny}/tiny.py").RUNS\n'
        'def overrides():\n    yield "electra", {**vars(RUNS["electra"]), "train.steps": 9}\n'
    )
    (member,) = sweep.load_members(str(path), str(tmp_path))
    assert member.run.model == tiny_config.ELECTRA and member.run.train.steps == 9


def test_the_demo_has_every_objective_of_text_in_runs_that_fit():
    loaded = sweep.load_members(str(DEMO), "/runs", (0, 1, 2))
    every = {
        kind
        for kind, made in built_in(objectives.Objective).items()
        if not issubclass(made, objectives.LabeledObjective) and kind != "translation_lm"  # It reads pairs.
    }
    assert {member.run.objective.kind for member in loaded} == every
    noises = {run.objective.noise.kind for run in (m.run for m in loaded) if run.objective.kind == "denoising"}
    assert noises == {"infilling", "masking", "deletion", "none"}
    tasks = {member.run.data.layout.task for member in loaded if member.run.data.layout.kind == "sentence_pairs"}
    assert tasks == {"next_sentence", "sentence_order"}
    assert {member.name for member in loaded if member.run.data.has_inputs_targets} == {"t5_tasks"}
    for member in loaded[: len(loaded) // 3]:
        batch = blank_batch(config.reader_config(member.run), member.run.data.length)
        assert all(len(leaf) == 1 for leaf in batch.values())


def test_the_demos_parents_fit_their_children():
    by_workdir = {member.workdir: member for member in sweep.load_members(str(DEMO), "/runs")}
    families = {member.name for member in by_workdir.values() if not member.run.train.init_from}
    singles = {"next_sentence", "sentence_order", "decoder_span_corruption", "permutation_lm"}
    assert families == singles | {"bert", "gpt2", "elmo", "t5", "bart", "glm"}

    @functools.cache
    def shapes(model):
        leaves = jax.tree_util.tree_leaves_with_path(registry.shapes(model))
        return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in leaves}

    for member in (member for member in by_workdir.values() if member.parent):
        model, parent = member.run.model, by_workdir[member.parent].run.model
        if dataclasses.replace(model, dropout=parent.dropout) != parent:
            patterns = member.run.train.init_names
            taken = [name for name in shapes(parent) if any(re.fullmatch(p, name) for p in patterns)]
            shared = {name: shape for name, shape in shapes(model).items() if name in taken}
            assert shared and shared == {name: shapes(parent)[name] for name in shared}, member.name
