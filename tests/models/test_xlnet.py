"""XLNet against transformers: both streams, memory, directions, gradients; and parameters of published sizes."""

import functools

import flax.linen as nn
import jax
import numpy as np
import pytest

import plm_jax
from plm_jax.models import registry

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

VOCAB, WIDTH, HEADS, LAYERS, BATCH, LENGTH, TARGETS = 37, 24, 3, 3, 4, 12, 5
# Fields of `XLNetConfig`, and options of `rows_of` and `compare`.
CASES = {
    "content": ({}, {"queries": False}),
    "content in order": ({}, {"queries": False, "order": True}),
    "queries": ({}, {"queries": True}),
    "queries without segments": ({}, {"queries": True, "segments": False}),
    "queries without an order": ({}, {"queries": True, "order": False}),
    "left padding": ({}, {"queries": True, "padding": True}),
    "content with left padding": ({}, {"queries": False, "padding": True, "segments": False}),
    "clamp": ({"clamp_len": 4}, {"queries": True}),
    "clamp beyond the row": ({"clamp_len": 100}, {"queries": True}),
    "tanh gelu": ({"ff_activation": "gelu_new"}, {"queries": True}),
    "relu": ({"ff_activation": "relu"}, {"queries": True}),
    "odd head": ({"d_model": 10, "n_head": 2}, {"queries": True}),
    "bi_data": ({"bi_data": True}, {"queries": True}),
    "bi_data, clamp": ({"bi_data": True, "clamp_len": 3}, {"queries": False}),
    "uni": ({"attn_type": "uni"}, {"queries": False, "batch": 1}),
    "uni in order": ({"attn_type": "uni"}, {"queries": True, "batch": 1}),
    "memory": ({"mem_len": 7}, {"queries": True}),
    "memory longer than a row": ({"mem_len": 20}, {"queries": True}),
    "memory of content": ({"mem_len": 7}, {"queries": False, "segments": False}),
    "memory, reuse_len": ({"mem_len": 7, "reuse_len": 4}, {"queries": True}),
    "memory, bi_data": ({"mem_len": 9, "reuse_len": 6, "bi_data": True, "clamp_len": 8}, {"queries": True}),
    "memory, uni": ({"mem_len": 7, "attn_type": "uni"}, {"queries": True, "batch": 1}),
}


def theirs_of(seed, architecture="XLNetLMHeadModel", **fields):
    """Returns a model of transformers with random weights, including norms and biases."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": VOCAB, "d_model": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "d_inner": 40, "mem_len": None}
    theirs = getattr(transformers, architecture)(transformers.XLNetConfig(**sizes | fields)).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return theirs


def ours_of(theirs, folder):
    theirs.save_pretrained(folder)
    return plm_jax.load(folder)


def rows_of(seed, queries=True, segments=True, order=True, padding=False, batch=BATCH):
    """Returns a batch in which the last tokens have a rank without being targets, like XLNet's separators."""
    rng = np.random.default_rng(seed)
    rows = {"tokens": rng.integers(0, VOCAB, (batch, LENGTH))}
    begins = rng.integers(0, 5, batch) if padding else np.zeros(batch, int)
    if padding:
        rows["mask"] = (np.arange(LENGTH) >= begins[:, None]).astype(np.int32)
    if segments:
        rows["token_types"] = np.sort(rng.integers(0, 2, (batch, LENGTH)), axis=1)
        rows["token_types"][:, -1] = 2
    targets = np.stack([begin + rng.permutation(LENGTH - 2 - begin)[:TARGETS] for begin in begins])
    if order:
        ranked = np.concatenate([targets, np.tile([LENGTH - 2, LENGTH - 1], (batch, 1))], axis=1)
        rows["order"] = np.full((batch, LENGTH), -1)
        np.put_along_axis(rows["order"], ranked, rng.permuted(np.tile(np.arange(TARGETS + 2), (batch, 1)), axis=1), 1)
    return rows | ({"target_positions": targets} if queries else {})


def hidden_pairs(rows, targets):
    """Returns XLNet's `perm_mask`, [B, L, L]: 1 if key j with a rank is hidden from query i."""
    order = rows["order"]
    of_query = order + 1
    np.put_along_axis(of_query, targets, np.take_along_axis(order, targets, 1), axis=1)
    return ((order[:, None, :] >= 0) & (of_query[:, :, None] <= order[:, None, :])).astype(np.float32)


def arguments(rows, targets):
    """Returns the arguments of transformers' models for a batch; `targets` are hidden from themselves."""
    inputs = {"input_ids": torch.tensor(rows["tokens"])}
    if "mask" in rows:
        inputs["attention_mask"] = torch.tensor(rows["mask"])
    if "token_types" in rows:
        inputs["token_type_ids"] = torch.tensor(rows["token_types"])
    if "order" in rows:
        inputs["perm_mask"] = torch.tensor(hidden_pairs(rows, targets))
    if "target_positions" in rows:
        inputs["target_mapping"] = torch.tensor(np.eye(LENGTH, dtype=np.float32)[rows["target_positions"]])
    return inputs


@functools.partial(jax.jit, static_argnames="module")
def streams(module, params, carry, rows):
    features, carry = module.apply({"params": params}, carry, **rows, method="streams")
    return module.apply({"params": params}, features, method="logits"), carry


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_logits_and_memory_equal_transformers(case, seed, tmp_path):
    """Compares three successive batches; their memory begins with zeros, as in XLNet's code."""
    fields, options = CASES[case]
    theirs = theirs_of(seed, **fields)
    lm = ours_of(theirs, tmp_path)
    batch, mem_len = options.get("batch", BATCH), fields.get("mem_len")
    module = registry.build(lm.config.with_speed(scan_layers=seed == 0))
    carry, memory = nn.unbox(registry.new_carry(module, batch)), None
    if mem_len:
        memory = [torch.zeros(mem_len, batch, theirs.config.d_model)] * LAYERS
    for number in range(3 if mem_len else 1):
        rows = rows_of([seed, number], **options)
        targets = rows_of([seed, number], **options | {"queries": True})["target_positions"]
        with torch.no_grad():
            output = theirs(**arguments(rows, targets), mems=memory, use_mems=bool(mem_len))
        memory = output.mems
        logits, carry = streams(module, lm.params, carry, rows)
        real = np.ones(logits.shape[:2], bool)
        if "mask" in rows and "target_positions" not in rows:
            real = rows["mask"] > 0
        assert logits.shape == output.logits.shape
        np.testing.assert_allclose(np.asarray(logits)[real], output.logits.numpy()[real], atol=1e-4)
        if mem_len:
            expected = torch.stack(memory).permute(2, 0, 1, 3)
            assert carry["memory"].shape == expected.shape == (batch, LAYERS, mem_len, theirs.config.d_model)
            np.testing.assert_allclose(carry["memory"], expected, atol=1e-4)
        else:
            assert carry == {}
