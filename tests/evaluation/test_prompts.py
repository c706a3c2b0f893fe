"""Prompts: what the text is, which examples stand in it, what is dropped, and what a model makes of it."""

import dataclasses
import importlib.util
import json
import statistics
import types

import flax.linen as nn
import jax
import numpy as np
import pytest

from plm_jax import config, models
from plm_jax.common.errors import UserError
from plm_jax.data.sources import rows
from plm_jax.evaluation import few_shot, prompts
from plm_jax.generation import constraints
from plm_jax.inference.language_model import LanguageModel
from plm_jax.models import registry
from tests.golden import make_prompts
from tests.support import tiny
from tests.support.verbs import assert_one_line

MOODS = ("bad", "good")


@pytest.mark.parametrize("name", make_prompts.names())
def test_prompts_are_the_golden_ones(name):
    path = make_prompts.FOLDER / f"{name.replace(':', '-')}.txt"
    assert make_prompts.text(name) == path.read_text(encoding="utf-8")


def test_there_is_a_golden_prompt_of_every_page():
    known = {name.replace(":", "-") for name in make_prompts.names()}
    assert known == {path.stem for path in make_prompts.FOLDER.glob("*.txt")} and len(known) > 30


@pytest.fixture(scope="module")
def sentiment():
    return prompts.load_task(None, "sentiment")


def test_no_tested_row_is_ever_an_example_and_a_seed_gives_the_same_ones(sentiment):
    tested = {example.question for example in sentiment.tested}
    draws = {seed: prompts.ShotSampler(sentiment, 5, seed) for seed in (0, 1)}
    assert not tested & {example.question for example in sentiment.train}
    used = set()
    for number in range(400):
        questions = [{example.question for example in draw(number)} for draw in draws.values()]
        assert [len(of_seed) for of_seed in questions] == [5, 5]
        used |= questions[0]
    assert len(used) > 1700  # 2,000 draws of 9,500.
    again, other = prompts.ShotSampler(sentiment, 5, 0), prompts.ShotSampler(sentiment, 5, 1)
    numbers = np.random.default_rng(0).permutation(200).tolist()
    assert all(again(number) == draws[0](number) for number in numbers)
    assert sum(again(number) == other(number) for number in numbers) == 0


def test_balanced_examples_have_each_choice_equally_often(sentiment):
    draw, seen = prompts.ShotSampler(sentiment, 5, 0, balanced=True), []
    for number in range(200):
        rights = [example.right for example in draw(number)]
        assert sorted([rights.count(0), rights.count(1)]) == [2, 3]
        seen.append(rights)
    assert 0.4 < np.mean([rights.count(0) == 2 for rights in seen]) < 0.6
    assert 0.4 < np.mean([rights[0] for rights in seen]) < 0.6


ROWS = [
    {"text": f"it was {MOODS[i % 2]} said {i}", "mood": MOODS[i % 2], "stars": (0, 0, 0, 0, 1, 2, 2)[i % 7]}
    for i in range(60)
]
LABELED = config.LabeledTable(
    "moods.jsonl", config.ClassForm(MOODS, label="mood"), "held_out.jsonl", prompt=config.PromptConfig("{text}\nIt is")
)
STARS = config.PromptConfig("Stars of: {text}\nStars:", choices=("none", "one", "two {mood}"), answer="{stars}")


@pytest.fixture
def run(tmp_path):
    """A run with sources of rows; the first held-out one is also one to train on."""
    for name, of in (("moods", ROWS[:40]), ("held_out", [ROWS[0], *ROWS[40:]])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in of))
    at = {"path": f"{tmp_path}/moods.jsonl", "validation": f"{tmp_path}/held_out.jsonl"}
    written = config.TableInputsTargets(
        at["path"], "{text}", "{mood}", prompt=config.PromptConfig("{text}\nIt is", delimiter=" ")
    )
    sources = {
        "moods": dataclasses.replace(LABELED, **at),
        "stars": config.TextTable(**at, prompt=STARS),
        "written": written,
        "bare": dataclasses.replace(LABELED, **at, prompt=None),
        "missing": dataclasses.replace(LABELED, **at, prompt=config.PromptConfig("{texts}")),
        "few": dataclasses.replace(LABELED, **at, prompt=config.PromptConfig("{text}", choices=("a", "b", "c"))),
        "documents": config.TextFiles(at["path"]),
    }
    data = dataclasses.replace(tiny.PLAIN.data, sources=sources, validation_fraction=0.2)
    return dataclasses.replace(tiny.PLAIN, data=data)


