"""Configs that `finetune --train` writes for tables."""

import json

import pytest

from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.config import files
from plm_jax.runs import task_config
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


def write(folder, columns, rows):
    """Writes a table with these rows and its config; returns the run, and whether the config was new."""
    table, path = folder / "my-table.jsonl", folder / "finetune.py"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    is_new = task_config.write(str(path), str(table), "", columns, moods.pretrained(tiny.BERT))
    return config.from_dict(files.load(str(path)).config()), is_new


@pytest.mark.parametrize("name", TABLES)
def test_form_and_objective_follow_from_the_table(name, tmp_path):
    columns, rows, form, fields = TABLES[name]
    run, is_new = write(tmp_path, columns, rows)
    assert is_new and not write(tmp_path, columns, rows)[1]
    source = run.data.sources["my_table"]
    assert isinstance(source, config.LabeledSource) and source.form == form
    assert run.objective.form == form.kind and run.data.length == (64 if name == "span" else 16)
    assert {field: getattr(run.objective, field) for field in fields} == fields
    with pytest.raises(UserError, match=r"was written for another table or other flags, or edited: pass --config="):
        write(tmp_path, columns, rows * 200)


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
        (Columns(("t",), label="t"), "column 't' has 1 different labels: at least 2 are needed"),
    ],
)
def test_mistakes_in_columns_are_reported(columns, message, tmp_path):
    with pytest.raises(UserError, match=message):
        write(tmp_path, columns, [{"t": "a", "y": 0}])


def test_numbers_are_not_classes(tmp_path):
    rows = [{"t": "a", "y": number / 7} for number in range(40)]
    with pytest.raises(UserError, match="column 'y' has 40 different numbers: pass --score=y instead of --label"):
        write(tmp_path, Columns(("t",), label="y"), rows)
