"""Every mistake of the user's is one line and status 2, and leaves the run directory and the cache as they were."""

import contextlib
import gzip
import json
import pathlib
import shutil

import pytest

from tests.support import runs
from tests.support.verbs import assert_one_line, contents


@pytest.fixture(scope="module")
def trained(tiny, verb, tmp_path_factory):
    """A finished run of three steps, with checkpoints 2 and 3."""
    workdir = tmp_path_factory.mktemp("trained") / "run"
    options = ("--config.train.steps=3", "--config.checkpoint.save_every=2")
    finished = verb("pretrain", f"--config={tiny}/tiny.py", f"--workdir={workdir}", *options)
    assert finished.status == 0, finished.err
    return workdir


@pytest.fixture
def trained_copy(trained, tmp_path):
    return pathlib.Path(shutil.copytree(trained, tmp_path / "run"))


CONFIG_MISTAKES = [
    ("--config.train.step=3", ["config.train.step:", "did you mean 'steps'?"]),
    ("--config.trian.steps=3", ["config.trian:", "did you mean 'train'?"]),
    ("--config.data.sources.a.pathh=x", ["config.data.sources.a.pathh:", "did you mean 'path'?"]),
    ("--config.data.sources.c.path=x", ["config.data.sources.c:", "choose from: a, b"]),
    ("--config.train.steps.more=3", ["config.train.steps.more", "not a section"]),
    ("--config.train.steps=many", ["train.steps"]),
    ("--config.train.steps=2.5", ["train.steps"]),
    ("--config.train.steps=0", ["config.train.steps is 0"]),
    ("--config.schedule.kind=cosin", ["config.schedule.kind is 'cosin'", "did you mean 'cosine'?"]),
    ("--config.precision.compute=float16", ["config.precision.compute"]),
    ("--config.model.remat=some", ["config.model.remat"]),
    ("--config.data.length=65", ["config.data.length is 65", "64 positions"]),
    ("--config.data.validation_fraction=1.5", ["validation_fraction"]),
    ("--config.train.batch_size=9", ["batch of 9", "8 (stage × data"]),
    ("--config.train.microbatches=3", ["batch of 8", "3 microbatches"]),
    ("--config.train.microbatches=4", ["batch of 8", "2 rows", "8 (stage × data"]),
    ("--config.mesh.fsdp=3", ["config.mesh", "8 devices"]),
    ("--config.mesh.data=16", ["config.mesh", "8 devices"]),
    ("--config.mesh.context=3", ["mesh.context=3", "8 devices"]),
    ("--config.model.embedding.vocab_size=200", ["vocab_size is 200", "271"]),
    ("--config.vocabulary.eos=300", ["config.vocabulary.eos is 300", "256"]),
    (
        "--config.data.length=64 --config.model.attention.position.length=9999 --config.data.length=9000",
        ["9001", "'a'"],
    ),
    ("--nonsense=3", ["nonsense"]),
    ("nonsense", ["nonsense"]),
]


@pytest.mark.parametrize(("flags", "says"), CONFIG_MISTAKES, ids=[flags for flags, _ in CONFIG_MISTAKES])
def test_a_mistake_in_the_config(flags, says, tiny, verb, tmp_path):
    before = contents(tiny)
    workdir = tmp_path / "run"
    finished = verb("pretrain", f"--config={tiny}/tiny.py", f"--workdir={workdir}", *flags.split(), devices=8)
    assert_one_line(finished, *says)
    assert contents(tiny) == before
    assert not contents(workdir)


@pytest.mark.parametrize("verb_name", ["pretrain", "prepare"])
def test_a_config_that_is_not_there(verb_name, tiny, verb, tmp_path):
    workdir = [f"--workdir={tmp_path}/run"] if verb_name == "pretrain" else []
    assert_one_line(verb(verb_name, f"--config={tmp_path}/none.py", *workdir), "none.py", "no such file")
    assert_one_line(verb(verb_name, *workdir), "--config")
    assert_one_line(verb(verb_name, f"--config={tiny}/tiny.py:plane", *workdir), "'plane'", "did you mean 'plain'?")


