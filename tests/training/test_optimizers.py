"""Schedules against their closed forms, optimizers against NumPy, torch and transformers, one tensor at a time."""

import dataclasses
import functools
import re

import flax.linen as nn
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import strategies as st

from plm_jax import config
from plm_jax.common import keys
from plm_jax.common.errors import UserError
from plm_jax.models.decoder import Decoder
from plm_jax.training import mesh, optimizers, state
from tests.support import tiny

STEPS = np.array([0, 1, 5, 9, 10, 11, 55, 99, 100, 150])


WARMUP = 0.5 * np.minimum(1, STEPS / 10)


def progress(end):
    """Returns the share of the steps between the warm-up and `end`."""
    return np.clip((STEPS - 10) / (end - 10), 0, 1)


CLOSED_FORMS = {
    "constant": (config.ConstantSchedule(0.5, warmup_steps=10), WARMUP),
    "linear": (
        config.LinearSchedule(0.5, warmup_steps=10, final_fraction=0.2),
        WARMUP * (1 - 0.8 * progress(100)),
    ),
    "cosine": (
        config.CosineSchedule(0.5, warmup_steps=10, decay_steps=50, final_fraction=0.1),
        WARMUP * (0.1 + 0.9 * (1 + np.cos(np.pi * progress(50))) / 2),
    ),
    # google-research/bert, optimization.py: a line from step 0 to the end, replaced below `num_warmup_steps`.
    "bert": (
        config.LinearSchedule(0.5, warmup_steps=10, decay_counts_warmup=True),
        np.where(STEPS < 10, WARMUP, 0.5 * np.clip(1 - STEPS / 100, 0, 1)),
    ),
    # Hu et al. 2024; Hägele et al. 2024.
    "wsd": (
        config.WsdSchedule(0.5, warmup_steps=10, cooldown_steps=40, final_fraction=0.1),
        WARMUP * (1 - 0.9 * np.clip((STEPS - 60) / 40, 0, 1)),
    ),
    "wsd, square root": (
        config.WsdSchedule(0.5, warmup_fraction=0.1, cooldown_fraction=0.5, shape="sqrt"),
        WARMUP * (1 - np.sqrt(np.clip((STEPS - 50) / 50, 0, 1))),
    ),
    "rsqrt": (config.RsqrtSchedule(1.0, warmup_steps=50), 1 / np.sqrt(np.maximum(STEPS, 50))),
    # Vaswani et al. 2017, formula 3.
    "transformer": (
        config.RsqrtWarmupSchedule(512**-0.5, warmup_steps=50),
        512**-0.5 * np.minimum(np.maximum(STEPS, 1) ** -0.5, STEPS * 50**-1.5),
    ),
    "transformer without warm-up": (
        config.RsqrtWarmupSchedule(0.5),
        np.where(STEPS == 0, 0, 0.5 / np.sqrt(np.maximum(STEPS, 1))),
    ),
}


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_schedules_equal_their_closed_forms(name):
    schedule, expected = CLOSED_FORMS[name]
    rate = schedule.rate(100)
    np.testing.assert_allclose([float(rate(jnp.int32(n))) for n in STEPS], expected, rtol=1e-5)


def test_rate_by_tokens_follows_growing_batches():
    phases = (
        config.PhaseConfig(0.4, length=8, batch_size=2),
        config.PhaseConfig(0.7, length=8, batch_size=8),
        config.PhaseConfig(1.0),
    )
    train = config.TrainConfig(steps=100, batch_size=16, phases=phases)
    stages = config.resolve_phases(dataclasses.replace(tiny.PLAIN, train=train))
    fields = {"learning_rate": 0.5, "warmup_steps": 20, "decay_steps": 90, "final_fraction": 0.1}
    rate = config.CosineSchedule(**fields, by_tokens=True).rate(100, stages)
    tokens = np.concatenate([[0], np.cumsum([2 * 8] * 40 + [8 * 8] * 30 + [16 * 32] * 30)])
    warm, end = tokens[20], tokens[90]
    progress = np.clip((tokens - warm) / (end - warm), 0, 1)
    want = 0.5 * np.where(tokens < warm, tokens / warm, 0.1 + 0.9 * (1 + np.cos(np.pi * progress)) / 2)
    np.testing.assert_allclose([float(rate(jnp.int32(n))) for n in range(101)], want, rtol=1e-5)
    evenly = config.CosineSchedule(**fields).rate(100, stages)
    assert float(evenly(jnp.int32(55))) < 0.8 * want[55]