@pytest.fixture(scope="module")
def lm():
    """A decoder of bytes with random weights that reads 256 of them."""
    position = models.LearnedPositions(length=256)
    model = dataclasses.replace(
        tiny.MODEL,
        attention=dataclasses.replace(tiny.MODEL.attention, position=position),
        initializer=models.InitializerConfig(std=0.3),
    )
    params = nn.unbox(jax.jit(registry.build(model).init)(jax.random.key(3), **model.init_inputs())["params"])
    return LanguageModel(model, params, vocabulary_spec="bytes", special_ids={"eos_token_id": 256})


def figures(lm, run, task, show_progress=False, **options):
    return few_shot.evaluate(lm, run, task, few_shot.FewShotOptions(**options), show_progress)


def test_rows_that_are_tested_too_are_no_examples(run):
    task = prompts.load_task(run, "moods")
    assert (len(task.train), len(task.tested)) == (39, 21)
    assert prompts.load_task(run, "written").tested  # Parted by the hash of its inputs.


@pytest.mark.parametrize("normalize", ["sum", "token", "character", "byte", "unconditional"])
def test_a_choice_is_right_by_its_own_score(lm, run, normalize):
    task = prompts.load_task(run, "stars")
    asked = [(example.question, " " + choice) for example in task.tested for choice in example.choices]
    scores = [score.log_likelihood for score in lm.score(*map(list, zip(*asked, strict=True)))]
    if normalize == "unconditional":
        alone = {choice: lm.score("", choice)[0].log_likelihood for choice in {choice for _, choice in asked}}
        scores = [score - alone[choice] for score, (_, choice) in zip(scores, asked, strict=True)]
    elif normalize != "sum":
        scores = [score / (len(c) - (normalize != "token")) for score, (_, c) in zip(scores, asked, strict=True)]
    best = np.reshape(scores, (len(task.tested), -1)).argmax(1)
    right = best == [example.right for example in task.tested]
    metrics = figures(lm, run, "stars", normalize=normalize)
    assert metrics["0_shots/accuracy"] == pytest.approx(np.mean(right))
    assert metrics["chance"] == pytest.approx(1 / 3) and metrics["chance_low"] < 1 / 3 < metrics["chance_high"]
    # 21 rows: the binomial's quantiles, from a table of its own.
    draws = np.random.default_rng(0).binomial(21, 1 / 3, 100_000)
    assert metrics["chance_low"] == pytest.approx(1 / 21 * np.quantile(draws, 0.025))
    assert metrics["chance_high"] == pytest.approx(1 / 21 * np.quantile(draws, 0.975))


def test_normalizations_differ(lm, run):
    accuracies = {how: figures(lm, run, "stars", normalize=how)["0_shots/accuracy"] for how in ("sum", "character")}
    assert accuracies["sum"] != accuracies["character"]


def test_what_does_not_fit_is_dropped_from_the_front_and_counted(lm, run, capsys):
    metrics = figures(lm, run, "moods", shots=(2, 20), seeds=(0, 1), show=1)
    assert metrics["2_shots/dropped"] == 0 and metrics["20_shots/cut"] == 0
    out = capsys.readouterr().out
    few, many = (out[out.index(f"{shots} shots, seed 0") :] for shots in (2, 20))
    dropped = int(many.split(", ")[2].split()[0])
    (text,) = [part.partition(" dropped ---\n")[2] for part in [many]]
    prompt = text.partition(" [")[0]
    task = prompts.load_task(run, "moods")
    shots = prompts.ShotSampler(task, 20, 0)(0)
    assert prompt == prompts.build_context(task.prompt, shots[dropped:], task.tested[0].question)
    assert len(prompt) + len(" good") <= 256 < len(prompts.build_context(task.prompt, shots[dropped - 1 :], prompt))
    assert metrics["20_shots/dropped"] > 21 * 8
    assert few.count("\nIt is") >= 3 and "not [" in few
    assert metrics["2_shots/accuracy_deviation"] >= 0 and "0_shots/accuracy" not in metrics


