"""The two streams of a user's file against transformers' XLNet, and the laws of its objective."""

import functools
from dataclasses import fields, replace

import jax
import numpy as np
import pytest
from flax import traverse_util

import plm_jax
from plm_jax import models
from plm_jax.models import registry
from plm_jax.objectives import Special
from tests.extending.test_extending import page

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

VOCAB, WIDTH, HEADS, HEAD_DIM, FEED_FORWARD = 37, 24, 3, 8, 40
BATCH, LENGTH, TARGETS = 3, 17, 6


def of_transformers(layers, seed, clamp_len=LENGTH):
    """Returns an `XLNetLMHeadModel` with random weights, including norms and biases."""
    torch.manual_seed(seed)
    described = transformers.XLNetConfig(
        vocab_size=VOCAB,
        d_model=WIDTH,
        n_layer=layers,
        n_head=HEADS,
        d_inner=FEED_FORWARD,
        untie_r=True,
        ff_activation="gelu",
        clamp_len=clamp_len,
    )
    theirs = transformers.XLNetLMHeadModel(described).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return theirs


def read(theirs, tmp_path, segments):
    """Returns our settings and parameters of an XLNet, with or without the scores of segments."""
    theirs.save_pretrained(tmp_path / "theirs")
    ours = plm_jax.load(tmp_path / "theirs")
    settings = {field.name: getattr(ours.config, field.name) for field in fields(models.EncoderConfig)}
    model = page("two_stream").TwoStreamConfig(**settings)
    if segments:
        return model, ours.params
    attention = model.attention
    model = replace(model, attention=replace(attention, position=replace(attention.position, segments=False)))
    flat = traverse_util.flatten_dict(ours.params, sep="/")
    kept = {path: leaf for path, leaf in flat.items() if "attention/segment" not in path}
    assert len(kept) == len(flat) - 2
    return model, traverse_util.unflatten_dict(kept, sep="/")


def rows_of(seed):
    """Returns a batch: tokens, a mask with padding on the right, token types, order and positions of targets."""
    rng = np.random.default_rng(seed)
    tokens, lengths = rng.integers(0, VOCAB, (BATCH, LENGTH)), [LENGTH, 12, 9]
    mask = (np.arange(LENGTH) < np.array(lengths)[:, None]).astype(np.int32)
    targets = np.stack([rng.permutation(length)[:TARGETS] for length in lengths])
    order = np.zeros((BATCH, LENGTH), np.int32)
    np.put_along_axis(order, targets, np.arange(1, TARGETS + 1)[None], axis=1)
    types = (np.arange(LENGTH) > np.array(lengths)[:, None] // 2).astype(np.int32)
    return {"tokens": tokens, "mask": mask, "token_types": types, "order": order, "target_positions": targets}


def hidden_pairs(order):
    """Returns whether XLNet hides key j from query i, [B, L, L]: targets of the same or a later rank."""
    return ((order[:, None, :] > 0) & (order[:, :, None] <= order[:, None, :])).astype(np.float32)


# Whether there are segments, the longest distance, layers, and whether they are scanned.
CASES = {"distances": (False, LENGTH, 3, False), "segments": (True, LENGTH, 2, True), "clamped": (False, 5, 2, True)}


@pytest.mark.parametrize("case", CASES)
def test_query_stream_equals_xlnet(case, tmp_path):
    segments, clamp_len, layers, scan = CASES[case]
    theirs, rows = of_transformers(layers, 0, clamp_len), rows_of(0)
    model, params = read(theirs, tmp_path, segments)
    module = registry.build(model.with_speed(scan_layers=scan))
    rows = rows if segments else {name: rows[name] for name in rows if name != "token_types"}
    mapping = np.eye(LENGTH, dtype=np.float32)[rows["target_positions"]]
    with torch.no_grad():
        expected = theirs(
            torch.tensor(rows["tokens"]),
            attention_mask=torch.tensor(rows["mask"]),
            token_type_ids=torch.tensor(rows["token_types"]) if segments else None,
            perm_mask=torch.tensor(hidden_pairs(rows["order"])),
            target_mapping=torch.tensor(mapping),
            use_mems=False,
        ).logits
    got = jax.jit(module.apply)({"params": params}, **rows)
    assert got.shape == (BATCH, TARGETS, VOCAB)
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("segments", [False, True])
def test_content_stream_equals_xlnet_without_targets(segments, tmp_path):
    theirs, rows = of_transformers(2, 0), rows_of(0)
    model, params = read(theirs, tmp_path, segments)
    inputs = {"tokens": rows["tokens"], "mask": rows["mask"]} | (
        {"token_types": rows["token_types"]} if segments else {}
    )
    with torch.no_grad():
        expected = theirs(
            torch.tensor(rows["tokens"]),
            attention_mask=torch.tensor(rows["mask"]),
            token_type_ids=torch.tensor(rows["token_types"]) if segments else None,
            use_mems=False,
        ).logits.numpy()
    got = registry.build(model).apply({"params": params}, **inputs)
    np.testing.assert_allclose(np.asarray(got)[rows["mask"] > 0], expected[rows["mask"] > 0], atol=1e-5)


def test_queries_depend_on_earlier_targets_only(tmp_path):
    """Changes each target in turn: no query of the same or an earlier rank may change, and every later one does."""
    model, params = read(of_transformers(2, 0), tmp_path, segments=False)
    rows, apply = rows_of(0), jax.jit(functools.partial(registry.build(model).apply, method="features"))
    features = apply({"params": params}, **rows)
    for rank in range(TARGETS):
        tokens = rows["tokens"].copy()
        changed = rows["target_positions"][:, rank : rank + 1]
        np.put_along_axis(tokens, changed, (np.take_along_axis(tokens, changed, 1) + 1) % VOCAB, axis=1)
        other = apply({"params": params}, **{**rows, "tokens": tokens})
        differs = np.abs(other - features).max((0, 2)) > 0
        assert differs.tolist() == [later > rank for later in range(TARGETS)]


def test_targets_are_drawn_in_random_order():
    objective = page("two_stream").RandomOrderLM(rate=0.25)
    special = Special(vocab_size=VOCAB, sep=3)
    tokens, mask = np.arange(4, 28), np.repeat([1, 0], [20, 4])
    tokens[7] = special.sep
    example = {"tokens": tokens, "mask": mask, "positions": np.arange(24)}
    rows = [objective.apply(example, special, np.random.default_rng(seed)) for seed in range(400)]
    again = objective.apply(example, special, np.random.default_rng(7))
    for name, value in again.items():
        np.testing.assert_array_equal(value, rows[7][name])
    for row in rows:
        positions, num = row["target_positions"], int(row["target_weights"].sum())
        assert num == 5 and len(positions) == objective.target_length(24) == 6
        np.testing.assert_array_equal(row["tokens"], tokens)
        np.testing.assert_array_equal(row["order"][positions[:num]], np.arange(1, num + 1))
        np.testing.assert_array_equal(row["targets"][:num], tokens[positions[:num]])
        assert np.count_nonzero(row["order"]) == num and not row["target_weights"][num:].any()
    drawn = np.bincount(np.concatenate([row["target_positions"][:5] for row in rows]), minlength=24)
    assert not drawn[[7, 20, 21, 22, 23]].any()
    share = 400 * 5 / 19
    assert np.all(np.abs(np.delete(drawn, [7, 20, 21, 22, 23]) - share) < 5 * share**0.5)
    # Each of two targets comes first about as often.
    firsts = [row["order"][2] < row["order"][11] for row in rows if row["order"][2] and row["order"][11]]
    assert 0.2 < np.mean(firsts) < 0.8
