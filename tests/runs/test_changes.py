"""A run that goes on with another config: what is reported, what is refused, what is read next, what is kept."""

import dataclasses
import json
import shutil
import typing
import zlib

import jax
import numpy as np
import pytest

from plm_jax import config, objectives
from plm_jax.common import sealing
from plm_jax.common.errors import UserError
from plm_jax.common.roles import is_role
from plm_jax.data import reader
from plm_jax.data.prepare import caches
from plm_jax.runs import checkpoint_folders as folders
from plm_jax.runs import checkpoints, resume, setup
from plm_jax.training import optimizers
from tests.support import runs, tiny
from tests.support.roles import built_in
from tests.support.verbs import contents


@pytest.fixture(scope="module")
def trained(tiny, verb, tmp_path_factory):
    """Six steps of eight rows each, saved at 3 and 6."""
    workdir = tmp_path_factory.mktemp("changes") / "run"
    finished = verb("pretrain", f"--config={tiny}/tiny.py", f"--workdir={workdir}")
    assert finished.status == 0, finished.err
    return workdir


@pytest.fixture
def halfway(trained, tmp_path):
    """The run's directory as it was after step 3."""
    return runs.copy_at(trained, tmp_path / "run", 3)


def digest(examples) -> str:
    """Returns `train/batch_digest`: CRC-32 of each example, summed modulo 2^64."""
    total = 0
    for example in examples:
        value = 0
        for key, array in sorted(example.items()):
            shape = np.array(array.shape, "<i8").tobytes()
            value = zlib.crc32(key.encode() + shape + array.astype(array.dtype.newbyteorder("<")).tobytes(), value)
        total += value
    return f"{total % 2**64:016x}"


def test_finished_run_is_not_changed(tiny, trained, verb):
    before = contents(trained)
    finished = verb("pretrain", f"--config={tiny}/tiny.py", f"--workdir={trained}")
    assert finished.status == 0
    assert f"{trained} is finished at step 6: raise train.steps to train further\n" in finished.err
    assert f"nothing was trained: {trained} was finished before (" in finished.out and contents(trained) == before
    changed = verb(
        "pretrain", f"--config={tiny}/tiny.py", f"--workdir={trained}", "--config.schedule.learning_rate=0.5"
    )
    assert changed.status == 0 and contents(trained) == before
    assert "or choose another --workdir to train with the changed settings\n" in changed.err
    assert changed.out.startswith("nothing was trained: ")


def test_changed_batch_size_continues_after_the_last_example(tiny, trained, halfway, verb):
    before = contents(halfway)

    def pretrain(*flags):
        command = [f"--config={tiny}/tiny.py", f"--workdir={halfway}", "--config.train.batch_size=16"]
        return verb("pretrain", *command, "--config.checkpoint.save_every=1", *flags)

    refused = pretrain()
    (line,) = refused.errors
    assert refused.status == 2 and contents(halfway) == before
    assert "train.batch_size was 8 and is 16" in line and "--allow_changes" in line and "delete" not in line
    allowed = pretrain("--allow_changes")
    assert allowed.status == 0, allowed.err
    assert "resumed after step 3" in allowed.err and "  train.batch_size       8    16\n" in allowed.err
    # Examples of blocks do not depend on the batch size.
    examples = reader.Reader(config.reader_config(runs.make(tiny, train={"steps": 1000}))).example
    expected = runs.column(trained, "train/batch_digest")
    expected |= {step: digest(map(examples, range(24 + 16 * i, 40 + 16 * i))) for i, step in enumerate((4, 5, 6))}
    assert runs.column(halfway, "train/batch_digest") == expected
    described = json.loads((halfway / "config.json").read_text())
    event = described["history"][-1]
    assert event["step"] == 3 and event["changes"]["train.batch_size"] == {"was": 8, "is": 16}
    assert event["changes"].keys() == {"train.batch_size", "checkpoint.save_every"}
    assert event["versions"] == described["versions"] and event["time"].startswith("20")
    assert event["git_commit"] == described["git_commit"]
    # The changed run resumes without the flag.
    shutil.rmtree(halfway / "checkpoints" / "6")
    again = pretrain()
    assert again.status == 0 and "differs" not in again.err, again.err
    assert runs.column(halfway, "train/batch_digest") == expected
    *_, event_before, event = json.loads((halfway / "config.json").read_text())["history"]
    assert event_before == described["history"][-1] and event["step"] == 5 and event["changes"] == {}
    assert folders.read_meta(folders.of_run(str(halfway)) / "6")["next_example"] == 24 + 3 * 16


