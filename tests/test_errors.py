"""Every mistake of a user is one line and status 2, and leaves the run directory and the cache unchanged.

Each test runs a verb for one kind of mistake. `tests/config` and `tests/test_checks.py` have all messages of configs.
"""

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


def rewrite(path, change):
    """Replaces the bytes of a file by those that `change` returns; None removes it."""
    data = change(path.read_bytes())
    path.unlink()
    if data is not None:
        path.write_bytes(data)


def half(data):
    assert len(data) > 1
    return data[: len(data) // 2]


def nothing(data):
    return None


CONFIG_MISTAKES = [
    ("--config.train.step=3", ["config.train.step:", "did you mean 'steps'?"]),
    ("--config.train.steps=0", ["config.train.steps is 0"]),
    ("--config.data.length=65", ["config.data.length is 65", "64 positions"]),
    ("--config.train.batch_size=9", ["train.batch_size 9 ", "8 shards of the mesh (stage × data"]),
    ("--config.train.microbatches=3", ["batch of 8 rows", "3 equal microbatches"]),
    (
        "--config.train.microbatches=4",
        ["batch_size 8", "microbatch of 2 rows", "8 shards of the mesh (stage × data"],
    ),
    ("--config.mesh.fsdp=3", ["config.mesh", "8 devices"]),
    ("--config.mesh.data=16", ["config.mesh", "8 devices"]),
    ("--config.mesh.context=3", ["mesh.context=3", "8 devices"]),
    ("--config.model.embedding.vocab_size=200", ["vocab_size is 200", "271"]),
    ("--config.vocabulary.eos=300", ["config.vocabulary.eos is 300", "256"]),
    ("--config.model.attention.position.length=9999 --config.data.length=9000", ["9001", "'a'"]),
    ("--nonsense=3", ["nonsense"]),
    ("nonsense", ["nonsense"]),
]


@pytest.mark.parametrize(("flags", "says"), CONFIG_MISTAKES, ids=[flags for flags, _ in CONFIG_MISTAKES])
def test_a_mistake_in_the_config(flags, says, tiny, verb, tmp_path):
    before = contents(tiny)
    workdir = tmp_path / "run"
    finished = verb("pretrain", f"--config={tiny}/tiny.py", f"--workdir={workdir}", *flags.split(), devices=8)
    assert_one_line(finished, *says)
    assert contents(tiny) == before and not contents(workdir)


@pytest.mark.parametrize("verb_name", ["pretrain", "prepare"])
def test_a_missing_config_or_flag(verb_name, tiny, verb, tmp_path):
    workdir = [f"--workdir={tmp_path}/run"] if verb_name == "pretrain" else []
    assert_one_line(verb(verb_name, f"--config={tmp_path}/none.py", *workdir), "none.py", "no such file")
    assert_one_line(verb(verb_name, *workdir), "--config")
    assert_one_line(verb(verb_name, f"--config={tiny}/tiny.py:plane", *workdir), "'plane'", "did you mean 'plain'?")
    if workdir:
        assert_one_line(verb(verb_name, f"--config={tiny}/tiny.py"), "--workdir")


def test_unused_settings_are_rejected_before_data_are_prepared(tiny, verb, tmp_path):
    before = contents(tiny)
    flags_of = {"prepare": [], "plan": ["--topology=none"], "pretrain": [f"--workdir={tmp_path}/run"]}
    for name, flags in flags_of.items():
        finished = verb(name, f"--config={tiny}/tiny.py", "--config.train.init_layers=(0, 1)", *flags)
        assert_one_line(finished, "config.train.init_layers has no effect without config.train.init_from")
    assert contents(tiny) == before and not contents(tmp_path)


IMPORTS = "import sys; sys.path.insert(0, {folder!r}); from plm_jax import config\ndef get_config():\n"
# Code of a config file and its message.
CODE_MISTAKES = [
    (f"{IMPORTS}    return undefined", "faulty.py:3: NameError: name 'undefined' is not defined"),
    (f"{IMPORTS}    return config.Mesh(fsdp=2)", "has no attribute 'Mesh', did you mean 'MeshConfig'?"),
    (f"{IMPORTS}    return config.TrainConfig(stepz=3)", "faulty.py:3: TypeError: "),
    (f"{IMPORTS}    return __import__('none')", "faulty.py:3: ModuleNotFoundError: No module named 'none'"),
    (f"{IMPORTS}    return __import__('beside').fail()", "beside.py:2: RuntimeError: of a helper"),
    (f"{IMPORTS}    return {{{{", "faulty.py:3: SyntaxError: '{' was never closed"),
    (f"{IMPORTS}    return 3", "faulty.py: get_config returns no ConfigDict"),
    ("1 / 0", "faulty.py:1: ZeroDivisionError: division by zero"),
    ("sizes = ()", "faulty.py has no function get_config"),
]


@pytest.mark.parametrize(("code", "message"), CODE_MISTAKES, ids=[message for _, message in CODE_MISTAKES])
def test_a_mistake_in_the_code_of_a_config(code, message, verb, tmp_path):
    (tmp_path / "beside.py").write_text("def fail():\n    raise RuntimeError('of a helper')\n")
    (tmp_path / "faulty.py").write_text(code.format(folder=str(tmp_path)) + "\n")
    finished = verb("prepare", f"--config={tmp_path}/faulty.py")
    assert_one_line(finished, message, str(tmp_path))


def test_a_config_without_sizes(verb, tmp_path):
    (tmp_path / "plain.py").write_text("def get_config():\n    return None\n")
    assert_one_line(verb("prepare", f"--config={tmp_path}/plain.py:base"), "get_config() takes 0 positional arguments")


CORPUS_MISTAKES = {
    "missing": (nothing, ["a.jsonl"]),
    "blank": (lambda data: b'{"text": "  "}\n{"text": ""}\n', ["'a'", "no row of source"]),
    "empty": (lambda data: b"", ["'a'", "no row of source"]),
    "bad line": (lambda data: data + b'{"text": "cut o\n', ["a.jsonl:41"]),
    "other field": (lambda data: b'{"texts": "of a whale"}\n', ["a.jsonl:1", "did you mean 'texts'?"]),
    "not UTF-8": (lambda data: b'{"text": "\xff\xfe"}\n', ["a.jsonl", "UTF-8"]),
    "truncated gzip": (lambda data: half(gzip.compress(data)), ["a.jsonl.gz", "damaged"]),
}


@pytest.mark.parametrize("name", CORPUS_MISTAKES)
def test_a_mistake_in_the_corpus_leaves_the_cache(name, tiny_copy, verb):
    change, says = CORPUS_MISTAKES[name]
    path = tiny_copy / "a.jsonl"
    if name == "truncated gzip":
        path = path.rename(f"{path}.gz")
    rewrite(path, change)
    before = contents(tiny_copy)
    finished = verb("prepare", f"--config={tiny_copy}/tiny.py", f"--config.data.sources.a.path={path}")
    assert_one_line(finished, *says)
    after = contents(tiny_copy)
    assert {path: data for path, data in after.items() if ".a.tmp" not in str(path)} == before


def test_a_corpus_that_fails_while_pretrain_prepares_it(tiny_copy, verb, tmp_path):
    shutil.rmtree(tiny_copy / "cache")
    (tiny_copy / "a.jsonl").write_text("")
    finished = verb("pretrain", f"--config={tiny_copy}/tiny.py", f"--workdir={tmp_path}/run")
    assert_one_line(finished, "'a'", "no row of source")
    assert not (tmp_path / "run").exists()


CACHE_FILES = ["manifest.json", "train/tokens-00000.array_record", "train/documents.npy", "train/sentence_starts.npy"]


@pytest.mark.parametrize("change", [half, nothing])
@pytest.mark.parametrize("name", CACHE_FILES)
def test_a_damaged_cache_leaves_the_run(name, change, tiny_copy, trained_copy, verb):
    rewrite(tiny_copy / "cache" / "a" / name, change)
    before = contents(trained_copy, tiny_copy)
    finished = verb("pretrain", f"--config={tiny_copy}/tiny.py", f"--workdir={trained_copy}")
    assert_one_line(finished, str(tiny_copy / "cache" / "a"), "plm_jax prepare")
    assert contents(trained_copy, tiny_copy) == before


CHECKPOINT = ["{0}/checkpoints/3", "use another checkpoint, such as {0}"]
# A pattern, whose largest file is changed, the change and the message.
DAMAGES = [
    ("checkpoints/3/meta/metadata", half, CHECKPOINT),
    ("checkpoints/3/meta/metadata", nothing, CHECKPOINT),
    ("checkpoints/3/params/**/*", half, CHECKPOINT),
    ("checkpoints/3/params/**/*", nothing, CHECKPOINT),
    ("checkpoints/3/params/_METADATA", half, CHECKPOINT),
    ("checkpoints/3/training/_METADATA", half, CHECKPOINT),
    ("config.json", half, ["{0}/config.json"]),
    ("config.json", lambda data: b"[]", ["{0}/config.json"]),
    ("config.json", lambda data: b"{}", ["{0}/config.json"]),
    ("config.json", lambda data: b'{"config": {"nothing": 1}}', ["{0}/config.json"]),
    ("metrics.jsonl", lambda data: data.replace(b"{", b"", 1), ["{0}/metrics.jsonl:1"]),
]


@pytest.mark.parametrize(("pattern", "change", "says"), DAMAGES)
def test_damage_is_reported_and_leaves_the_run(pattern, change, says, tiny, trained_copy, verb):
    files = [path for path in trained_copy.glob(pattern) if path.is_file()]
    rewrite(max(files, key=lambda path: path.stat().st_size), change)
    before = contents(trained_copy)
    finished = verb("pretrain", f"--config={tiny}/tiny.py", f"--workdir={trained_copy}", "--refuse_damaged")
    assert_one_line(finished, *(phrase.format(trained_copy) for phrase in says))
    assert contents(trained_copy) == before


def test_another_model_in_the_same_run_directory(tiny, trained_copy, verb):
    before = contents(trained_copy)
    flags = (f"--config={tiny}/tiny.py", f"--workdir={trained_copy}", "--config.model.feed_forward.width=96")
    assert_one_line(verb("pretrain", *flags), "another model", "--workdir")
    assert contents(trained_copy) == before


def test_another_vocabulary_than_the_checkpoint_s(tiny_copy, trained_copy, verb):
    """The cache is prepared again with a larger vocabulary, for which the model has room."""
    flags = (f"--config={tiny_copy}/tiny.py", "--config.vocabulary.eos=258", "--config.vocabulary.bos=257")
    finished = verb("prepare", *flags)
    assert finished.status == 0, finished.err
    before = contents(trained_copy)
    assert_one_line(verb("pretrain", *flags, f"--workdir={trained_copy}"), "checkpoint 3", "vocabulary")
    assert contents(trained_copy) == before


def test_a_damaged_or_missing_vocabulary(tiny, verb, tmp_path):
    """A BPE vocabulary of bytes alone, cut from GPT-2's."""
    folder = pathlib.Path(shutil.copytree(tiny, tmp_path / "tiny", ignore=shutil.ignore_patterns("cache")))
    source = pathlib.Path(runs.__file__).parents[2] / "plm_jax" / "data" / "gpt2" / "vocab.json"
    ids = {token: number for token, number in json.loads(source.read_text()).items() if number < 256}
    ids |= {name: 256 + i for i, name in enumerate(("<end>", "<pad>", "<cls>", "<sep>", "<mask>", "<sop>", "<eop>"))}
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    flags = [f"--config={folder}/tiny.py", f"--config.vocabulary.spec=bpe:{folder}/vocab.json,{folder}/merges.txt"]
    finished = verb("prepare", *flags)
    assert finished.status == 0, finished.err
    assert_one_line(verb("prepare", flags[0], flags[1].replace("merges.txt", "none.txt")), "none.txt")
    rewrite(folder / "vocab.json", half)
    before = contents(folder)
    for verb_name, workdir in (("prepare", []), ("pretrain", [f"--workdir={tmp_path}/run"])):
        assert_one_line(verb(verb_name, *flags, *workdir), str(folder / "vocab.json"))
        assert contents(folder) == before and not (tmp_path / "run").exists()


def test_init_from_that_does_not_fit(tiny, trained, verb, tmp_path):
    def start(*flags):
        return verb("pretrain", f"--config={tiny}/tiny.py", f"--workdir={tmp_path}/new", *flags)

    assert_one_line(start(f"--config.train.init_from={tmp_path}/none"), str(tmp_path / "none"))
    wider = start(f"--config.train.init_from={trained}", "--config.model.feed_forward.width=96")
    assert_one_line(wider, "feed_forward/down/kernel", "96", "64", "init_names")
    unmatched = start(f"--config.train.init_from={trained}", "--config.train.init_names=('x.*',)")
    assert_one_line(unmatched, "matches no parameter name", "x.*")
    with contextlib.suppress(FileNotFoundError):
        assert not contents(tmp_path / "new")


def test_a_loss_that_diverges(tiny, verb, tmp_path):
    workdir = tmp_path / "run"
    finished = verb(
        "pretrain", f"--config={tiny}/tiny.py", f"--workdir={workdir}",
        "--config.schedule.learning_rate=1e4", "--config.optimizer.clip_norm=0.0", "--config.checkpoint.save_every=1",
        "--config.train.incidents.max_consecutive=2", "--config.train.steps=12",
    )  # fmt: skip
    assert_one_line(finished, "of step", "nan", "batch digest", "learning rate")
    last = runs.rows(workdir)[-1]["step"]
    assert sorted(int(path.name) for path in (workdir / "checkpoints").iterdir())[-1] <= last
