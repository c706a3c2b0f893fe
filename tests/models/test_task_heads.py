"""Task heads: features, layers, padding on either side, and several texts per row."""

import functools
from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plm_jax
from plm_jax import models
from plm_jax.common import trees
from plm_jax.common.errors import UserError
from plm_jax.inference.language_model import LanguageModel
from plm_jax.models import layers, recurrent, registry, task_heads
from tests.support import tiny
from tests.support.random_models import random_params

LENGTH = 10
REAL = np.array([10, 4, 7])
RIGHT = (np.arange(LENGTH) < REAL[:, None]).astype(np.int32)
LEFT = RIGHT[:, ::-1].copy()
ELMO = models.ElmoConfig(
    embedding=models.CharacterCNNConfig(
        9, width=6, dim=3, filters=((1, 3), (2, 4)), max_characters=8, highway_layers=1
    ),
    lstm=models.LstmConfig(layers=2, cell=5),
)


@functools.cache
def build(model):
    """Returns a module and random parameters."""
    return registry.build(model), random_params(model)


@functools.partial(jax.jit, static_argnames="model")
def output(model, params, batch, keys=None):
    return task_heads.output(registry.build(model), params, batch, keys)


def texts(mask, model=tiny.MODEL):
    """Returns the same texts at the positions of the mask."""
    rng = np.random.default_rng(3)
    shape = (model.max_characters,) if model.max_characters else ()
    high = 200 if model.max_characters else model.vocab_size
    name, values = "characters" if shape else "tokens", np.zeros((*mask.shape, *shape), np.int32)
    for row, real in enumerate(REAL):
        values[row][mask[row] == 1] = rng.integers(1, high, (real, *shape))
    return {name: values, "mask": mask}


def features_of(model, batch, method="features"):
    module, params = build(model)
    options = {"mutable": ["intermediates"]} if method == "states" else {}
    outputs = jax.jit(functools.partial(module.apply, method=method, **options))(
        {"params": params}, **model.read(batch)
    )
    return np.asarray(outputs[0] if options else outputs, np.float64)


def dense(params, name, x):
    leaf = params["heads_task"][name]
    return x @ np.asarray(leaf["kernel"], np.float64) + (np.asarray(leaf["bias"]) if "bias" in leaf else 0)


@pytest.mark.parametrize("mask", [RIGHT, LEFT], ids=["right", "left"])
@pytest.mark.parametrize("feature", ["first", "last", "mean", "max"])
def test_features_ignore_padding(feature, mask):
    model = tiny.MODEL.with_task(
        models.ClassesHead(labels=("a", "b", "c"), feature=feature, transform="tanh", bias=False)
    )
    _, params = build(model)
    assert params["heads_task"]["output"].keys() == {"kernel"}
    batch = texts(mask)
    got, features = output(model, params, batch)
    want = features_of(model, batch)
    np.testing.assert_allclose(features, want, atol=1e-5)
    read = [x[keep == 1] for x, keep in zip(want, mask, strict=True)]
    take = {"first": lambda x: x[0], "last": lambda x: x[-1], "mean": lambda x: x.mean(0), "max": lambda x: x.max(0)}
    hidden = np.tanh(dense(params, "transform", np.array([take[feature](x) for x in read])))
    np.testing.assert_allclose(got, dense(params, "output", hidden), atol=1e-5)
    assert got.shape == (3, 3) and got.dtype == np.float32
    np.testing.assert_allclose(got, output(model, params, texts(RIGHT))[0], atol=1e-5)


def test_pooler_of_the_model_is_used():
    head = models.ScoreHead(feature="pooler")
    model = tiny.BERT.with_task(head)
    assert model.pooler == models.Pooler(0) and isinstance(model.head, models.NoHead)
    _, params = build(model)
    assert {name for name in params if "pool" in name} == {"pooler"}
    assert params["heads_task"].keys() == {"output"}
    batch = texts(RIGHT)
    got, features = output(model, params, batch)
    pooled = np.tanh(np.asarray(features)[:, 0] @ params["pooler"]["kernel"] + params["pooler"]["bias"])
    np.testing.assert_allclose(got, dense(params, "output", pooled), atol=1e-5)
    # The classes of pairs use the same dense layer.
    both = replace(tiny.BERT, heads=(("task", head),))
    module, params = build(both)
    got, features = output(both, params, batch)
    pooled = np.tanh(np.asarray(features)[:, 0] @ params["pooler"]["kernel"] + params["pooler"]["bias"])
    np.testing.assert_allclose(got, dense(params, "output", pooled), atol=1e-5)
    pairs = module.apply({"params": params}, features, "sentence_pair", method="head_output")
    want = pooled @ params["classifier"]["kernel"] + params["classifier"]["bias"]
    np.testing.assert_allclose(pairs, want, atol=1e-5)
    with pytest.raises(UserError, match=r"model.heads.task.feature is 'pooler', and the model has none"):
        replace(tiny.MODEL, heads=(("task", head),))


