"""`train.trainable`, `optimizer.layer_decay`, `train.reinitialize_top`: what moves, and how far."""

import dataclasses

import jax
import numpy as np
import pytest

from plm_jax import config, models
from plm_jax.common.errors import UserError
from plm_jax.models import registry
from plm_jax.runs import checkpoints, loop, setup
from plm_jax.runs.programs import Programs
from plm_jax.training import layer_decay, optimizers
from plm_jax.training.trainable import Trainable
from tests.support import runs
from tests.support import tiny as tiny_config

# The top layer's attention and feed-forward, the norm after it, and, tied to the head, no embedding.
TOP = (r"stack/blocks/1/.*", "stack/final_norm/.*")
OPTIMIZERS = [config.AdamWConfig(weight_decay=0.1), config.AdafactorConfig(min_dim_size_to_factor=16)]


def made(folder, steps=3, trainable=TOP, **sections):
    """A run of the tiny decoder."""
    train = {"steps": steps, "trainable": trainable} | sections.pop("train", {})
    return runs.make(folder, train=train, **sections)


def moved(before, after):
    """The names of the tensors that differ in a bit, layers of stacks by their numbers."""
    before, after = by_layer(before), by_layer(after)
    return {name for name, tensor in before.items() if tensor.tobytes() != after[name].tobytes()}


def by_layer(leaves):
    """Returns the tensors of leaves by name, layers of stacks by their numbers."""
    tensors = {}
    for name, leaf in leaves.items():
        head, stacked, rest = name.partition("/blocks/")
        coverage, _, later = rest.partition("/")
        first, rest = (1, later) if coverage.startswith("1:") else (0, rest)
        rows = {f"{head}{stacked}{first + i}/{rest}": leaf[i] for i in range(len(leaf))} if stacked else {name: leaf}
        tensors |= rows
    return tensors


def loaded(workdir):
    """The parameters of the last checkpoint, on the host."""
    return jax.tree.map(np.asarray, checkpoints.load_params(str(workdir)).params)


def is_top(name):
    return name.startswith(("stack/blocks/1/", "stack/final_norm/"))


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda settings: settings.kind)
def test_only_trained_parameters_move_and_have_moments(optimizer, tiny):
    _, before, after, _, state = runs.steps(made(tiny, steps=50, optimizer=optimizer), 1)
    want = {n for n in moved(before, {k: v + 1 for k, v in before.items()}) if is_top(n)}
    assert moved(before, after) == want
    moments = jax.tree_util.tree_leaves_with_path(state.optimizer)
    kept = [(jax.tree_util.keystr(path), leaf) for path, leaf in moments if leaf.ndim]
    assert kept and all("'blocks'" in path or "'final_norm'" in path for path, _ in kept)
    assert all(leaf.shape[0] == 1 for path, leaf in kept if "'blocks'" in path)


def test_layers_without_a_norm_are_named_by_their_numbers(tiny):
    """The first layer of this model has no norm before its attention, so that a leaf has a row less than layers."""
    patterns = ("stack/blocks/[02]/attention_norm/.*", "stack/blocks/0/feed_forward_norm/.*")
    run = made(tiny, run=tiny_config.RUNS["modernbert"], trainable=patterns, optimizer=config.AdamWConfig())
    _, before, after, job, state = runs.steps(run, 1)
    expected = {"stack/blocks/2/attention_norm/scale", "stack/blocks/0/feed_forward_norm/scale"}
    assert before["stack/blocks/1:3/attention_norm/scale"].shape == (2, 32)
    assert moved(before, after) == expected == set(job.program.tensor_names())
    assert {leaf.shape for leaf in jax.tree.leaves(state.optimizer) if leaf.ndim} == {(1, 32)}


KINDS = [*OPTIMIZERS, config.LambConfig(), config.AdagradConfig(clip_norm=1.0), config.SgdConfig(momentum=0.9)]


@pytest.mark.parametrize("settings", KINDS, ids=lambda settings: settings.kind)
def test_optimizers_update_a_subset_like_a_whole_model(settings):
    rng = np.random.default_rng(0)
    params = {"stack": {"blocks": {"kernel": rng.normal(size=(3, 20, 20)).astype(np.float32)}}, "head": np.ones(3)}
    part = Trainable(("stack/blocks/[12]/.*",))
    grads = {"stack": {"blocks": {"kernel": rng.normal(size=(2, 20, 20)).astype(np.float32)}}}
    of_part = optimizers.build(settings, part)
    whole = optimizers.build(settings)
    got, state = of_part.update(grads, of_part.init(params), params, learning_rate=0.1)
    trained = part.of(params)
    want, want_state = whole.update(grads, whole.init(trained), trained, learning_rate=0.1)
    for one, other in zip(jax.tree.leaves((got, state)), jax.tree.leaves((want, want_state)), strict=True):
        np.testing.assert_array_equal(one, other)


