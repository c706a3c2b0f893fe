"""Layers in stages: losses and updates as on one device, what is sent and computed, and what is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import config, models
from plm_jax.common.errors import UserError
from plm_jax.models import pipeline
from plm_jax.models.layers import Dropout
from plm_jax.planning import plan
from plm_jax.runs.programs import Programs
from plm_jax.training import flops
from tests.support import runs
from tests.support.tiny import RUNS


def make(folder, name, stack, **sizes):
    """One of RUNS with another stack, on a mesh; with dropout, or where parameters are shared with LAMB."""
    run = RUNS[name] if stack.groups is None else dataclasses.replace(RUNS[name], optimizer=config.LambConfig())
    dropout = 0.1 if stack.groups is None else 0.0
    run = runs.make(folder, run, dropout, model={"stack": stack}, train={"steps": 4, "phases": ()})
    return runs.make(folder, run, mesh=config.MeshConfig(**({"data": 1} | sizes)))


@pytest.mark.parametrize(
    ("name", "stack", "sizes", "kernel"),
    [
        # Segments, and microbatches of the step; four stages, which use the kernel.
        ("separate", models.StackConfig(layers=4), {"stage": 4, "data": 2}, "flash"),
        # All stages share the parameters of one group of layers, and the pair of blocks in it; by ALBERT's optimizer.
        ("plain", models.StackConfig(layers=4, groups=1, inner=2), {"stage": 2}, "xla"),
    ],
    ids=["segments", "shared"],
)
def test_stages_train_like_one_device(tiny, name, stack, sizes, kernel):
    want_losses, before, want, _, _ = runs.steps(make(tiny, name, stack), 1)
    devices = int(np.prod(list(sizes.values())))
    run = runs.make(tiny, make(tiny, name, stack, **sizes), model={"attention_kernel": kernel})
    got_losses, _, got, job, state = runs.steps(run, devices, before)
    np.testing.assert_allclose(got_losses, want_losses, rtol=1e-5)
    for leaf in want:
        np.testing.assert_allclose(got[leaf], want[leaf], atol=1e-5, err_msg=leaf)
    held = state.params["stack"]["blocks"]["feed_forward"]["up"]["kernel"]
    assert held.sharding.shard_shape(held.shape)[0] == stack.stored_blocks // job.programs.first.mesh.shape["stage"]


def traced(folder, microbatches, **sizes):
    """The program of a step, traced, and what it is of; on as many devices as its mesh takes."""
    run = make(folder, "plain", models.StackConfig(layers=4), **sizes)
    run = runs.make(folder, run, model={"pipeline_microbatches": microbatches})
    programs = Programs(run, jax.devices()[: int(np.prod(list(sizes.values())))])
    (stage,) = programs.phases
    return programs.at(stage).phase_step(stage).trace(*plan.step_inputs(programs, stage))


def test_only_neighboring_stages_communicate(tiny):
    """In the loops all sends are to the next stage or, of gradients, the one before; weights' are summed later."""
    text = traced(tiny, 0, stage=2, data=2).lower().compile().as_text()
    lines = [line for line in text.splitlines() if "closed_call" in line]
    sends = [line for line in lines if " collective-permute(" in line]
    assert sends
    assert all("{{0,2},{1,3}}" in line or "{{2,0},{3,1}}" in line for line in sends)
    others = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all")
    assert not [line for line in lines if any(f" {kind}(" in line for kind in others)]


def test_idle_share_equals_the_formula(tiny):
    """Compares the FLOPs of the stages, since the rest of the step is computed as on one device.

    The idle share is (stages - 1) / (microbatches + stages - 1) (Huang et al. 2019 §2).
    """
    one, some, many = (
        flops.of_program(traced(tiny, microbatches, stage=stages).jaxpr.jaxpr)
        for microbatches, stages in ((0, 1), (2, 2), (8, 2))
    )
    # The stack is computed once for each of 3 ticks with half of the rows each.
    of_stack = (some - one) / (3 / 2 - 1)
    assert one / 2 < of_stack < one
    np.testing.assert_allclose((many - one) / (of_stack + many - one), (2 - 1) / (8 + 2 - 1))


