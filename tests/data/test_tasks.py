import gzip
import json
import re
from typing import ClassVar

import pytest
import seqio
import tensorflow_datasets as tfds

from plm_jax import config
from plm_jax.common import users
from plm_jax.common.errors import UserError
from plm_jax.data.prepare import reading, segmenters
from plm_jax.data.sources import files, tasks
from tests.support import builders, tiny


class TinyTexts(builders.Builder):
    """Three texts and one for validation."""

    features: ClassVar = {"body": tfds.features.Text()}
    rows: ClassVar = {"train": [{"body": f"train {i}"} for i in range(3)], "validation": [{"body": "validation 0"}]}


def read(source, split="train", name="source"):
    return list(tasks.texts(tasks.task(name, source), split))


def test_documents_of_text_and_json_lines(tmp_path):
    (tmp_path / "b.txt").write_text("one\ntwo\n\n \nthree é\n")
    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.write("zero")
    path = str(tmp_path / "*.txt*")
    assert read(config.TextFiles(path)) == ["zero", "one\ntwo\n\n \nthree é\n"]
    assert read(config.TextFiles(path, document="paragraph")) == ["zero", "one\ntwo", "three é"]
    assert read(config.TextFiles(path, document="line")) == ["zero", "one", "two", "three é"]
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write('{"body": "one\\n"}\n\n{"body": "two", "x": 1}\n{"body": "  "}\n{"body": "\\ud83d\\ude42"}\n')
    assert read(config.TextTable(str(tmp_path / "a.jsonl.gz"), field="body")) == ["one\n", "two", "🙂"]


def test_tasks_are_in_seqios_registry(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    source = config.TextFiles(str(tmp_path / "a.txt"))
    task = tasks.task("name", source)
    assert task is tasks.task("name", source) is seqio.get_mixture_or_task(task.name)
    assert tuple(task.splits) == ("train",)


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "a.jsonl:2 is not valid JSON"),
        ("[1]", "a.jsonl:2 is not a JSON object"),
        ('{"text": ' + "[" * 99, "a.jsonl:2 is not valid JSON"),
        ('{"text": ' + "[" * 100_000, "a.jsonl:2 is nested more than 100 levels deep"),
        ('{"test": "x"}', "a.jsonl:2 has no text in 'text': did you mean 'test'"),
        ('{"text": 3}', "a.jsonl:2 has no text in 'text'"),
        (r'{"text": "half \ud83d"}', "a.jsonl:2 has half of a surrogate pair"),
        (r'{"text": "x", "\udE42": 1}', "a.jsonl:2 has half of a surrogate pair"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "good"}) + "\n" + line + "\n")
    with pytest.raises(UserError, match=message) as caught:
        read(config.TextTable(str(path)))
    assert "\n" not in str(caught.value)


def test_bad_files_are_named(tmp_path):
    whole = gzip.compress(b"text " * 1000)
    files = {"half.gz": whole[: len(whole) // 2], "not.gz": b"plain", "latin.txt": "é".encode("latin-1")}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    for name, message in (
        ("none*", r"there is no file at .*/none\*"),
        ("half.gz", "half.gz is damaged"),
        ("not.gz", "not.gz is damaged"),
        ("latin.txt", "latin.txt is not UTF-8"),
    ):
        with pytest.raises(UserError, match=message):
            read(config.TextFiles(str(tmp_path / name)))


@pytest.mark.parametrize("name", ["tiny_texts", "tiny_texts:1.0.0", "tiny_texts/1.0.0", "tiny_texts:1.*.*"])
def test_tfds(tmp_path, name):
    source = config.Tfds(name, field="body", data_dir=str(tmp_path))
    task = tasks.task("source", source)
    assert set(task.splits) == {"train", "validation"}
    assert sorted(tasks.texts(task, "train")) == ["train 0", "train 1", "train 2"]
    assert sorted(tasks.texts(task, "validation")) == ["validation 0"]
    assert tasks.fingerprint(source, task) == ["tiny_texts/1.0.0", "train:3", "validation:1"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_set", "does not know 'no_such_set'"),
        ("tiny_texts", "no feature 'text': choose from: body"),
        ("tiny_texts:2.0.0", "does not know 'tiny_texts:2.0.0' .*version 2.0.0, only: 1.0.0"),
        ("tiny_texts/2.0.0", "does not know 'tiny_texts/2.0.0' .*version 2.0.0, only: 1.0.0"),
    ],
)
def test_bad_names_of_tfds_are_rejected(tmp_path, name, message):
    with pytest.raises(UserError, match=message):
        tasks.task("x", config.Tfds(name, data_dir=str(tmp_path)))


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["a.jsonl.gz", "b.jsonl.gz", "README.md"], "*.jsonl.gz"),
        (["a.1.txt", "b.2.txt"], "*.txt"),
        (["part-0", "part-1"], "*"),
        (["2020/a.jsonl", "2021/b.jsonl"], "**/*.jsonl"),
        (["[1]/a.jsonl"], "**/*.jsonl"),
    ],
)
def test_a_folder_as_path_is_rejected_with_the_glob_of_its_files(tmp_path, names, pattern):
    folder = tmp_path / "texts"
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    for path in (folder, f"{folder}/"):
        message = f"{path} is a folder: set config.data.sources.mine.path to {folder}/{pattern}"
        with pytest.raises(UserError, match=re.escape(message)):
            files.check("mine", config.TextTable(str(path)))
    files.check("mine", config.TextTable(f"{folder}/{pattern}"))
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UserError, match=r"no file at .*/nothing"):
        files.check("mine", config.TextTable(str(tmp_path / "nothing")))


