import dataclasses
import gzip
import itertools
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from plm_jax import config, models
from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.data import cache, reader, vocabularies
from plm_jax.data.cache import file_format
from plm_jax.data.prepare import caches, reading, tokenizing
from plm_jax.runs import preparation
from tests.support import splits
from tests.support.caches import contents, stored_texts

TEXTS = [f"Document {i}. It counts: {' '.join(map(str, range(i % 23)))}! Ünd aus" for i in range(400)]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


@pytest.fixture
def run(make_run, corpus):
    """Bytes over the corpus, a tenth held out."""
    made = make_run("a", eos=256, vocab_size=257, data={"validation_fraction": 0.1, "length": 16})
    data = dataclasses.replace(made.data, sources={"a": config.JsonLines(str(corpus))})
    return dataclasses.replace(made, data=data)


def with_vocabulary(run, **fields):
    return dataclasses.replace(run, vocabulary=config.VocabularyConfig(**fields))


def test_cache_holds_every_document_and_the_hash_parts_them(run):
    preparation.prepare(run, show_progress=False)
    source = cache.open_source(run.data.cache_dir, "a")
    rule, are_held_out = splits.held_out(TEXTS, 0.1)
    held_out = set(itertools.compress(TEXTS, are_held_out))
    assert rule == "hash" and 20 <= len(held_out) < 90
    train, validation = (stored_texts(source.splits[name]) for name in ("train", "validation"))
    assert sorted(validation) == sorted(held_out)
    assert sorted(train) == sorted(set(TEXTS) - held_out)
    order = [TEXTS.index(text) for text in train]
    assert abs(np.corrcoef(order, np.arange(len(order)))[0, 1]) < 0.2
    split = source.splits["train"]
    assert split.num_bytes == sum(len(t.encode()) for t in train)
    flat = "".join(train).encode()
    for a, b in itertools.pairwise(split.sentences):
        assert flat[a:b].decode().strip().endswith((".", "!", "aus"))
    assert split.column("first_bytes").tolist() == [1] * len(train)
    assert split.unigram.tolist() == np.bincount(list(flat), minlength=257).tolist()
    assert len(list(reader.Reader(config.reader_config(run)).batches(45))) == 5


