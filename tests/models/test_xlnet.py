"""XLNet against transformers: both streams, memory, directions, gradients; and parameters of published sizes."""

import functools
import math
from dataclasses import replace

import flax.linen as nn
import jax
import numpy as np
import pytest
from flax import traverse_util

import plm_jax
from plm_jax import losses, models
from plm_jax.common.errors import UserError
from plm_jax.hub import families, tensor_layout
from plm_jax.models import registry
from plm_jax.training import flops

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
    rows = {"tokens": rng.integers(0, VOCAB, (batch, LENGTH), np.int32)}
    begins = rng.integers(0, 5, batch) if padding else np.zeros(batch, int)
    if padding:
        rows["mask"] = (np.arange(LENGTH) >= begins[:, None]).astype(np.int32)
    if segments:
        rows["token_types"] = np.sort(rng.integers(0, 2, (batch, LENGTH), np.int32), axis=1)
        rows["token_types"][:, -1] = 2
    targets = np.stack([begin + rng.permutation(LENGTH - 2 - begin)[:TARGETS] for begin in begins])
    if order:
        ranked = np.concatenate([targets, np.tile([LENGTH - 2, LENGTH - 1], (batch, 1))], axis=1)
        rows["order"] = np.full((batch, LENGTH), -1, np.int32)
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


@pytest.mark.parametrize(("seed", "scan", "remat"), [(0, True, "none"), (1, False, "full")])
def test_loss_and_gradients_equal_transformers(seed, scan, remat, tmp_path):
    """Compares the loss of queries with a memory, and the gradients of all parameters, memory without gradient."""
    theirs = theirs_of(seed, mem_len=7, reuse_len=6)
    lm = ours_of(theirs, tmp_path)
    module = registry.build(lm.config.with_speed(scan_layers=scan, remat=remat))
    loss, rows, rng = losses.get("permutation_lm"), rows_of(seed), np.random.default_rng(seed)
    carry = {"memory": rng.normal(size=(BATCH, LAYERS, 7, WIDTH)).astype(np.float32)}
    targets = np.take_along_axis(rows["tokens"], rows["target_positions"], axis=1)
    weights = np.ones(targets.shape, np.float32)
    weights[0, -2:] = 0
    batch = rows | {"targets": targets, "target_weights": weights}

    def mean(params, carry):
        terms, metrics, after = loss(module, params, batch, None, carry)
        (weight,) = loss.weights(module, batch).values()
        return terms["permutation_lm"] / weight, (metrics["permutation_lm"]["nll"] / weight, after)

    of_both = jax.jit(jax.value_and_grad(mean, argnums=(0, 1), has_aux=True))
    (value, (nll, after)), (grads, into_memory) = of_both(lm.params, carry)
    memory = list(torch.tensor(carry["memory"]).permute(1, 2, 0, 3))
    output = theirs(**arguments(rows, rows["target_positions"]), mems=memory, use_mems=True)
    labels = torch.tensor(np.where(weights > 0, targets, -100)).reshape(-1).long()
    expected = torch.nn.functional.cross_entropy(output.logits.reshape(-1, VOCAB), labels)
    expected.backward()
    np.testing.assert_allclose([value, nll], [expected.item()] * 2, atol=1e-5)
    np.testing.assert_allclose(after["memory"], torch.stack(output.mems).permute(2, 0, 1, 3), atol=1e-4)
    assert not np.any(into_memory["memory"])
    flat = {path: np.asarray(leaf) for path, leaf in traverse_util.flatten_dict(grads, sep="/").items()}
    named, compared = dict(theirs.named_parameters()), set()
    for name, stored in tensor_layout.layout(families.registered()["xlnet"].tensors, lm.config).items():
        np.testing.assert_allclose(stored.join(flat), named[name].grad, atol=1e-4, rtol=1e-4, err_msg=name)
        compared.update(piece.path for piece in stored.pieces)
    assert compared == flat.keys()


SIZES = {"base": (12, 768, 12, 116_718_336), "large": (24, 1024, 16, 360_268_800)}


@pytest.mark.parametrize("size", SIZES)
def test_parameters_of_published_sizes(size):
    layers, width, heads, bare = SIZES[size]
    fields = {"n_layer": layers, "d_model": width, "n_head": heads, "d_inner": 4 * width}
    model = families.registered()["xlnet"].to_settings(fields)

    def count(model):
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(registry.shapes(model)))

    assert count(model) == bare + 32_000
    assert count(replace(model, head=models.NoHead())) == bare


