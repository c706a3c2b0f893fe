"""The suite's seqio tasks: over TFDS and over files, as texts and as tokens; their metrics, sizes and errors."""

import gzip
import json

import numpy as np
import pytest
import seqio
import tensorflow_datasets as tfds

from plm_jax import config
from plm_jax.data import tasks, vocabularies
from plm_jax.data.text_to_text import metrics, sizes, suite
from plm_jax.errors import UserError
from tests.data.text_to_text.rows import ROWS, T5_NAMES


@pytest.fixture
def register():
    """As `suite.register`, of a name that is free again after the test."""
    names = []

    def make(task, *arguments, name="tests:task", **options):
        names.append(name)
        return suite.register(task, *arguments, name=name, **options)

    yield make
    for name in names:
        seqio.TaskRegistry.remove(name)


def write(path, rows):
    with gzip.open(path, "wt") if path.suffix == ".gz" else open(path, "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return str(path)


def read(task, split="train", lengths=None):
    return list(task.get_dataset(lengths, split=split, shuffle=False).as_numpy_iterator())


def as_read(examples):
    """Examples as TensorFlow gives them."""

    def field(value):
        texts = [text.encode() for text in value] if isinstance(value, list) else value
        return texts.encode() if isinstance(texts, str) else texts

    return [{name: field(value) for name, value in example.items()} for example in examples]


def in_order(row):
    """With fields in the order in which TensorFlow gives them."""
    return dict(sorted(row.items()))


def listed(rows):
    return [
        {name: list(value) if isinstance(value, np.ndarray) else value for name, value in row.items()} for row in rows
    ]


def expected(name):
    return as_read(example for _, examples in ROWS[name] for example in examples)


@pytest.mark.parametrize("name", ROWS)
def test_over_files(name, tmp_path, register):
    path = write(tmp_path / "rows.jsonl", [row for row, _ in ROWS[name]])
    task = register(name, suite.FromJsonLines({"train": path}))
    assert task.splits == ("train",)
    assert listed(read(task)) == expected(name)


# One of each kind of fields, and those with splits of their own.
OVER_TFDS = (
    *("glue_mnli", "glue_stsb", "glue_wnli_eval", "super_glue_axb", "super_glue_multirc", "super_glue_record"),
    *("super_glue_wsc_train", "dpr", "squad", "wmt16_enro"),
)


@pytest.mark.parametrize("name", OVER_TFDS)
def test_over_tfds(name, tmp_path, register, monkeypatch):
    rows, definition = [row for row, _ in ROWS[name]], suite.TASKS[name]
    split = next(iter(definition.splits), "train")
    builder = tfds.builder(definition.tfds, data_dir=str(tmp_path))
    monkeypatch.setattr(type(builder), "_split_generators", lambda *_: {split: enumerate(rows)})
    monkeypatch.setattr(type(builder), "MANUAL_DOWNLOAD_INSTRUCTIONS", None, raising=False)
    builder.download_and_prepare()
    task = register(name, suite.FromTfds(str(tmp_path)))
    assert tuple(task.splits) == (definition.splits or (split,))
    # TFDS shuffles what it writes.
    assert sorted(listed(read(task, split)), key=repr) == sorted(map(in_order, expected(name)), key=repr)


def test_all_tasks_over_tfds_are_registered_by_an_import():
    from plm_jax.data.text_to_text import tfds_tasks  # noqa: F401

    registered = {name for name in seqio.TaskRegistry.names() if name.startswith("plm_jax:")}
    assert {f"plm_jax:{name}" for name in suite.TASKS} <= registered
    task = seqio.TaskRegistry.get("plm_jax:glue_mrpc")
    assert task.source.tfds_dataset.name == "glue/mrpc:2.0.0"
    assert task.predict_metric_fns == [metrics.binary_f1, metrics.accuracy]
    assert task.postprocess_fn("equivalent", example={}, is_target=True) == 1


def test_tokens_end_with_eos(tmp_path, register):
    vocabulary = vocabularies.load(config.Vocabulary("bytes", pad=256, eos=257))
    path = write(tmp_path / "rows.jsonl", [row for row, _ in ROWS["glue_cola"]])
    task = register("glue_cola", suite.FromJsonLines({"validation": path}), vocabulary)
    found = read(task, "validation")
    for row, (_, [example]) in zip(found, ROWS["glue_cola"], strict=True):
        for part in ("inputs", "targets"):
            assert row[part].tolist() == [*example[part].encode(), 257]
            assert row[f"{part}_pretokenized"].decode() == example[part]
    [row, *_] = read(task, "validation", {"inputs": 6, "targets": 20})
    assert row["inputs"].tolist() == [*b"cola ", 257]
    assert row["targets"].tolist() == [*b"unacceptable", 257]


def test_several_files_a_split(tmp_path, register):
    rows = [{"sentence": str(i), "label": 0} for i in range(4)]
    write(tmp_path / "a.jsonl.gz", rows[:3])
    write(tmp_path / "b.jsonl.gz", rows[3:])
    task = register("glue_sst2", suite.FromJsonLines({"train": str(tmp_path / "*.gz")}))
    assert list(tasks.texts(task, "train", "inputs")) == [f"sst2 sentence: {i}" for i in range(4)]
    assert task.source.list_shards("train") == [str(tmp_path / "a.jsonl.gz"), str(tmp_path / "b.jsonl.gz")]
    shards = [seqio.ShardInfo(index=i, num_shards=2) for i in range(2)]
    found = [[row["targets"] for row in task.source.get_dataset("train", shard_info=shard)] for shard in shards]
    assert [len(part) for part in found] == [3, 1]


@pytest.mark.parametrize(
    "line, message",
    [
        ("not json", "rows.jsonl has a line that is no JSON object, 'not json'"),
        ("[1]", "no JSON object"),
        ('{"sentence": "a"}', "a row of glue/cola:2.0.0 has no 'label': there are: sentence"),
        ('{"sentense": "a", "label": 0}', "no 'sentence': did you mean 'sentense'"),
        ('{"sentence": "a", "label": 5}', "label 5: give 0 to 1"),
    ],
)
def test_bad_rows_are_named(tmp_path, register, line, message):
    (tmp_path / "rows.jsonl").write_text(line)
    task = register("glue_cola", suite.FromJsonLines({"train": str(tmp_path / "rows.jsonl")}))
    with pytest.raises(UserError, match=message):
        list(tasks.texts(task, "train", "inputs"))


def test_mistakes_are_named(tmp_path, register):
    with pytest.raises(UserError, match="no task 'glue_colla': did you mean 'glue_cola'"):
        suite.register("glue_colla")
    files = suite.FromJsonLines({"train": str(tmp_path / "none.jsonl")})
    with pytest.raises(UserError, match="the vocabulary has no eos"):
        register("glue_cola", files, vocabularies.load("bytes"), name="tests:none")
    task = register("glue_cola", files)
    with pytest.raises(UserError, match="seqio has a task 'tests:task' already"):
        suite.register("glue_cola", files, name="tests:task")
    with pytest.raises(UserError, match=r"there is no file at .*none.jsonl"):
        read(task)


def test_sizes():
    assert set(sizes.SIZES) <= set(suite.TASKS)
    assert sum(sizes.GLUE.values()) == 949_101
    assert sum(sizes.SUPER_GLUE.values()) == 185_673
    assert {name: size for name, size in sizes.ALL.items() if size != sizes.SIZES[name]} == {
        "glue_rte": 1_245,
        "super_glue_rte": 1_245,
    }


def test_sizes_are_t5s():
    glue_utils = pytest.importorskip("t5.data.glue_utils")
    for ours, theirs in [
        (sizes.GLUE, glue_utils.GLUE_WEIGHT_MAPPING),
        (sizes.SUPER_GLUE, glue_utils.SUPER_GLUE_WEIGHT_MAPPING),
    ]:
        assert {T5_NAMES[name]: size for name, size in ours.items()} == {k: v for k, v in theirs.items() if v}
