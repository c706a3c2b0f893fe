"""A mixture of seqio's registry as one source: its tasks' caches, its rates, runs over it."""

import collections
import json
import sys

import pytest

from plm_jax import config
from plm_jax.common import storage, users
from plm_jax.common.errors import UserError
from plm_jax.data.reader import Reader
from plm_jax.data.sources import task_mixtures, tasks
from plm_jax.data.sources.task_mixtures import MixtureTask
from plm_jax.runs import preparation
from tests.support import runs, tiny
from tests.support.data import changed
from tests.support.verbs import assert_one_line

# Task `letter` has texts of one letter. Of `outer`'s rate 12, 2 are parted as 1 to 3, 9 are `c`'s, and `d`'s, which
# seqio leaves out of training, is not looked at.
MODULE = """
import os, seqio, tensorflow as tf
TEXT = seqio.Feature(seqio.PassThroughVocabulary(0), add_eos=False, dtype=tf.string, rank=0)
def register(name, splits, make):
    features = {feature: TEXT for feature in make('x', 0)}
    def read(split, shuffle_files):
        rows = [make(name[-1], number) for number in range({'train': 40}.get(split, 5))]
        return tf.data.Dataset.from_tensor_slices({key: [row[key] for row in rows] for key in features})
    source = seqio.FunctionDataSource(read, splits=splits)
    seqio.TaskRegistry.add(name, source=source, preprocessors=[], output_features=features)
def text(letter, number):
    return {'body': letter * (20 + number)}
def example(letter, number):
    return {'inputs': letter * (4 + number % 3), 'targets': letter}
def of_file(task):
    with open(os.path.join(os.path.dirname(__file__), 'rate')) as file:
        return float(file.read())
for name in ('mine:a', 'mine.b', 'c'):
    register(name, ['train', 'validation'], text)
register('d', ['test'], text)
seqio.MixtureRegistry.add('inner', [('mine:a', 1.0), ('mine.b', 3)])
seqio.MixtureRegistry.add('outer', [('inner', 2.0), ('c', of_file), ('d', 5.0)])
for name in ('qa', 'qb'):
    register(name, ['train'], example)
seqio.MixtureRegistry.add('examples', [('qa', lambda task: 1.0), ('qb', lambda task: 3.0)])
seqio.MixtureRegistry.add('failing', [('c', lambda task: 1 / 0)])
seqio.MixtureRegistry.add('negative', [('c', -1.0)])
seqio.MixtureRegistry.add('idle', [('c', 0.0), ('d', 1.0)])
"""
PARTS = {"mix-mine_a": 2 / 4, "mix-mine_b": 2 * 3 / 4, "mix-c": 9}


def source(name="outer"):
    return config.SeqioTask(name, "my_mixtures", "body")


def shares(run, number):
    """Counts the letters of the first rows; except for the ends of documents, a row has one letter."""
    reader, counts = Reader(config.reader_config(run)), collections.Counter()
    for k in range(number):
        row = reader.example(k)
        tokens = row["decoder_tokens"] if "decoder_tokens" in row else row["tokens"]
        counts[chr(next(token for token in tokens.tolist() if 97 <= token < 123))] += 1
    return counts


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "my_mixtures.py").write_text(MODULE)
    (tmp_path / "rate").write_text("9")
    monkeypatch.syspath_prepend(str(tmp_path))
    users.trust(["my_mixtures"])
    registries = tasks.seqio.TaskRegistry, tasks.seqio.MixtureRegistry
    before = [set(registry.names()) for registry in registries]
    yield tmp_path
    for registry, names in zip(registries, before, strict=True):
        for name in set(registry.names()) - names:
            registry.remove(name)
    sys.modules.pop("my_mixtures", None)


def make(folder, run=tiny.PLAIN, **data):
    return runs.make(folder, run, data={"sources": {"mix": source()}, **data})