def test_changed_number_of_steps_is_checked_and_reported(tiny, halfway, verb):
    before = contents(halfway)

    def pretrain(*flags):
        return verb("pretrain", f"--config={tiny}/tiny.py", f"--workdir={halfway}", *flags)

    fewer = pretrain("--config.train.steps=2", "--allow_changes")
    assert fewer.status == 2 and contents(halfway) == before
    (line,) = fewer.errors
    assert "is at step 3, but config.train.steps is 2" in line
    more = pretrain("--config.train.steps=5", "--config.schedule.kind=linear", "--config.schedule.decay_steps=10")
    assert more.status == 0, more.err
    table = more.err[more.err.index("differences from the saved run (step 3):") :].splitlines()
    assert [line.split() for line in table[1:4]] == [
        ["field", "was", "is"],
        ["schedule", "constant", "linear"],
        ["train.steps", "6", "5"],
    ]
    # 0.001 falls by a tenth of it a step.
    assert "this changes the learning rate from step 4 on: it is 0.0007 instead of 0.001" in more.err
    np.testing.assert_allclose(list(runs.column(halfway, "train/learning_rate").values())[3:], [7e-4, 6e-4], rtol=1e-5)
    assert runs.rows(halfway)[-1]["step"] == 5


def resumed_with(workdir, run):
    """Returns the resumed run, its job and the changes."""
    resumed = resume.find_latest_checkpoint(str(workdir), run.train.steps)
    job = setup.build(run, resumed, devices=jax.devices()[:1])
    return resumed, job, job.changes


def test_changed_optimizer_keeps_weights_and_step_with_fresh_moments(tiny, halfway):
    schedule = config.LinearSchedule(1e-2, decay_steps=10)
    run = runs.make(tiny, optimizer=config.AdagradConfig(initial_accumulator=0.5, clip_norm=0.0), schedule=schedule)
    resumed, job, changes = resumed_with(halfway, run)
    with pytest.raises(UserError, match=r"optimizer was adamw and is adagrad.*--allow_changes") as error:
        resumed.check(run, changes, allow_changes=False)
    assert "delete" not in str(error.value)
    resumed.check(run, changes, allow_changes=True)
    with checkpoints.Checkpoints(str(halfway), run.checkpoint) as directory:
        state, notes = setup.starting_state(job, directory.restore)
    assert int(state.step) == 3 and "moments start from zero" in notes[1]
    saved = runs.flat(jax.tree.map(np.asarray, checkpoints.load_params(str(halfway)).params))
    before = runs.flat(state.params)
    assert before.keys() == saved.keys()
    for name, leaf in saved.items():
        np.testing.assert_array_equal(before[name], leaf)
    accumulators = [leaf for leaf in jax.tree.leaves(state.optimizer) if leaf.ndim]
    assert len(accumulators) == len(saved) and all((leaf == 0.5).all() for leaf in accumulators)
    assert job.programs.inputs(3)[1] == pytest.approx(7e-3)  # 0.01 decreases by a tenth of it per step.


REFUSED = {
    "train.seed": {"train": {"seed": 2}},
    "train.prng": {"train": {"prng": "rbg"}},
    "data.length": {"data": {"length": 16}},
    "data.mixture.a": {"data": {"mixture": {"a": 3.0, "b": 1.0}}},
    "data.layout.attend_across_documents": {"data": {"layout": config.Blocks(attend_across_documents=False)}},
    "data.window_tokens": {"data": {"window_tokens": 256}},
    "train.phases": {"train": {"phases": (config.PhaseConfig(until=0.5, batch_size=4), config.PhaseConfig(until=1.0))}},
    "objective": {"objective": objectives.DecoderPrefixLM()},
    "the cache of 'b'": {"data": {"sources": {"a": tiny.PLAIN.data.sources["a"]}}},
}