LAYERS = 5  # As many as a bias is long: a stack of vectors could be mistaken for a matrix that is to be factored.
SHAPES = {
    "stack": {
        "blocks": {
            "dense": {"kernel": (LAYERS, 7, 5), "bias": (LAYERS, 5)},
            "norm": {"scale": (LAYERS, 7), "bias": (LAYERS, 7)},
        }
    },
    "relative_bias": (3, 6),
    "final_norm": {"scale": (7,), "bias": (7,)},
    "token_embedding": (11, 7),
}


def tree(seed, shapes=SHAPES):
    """Random leaves; each layer of a stack ten times as large as the one before."""
    rng = np.random.default_rng(seed)

    def leaf(path, shape):
        values = rng.normal(size=shape)
        if path[1:2] == (jax.tree_util.DictKey("blocks"),):
            values *= 10.0 ** np.arange(-3, shape[0] - 3).reshape(-1, *[1] * (len(shape) - 1))
        return values.astype(np.float32)

    return jax.tree.map_with_path(leaf, shapes, is_leaf=lambda shape: isinstance(shape, tuple))


def tensors(values) -> dict[str, np.ndarray]:
    """Views of all tensors of a tree, each layer on its own."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(values):
        name = "/".join(key.key for key in path)
        layers = leaf if name.startswith("stack/blocks/") else [leaf]
        found |= {f"{name} {layer}": part for layer, part in enumerate(layers)}
    return found


def rate(step):
    return 0.01 * (1.0 + step)


def parameters():
    """Returns random parameters with two tensors of zeros."""
    values = tree(0)
    values["stack"]["blocks"]["dense"]["kernel"][2] = 0.0
    values["token_embedding"][...] = 0.0
    return values


def gradients(step):
    """Sizes change from step to step; one tensor has none at first."""
    values = jax.tree.map(lambda leaf: leaf * np.float32(2.0 ** (step % 5)), tree(10 + step))
    values["relative_bias"] *= step > 1
    return values


def train(settings, params, steps=20):
    """The parameters that our optimizer leaves."""
    optimizer = optimizers.build(settings)
    optimizer_state = optimizer.init(params)

    @jax.jit
    def update(grads, optimizer_state, params, learning_rate):
        updates, optimizer_state = optimizer.update(grads, optimizer_state, params, learning_rate=learning_rate)
        return optax.apply_updates(params, updates), optimizer_state

    for step in range(steps):
        params, optimizer_state = update(gradients(step), optimizer_state, params, rate(step))
    return params


def norm(x):
    return np.sqrt((x**2).sum())


def is_norm_or_bias(name):
    return "/bias " in name or "/scale " in name


def adam(settings, name, p, g, kept, t):
    m = kept["m"] = settings.b1 * kept.get("m", 0) + (1 - settings.b1) * g
    v = kept["v"] = settings.b2 * kept.get("v", 0) + (1 - settings.b2) * g**2
    if settings.bias_correction:
        m, v = m / (1 - settings.b1**t), v / (1 - settings.b2**t)
    direction = m / (np.sqrt(v) + settings.epsilon)
    decays = getattr(settings, "decay_norms_and_biases", False) or not is_norm_or_bias(name)
    return direction + settings.weight_decay * p if decays else direction


def lamb(settings, name, p, g, kept, t):
    direction = adam(settings, name, p, g, kept, t)
    if is_norm_or_bias(name) or norm(p) == 0 or norm(direction) == 0:
        return direction
    return direction * norm(p) / norm(direction)


def adafactor(settings, name, p, g, kept, t):
    decay = 1 - t**-settings.decay_exponent
    v = decay * kept.get("v", 0) + (1 - decay) * (g**2 + settings.epsilon)
    kept["v"] = v
    if p.ndim == 2 and min(p.shape) >= settings.min_dim_size_to_factor:
        # Means of moving averages are moving averages of means.
        v = np.outer(v.mean(1), v.mean(0)) / v.mean()
    direction = g / np.sqrt(v)
    direction /= max(1, norm(direction) / np.sqrt(p.size) / settings.clipping_threshold)
    if settings.multiply_by_parameter_scale:
        direction *= max(norm(p) / np.sqrt(p.size), settings.parameter_epsilon)
    if settings.b1:  # The mean of updates that are scaled by the rate of their step.
        kept["m"] = settings.b1 * kept.get("m", 0) + (1 - settings.b1) * rate(t - 1) * direction
        direction = kept["m"] / rate(t - 1)
    return direction + settings.squared_rate_decay * rate(t - 1) * p


def stable_adamw(settings, name, p, g, kept, t):
    """The update of optimi and ModernBERT (src/optimizer.py): debiased decay rates instead of bias correction."""
    b1, b2 = (b * (1 - b ** (t - 1)) / (1 - b**t) for b in (settings.b1, settings.b2))
    m = kept["m"] = b1 * kept.get("m", 0) + (1 - b1) * g
    v = kept["v"] = b2 * kept.get("v", 0) + (1 - b2) * g**2
    ratio = np.sqrt((g**2 / np.maximum(v, settings.epsilon**2)).mean())
    decay = 0 if is_norm_or_bias(name) else settings.weight_decay * p
    return (decay + m / (np.sqrt(v) + settings.epsilon)) / max(1, ratio)


def lion(settings, name, p, g, kept, t):
    momentum = kept.get("m", 0)
    kept["m"] = settings.b2 * momentum + (1 - settings.b2) * g
    decay = 0 if is_norm_or_bias(name) else settings.weight_decay * p
    return np.sign(settings.b1 * momentum + (1 - settings.b1) * g) + decay


def adagrad(settings, name, p, g, kept, t):
    kept["sum"] = kept.get("sum", settings.initial_accumulator) + g**2
    return g / np.sqrt(kept["sum"])


RULES = {
    "adamw": adam,
    "stable_adamw": stable_adamw,
    "lamb": lamb,
    "lion": lion,
    "adafactor": adafactor,
    "adagrad": adagrad,
}


def published(settings, params, steps=20):
    """The parameters that the published update leaves: tensor by tensor, float64."""
    params = jax.tree.map(np.float64, params)
    kept = {name: {} for name in tensors(params)}
    for step in range(steps):
        grads = tensors(jax.tree.map(np.float64, gradients(step)))
        total = np.sqrt(sum((g**2).sum() for g in grads.values()))
        factor = min(1.0, settings.clip_norm / total) if settings.clip_norm else 1.0
        for name, p in tensors(params).items():
            p -= rate(step) * RULES[settings.kind](settings, name, p, factor * grads[name], kept[name], step + 1)
    return params


@pytest.mark.parametrize(
    "settings",
    [
        config.AdamWConfig(0.8, 0.9, 1e-3, weight_decay=0.1, clip_norm=0.0),
        config.AdamWConfig(0.8, 0.9, 1e-3, weight_decay=0.1, clip_norm=30.0),
        # Norms are from 63 to 1,256, so 30 clips the gradients of all steps, and 200 those of about half of the steps.
        config.AdamWConfig(0.8, 0.9, 1e-3, weight_decay=0.1, clip_norm=200.0),
        config.AdamWConfig(0.8, 0.9, 1e-3, weight_decay=0.1, clip_norm=30.0, bias_correction=False),
        config.AdamWConfig(0.8, 0.9, 1e-3, weight_decay=0.1, clip_norm=30.0, decay_norms_and_biases=True),
        config.LambConfig(0.8, 0.9, clip_norm=30.0, weight_decay=0.1),
        config.LambConfig(0.8, 0.9, weight_decay=0.0, clip_norm=0.0, bias_correction=True),
        config.AdafactorConfig(min_dim_size_to_factor=5),
        config.AdafactorConfig(min_dim_size_to_factor=5, clipping_threshold=0.3, clip_norm=30.0),
        config.AdafactorConfig(multiply_by_parameter_scale=False, decay_exponent=0.5),
        config.AdafactorConfig(min_dim_size_to_factor=5, b1=0.9, squared_rate_decay=1.0),
        config.StableAdamWConfig(0.8, 0.9, 1e-3, weight_decay=0.1),
        config.StableAdamWConfig(clip_norm=30.0),
        config.LionConfig(0.8, 0.9, weight_decay=0.1),
        config.AdagradConfig(),
        config.AdagradConfig(initial_accumulator=0.1, clip_norm=0.0),
    ],
    ids=str,
)
def test_twenty_steps_equal_the_published_rules(settings):
    start = parameters()
    want, got = tensors(published(settings, start)), tensors(train(settings, start))
    for name, before in tensors(start).items():
        update = want[name] - before
        assert norm(got[name] - before - update) < 1e-4 * norm(update), name


@pytest.mark.parametrize(
    ("settings", "library", "name", "options"),
    [
        # transformers factors every matrix and clips no global norm.
        (
            config.AdafactorConfig(min_dim_size_to_factor=1),
            *("transformers", "Adafactor", {"lr": 1.0, "relative_step": False, "scale_parameter": True}),
        ),
        # fairseq builds one group of parameters; its Adam also decouples the decay (fairseq/optim/adam.py).
        (
            config.AdamWConfig(0.8, 0.9, 1e-3, weight_decay=0.1, clip_norm=0.0, decay_norms_and_biases=True),
            *("torch.optim", "AdamW", {"betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1}),
        ),
        (
            config.AdagradConfig(clip_norm=0.0),
            *("torch.optim", "Adagrad", {"initial_accumulator_value": 1.0, "eps": 0.0}),
        ),
    ],
    ids=["adafactor", "adamw", "adagrad"],
)
def test_twenty_steps_equal_those_of_torch(settings, library, name, options):
    torch, library = pytest.importorskip("torch"), pytest.importorskip(library)
    start = tensors(parameters())
    params = {name: torch.nn.Parameter(torch.tensor(p)) for name, p in start.items()}
    optimizer = getattr(library, name)(list(params.values()), **options)
    for step in range(20):
        for path, grad in tensors(gradients(step)).items():
            params[path].grad = torch.tensor(grad)
        optimizer.param_groups[0]["lr"] = rate(step)
        optimizer.step()
    for path, tensor in tensors(train(settings, parameters())).items():
        expected = params[path].detach().numpy()
        update = norm(expected - start[path])
        assert update > 0, path
        assert norm(tensor - expected) < 1e-4 * update, path


@pytest.mark.parametrize("scaling", ["original", "match_rms_adamw"])
@pytest.mark.parametrize(("nesterov", "casts"), [(True, False), (False, False), (True, True)])
def test_muon_in_a_group_equals_that_of_torch(scaling, nesterov, casts, monkeypatch):
    """With the cast of torch to bfloat16 removed, and within its precision otherwise; the rest is AdamW."""
    torch = pytest.importorskip("torch")
    if not casts:
        monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    muon = config.MuonConfig(weight_decay=0.2, scaling=scaling, nesterov=nesterov)
    settings = config.AdamWConfig(clip_norm=0.0, groups=((config.HIDDEN_MATRICES, muon, 3.0),))
    start = tensors(parameters())
    params = {name: torch.nn.Parameter(torch.tensor(p.T if "dense/kernel" in name else p)) for name, p in start.items()}
    matrices = [params[name] for name in params if "dense/kernel" in name]
    rest = [params[name] for name in params if "dense/kernel" not in name]
    theirs = torch.optim.Muon(matrices, weight_decay=0.2, nesterov=nesterov, adjust_lr_fn=scaling)
    adam = torch.optim.AdamW(rest, weight_decay=0.0)
    for step in range(10):
        for name, gradient in tensors(gradients(step)).items():
            params[name].grad = torch.tensor(gradient.T if "dense/kernel" in name else gradient)
        for optimizer, factor in ((theirs, 3.0), (adam, 1.0)):
            optimizer.param_groups[0]["lr"] = factor * rate(step)
            optimizer.step()
    trained = tensors(train(settings, parameters(), steps=10))
    assert len(matrices) == LAYERS
    for name, tensor in trained.items():
        is_matrix = "dense/kernel" in name
        expected = params[name].detach().numpy().T if is_matrix else params[name].detach().numpy()
        error = norm(tensor - expected) / norm(expected - start[name])
        assert error < (2e-2 if is_matrix and casts else 1e-4), name


def test_parameters_belong_to_the_first_group_that_matches():
    """A group at its own rate equals the optimizer alone at this rate; clipping counts all gradients."""
    groups = ((r".*/scale", config.SgdConfig(), 2.0), (r"stack/.*", config.LionConfig(), 0.5))
    settings = config.AdamWConfig(0.8, 0.9, 1e-3, clip_norm=30.0, groups=groups)
    trained = tensors(train(settings, parameters(), steps=1))
    grads = tensors(gradients(0))
    factor = min(1.0, 30.0 / np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads.values())))
    for name, before in tensors(parameters()).items():
        g = factor * grads[name]
        if "/scale" in name:
            update = 2.0 * g
        elif name.startswith("stack/"):
            update = 0.5 * np.sign(g)
        else:
            update = g / (np.abs(g) + 1e-3)
        np.testing.assert_allclose(trained[name], before - rate(0) * update, rtol=1e-4, atol=1e-7, err_msg=name)


def test_a_group_sees_its_own_rate():
    """Adafactor's decay by the square of the rate and its mean of scaled updates use the rate of the group."""
    alone = config.AdafactorConfig(min_dim_size_to_factor=5, b1=0.9, squared_rate_decay=1.0)
    grouped = config.AdamWConfig(clip_norm=0.0, groups=((".*", alone, 2.0),))
    trained = []
    for settings, factor in ((alone, 2.0), (grouped, 1.0)):
        optimizer, params = optimizers.build(settings), parameters()
        state, update = optimizer.init(params), jax.jit(optimizer.update)
        for step in range(3):
            updates, state = update(gradients(step), state, params, learning_rate=factor * rate(step))
            params = optax.apply_updates(params, updates)
        trained.append(tensors(params))
    for name, expected in trained[0].items():
        np.testing.assert_allclose(trained[1][name], expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_mistakes_in_groups_are_one_line():
    shapes = jax.eval_shape(parameters)
    for groups, message in (
        (
            ((r"stack/none", config.LionConfig(), 1.0),),
            "optimizer.groups has 'stack/none', which matches no parameter name",
        ),
        (((".*", config.LionConfig(), 1.0), ("final.*", config.SgdConfig(), 1.0)), "all belong to earlier groups"),
        ((("(", config.LionConfig(), 1.0),), "is not a valid regular expression"),
        (((".*", config.LionConfig(clip_norm=2.0), 1.0),), "groups sets clip_norm of '.*': set config.optimizer.clip_"),
        (((".*", config.AdamWConfig(layer_decay=0.5), 1.0),), "groups sets layer_decay of '.*'"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            optimizers.check_groups(config.AdamWConfig(groups=groups), shapes)
    with pytest.raises(UserError, match=r"Muon updates only matrices, and final_norm/bias is not a matrix: use Muon"):
        optimizers.build(config.MuonConfig()).init(parameters())


@hypothesis.settings(deadline=None, max_examples=30)
@hypothesis.given(st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=2))
def test_lamb_and_adafactor_scale_steps_by_layer(sizes):
    # Weights and gradients of any size: LAMB moves a layer by rate × its norm, Adafactor's first step by rate × its
    # root mean square an entry where the squared gradient has rank 1.
    sizes = np.array(sizes, np.float32)[:, None, None]
    rows, columns = np.float32([1, 2, 4]), np.float32([1, -3])
    params = {"blocks": {"kernel": sizes * np.float32([[1, 2], [3, 4], [5, 6]])}}
    grads = {"blocks": {"kernel": sizes[::-1] * np.outer(rows, columns)}}

    def first(settings):
        optimizer = optimizers.build(settings)
        updates, _ = optimizer.update(grads, optimizer.init(params), params, learning_rate=0.1)
        return updates["blocks"]["kernel"] / sizes

    lamb_step = first(config.LambConfig(weight_decay=0.0, epsilon=0.0, clip_norm=0.0))
    np.testing.assert_allclose(np.sqrt((lamb_step**2).sum((1, 2))), 0.1 * np.sqrt(91), rtol=1e-5)
    adafactor_step = first(config.AdafactorConfig(min_dim_size_to_factor=2, parameter_epsilon=0.0))
    want = -0.1 * np.sqrt(91 / 6) * np.sign(np.outer(rows, columns))
    np.testing.assert_allclose(adafactor_step, np.stack([want, want]), rtol=1e-4)


def test_gradients_are_clipped_by_the_passed_norm():
    params, grads = ({"kernel": np.float32(values)} for values in ([[1, 2]], [[3, -4]]))

    def update(clip_norm, **given):
        optimizer = optimizers.build(config.AdagradConfig(clip_norm=clip_norm))
        return optimizer.update(grads, optimizer.init(params), params, learning_rate=rate(0), **given)[0]

    doubled = update(1.0, grad_norm=2 * optimizers.global_norm(grads))
    np.testing.assert_allclose(doubled["kernel"], update(0.5)["kernel"], rtol=1e-5)


ADAFACTOR = config.AdafactorConfig(min_dim_size_to_factor=16)


def placed(settings, **sizes):
    """Returns the optimizer, the abstract initial state of the tiny model and its shardings on a mesh of eight."""
    optimizer = optimizers.build(settings)
    params = lambda: state.init_params(Decoder(tiny.MODEL), keys.from_seed(0))  # noqa: E731
    boxed = jax.eval_shape(lambda: state.new_state(params(), optimizer))
    devices = mesh.build(config.MeshConfig(**sizes), jax.devices()[:8])
    like = mesh.stored(boxed, devices, config.MeshConfig().rules)
    return optimizer, nn.unbox(boxed), jax.tree.map(lambda leaf: leaf.sharding, like)


def test_factored_moments_are_sharded_like_their_axes():
    _, abstract, shardings = placed(ADAFACTOR, data=1, fsdp=4, tensor=2)
    spec = jax.sharding.PartitionSpec
    up, places = (
        tree.optimizer[1].second_moments["stack"]["blocks"]["feed_forward"]["up"] for tree in (abstract, shardings)
    )
    # The kernel is [layers, embed, mlp].
    assert (up["kernel"].rows.shape, up["kernel"].columns.shape, up["bias"].shape) == ((2, 32), (2, 64), (2, 64))
    # Vectors are not cut over the axes that rows of a batch are.
    assert places["kernel"].rows.spec == spec(None, None)
    assert places["kernel"].columns.spec == places["bias"].spec == spec(None, "tensor")


@pytest.mark.parametrize("settings", [config.LambConfig(), ADAFACTOR], ids=lambda settings: settings.kind)
def test_sharded_update_equals_one_device(settings):
    optimizer, abstract, shardings = placed(settings, data=1, fsdp=8)
    rng = np.random.default_rng(0)
    params, grads = (
        jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), abstract.params) for _ in range(2)
    )
    update = functools.partial(optimizer.update, learning_rate=rate(0))
    want, _ = jax.jit(update)(grads, optimizer.init(params), params)
    fresh = jax.jit(optimizer.init, out_shardings=shardings.optimizer)(params)
    laid = jax.device_put((grads, params), (shardings.params, shardings.params))
    got, new = jax.jit(update, out_shardings=(shardings.params, shardings.optimizer))(laid[0], fresh, laid[1])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-8), got, want)
    for path, leaf in jax.tree_util.tree_leaves_with_path(new):
        # What is of a vector, or has become one, is whole on every device.
        is_matrix = leaf.ndim - ("'blocks'" in jax.tree_util.keystr(path)) > 1
        assert leaf.addressable_shards[0].data.nbytes == leaf.nbytes / (8 if is_matrix else 1), path


@pytest.mark.parametrize("bias_correction", [True, False])
def test_bfloat16_moments_round_only_the_state(bias_correction):
    settings = config.AdamWConfig(first_moment="bfloat16", bias_correction=bias_correction, epsilon=1e-6, clip_norm=0.0)
    optimizer = optimizers.build(settings)
    params, grads = {"x": np.ones(50, np.float32)}, np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32)
    current, kept = optimizer.init(params), {}
    for step, grad in enumerate(grads):
        updates, current = optimizer.update({"x": grad}, current, params, learning_rate=1.0)
        want = -adam(settings, "x", params["x"], grad, kept, step + 1)
        np.testing.assert_allclose(updates["x"], want, rtol=2e-4)  # A bfloat16 is off by up to 4e-3.
        kept["m"] = np.asarray(kept["m"].astype(jnp.bfloat16), np.float32)
    moments = {leaf.dtype.name for leaf in jax.tree.leaves(current) if leaf.ndim}
    assert moments == {"bfloat16", "float32"}
