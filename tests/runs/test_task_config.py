"""Configs that `finetune --train` writes for tables."""

import dataclasses
import json
import pathlib

import pytest

from plm_jax import config
from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.config import files
from plm_jax.runs import run_directory, task_config
from plm_jax.runs.task_config import Columns
from tests.support import moods, tiny

# Columns and rows of a table, the form that follows from them, and fields of the objective.
TABLES = {
    "classes": (
        Columns(("t",), label="y"),
        [{"t": "a b", "y": 10}, {"t": "c", "y": 9}],
        config.ClassForm(("9", "10"), "t", label="y"),
        {},
    ),
    "pairs": (
        Columns(("t", "u"), label="y"),
        [{"t": "a", "u": "b", "y": "no"}, {"t": "a", "u": "b", "y": "ja"}],
        config.ClassForm(("ja", "no"), "t", "u", "y"),
        {},
    ),
    "labels": (
        Columns(("t",), labels="y"),
        [{"t": "a", "y": "tax, war"}, {"t": "a", "y": []}],
        config.LabelsForm(("tax", "war"), "t", field="y"),
        {"num_labels": 2},
    ),
    "score": (
        Columns(("t",), score="y"),
        [{"t": "a", "y": 1.5}, {"t": "a", "y": 2}],
        config.ScoreForm("t", score="y"),
        {},
    ),
    "tags": (
        Columns(("t",), tags="y"),
        [{"t": ["a"], "y": ["I-X"]}, {"t": ["a", "b"], "y": ["O", "B-X"]}],
        config.TagForm(("O", "B-X", "I-X"), "t", "y"),
        {},
    ),
    "choice": (
        Columns(("t",), label="y", choices="c"),
        [{"t": "a", "c": ["b", "d"], "y": 0}, {"t": "a", "c": ["b", "d"], "y": "d"}],
        config.ChoiceForm(2, "t", "c", "y"),
        {"num_choices": 2},
    ),
    "span": (
        Columns(question="q", context="c", answer="a"),
        [{"q": "a?", "c": "b", "a": [{"text": "b", "start": 0}]}, {"q": "a?", "c": "b", "a": []}],
        config.AnswerForm("q", "c", "a"),
        {"unanswerable": True, "stride": 21, "question_length": 16},
    ),
}


def write(folder, columns, rows, validation=(), changes=()):
    """Writes a table with these rows and its config; returns the run and the printed lines, without their folder."""
    table, path, other = folder / "my-table.jsonl", folder / "finetune.py", folder / "other.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    other.write_text("".join(json.dumps(row) + "\n" for row in validation))
    pretrained = moods.pretrained(tiny.BERT)
    lines = task_config.write(str(path), str(table), str(other) if validation else "", columns, pretrained, changes)
    return config.from_dict(files.load(str(path)).config()), [line.replace(f"{folder}/", "") for line in lines]


@pytest.mark.parametrize("name", TABLES)
def test_form_and_objective_follow_from_the_table(name, tmp_path):
    columns, rows, form, fields = TABLES[name]
    run, lines = write(tmp_path, columns, rows)
    assert lines[-1] == "wrote finetune.py" and write(tmp_path, columns, rows)[1] == lines[:-1]
    source = run.data.sources["my_table"]
    assert isinstance(source, config.LabeledSource) and source.form == form
    assert run.objective.form == form.kind and run.data.length == (64 if name == "span" else 16)
    assert {field: getattr(run.objective, field) for field in fields} == fields


@pytest.mark.parametrize("begun", ["config.json", "seed-1/config.json", "edited"])
def test_a_file_that_was_used_or_edited_is_kept(begun, tmp_path):
    columns, rows, *_ = TABLES["classes"]
    write(tmp_path, columns, rows)
    path = tmp_path / "finetune.py"
    if begun == "edited":
        path.write_text(path.read_text().replace("'train.epochs': ", "'train.epochs':  "))
    else:
        (tmp_path / begun).parent.mkdir(exist_ok=True)
        (tmp_path / begun).touch()
    content = path.read_text()
    with pytest.raises(
        UserError, match=r"SETTINGS of .* differ from those of this table and these flags: pass --config="
    ):
        write(tmp_path, columns, rows * 200)
    with pytest.raises(UserError, match=r"was written for another table or other flags, or edited: pass --config="):
        write(tmp_path, columns, [{**row, "t": "a longer text " * 9} for row in rows], rows[:1])
    assert path.read_text() == content


