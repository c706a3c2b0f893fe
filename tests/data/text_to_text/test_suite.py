"""The suite's seqio tasks: over TFDS and over files, as texts and as tokens; their metrics, sizes and errors."""

import gzip
import json
import math

import numpy as np
import pytest
import seqio
import tensorflow_datasets as tfds

from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.data import vocabularies
from plm_jax.data.sources import tasks
from plm_jax.data.text_to_text import metrics, sizes, suite
from tests.support.task_rows import ROWS, T5_NAMES, T5_TRAINED, TRAINED


@pytest.fixture
def register():
    """Function `suite.register` whose name is free again after the test."""
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


def expected(name, split="train"):
    rows = TRAINED.get(name, ROWS[name]) if split == "train" else ROWS[name]
    return as_read(example for _, examples in rows for example in examples)


# One of each kind of fields, and those with splits of their own.
SAMPLE = ["glue_mnli", "glue_stsb", "super_glue_axb", "super_glue_multirc", "super_glue_record", "squad", "wmt16_enro"]


@pytest.mark.parametrize("name", SAMPLE)
def test_over_files(name, tmp_path, register):
    path = write(tmp_path / "rows.jsonl", [row for row, _ in ROWS[name]])
    task = register(name, suite.FromJsonLines({"train": path, "validation": path}))
    assert task.splits == ("train", "validation")
    for split in task.splits:
        assert listed(read(task, split)) == expected(name, split)


@pytest.mark.parametrize("name", SAMPLE)
def test_over_tfds(name, tmp_path, register, monkeypatch):
    rows, definition = [row for row, _ in ROWS[name]], suite.TASKS[name]
    splits = definition.splits[:1] or ("train", "validation")
    builder = tfds.builder(definition.tfds, data_dir=str(tmp_path))
    monkeypatch.setattr(type(builder), "_split_generators", lambda *_: {split: enumerate(rows) for split in splits})
    monkeypatch.setattr(type(builder), "MANUAL_DOWNLOAD_INSTRUCTIONS", None, raising=False)
    builder.download_and_prepare()
    task = register(name, suite.FromTfds(str(tmp_path)))
    assert tuple(task.splits) == (definition.splits or splits)
    for split in splits:  # TFDS shuffles the rows that it writes.
        assert sorted(listed(read(task, split)), key=repr) == sorted(map(in_order, expected(name, split)), key=repr)


def test_all_tasks_over_tfds_are_registered_by_an_import():
    from plm_jax.data.text_to_text import tfds_tasks  # noqa: F401

    registered = {name for name in seqio.TaskRegistry.names() if name.startswith("plm_jax:")}
    assert {f"plm_jax:{name}" for name in suite.TASKS} <= registered
    task = seqio.TaskRegistry.get("plm_jax:glue_mrpc")
    assert task.source.tfds_dataset.name == "glue/mrpc:2.0.0"
    assert task.predict_metric_fns == [metrics.binary_f1, metrics.accuracy]
    assert task.postprocess_fn("equivalent", example={}, is_target=True) == 1


def test_mixtures_and_corpora_are_registered_with_them():
    from plm_jax.data.text_to_text import tfds_tasks

    for name, rates in {"glue": sizes.GLUE, "super_glue": sizes.SUPER_GLUE, "all": sizes.ALL}.items():
        mixture = seqio.MixtureRegistry.get(f"plm_jax:{name}")
        task_rates = {task.name: mixture.get_rate(task) for task in mixture.tasks}
        assert task_rates == {f"plm_jax:{task}": rate for task, rate in rates.items()}
    c4 = seqio.TaskRegistry.get("plm_jax:c4")
    assert c4.source.tfds_dataset.name.startswith("c4/en:") and set(c4.output_features) == {"text"}
    assert seqio.MixtureRegistry.get("plm_jax:t5").tasks == [c4]
    assert "plm_jax:bert" not in seqio.MixtureRegistry.names(), "books are files"
    with pytest.raises(UserError, match="'plm_jax:glue' is a mixture that was not prepared"):
        tasks.task("x", config.SeqioInputsTargets("plm_jax:glue", tfds_tasks.__name__))


def test_tokens_end_with_eos(tmp_path, register):
    vocabulary = vocabularies.load(config.VocabularyConfig("bytes", pad=256, eos=257))
    path = write(tmp_path / "rows.jsonl", [row for row, _ in ROWS["glue_cola"]])
    task = register("glue_cola", suite.FromJsonLines({"validation": path}), vocabulary)
    examples = read(task, "validation")
    for row, (_, [example]) in zip(examples, ROWS["glue_cola"], strict=True):
        for part in ("inputs", "targets"):
            assert row[part].tolist() == [*example[part].encode(), 257]
            assert row[f"{part}_pretokenized"].decode() == example[part]
    [row, *_] = read(task, "validation", {"inputs": 6, "targets": 20})
    assert row["inputs"].tolist() == [*b"cola ", 257]
    assert row["targets"].tolist() == [*b"unacceptable", 257]


