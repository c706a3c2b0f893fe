"""References: a frozen teacher that a run reads, and that its checkpoints do not hold."""

import contextlib
import dataclasses
import json
import math
import shutil

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from plm_jax import config, losses, models, objectives
from plm_jax.common.errors import UserError
from plm_jax.models import registry
from plm_jax.planning import plan as planning
from plm_jax.runs import checkpoint_folders as folders
from plm_jax.runs import checkpoints, references, setup
from tests.support import resume, runs
from tests.support import tiny as tiny_runs

STUDENT = dataclasses.replace(
    tiny_runs.with_dropout(tiny_runs.DISTILBERT), stack=dataclasses.replace(tiny_runs.DISTILBERT.stack, layers=1)
)

LOSS = losses.Distillation()


@pytest.fixture(scope="module")
def teachers(tiny, verb, tmp_path_factory):
    """Folder with the runs `first` and `second` of one model with different seeds."""
    folder = tmp_path_factory.mktemp("teachers")
    for seed, name in enumerate(("first", "second")):
        flags = f"--config={tiny}/tiny.py:distilbert", f"--workdir={folder / name}", f"--config.train.seed={seed}"
        finished = verb("pretrain", *flags, "--config.train.steps=1")
        assert finished.status == 0, finished.err
    return folder


def distilled(tiny, teacher, train=None, loss=LOSS, model=STUDENT, **sections):
    """Returns a run of a student with one layer and dropout."""
    sources = {"teacher": config.ReferenceConfig(str(teacher))}
    train = {"references": sources, "loss": loss, **(train or {})}
    return runs.make(tiny, tiny_runs.RUNS["distilbert"], model=model, train=train, **sections)