def test_positions_that_count_down_reverse_a_row(tmp_path):
    lm = ours_of(theirs_of(0, mem_len=7, bi_data=True), tmp_path)
    rows, carry = rows_of(0), {"memory": np.random.default_rng(0).normal(size=(BATCH, LAYERS, 7, WIDTH))}
    carry = jax.tree.map(np.float32, carry)
    expected = streams(registry.build(lm.config), lm.params, carry, rows)
    forward = np.arange(LENGTH, dtype=np.int32)
    rows |= {"positions": np.where(np.arange(BATCH)[:, None] < BATCH // 2, forward, 99 - forward)}
    module = registry.build(replace(lm.config, reverses_half=False))
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=1e-5), streams(module, lm.params, carry, rows), expected
    )


def test_the_memory_keeps_the_first_tokens(tmp_path):
    """Changes tokens beyond `reuse_len`, which the memory must not keep, and tokens before it."""
    lm = ours_of(theirs_of(0, mem_len=8, reuse_len=4), tmp_path)
    module, rows = registry.build(lm.config), rows_of(0, queries=False)
    start = nn.unbox(registry.new_carry(module, BATCH))
    memories = []
    for changed in (0, 5, 2):
        tokens = rows["tokens"].copy()
        tokens[:, changed] = (tokens[:, changed] + (changed > 0)) % VOCAB
        order = np.where(np.arange(LENGTH) < 4, 0, 1)[None].repeat(BATCH, 0)  # The first tokens see no later ones.
        memories.append(streams(module, lm.params, start, rows | {"tokens": tokens, "order": order})[1]["memory"])
    np.testing.assert_array_equal(memories[0], memories[1])
    assert np.abs(memories[0] - memories[2]).max() > 0.01
    assert not np.any(memories[0][:, :, :4])


@pytest.mark.parametrize("embedding_size", [None, 5])
@pytest.mark.parametrize(
    "fields", [{}, {"mem_len": None, "clamp_len": 4}, {"clamp_len": 50}, {"attn_type": "uni"}], ids=str
)
def test_flops_equal_the_products_of_a_program(fields, embedding_size):
    """Except for the projection of distances, which the rows of a batch share, and the half that is masked."""
    sizes = {"vocab_size": VOCAB, "d_model": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "d_inner": 40, "mem_len": 7}
    model, rows = families.registered()["xlnet"].to_settings(sizes | fields), rows_of(0)
    embedding, head = replace(model.embedding, embedding_size=embedding_size), replace(model.head, transform="relu")
    model = replace(model, embedding=embedding, head=head)
    carry, module = nn.unbox(model.new_carry(BATCH)), registry.build(model)
    traced = jax.make_jaxpr(lambda params: streams(module, params, carry, rows))(registry.shapes(model))
    keys = LENGTH + model.memory_length
    distances = 2 * min(keys, fields.get("clamp_len", keys)) + 1
    shared = 2 * LAYERS * distances * WIDTH * WIDTH
    masked = 2 * BATCH * LAYERS * 2 * WIDTH * (LENGTH + TARGETS) * LENGTH // 2 if model.causal else 0
    counted = flops.per_step(model, BATCH, LENGTH, targets=TARGETS) / 3
    assert flops.of_program(traced.jaxpr) == counted + shared + masked


def test_tasks_read_the_content_stream_without_a_memory():
    model = families.registered()["xlnet"].to_settings({"mem_len": 8, "reuse_len": 4, "bi_data": True})
    assert model.has_carry and model.token_types == 3
    task = model.with_task(models.ClassesHead(labels=("a", "b"), feature="last"))
    assert not task.has_carry and not task.reverses_half and not task.reuse_length
    assert list(task.named_heads) == ["task"]
    assert task.macs(16, 0) < model.macs(16, 4)


def test_invalid_settings_and_inputs():
    model = families.registered()["xlnet"].to_settings({"n_layer": 2, "d_model": 8, "n_head": 2, "mem_len": 3})
    with pytest.raises(UserError, match=r"stack\.groups"):
        replace(model, stack=models.StackConfig(2, groups=1))
    rows = {"tokens": np.zeros((1, 2), np.int32), "segment_ids": np.zeros((1, 2), np.int32)}
    carry, module = nn.unbox(model.new_carry(1)), registry.build(model)
    with pytest.raises(ValueError, match="segment_ids"):
        jax.eval_shape(lambda params: streams(module, params, carry, rows), registry.shapes(model))
