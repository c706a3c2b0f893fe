import dataclasses
import gzip
import itertools
import json
import os
import pathlib
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
from plm_jax.data import cache, vocabularies
from plm_jax.data.cache import file_format
from plm_jax.data.prepare import caches, reading, tokenizing
from plm_jax.runs import preparation
from tests.support import splits
from tests.support.caches import contents, stored_texts
from tests.support.data import assert_rejected, changed, open_reader

TEXTS = [f"Document {i}. It counts: {' '.join(map(str, range(i % 23)))}! Ünd aus" for i in range(400)]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


@pytest.fixture
def run(make_run, corpus):
    """Bytes over the corpus, a tenth held out."""
    data = {"validation_fraction": 0.1, "length": 16, "sources": {"a": config.TextTable(str(corpus))}}
    return make_run("a", eos=256, vocab_size=257, data=data)


def with_vocabulary(run, **fields):
    return changed(run, vocabulary=config.VocabularyConfig(**fields))


def test_the_cache_has_every_document_and_splits_them_by_hash(run):
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
    assert len(list(open_reader(run).batches(45))) == 5


def test_files_for_validation_are_held_out_and_no_others(run, corpus):
    held_out = [f"{text} held out" for text in TEXTS[:50]]
    (corpus.parent / "validation.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in held_out))
    run = changed(run, data={"sources": {"a": config.TextTable("corpus.jsonl", validation="validation.jsonl")}})
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


def test_an_interrupted_upload_continues_without_preparing_again(run, tmp_path, monkeypatch):
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
    remote, local = (cache.open_source(of, "a") for of in ("memory://bucket/cache", run.data.cache_dir))
    assert stored_texts(remote.splits["train"]) == stored_texts(local.splits["train"])
    storage.remove("memory://bucket/cache")


def test_identity_changes_with_whatever_changes_the_cache(run, corpus, tmp_path, monkeypatch):
    def identity(run):
        return reading.identity(run.data, "a", vocabularies.load(run.vocabulary))

    def of_source(source):
        return identity(changed(run, data={"sources": {"a": source}}))

    moved = tmp_path / "moved.jsonl"
    moved.write_bytes(corpus.read_bytes())
    assert of_source(config.TextTable(str(moved))) == identity(run)
    identities = [
        identity(run),
        identity(with_vocabulary(run, spec="bytes", eos=257)),
        of_source(config.TextTable(str(corpus), validation=str(moved))),
        of_source(config.TextFiles(str(corpus))),
        of_source(config.TextFiles(str(corpus), document="line")),
        identity(changed(run, data={"validation_fraction": 0.2})),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(file_format, "CONTENT", file_format.CONTENT + 1)
        identities.append(identity(run))
    corpus.write_text(corpus.read_text().replace("counts", "count"))
    identities.append(identity(run))
    assert len(set(identities)) == len(identities)


def test_another_vocabulary_prepares_again_and_is_copied(run, tmp_path):
    preparation.prepare(run, show_progress=False)
    model = tmp_path / "models" / "v.model"
    other = with_vocabulary(run, spec=f"sentencepiece:{model}", train_size=320, pad=0, eos=1, unk=2)
    preparation.prepare(other, show_progress=False)
    assert cache.open_source(run.data.cache_dir, "a").vocabulary["size"] == 320
    copied = pathlib.Path(run.data.cache_dir, "vocabulary", "v.model")
    assert copied.read_bytes() == model.read_bytes()
    with pytest.raises(UserError, match="spec is bytes, but that of the cache is sentencepiece"):
        open_reader(run)
    model.write_bytes(model.read_bytes() + b"x")
    with pytest.raises(UserError, match="is not the vocabulary that the cache was made with"):
        open_reader(changed(other, model={"embedding": models.EmbeddingConfig(320, 8)}))


def test_sentinels_reach_the_cache(run):
    def with_ids(**ids):
        return with_vocabulary(run, spec="bytes", eos=256, **ids)

    other = with_ids(mask=257, sentinels=5)
    preparation.prepare(other, show_progress=False)
    source = cache.open_source(run.data.cache_dir, "a")
    assert source.vocabulary.items() >= {"size": 263, "mask": 257, "cls": None, "sentinels": 5}.items()
    assert (len(source.word_initial), len(source.splits["train"].unigram)) == (263, 263)
    with pytest.raises(UserError, match=r"mask is None, but that of the cache is 257"):
        open_reader(with_ids())
    with pytest.raises(UserError, match=r"sentinels is 4, but that of the cache is 5"):
        open_reader(with_ids(mask=257, sentinels=4))
    special = open_reader(changed(other, model={"embedding": models.EmbeddingConfig(263, 8)})).objective.special
    assert (special.mask, special.sentinels, special.vocab_size) == (257, (262, 261, 260, 259, 258), 263)
    assert_rejected(r"sentinels is -1: must be between 0 and", with_ids(sentinels=-1))


def test_equal_documents_are_not_adjacent(run, corpus):
    corpus.write_text("".join(json.dumps({"text": t}) + "\n" for t in ["same", *TEXTS[:200], "same", "same"]))
    preparation.prepare(changed(run, data={"validation_fraction": 0.0}), show_progress=False)
    splits = cache.open_source(run.data.cache_dir, "a").splits
    positions = [i for i, text in enumerate(stored_texts(splits["train"])) if text == "same"]
    assert len(positions) == 3 and max(positions) - min(positions) > 10
    assert list(splits) == ["train"]


@pytest.mark.parametrize("content", ["", '{"text": " "}\n'])
def test_a_corpus_without_text_is_rejected(run, corpus, content, tmp_path):
    corpus.write_text(content)
    spec = {"spec": f"sentencepiece:{tmp_path}/v.model", "train_size": 300, "unk": 0}
    for without_text in (run, with_vocabulary(run, **spec)):
        with pytest.raises(UserError, match=rf"no row of source 'a' \({re.escape(str(corpus))}\) has text"):
            preparation.prepare(without_text, show_progress=False)
    assert not os.path.exists(os.path.join(run.data.cache_dir, "a"))


def test_other_mistakes_are_rejected(run, tmp_path):
    with pytest.raises(UserError, match=r"config\.data\.sources has 'vocabulary'"):
        preparation.prepare(changed(run, data={"sources": {"vocabulary": run.data.sources["a"]}}), show_progress=False)
    with pytest.raises(UserError, match="cannot read the vocabulary's"):
        preparation.prepare(with_vocabulary(run, spec=f"sentencepiece:{tmp_path}/none"), show_progress=False)


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
def stop(*args):
    print("stopped", flush=True); time.sleep(600)
if stop_at == "shuffle":
    build.write_shards = stop
elif stop_at == "publish":
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
    time.sleep(1)
    assert second.poll() is None and os.path.exists(os.path.join(output, ".a.tmp"))
    first.kill()
    first.wait()
    assert second.wait(timeout=120) == 0
    assert cache.open_source(output, "a").splits["train"].num_documents > 0


# Runs the verb once for each line of arguments, in a fork of a process without TensorFlow; prints the exit codes.
_WITHOUT = """
import os, runpy, sys
sys.modules |= dict.fromkeys(("tensorflow", "tensorflow_datasets", "tensorflow_text", "seqio"))
import plm_jax.runs.preparation
for line in sys.stdin.read().splitlines():
    if not os.fork():
        sys.argv = ["prepare", *line.split()]
        runpy.run_module("plm_jax.cli.prepare", run_name="__main__")
        sys.exit()
    print("exit code", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


def test_the_verb_prepares_files_without_tensorflow(corpus, tmp_path):
    arguments = f"--config=configs/gpt2.py:small --output={tmp_path}/output --config.data.sources.webtext.path="
    lines = [f"{arguments}{corpus}", f"{arguments}/none"]
    lines.append(f"{lines[0]} --config.vocabulary.spec=sentencepiece:{tmp_path}/none")
    command = [sys.executable, "-c", _WITHOUT]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True)
    assert re.findall("exit code (.*)", done.stdout) == ["0", "2", "2"], done.stderr
    assert len(re.findall("^error: ", done.stderr, re.MULTILINE)) == 2 and "Traceback" not in done.stderr
    assert len(stored_documents(cache.open_source(f"{tmp_path}/output", "webtext"))) == len(TEXTS)


def stored_documents(source):
    return [document for split in source.splits.values() for document in split.documents[1:]]


def test_progress_counts_the_bytes_of_the_files_as_they_are(run, corpus, capsys):
    (corpus.parent / "more.jsonl.gz").write_bytes(gzip.compress(corpus.read_bytes() * 5))
    source = config.TextTable(str(corpus), validation=str(corpus.parent / "more.jsonl.gz"))
    run = changed(run, data={"sources": {"a": source}})
    read = []
    assert len(list(reading.all_documents(run.data, "a", advance=read.append))) == 6 * len(TEXTS)
    size = sum(os.path.getsize(path) for path in corpus.parent.glob("*.jsonl*"))
    assert sum(read) == size == source.open("a").progress()["total"]
    preparation.prepare(run)
    assert f"{size / 1000:.1f}k/{size / 1000:.1f}k" in capsys.readouterr().err


def test_a_vocabulary_is_used_only_for_the_texts_that_it_was_trained_on(make_run, few_shards, tmp_path, capsys):
    """One that was trained on some of the sources is used for others next to them."""
    for name, words in (("a", "red green"), ("b", "north south"), ("c", "one two")):
        lines = (json.dumps({"text": f"{words} {number} of the {words}s"}) for number in range(60))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    model = tmp_path / "shared/v.model"

    def prepare(*names, cache, call=preparation.prepare, **changes):
        fields = {"spec": f"sentencepiece:{model}", "train_size": 280, "pad": 0, "eos": 1, "unk": 2} | changes
        sources = {name: config.TextTable(f"{tmp_path}/{name}.jsonl") for name in names}
        run = with_vocabulary(make_run(names[0]), **fields)
        run = dataclasses.replace(run, data=dataclasses.replace(run.data, sources=sources))
        call(run, str(tmp_path / cache), show_progress=False)
        return capsys.readouterr().out.splitlines()[0]

    assert prepare("a", cache="1") == f"training a vocabulary of 280: {model}"
    content = model.read_bytes()
    for names in (("a",), ("b", "a")):
        assert prepare(*names, cache="2") == f"using the vocabulary {model}"
    with pytest.raises(
        UserError,
        match=rf"^{model} was trained on sources a, and on none of the files of this config: .*vocabulary.spec to a",
    ):
        prepare("b", cache="3")
    assert not (tmp_path / "3/b").exists() and model.read_bytes() == content
    assert prepare("b", cache="3", train_size=0) == f"using the vocabulary {model}"
    with pytest.raises(
        UserError, match=rf"^{model} was trained with other settings \(train_size was 280 and is 290\): "
    ):
        prepare("a", cache="3", train_size=290)
    with pytest.raises(UserError, match=r"was trained with other settings"):  # Although there may be a current cache.
        prepare("a", cache="3", train_size=290, call=lambda run, *_, **__: preparation.prepare_if_needed(run, []))
    with pytest.raises(
        UserError, match=r"\(train_kind was 'unigram' and is 'bpe', lowercase was False and is True\): "
    ):
        prepare("a", cache="3", train_kind="bpe", lowercase=True)
    assert prepare("a", cache="3", train_kind="unigram") == f"using the vocabulary {model}"
    other = prepare("b", cache="4", spec=f"sentencepiece:{tmp_path}/own.model")
    assert other == f"training a vocabulary of 280: {tmp_path}/own.model"
    (tmp_path / "shared/v.model.trained_on.json").unlink()  # A file of another origin.
    assert prepare("c", cache="5") == f"using the vocabulary {model}"