@pytest.mark.parametrize("model", [tiny.MODEL, tiny.BERT, tiny.BART], ids=lambda model: model.kind)
def test_layers_are_concatenated_or_mixed(model):
    batch = texts(RIGHT, model)
    if model.has_decoder:
        batch |= {"decoder_tokens": batch["tokens"][:, ::-1], "decoder_mask": RIGHT}
    tags = models.TagsHead(labels=("O", "B"))
    beside = model.with_task(replace(tags, layers=models.ConcatenatedLayers((0, -1, 1))))
    _, params = build(beside)
    states = features_of(beside, batch, "states")
    assert len(states) == 3 == beside.num_states
    want = dense(params, "output", np.concatenate([states[0], states[2], states[1]], -1))
    np.testing.assert_allclose(output(beside, params, batch)[0], want, atol=1e-5)

    mixing = model.with_task(replace(tags, layers=models.MixedLayers((1, 2), words=True)))
    _, params = build(mixing)
    states, mix = features_of(mixing, batch, "states"), params["heads_task"]["mix"]
    shares = np.exp(mix["weights"]) / np.exp(mix["weights"]).sum()
    mixed = mix["scale"] * (shares[0] * states[1] + shares[1] * states[2])
    want = dense(params, "output", np.concatenate([states[0], mixed], -1))
    np.testing.assert_allclose(output(mixing, params, batch)[0], want, atol=1e-5)
    with pytest.raises(UserError, match=r"reads layer 3: the model has 0 \(its embeddings\) to 2"):
        registry.shapes(model.with_task(replace(tags, layers=models.ConcatenatedLayers((3,)))))


def test_mixed_layers_are_normalized_over_real_tokens():
    states = np.random.default_rng(0).normal(2, 3, size=(2, 3, LENGTH, 5)).astype(np.float32)
    weights = {"weights": np.array([0.3, -0.2], np.float32), "scale": np.float32(1.5)}
    got = layers.ScalarMix(True).apply({"params": weights}, states, RIGHT)
    shares = np.exp(weights["weights"]) / np.exp(weights["weights"]).sum()
    for row, real in enumerate(REAL):
        real_states = states[:, row, :real].astype(np.float64)
        normed = [(layer - layer.mean()) / np.sqrt(layer.var() + 1e-12) for layer in real_states]
        want = 1.5 * (shares[0] * normed[0] + shares[1] * normed[1])
        np.testing.assert_allclose(got[row, :real], want, atol=1e-5)


def lstm_by_hand(params, side, x_LD):
    """Reference LSTM [L, M]: torch's equations, with 1 added to the bias of the forget gate."""
    leaf = {name: np.asarray(params["input"][name][side], np.float64) for name in ("kernel", "bias")}
    recurrent_kernel = np.asarray(params["recurrent"]["kernel"][side], np.float64)
    hidden = cell = np.zeros(recurrent_kernel.shape[0])
    outputs = []
    for x in x_LD:
        gates = np.einsum("d,dgm->gm", x, leaf["kernel"]) + leaf["bias"]
        take, new, forget, give = gates + np.einsum("m,mgn->gn", hidden, recurrent_kernel)
        sigmoid = lambda y: 1 / (1 + np.exp(-y))  # noqa: E731
        cell = sigmoid(forget + 1) * cell + sigmoid(take) * np.tanh(new)
        hidden = sigmoid(give) * np.tanh(cell)
        outputs.append(hidden)
    return np.array(outputs)


@pytest.mark.parametrize("mask", [RIGHT, LEFT], ids=["right", "left"])
def test_lstms_run_over_real_tokens_in_both_directions(mask):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, LENGTH, 4)).astype(np.float32)
    module = recurrent.BiLstm(models.BiLstmConfig(cell=3, layers=2), jnp.float32)
    shapes = nn.unbox(jax.eval_shape(lambda: module.init(jax.random.key(0), x, mask, deterministic=True))["params"])
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)
    got = module.apply({"params": params}, x, mask, deterministic=True)
    for row in range(3):
        real_states = x[row][mask[row] == 1].astype(np.float64)
        for number in range(2):
            both = [lstm_by_hand(params[f"layer_{number}"], side, real_states[:: 1 - 2 * side]) for side in range(2)]
            real_states = np.concatenate([both[0], both[1][::-1]], -1)
        np.testing.assert_allclose(got[row][mask[row] == 1], real_states, atol=1e-5)


