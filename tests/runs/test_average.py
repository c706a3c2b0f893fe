"""Moving averages of the parameters: the closed form, checkpoints, validation, evaluation and conversion."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plm_jax
from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.runs import checkpoint_formats, checkpoints, loop, setup
from plm_jax.training import spikes
from plm_jax.training.program import fitted
from tests.support import runs
from tests.support import tiny as tiny_runs

DECAY, WARMUP = 0.75, 2
AVERAGE = config.AverageConfig(DECAY, WARMUP)


def averaged(tiny, average=AVERAGE, train=None, **sections):
    evaluation = config.EvaluationConfig(every=3, batch_size=8)
    train = {"average": average, **(train or {})}
    return runs.make(tiny, tiny_runs.RUNS["dropout"], train=train, evaluation=evaluation, **sections)


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    """Run directory of six steps."""
    workdir = tmp_path_factory.mktemp("average") / "run"
    loop.pretrain(averaged(tiny), str(workdir))
    return workdir


@pytest.mark.parametrize(
    ("devices", "changes"),
    [
        (1, {"train": {"trainable": (r"stack/blocks/1/.*",)}}),
        (8, {"mesh": config.MeshConfig(fsdp=4, tensor=2)}),
    ],
    ids=["frozen", "mesh"],
)
def test_average_equals_its_closed_form(devices, changes, tiny):
    job = setup.build(averaged(tiny, **changes), devices=jax.devices()[:devices])
    state = setup.starting_state(job, None)[0]
    train_step, history = job.program.phase_step(job.programs.phases[0]), []
    for number, (batch, _) in enumerate(runs.batches(job, 0)):
        state, _ = train_step(state, batch, *job.programs.inputs(number))
        published = fitted(state, job.program.published_state)
        history.append(runs.flat(published.params))
    # After the warm-up the average begins with the parameters of its last step.
    begin, later = history[WARMUP - 1], history[WARMUP:]
    count = len(later)
    for name, leaf in runs.flat(published.average).items():
        terms = [(1 - DECAY) * DECAY ** (count - 1 - k) * params[name] for k, params in enumerate(later)]
        np.testing.assert_allclose(leaf, DECAY**count * begin[name] + sum(terms), atol=1e-6, err_msg=name)
        assert leaf.dtype == np.float32


def test_skipped_steps_keep_the_average(tiny):
    job = setup.build(averaged(tiny, config.AverageConfig(DECAY)), devices=jax.devices()[:1])
    state, train_step = setup.starting_state(job, None)[0], job.program.phase_step(job.programs.phases[0])
    batches = runs.batches(job, 0)
    leaves, tree = jax.tree.flatten(state.params)
    before = jax.device_get(state.average)
    lost = state.replace(params=jax.tree.unflatten(tree, [leaves[0] * jnp.nan, *leaves[1:]]))
    after, metrics = train_step(lost, next(batches)[0], *job.programs.inputs(0))
    assert int(metrics["incident"]) == spikes.LOST
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(after.average), before)


def test_resumed_average_is_bit_identical(trained, tiny, tmp_path):
    resumed = runs.copy_at(trained, tmp_path / "resumed", 3)
    loop.pretrain(averaged(tiny), str(resumed))
    whole, parts = (checkpoints.load_params(str(workdir), average=True).params for workdir in (trained, resumed))
    weights = runs.flat(loaded(checkpoints.load_params(str(trained)).params))
    for name, leaf in runs.flat(loaded(whole)).items():
        np.testing.assert_array_equal(leaf, runs.flat(loaded(parts))[name], err_msg=name)
    assert any((leaf != weights[name]).any() for name, leaf in runs.flat(loaded(whole)).items())
    # A run may begin or stop to average when it resumes.
    stopped = runs.copy_at(trained, tmp_path / "stopped", 3)
    loop.pretrain(averaged(tiny, None), str(stopped))
    with pytest.raises(UserError, match=r"has no average of the weights: its run was trained without"):
        checkpoints.load_params(str(stopped), average=True)
    loop.pretrain(averaged(tiny, train={"steps": 7}), str(stopped))
    assert checkpoints.load_params(str(stopped), average=True).params.keys() == whole.keys()
    assert runs.column(stopped, "train/loss")[6] == runs.column(trained, "train/loss")[6]


def loaded(params):
    """Returns the arrays of a checkpoint."""
    return jax.tree.map(lambda leaf: leaf[...], params)


@pytest.mark.parametrize("item", ["params", "average"])
def test_damage_of_the_other_weights_does_not_matter(item, trained, tmp_path):
    copy = runs.copy_at(trained, tmp_path / "copy", 3)
    path = max((copy / "checkpoints/3" / item).rglob("d/*"), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(UserError, match="damaged"):
        checkpoints.load_params(str(copy), average=item == "average")
    read = loaded(checkpoints.load_params(str(copy), average=item != "average").params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(read))


def test_both_are_validated_under_their_own_names(trained):
    row = runs.rows(trained)[-1]
    names = {name.removeprefix("validation/") for name in row if name.startswith("validation/")}
    of_average = {name.removeprefix("average_of_weights/") for name in names if name.startswith("average_of_weights/")}
    assert {"loss", "a/loss", "b/loss"} <= of_average
    assert names == of_average | {f"average_of_weights/{name}" for name in of_average}
    assert row["validation/loss"] != row["validation/average_of_weights/loss"]


def test_average_is_evaluated_and_converted_by_choice(trained, verb, tmp_path):
    metrics = {}
    for flag in ("--noaverage", "--average"):
        output = tmp_path / f"{flag}.json"
        finished = verb("evaluate", f"--checkpoint={trained}", flag, f"--output={output}")
        assert finished.status == 0, finished.err
        metrics[flag] = json.loads(output.read_text())
    row = runs.rows(trained)[-1]
    assert metrics["--noaverage"]["a"]["loss"] == pytest.approx(row["validation/a/loss"], rel=1e-5)
    assert metrics["--average"]["a"]["loss"] == pytest.approx(row["validation/average_of_weights/a/loss"], rel=1e-5)
    logged = [json.loads(line) for line in (trained / "evaluation.jsonl").read_text().splitlines()]
    assert {line["a/loss"] for line in logged if "a/loss" in line} == {metrics["--noaverage"]["a"]["loss"]}

    finished = verb("convert", f"--source={trained}", f"--target={tmp_path / 'converted'}", "--average")
    assert finished.status == 0, finished.err
    expected = runs.flat(loaded(checkpoints.load_params(str(trained), average=True).params))
    for name, leaf in runs.flat(plm_jax.load(str(tmp_path / "converted")).params).items():
        np.testing.assert_array_equal(leaf, expected[name], err_msg=name)
    with (
        pytest.raises(UserError, match="is not a run or a checkpoint, and has no average"),
        checkpoint_formats.opened(str(tmp_path / "converted"), average=True),
    ):
        pass


def test_average_begins_with_loaded_weights(trained, tiny):
    run = averaged(tiny, config.AverageConfig(DECAY), {"init_from": str(trained), "seed": 9})
    state, _ = runs.start(run)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.average), jax.device_get(state.params))


def test_average_of_frozen_parameters_is_exact():
    frozen = {"kernel": np.random.default_rng(0).normal(size=1000).astype(np.float32)}
    average = config.AverageConfig(0.9999).update(frozen, frozen, jnp.int32(5))
    np.testing.assert_array_equal(average["kernel"], frozen["kernel"])


def test_best_weights_have_no_average(tiny, tmp_path):
    evaluation = config.EvaluationConfig(every=1, batch_size=8, select="a/loss")
    train = {"average": AVERAGE, "steps": 1}
    run = runs.make(tiny, tiny_runs.RUNS["dropout"], train=train, evaluation=evaluation)
    loop.pretrain(run, str(tmp_path / "run"))
    with pytest.raises(UserError, match="the best weights are saved without it: name the run or one of its numbered"):
        checkpoints.load_params(str(tmp_path / "run/checkpoints/best"), average=True)