def test_a_file_is_replaced_until_training_begins(tmp_path):
    columns, rows, *_ = TABLES["classes"]
    write(tmp_path, columns, rows)
    longer = [{**row, "t": "a longer text " * 9} for row in rows]
    run, lines = write(tmp_path, columns, longer, changes=[("train.epochs", "7")])
    assert lines[-1] == "wrote finetune.py" and run.train.epochs == 7 and run.data.length > 16
    # A file of an older version has no checksum, and serves the same command.
    path = tmp_path / "finetune.py"
    content, _, checksum = path.read_text().rpartition("\n\n# CRC-32 ")
    assert checksum
    path.write_text(content)
    assert write(tmp_path, columns, longer, changes=[("train.epochs", "7")])[1] == lines[:-1]
    with pytest.raises(UserError, match=r"the SETTINGS of .* differ"):
        write(tmp_path, columns, longer)


def test_a_model_without_a_vocabulary_is_reported(tmp_path):
    table = tmp_path / "t.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in TABLES["classes"][1]))
    pretrained = dataclasses.replace(moods.pretrained(tiny.BERT), vocabulary=None)
    with pytest.raises(UserError, match="the model has no vocabulary in its directory: copy its files there"):
        task_config.write(str(tmp_path / "finetune.py"), str(table), "", TABLES["classes"][0], pretrained)


@pytest.mark.parametrize("validation", ["", "other.jsonl"])
def test_paths_from_the_working_directory_are_written_as_absolute_paths(validation, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    columns, rows, *_ = TABLES["classes"]
    for name in ("table.jsonl", "other.jsonl"):
        pathlib.Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    task_config.write("configs.py", "table.jsonl", validation, columns, moods.pretrained(tiny.BERT), ())
    source = config.from_dict(files.load("configs.py").config()).data.sources["table"]
    assert source.path == str(tmp_path / "table.jsonl")
    assert source.validation == (str(tmp_path / validation) if validation else "")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (Columns(("t",)), "no column of labels: pass one of --label,"),
        (Columns(("t",), label="y", score="y"), "--label and --score: pass one of"),
        (Columns((), label="y"), "--text names 0 columns: pass one or two"),
        (Columns(("t",), score="y", choices="c"), "--choices needs --label"),
        (Columns(("t",), answer="a", question="q"), "--answer needs --question and --context, and no --text"),
        (Columns(("t",), label="y", context="c"), "--question and --context need --answer"),
        (Columns(("t",), label="z"), "my-table.jsonl:1 has no column 'z': choose from: t, y"),
        (Columns(("t",), label="t"), "column 't' has only one label: at least 2 different ones are needed"),
    ],
)
def test_mistakes_in_columns_are_reported(columns, message, tmp_path):
    with pytest.raises(UserError, match=message):
        write(tmp_path, columns, [{"t": "a", "y": 0}])


def test_numbers_are_not_classes(tmp_path):
    rows = [{"t": "a", "y": number / 7} for number in range(40)]
    with pytest.raises(UserError, match="column 'y' has 40 different numbers: pass --score=y instead of --label"):
        write(tmp_path, Columns(("t",), label="y"), rows)


def test_texts_are_not_classes(tmp_path):
    rows = [{"t": f"text {number}", "y": number % 2} for number in range(20)]
    with pytest.raises(UserError, match="column 't' has a different value in every row: pass the column of labels"):
        write(tmp_path, Columns(("t",), label="t"), rows)
    assert write(tmp_path, Columns(("t",), label="t"), [*rows, rows[0]])[1]


# Columns, training rows, the printed counts, and a validation row with its unknown label.
LABELED = {
    "classes": (
        Columns(("t",), label="y"),
        [{"t": "a", "y": label} for label in ("no", "yes", "yes")],
        "yes 2, no 1",
        ({"t": "a", "y": "maybe"}, "maybe"),
    ),
    "labels": (
        Columns(("t",), labels="y"),
        [{"t": "a", "y": "tax, war"}, {"t": "a", "y": ["war"]}, {"t": "a", "y": ""}],
        "war 2, tax 1",
        ({"t": "a", "y": "war|wra"}, "wra"),
    ),
    "tags": (
        Columns(("t",), tags="y"),
        [{"t": ["a", "b", "c"], "y": ["O", "B-X", "O"]}],
        "O 2, B-X 1",
        ({"t": ["a"], "y": ["B-Y"]}, "B-Y"),
    ),
}


