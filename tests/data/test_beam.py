"""Apache Beam's cache is the local one, to the byte."""

import dataclasses
import gzip
import importlib
import json
import os
import pickle
import random
import subprocess
import sys
from typing import ClassVar

import pytest
import tensorflow_datasets as tfds

from plm_jax import config
from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.data import cache
from plm_jax.data.prepare import reading, shuffle, tokenizing
from plm_jax.data.sources import tasks
from plm_jax.runs import preparation
from tests.support import builders
from tests.support.caches import contents, stored_texts
from tests.support.data import changed

pytest.importorskip("apache_beam")
beam = importlib.import_module("plm_jax.data.prepare.beam")
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
    """Bytes over three files, one of them compressed, with equal and blank documents; a tenth held out."""
    for name, texts in {"a": TEXTS[:70], "b": ["", " ", *TEXTS[70:]], "c": ["same", TEXTS[0], "same"]}.items():
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    run_over_bytes = make_run("a", eos=256, vocab_size=257, data={"validation_fraction": 0.1})
    return with_source(run_over_bytes, config.TextTable(str(tmp_path / "?.jsonl.gz")))


def with_source(run, source):
    return changed(run, data={"sources": {"a": source}})


def both(run, tmp_path, *options):
    """Returns the files of the local runner's cache and of Beam's."""
    folders = [str(tmp_path / name) for name in ("local", "beam")]
    preparation.prepare(run, folders[0], show_progress=False)
    preparation.prepare(run, folders[1], show_progress=False, beam_options=options)
    return [contents(folder) for folder in folders]


def test_files_give_the_same_cache_and_nothing_else_is_left(run, tmp_path, monkeypatch):
    sizes, write = [], beam._write

    def write_and_weigh(folder, name, data):
        sizes.extend([len(data)] if "." not in name else [])
        write(folder, name, data)

    monkeypatch.setattr(tokenizing, "_BATCH_CHARACTERS", 100)
    monkeypatch.setattr(beam, "_FILE_BYTES", 2000)
    monkeypatch.setattr(beam, "_write", write_and_weigh)
    local, other = both(run, tmp_path)
    assert other == local
    assert {name.split(os.sep)[0] for name in other} == {"a"}
    # What a worker holds is bounded by the size of its files, not of its piece.
    largest = 2000 + 2 * 300 + len(shuffle.FILES) * 8
    assert len(sizes) > 6 and max(sizes) < largest


def test_bad_rows_are_skipped_and_reported_as_by_the_local_runner(run, tmp_path, capsys):
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(b'{"text": "one"}\n{"text": "cut o\n{"text": "two"}\n'))
    run = changed(run, data={"bad_rows": "skip"})
    local, other = both(run, tmp_path)
    assert local == other
    message = f"skipped 1 bad rows of 128 ({tmp_path}/d.jsonl.gz:2 is not valid JSON"
    assert capsys.readouterr().out.count(message) == 2
    (tmp_path / "e.jsonl.gz").write_bytes(gzip.compress(b"[]"))
    for options in (None, []):
        with pytest.raises(UserError, match="2 of the 129 rows of source 'a' are bad, more than 1%"):
            preparation.prepare(run, show_progress=False, beam_options=options)


def test_workers_share_the_folder_of_temp_location(run, tmp_path):
    local, other = both(run, tmp_path, "--temp_location=memory://bucket/temporary")
    assert other == local
    assert storage.names("memory://bucket/temporary") == []
    with pytest.MonkeyPatch.context() as patch, pytest.raises(UserError, match="a folder shared with this machine"):
        patch.setattr(beam, "_write", lambda *_: None)
        preparation.prepare(run, str(tmp_path / "apart"), show_progress=False, beam_options=[])