def test_elmo_tags_and_classifies(tmp_path):
    head = models.TagsHead(
        labels=("O", "B"), layers=models.MixedLayers(words=True), recurrent=models.BiLstmConfig(4, 2)
    )
    tagger = ELMO.with_task(head)
    _, params = build(tagger)
    shape = params["heads_task"]["recurrent"]["layer_0"]["input"]["kernel"].shape
    assert shape == (2, 6 + 2 * 6, 4, 4), "the words' vectors and both directions"
    right, left = (np.asarray(output(tagger, params, texts(mask, ELMO))[0]) for mask in (RIGHT, LEFT))
    assert right.shape == (3, LENGTH, 2)
    np.testing.assert_allclose(right[RIGHT == 1], left[LEFT == 1], atol=1e-5)
    states = features_of(tagger, texts(RIGHT, ELMO), "states")
    mix, parts = params["heads_task"]["mix"], params["heads_task"]["recurrent"]
    shares = np.exp(mix["weights"]) / np.exp(mix["weights"]).sum()
    x = np.concatenate([states[0, ..., :6], mix["scale"] * np.tensordot(shares, states, 1)], -1)[1, :4]
    for number in range(2):
        both = [lstm_by_hand(parts[f"layer_{number}"], side, x[:: 1 - 2 * side]) for side in range(2)]
        x = np.concatenate([both[0], both[1][::-1]], -1)
    np.testing.assert_allclose(right[1, :4], dense(params, "output", x), atol=1e-5)
    right_tags = right

    classes = models.ClassesHead(labels=("a", "b", "c"), feature="max", layers=head.layers, recurrent=head.recurrent)
    classifier = ELMO.with_task(classes)
    _, params = build(classifier)
    right, left = (np.asarray(output(classifier, params, texts(mask, ELMO))[0]) for mask in (RIGHT, LEFT))
    assert right.shape == (3, 3)
    np.testing.assert_allclose(right, left, atol=1e-5)
    lm = LanguageModel(tagger, build(tagger)[1])
    inputs = texts(RIGHT, ELMO)
    lm.save(tmp_path / "ours", format="plm_jax")
    for one in (lm, plm_jax.load(tmp_path / "ours")):
        got = one.logits(inputs["characters"], inputs["mask"], head="task")
        np.testing.assert_allclose(got, right_tags, atol=1e-5)
    with pytest.warns(UserWarning, match="bilm-tf's model has no place for the head of 'task': it is left out"):
        lm.save(tmp_path / "bilm", format="bilm")
    # The language model is still there, and the model also runs in training.
    module = registry.build(tagger)
    assert tagger.named_heads.keys() == {"vocabulary", "backward", "task"}
    inputs = module.apply({"params": build(tagger)[1]}, **texts(RIGHT, ELMO), method="features", deterministic=False)
    assert inputs.shape == (3, 2, LENGTH, 6)


def test_several_texts_per_row_are_regrouped():
    head = models.ChoiceHead(feature="last", bias=False)
    model = tiny.MODEL.with_task(head)
    _, params = build(model)
    flat = texts(RIGHT)
    rows = {name: np.stack([value, value[::-1]], axis=1) for name, value in flat.items()}
    got, features = output(model, params, rows)
    one, _ = output(model, params, flat | {name: value[:, None] for name, value in flat.items()})
    assert got.shape == (3, 2) and one.shape == (3, 1) and features.shape == (6, LENGTH, 32)
    np.testing.assert_allclose(got, np.concatenate([one, one[::-1]], 1), atol=1e-5)
    # Sums the features of both texts before the last layer.
    both_orders = tiny.MODEL.with_task(models.ClassesHead(labels=("a", "b"), feature="last"))
    _, params = build(both_orders)
    combined, one = output(both_orders, params, rows)[0], output(both_orders, params, flat)[0]
    np.testing.assert_allclose(combined, one + one[::-1] - params["heads_task"]["output"]["bias"], atol=1e-5)


def test_dropout_only_in_training_and_shared_within_row():
    head = models.ChoiceHead(feature="last", dropout=0.5)
    model = tiny.MODEL.with_task(head)
    assert model.drops and not tiny.MODEL.drops and not model.with_dropout(0.0).drops
    assert dict(model.with_dropout(0.3).heads)["task"].dropout == 0.3
    _, params = build(model)
    flat = texts(RIGHT)
    same = {name: np.stack([value, value], axis=1) for name, value in flat.items()}
    plain = output(model, params, same)[0]
    np.testing.assert_array_equal(plain, output(model, params, same, {})[0])
    dropped = output(model, params, same, {"dropout": jax.random.key(1)})[0]
    np.testing.assert_allclose(dropped[:, 0], dropped[:, 1], atol=1e-6)
    assert np.abs(dropped - plain).min() > 1e-4
    assert len({f"{value:.4f}" for value in np.asarray(dropped[:, 0] / plain[:, 0])}) == 3, "each row has a mask"


def test_task_head_is_a_config_choice_and_counts_flops():
    head = models.TagsHead(
        labels=("O", "B-PER"), layers=models.MixedLayers((-2, -1)), recurrent=models.BiLstmConfig(8), transform="tanh"
    )
    model = tiny.BERT.with_task(head)
    assert trees.parse(models.ModelConfig, trees.to_dict(model), "model") == model
    plain = replace(model, heads=())
    each = 2 * 4 * 8 * (32 + 8) + 16 * 32 + 32 * 2
    assert model.macs(12, 3) - plain.macs(12, 3) == 12 * each
    assert replace(model, heads=(("task", models.ScoreHead()),)).macs(12, 3) == plain.macs(12, 3)
    assert tiny.ELECTRA.with_task(head).kind == "encoder"
    assert "vocabulary" in tiny.LLAMA.with_task(head).named_heads
    with pytest.raises(UserError, match=r"has no labels: set model.heads.task.labels"):
        registry.shapes(tiny.MODEL.with_task(models.TagsHead()))
