"""Runs whose steps make several updates: the decoupled training of replaced token detection."""

import dataclasses
import re

import jax
import numpy as np
import optax
import pytest
from flax import traverse_util

from plm_jax import config, losses
from plm_jax.common import keys
from plm_jax.common.errors import UserError
from plm_jax.models import electra
from plm_jax.runs import setup
from plm_jax.training import step
from plm_jax.training.program import fitted
from tests.runs.test_references import assert_resumed_equals_whole, write
from tests.support import runs
from tests.support import tiny as tiny_runs

SHARED = r"(token|position|token_type)_embedding|embedding_norm/.*"
GENERATOR = config.UpdateConfig(
    "generator", losses.ReplacedTokenTerm("generator"), (SHARED, "generator/.*"), config.AdamWConfig(clip_norm=0.5)
)
DISCRIMINATOR = config.UpdateConfig(
    "discriminator", losses.ReplacedTokenTerm("discriminator"), (rf"(?!generator/|{SHARED}).*",)
)


def decoupled(tiny, train=None, generator=GENERATOR, discriminator=DISCRIMINATOR, **sections):
    """Returns a run of a small ELECTRA whose generator and discriminator have updates of their own."""
    train = {"updates": (generator, discriminator), **(train or {})}
    return runs.make(tiny, tiny_runs.RUNS["electra"], train=train, **sections)


def leaves(params, shared=False, generator=False):
    """Returns the leaves of a part of the parameters by name."""
    flat = {name: leaf for name, leaf in runs.flat(params).items() if bool(re.fullmatch(SHARED, name)) == shared}
    return {name: leaf for name, leaf in flat.items() if name.startswith("generator/") == generator}


def test_the_second_update_is_the_discriminator_on_samples_of_the_first(tiny):
    plain = config.SgdConfig(clip_norm=0.0)
    run = decoupled(
        tiny,
        {"steps": 1},
        dataclasses.replace(GENERATOR, optimizer=plain),
        dataclasses.replace(DISCRIMINATOR, optimizer=plain),
        dropout=0.0,
        schedule=config.ConstantSchedule(0.5),
    )
    job = setup.build(run, devices=jax.devices()[:1])
    state, _ = setup.starting_state(job, None)
    before = jax.device_get(state.params)
    batch, _ = next(runs.batches(job, 0))
    rows = {name: np.asarray(array) for name, array in batch.items() if name != "digest"}
    after, metrics = job.program.phase_step(job.programs.phases[0])(state, batch, *job.programs.inputs(0))
    module = job.program.module(0.0)

    # The gradient of a plain masked language model, and samples of it with the step's key.
    sample_keys = step.rngs(keys.from_seed(run.train.seed), 0, 0, ["sample"])
    first, second = (update.loss for update in job.program.updates)
    assert isinstance(first, losses.ReplacedTokenTermLoss)
    _, _, carry = first(module, before, rows, sample_keys, {})

    def generator_loss(params):
        generator, generator_params = electra.generator(module, params)
        total, _, _ = losses.MaskedLMLoss()(generator, generator_params, rows, None, {})
        return total["masked_lm"] / rows["target_weights"].sum()

    value, gradient = jax.value_and_grad(generator_loss)(before)
    np.testing.assert_allclose(metrics["loss/generator"], value, rtol=1e-5)
    moved = jax.tree.map(lambda old, new: old - 0.5 * new, before, gradient)
    for part in ({"shared": True}, {"generator": True}):
        expected, actual = leaves(moved, **part), leaves(after.params, **part)
        assert expected
        for name, leaf in expected.items():
            np.testing.assert_allclose(actual[name], leaf, rtol=1e-5, atol=1e-6, err_msg=name)

    text, corrupted = rows["tokens"].copy(), rows["tokens"].copy()
    for row, slot in zip(*np.nonzero(rows["target_weights"]), strict=True):
        position = rows["target_positions"][row, slot]
        text[row, position] = rows["targets"][row, slot]
        corrupted[row, position] = carry["sampled"][row, slot]
    assert (text != corrupted).any()

    def discriminator_loss(params):
        inputs = {name: rows[name] for name in ("mask", "token_types", "segment_ids", "positions") if name in rows}
        states = module.apply({"params": params}, corrupted, **inputs, method="features")
        logits = module.apply({"params": params}, states, "discriminator", method="head_output")
        nll = optax.sigmoid_binary_cross_entropy(logits, (text != corrupted).astype(np.float32))
        return second.discriminator_weight * (nll * rows["mask"]).sum() / rows["mask"].sum()

    # The discriminator reads the tables that the generator's update has changed.
    middle = traverse_util.flatten_dict(before, sep="/") | leaves(moved, shared=True)
    middle = traverse_util.unflatten_dict(middle, sep="/")
    value, gradient = jax.value_and_grad(discriminator_loss)(middle)
    np.testing.assert_allclose(metrics["loss/discriminator"], value, rtol=1e-5)
    moved = jax.tree.map(lambda old, new: old - 0.5 * new, before, gradient)
    for name, leaf in leaves(moved).items():
        np.testing.assert_allclose(leaves(after.params)[name], leaf, rtol=1e-5, atol=1e-5, err_msg=name)
    assert abs(discriminator_loss(before) - value) > 1e-4 * value