def test_several_files_per_split(tmp_path, register):
    """Brackets in the name of a file are not a pattern."""
    rows = [{"sentence": str(i), "label": 0} for i in range(4)]
    write(tmp_path / "a.jsonl.gz", rows[:3])
    write(tmp_path / "b[1].jsonl.gz", rows[3:])
    task = register("glue_sst2", suite.FromJsonLines({"train": str(tmp_path / "*.gz")}))
    assert list(tasks.texts(task, "train", "inputs")) == [f"sst2 sentence: {i}" for i in range(4)]
    assert task.source.list_shards("train") == [str(tmp_path / "a.jsonl.gz"), str(tmp_path / "b[1].jsonl.gz")]
    shards = [seqio.ShardInfo(index=i, num_shards=2) for i in range(2)]
    targets_by_shard = [
        [row["targets"] for row in task.source.get_dataset("train", shard_info=shard)] for shard in shards
    ]
    assert [len(part) for part in targets_by_shard] == [3, 1]


@pytest.mark.parametrize(
    "line, message",
    [
        ("not json", r"rows\.jsonl:2 is not valid JSON .*: fix"),
        ("[1]", r"rows\.jsonl:2 is not a JSON object"),
        ('{"sentence": "a"}', r"rows\.jsonl:2 has no 'label': choose from: sentence"),
        ('{"sentense": "a", "label": 0}', "no 'sentence': did you mean 'sentense'"),
        ('{"sentence": "a", "label": 5}', r"rows\.jsonl:2: label 5: expected 0 to 1"),
        (r'{"sentence": "\ud800", "label": 0}', r"rows\.jsonl:2 has half of a surrogate pair"),
    ],
)
def test_bad_rows_are_named(tmp_path, register, line, message):
    (tmp_path / "rows.jsonl").write_text('{"sentence": "good", "label": 1}\n' + line)
    task = register("glue_cola", suite.FromJsonLines({"train": str(tmp_path / "rows.jsonl")}))
    with pytest.raises(UserError, match=message):
        list(tasks.texts(task, "train", "inputs"))


BAD = [
    ("glue_cola", {"sentence": 3}, "'sentence' is 3: expected text"),
    ("glue_cola", {"label": None}, "label None: expected 0 to 1"),
    ("glue_stsb", {"label": "x"}, "label 'x': expected a number"),
    ("glue_stsb", {"label": math.nan}, "is not valid JSON .NaN is not a JSON value."),
    ("glue_stsb", {"label": 10**400}, "is not a row of glue/stsb.*too large"),
    ("glue_stsb", {"sentence1": ["a"]}, "'sentence1' is \\['a'\\]: expected text"),
    ("glue_wnli_eval", {"sentence1": "He saw ( it .", "sentence2": "He saw ( the cup ."}, "is not a row of glue/wnli"),
    ("super_glue_multirc", {"idx": 3}, "is not a row of super_glue/multirc"),
    ("super_glue_multirc", {"idx": {"paragraph": 1}}, "has no 'question'"),
    ("super_glue_multirc", {"idx": {"paragraph": math.inf, "question": 1, "answer": 1}}, "is not valid JSON .Infinity"),
    ("super_glue_multirc", {"idx": {"paragraph": 1, "question": 2**80, "answer": 1}}, "is not a row .*too large"),
    ("super_glue_record", {"entities": [None]}, "'entities' is \\[None\\]: expected a list of texts"),
    ("super_glue_record", {"answers": "Eve"}, "'answers' is 'Eve': expected a list of texts"),
    ("super_glue_wsc", {"label": "1"}, "label '1': expected 0 to 1"),
    ("super_glue_wsc", {"span2_index": "4"}, "is not a row of super_glue/wsc"),
    ("dpr", {"candidates": ["Ann", 2]}, "expected a list of texts"),
    ("squad", {"answers": []}, "is not a row of squad"),
    ("squad", {"answers": {"text": [None]}}, "'text' is \\[None\\]"),
    ("cnn_dailymail", {"highlights": None}, "'highlights' is None"),
]


@pytest.mark.parametrize("name, changes, message", BAD)
def test_rows_of_other_types_are_named(name, changes, message, tmp_path, register):
    row, _ = ROWS[name][0]
    path = write(tmp_path / "rows.jsonl", [row, row | changes])
    task = register(name, suite.FromJsonLines({"train": path}))
    with pytest.raises(UserError, match=rf"rows\.jsonl:2:? .*{message}") as caught:
        list(tasks.texts(task, "train", "inputs"))
    assert "\n" not in str(caught.value)


def test_mistakes_are_named(tmp_path, register):
    with pytest.raises(UserError, match="no task 'glue_colla': did you mean 'glue_cola'"):
        suite.register("glue_colla")
    files = suite.FromJsonLines({"train": str(tmp_path / "none.jsonl")})
    with pytest.raises(UserError, match="the vocabulary has no eos"):
        register("glue_cola", files, vocabularies.load("bytes"), name="tests:none")
    task = register("glue_cola", files)
    with pytest.raises(UserError, match="seqio already has a task 'tests:task'"):
        suite.register("glue_cola", files, name="tests:task")
    with pytest.raises(UserError, match=r"there is no file at .*none.jsonl"):
        read(task)


def test_sizes():
    assert set(sizes.SIZES) <= set(suite.TASKS)
    assert all(suite.TASKS[name].metric_fns for name in sizes.SIZES)  # `evaluate` rejects a task without metrics.
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
        named = {(T5_NAMES | T5_TRAINED)[name]: size for name, size in ours.items()}
        assert named == {name: size for name, size in theirs.items() if size}