SWITCHES = {
    "all at once": ({"fsdp": 4, "tensor": 2, "data": 1, "gather": "step"}, {"microbatches": 2}, {"scan_layers": False}),
    "stages": ({"stage": 2, "fsdp": 2, "data": 1}, {}, {}),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_meshes_and_speed_settings_train_the_same_parameters(name, tiny):
    mesh, train, model = SWITCHES[name]
    trainable = ("stack/.*",) if name == "stages" else TOP
    devices = int(np.prod([size for size in mesh.values() if isinstance(size, int)]))
    one = made(tiny, trainable=trainable)
    other = made(tiny, trainable=trainable, mesh=config.MeshConfig(**mesh), train=train, model=model)
    losses, before, after, _, _ = runs.steps(other, devices)
    want_losses, _, want, _, _ = runs.steps(one, 1)
    np.testing.assert_allclose(losses, want_losses, rtol=1e-5)
    for leaf, value in want.items():
        np.testing.assert_allclose(after[leaf], value, rtol=1e-4, atol=1e-5, err_msg=leaf)
    parts = tuple(pattern.removesuffix(".*") for pattern in trainable)
    assert moved(before, after) and all(own.startswith(parts) for own in moved(before, after))


def test_stages_cannot_split_partly_trained_stacks(tiny):
    with pytest.raises(UserError, match=r"leaves out layers of stack/blocks/\S+, which mesh.stage=2 cuts"):
        Programs(made(tiny, mesh=config.MeshConfig(stage=2, data=1)), jax.devices()[:2]).check_parameters()


def test_unmatched_patterns_are_rejected(tiny, tmp_path):
    with pytest.raises(UserError, match=r"config.train.trainable has 'stack/blocks/2/\.\*', which matches no param"):
        Programs(made(tiny, trainable=("token_embedding", "stack/blocks/2/.*")), jax.devices()[:1]).check_parameters()
    with pytest.raises(UserError, match=r"'stack/\(' is not a valid regular expression"):
        setup.build(made(tiny, trainable=("stack/(",)), devices=jax.devices()[:1])


def test_selected_layers_are_merged_into_their_leaf():
    tree = {"stack": {"blocks": {"kernel": np.arange(1.0, 33.0).reshape(8, 4)}}, "head": np.ones(3)}
    part = Trainable(("stack/blocks/[0235]/kernel",))
    taken = part.of(tree)
    np.testing.assert_array_equal(taken["stack"]["blocks"]["kernel"][:, 0], [1, 9, 13, 21])
    put = part.put(tree, jax.tree.map(lambda leaf: -leaf, taken))
    np.testing.assert_array_equal(put["stack"]["blocks"]["kernel"][:, 0], [-1, 5, -9, -13, 17, -21, 25, 29])
    assert taken.keys() == {"stack"} and put["head"] is tree["head"]


def test_resuming_is_exact_and_rejects_other_parameters(tiny, tmp_path):
    run = made(tiny, steps=4, checkpoint={"save_every": 2})
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    loop.pretrain(run, str(whole))
    runs.copy_at(whole, parts, 2)
    other = dataclasses.replace(run, train=dataclasses.replace(run.train, trainable=(".*",)))
    with pytest.raises(UserError, match=r"train\.trainable was .*--allow_changes"):
        loop.pretrain(other, str(parts))
    loop.pretrain(run, str(parts))
    for name in ("train/loss", "train/grad_norm"):
        assert runs.column(whole, name) == runs.column(parts, name)
    for name, leaf in runs.flat(loaded(whole)).items():
        np.testing.assert_array_equal(leaf, runs.flat(loaded(parts))[name], err_msg=name)


def test_top_layers_are_reinitialized(tiny, tmp_path):
    loop.pretrain(made(tiny, steps=1, trainable=(".*",)), str(tmp_path / "before"))
    before, train = runs.flat(loaded(tmp_path / "before")), {"init_from": str(tmp_path / "before"), "seed": 7}

    def job_of(layers):
        run = made(
            tiny, trainable=(".*",), train=train | {"reinitialize_top": layers}, mesh=config.MeshConfig(fsdp=2, data=1)
        )
        return setup.build(run, devices=jax.devices()[:2])

    def started(job):
        state, notes = setup.starting_state(job, None)
        return runs.flat(state.params), notes

    params, notes = started(job := job_of(1))
    fresh = runs.flat(job.program.new_state(job.run.train.seed).params)
    assert notes[-1] == "initialized randomly: the top 1 layers of stack"
    for name, leaf in params.items():
        stays = leaf[:1] if "/blocks/" in name else leaf
        np.testing.assert_array_equal(stays, before[name][: len(stays)], err_msg=name)
        if "/blocks/" in name:
            np.testing.assert_array_equal(leaf[1:], fresh[name][1:], err_msg=name)
    for name, leaf in started(job_of(2))[0].items():
        np.testing.assert_array_equal(leaf, fresh[name] if "/blocks/" in name else before[name], err_msg=name)
    with pytest.raises(UserError, match=r"reinitialize_top is 3: stack has 2 layers; choose at most 2$"):
        started(job_of(3))
    with pytest.raises(UserError, match=r"config.train.init_names has 'nothing', which matches no parameter name"):
        run = made(tiny, trainable=(".*",), train=train | {"init_names": (".*", "nothing")})
        setup.starting_state(setup.build(run, devices=jax.devices()[:1]), None)


DECAY = 0.5
# By hand: of each tensor n + 2 - d.
ABOVE = {
    "MODEL": {"token_embedding": 4, "stack/blocks/0/": 3, "stack/blocks/1/": 2, "stack/final_norm/": 1},
    "MODERNBERT": {
        **{"token_embedding": 5, "stack/blocks/0/": 4, "stack/blocks/1/": 3, "stack/blocks/2/": 2},
        **{"stack/blocks/1/attention_norm/": 3, "stack/blocks/2/attention_norm/": 2, "stack/final_norm/": 1},
    },
    "ALBERT": {"embedding_projection/": 6, "stack/blocks/0/": 4, "stack/blocks/1/": 2, "pooler/": 0, "head_norm/": 0},
    "T5": {
        **{"token_embedding": 4, "encoder/blocks/0/": 3, "encoder/blocks/1/": 2, "encoder/final_norm/": 1},
        **{"encoder/relative_bias": 4, "decoder/blocks/0/": 3, "decoder/blocks/1/": 2, "head": 0},
    },
    "ELECTRA": {
        **{"embedding_norm/": 4, "stack/blocks/0/": 3, "generator/stack/blocks/0/": 2, "discriminator/": 0},
        **{"generator/embedding_projection/": 4, "generator/head_norm/": 0},
    },
}


def test_convolution_has_the_rate_of_the_first_layer_and_mask_decoder_that_of_heads():
    model = dataclasses.replace(
        tiny_config.BERT,
        attention=dataclasses.replace(tiny_config.BERT.attention, position=models.Disentangled(8, buckets=4)),
        stack=models.StackConfig(3),
        convolution=models.ConvolutionConfig(),
        head=models.MaskDecoderHead(positions=8),
        pooler=models.NoHead(),
    )
    factors = by_layer(runs.flat(layer_decay.factors(model, DECAY, registry.shapes(model))))
    above = {"stack/convolve/": 4, "stack/blocks/0/": 4, "stack/blocks/2/": 2, "stack/position_embedding": 0}
    for prefix, power in (above | {"stack/relative_embedding": 5, "token_embedding": 5}).items():
        of_prefix = {factor.item() for tensor, factor in factors.items() if tensor.startswith(prefix)}
        assert of_prefix == {DECAY**power}, prefix


@pytest.mark.parametrize("name", ABOVE)
def test_rates_fall_from_the_heads_to_the_embeddings(name):
    model = getattr(tiny_config, name)
    factors = by_layer(runs.flat(layer_decay.factors(model, DECAY, registry.shapes(model))))
    for prefix, above in ABOVE[name].items():
        of_prefix = {factor.item() for tensor, factor in factors.items() if tensor.startswith(prefix)}
        assert of_prefix == {DECAY**above}, prefix


@pytest.mark.parametrize("groups", [None, 1])
def test_with_sgd_each_layer_moves_by_its_rate_times_the_gradient(groups, tiny):
    rate = 0.5
    settings = dataclasses.replace(tiny_config.MODEL, stack=models.StackConfig(layers=2, groups=groups))

    def update(decay):
        run = made(
            tiny,
            steps=1,
            trainable=(".*",),
            model=settings,
            schedule=config.ConstantSchedule(rate),
            optimizer=config.SgdConfig(layer_decay=decay),
        )
        _, before, after, job, _ = runs.steps(run, 1)
        return {name: after[name] - before[name] for name in before}, job.programs.notes()

    (whole, _), (decayed, notes) = update(1.0), update(DECAY)
    above = {0: 2} if groups else {0: 3, 1: 2}
    for name, gradient in whole.items():
        layers = above if "/blocks/" in name else {...: 1 if "final_norm" in name else 4}
        for layer, power in layers.items():
            want = DECAY**power * gradient[layer]
            np.testing.assert_allclose(decayed[name][layer], want, rtol=1e-4, atol=1e-6, err_msg=name)
            assert np.abs(want).max() > 1e-5 or "key/bias" in name, name
    shared = "config.optimizer.layer_decay: 2 layers share parameters, and so one rate, that of the last of them"
    assert notes == [shared] * (groups == 1)