def test_dropout_of_a_row_depends_on_its_number():
    """The dropped values of a row do not depend on the other rows, and rows differ."""
    drop, x = Dropout(0.25), jnp.ones((8, 16, 32))
    whole = drop.apply({}, x, deterministic=False, rngs={"dropout": jax.random.key(0)})
    rows = jnp.array([5, 2])
    some = drop.apply({}, x[rows], rows, deterministic=False, rngs={"dropout": jax.random.key(0)})
    np.testing.assert_array_equal(some, whole[rows])
    assert not np.array_equal(whole[0], whole[1])
    assert set(np.unique(whole)) == {0.0, np.float32(1 / 0.75)}
    assert 0.22 < (whole == 0).mean() < 0.28
    same = Dropout(0.25, broadcast=True).apply({}, x, deterministic=False, rngs={"dropout": jax.random.key(0)})
    assert (same == same[:, :1]).all() and 0 < (same == 0).mean() < 1


def test_gradients_are_zero_if_everything_is_dropped():
    drop, x = Dropout(1.0), jnp.ones((2, 3, 4))
    total = lambda x: drop.apply({}, x, deterministic=False, rngs={"dropout": jax.random.key(0)}).sum()  # noqa: E731
    value, gradient = jax.value_and_grad(total)(x)
    assert value == 0
    np.testing.assert_array_equal(gradient, jnp.zeros_like(x))


@pytest.mark.parametrize(
    ("wanted", "stages", "rows", "count"), [(0, 2, 64, 8), (0, 4, 8, 8), (6, 2, 8, 4), (1, 4, 8, 4)]
)
def test_number_of_microbatches_divides_the_rows(wanted, stages, rows, count):
    assert pipeline.num_microbatches(wanted, stages, rows) == count


def encoder(layers, **fields):
    """Settings of an encoder."""
    return dataclasses.replace(RUNS["roberta"].model, stack=models.StackConfig(layers), **fields)


def xlnet():
    """Settings of an XLNet."""
    return models.XlnetConfig(
        embedding=models.EmbeddingConfig(64, 16),
        attention=models.AttentionConfig(2, 8, models.RelativeSinusoids()),
        feed_forward=models.FeedForwardConfig(16),
        stack=models.StackConfig(4),
    )


@pytest.mark.parametrize(
    ("model", "splits"),
    [
        (encoder(4), True),
        (encoder(4, convolution=models.ConvolutionConfig()), False),
        (encoder(4, head=models.MaskDecoderHead(positions=64)), False),
        (encoder(4, head=models.MaskDecoderHead(positions=64)).with_task(models.SpanHead()), True),
        (xlnet(), False),
        (xlnet().with_task(models.SpanHead()), True),
    ],
)
def test_stages_do_not_split_stacks_of_other_kinds(model, splits):
    assert pipeline.cuts(model, 2) == splits and pipeline.cuts(model, 1)


@pytest.mark.parametrize(
    ("name", "model", "sizes", "says"),
    [
        ("plain", {}, {"stage": 4, "data": 2}, r"mesh.stage=4 .* 2 layers .* use mesh.data="),
        (
            "roberta",
            {"convolution": models.ConvolutionConfig()},
            {"stage": 2, "data": 4},
            r"^mesh\.stage=2 cannot split a convolution, .* 'encoder' .*: use mesh\.data=",
        ),
        ("electra", {}, {"stage": 2, "data": 4}, r"mesh.stage=2 .* 2 and 1 layers"),
        ("elmo", {}, {"stage": 2, "data": 4}, r"mesh.stage=2 .* no layers .*'elmo'"),
        ("plain", {"pipeline_microbatches": 3}, {"stage": 2}, r"pipeline_microbatches is 3, .* 2, 4, 8, or 0"),
    ],
)
def test_indivisible_stages_are_rejected(tiny, name, model, sizes, says):
    run = dataclasses.replace(RUNS[name], mesh=config.MeshConfig(**({"data": 1} | sizes)))
    run = runs.make(tiny, run, model=dataclasses.replace(run.model, **model))
    with pytest.raises(UserError, match=says):
        Programs(run, jax.devices()[: int(np.prod(list(sizes.values())))])