def trust(monkeypatch, *names):
    """Trusts these modules, as a config of the user that names them does."""
    monkeypatch.setenv("PLM_JAX_USERS_MODULES", "[]")
    users.trust(names)


def test_a_module_that_a_checkpoint_names_is_imported_only_if_the_user_names_it_too(tmp_path, monkeypatch):
    (tmp_path / "of_a_checkpoint.py").write_text("import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    trust(monkeypatch, "another")
    tree = config.to_dict(tiny.PLAIN)
    tree["data"]["sources"] = {"x": {"kind": "seqio", "name": "mine", "module": "of_a_checkpoint"}}
    tree["data"]["segmenters"] = {"x": "of_a_checkpoint:cut"}
    run = config.from_saved(tree)
    asks = "'of_a_checkpoint' is imported only if you name it: pass --module=of_a_checkpoint"
    for use in (lambda: tasks.task("x", run.data.sources["x"]), lambda: segmenters.load(run.data.segmenters["x"])):
        with pytest.raises(users.MissingCodeError, match=asks):
            use()
    with pytest.raises(users.MissingCodeError, match="pass --module=os"):
        segmenters.load("os:system")  # It is imported already.
    assert not (tmp_path / "ran").exists()
    config.resolve(config.to_config_dict(run), str(tmp_path / "page.py"))
    with pytest.raises(UserError, match="of_a_checkpoint registers no task 'mine'"):
        tasks.task("x", run.data.sources["x"])
    assert (tmp_path / "ran").exists()


def test_an_error_in_a_module_of_tasks_names_its_line(tmp_path, monkeypatch):
    (tmp_path / "faulty_tasks.py").write_text("import seqio\nseqio.TaskRegistri\n")
    (tmp_path / "imports_nothing.py").write_text("\nimport not_there\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    trust(monkeypatch, "faulty_tasks", "imports_nothing")
    for module, message in (
        ("faulty_tasks", r"faulty_tasks.py:2: AttributeError: module 'seqio' has no"),
        ("imports_nothing", r"imports_nothing.py:2: ModuleNotFoundError: No module named 'not_there'"),
    ):
        with pytest.raises(UserError, match=message):
            tasks.task("x", config.SeqioTask("mine", module))


def test_a_task_over_tfds_is_downloaded_when_it_is_used(tmp_path):
    source = config.Tfds("tiny_texts", field="body", data_dir=str(tmp_path))
    tasks.register_tfds("tests:tiny", source)
    assert not list(tmp_path.iterdir())
    task = tasks.task("x", config.SeqioTask("tests:tiny", tasks.__name__))
    assert sorted(tasks.texts(task, "train")) == ["train 0", "train 1", "train 2"]
    assert set(task.splits) == {"train", "validation"}


def test_a_task_over_tfds_of_texts_is_read_in_shards(tmp_path, monkeypatch):
    monkeypatch.setitem(TinyTexts.rows, "validation", TinyTexts.rows["train"][:2])
    same = config.Tfds("tiny_texts", field="body", data_dir=str(tmp_path))
    tfds.builder("tiny_texts", data_dir=str(tmp_path)).download_and_prepare(
        download_config=tfds.download.DownloadConfig(num_shards=2)
    )
    (tmp_path / "my_tfds_tasks.py").write_text(
        "import seqio\n"
        "from plm_jax import config\n"
        "from plm_jax.data.sources import tasks\n"
        f"folder = {str(tmp_path)!r}\n"
        "texts = tasks.register_tfds('tests:texts', config.Tfds('tiny_texts', field='body', data_dir=folder))\n"
        "source = seqio.TfdsDataSource('tiny_texts:1.0.0', folder)\n"
        "seqio.TaskRegistry.add('tests:other', source, texts.output_features, preprocessors=texts.preprocessors)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    trust(monkeypatch, "my_tfds_tasks")
    registered, other = (config.SeqioTask(f"tests:{name}", "my_tfds_tasks") for name in ("texts", "other"))
    code = users.digests("my_tfds_tasks")
    assert len(code) == 1
    texts = {}
    for source in (same, registered, other):
        task = tasks.task("source", source)
        expected = [] if source is same else code
        assert tasks.fingerprint(source, task) == [*expected, "tiny_texts/1.0.0", "train:3", "validation:2"]
        shards = tasks.shards(source, task, "train")
        texts[source] = [list(tasks.texts(task, "train", shard=shard)) for shard in shards]
    assert sorted(map(len, texts[registered])) == [1, 2] and texts[registered] == texts[same]
    assert sorted(map(len, texts[other])) == [3], "a user's task may process rows in any way"


def test_a_failed_download_is_reported(tmp_path, monkeypatch):
    def fail(self, manager):
        raise OSError("no route\nto the host")

    monkeypatch.setattr(TinyTexts, "_split_generators", fail)
    message = rf"cannot download 'tiny_texts/1.0.0' .*no route to the host.*: place .* in {tmp_path}/tiny_texts/1.0.0"
    with pytest.raises(UserError, match=message):
        tasks.task("other", config.Tfds("tiny_texts", field="body", data_dir=str(tmp_path)))


def test_seqio_task(tmp_path, monkeypatch):
    (tmp_path / "my_tasks.py").write_text(
        "import seqio, tensorflow as tf\n"
        "def make(split, shuffle_files):\n"
        "    return tf.data.Dataset.from_tensor_slices({'body': [split + ' 1', split + ' 2']})\n"
        "features = {'body': seqio.Feature(seqio.PassThroughVocabulary(0), add_eos=False, dtype=tf.string, rank=0)}\n"
        "for name, splits in {'mine': ['train', 'validation'], 'tested': ['test']}.items():\n"
        "    source = seqio.FunctionDataSource(make, splits=splits)\n"
        "    seqio.TaskRegistry.add(name, source=source, preprocessors=[], output_features=features)\n"
        "seqio.MixtureRegistry.add('half', [('mine', 1.0), ('tested', lambda task: 3.0)])\n"
        "seqio.MixtureRegistry.add('all_mine', [('half', 2.0), ('mine', 0.25)])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    trust(monkeypatch, "my_tasks", "no_module")
    task = tasks.task("x", config.SeqioTask("mine", "my_tasks", field="body"))
    assert list(tasks.texts(task, "validation", "body")) == ["validation 1", "validation 2"]
    with pytest.raises(UserError, match="has no feature 'text'"):
        next(tasks.texts(task, "train", "text"))
    for name, module, message in (
        ("mind", "my_tasks", "registers no task 'mind': did you mean 'mine'"),
        ("tested", "my_tasks", "has no split 'train', only test"),
        ("all_mine", "my_tasks", r"'all_mine' is a mixture that was not prepared"),
        ("mine", "no_module", "cannot import no_module"),
    ):
        with pytest.raises(UserError, match=message):
            tasks.task("x", config.SeqioTask(name, module))


def test_json_lines_with_files_for_validation(tmp_path):
    for name, texts in {"train-0": ["one", "two"], "train-1": ["three"], "validation-0": ["four", "five"]}.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    path, validation = str(tmp_path / "train-*"), str(tmp_path / "validation-*")
    source = config.TextTable(path, validation=validation)
    task = tasks.task("source", source)
    assert list(tasks.texts(task, "train")) == ["one", "two", "three"]
    assert list(tasks.texts(task, "validation")) == ["four", "five"]
    assert [piece.split for piece in reading.pieces("source", source, 9)] == ["train", "train", "validation"]
    files.check("source", source)
    alone = config.TextTable(path)
    contents = source.open("a").fingerprint()
    assert contents[:2] == alone.open("a").fingerprint() and len(set(contents)) == 4
    assert files.definition(source) == files.definition(alone)
    assert files.definition(source) != files.definition(config.TextTable(path, field="body"))
    assert files.definition(config.Tfds("a"))["validation"] == "validation"
    with pytest.raises(UserError, match=r"no file at .*none: .*or set config.data.sources.source.validation"):
        files.check("source", config.TextTable(path, validation=str(tmp_path / "none")))
    with pytest.raises(UserError, match=r"'source' has validation files among its training files: exclude .*vali"):
        files.check("source", config.TextTable(str(tmp_path / "*"), validation=validation))
