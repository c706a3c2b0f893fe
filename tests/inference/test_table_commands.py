"""`predict` and `embed` on the rows of a table, and the messages that they share with `finetune`."""

import csv
import json

import numpy as np
import pytest

import plm_jax
from plm_jax.hub import tasks
from plm_jax.inference import tables
from plm_jax.runs import checkpoint_formats
from tests.support import moods, tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Path of a model with random weights that predicts a class."""
    path = str(tmp_path_factory.mktemp("model") / "classes")
    encoder = tiny.BERT.with_task(tasks.new("classes", tiny.BERT, moods.LABELS))
    checkpoint_formats.save(path, moods.pretrained(encoder), "plm_jax")
    return path


def test_rows_without_text_have_outputs_and_are_counted(model, verb, tmp_path):
    texts = ["fine", "", "dull", " \t"]
    table = tmp_path / "new.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *enumerate(texts)])
    warning = f"warning: 2 of 4 rows have no text, the first one is {table}:3: their output is that of an empty text"
    for command, output in (("predict", "predictions.jsonl"), ("embed", "vectors.npy")):
        arguments = (f"--checkpoint={model}", f"--input={table}", f"--output={tmp_path}/{output}")
        finished = verb(command, *arguments)
        assert finished.status == 0 and finished.err.splitlines().count(warning) == 1, finished.err
    lm = plm_jax.load(model)
    np.testing.assert_allclose(np.load(tmp_path / "vectors.npy"), lm.embed(texts), atol=1e-6)
    rows = [json.loads(line) for line in (tmp_path / "predictions.jsonl").open()]
    assert [row["text"] for row in rows] == texts
    probabilities = [prediction.probabilities for prediction in lm.predict(texts)]
    for row, expected in zip(rows, probabilities, strict=True):
        assert row["predicted_probabilities"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("example", "is_empty"),
    [("", True), (" \n", True), ("a", False), (("", " "), True), (("", "a"), False), (["", ""], True), ([], True)],
)
def test_an_example_is_empty_without_any_text(example, is_empty, capsys):
    tables.process(iter([("t:1", {})]), lambda location, row: example, 8, "reading", lambda rows, examples: None)
    assert ("1 of 1 rows have no text, the first one is t:1" in capsys.readouterr().err) == is_empty


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text;label\nx;1\n", "its header seems to be separated by semicolons, so separate it by commas"),
        (
            "a.csv",
            "text\tlabel\nx\t1\n",
            "its header seems to be separated by tabs, so name it .tsv, or separate it by commas",
        ),
        (
            "a.tsv",
            "text,label\nx,1\n",
            "its header seems to be separated by commas, so name it .csv, or separate it by tabs",
        ),
        ("a.csv", "texts,label\nx,1\n", "did you mean 'texts'?"),
    ],
    ids=["semicolons", "tabs", "commas", "another name"],
)
def test_a_missing_column_has_the_same_message_everywhere(name, content, message, model, verb, tmp_path):
    table = tmp_path / name
    table.write_text(content)
    checkpoint = f"--checkpoint={model}"
    commands = {
        "predict": [f"--input={table}", f"--output={tmp_path}/out.jsonl"],
        "embed": [f"--input={table}", f"--output={tmp_path}/out.npy"],
        "finetune": [f"--train={table}", "--text=text", "--label=label", f"--workdir={tmp_path}/run"],
    }
    for command, arguments in commands.items():
        finished = verb(command, checkpoint, *arguments)
        can_select = command != "finetune" and not message.startswith("its header")
        selection = " (--text selects another one)" if can_select else ""
        assert finished.status == 2
        assert finished.errors == [f"error: {table} has no column 'text'{selection}: {message}"], command
