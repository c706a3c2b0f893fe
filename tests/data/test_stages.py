"""Caches that engines write in tasks are those of one pass on this machine, to the byte."""

import dataclasses
import gzip
import json
import os
import pickle
import signal
import subprocess
import sys
from typing import ClassVar

import pytest
import tensorflow_datasets as tfds

from plm_jax import config
from plm_jax.common import leases, parts, storage, tasks, workers
from plm_jax.common.errors import UserError
from plm_jax.common.executors import engines
from plm_jax.common.executors.in_process import InProcessExecutor
from plm_jax.common.executors.local import LocalExecutor
from plm_jax.data import cache
from plm_jax.data.prepare import reading, shuffle, stages, tokenizing
from plm_jax.data.sources import tasks as seqio_tasks
from plm_jax.runs import preparation
from tests.support import builders
from tests.support.caches import contents, stored_texts
from tests.support.data import changed

TEXTS = [f"Document {i}. It counts: {' '.join(map(str, range(i % 23)))}! Ünd aus" for i in range(120)]


class ShardedTexts(builders.Builder):
    """Sixty texts and twenty for validation."""

    features: ClassVar = {"text": tfds.features.Text()}
    rows: ClassVar = {
        "en": [{"text": text} for text in TEXTS[:60]],
        "en-validation": [{"text": text} for text in TEXTS[60:80]],
    }


@pytest.fixture
def run(make_run, tmp_path):
    """Bytes over three compressed files, with equal and blank documents; a tenth held out."""
    for name, texts in {"a": TEXTS[:70], "b": ["", " ", *TEXTS[70:]], "c": ["same", TEXTS[0], "same"]}.items():
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    run_over_bytes = make_run("a", eos=256, vocab_size=257, data={"validation_fraction": 0.1})
    return with_source(run_over_bytes, config.TextTable(str(tmp_path / "?.jsonl.gz")))


def with_source(run, source):
    return changed(run, data={"sources": {"a": source}})


def prepare(run, folder, executor=None):
    """Prepares a run. Returns the hashes of all files below the folder of the cache, also of hidden ones."""
    preparation.prepare(run, str(folder), show_progress=False, executor=executor)
    return contents(folder)


def engine(name):
    """Returns an executor by name; Beam's runs in this process."""
    if name == "beam":
        pytest.importorskip("apache_beam")
    return InProcessExecutor() if name == "in_process" else engines.make(*ENGINES[name])


ENGINES = {"two": ("local", ["--workers=2"]), "beam": ("beam", []), "in_process": ()}


@pytest.mark.parametrize("name", ENGINES)
def test_files_give_the_same_cache_and_nothing_else_is_left(name, run, tmp_path):
    expected = prepare(run, tmp_path / "plain")
    assert {path.split(os.sep)[0] for path in expected} == {"a"}
    assert prepare(run, tmp_path / "staged", engine(name)) == expected
    assert sorted(each.name for each in (tmp_path / "staged").iterdir()) == ["a"]


@pytest.mark.parametrize("most_tasks", [1, 2])
def test_pieces_are_grouped_into_tasks_in_bounded_memory(most_tasks, run, tmp_path, monkeypatch):
    expected, names = prepare(run, tmp_path / "plain"), []
    monkeypatch.setattr(stages, "_MOST_TASKS", most_tasks)
    monkeypatch.setattr(tokenizing, "_BATCH_CHARACTERS", 100)
    monkeypatch.setattr(parts, "_BUFFER_BYTES", 2000)
    run_task = tasks.run_task
    monkeypatch.setattr(
        "plm_jax.common.executors.in_process.run_task", lambda *call: names.append(call[1:]) or run_task(*call)
    )
    assert prepare(run, tmp_path / "staged", InProcessExecutor()) == expected
    assert [stage for stage, _ in names] == ["a-count"] * most_tasks + ["a-tokenize"] * most_tasks
    firsts = [task.arguments[2] for stage, task in names if stage == "a-tokenize"]
    assert firsts == {1: [0], 2: [0, 70]}[most_tasks]


def test_bad_rows_are_skipped_and_reported_as_in_one_pass(run, tmp_path, capsys):
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(b'{"text": "one"}\n{"text": "cut o\n{"text": "two"}\n'))
    run = changed(run, data={"bad_rows": "skip"})
    assert prepare(run, tmp_path / "plain") == prepare(run, tmp_path / "staged", LocalExecutor(2))
    message = f"skipped 1 bad row of 128 ({tmp_path}/d.jsonl.gz:2 is not valid JSON"
    assert capsys.readouterr().out.count(message) == 2
    (tmp_path / "e.jsonl.gz").write_bytes(gzip.compress(b"[]"))
    for executor in (None, InProcessExecutor()):
        with pytest.raises(UserError, match="2 of the 129 rows of source 'a' are bad, more than 1%"):
            prepare(run, tmp_path / "many", executor)


