"""The DeBERTa of a user's file against transformers: buckets, encoder, mask decoder, export."""

from dataclasses import fields, replace

import jax.numpy as jnp
import numpy as np
import pytest

import plm_jax
from plm_jax import config, objectives
from plm_jax.common.errors import UserError
from plm_jax.config import checks
from plm_jax.models import registry
from plm_jax.models.positions import SelfAttentionLayer
from tests.extending.test_extending import page

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

SIZES = {"vocab_size": 37, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40}
SCHEME = {"relative_attention": True, "share_att_key": True, "norm_rel_ebd": "layer_norm", "legacy": False}
SCHEME |= {"position_biased_input": False, "pos_att_type": ["p2c", "c2p"]}
CONFIGS = {
    "two_layers": {"num_hidden_layers": 2, "max_position_embeddings": 24, "position_buckets": 8},
    "beyond_the_buckets": {"num_hidden_layers": 2, "max_position_embeddings": 9, "position_buckets": 8},
    "one_layer": {"num_hidden_layers": 1, "max_position_embeddings": 64, "position_buckets": 32},
    "relu": {"num_hidden_layers": 3, "max_position_embeddings": 64, "position_buckets": 16, "hidden_act": "relu"},
    "wide_norm": {"num_hidden_layers": 2, "max_position_embeddings": 24, "position_buckets": 6, "layer_norm_eps": 0.1},
}
LENGTHS = (23, 15, 4)


def of_transformers(settings, seed):
    """Returns a `DebertaV2ForMaskedLM` with random weights, including norms and biases."""
    torch.manual_seed(seed)
    theirs = transformers.DebertaV2ForMaskedLM(transformers.DebertaV2Config(**SIZES, **SCHEME, **settings)).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return theirs


def padded_batch(seed):
    tokens = np.random.default_rng(seed).integers(1, SIZES["vocab_size"], (len(LENGTHS), max(LENGTHS)))
    mask = (np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]).astype(np.int32)
    return tokens * mask, mask


def assert_near(got, expected, mask, tolerance):
    """Compares real positions; padding has other masks in transformers."""
    is_real = mask > 0
    np.testing.assert_allclose(np.asarray(got)[is_real], expected.numpy()[is_real], atol=tolerance)


@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("seed", [0, 1])
def test_encoder_equals_transformers(settings, seed, tmp_path):
    page("deberta")
    theirs = of_transformers(settings, seed)
    theirs.save_pretrained(tmp_path / "theirs")
    tokens, mask = padded_batch(seed)
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens), torch.tensor(mask), output_hidden_states=True)
    ours = plm_jax.load(tmp_path / "theirs")
    states = ours.hidden_states(tokens, mask=mask)
    for got, hidden in zip(states, expected.hidden_states, strict=True):
        assert_near(got, hidden, mask, 1e-5)
    assert_near(ours.logits(tokens, mask=mask), expected.logits, mask, 1e-5)


def test_export_is_bit_equal_in_transformers(tmp_path):
    page("deberta")
    theirs = of_transformers(CONFIGS["two_layers"], seed=0)
    theirs.save_pretrained(tmp_path / "theirs")
    plm_jax.load(tmp_path / "theirs").save(tmp_path / "ours", format="huggingface")
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "ours").eval()
    assert type(again) is transformers.DebertaV2ForMaskedLM and not again.config.legacy
    tokens, mask = map(torch.tensor, padded_batch(0))
    with torch.no_grad():
        np.testing.assert_array_equal(again(tokens, mask).logits.numpy(), theirs(tokens, mask).logits.numpy())