def test_metrics_of_several_seeds_have_a_mean_and_the_deviation_of_a_sample(lm, run, monkeypatch):
    accuracies = (0.5, 0.6, 0.9)

    def evaluate(self, shots, seed, show):
        return {"accuracy": accuracies[seed]}

    monkeypatch.setattr(few_shot._FewShotEvaluator, "evaluate", evaluate)
    metrics = figures(lm, run, "moods", shots=(2,), seeds=(0, 1, 2))
    assert metrics["2_shots/accuracy"] == pytest.approx(statistics.mean(accuracies))
    assert metrics["2_shots/accuracy_deviation"] == pytest.approx(statistics.stdev(accuracies))


def test_the_same_prompts_whatever_the_batch_size_and_the_limit(lm, run, capsys):
    printed = []
    for size, limit in ((1, 3), (32, None)):
        evaluation = dataclasses.replace(run.evaluation, batch_size=size)
        figures(lm, dataclasses.replace(run, evaluation=evaluation), "written", shots=(1,), show=99, limit=limit)
        printed.append(set(capsys.readouterr().out.split("\n--- ")))
    few, all_of_them = ({part.removeprefix("--- ").rstrip() for part in parts} for parts in printed)
    assert len(few) == 3 and few < all_of_them
    first = {f"written, row {number}, 1 shots, seed 0" for number in range(3)}
    assert {part.partition(", 0 dropped")[0] for part in few} != first


def test_written_answers_are_what_the_model_writes_up_to_the_end_of_the_line(lm, run):
    task = prompts.load_task(run, "written")
    (text,) = lm.generate(task.tested[0].question, max_new_tokens=8)[:1]
    written = constraints.cut(text.lstrip(), ("\n",)).strip()
    row = {"text": task.tested[0].question.partition("\n")[0], "mood": written}
    assert figures(lm, run, "written", limit=1)["0_shots/exact_match"] in (0.0, 1.0)
    examples = [task.tested[0]._replace(answers=(written, "another"))]
    stub = types.SimpleNamespace(
        **{name: getattr(task, name) for name in ("name", "prompt", "train", "is_scored", "labels")}, tested=examples
    )
    evaluator = few_shot._FewShotEvaluator(lm, stub, [0], few_shot.FewShotOptions(), 4, False)
    metrics = evaluator._evaluate_generated([prompts.FittedPrompt(task.tested[0].question, 0, False)], 8, "")
    assert metrics["exact_match"] == (row["mood"] == written) and metrics["f1"] == 1


def test_an_answer_is_one_and_decoded_as_the_run_says(lm, run):
    evaluation = config.EvaluationConfig(decoding=config.DecodingConfig(temperature=0.5, num_return_sequences=3))
    sampling = LanguageModel(
        lm.config,
        lm.params,
        vocabulary_spec="bytes",
        special_ids=lm.special_ids,
        run=dataclasses.replace(run, evaluation=evaluation),
    )
    asked = figures(sampling, run, "written", limit=3)
    assert asked["examples"] == 3 and 0 <= asked["0_shots/f1"] <= 1


def test_a_score_is_the_number_of_a_choice(lm):
    metrics = figures(lm, None, "review_scores", limit=20)
    assert 0 <= metrics["0_shots/accuracy"] <= 1 and -1 <= metrics["0_shots/pearson"] <= 1
    assert metrics["chance"] == pytest.approx(1 / 9) and metrics["0_shots/mse"] > 0


@pytest.mark.parametrize(
    ("choices", "answer", "right"),
    [
        (("bad", "good"), 1, 1),
        (("bad", "good"), "1", 1),
        (("2", "1"), 1, 1),
        (("01", "1"), "01", 0),
        (("true", "false"), False, 1),
        (("1", "2"), 0, None),
        (("1e0", "2e0"), 1, None),
        (("bad", "good"), "²", None),
        (("bad", "good"), 2, None),
    ],
)
def test_an_answer_is_a_choice_or_its_number_where_no_choice_looks_like_one(choices, answer, right):
    source = config.LabeledTable(
        "a", config.ClassForm(("a", "b")), prompt=config.PromptConfig("{q}", choices, "{answer}")
    )
    row = rows.SourceRow("a:1", {"q": "how", "answer": answer})
    if right is None:
        with pytest.raises(UserError, match="is not one of its 2 choices"):
            prompts.example_builder("a", source)(row)
    else:
        assert prompts.example_builder("a", source)(row).right == right