@pytest.mark.parametrize("field", REFUSED)
def test_inexact_changes_need_the_flag(field, tiny, halfway):
    run = runs.make(tiny, **REFUSED[field])
    resumed, job, changes = resumed_with(halfway, run)
    with pytest.raises(
        UserError, match=r"checkpoint 3 of .* was trained with other settings .*--allow_changes"
    ) as error:
        resumed.check(run, changes, allow_changes=False)
    assert field in str(error.value) and "\n" not in str(error.value)
    resumed.check(run, changes, allow_changes=True)
    stage = job.reader._phase(3)
    assert stage.first_example + (3 - stage.first_step) * stage.batch_size == 24


def test_changed_cache_is_refused(tiny, halfway):
    meta = json.loads((halfway / "checkpoints" / "3" / "meta" / "metadata").read_text())
    assert meta["caches"].keys() == {"a", "b"}
    meta["caches"]["a"] = "0" * 64
    (halfway / "checkpoints" / "3" / "meta" / "metadata").write_text(json.dumps(meta))
    sealing.seal(str(halfway / "checkpoints" / "3"), {"format": 2, "checkpoint": "3", "step": 3, "sealed": 1.5e9})
    run = runs.make(tiny)
    resumed, _, changes = resumed_with(halfway, run)
    assert [change.field for change in changes] == ["the cache of 'a'"]
    with pytest.raises(UserError, match="the cache of 'a' was 000000000000 and is"):
        resumed.check(run, changes, allow_changes=False)


def test_a_table_of_similar_words_may_be_added_and_removed_but_not_changed(tiny, halfway):
    run = runs.make(tiny)
    resumed, job, changes = resumed_with(halfway, run)
    assert not changes
    mesh, vocabulary = dict(job.program.mesh.shape), job.reader.vocabulary["id"]

    def fields(saved, caches):
        of_saved = dataclasses.replace(resumed, meta={**resumed.meta, "caches": resumed.meta["caches"] | saved})
        return [change.field for change in of_saved.changes(run, {**job.caches, **caches}, vocabulary, mesh)]

    one, other = ({"similar_words": 64 * digit} for digit in "01")
    assert fields({}, one) == fields(one, {}) == fields(one, one) == []
    assert fields(one, other) == ["the cache of 'similar_words'"]
    assert fields({}, {"c": 64 * "0"}) == ["the cache of 'c'"]


def test_changes_that_keep_the_batches_are_reported(tiny, halfway):
    run = runs.make(
        tiny,
        mesh={"data": 2, "fsdp": 2},
        model={"remat": "full", "scan_layers": False},
        dropout=0.1,
        optimizer={"weight_decay": 0.0, "clip_norm": 0.5},
        data={"threads": 2, "prefetch": 2},
        train={"steps": 9, "microbatches": 2, "log_every": 3},
        checkpoint={"save_every": 1},
        evaluation={"every": 2},
    )
    resumed = resume.find_latest_checkpoint(str(halfway), run.train.steps)
    job = setup.build(run, resumed, devices=jax.devices()[:4])
    changes = job.changes
    resumed.check(run, changes, allow_changes=False)
    reported = {change.field: change[1:3] for change in changes}
    assert reported["mesh.fsdp"] == (1, 2) and reported["mesh.data"] == (1, 2) and reported["train.steps"] == (6, 9)
    sections = {field.split(".")[0] for field in reported}
    assert sections == {"mesh", "model", "optimizer", "data", "train", "checkpoint", "evaluation"}
    with checkpoints.Checkpoints(str(halfway), run.checkpoint) as directory:
        state, notes = setup.starting_state(job, directory.restore)
    assert notes == ["resumed after step 3"] and int(state.step) == 3
    assert max(float(abs(leaf).max()) for leaf in jax.tree.leaves(state.optimizer)) > 0  # The moments are there.


def test_moved_paths_are_reported(tiny, halfway, tmp_path):
    shutil.copytree(tiny, tmp_path / "moved")
    resumed, _, changes = resumed_with(halfway, runs.make(tmp_path / "moved"))
    assert {change.field for change in changes} == {*("data.cache_dir", "data.sources.a.path", "data.sources.b.path")}
    resumed.check(resumed.saved_run, changes, allow_changes=False)