@pytest.mark.parametrize("name", ["two", "beam"])
def test_error_of_a_row_is_that_of_one_pass(name, run, tmp_path):
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "good"}\n{"test": "bad"}\n'))
    messages = []
    for folder, executor in {"plain": None, "staged": engine(name)}.items():
        with pytest.raises(UserError) as raised:
            prepare(run, tmp_path / folder, executor)
        messages.append(str(raised.value))
        assert not (tmp_path / folder / "a").exists()
    assert messages[0] == messages[1] and "b.jsonl.gz:2 has no text" in messages[0]


def test_jobs_of_a_remote_cache_are_in_its_bucket(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    expected, written = prepare(run, tmp_path / "plain"), []
    write = storage.write
    monkeypatch.setattr(storage, "write", lambda path, data: written.append(path) or write(path, data))
    try:
        preparation.prepare(run, "memory://bucket/cache", show_progress=False, executor=InProcessExecutor())
        assert any(path.startswith("memory://bucket/cache/.work/") and "/marks/" in path for path in written)
        assert set(storage.names("memory://bucket/cache")) == {".lock", "a"}
        names = storage.files_below("memory://bucket/cache/a")
        assert set(names) == {path.removeprefix("a/") for path in expected}
        for name in names:
            assert storage.sha256(f"memory://bucket/cache/a/{name}") == expected[f"a/{name}"]
    finally:
        storage.remove("memory://bucket/cache")


def test_sharded_tfds_gives_the_same_cache_in_the_order_of_its_files(run, tmp_path):
    config_of_files = tfds.download.DownloadConfig(num_shards=3)
    builder = ShardedTexts(data_dir=str(tmp_path / "tfds"))
    builder.download_and_prepare(download_config=config_of_files)
    source = config.Tfds("sharded_texts", data_dir=str(tmp_path / "tfds"), train="en", validation="en-validation")
    run = with_source(run, source)
    assert prepare(run, tmp_path / "plain") == prepare(run, tmp_path / "staged", InProcessExecutor())
    (*train, validation) = reading.pieces("a", source)[:4]
    assert [piece.split for piece in train] == ["train"] * 3 and validation.split == "validation"
    files = [tfds.core.ReadInstruction("en", from_=i, to=i + 1, unit="shard") for i in range(3)]
    ordered = [row["text"].decode() for file in files for row in builder.as_dataset(split=file).as_numpy_iterator()]
    assert [document.text for document in reading.all_documents(run.data, "a")][:60] == ordered
    splits = cache.open_source(str(tmp_path / "staged"), "a").splits
    assert sorted(stored_texts(splits["train"])) == sorted(TEXTS[:60])
    assert sorted(stored_texts(splits["validation"])) == sorted(TEXTS[60:80])
    with pytest.raises(UserError, match=r"has no split 'em': choose from: en, en-validation"):
        seqio_tasks.task("a", dataclasses.replace(source, train="em"))


def test_documents_stream_through_in_batches():
    waiting, most = 0, 0

    def documents():
        nonlocal waiting, most
        for number in range(300):
            waiting += 1
            most = max(most, waiting)
            yield reading.Document(number, f"{number} " * 10_000)

    task = tokenizing.TokenizingTask(config.VocabularyConfig("bytes"), None, ())
    for block in tokenizing.blocks(documents(), tokenizing.encoder(task)):
        waiting -= block.documents
        assert len(block.files) == len(shuffle.FILES)
    assert waiting == 0 and most * 20_000 <= 2 * tokenizing._BATCH_CHARACTERS


def test_wrong_options_of_engines_are_one_line(verb, run, tmp_path):
    """`tests/engines` prepares on engines."""
    arguments = ["--config=configs/gpt2.py:small", f"--config.data.sources.webtext.path={tmp_path}/?.jsonl.gz"]
    refused = verb("prepare", arguments[0], "--", "--direct_num_workers=2")
    assert (refused.status, len(refused.errors)) == (2, 1) and "add --runner=ENGINE" in refused.err
    output = [f"--output={tmp_path}/other", "--runner=beam", "--", "--runner=Nowhere"]
    refused = verb("prepare", *arguments, *output)
    assert (refused.status, len(refused.errors)) == (2, 1) and "Unexpected pipeline runner: Nowhere" in refused.err
    assert "Traceback" not in refused.err and not (tmp_path / "other").exists()
    refused = verb("evaluate", "--", "--direct_num_workers=2")
    assert (refused.status, len(refused.errors)) == (2, 1)


_KILLED = """
import os, pickle, signal, sys
from plm_jax.common.executors import in_process
from plm_jax.data.prepare import build
from plm_jax.runs import preparation
from tests.support import killed

run, output, number = pickle.load(open(sys.argv[1], "rb"))
counter = killed.before_task(number)

def write_shards(*arguments):
    print(next(counter) - 1, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

if number == 0:
    build.write_shards = write_shards
preparation.prepare(run, output, False, in_process.InProcessExecutor())
"""


def test_killed_driver_resumes_with_its_marks_to_the_same_bytes(run, tmp_path):
    expected, path = prepare(run, tmp_path / "plain"), tmp_path / "killed.pickle"

    def killed(number):
        path.write_bytes(pickle.dumps((run, str(tmp_path / "out"), number)))
        command = [sys.executable, "-c", _KILLED, str(path)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        assert done.returncode == -signal.SIGKILL
        return done.stdout

    killed(5)  # Of six tasks, four are complete.
    assert killed(0) == "2\n"
    assert (tmp_path / "out" / ".work").exists() and not (tmp_path / "out" / "a").exists()
    assert prepare(run, tmp_path / "out", LocalExecutor(2)) == expected
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["a"]


def test_killed_worker_is_replaced(run, tmp_path, monkeypatch):
    expected = prepare(run, tmp_path / "plain")
    call, killed = workers.Worker.__call__, []

    def call_and_kill(worker, item):
        if item[1] == "a-tokenize" and not killed:
            killed.append(worker._process.pid)
            os.kill(killed[0], signal.SIGKILL)
        return call(worker, item)

    monkeypatch.setattr(workers.Worker, "__call__", call_and_kill)
    assert prepare(run, tmp_path / "staged", LocalExecutor(2)) == expected and killed


def test_changed_inputs_begin_a_new_job(run, tmp_path, monkeypatch, capsys):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("plm_jax.data.prepare.build.write_shards", stop)
        prepare(run, tmp_path / "out", InProcessExecutor())
    (job,) = set(storage.names(str(tmp_path / "out" / ".work"))) - {"lease"}
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(b'{"text": "one more"}\n'))
    capsys.readouterr()
    assert prepare(run, tmp_path / "out", InProcessExecutor()) == prepare(run, tmp_path / "plain")
    assert "an unfinished run with other settings, inputs" in capsys.readouterr().err
    assert job and not (tmp_path / "out" / ".work").exists()


def test_source_that_changes_between_the_stages_is_an_error(run, tmp_path, monkeypatch):
    documents_of, numbers = reading.documents_of, []

    def one_fewer_at_first(*arguments):
        documents = documents_of(*arguments)
        if not numbers:
            numbers.append(next(documents).number)
        return documents

    monkeypatch.setattr(reading, "documents_of", one_fewer_at_first)
    with pytest.raises(UserError, match="source 'a' has changed while it was read: run the same command again"):
        prepare(run, tmp_path / "out", InProcessExecutor())


def test_second_driver_is_rejected(run, tmp_path, monkeypatch):
    run_job, messages = tasks.run, []

    def run_beside_another(*arguments):
        with pytest.raises(UserError, match=r"another process prepares .*wait until it has ended") as error:
            prepare(run, tmp_path / "out", InProcessExecutor())
        messages.append(error)
        assert leases.taken(str(tmp_path / "out" / ".work" / "lease"))
        return run_job(*arguments)

    monkeypatch.setattr(tasks, "run", run_beside_another)
    prepare(run, tmp_path / "out", InProcessExecutor())
    assert len(messages) == 1 and not (tmp_path / "out" / ".work").exists()


def test_damaged_file_of_a_task_is_an_error(run, tmp_path, monkeypatch):
    run_job = tasks.run

    def run_and_damage(job, *arguments):
        marks = run_job(job, *arguments)
        (output,) = marks["a-tokenize"][0].outputs
        with open(os.path.join(job.folder, output.path), "r+b") as file:
            file.truncate(output.size // 2)
        return marks

    monkeypatch.setattr(tasks, "run", run_and_damage)
    with pytest.raises(UserError, match=r"a-tokenize/000000 is gone or damaged .*: remove .* and run"):
        prepare(run, tmp_path / "out", InProcessExecutor())