def test_choices_of_a_form_without_labels_need_an_answer():
    source = config.LabeledTable("a", config.AnswerForm(), prompt=config.PromptConfig("{question}", ("b", "c")))
    fields = {"question": "a", "context": "b", "answers": []}
    with pytest.raises(UserError, match="a:1 has no field 'label'"):
        prompts.example_builder("a", source)(rows.SourceRow("a:1", fields))
    assert prompts.example_builder("a", source)(rows.SourceRow("a:1", fields | {"label": "c"})).right == 1


def test_an_invalid_template_of_a_choice_is_one_line():
    source = config.LabeledTable("a", config.ClassForm(("b", "c")), prompt=config.PromptConfig("{text}", ("{a", "b")))
    with pytest.raises(UserError, match=r"a:1 does not fit the source's prompt\.choices: expected '}'"):
        prompts.example_builder("a", source)(rows.SourceRow("a:1", {"text": "how", "label": "b"}))


def test_choices_of_a_score_are_numbers():
    source = config.LabeledTable("a", config.ScoreForm(), prompt=config.PromptConfig("{text}", ("1", "nan")))
    with pytest.raises(UserError, match='a:1 has the choice "nan", which is not a number'):
        prompts.example_builder("a", source)(rows.SourceRow("a:1", {"text": "how", "score": 1}))


@pytest.mark.parametrize(
    ("task", "options", "says"),
    [
        ("moods", {"shots": (40,)}, "--shots=40: the training split of 'moods' has only 39 rows that are not tested"),
        ("moods", {"shots": (39,), "balanced": True}, "enough for 38 balanced shots"),
        ("missing", {}, r"moods.jsonl:1 has no field 'texts': did you mean 'text'"),
        ("bare", {}, "has choices but no common template: set one"),
        ("few", {}, "3 prompt.choices and 2 form.labels"),
        ("documents", {}, "has no prompt"),
        ("sentimental", {}, "there is no task 'sentimental'"),
        ("moods:test", {}, "has no split 'test'"),
    ],
)
def test_a_mistake_is_one_line(lm, run, task, options, says):
    with pytest.raises(UserError, match=says):
        figures(lm, run, task, **options)


def test_a_masked_model_is_not_asked():
    model = LanguageModel(tiny.BERT, {}, vocabulary_spec="bytes")
    with pytest.raises(UserError, match="does not continue text"):
        figures(model, None, "sentiment")
    with pytest.raises(UserError, match="--normalize is bytes: did you mean 'byte'"):
        few_shot.FewShotOptions(normalize="bytes")


def test_the_verb_shows_asks_and_records(lm, verb, tmp_path):
    lm.save(tmp_path / "model", format="plm_jax")
    asked = (f"--checkpoint={tmp_path}/model", "--tasks=sentiment", "--limit=4")
    done = verb("evaluate", *asked, "--shots=0,1", "--seeds=0,1", "--show=1", f"--output={tmp_path}/f.json")
    assert done.status == 0, done.err
    dropped = done.out.count(" 1 dropped ---")
    assert done.out.count("Sentiment:") == 3 - dropped and done.out.count(" not [") == 2
    (task,) = json.loads((tmp_path / "f.json").read_text()).values()
    assert {"0_shots/accuracy", "1_shots/accuracy", "1_shots/accuracy_deviation", "1_shots/dropped"} <= task.keys()
    assert_one_line(verb("evaluate", *asked, "--shots=100000"), "--shots=100000: the training split")
    assert_one_line(verb("evaluate", *asked, "--shots=0", "--stride=3"), "--shots and --stride")
    assert_one_line(verb("evaluate", *asked), "--limit applies only to")
    if importlib.util.find_spec("lm_eval") is None:
        harness = verb("evaluate", f"--checkpoint={tmp_path}/model", "--harness=arc_easy")
        assert_one_line(harness, "lm_eval is not installed: run pip install '.[harness]' in a checkout of plm_jax")