def test_learning_rate_is_compared_over_all_remaining_steps(tiny, halfway):
    run = runs.make(tiny, train={"steps": 8})
    resumed, _, changes = resumed_with(halfway, run)
    assert len(resumed.notes(run, changes)) == 1  # Constant: the table alone.
    later = runs.make(tiny, schedule=config.LinearSchedule(1e-3, warmup_steps=5, decay_steps=6))
    assert len(resumed.notes(later, changes)) == 2


STAGES = [
    config.Phase(0, 4, 0, length=16, batch_size=8, microbatches=1, mixture={}, dropout=None),
    config.Phase(4, 8, 32, length=32, batch_size=4, microbatches=1, mixture={}, dropout=None),
]


def ends(stages):
    return [(s.first_step, s.end_step, s.first_example, s.length, s.batch_size) for s in stages]


def test_remaining_phases_follow_the_finished_steps(tiny):
    """Phases end at shares of the steps: with more steps the first one would go on for longer."""
    phases = (config.PhaseConfig(until=0.5, length=16), config.PhaseConfig(until=1.0, batch_size=4))
    run, longer = (runs.make(tiny, train={"steps": steps, "phases": phases}) for steps in (8, 16))
    assert ends(config.resolve_phases(run)) == ends(STAGES)
    # Within the first phase nothing that was read changes.
    assert resume.spans_of_rows(config.resolve_phases(run), 3) == resume.spans_of_rows(config.resolve_phases(longer), 3)
    assert ends(resume.plan_phases(STAGES, config.resolve_phases(longer), 3)) == ends(config.resolve_phases(longer))
    # At its end nothing of the next one was read.
    assert ends(resume.plan_phases(STAGES, config.resolve_phases(longer), 4)) == ends(config.resolve_phases(longer))
    # After it something does.
    assert resume.spans_of_rows(config.resolve_phases(run), 6) != resume.spans_of_rows(config.resolve_phases(longer), 6)
    assert ends(resume.plan_phases(STAGES, config.resolve_phases(longer), 6)) == [
        *((0, 4, 0, 16, 8), (4, 6, 32, 32, 4)),
        *((6, 8, 40, 16, 8), (8, 16, 56, 32, 4)),
    ]
    # Nothing changes at all: however often it is resumed, the stages stay as they are.
    for step in range(9):
        assert ends(resume.plan_phases(STAGES, config.resolve_phases(run), step)) == ends(STAGES)


def test_phases_that_differ_only_in_their_meshes_stay_apart(tiny):
    phases = (config.PhaseConfig(until=0.5, mesh={"data": 2}), config.PhaseConfig(until=1.0, mesh={"fsdp": 2}))
    resolved = config.resolve_phases(runs.make(tiny, train={"steps": 8, "phases": phases}))
    assert [phase.end_step for phase in resolved] == [4, 8]
    for step in range(9):
        assert resume.plan_phases(resolved, resolved, step) == resolved
    # With more steps, a finished run continues its last phase.
    longer = config.resolve_phases(runs.make(tiny, train={"steps": 16, "phases": phases}))
    assert [phase.end_step for phase in resume.plan_phases(resolved, longer, 3)] == [8, 16]


def test_removing_a_source_repeats_no_rows_of_the_other(tiny):
    """The rows of `a` go on where they were, though those of `b` before are of a source that is no more."""
    both = runs.make(tiny, data={"mixture": {"a": 2.0, "b": 1.0}})
    alone = runs.make(tiny, data={"mixture": {"a": 1.0}, "sources": {"a": both.data.sources["a"]}})
    before, read = reader.Reader(config.reader_config(both)), config.resolve_phases(both)
    stages = resume.plan_phases(read, config.resolve_phases(alone), 3)
    after = reader.Reader(config.reader_config(alone, stages))
    assert after.rates(stages[0]) == {"a": 2.0} and after.notes() == []
    follow = [k for k in range(24, 72) if before._segments[0].mixture.locate(k)[0] == "a"][:16]
    for k, number in enumerate(follow, 24):
        np.testing.assert_array_equal(after.example(k)["tokens"], before.example(number)["tokens"])


