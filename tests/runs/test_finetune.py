"""`finetune`: resolved configs, initial and best weights, killed runs and meshes."""

import dataclasses
import json
import re
import shutil
import signal
import time

import flax.linen as nn
import jax
import numpy as np
import pytest
import tokenizers

import plm_jax
from plm_jax import config, models, objectives
from plm_jax.common.errors import UserError
from plm_jax.experiments import seeds
from plm_jax.hub import tasks
from plm_jax.models import registry, task_heads
from plm_jax.runs import checkpoint_formats, preparation, setup, transfer
from tests.support import moods, resume, runs
from tests.support import tiny as tiny_config

FORMS = {
    "classes": (objectives.Classification(), config.ClassForm(moods.LABELS)),
    "score": (objectives.Regression(), config.ScoreForm()),
    "tags": (objectives.Tagging(), config.TagForm(("O", "B-C"))),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with the files of `moods.py`."""
    found = tmp_path_factory.mktemp("moods")
    moods.write(found)
    return found


def page(folder, form="classes", **sections):
    """Returns the run of `moods.py` with changed fields and absolute paths."""
    objective, source_form = FORMS[form]
    source = dataclasses.replace(moods.RUN.data.sources["mood"], form=source_form)
    data = {"sources": {"mood": source}} | sections.pop("data", {})
    evaluation = {"select": ""} | sections.pop("evaluation", {})
    sections |= {"objective": objective, "data": data, "evaluation": evaluation}
    return runs.make(folder, moods.RUN, **sections)


def with_head(folder, name, labels):
    """A saved encoder that has a head for classes."""
    model = tiny_config.BERT.with_task(tasks.new("classes", tiny_config.BERT, labels))
    checkpoint_formats.save(str(folder / name), moods.pretrained(model, seed=5), "plm_jax")
    return str(folder / name)


@pytest.mark.parametrize("form", FORMS)
def test_config_receives_model_head_and_labels(form, folder):
    run = transfer.resolve(page(folder, form), str(folder / "encoder"))
    head = dict(run.model.heads)["task"]
    assert (head.kind, getattr(head, "labels", ())) == (form, FORMS[form][1].labels)
    assert head.dropout == run.model.dropout.residual == 0.1 and run.objective.rows == "encoder"
    assert run.model.stack == tiny_config.BERT.stack and isinstance(run.model.head, models.NoHead)
    assert run.train.init_from == str(folder / "encoder") and run.vocabulary.cls == 258
    speed = page(folder, form, model=models.FromCheckpointConfig(remat="full", scan_layers=False))
    computed = transfer.resolve(speed, str(folder / "encoder")).model
    assert (computed.remat, computed.scan_layers, computed.dropout.residual) == ("full", False, 0.0)


def test_head_of_the_checkpoint_is_loaded_if_its_labels_match(folder, tmp_path):
    before = runs.flat(plm_jax.load(with_head(tmp_path, "fits", moods.LABELS)).params)
    run = transfer.resolve(page(folder, train={"steps": 1, "epochs": None}), str(tmp_path / "fits"))
    preparation.prepare(run)
    state, notes = runs.start(run)
    params = runs.flat(state.params)
    np.testing.assert_array_equal(params["heads_task/output/kernel"], before["heads_task/output/kernel"])
    assert not any("new: " in note for note in notes)
    # As many labels, but others: its weights mean something else.
    other = with_head(tmp_path, "other", ("up", "down"))
    run = transfer.resolve(page(folder, train={"steps": 1, "epochs": None}), other)
    state, notes = runs.start(run)
    params = runs.flat(state.params)
    assert (params["heads_task/output/kernel"] != before["heads_task/output/kernel"]).any()
    np.testing.assert_array_equal(params["token_embedding"], before["token_embedding"])
    assert any(note.startswith("new: heads_task/output/bias") for note in notes)


def test_score_head_is_loaded_under_any_label(folder, tmp_path):
    head = tasks.new("score", tiny_config.BERT, ("grade",))
    checkpoint_formats.save(str(tmp_path / "named"), moods.pretrained(tiny_config.BERT.with_task(head)), "plm_jax")
    run = transfer.resolve(page(folder, "score"), str(tmp_path / "named"))
    assert dict(run.model.heads)["task"] == dataclasses.replace(head, dropout=0.1, input_dropout=0.1)
    assert run.train.init_names == config.TrainConfig.init_names


def test_electra_has_the_head_of_its_family(folder, tmp_path):
    bert = moods.pretrained(tiny_config.BERT)
    electra = dataclasses.replace(bert, model=tiny_config.ELECTRA, params=registry.shapes(tiny_config.ELECTRA))
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), electra.params)
    checkpoint_formats.save(str(tmp_path / "electra"), dataclasses.replace(electra, params=zeros), "plm_jax")
    head = dict(transfer.resolve(page(folder), str(tmp_path / "electra")).model.heads)["task"]
    assert (head.feature, head.transform) == ("first", "gelu_exact")


@pytest.mark.parametrize("name", ["MODEL", "BART", "BERT", "BERT without a pooler"])
def test_saved_model_computes_the_trained_outputs(name, folder, tmp_path):
    model = getattr(tiny_config, name.partition(" ")[0])
    source = moods.pretrained(dataclasses.replace(model, pooler=models.NoHead()) if "without" in name else model)
    if name == "BART":
        source = dataclasses.replace(
            source, special_ids={"bos_token_id": 256, "pad_token_id": 257, "eos_token_id": 258}
        )
    checkpoint_formats.save(str(tmp_path / "source"), source, "plm_jax")
    pair = dataclasses.replace(moods.RUN.data.sources["mood"], form=config.ClassForm(moods.LABELS, pair="text"))
    run = transfer.resolve(page(folder, data={"sources": {"mood": pair}}), str(tmp_path / "source"))
    params = registry.init_params(registry.build(run.model), jax.random.key(0))
    tuned = checkpoint_formats.of_run(run, nn.unbox(params), str(tmp_path))
    vocabulary = run.vocabulary
    special = objectives.Special(**{mark: getattr(vocabulary, mark) for mark in ("pad", "bos", "eos", "cls", "sep")})
    row = run.objective.make_row([np.array([97, 98]), np.array([99])], {"length": 12}, special).row
    batch = {key: value[None] for key, value in row.items()}
    wanted, _ = task_heads.output(registry.build(run.model), tuned.params, batch)
    for form in checkpoint_formats.FORMATS[:2]:
        checkpoint_formats.save(str(tmp_path / form), tuned, form)
        given = {key: batch[key] for key in ("tokens", "mask", "token_types") if key in batch}
        logits = plm_jax.load(str(tmp_path / form)).logits(**given, head="task")
        np.testing.assert_allclose(logits, wanted, atol=1e-6)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "huggingface/tokenizer.json"))
    assert tokenizer.encode("ab", "c").ids == row["tokens"][row["mask"] > 0].tolist()


def test_missing_tokens_are_appended_to_the_vocabulary(folder):
    pretrained = moods.pretrained(tiny_config.MODEL, vocab_size=259)
    checkpoint_formats.save(str(folder / "small"), pretrained, "plm_jax")
    run = transfer.resolve(page(folder, train={"steps": 1, "epochs": None}), str(folder / "small"))
    assert (run.vocabulary.cls, run.model.vocab_size, run.train.new_tokens) == (259, 260, 1)
    preparation.prepare(run)
    params = runs.flat(runs.start(run)[0].params)
    before = pretrained.flat()["token_embedding"]
    np.testing.assert_array_equal(params["token_embedding"][:259], before)
    assert 0.01 < params["token_embedding"][259].std() < 0.03
    # One with room in its table needs no more rows.
    roomy = transfer.resolve(page(folder), str(folder / "decoder"))
    assert (roomy.vocabulary.cls, roomy.model.vocab_size, roomy.train.new_tokens) == (259, 272, 0)


def test_eight_devices_fine_tune_like_one(folder):
    sections = {"model": models.FromCheckpointConfig(), "train": {"steps": 3, "epochs": None}}
    one = transfer.resolve(page(folder, **sections), str(folder / "encoder"))
    preparation.prepare(one)
    eight = dataclasses.replace(one, mesh=config.MeshConfig(data=1, fsdp=4, tensor=2))
    losses, _, params, job, state = runs.steps(one, 1)
    losses_8, _, params_8, job_8, state_8 = runs.steps(eight, 8)
    np.testing.assert_allclose(losses_8, losses, rtol=1e-5)
    validated = job.validation(state.params, job.programs.phases[0])
    assert {"mood/accuracy", "mood/f1"} <= validated.keys()
    assert job_8.validation(state_8.params, job_8.programs.phases[0]) == pytest.approx(validated, rel=1e-5)
    for name, leaf in params.items():
        if "key/bias" not in name:  # Its gradient is only rounding errors.
            np.testing.assert_allclose(params_8[name], leaf, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("select", "every", "says"),
    [
        ("mood/f2", 1, r"select is 'mood/f2', which is not computed: choose from: accuracy, f1, loss, matthews"),
        ("mud/f1", 1, r"where SOURCE has held-out rows; "),
        ("mood/f1", 2, r"the run has 1 steps and is never validated .config.evaluation.every is 2.: "),
    ],
)
def test_unknown_metrics_are_rejected(select, every, says, folder):
    run = transfer.resolve(
        page(folder, evaluation={"select": select, "every": every}, train={"steps": 1, "epochs": None}),
        str(folder / "encoder"),
    )
    preparation.prepare(run)
    with pytest.raises(UserError, match=says):
        setup.build(run, devices=jax.devices()[:1])


def test_config_without_a_model_evaluates_a_checkpoint(folder, verb, tmp_path):
    source = with_head(tmp_path, "source", moods.LABELS)
    given = (f"--config={folder}/moods.py", f"--config.data.cache_dir={tmp_path}/cache")
    assert verb("prepare", *given, f"--from={source}").status == 0
    told = verb("evaluate", *given, f"--checkpoint={source}", "--tasks=mood", f"--output={tmp_path}/scores.json")
    assert told.status == 0, told.err
    assert re.search(r"^mood \(held_out\.jsonl\) +value", told.out, re.MULTILINE), "the validation file is named"
    found = json.loads((tmp_path / "scores.json").read_text())["mood"]
    assert 0 <= found["accuracy"] <= 1 and found["trivial_accuracy"] >= 0.5


def with_heads(head):
    return {"model": models.FromCheckpointConfig(heads=(("task", head),))}


def test_invalid_settings_are_rejected(folder, verb, tmp_path):
    alone = verb("pretrain", f"--config={folder}/moods.py", f"--workdir={tmp_path}/w")
    assert alone.status == 2 and "a placeholder for the model of a checkpoint" in alone.errors[0]
    for says, sections in (
        (
            r"config.model.heads.task has 3 labels \(a, b, c\), but source 'mood' has 2",
            with_heads(models.ClassesHead(labels=tuple("abc"))),
        ),
        (
            "heads.task.kind is tags, but objective 'classification' trains a head of kind cl",
            with_heads(models.TagsHead(labels=moods.LABELS)),
        ),
        (r"config\.data\.length is 3", {"data": {"length": 3}}),
    ):
        with pytest.raises(UserError, match=says):
            transfer.resolve(page(folder, **sections), str(folder / "encoder"))
    unknown = verb("config", f"--config={folder}/moods.py", "--config.model.dropuot=0.1")
    assert unknown.status == 2 and "did you mean 'dropout'?" in unknown.errors[0]
    given = verb("finetune", f"--config={folder}/moods.py", f"--checkpoint={folder}/none", f"--workdir={tmp_path}/w")
    assert given.status == 2 and "none does not exist" in given.errors[0]


def test_a_table_is_not_fine_tuned_into_the_directory_of_another_run(folder, verb, tmp_path):
    (tmp_path / "pretrained/checkpoints/8").mkdir(parents=True)
    (tmp_path / "t.csv").write_text("text,label\nx,1\ny,0\n")
    arguments = (f"--train={tmp_path}/t.csv", "--text=text", "--label=label", f"--checkpoint={folder}/encoder")
    finished = verb("finetune", *arguments, f"--workdir={tmp_path}/pretrained")
    assert finished.status == 2 and finished.errors == [
        f"error: {tmp_path}/pretrained contains another run: choose another --workdir"
    ]
    assert [path.name for path in (tmp_path / "pretrained").iterdir()] == ["checkpoints"]


def test_killed_run_ends_with_the_same_best_weights(folder, verb, tmp_path):
    def arguments(workdir):
        return [f"--config={folder}/moods.py", f"--checkpoint={folder}/encoder", f"--workdir={tmp_path / workdir}"]

    finished = verb("finetune", *arguments("whole"))
    assert finished.status == 0, finished.err
    process = verb.start("finetune", *arguments("killed"))
    checkpoints = tmp_path / "killed/checkpoints"
    while process.poll() is None:
        step = resume.last_step(tmp_path / "killed")
        # If it can be caught there, in a save of the best weights.
        saving = checkpoints.exists() and any(path.match("best*tmp*") for path in checkpoints.iterdir())
        if step >= 12 or (step >= 5 and saving):
            break
        time.sleep(0.0005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it ended before it was killed"
    again = verb("finetune", *arguments("killed"))
    assert again.status == 0, again.err
    assert not resume.differences(tmp_path / "killed", tmp_path / "whole")
    whole, killed = (
        [json.loads(line) for line in (tmp_path / w / "metrics.jsonl").open()] for w in ("whole", "killed")
    )
    of_validation = [[{k: v for k, v in row.items() if "validation" in k} for row in rows] for rows in (whole, killed)]
    assert of_validation[0] == of_validation[1]
    losses = [row["validation/mood/loss"] for row in whole]
    for name in ("checkpoints/best", f"checkpoints/{len(whole)}"):
        one, other = (plm_jax.load(str(tmp_path / workdir / name)) for workdir in ("whole", "killed"))
        assert one.step == other.step
        for leaf, value in runs.flat(one.params).items():
            np.testing.assert_array_equal(runs.flat(other.params)[leaf], value, err_msg=leaf)
    assert plm_jax.load(str(tmp_path / "killed/checkpoints/best")).step == 1 + int(np.argmin(losses))
    shutil.rmtree(tmp_path / "whole/checkpoints/best")
    # What `evaluate` says of the last checkpoint is what its validation said.
    told = verb("evaluate", f"--checkpoint={tmp_path}/whole", f"--output={tmp_path}/found.json")
    assert told.status == 0, told.err
    found = json.loads((tmp_path / "found.json").read_text())["mood"]
    labels = [row["label"] for row in moods.rows(20, 1)]
    assert found["trivial_accuracy"] == pytest.approx(max(map(labels.count, moods.LABELS)) / 20)
    assert found["accuracy"] == whole[-1]["validation/mood/accuracy"] and found["examples"] == 20


def test_seeds_are_reported_by_mean_and_deviation(tmp_path):
    for number, values in enumerate([(0.8, 0.5), (0.9, 0.25)]):
        row = {"step": 1, "train/loss": 1.0, "validation/accuracy": values[0], "validation/loss": values[1]}
        (tmp_path / f"seed-{number}").mkdir()
        (tmp_path / f"seed-{number}/metrics.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({"step": 2}) + "\n")
    found = seeds.lines([str(tmp_path / f"seed-{number}") for number in range(2)])
    assert found[0] == "validation/accuracy 85.00 ± 7.07 % (80.00 %, 90.00 %)"
    assert found[1].startswith("validation/loss 0.3750 ± 0.1768 (0.5000, 0.2500)")