def test_a_mixture_of_examples_mixes_with_texts(folder):
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": "z" * 50}) + "\n" for _ in range(20)))
    run = make(
        folder,
        tiny.of_t5(tiny.PLAIN),
        sources={"z": config.TextTable("a.jsonl"), "q": config.SeqioInputsTargets("examples", "my_mixtures")},
        mixture={"z": 1.0, "q": 4.0},
        inputs_targets=config.InputsTargetsConfig(target_length=24),
    )
    preparation.prepare(run, show_progress=False)
    expanded = config.expand_mixtures(run)
    assert expanded.data.mixture == {"z": 1.0, "q-qa": 1.0, "q-qb": 3.0}
    assert tasks.registered("q-qb", expanded.data.sources["q-qb"]).name == "qb"
    counts = shares(expanded, 1000)
    assert all(abs(counts[letter] - number) <= 1 for letter, number in {"z": 200, "a": 200, "b": 600}.items()), counts
    preparation.prepare(run, "memory://bucket/mixed", show_progress=False)
    remote = changed(run, data={"cache_dir": "memory://bucket/mixed"})
    assert config.expand_mixtures(remote).data.mixture == expanded.data.mixture
    storage.remove("memory://bucket/mixed")


def test_examples_come_from_each_task_by_the_rates_of_seqio(folder, capsys):
    run = make(folder)
    preparation.prepare(run, show_progress=False)
    expanded = config.expand_mixtures(run)
    assert list(expanded.data.sources) == sorted(PARTS)
    read_back = config.resolve(config.to_config_dict(expanded), str(folder / "tiny.py"))
    mixtures = [list(config.resolve_phases(of)[0].mixture.items()) for of in (read_back, expanded)]
    assert mixtures[0] == mixtures[1]
    assert expanded.data.mixture == pytest.approx({name: rate / 11 for name, rate in PARTS.items()})
    assert {source.name for source in expanded.data.sources.values()} == {"mine:a", "mine.b", "c"}
    assert config.expand_mixtures(expanded) == expanded
    number = 2200
    counts = shares(expanded, number)
    for name, rate in PARTS.items():
        assert abs(counts[name[-1]] - number * rate / 11) <= 1, counts
    capsys.readouterr()
    preparation.prepare(run, show_progress=False)
    assert all(": up to date at " in line for line in capsys.readouterr().out.splitlines())
    # Another rate is noted anew, and no text is read again.
    manifests = {name: folder / "cache" / name / "manifest.json" for name in PARTS}
    before = {name: (path.stat().st_ino, path.read_bytes()) for name, path in manifests.items()}
    (folder / "rate").write_text("2")
    preparation.prepare(run, show_progress=False)
    assert {name: (path.stat().st_ino, path.read_bytes()) for name, path in manifests.items()} == before
    assert "mix: a mixture with the rates" in capsys.readouterr().out
    assert config.expand_mixtures(run).data.mixture == pytest.approx(
        {"mix-mine_a": 0.5 / 4, "mix-mine_b": 1.5 / 4, "mix-c": 2 / 4}
    )
    # The cache of a mixture is none of another, nor of a task.
    other = make(folder, sources={"mix": source("inner")})
    assert config.expand_mixtures(other) == other
    with pytest.raises(UserError, match="mix belongs to another mixture of tasks: run"):
        Reader(config.reader_config(other))


@pytest.mark.parametrize(
    "name, message",
    [
        ("failing", r"'failing' fails to compute the rate of task 'c' \(.*my_mixtures.py:\d+: ZeroDivisionError: "),
        ("negative", r"'negative' has the rate -1.0 for task 'c': use a finite rate of at least 0"),
        ("idle", r"'idle' has no task with a split 'train' and a rate above 0"),
    ],
)
def test_bad_rates_are_rejected(folder, name, message):
    with pytest.raises(UserError, match=message) as caught:
        preparation.prepare(make(folder, sources={"mix": source(name)}), show_progress=False)
    assert "\n" not in str(caught.value)
    assert not (folder / "cache" / "mix").exists()