def test_generator_does_not_depend_on_the_update_of_the_discriminator(tiny):
    other = dataclasses.replace(DISCRIMINATOR, optimizer=config.SgdConfig(momentum=0.5))
    finals = [runs.steps(decoupled(tiny, {"steps": 3}, discriminator=each), 1)[2] for each in (DISCRIMINATOR, other)]
    of_generator = {name for name in finals[0] if name.startswith("generator/") or re.fullmatch(SHARED, name)}
    for name, leaf in finals[0].items():
        assert np.array_equal(finals[1][name], leaf) == (name in of_generator), name


def test_resumed_run_equals_uninterrupted_one(tiny_copy, verb, tmp_path):
    train = {"steps": 6, "microbatches": 2, "average": config.AverageConfig(decay=0.9)}
    run = decoupled(tiny_copy, train, checkpoint=config.CheckpointConfig(save_every=2, keep_last=9))
    assert_resumed_equals_whole(run, tiny_copy, verb, tmp_path)
    row = runs.rows(tmp_path / "whole")[-1]
    assert row["train/loss"] == pytest.approx(row["train/loss/generator"] + row["train/loss/discriminator"], rel=1e-5)


def test_changed_updates_are_refused_or_begin_with_new_moments(tiny_copy, verb, tmp_path):
    run = decoupled(tiny_copy, {"steps": 2})
    write(tiny_copy, run)
    command = f"--config={tiny_copy}/tiny.py:distilled", f"--workdir={tmp_path / 'run'}"
    finished = verb("pretrain", *command)
    assert finished.status == 0, finished.err
    write(tiny_copy, decoupled(tiny_copy, {"steps": 4, "updates": (GENERATOR,)}))
    refused = verb("pretrain", *command)
    assert refused.status == 2 and len(refused.errors) == 1 and "train.updates" in refused.errors[0], refused.err
    allowed = verb("pretrain", *command, "--allow_changes")
    assert allowed.status == 0 and "the moments start from zero" in allowed.err, allowed.err
    assert re.search(r"no update trains \d+ of the tensors, such as ", allowed.err)
    assert runs.rows(tmp_path / "run")[-1]["step"] == 4


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"updates": (GENERATOR, GENERATOR)}, "give each a name of its own"),
        ({"updates": (dataclasses.replace(GENERATOR, name="a/b"),)}, "give each a name of its own"),
        ({"loss": losses.ReplacedTokenTerm()}, "leave out config.train.loss and config.train.trainable"),
        ({"loss": losses.ReplacedTokenTerm(), "updates": ()}, "set it as the loss of one of config.train.updates"),
        ({"trainable": ("stack/.*",)}, "leave out config.train.loss and config.train.trainable"),
        ({"updates": (DISCRIMINATOR, GENERATOR)}, "put an update with the term 'generator' before it"),
        (
            {"updates": (dataclasses.replace(GENERATOR, trainable=("heads/.*",)),)},
            "update 'generator' of config.train.updates has 'heads/.*', which matches no parameter name",
        ),
        (
            {"updates": (dataclasses.replace(GENERATOR, loss=losses.Distillation()),)},
            "set config.train.references.teacher.source",
        ),
    ],
    ids=["names", "slash", "loss", "single", "trainable", "order", "pattern", "reference"],
)
def test_unsuitable_updates_are_one_line(tiny, train, message):
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        runs.steps(decoupled(tiny, train), 1)
    assert "\n" not in str(caught.value)


def test_checkpoints_have_the_moments_of_both(tiny):
    job = setup.build(decoupled(tiny), devices=jax.devices()[:1])
    state, _ = setup.starting_state(job, None)
    published = fitted(state, job.program.published_state)
    generator, discriminator = published.optimizer
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (generator, discriminator)]
    parts = [leaves(published.params, **part) for part in ({"shared": True}, {"generator": True}, {})]
    of_shared, of_generator, of_discriminator = (sum(leaf.size for leaf in part.values()) for part in parts)
    # Two moments per parameter, and Adam's count and the number of steps.
    assert sizes == [2 * (of_shared + of_generator) + 2, 2 * of_discriminator + 2]