@pytest.mark.parametrize("name", LABELED)
def test_labels_are_those_of_the_training_table(name, tmp_path):
    columns, rows, counts, (row, label) = LABELED[name]
    _, lines = write(tmp_path, columns, rows, validation=rows[:1])
    assert lines == [f"labels of my-table.jsonl: {counts}", "wrote finetune.py"]
    with pytest.raises(UserError) as caught:
        write(tmp_path, columns, rows, validation=[rows[0], row])
    assert str(caught.value).replace(f"{tmp_path}/", "") == (
        f"other.jsonl:2 has \"{label}\" in 'y', which no row of my-table.jsonl has: fix or remove this row, or add "
        "examples of it to the training table (--config.data.bad_rows=skip skips up to 1% of the rows)"
    )


def test_many_labels_are_counted_in_one_line(tmp_path):
    rows = [{"t": "a", "y": f"class-{min(number, 29)}"} for number in range(40)]
    _, lines = write(tmp_path, Columns(("t",), label="y"), rows)
    assert lines[0].startswith("labels of my-table.jsonl: class-29 11, class-0 1, ")
    assert lines[0].endswith(", class-18 1, 10 more")


@pytest.mark.parametrize(
    ("columns", "value", "message"),
    [
        (Columns(("t",), tags="y"), "O B-X", "has \"O B-X\" in 'y': expected a list of labels"),
        (Columns(("t",), labels="y"), {"tax": 1}, "expected a label"),
        (Columns(("t",), label="y"), None, "has null in 'y': expected a label"),
    ],
)
def test_values_that_are_no_labels_are_one_line(columns, value, message, tmp_path):
    with pytest.raises(UserError, match=message):
        write(tmp_path, columns, [{"t": ["a"], "y": value}])


SKIP = [("data.bad_rows", "skip")]


@pytest.mark.parametrize(
    ("columns", "row", "bad", "message"),
    [
        (Columns(("t",), label="y"), '{"t": "a", "y": 1}', '{"t": "a", ', "is not valid JSON"),
        (Columns(("t",), label="y"), '{"t": "a", "y": 1}', '{"t": "a", "y": ""}', "has \"\" in 'y': expected a label"),
        (Columns(("t",), labels="y"), '{"t": "a", "y": "b"}', '{"t": "a", "y": {}}', "has {} in 'y'"),
        (Columns(("t",), tags="y"), '{"t": ["a"], "y": ["b"]}', '{"t": ["a"], "y": "b"}', "has \"b\" in 'y'"),
        (Columns(("t",), score="y"), '{"t": "a", "y": 1}', '{"t": "a"}', "has no column 'y'"),
    ],
)
def test_bad_rows_are_skipped_and_reported_if_the_flags_say_so(columns, row, bad, message, tmp_path):
    table, path = tmp_path / "t.jsonl", str(tmp_path / "finetune.py")
    rows = [row, row.replace("1", "2").replace('"b"', '"c"')] * 60
    table.write_text("\n".join([*rows[:7], bad, *rows[7:]]))

    def lines(changes):
        return task_config.write(path, str(table), str(table), columns, moods.pretrained(tiny.BERT), changes)

    with pytest.raises(UserError) as caught:
        lines([])
    assert f"{table}:8 {message}" in str(caught.value)
    assert str(caught.value).endswith(" (--config.data.bad_rows=skip skips up to 1% of the rows)")
    # Of both tables.
    *_, skipped, _ = lines(SKIP)
    assert skipped.startswith(f"{table}: skipped 2 bad rows of 242 ({table}:8 ") and message in skipped
    assert config.from_dict(files.load(path).config()).data.bad_rows == "skip"
    table.write_text("\n".join([bad, bad, *rows]))
    with pytest.raises(UserError, match="2 of the 122 rows of source 't' are bad, more than 1% "):
        lines(SKIP)


def test_a_label_of_the_validation_table_alone_is_a_bad_row(tmp_path):
    rows = [{"t": "a", "y": "yes"}, {"t": "b", "y": "no"}] * 60
    _, lines = write(tmp_path, Columns(("t",), label="y"), rows, [*rows, {"t": "a", "y": "maybe"}], SKIP)
    assert lines[1].startswith("my-table.jsonl: skipped 1 bad row of 241 (other.jsonl:121 has \"maybe\" in 'y'")