def test_rates_are_multiplied_in_every_phase():
    text = config.TextTable("a.jsonl")
    sources = {"x": text, "mix": source()}
    phases = (
        config.PhaseConfig(0.5, mixture={"mix": 4.0}),
        config.PhaseConfig(0.75),
        config.PhaseConfig(1.0, mixture={"x": 1.0}),
    )
    data = {"sources": sources, "mixture": {"x": 0.75, "mix": 0.25}, "segmenters": {"mix": "jieba:lcut"}}
    run = changed(tiny.PLAIN, data=data, train={"steps": 8, "phases": phases})
    parts = {"mix": {"mix-a": MixtureTask("a", 1.0), "mix-b": MixtureTask("b", 3.0)}}
    expanded = config.expand_mixtures(run, parts)
    assert [phase.mixture for phase in config.resolve_phases(expanded)] == [
        {"mix-a": 1.0, "mix-b": 3.0},
        {"x": 0.75, "mix-a": 0.0625, "mix-b": 0.1875},
        {"x": 1.0},
    ]
    assert expanded.data.segmenters == {"mix-a": "jieba:lcut", "mix-b": "jieba:lcut"}
    assert expanded.data.sources == {"x": text, "mix-a": source("a"), "mix-b": source("b")}
    # The default rates are numbers of tokens, which the rates of a mixture are not.
    with pytest.raises(UserError, match=r"'mix' is a mixture among other sources: set .* config.data.mixture"):
        config.expand_mixtures(changed(tiny.PLAIN, data=data | {"mixture": {}}), parts)
    clash = data | {"sources": {"mix-a": text, "mix": source()}, "mixture": {"mix-a": 1, "mix": 1}}
    with pytest.raises(UserError, match=r"two sources or tasks of mixtures have the name 'mix-a'"):
        config.expand_mixtures(changed(tiny.PLAIN, data=clash), parts)


def test_names_of_parts_are_names_of_folders_and_differ():
    parts = task_mixtures.name_parts("m", {"a:x": 1.0, "a.x": 2.0, "b.en-de": 3.0, "é": 4.0})
    assert {of.task: of.rate for of in parts.values()} == {"a:x": 1.0, "a.x": 2.0, "b.en-de": 3.0, "é": 4.0}
    assert len(parts) == 4 and all(name.replace("-", "_").isidentifier() and name.isascii() for name in parts)
    assert parts["m-b_en-de"].task == "b.en-de" and sum(name.startswith("m-a_x-") for name in parts) == 2


CONFIG = """
import pathlib, sys
sys.path.insert(0, str(pathlib.Path(__file__).parent))
if "prepare" not in sys.argv[0]:
    sys.modules |= dict.fromkeys(("tensorflow", "seqio"))
from plm_jax import config
from tests.support import tiny
from tests.support.data import changed
def get_config():
    sources = {"mix": config.SeqioTask("outer", "my_mixtures", "body")}
    evaluation = config.EvaluationConfig(every=2, batch_size=2)
    return config.to_config_dict(changed(tiny.PLAIN, data={"sources": sources}, evaluation=evaluation))
"""


def test_pretraining_takes_a_mixture(verb, folder):
    """`pretrain` prepares it in a child process and resumes; itself it imports neither TensorFlow nor seqio."""
    path, workdir = folder / "mine.py", folder / "run"
    path.write_text(CONFIG)

    def pretrain(steps):
        return verb("pretrain", f"--config={path}", f"--workdir={workdir}", f"--config.train.steps={steps}")

    trained = pretrain(2)
    assert trained.status == 0 and "no cache of mix in" in trained.err, trained.err
    losses = {f"validation/{name}/loss" for name in PARTS}
    assert losses <= runs.rows(workdir)[-1].keys()
    resumed = pretrain(4)
    assert resumed.status == 0 and "resumed after step 2" in resumed.err and "preparing" not in resumed.err, resumed.err
    assert "data." not in resumed.err, resumed.err
    saved = json.loads((workdir / "config.json").read_text())["config"]["data"]
    assert saved["mixture"] == pytest.approx({name: rate / 11 for name, rate in PARTS.items()})
    # A task's cache that is gone is made again; other rates are no way to go on.
    (folder / "rate").write_text("1")
    (folder / "cache/mix-c").rename(folder / "aside")
    preparation.prepare(make(folder), show_progress=False)
    assert (folder / "cache/mix-c/manifest.json").exists()
    assert_one_line(pretrain(6), "data.mixture.mix-c was 0.818181", "and is 0.333333", "--allow_changes")