def count(tree):
    """Returns the number of elements of all leaves."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def write(folder, run):
    """Adds a run to the `tiny.py` of a folder as `distilled`."""
    (folder / "distilled.json").write_text(json.dumps(config.to_dict(run)))
    with open(folder / "tiny.py", "a", encoding="utf-8") as file:
        path = str(folder / "distilled.json")
        file.write(f'\n\nRUNS["distilled"] = config.from_dict(__import__("json").load(open({path!r})))\n')


def test_checkpoints_record_only_the_hash_of_a_teacher(tiny_copy, teachers, verb, tmp_path):
    run = distilled(tiny_copy, teachers / "first", evaluation=config.EvaluationConfig(every=3, batch_size=8))
    write(tiny_copy, run)
    command = f"--config={tiny_copy}/tiny.py:distilled", f"--workdir={tmp_path / 'run'}"
    finished = verb("pretrain", *command, "--config.train.steps=3")
    assert finished.status == 0, finished.err
    row = runs.rows(tmp_path / "run")[-1]
    terms = {name: row[f"train/{name}_loss"] for name in ("masked_lm", "divergence", "cosine")}
    assert row["train/loss"] == pytest.approx(2 * terms["masked_lm"] + 20 * terms["divergence"] + terms["cosine"])
    assert "validation/loss" in row and "validation/divergence_loss" not in row

    folder = folders.of_run(str(tmp_path / "run")) / "3"
    saved = checkpoints.load_params(str(folder))
    assert runs.flat(registry.shapes(run.model)).keys() == runs.flat(jax.tree.map(lambda x: 0, saved.params)).keys()
    assert len(saved.meta["references"]["teacher"]) == 64
    with contextlib.closing(ocp.StandardCheckpointHandler()) as handler:
        stored = [handler.metadata(folder / item).tree for item in ("params", "training")]
    state = setup.build(run).program.published_state
    assert count(stored) == count(state) - count(state.recent)

    # A copy of the teacher elsewhere has the same weights.
    shutil.copytree(teachers / "first", tmp_path / "copy")
    source = "--config.train.references.teacher.source="
    same = verb("pretrain", *command, "--config.train.steps=4", f"{source}{tmp_path / 'copy'}")
    assert same.status == 0 and "resumed after step 3" in same.err, same.err
    other = verb("pretrain", *command, "--config.train.steps=5", f"{source}{teachers / 'second'}")
    assert other.status == 2 and len(other.errors) == 1, other.err
    assert "the weights of reference 'teacher'" in other.errors[0] and "--allow_changes" in other.errors[0]


def assert_resumed_equals_whole(run, folder, verb, tmp_path):
    """Trains a run of 6 steps in `whole`, resumes it in `resumed` from its second step, and compares the two."""
    write(folder, run)
    finished = verb("pretrain", f"--config={folder}/tiny.py:distilled", f"--workdir={tmp_path / 'whole'}")
    assert finished.status == 0, finished.err
    runs.copy_at(tmp_path / "whole", tmp_path / "resumed", 2)
    finished = verb("pretrain", f"--config={folder}/tiny.py:distilled", f"--workdir={tmp_path / 'resumed'}")
    assert finished.status == 0 and "resumed after step 2" in finished.err, finished.err
    assert resume.last_step(tmp_path / "whole") == 6
    assert resume.differences(tmp_path / "resumed", tmp_path / "whole") == []


def test_resumed_distillation_equals_uninterrupted_one(tiny_copy, teachers, verb, tmp_path):
    phases = (config.PhaseConfig(until=0.5, length=16), config.PhaseConfig(until=1.0))
    train = {"steps": 6, "microbatches": 2, "phases": phases}
    run = distilled(tiny_copy, teachers / "first", train, checkpoint=config.CheckpointConfig(save_every=2, keep_last=9))
    assert_resumed_equals_whole(run, tiny_copy, verb, tmp_path)


def test_replay_reports_another_teacher(tiny_copy, teachers, verb, tmp_path):
    shutil.copytree(teachers / "first", tmp_path / "teacher")
    write(tiny_copy, distilled(tiny_copy, tmp_path / "teacher", {"steps": 2, "log_every": 1}))
    finished = verb("pretrain", f"--config={tiny_copy}/tiny.py:distilled", f"--workdir={tmp_path / 'run'}")
    assert finished.status == 0, finished.err
    same = verb("replay", str(tmp_path / "run"), "--step=2")
    assert same.status == 0 and "bit-identical" in same.err + same.out, same.err
    shutil.rmtree(tmp_path / "teacher")
    shutil.copytree(teachers / "second", tmp_path / "teacher")
    other = verb("replay", str(tmp_path / "run"), "--step=2")
    assert other.status == 2, other.err
    assert "different from the run: the weights of reference 'teacher' was " in other.errors[0], other.err


def test_eight_devices_equal_one(tiny, teachers):
    run = distilled(tiny, teachers / "first", {"microbatches": 2, "steps": 3}, dropout=0.0)
    program = runs.assert_eight_devices_equal_one(run).program
    kernel = program.reference_shapes["teacher"]["stack"]["blocks"]["feed_forward"]["up"]["kernel"]
    assert math.prod(kernel.sharding.shard_shape(kernel.shape)) < math.prod(kernel.shape)


def test_references_follow_a_phase_to_another_mesh(tiny, teachers):
    phases = (
        config.PhaseConfig(until=0.5, mesh={"data": 4}),
        config.PhaseConfig(until=1.0, mesh={"fsdp": 4, "data": 1}),
    )
    run = distilled(tiny, teachers / "first", {"steps": 2, "phases": phases})
    job = setup.build(run, devices=jax.devices()[:4])
    first, second = (job.programs.inputs(step)[2]["teacher"] for step in (0, 1))
    assert runs.flat(first).keys() == runs.flat(second).keys()
    for name, leaf in runs.flat(first).items():
        np.testing.assert_array_equal(runs.flat(second)[name], leaf)
    shapes = job.programs.at(job.programs.phases[1]).reference_shapes["teacher"]
    assert jax.tree.map(lambda leaf: leaf.sharding, second) == jax.tree.map(lambda leaf: leaf.sharding, shapes)


def test_validation_uses_the_own_loss_of_the_objective(tiny, teachers):
    evaluation = config.EvaluationConfig(every=1, batch_size=8)
    jobs = [
        setup.build(run, devices=jax.devices()[:1])
        for run in (
            distilled(tiny, teachers / "first", evaluation=evaluation),
            runs.make(tiny, tiny_runs.RUNS["distilbert"], model=STUDENT, evaluation=evaluation),
        )
    ]
    params = jobs[0].program.new_state(0).params
    one, other = (job.validation(params, job.programs.phases[0]) for job in jobs)
    assert one == other and one["loss"] > 0


def test_plans_count_the_memory_of_references(tiny, teachers):
    run = distilled(tiny, teachers / "first")
    parameters = count(registry.shapes(tiny_runs.DISTILBERT))
    for dtype, size in (("float32", 4), ("bfloat16", 2)):
        references = {"teacher": config.ReferenceConfig(str(teachers / "first"), dtype)}
        changed = dataclasses.replace(run, train=dataclasses.replace(run.train, references=references))
        report = planning.plan(changed, "none")
        assert report["bytes_per_device"]["references"] == size * parameters
        assert "GB per device, references" in planning.table(report)


def test_bfloat16_teacher_has_nearly_the_same_loss(tiny, teachers):
    run = distilled(tiny, teachers / "first", {"steps": 1})
    references = {"teacher": config.ReferenceConfig(str(teachers / "first"), "bfloat16")}
    rounded = dataclasses.replace(run, train=dataclasses.replace(run.train, references=references))
    (expected,), (actual,) = (runs.steps(each, 1)[0] for each in (run, rounded))
    assert actual == pytest.approx(expected, rel=1e-2) and actual != expected


WIDE = dataclasses.replace(
    STUDENT,
    embedding=dataclasses.replace(STUDENT.embedding, width=64),
    attention=dataclasses.replace(STUDENT.attention, head_dim=16),
)
LONGER = dataclasses.replace(
    STUDENT, attention=dataclasses.replace(STUDENT.attention, position=models.LearnedPositions(length=128))
)
LARGER = dataclasses.replace(STUDENT, embedding=dataclasses.replace(STUDENT.embedding, vocab_size=300))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": {"references": {}}}, r"needs a reference 'teacher': set config.train.references.teacher.source"),
        ({"train": {"loss": None}}, r"has 'teacher', which the loss does not read: leave it out"),
        ({"model": LARGER}, r"the teacher has 272 tokens, but config.model has 300"),
        ({"model": LARGER, "loss": losses.Distillation(alpha_ce=0.0)}, r"the teacher has 272 tokens"),
        ({"model": LONGER, "data": {"length": 65}}, r"rows of 65 tokens are longer than the 64 positions of reference"),
        ({"model": WIDE}, r"width of 32, those of config.model of 64: set config.train.loss.alpha_cos to 0"),
        ({"model": tiny_runs.MODEL, "objective": objectives.Causal()}, r"the teacher is a model of kind 'encoder'"),
        ({"model": tiny_runs.ELECTRA, "objective": objectives.ReplacedToken()}, r"does not support the loss"),
    ],
)
def test_unfitting_references_are_rejected(changes, message, tiny, teachers):
    with pytest.raises(UserError, match=message):
        run = distilled(tiny, teachers / "first", **{"model": STUDENT, **changes})
        setup.build(run, devices=jax.devices()[:1])


def test_a_teacher_of_another_vocabulary_is_rejected(tiny, teachers):
    run = distilled(tiny, teachers / "first")
    vocabulary_id = setup.build(run, devices=jax.devices()[:1]).reader.vocabulary["id"]
    references.check_vocabularies(run, vocabulary_id)
    with pytest.raises(
        UserError, match=r"'teacher' was trained with the vocabulary \w{12}, but this run reads 000000000000"
    ):
        references.check_vocabularies(run, "0" * 64)


def test_a_teacher_with_fewer_token_types_is_rejected(tiny, teachers, monkeypatch):
    def typed(model, token_types):
        return dataclasses.replace(model, embedding=dataclasses.replace(model.embedding, token_types=token_types))

    described = references.checkpoint_formats.described(str(teachers / "first"))
    with_types = dataclasses.replace(described, model=typed(described.model, 2))
    monkeypatch.setattr(references.checkpoint_formats, "described", lambda source: with_types)
    assert references.describe(distilled(tiny, teachers / "first", model=typed(STUDENT, 2)))
    with pytest.raises(UserError, match=r"reference 'teacher' has 2 token types, but config.model has 3"):
        references.describe(distilled(tiny, teachers / "first", model=typed(STUDENT, 3)))


def test_files_of_a_teacher_without_a_recorded_vocabulary_are_compared(tiny, teachers, monkeypatch, capsys):
    run = distilled(tiny, teachers / "first")
    described = references.checkpoint_formats.described(str(teachers / "first"))
    vocabulary_id, unrecorded = described.vocabulary_id, dataclasses.replace(described, vocabulary_id=None)
    monkeypatch.setattr(references.checkpoint_formats, "described", lambda source: unrecorded)
    references.check_vocabularies(run, vocabulary_id)
    assert not capsys.readouterr().err
    with pytest.raises(UserError, match=r"this run reads 000000000000"):
        references.check_vocabularies(run, "0" * 64)
    unrecorded = dataclasses.replace(unrecorded, vocabulary=None)
    references.check_vocabularies(run, vocabulary_id)
    assert "'teacher': cannot be compared" in capsys.readouterr().err


def test_students_of_another_width_learn_from_predictions(tiny, teachers):
    loss = losses.Distillation(alpha_cos=0.0)
    run = distilled(tiny, teachers / "first", {"steps": 1}, loss=loss, model=WIDE)
    assert np.isfinite(runs.steps(run, 1)[0]).all()


def test_resumed_runs_may_add_and_remove_a_teacher(tiny_copy, teachers, verb, tmp_path):
    alone = {"references": {}, "loss": None}
    for steps, train in ((1, alone), (2, {}), (3, alone)):
        write(tiny_copy, distilled(tiny_copy, teachers / "first", train))
        command = f"--config={tiny_copy}/tiny.py:distilled", f"--workdir={tmp_path / 'run'}"
        finished = verb("pretrain", *command, f"--config.train.steps={steps}")
        assert finished.status == 0, finished.err
        folder = folders.of_run(str(tmp_path / "run")) / str(steps)
        assert list(checkpoints.load_params(str(folder)).meta["references"]) == ([] if train else ["teacher"])
