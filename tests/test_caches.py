"""What `pretrain` and `evaluate` do with a cache that is not of what the config names."""

import json
import os
import shutil

import pytest

from tests.support import runs
from tests.support.verbs import assert_one_line, contents


@pytest.fixture
def trained(tiny_copy, verb, tmp_path):
    """A copy of `tiny`, and a run of one step over it."""
    workdir = tmp_path / "run"
    finished = verb("pretrain", f"--config={tiny_copy}/tiny.py", f"--workdir={workdir}", "--config.train.steps=1")
    assert finished.status == 0, finished.err
    return tiny_copy, workdir


def identity(folder, name="a"):
    return json.loads((folder / "cache" / name / "manifest.json").read_text())["identity"]


def test_a_changed_text_is_prepared_anew_but_not_under_a_run(trained, verb, tmp_path):
    folder, workdir = trained
    before, unchanged = identity(folder), contents(folder / "cache", workdir)
    with open(folder / "a.jsonl", "a") as file:
        file.write(json.dumps({"text": "One more ship."}) + "\n")

    def pretrain(workdir, *flags, **environment):
        command = [f"--config={folder}/tiny.py", f"--workdir={workdir}", "--config.train.steps=2"]
        return verb("pretrain", *command, *flags, **environment)

    changed = f"{folder}/a.jsonl has another size than a.jsonl had"
    assert_one_line(pretrain(workdir), changed, f"{workdir} was trained on it", "--allow_changes")
    several = pretrain(tmp_path / "new", JAX_NUM_PROCESSES="2", JAX_PROCESS_ID="0", JAX_COORDINATOR_ADDRESS="x:1")
    assert_one_line(several, changed, "run `python -m plm_jax prepare")
    assert_one_line(verb("evaluate", f"--checkpoint={workdir}"), changed, "run `python -m plm_jax prepare")
    assert contents(folder / "cache", workdir) == unchanged and not (tmp_path / "new").exists()
    # A new run has it prepared; the old one is then told of another cache.
    new = pretrain(tmp_path / "new")
    assert new.status == 0 and f"({changed}): preparing it again" in new.err, new.err
    assert (
        identity(folder) != before
        and identity(folder, "b") == json.loads(unchanged[folder / "cache/b/manifest.json"])["identity"]
    )
    assert_one_line(pretrain(workdir), "the cache of 'a' was " + before[:12], "--allow_changes")
    allowed = pretrain(workdir, "--allow_changes")
    assert allowed.status == 0, allowed.err
    event = json.loads((workdir / "config.json").read_text())["history"][-1]
    assert event["changes"]["the cache of 'a'"] == {"was": before[:12], "is": identity(folder)[:12]}
    assert runs.rows(workdir)[-1]["step"] == 2


def test_missing_texts_are_noted_and_swapped_caches_rejected(trained, verb):
    folder, workdir = trained
    for name in "ab":
        os.remove(folder / f"{name}.jsonl")
    command = ["pretrain", f"--config={folder}/tiny.py", f"--workdir={workdir}", "--config.train.steps=2"]
    finished = verb(*command)
    assert finished.status == 0, finished.err
    (note,) = [line for line in finished.err.splitlines() if line.startswith("warning: cannot compare the texts of")]
    assert "'a' (there is no file at" in note and "'b' (" in note and "using their caches as they are" in note
    evaluated = verb("evaluate", f"--checkpoint={workdir}", "--tasks=a")
    assert evaluated.status == 0 and "the texts of 'a'" in evaluated.err, evaluated.err
    cache = folder / "cache"
    for source, target in (("a", "aside"), ("b", "a"), ("aside", "b")):
        shutil.move(cache / source, cache / target)
    assert_one_line(verb("evaluate", f"--checkpoint={workdir}"), "it was made from 'b'", "it was made from 'a'")
    assert_one_line(verb(*command[:-1], "--config.train.steps=3"), "it was made from 'b'", str(workdir))