# What is wrong in a config file, of which the third line returns `FAULTY`, and what is said of it.
CODE_MISTAKES = [
    ("undefined", ["faulty.py:3: NameError: name 'undefined' is not defined"]),
    ("{}['x']", ["faulty.py:3: KeyError: 'x'"]),
    ("None.x", ["faulty.py:3: AttributeError"]),
    ("config.Mesh(fsdp=2)", ["faulty.py:3: AttributeError", "has no attribute 'Mesh', did you mean 'MeshConfig'?"]),
    ("config.AdamW()", ["faulty.py:3: AttributeError", "has no attribute 'AdamW', did you mean 'AdamWConfig'?"]),
    ("int('x')", ["faulty.py:3: ValueError: invalid literal"]),
    ("1 / 0", ["faulty.py:3: ZeroDivisionError: division by zero"]),
    ("config.TrainConfig(stepz=3)", ["faulty.py:3: TypeError", "unexpected keyword argument 'stepz'"]),
    ("config.to_config_dict(3)", ["faulty.py:3: TypeError"]),
    ("open('none')", ["faulty.py:3: FileNotFoundError", "'none'"]),
    ("__import__('none')", ["faulty.py:3: ModuleNotFoundError: No module named 'none'"]),
    ("__import__('beside').fail()", ["beside.py:2: RuntimeError: of a helper"]),
    ("{", ["faulty.py:3: SyntaxError: '{' was never closed"]),
    ("None", ["faulty.py: get_config returns no ConfigDict"]),
    ("3", ["faulty.py: get_config returns no ConfigDict"]),
]