def test_files_for_validation_are_held_out_and_no_others(run, corpus):
    held_out = [f"{text} held out" for text in TEXTS[:50]]
    (corpus.parent / "validation.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in held_out))
    source = config.JsonLines("corpus.jsonl", validation="validation.jsonl")
    run = dataclasses.replace(run, data=dataclasses.replace(run.data, sources={"a": source}))
    run = config.resolve(config.to_config_dict(run), str(corpus.parent / "config.py"))
    preparation.prepare(run, show_progress=False)
    splits = cache.open_source(run.data.cache_dir, "a").splits
    assert sorted(stored_texts(splits["train"])) == sorted(TEXTS)
    assert sorted(stored_texts(splits["validation"])) == sorted(held_out)


def test_second_call_does_nothing_and_changes_start_again(run, corpus, capsys):
    preparation.prepare(run, show_progress=False)
    before = contents(run.data.cache_dir)
    stamp = os.stat(os.path.join(run.data.cache_dir, "a", "manifest.json")).st_mtime_ns
    preparation.prepare(run, show_progress=False)
    assert "up to date" in capsys.readouterr().out
    assert os.stat(os.path.join(run.data.cache_dir, "a", "manifest.json")).st_mtime_ns == stamp
    corpus.write_text(corpus.read_text() + json.dumps({"text": "one more"}) + "\n")
    preparation.prepare(run, show_progress=False)
    assert contents(run.data.cache_dir) != before
    splits = cache.open_source(run.data.cache_dir, "a").splits.values()
    assert sum(split.num_documents for split in splits) == len(TEXTS) + 1


def test_a_cut_off_upload_is_taken_up_without_preparing_again(run, tmp_path, monkeypatch):
    def cut_off(*_):
        raise UserError("cut off")

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with monkeypatch.context() as patch, pytest.raises(UserError, match="cut off"):
        patch.setattr(storage, "upload", cut_off)
        preparation.prepare(run, "memory://bucket/cache", show_progress=False)
    assert not storage.exists("memory://bucket/cache/a/manifest.json")
    with monkeypatch.context() as patch:
        patch.setattr(tokenizing, "tokenize", cut_off)
        preparation.prepare(run, "memory://bucket/cache", show_progress=False)
    preparation.prepare(run, show_progress=False)
    splits = [
        cache.open_source(folder, "a").splits["train"] for folder in ("memory://bucket/cache", run.data.cache_dir)
    ]
    assert stored_texts(splits[0]) == stored_texts(splits[1])
    storage.remove("memory://bucket/cache")


def test_identity_changes_with_whatever_changes_the_cache(run, corpus, tmp_path, monkeypatch):
    def identity(run):
        return reading.identity(run.data, "a", vocabularies.load(run.vocabulary))

    def with_source(source):
        return dataclasses.replace(run, data=dataclasses.replace(run.data, sources={"a": source}))

    found = [identity(run), identity(with_vocabulary(run, spec="bytes", eos=257))]
    moved = tmp_path / "moved.jsonl"
    moved.write_bytes(corpus.read_bytes())
    assert identity(with_source(config.JsonLines(str(moved)))) == found[0]
    found.append(identity(with_source(config.JsonLines(str(corpus), validation=str(moved)))))
    found.append(identity(with_source(config.TextFiles(str(corpus)))))
    found.append(identity(with_source(config.TextFiles(str(corpus), document="line"))))
    found.append(identity(dataclasses.replace(run, data=dataclasses.replace(run.data, validation_fraction=0.2))))
    with monkeypatch.context() as patch:
        patch.setattr(file_format, "CONTENT", file_format.CONTENT + 1)
        found.append(identity(run))
    corpus.write_text(corpus.read_text().replace("counts", "count"))
    found.append(identity(run))
    assert len(set(found)) == len(found)


def test_other_vocabulary_prepares_again_and_is_copied(run, tmp_path):
    preparation.prepare(run, show_progress=False)
    model = str(tmp_path / "models" / "v.model")
    other = with_vocabulary(run, spec=f"sentencepiece:{model}", train_size=320, pad=0, eos=1, unk=2)
    preparation.prepare(other, show_progress=False)
    assert cache.open_source(run.data.cache_dir, "a").vocabulary["size"] == 320
    copied = os.path.join(run.data.cache_dir, "vocabulary", "v.model")
    with open(copied, "rb") as a, open(model, "rb") as b:
        assert a.read() == b.read()
    with pytest.raises(UserError, match="spec is bytes, the cache's is sentencepiece"):
        reader.Reader(config.reader_config(run))
    with open(model, "ab") as file:
        file.write(b"x")
    wide = dataclasses.replace(other, model=dataclasses.replace(run.model, embedding=models.EmbeddingConfig(320, 8)))
    with pytest.raises(UserError, match="is not the vocabulary that the cache was made with"):
        reader.Reader(config.reader_config(wide))


def test_sentinels_reach_the_cache(run):
    plain = with_vocabulary(run, spec="bytes", eos=256)
    other = with_vocabulary(run, spec="bytes", eos=256, mask=257, sentinels=5)
    preparation.prepare(other, show_progress=False)
    source = cache.open_source(run.data.cache_dir, "a")
    assert {k: source.vocabulary[k] for k in ("size", "mask", "cls", "sentinels")} == {
        "size": 263,
        "mask": 257,
        "cls": None,
        "sentinels": 5,
    }
    assert (len(source.word_initial), len(source.splits["train"].unigram)) == (263, 263)
    with pytest.raises(UserError, match=r"mask is None, the cache's is 257"):
        reader.Reader(config.reader_config(plain))
    with pytest.raises(UserError, match=r"sentinels is 4, the cache's is 5"):
        reader.Reader(config.reader_config(with_vocabulary(run, spec="bytes", eos=256, mask=257, sentinels=4)))
    wide = dataclasses.replace(other, model=dataclasses.replace(run.model, embedding=models.EmbeddingConfig(263, 8)))
    special = reader.Reader(config.reader_config(wide)).objective.special
    assert (special.mask, special.sentinels, special.vocab_size) == (257, (262, 261, 260, 259, 258), 263)
    with pytest.raises(UserError, match=r"sentinels is -1: must be between 0 and"):
        config.from_dict(config.to_dict(with_vocabulary(run, spec="bytes", sentinels=-1)))


def test_equal_documents_do_not_end_up_side_by_side(run, corpus):
    corpus.write_text("".join(json.dumps({"text": t}) + "\n" for t in ["same", *TEXTS[:200], "same", "same"]))
    run = dataclasses.replace(run, data=dataclasses.replace(run.data, validation_fraction=0.0))
    preparation.prepare(run, show_progress=False)
    splits = cache.open_source(run.data.cache_dir, "a").splits
    places = [i for i, text in enumerate(stored_texts(splits["train"])) if text == "same"]
    assert len(places) == 3 and max(places) - min(places) > 10
    assert list(splits) == ["train"]


@pytest.mark.parametrize("content", ["", '{"text": " "}\n'])
def test_a_corpus_without_text_is_refused(run, corpus, content):
    corpus.write_text(content)
    with pytest.raises(UserError, match=rf"no row of source 'a' \({re.escape(str(corpus))}\) has text"):
        preparation.prepare(run, show_progress=False)
    assert not os.path.exists(os.path.join(run.data.cache_dir, "a"))


def test_other_mistakes(run, tmp_path):
    data = dataclasses.replace(run.data, sources={"vocabulary": next(iter(run.data.sources.values()))})
    with pytest.raises(UserError, match=r"config\.data\.sources has 'vocabulary'"):
        preparation.prepare(dataclasses.replace(run, data=data), show_progress=False)
    with pytest.raises(UserError, match="cannot read the vocabulary's"):
        preparation.prepare(with_vocabulary(run, spec=f"sentencepiece:{tmp_path}/none"), show_progress=False)


def test_a_vocabulary_cannot_be_trained_on_nothing(run, corpus, tmp_path):
    corpus.write_text("")
    spec = {"spec": f"sentencepiece:{tmp_path}/v.model", "train_size": 300, "unk": 0}
    with pytest.raises(UserError, match=rf"no row of source 'a' \({re.escape(str(corpus))}\) has text"):
        preparation.prepare(with_vocabulary(run, **spec), show_progress=False)


def test_sample_is_bounded_and_depends_on_the_texts_alone():
    sample = caches.sample(iter(TEXTS), 2000)
    assert sample == caches.sample(iter(TEXTS), 2000)
    assert 1500 < sum(len(text.encode()) for text in sample) <= 2000
    assert {TEXTS.index(text) // 100 for text in sample} == {0, 1, 2, 3}
    assert sorted(caches.sample(iter(TEXTS), 10**9)) == sorted(TEXTS)


_KILLED = """
import pickle, sys, time
from plm_jax.data import cache
from plm_jax.data.prepare import build
from plm_jax.runs import preparation
run, output, stop_at = pickle.load(open(sys.argv[1], "rb"))
print("started", flush=True)
if stop_at == "shuffle":
    original = build.write_shards
    def stop(*args):
        print("stopped", flush=True); time.sleep(600)
    build.write_shards = stop
elif stop_at == "publish":
    def stop(*args):
        print("stopped", flush=True); time.sleep(600)
    cache.publish = stop
preparation.prepare(run, output, show_progress=False)
"""


def _start(tmp_path, run, output, stop_at):
    path = tmp_path / f"{stop_at}.pickle"
    path.write_bytes(pickle.dumps((run, output, stop_at)))
    command = [sys.executable, "-c", _KILLED, str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def test_killed_anywhere_the_next_run_writes_the_same_bytes(run, tmp_path):
    whole, broken = str(tmp_path / "whole"), str(tmp_path / "broken")
    preparation.prepare(run, whole, show_progress=False)
    processes = [_start(tmp_path, run, broken, "publish"), _start(tmp_path, run, broken + "2", "shuffle")]
    for process in processes:
        assert [process.stdout.readline() for _ in range(2)] == ["started\n", "stopped\n"]
        process.send_signal(signal.SIGKILL)
        process.wait()
    for folder in (broken, broken + "2"):
        assert os.path.exists(os.path.join(folder, ".a.tmp"))
        assert not os.path.exists(os.path.join(folder, "a"))
        preparation.prepare(run, folder, show_progress=False)
        assert contents(folder) == contents(whole)


def test_a_second_process_waits_for_the_first(run, tmp_path):
    output = str(tmp_path / "output")
    first = _start(tmp_path, run, output, "publish")
    assert [first.stdout.readline() for _ in range(2)] == ["started\n", "stopped\n"]
    second = _start(tmp_path, run, output, "nowhere")
    assert second.stdout.readline() == "started\n"
    time.sleep(3)
    assert second.poll() is None and os.path.exists(os.path.join(output, ".a.tmp"))
    first.kill()
    first.wait()
    assert second.wait(timeout=120) == 0
    assert cache.open_source(output, "a").splits["train"].num_documents > 0


_WITHOUT = """
import runpy, sys
sys.modules |= dict.fromkeys(("tensorflow", "tensorflow_datasets", "tensorflow_text", "seqio"))
sys.argv[0] = "prepare"
runpy.run_module("plm_jax.cli.prepare", run_name="__main__")
"""


def test_files_are_prepared_and_mistakes_are_told_without_tensorflow(corpus, tmp_path):
    def verb(*arguments):
        command = [sys.executable, "-c", _WITHOUT, "--config=configs/gpt2.py:small", *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    path, output = f"--config.data.sources.webtext.path={corpus}", f"--output={tmp_path}/output"
    finished = verb(path, output)
    assert finished.returncode == 0, finished.stderr
    assert len(stored_documents(cache.open_source(f"{tmp_path}/output", "webtext"))) == len(TEXTS)
    for wrong in ("--config.data.sources.webtext.path=/none", f"--config.vocabulary.spec=sentencepiece:{tmp_path}/no"):
        refused = verb(path, output, wrong)
        assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1), refused.stderr


def stored_documents(source):
    return [document for split in source.splits.values() for document in split.documents[1:]]


def test_progress_counts_the_bytes_of_the_files_as_they_are(run, corpus, capsys):
    (corpus.parent / "more.jsonl.gz").write_bytes(gzip.compress(corpus.read_bytes() * 40))
    source = config.JsonLines(str(corpus), validation=str(corpus.parent / "more.jsonl.gz"))
    run = dataclasses.replace(run, data=dataclasses.replace(run.data, sources={"a": source}))
    read = []
    found = list(reading.all_documents(run.data, "a", advance=read.append))
    assert len(found) == 41 * len(TEXTS)
    size = sum(os.path.getsize(path) for path in corpus.parent.glob("*.jsonl*"))
    assert sum(read) == size == source.open("a").progress()["total"]
    preparation.prepare(run)
    assert f"{size / 1000:.1f}k/{size / 1000:.1f}k" in capsys.readouterr().err
