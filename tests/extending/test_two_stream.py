"""The two streams of a user's file against transformers' XLNet, and the laws of its objective."""

import numpy as np
import pytest

from plm_jax import models
from plm_jax.models import registry
from plm_jax.objectives import Special
from tests.extending.test_extending import page

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

VOCAB, WIDTH, HEADS, HEAD_DIM, FEED_FORWARD = 37, 24, 3, 8, 40
BATCH, LENGTH, TARGETS = 3, 17, 6


def of_transformers(layers, seed, **settings):
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
        **settings,
    )
    theirs = transformers.XLNetLMHeadModel(described).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return theirs


def of_ours(layers, position):
    return page("two_stream").TwoStreamConfig(
        embedding=models.EmbeddingConfig(VOCAB, WIDTH),
        attention=models.AttentionConfig(HEADS, HEAD_DIM, position, bias=False),
        feed_forward=models.FeedForwardConfig(FEED_FORWARD, "gelu_exact"),
        stack=models.StackConfig(layers),
        norm=models.NormConfig(1e-12, placement="post"),
        head=models.VocabularyHead(bias=True),
    )


def converted(theirs, position):
    """Returns our parameters, with a leading axis of layers, for the weights of an XLNet."""
    weights = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}

    def stacked(name, reshape=lambda tensor: tensor):
        layers = range(theirs.config.n_layer)
        return np.stack([reshape(weights[f"transformer.layer.{layer}.{name}"]) for layer in layers])

    def norm(name):
        return {"scale": stacked(f"{name}.weight"), "bias": stacked(f"{name}.bias")}

    def dense(name):
        return {"kernel": stacked(f"{name}.weight", np.transpose), "bias": stacked(f"{name}.bias")}

    names = {"query": "q", "key": "k", "value": "v"}
    attention = {
        ours: {"kernel": stacked(f"rel_attn.{name}", lambda tensor: tensor.reshape(WIDTH, -1))}
        for ours, name in names.items()
    }
    attention["out"] = {"kernel": stacked("rel_attn.o", lambda tensor: tensor.reshape(WIDTH, -1).T)}
    attention["distance"] = stacked("rel_attn.r", lambda tensor: tensor.reshape(WIDTH, -1))
    tables = {"content_bias": "r_w_bias", "distance_bias": "r_r_bias"}
    if position.segments:
        tables |= {"segment_bias": "r_s_bias", "segment": "seg_embed"}
    attention |= {ours: stacked(f"rel_attn.{name}") for ours, name in tables.items()}
    blocks = {
        "attention": attention,
        "attention_norm": norm("rel_attn.layer_norm"),
        "feed_forward": {"up": dense("ff.layer_1"), "down": dense("ff.layer_2")},
        "feed_forward_norm": norm("ff.layer_norm"),
    }
    return {
        "token_embedding": weights["transformer.word_embedding.weight"],
        "query_embedding": weights["transformer.mask_emb"].reshape(-1),
        "head_bias": weights["lm_loss.bias"],
        "stack": {"blocks": blocks},
    }


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


CASES = {
    "distances": ({}, {}, 3),
    "segments": ({"segments": True}, {}, 2),
    "clamped": ({"length": 5}, {"clamp_len": 5}, 2),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("scan", [True, False])
def test_query_stream_equals_xlnet(case, seed, scan):
    scheme, settings, layers = CASES[case]
    position = page("two_stream").SinusoidalDistances(**{"length": LENGTH, **scheme})
    theirs, rows = of_transformers(layers, seed, **settings), rows_of(seed)
    module = registry.build(of_ours(layers, position).with_speed(scan_layers=scan))
    rows = rows if position.segments else {name: rows[name] for name in rows if name != "token_types"}
    mapping = np.eye(LENGTH, dtype=np.float32)[rows["target_positions"]]
    with torch.no_grad():
        expected = theirs(
            torch.tensor(rows["tokens"]),
            attention_mask=torch.tensor(rows["mask"]),
            token_type_ids=torch.tensor(rows["token_types"]) if position.segments else None,
            perm_mask=torch.tensor(hidden_pairs(rows["order"])),
            target_mapping=torch.tensor(mapping),
            use_mems=False,
        ).logits
    got = module.apply({"params": converted(theirs, position)}, **rows)
    assert got.shape == (BATCH, TARGETS, VOCAB)
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("segments", [False, True])
def test_content_stream_equals_xlnet_without_targets(segments):
    position = page("two_stream").SinusoidalDistances(LENGTH, segments)
    theirs, rows = of_transformers(2, 0), rows_of(0)
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
    got = registry.build(of_ours(2, position)).apply({"params": converted(theirs, position)}, **inputs)
    np.testing.assert_allclose(np.asarray(got)[rows["mask"] > 0], expected[rows["mask"] > 0], atol=1e-5)


def test_queries_depend_on_earlier_targets_only():
    """Changes each target in turn: no query of the same or an earlier rank may change, and every later one does."""
    position = page("two_stream").SinusoidalDistances(LENGTH)
    module = registry.build(of_ours(2, position))
    params, rows = converted(of_transformers(2, 0), position), rows_of(0)
    features = module.apply({"params": params}, **rows, method="features")
    for rank in range(TARGETS):
        tokens = rows["tokens"].copy()
        changed = rows["target_positions"][:, rank : rank + 1]
        np.put_along_axis(tokens, changed, (np.take_along_axis(tokens, changed, 1) + 1) % VOCAB, axis=1)
        other = module.apply({"params": params}, **{**rows, "tokens": tokens}, method="features")
        differs = np.abs(other - features).max((0, 2)) > 0
        assert differs.tolist() == [later > rank for later in range(TARGETS)]


def test_targets_are_drawn_in_random_order():
    objective = page("two_stream").PermutationLM(rate=0.25)
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