@pytest.mark.parametrize("scan", [True, False])
@pytest.mark.parametrize(("name", "seed"), [("two_layers", 0), ("one_layer", 1), ("relu", 0)])
def test_mask_decoder_equals_last_layer_called_twice(name, seed, scan, tmp_path):
    """The reference calls transformers' last layer with queries of its own; transformers has no mask decoder."""
    deberta = page("deberta")
    theirs = of_transformers(CONFIGS[name], seed)
    theirs.save_pretrained(tmp_path / "theirs")
    encoder = plm_jax.load(tmp_path / "theirs")
    model = deberta.DebertaConfig(**{f.name: getattr(encoder.config, f.name) for f in fields(encoder.config)})
    model = model.with_speed(scan_layers=scan)
    positions = np.random.default_rng(seed).normal(size=(model.num_positions, SIZES["hidden_size"]))
    positions = positions.astype(np.float32)
    params = {**encoder.params, "position_embedding": positions}
    tokens, mask = padded_batch(seed)
    with torch.no_grad():
        states = theirs.deberta(torch.tensor(tokens), torch.tensor(mask), output_hidden_states=True).hidden_states
        stack, hidden = theirs.deberta.encoder, states[-2]
        inputs = {
            "attention_mask": stack.get_attention_mask(torch.tensor(mask)),
            "relative_pos": stack.get_rel_pos(hidden),
            "rel_embeddings": stack.get_rel_embedding(),
        }
        queries = hidden + torch.tensor(positions[: tokens.shape[1]])
        for _ in range(2):
            queries, _ = stack.layer[-1](hidden, query_states=queries, **inputs)
        expected = theirs.lm_predictions(queries, theirs.deberta.embeddings.word_embeddings)
    module = registry.build(model)
    assert_near(module.apply({"params": params}, tokens, mask, method="features"), queries, mask, 1e-5)
    assert_near(module.apply({"params": params}, tokens, mask), expected, mask, 1e-5)


def test_buckets_begin_at_published_distances():
    """Distances at which buckets begin, from microsoft/DeBERTa's make_log_bucket_position with 256 and 512."""
    begins = {131: 131, 132: 133, 134: 136, 136: 139, 150: 161, 175: 212, 200: 278, 225: 365, 250: 479, 255: 506}
    buckets = page("deberta").Disentangled().bucket_of_distance()
    np.testing.assert_array_equal(buckets[:129], np.arange(129))
    assert {bucket: int(np.argmax(buckets == bucket)) for bucket in begins} == begins
    assert buckets[511] == 255 and np.all(np.diff(buckets) >= 0)


@pytest.mark.parametrize(("length", "buckets"), [(512, 5), (5, 8)])
def test_invalid_buckets_are_rejected(length, buckets):
    with pytest.raises(UserError, match="set buckets to an even number, and length above half of it"):
        page("deberta").Disentangled(length, buckets)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("pos_att_type", "c2p", r'pos_att_type is .*must be \["p2c", "c2p"\]'),
        ("relative_attention", False, "relative_attention is False: must be true"),
        ("conv_kernel_size", 3, "conv_kernel_size is 3: must be 0"),
        ("position_buckets", -1, "position_buckets is -1: must be a positive integer"),
    ],
)
def test_other_variants_are_rejected(field, value, words):
    described = {**SIZES, **SCHEME, **CONFIGS["two_layers"], field: value}
    with pytest.raises(UserError, match=words):
        page("deberta").DebertaFamily().to_settings(described)


def test_variants_of_an_encoder_are_named_in_errors():
    run = config.from_dict(page("deberta").get_config("emd"))
    with pytest.raises(UserError, match=r"config\.model\.kind is 'deberta', a variant of 'encoder': change one"):
        checks.check(replace(run, objective=objectives.Causal()))


def test_normalized_table_is_dropped_before_projections():
    position, dropped, projected = page("deberta").Disentangled(8, 4, epsilon=0.0), [], []
    tables = {"relative_embedding": jnp.array(np.random.default_rng(0).normal(size=(8, 6)), jnp.float32)}
    tables |= {"relative_norm_scale": jnp.full(6, 3.0), "relative_norm_bias": jnp.full(6, 2.0)}

    def drop(x):
        dropped.append(x)
        return jnp.zeros_like(x)

    def project(name, x):
        projected.append(x)
        return x[None, :, :2]

    indices = jnp.arange(5)[None]
    layer = SelfAttentionLayer(0, {}, tables, project, drop, 1.0, indices, indices, {})
    query = jnp.ones((1, 1, 5, 2))
    assert not position.layer_bias(layer, query, query).any() and not any(x.any() for x in projected)
    np.testing.assert_allclose(dropped[0].mean(-1), 2.0, rtol=1e-5)
    np.testing.assert_allclose(dropped[0].std(-1), 3.0, rtol=1e-5)