def test_removing_a_source_is_rejected_if_rows_have_several_examples(tmp_path):
    """Without it, nobody knows how many of its examples were in a row, and thus how many of the others were read."""
    for name in "ab":
        rows = [{"inputs": f"{name} {number}", "targets": "yes"} for number in range(300)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = {name: config.TableInputsTargets(f"{tmp_path}/{name}.jsonl", "inputs", "targets") for name in "ab"}
    packed = config.InputsTargetsConfig(target_length=64, packed=True)
    vocabulary = config.VocabularyConfig("bytes", pad=256, eos=257)
    data = config.DataConfig(f"{tmp_path}/cache", 128, sources, {"a": 1.0, "b": 1.0}, inputs_targets=packed)
    caches.prepare(data, vocabulary, show_progress=False)
    run = dataclasses.replace(tiny.PLAIN, model=tiny.T5, objective=objectives.SpanCorruption(), data=data)
    run = dataclasses.replace(run, vocabulary=vocabulary)
    alone = dataclasses.replace(data, sources={"a": sources["a"]}, mixture={"a": 1.0})
    phases = config.resolve_phases(run)
    reader.Reader(config.reader_config(run, phases))
    with pytest.raises(UserError, match=r"trained on 'b', which the config lacks, .* keep 'b' in config\.data"):
        reader.Reader(config.reader_config(dataclasses.replace(run, data=alone), phases))


def fields(kind, path="", above=()):
    """The dotted paths of all fields of a schema's type, sections and what is in them; a layout in a layout once."""
    if kind in above:
        return
    choices = tuple(built_in(kind).values()) if is_role(kind) else (kind, *typing.get_args(kind))
    for choice in choices:
        if dataclasses.is_dataclass(choice):
            hints = typing.get_type_hints(choice)
            for f in dataclasses.fields(choice):
                name = f"{path}.{f.name}" if path else f.name
                yield name
                yield from fields(hints[f.name], name, (*above, kind))


def test_every_field_of_the_schema_has_a_meaning():
    """Whoever adds a field says in `resume.FIELDS` what its change means to a run that goes on."""
    known = set(fields(config.Run))
    assert {"train.seed", "model.attention.heads", "data.layout.duplicates", "optimizer.b1"} <= known
    assert resume.FIELDS.keys() - {"versions"} <= known, "a field that is no more"
    listed = set(resume.FIELDS)
    opened = {field.rpartition(".")[0] for field in listed}  # What has a part with a name of its own.
    for field in known:
        section, _, _ = field.rpartition(".")
        covered = field in listed or any(field.startswith(f"{name}.") and name not in opened for name in listed)
        assert covered or (field in opened and not section), f"{field} is not in resume.FIELDS"


@pytest.mark.parametrize("kind", [config.AdamWConfig, config.LambConfig, config.AdafactorConfig, config.AdagradConfig])
def test_recipe_fields_keep_the_shapes_of_the_moments(kind):
    def state(optimizer):
        params = {"blocks": {"kernel": jax.ShapeDtypeStruct((2, 16, 16), np.float32)}, "bias": np.zeros(3, np.float32)}
        return jax.eval_shape(optimizers.build(optimizer).init, params)

    for f in dataclasses.fields(kind):
        value = {bool: lambda v: not v, int: lambda v: 8, float: lambda v: v + 0.5 if v < 0.5 else v / 2}
        value |= {str: {"float32": "bfloat16"}.get, tuple: lambda v: (("bias", config.SgdConfig(momentum=0.9), 1.0),)}
        changed = dataclasses.replace(kind(), **{f.name: value[type(f.default)](f.default)})
        same = setup._have_equal_shapes(state(kind()), state(changed))
        assert same or resume.meaning(f"optimizer.{f.name}", kind()) == "fixed", f.name


def test_meanings_of_user_fields_and_of_random_draws():
    class UserOptimizer(config.OptimizerConfig):
        recipe = (*config.OptimizerConfig.recipe, "power")

    meanings = {
        "optimizer.power": "recipe",
        "optimizer.clip_norm": "recipe",
        "optimizer.b1": "fixed",
        "model.own.part": "fixed",
        "objective.own": "fixed",
        "data.layout.b1": "fixed",
        "train.microbatches": "recipe",
        "train.log_every": "free",
    }
    assert {field: resume.meaning(field, UserOptimizer()) for field in meanings} == meanings
