"""A user's optimizer with optax's masks and partitions, on meshes and resumed, equals optax on one device."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from plm_jax import config
from plm_jax.losses import means
from plm_jax.planning import plan
from plm_jax.runs import checkpoints, loop, resume, setup
from plm_jax.runs.programs import Programs
from tests.support import runs


def is_matrix(params):
    """Returns whether each parameter is a matrix of a layer, by its path and number of axes."""
    return jax.tree.map_with_path(lambda path, leaf: path[-1].key == "kernel" and leaf.ndim == 3, params)


def labels(params):
    return jax.tree.map(lambda matrix: "matrices" if matrix else "rest", is_matrix(params))


def numbers(params):
    of_layers = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=2)
    return jax.tree.map(lambda matrix: of_layers if matrix else None, is_matrix(params))


@dataclasses.dataclass(frozen=True)
class Masked(config.OptimizerConfig):
    """Momentum for the matrices only, and weight decay for everything except vectors."""

    kind = "masked"

    def transformations(self):
        decay = optax.add_decayed_weights(0.1, mask=lambda params: jax.tree.map(lambda leaf: leaf.ndim > 2, params))
        return optax.masked(optax.trace(0.9), is_matrix), decay


@dataclasses.dataclass(frozen=True)
class Partitioned(config.OptimizerConfig):
    """Our Adafactor for the matrices, and Adam for the rest."""

    kind = "partitioned"

    def transformations(self):
        matrices = optax.chain(*config.AdafactorConfig(min_dim_size_to_factor=16).transformations())
        return (optax.partition({"matrices": matrices, "rest": optax.scale_by_adam(eps=1e-6)}, labels),)


@dataclasses.dataclass(frozen=True)
class ScheduledMuon(config.OptimizerConfig):
    """Muon for each layer of the stacked matrices, Adam for the rest, with its own schedule."""

    kind = "scheduled_muon"

    def transformations(self):
        muon = optax.chain(
            optax.contrib.scale_by_muon(eps=1e-6, weight_dimension_numbers=numbers),
            optax.scale_by_schedule(lambda count: 1.0 / (1.0 + count)),
        )
        return (optax.partition({"matrices": muon, "rest": optax.scale_by_adam(eps=1e-6)}, labels),)


ADAM = config.AdamWConfig(epsilon=1e-6, clip_norm=0.5)
GROUPED = dataclasses.replace(ADAM, groups=((config.HIDDEN_MATRICES, config.MuonConfig(epsilon=1e-6), 0.5),))
OPTIMIZERS = [Masked(clip_norm=0.5), Partitioned(clip_norm=0.0), ScheduledMuon(clip_norm=0.5), GROUPED]
RESUMED_ON = {
    "partitioned": {"data": 1, "fsdp": 2},
    "scheduled_muon": {},
    "adamw": {"fsdp": 2},
}
STEPS, SAVED, RATE = 5, 3, 0.01


def make(tiny, optimizer, steps, **mesh):
    train = {"steps": steps, "batch_size": 8}
    schedule = config.ConstantSchedule(RATE)
    return runs.make(tiny, optimizer=optimizer, schedule=schedule, train=train, mesh=config.MeshConfig(**mesh))


def by_optax(job, optimizer):
    """Returns the parameters that optax alone computes, unsharded, from the gradients of the batch's mean loss."""
    clip = optax.clip_by_global_norm(optimizer.clip_norm) if optimizer.clip_norm else optax.identity()
    transformations = optimizer.transformations()
    if optimizer.groups:
        ((_, muon, factor),) = optimizer.groups
        matrices = optax.chain(*muon.transformations(), optax.scale(factor))
        rest = optax.chain(*transformations)
        transformations = (optax.partition({"matrices": matrices, "rest": rest}, labels),)
    rule = optax.chain(clip, *transformations, optax.scale(-RATE))
    loss, model = job.program.updates[0].loss, job.program.module()
    params = jax.device_get(job.program.new_state(job.run.train.seed).params)

    def mean(params, batch):
        terms, _, _ = loss(model, params, batch, None, {})
        return means.in_units(loss, terms, counts := loss.weights(model, batch)) / means.unit(counts)

    @jax.jit
    def update(params, state, batch):
        updates, state = rule.update(jax.grad(mean)(params, batch), state, params)
        return optax.apply_updates(params, updates), state

    state = rule.init(params)
    for batch, _ in runs.batches(job, 0):
        batch = {name: jnp.asarray(value) for name, value in batch.items() if name != "digest"}
        params, state = update(params, state, batch)
    return runs.flat(params)


@pytest.mark.parametrize("optimizer", OPTIMIZERS[1:], ids=lambda optimizer: optimizer.kind)
def test_sharded_and_resumed_training_equals_optax(optimizer, tiny, tmp_path):
    expected = by_optax(setup.build(make(tiny, optimizer, STEPS), devices=jax.devices()[:1]), optimizer)
    loop.pretrain(make(tiny, optimizer, SAVED, data=1, fsdp=4, tensor=2), str(tmp_path))
    run = make(tiny, optimizer, STEPS, **RESUMED_ON[optimizer.kind])
    resumed = resume.find_latest_checkpoint(str(tmp_path), run.train.steps)
    job = setup.build(run, resumed, devices=jax.devices()[: 2 if RESUMED_ON[optimizer.kind] else 1])

    def read(step, like):
        return checkpoints.read_state(tmp_path / "checkpoints" / str(step), like)

    state, notes = setup.restored_state(job, resumed, read)
    assert notes == [f"resumed after step {SAVED}"]  # Resumes with its moments.
    train_step = job.program.phase_step(job.programs.phases[0])
    for number, (batch, _) in enumerate(runs.batches(job, SAVED), SAVED):
        state, _ = train_step(state, batch, *job.programs.inputs(number))
    for name, leaf in runs.flat(state.params).items():
        np.testing.assert_allclose(leaf, expected[name], rtol=1e-3, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.kind)
def test_moments_are_sharded_like_the_parameters(optimizer, tiny):
    programs = Programs(make(tiny, optimizer, STEPS, data=1, fsdp=4, tensor=2))
    kernel = ("stack", "blocks", "feed_forward", "up", "kernel")
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(programs.first.abstract_state.optimizer):
        keys = tuple(entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey))
        if keys[-len(kernel) :] == kernel and leaf.ndim == 3:
            found.append(leaf.sharding.spec)
    params = programs.first.abstract_state.params
    for key in kernel:
        params = params[key]
    # Factored moments have one axis less.
    assert found == ([] if optimizer.kind == "partitioned" else [params.sharding.spec])
    assert found or optimizer.kind == "partitioned"
    report = plan.plan(dataclasses.replace(programs.run, mesh=config.MeshConfig()), "none")
    sizes = [leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(programs.first.published_state.optimizer)]
    assert report["bytes_per_device"]["optimizer"] == sum(sizes)
