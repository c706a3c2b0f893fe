"""Predictions of fine-tuned runs give the metrics that `evaluate` computes on the same examples."""

import dataclasses
import json
import random

import numpy as np
import pytest

from plm_jax import config, objectives
from plm_jax.data.labeled import metrics, tags
from plm_jax.evaluation import labeled
from plm_jax.inference.language_model import LanguageModel
from plm_jax.runs import checkpoint_formats, preparation, transfer
from tests.support import moods, runs
from tests.support.random_models import random_params

TAGS = ("O", "B-C", "I-C")
NUMBER, LENGTH = 30, 24
FORMS = {
    "classes": (objectives.Classification(), config.ClassForm(("a", "b", "c"))),
    "pairs": (objectives.Classification(), config.ClassForm(("a", "b", "c"), pair="pair")),
    "labels": (objectives.MultiLabelClassification(num_labels=3), config.LabelsForm(("a", "b", "c"))),
    "score": (objectives.Regression(), config.ScoreForm()),
    "tags": (objectives.Tagging(), config.TagForm(TAGS)),
    "span": (
        objectives.SpanExtraction(stride=3, question_length=6, answer_length=5, unanswerable=True, null_threshold=-1.5),
        config.AnswerForm(),
    ),
    "choice": (objectives.MultipleChoice(num_choices=3), config.ChoiceForm(3, label="choice")),
}


def examples():
    """Returns rows for every form; most texts are longer than a row."""
    rng, rows = random.Random(0), []
    for _ in range(NUMBER):
        words = ["".join(rng.choices("abcdé", k=rng.randint(1, 4))) for _ in range(rng.randint(2, 14))]
        text, first = " ".join(words), rng.randrange(len(words))
        answers = {"text": [], "answer_start": []}
        if rng.random() < 0.7:
            answers = {"text": [words[first]], "answer_start": [len("".join(f"{word} " for word in words[:first]))]}
        rows.append(
            {
                "text": text,
                "pair": " ".join(rng.sample(words, 2)),
                "label": rng.choice("abc"),
                "labels": sorted(rng.sample("abc", rng.randrange(4))),
                "score": rng.gauss(0, 1),
                "tokens": words,
                "tags": rng.choices(TAGS, k=len(words)),
                "question": rng.choice(words) + "?",
                "context": text,
                "answers": answers,
                "choice": rng.randrange(3),
                "choices": rng.sample(["ab", "ba cd", "éé", "dd dd dd dd dd dd dd"], 3),
            }
        )
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with the models of `moods.py` and the examples as training and validation rows."""
    path = tmp_path_factory.mktemp("forms")
    moods.write(path)
    for name in ("mood.jsonl", "held_out.jsonl"):
        (path / name).write_text("".join(json.dumps(row) + "\n" for row in examples()))
    return path


@pytest.mark.parametrize("name", FORMS)
def test_predictions_give_the_metrics_of_evaluate(name, folder, tmp_path):
    objective, form = FORMS[name]
    source = dataclasses.replace(moods.RUN.data.sources["mood"], form=form)
    run = runs.make(
        folder,
        moods.RUN,
        objective=objective,
        data={"sources": {"mood": source}, "length": LENGTH, "cache_dir": str(tmp_path / "cache")},
        evaluation={"select": ""},
    )
    if name == "choice":
        run = dataclasses.replace(run, objective=dataclasses.replace(run.objective, num_choices=3))
    run = transfer.resolve(run, str(folder / "encoder"))
    preparation.prepare(run, show_progress=False)
    params = random_params(run.model, scale=1.0)
    origin = checkpoint_formats.of_run(run, params, str(folder / "encoder"))
    fields = ("run", "special_ids", "family")
    lm = LanguageModel(
        run.model, params, vocabulary_spec=run.vocabulary.spec, **{each: getattr(origin, each) for each in fields}
    )
    expected = labeled.evaluate(lm, run, "mood", show_progress=False)
    rows = examples()
    texts = {
        "pairs": lambda row: (row["text"], row["pair"]),
        "tags": lambda row: row["tokens"],
        "span": lambda row: (row["question"], row["context"]),
        "choice": lambda row: (row["question"], row["choices"]),
    }.get(name, lambda row: row["text"])
    predictions = lm.predict([texts(row) for row in rows], batch_size=8)
    pairs = list(zip(rows, predictions, strict=True))
    if name in ("classes", "pairs"):
        actual = {"accuracy": np.mean([row["label"] == each.label for row, each in pairs])}
    elif name == "labels":
        actual = {"accuracy": np.mean([tuple(row["labels"]) == each.labels for row, each in pairs])}
    elif name == "score":
        values = [row["score"] for row in rows], [each.score for each in predictions]
        actual = {"pearson": metrics.pearson(*values), "mse": np.mean(np.subtract(*values) ** 2)}
    elif name == "tags":
        actual = tags.scores([row["tags"] for row in rows], [list(each.tags) for each in predictions])
    elif name == "span":
        answers = [(row["answers"]["text"], each.answer) for row, each in pairs]
        actual = {
            "exact_match": np.mean([metrics.exact_match(*each) for each in answers]),
            "f1": np.mean([metrics.answer_f1(*each) for each in answers]),
        }
        assert all(each.answer == row["context"][each.start : each.end] for row, each in pairs if each.answer)
        assert 0 < sum(not each.answer for each in predictions) < NUMBER
    else:
        actual = {"accuracy": np.mean([row["choice"] == each.choice for row, each in pairs])}
    assert {metric: pytest.approx(value, abs=1e-5) for metric, value in actual.items()} == {
        metric: expected[metric] for metric in actual
    }