def test_sharded_tfds_gives_the_same_cache_in_the_order_of_its_files(run, tmp_path):
    config_of_files = tfds.download.DownloadConfig(num_shards=3)
    builder = ShardedTexts(data_dir=str(tmp_path / "tfds"))
    builder.download_and_prepare(download_config=config_of_files)
    source = config.Tfds("sharded_texts", data_dir=str(tmp_path / "tfds"), train="en", validation="en-validation")
    run = with_source(run, source)
    local, other = both(run, tmp_path)
    assert other == local
    (*train, validation) = reading.pieces("a", source)[:4]
    assert [piece.split for piece in train] == ["train"] * 3 and validation.split == "validation"
    files = [tfds.core.ReadInstruction("en", from_=i, to=i + 1, unit="shard") for i in range(3)]
    ordered = [row["text"].decode() for file in files for row in builder.as_dataset(split=file).as_numpy_iterator()]
    assert [document.text for document in reading.all_documents(run.data, "a")][:60] == ordered
    splits = cache.open_source(str(tmp_path / "beam"), "a").splits
    assert sorted(stored_texts(splits["train"])) == sorted(TEXTS[:60])
    assert sorted(stored_texts(splits["validation"])) == sorted(TEXTS[60:80])
    with pytest.raises(UserError, match=r"has no split 'em': choose from: en, en-validation"):
        tasks.task("a", dataclasses.replace(source, train="em"))


def test_a_users_error_is_reported_as_by_the_local_runner(run, tmp_path):
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "good"}\n{"test": "bad"}\n'))
    with pytest.raises(UserError) as local:
        preparation.prepare(run, str(tmp_path / "local"), show_progress=False)
    with pytest.raises(UserError) as other:
        preparation.prepare(run, str(tmp_path / "beam"), show_progress=False, beam_options=[])
    assert str(other.value) == str(local.value) and "b.jsonl.gz:2 has no text" in str(other.value)
    assert not os.path.exists(tmp_path / "beam" / "a")


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


def test_the_verb_prepares_with_two_processes(verb, run, tmp_path):
    path = f"--config.data.sources.webtext.path={tmp_path}/?.jsonl.gz"
    arguments = ["--config=configs/gpt2.py:small", path, f"--output={tmp_path}/beam", "--runner=beam"]
    finished = verb("prepare", *arguments, "--", "--direct_num_workers=2")
    assert finished.status == 0, finished.err
    assert verb("prepare", *arguments[:2], f"--output={tmp_path}/local").status == 0
    assert contents(tmp_path / "beam") == contents(tmp_path / "local")
    refused = verb("prepare", arguments[0], "--", "--direct_num_workers=2")
    assert (refused.status, len(refused.errors)) == (2, 1) and "add --runner=beam" in refused.err
    refused = verb("prepare", *arguments[:2], f"--output={tmp_path}/other", "--runner=beam", "--", "--runner=Nowhere")
    assert (refused.status, len(refused.errors)) == (2, 1) and "Unexpected pipeline runner: Nowhere" in refused.err
    assert "Traceback" not in refused.err and not (tmp_path / "other").exists()
    refused = verb("evaluate", "--", "--direct_num_workers=2")
    assert (refused.status, len(refused.errors)) == (2, 1)


_KILLER = """
import os, pickle, signal, sys, time
from plm_jax.data.prepare import beam
from plm_jax.runs import preparation
run, root, moments = pickle.load(open(sys.argv[1], "rb"))

def start(folder, options):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            preparation.prepare(run, os.path.join(root, folder), False, options)
            status = 0
        finally:
            os._exit(status)
    return child

def whole(folder, options):
    began = time.monotonic()
    _, status = os.waitpid(start(folder, options), 0)
    assert status == 0, status
    return time.monotonic() - began

for name, options in {"local": None, "beam": []}.items():
    seconds = whole(f"{name}-whole", options)
    for i, moment in enumerate(moments):
        child = start(f"{name}-{i}", options)
        time.sleep(moment * seconds)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        print(name, i, "finished" if status == 0 else "killed", flush=True)
        whole(f"{name}-{i}", options)
"""


def test_killed_at_random_moments_the_next_run_writes_the_same_bytes(run, tmp_path):
    seed = random.randrange(10**6)
    moments = [random.Random(seed).uniform(i / 3, (i + 1) / 3) for i in range(3)]
    path = tmp_path / "killer.pickle"
    path.write_bytes(pickle.dumps((run, str(tmp_path), moments)))
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([sys.executable, "-c", _KILLER, str(path)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("killed") >= 3, (seed, done.stdout)
    expected = contents(tmp_path / "local-whole")
    for name in ("beam-whole", *(f"{runner}-{i}" for runner in ("local", "beam") for i in range(3))):
        assert contents(tmp_path / name) == expected, (seed, name, done.stdout)