@pytest.mark.parametrize(("code", "says"), CODE_MISTAKES, ids=[code for code, _ in CODE_MISTAKES])
def test_a_mistake_in_the_code_of_a_config(code, says, verb, tmp_path):
    """As a user's own, whose folder Python looks into."""
    (tmp_path / "beside.py").write_text("def fail():\n    raise RuntimeError('of a helper')\n")
    path = tmp_path / "faulty.py"
    path.write_text(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from plm_jax import config\n")
    path.write_text(path.read_text() + f"def get_config():\n    return {code}\n")
    finished = verb("prepare", f"--config={path}")
    assert_one_line(finished, *says)
    assert str(tmp_path) in finished.errors[0]


def test_a_config_that_is_no_config(verb, tmp_path):
    path = tmp_path / "faulty.py"
    path.write_text("1 / 0\n")
    assert_one_line(verb("prepare", f"--config={path}"), f"{path}:1: ZeroDivisionError")
    path.write_text("sizes = {}\n")
    assert_one_line(verb("prepare", f"--config={path}"), f"--config={path} has no function get_config")
    path.write_text("def get_config():\n    return None\n")
    assert_one_line(verb("prepare", f"--config={path}:base"), "get_config() takes 0 positional arguments")


def test_a_missing_flag(tiny, verb):
    assert_one_line(verb("pretrain", f"--config={tiny}/tiny.py"), "--workdir")


# What is done to the corpora, and what is said.
def _delete(folder):
    (folder / "a.jsonl").unlink()


def _blank(folder):
    (folder / "a.jsonl").write_text('{"text": "  "}\n{"text": ""}\n')


def _empty(folder):
    (folder / "a.jsonl").write_text("")


def _bad_line(folder):
    with open(folder / "a.jsonl", "a") as file:
        file.write('{"text": "cut o\n')


def _other_field(folder):
    (folder / "a.jsonl").write_text('{"texts": "of a whale"}\n')


def _not_utf8(folder):
    (folder / "a.jsonl").write_bytes(b'{"text": "\xff\xfe"}\n')


def _truncated_gzip(folder):
    packed = gzip.compress((folder / "a.jsonl").read_bytes())
    (folder / "a.jsonl").unlink()
    (folder / "a.jsonl.gz").write_bytes(packed[: len(packed) // 2])


CORPUS_MISTAKES = [
    (_delete, ["a.jsonl"]),
    (_blank, ["'a'", "no row of source"]),
    (_empty, ["'a'", "no row of source"]),
    (_bad_line, ["a.jsonl:41"]),
    (_other_field, ["a.jsonl:1", "did you mean 'texts'?"]),
    (_not_utf8, ["a.jsonl", "UTF-8"]),
    (_truncated_gzip, ["a.jsonl.gz", "damaged"]),
]


@pytest.mark.parametrize(("spoil", "says"), CORPUS_MISTAKES, ids=[m[0].__name__ for m in CORPUS_MISTAKES])
def test_a_mistake_in_the_corpus_leaves_the_cache(spoil, says, tiny_copy, verb):
    spoil(tiny_copy)
    before = contents(tiny_copy)
    path = "a.jsonl.gz" if spoil is _truncated_gzip else "a.jsonl"
    finished = verb("prepare", f"--config={tiny_copy}/tiny.py", f"--config.data.sources.a.path={tiny_copy}/{path}")
    assert_one_line(finished, *says)
    after = contents(tiny_copy)
    assert {path: data for path, data in after.items() if ".a.tmp" not in str(path)} == before


def test_a_corpus_that_fails_while_pretrain_prepares_it(tiny_copy, verb, tmp_path):
    shutil.rmtree(tiny_copy / "cache")
    _empty(tiny_copy)
    finished = verb("pretrain", f"--config={tiny_copy}/tiny.py", f"--workdir={tmp_path}/run")
    assert_one_line(finished, "'a'", "no row of source")
    assert not (tmp_path / "run").exists()


def _truncate(path):
    data = path.read_bytes()
    assert len(data) > 1
    path.write_bytes(data[: len(data) // 2])


CACHE_FILES = ["manifest.json", "train/tokens-00000.array_record", "train/documents.npy", "train/sentence_starts.npy"]


@pytest.mark.parametrize("how", [_truncate, pathlib.Path.unlink], ids=["truncated", "removed"])
@pytest.mark.parametrize("name", CACHE_FILES)
def test_a_damaged_cache_leaves_the_run(name, how, tiny_copy, trained_copy, verb):
    how(tiny_copy / "cache" / "a" / name)
    before = contents(trained_copy, tiny_copy)
    finished = verb("pretrain", f"--config={tiny_copy}/tiny.py", f"--workdir={trained_copy}")
    assert_one_line(finished, str(tiny_copy / "cache" / "a"), "plm_jax prepare")
    assert contents(trained_copy, tiny_copy) == before


def checkpoint_files(workdir):
    """A file of each kind in checkpoint 3."""
    folder = workdir / "checkpoints" / "3"
    data = max((path for path in (folder / "params").rglob("*") if path.is_file()), key=lambda p: p.stat().st_size)
    return {
        "meta": folder / "meta" / "metadata",
        "params data": data,
        "params metadata": folder / "params" / "_METADATA",
        "training metadata": folder / "training" / "_METADATA",
    }


CHECKPOINT_MISTAKES = [
    ("meta", _truncate),
    ("meta", pathlib.Path.unlink),
    ("params data", _truncate),
    ("params data", pathlib.Path.unlink),
    ("params metadata", _truncate),
    ("training metadata", _truncate),
]


@pytest.mark.parametrize(
    ("kind", "how"), CHECKPOINT_MISTAKES, ids=[f"{k} {h.__name__}" for k, h in CHECKPOINT_MISTAKES]
)
def test_a_damaged_checkpoint_leaves_the_run(kind, how, tiny, trained_copy, verb):
    how(checkpoint_files(trained_copy)[kind])
    before = contents(trained_copy)
    finished = verb("pretrain", f"--config={tiny}/tiny.py", f"--workdir={trained_copy}", "--refuse_damaged")
    assert_one_line(
        finished, str(trained_copy / "checkpoints" / "3"), f"use another checkpoint, such as {trained_copy}"
    )
    assert contents(trained_copy) == before


@pytest.mark.parametrize("text", ['{"config": {"mod', "[]", "{}", '{"config": {"nothing": 1}}'])
def test_a_damaged_config_json_leaves_the_run(text, tiny, trained_copy, verb):
    (trained_copy / "config.json").write_text(text)
    before = contents(trained_copy)
    finished = verb("pretrain", f"--config={tiny}/tiny.py", f"--workdir={trained_copy}")
    assert_one_line(finished, str(trained_copy / "config.json"))
    assert contents(trained_copy) == before


def test_a_damaged_row_of_metrics_leaves_the_run(tiny, trained_copy, verb):
    path = trained_copy / "metrics.jsonl"
    path.write_text(path.read_text().replace("{", "", 1))
    before = contents(trained_copy)
    finished = verb("pretrain", f"--config={tiny}/tiny.py", f"--workdir={trained_copy}")
    assert_one_line(finished, f"{path}:1")
    assert contents(trained_copy) == before


def test_another_model_in_the_same_run_directory(tiny, trained_copy, verb):
    before = contents(trained_copy)
    finished = verb(
        "pretrain", f"--config={tiny}/tiny.py", f"--workdir={trained_copy}", "--config.model.feed_forward.width=96"
    )
    assert_one_line(finished, "another model", "--workdir")
    assert contents(trained_copy) == before


def test_another_vocabulary_than_the_checkpoint_s(tiny_copy, trained_copy, verb):
    """The cache is made again with a larger vocabulary, which the model would hold."""
    other = ("--config.vocabulary.eos=258", "--config.vocabulary.bos=257")
    finished = verb("prepare", f"--config={tiny_copy}/tiny.py", *other)
    assert finished.status == 0, finished.err
    before = contents(trained_copy)
    finished = verb("pretrain", f"--config={tiny_copy}/tiny.py", f"--workdir={trained_copy}", *other)
    assert_one_line(finished, "checkpoint 3", "vocabulary")
    assert contents(trained_copy) == before


@pytest.fixture(scope="module")
def byte_pairs(tiny, verb, tmp_path_factory):
    """A copy of `tiny` with a BPE vocabulary of bytes alone, cut from GPT-2's, and its cache."""
    folder = pathlib.Path(shutil.copytree(tiny, tmp_path_factory.mktemp("byte_pairs") / "tiny"))
    shutil.rmtree(folder / "cache")
    source = pathlib.Path(runs.__file__).parents[2] / "plm_jax" / "data" / "gpt2" / "vocab.json"
    ids = {token: number for token, number in json.loads(source.read_text()).items() if number < 256}
    ids |= {name: 256 + i for i, name in enumerate(("<end>", "<pad>", "<cls>", "<sep>", "<mask>", "<sop>", "<eop>"))}
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    finished = verb("prepare", f"--config={folder}/tiny.py", _spec(folder))
    assert finished.status == 0, finished.err
    return folder


def _spec(folder, merges="merges.txt"):
    return f"--config.vocabulary.spec=bpe:{folder}/vocab.json,{folder}/{merges}"


@pytest.mark.parametrize("verb_name", ["prepare", "pretrain"])
def test_a_damaged_vocabulary(verb_name, byte_pairs, verb, tmp_path):
    folder = pathlib.Path(shutil.copytree(byte_pairs, tmp_path / "tiny"))
    _truncate(folder / "vocab.json")
    before = contents(folder)
    arguments = [f"--config={folder}/tiny.py", _spec(folder)]
    workdir = [f"--workdir={tmp_path}/run"] if verb_name == "pretrain" else []
    assert_one_line(verb(verb_name, *arguments, *workdir), str(folder / "vocab.json"))
    assert contents(folder) == before and not (tmp_path / "run").exists()


def test_a_vocabulary_that_is_not_there(byte_pairs, verb):
    arguments = [f"--config={byte_pairs}/tiny.py", _spec(byte_pairs, "none.txt")]
    assert_one_line(verb("prepare", *arguments), "none.txt")


def test_init_from_that_does_not_fit(tiny, trained, verb, tmp_path):
    def start(*flags):
        return verb("pretrain", f"--config={tiny}/tiny.py", f"--workdir={tmp_path}/new", *flags)

    assert_one_line(start(f"--config.train.init_from={tmp_path}/none"), str(tmp_path / "none"))
    wider = start(f"--config.train.init_from={trained}", "--config.model.feed_forward.width=96")
    assert_one_line(wider, "feed_forward/down/kernel", "96", "64", "init_names")
    nothing = start(f"--config.train.init_from={trained}", "--config.train.init_names=('x.*',)")
    assert_one_line(nothing, "nothing", "x.*")
    with contextlib.suppress(FileNotFoundError):
        assert not contents(tmp_path / "new")


def test_a_loss_that_is_lost(tiny, verb, tmp_path):
    workdir = tmp_path / "run"
    finished = verb(
        "pretrain", f"--config={tiny}/tiny.py", f"--workdir={workdir}",
        "--config.schedule.learning_rate=1e4", "--config.optimizer.clip_norm=0.0", "--config.checkpoint.save_every=1",
        "--config.train.incidents.most_in_a_row=2",
    )  # fmt: skip
    assert_one_line(finished, "of step", "nan", "batch digest", "learning rate")
    last = runs.rows(workdir)[-1]["step"]
    assert sorted(int(path.name) for path in (workdir / "checkpoints").iterdir())[-1] <= last