@pytest.mark.parametrize(
    ("scores", "numbers"),
    [
        ([0, 1], None),
        ([-8.5, 9.5], None),
        ([40, 160], "mean 100 and standard deviation 60"),
        ([-20, -20], "mean -20 and standard deviation 0"),
        ([-15.5, 15.5], "mean 0 and standard deviation 15.5"),
    ],
)
def test_scores_of_another_scale_are_reported(scores, numbers, tmp_path, recwarn):
    write(tmp_path, Columns(("t",), score="y"), [{"t": "a", "y": score} for score in scores])
    expected = f"column 'y' of {tmp_path}/my-table.jsonl has {numbers}: scale the scores to about 0 to 1"
    lines = [str(warning.message) for warning in recwarn if "scale the scores" in str(warning.message)]
    assert [line.startswith(expected) for line in lines] == ([] if numbers is None else [True])


@pytest.mark.parametrize(("other", "is_similar"), [("good ", True), ("Good", True), ("goods", False)])
def test_labels_that_differ_in_case_or_white_space_are_reported(other, is_similar, tmp_path, recwarn):
    rows = [{"t": "a", "y": label} for label in ("good", "bad", other)]
    _, lines = write(tmp_path, Columns(("t",), label="y"), rows)
    assert any(f"{other if other.strip() == other else repr(other)} 1" in line for line in lines)
    said = [str(warning.message) for warning in recwarn if "only in case or white space" in str(warning.message)]
    assert [f"such as 'good', {other!r}: correct the table" in line for line in said] == [True] * is_similar


def test_texts_are_not_scores(tmp_path):
    with pytest.raises(UserError, match=r"my-table\.jsonl:2 has \"x\" in 'y': expected a number"):
        write(tmp_path, Columns(("t",), score="y"), [{"t": "a", "y": 1}, {"t": "a", "y": "x"}])
    assert not (tmp_path / "finetune.py").exists()


def resolved(path):
    return config.resolve(files.load(str(path)).config(), str(path), replaces_model=True)


def test_the_file_contains_the_values_of_flags_and_a_copy_can_be_edited(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    columns, rows, *_ = TABLES["classes"]
    flags = {"schedule.kind": "cosine", "schedule.learning_rate": "1e-3", "train.epochs": "2", "data.cache_dir": "mine"}
    flags |= {"objective.class_weights": "(1.5, 1.0)"}
    write(tmp_path, columns, rows, changes=list(flags.items()))
    (tmp_path / "config.json").touch()
    content = (tmp_path / "finetune.py").read_text()
    assert "    'schedule.learning_rate': 0.001,\n    'train.epochs': 2.0,\n    'train.batch_size': 32,\n" in content
    run = resolved(tmp_path / "finetune.py")
    assert isinstance(run.schedule, config.CosineSchedule) and run.schedule.learning_rate == 1e-3
    assert (run.train.epochs, run.data.cache_dir) == (2.0, f"{tmp_path}/mine")
    assert run.objective.class_weights == (1.5, 1.0)
    # The same run, wherever the copy is.
    copy = tmp_path / "folder/copy.py"
    copy.parent.mkdir()
    copy.write_text(content)
    assert resolved(copy) == run
    copy.write_text(content.replace("'schedule.learning_rate': 0.001", "'schedule.learning_rate': 0.5"))
    assert resolved(copy).schedule.rate(10, ())(5) == pytest.approx(500 * run.schedule.rate(10, ())(5))
    with pytest.raises(UserError, match=r"the SETTINGS of .* differ"):
        write(tmp_path, columns, rows, changes=list({**flags, "train.epochs": "3"}.items()))


def test_without_flags_the_file_shows_the_recipe_and_the_cache_next_to_it(tmp_path):
    columns, rows, *_ = TABLES["classes"]
    write(tmp_path, columns, rows)
    assert "'schedule.learning_rate': 3e-05," in (tmp_path / "finetune.py").read_text()
    assert resolved(tmp_path / "finetune.py").data.cache_dir == f"{tmp_path}/cache"


def test_run_in_a_bucket_has_begun():
    folder = "memory://begun/run"
    storage.write(f"{folder}/finetune.py", b"")
    assert not run_directory.has_begun(folder)
    storage.write(f"{folder}/seed-1/config.json", b"{}")
    assert run_directory.has_begun(folder)
