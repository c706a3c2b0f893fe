"""ELECTRA's two losses and SpanBERT's second one against NumPy, row by row; what is drawn; what is counted."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import losses, models, objectives
from plm_jax.losses import replaced_token, vocabulary
from plm_jax.losses.means import means as of_sums
from plm_jax.models import electra, registry
from plm_jax.training import flops
from tests.models.test_encoder import apply
from tests.support import tiny

SPECIAL = objectives.Special(pad=257, cls=258, sep=259, mask=260, vocab_size=261)
LENGTH = 20


def make(objective, rows=4):
    """A batch: the last row is half padding, and one has fewer targets than slots."""
    rng = np.random.default_rng(0)
    examples = []
    for row in range(rows):
        tokens, mask = rng.integers(0, 256, LENGTH).astype(np.int32), np.ones(LENGTH, np.int32)
        if row == rows - 1:
            tokens[LENGTH // 2 :], mask[LENGTH // 2 :] = SPECIAL.pad, 0
        examples.append(objective({"tokens": tokens, "mask": mask}, rng))
    return {key: np.stack([example[key] for example in examples]) for key in examples[0]}


@functools.cache
def model_and_params(kind):
    model = {"electra": tiny.ELECTRA, "spanbert": tiny.SPANBERT}[kind]
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32) / 4, registry.shapes(model))
    return registry.build(model), params


ELECTRA = objectives.get("replaced_token", SPECIAL, rate=0.25)
SAMPLES = np.random.default_rng(2).integers(0, 256, (4, 5)).astype(np.int32)


def text_and_corrupted(batch, samples):
    """The tokens with the targets, and with the samples, in their places."""
    text, corrupted = batch["tokens"].copy(), batch["tokens"].copy()
    for row, slot in zip(*np.nonzero(batch["target_weights"]), strict=True):
        at = batch["target_positions"][row, slot]
        text[row, at], corrupted[row, at] = batch["targets"][row, slot], samples[row, slot]
    return text, corrupted


def nll_of(logits, batch):
    """Sum over the targets of their negative log-likelihood under logits [B, T, V]."""
    log_p = np.asarray(jax.nn.log_softmax(logits), np.float64)
    nll = -np.take_along_axis(log_p, batch["targets"][..., None], -1)[..., 0]
    return (nll * batch["target_weights"]).sum()


def logits_at_targets(module, params, batch):
    """All logits, of which those [B, T, V]."""
    logits = np.asarray(apply(module, params, batch["tokens"], batch["mask"]))
    return np.take_along_axis(logits, batch["target_positions"][..., None], 1)


def expected(module, params, batch, samples):
    """The mean over targets and 50 times the mean over tokens, and the metrics, with all logits."""
    at_targets = logits_at_targets(*electra.generator(module, params), batch)
    num_targets = batch["target_weights"].sum()
    text, corrupted = text_and_corrupted(batch, samples)
    features = apply(module, params, corrupted, batch["mask"], method="features")
    scores = np.asarray(apply(module, params, features, name="discriminator", method="head_output"), np.float64)
    replaced, real = text != corrupted, batch["mask"] == 1
    p_right = 1 / (1 + np.exp(np.where(replaced, -scores, scores)))
    found = {
        "nll": nll_of(at_targets, batch) / num_targets,
        "accuracy": ((at_targets.argmax(-1) == batch["targets"]) * batch["target_weights"]).sum() / num_targets,
        "discriminator_loss": -np.log(p_right)[real].mean(),
        "discriminator_accuracy": ((scores > 0) == replaced)[real].mean(),
        "replaced": replaced[real].mean(),
    }
    found |= {"generator_loss": found["nll"]}
    return found | {"loss": found["nll"] + 50 * found["discriminator_loss"]}


@functools.partial(jax.jit, static_argnames=("module", "sampler", "options"))
def sums(module, params, batch, rngs=None, sampler=None, options=()):
    """Returns the sums of the loss; `sampler` replaces the random sampler."""
    loss = losses.ReplacedTokenLoss(**dict(options))
    with pytest.MonkeyPatch.context() as patch:
        if sampler is not None:
            patch.setattr(replaced_token, "_sample", sampler)
        terms, metrics, _ = loss(module, params, batch, rngs, {})
    return losses.LossSums(terms, metrics, loss.weights(module, batch))


def means(module, params, batch, rngs=None, sampler=None, options=()):
    found = sums(module, params, batch, rngs, sampler, options)
    return {name: float(value) for name, value in of_sums(losses.ReplacedTokenLoss(**dict(options)), found).items()}


def test_losses_equal_the_published_formulas():
    batch = make(ELECTRA)
    assert 0 < batch["target_weights"].sum() < batch["target_weights"].size
    samples = np.where(np.arange(5) == 1, batch["targets"], SAMPLES)  # Some are the text's own.
    module, params = model_and_params("electra")
    got, want = means(module, params, batch, sampler=lambda *_: samples), expected(module, params, batch, samples)
    assert 0 < want["replaced"] < batch["target_weights"].sum() / batch["mask"].sum()
    assert got.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, err_msg=name)
    light = means(module, params, batch, options=(("discriminator_weight", 2.0),))
    np.testing.assert_allclose(light["loss"], light["nll"] + 2 * light["discriminator_loss"], rtol=1e-5)


def test_unused_slots_change_no_token():
    """Their position is 0, which may be a target's too."""
    batch = {
        "tokens": jnp.array([[7, 8, 9]]),
        "target_positions": jnp.array([[0, 2, 0, 0]]),
        "target_weights": jnp.array([[1.0, 1.0, 0.0, 0.0]]),
    }
    assert replaced_token._filled(batch, jnp.array([[1, 2, 0, 0]])).tolist() == [[1, 8, 2]]


def test_no_gradient_passes_through_samples():
    """The generator's own parameters move as in a masked language model, the shared tables by both losses."""
    batch, (module, params) = make(ELECTRA), model_and_params("electra")
    generator, own = electra.generator(module, params)

    def gradient(loss, module, params):
        return jax.jit(jax.grad(lambda params: sum(loss(module, params, batch, None, {})[0].values())))(params)

    both = gradient(losses.ReplacedTokenLoss(), module, params)
    alone = gradient(losses.MaskedLMLoss(), generator, own)
    for name, leaf in both["generator"].items():
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), leaf, alone[name])
    assert not np.allclose(both["token_embedding"], alone["token_embedding"], atol=1e-2)
    assert any(np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(both["discriminator_transform"]))


def test_generator_and_discriminator_have_dropout_masks_of_their_own(monkeypatch):
    features_of, used = vocabulary.features_of, []

    def record_keys(model, params, batch, rngs):
        used.append(jax.random.key_data(rngs["dropout"]).tolist())
        return features_of(model, params, batch, rngs)

    monkeypatch.setattr(vocabulary, "features_of", record_keys)
    rngs = {"dropout": jax.random.key(1), "sample": jax.random.key(2)}
    losses.ReplacedTokenLoss()(*model_and_params("electra"), make(ELECTRA), rngs, {})
    generator, discriminator = used
    assert generator != discriminator


def test_sums_of_microbatches_equal_those_of_the_batch():
    """Rows differ in targets and in tokens, so that means of means would not be the mean."""

    def sampler(features, *_):
        return (features.sum(-1) * 1000).astype(jnp.int32) % 256

    (module, params), whole = model_and_params("electra"), make(ELECTRA)
    parts = [{name: value[rows] for name, value in whole.items()} for rows in (slice(0, 2), slice(2, 4))]
    one, other = (sums(module, params, part, sampler=sampler) for part in parts)
    assert all(one.weights[name] != weight for name, weight in other.weights.items())
    both = jax.tree.map(np.add, one, other)
    want = sums(module, params, whole, sampler=sampler)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), both, want)


def test_samples_depend_on_the_key_only():
    batch, (module, params) = make(ELECTRA), model_and_params("electra")
    keys = [{"sample": jax.random.key(seed)} for seed in (1, 1, 2)]
    one, same, other = (means(module, params, batch, rngs)["discriminator_loss"] for rngs in keys)
    assert one == same != other
    assert means(module, params, batch) == means(module, params, batch)


def test_dropout_needs_its_key():
    batch, (_, params) = make(ELECTRA), model_and_params("electra")
    module = registry.build(tiny.with_dropout(tiny.ELECTRA, 0.2))
    sample = {"sample": jax.random.key(3)}
    plain = means(module, params, batch, sample)
    assert plain == means(model_and_params("electra")[0], params, batch, sample)
    dropped = means(module, params, batch, sample | {"dropout": jax.random.key(4)})
    assert dropped["nll"] != plain["nll"] and dropped["discriminator_loss"] != plain["discriminator_loss"]


@pytest.mark.parametrize("token", [0, 255])
def test_correct_samples_do_not_count_as_replaced(token):
    """A bias makes it say one token always: the accuracy is the share of samples that are the text's."""
    batch, (module, params) = make(ELECTRA), model_and_params("electra")
    batch["targets"][:2] = token
    generator = params["generator"] | {"head_bias": np.where(np.arange(272) == token, 1e4, 0.0).astype(np.float32)}
    found = means(module, params | {"generator": generator}, batch)
    wrong = ((batch["targets"] != token) * batch["target_weights"]).sum()
    np.testing.assert_allclose(found["replaced"], wrong / batch["mask"].sum(), rtol=1e-6)
    np.testing.assert_allclose(1 - found["accuracy"], wrong / batch["target_weights"].sum(), rtol=1e-6)


def test_samples_follow_the_softmax_for_every_chunk_size():
    rng, draws = np.random.default_rng(4), 4000
    features, matrix, bias = rng.normal(size=(3, 2)), rng.normal(size=(5, 2)), rng.normal(size=5)
    p = np.exp(features @ matrix.T + bias)
    p /= p.sum(-1, keepdims=True)
    rows = jnp.broadcast_to(features, (draws, 3, 2))
    drawn = [np.asarray(replaced_token._sample(rows, matrix, bias, jax.random.key(5), chunk)) for chunk in (1, 2, 3)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    np.testing.assert_array_equal(drawn[0], drawn[2])
    counts = np.stack([np.bincount(column, minlength=5) for column in drawn[0].T])
    assert (abs(counts - draws * p) < 5 * np.sqrt(draws * p * (1 - p))).all()
    np.testing.assert_allclose(np.corrcoef(drawn[0].T)[np.triu_indices(3, 1)], 0, atol=5 / np.sqrt(draws))


SPANBERT = objectives.get("span_masked_lm", SPECIAL, rate=0.4)


@functools.partial(jax.jit, static_argnames="module")
def masked_lm(module, params, batch):
    terms, metrics, _ = losses.MaskedLMLoss()(module, params, batch, None, {})
    return terms, metrics, losses.MaskedLMLoss().weights(module, batch)


def test_targets_are_predicted_from_masks_and_boundaries():
    batch, (module, params) = make(SPANBERT), model_and_params("spanbert")
    assert batch["target_offsets"].max() >= tiny.SPANBERT.span_boundary.positions, "some are beyond the head"
    terms, metrics, weights = masked_lm(module, params, batch)
    features = apply(module, params, batch["tokens"], batch["mask"], method="features")
    spans = [batch[f"target_{name}"] for name in ("left", "right", "offsets")]
    head, matrix, bias = apply(module, params, features, *spans, method="boundary_head")
    counted = batch | {"target_weights": batch["target_weights"] * (batch["target_offsets"] < 4)}
    of_spans, of_masks = (
        nll_of(head @ matrix.T + bias, counted),
        nll_of(logits_at_targets(module, params, batch), batch),
    )
    num_targets, num_counted = batch["target_weights"].sum(), counted["target_weights"].sum()
    assert weights == {"masked_lm": num_targets, "boundary": num_counted} and num_counted < num_targets
    np.testing.assert_allclose(terms["masked_lm"], of_masks, rtol=1e-5)
    np.testing.assert_allclose(terms["boundary"], of_spans, rtol=1e-5)
    found = of_sums(losses.MaskedLMLoss(), losses.LossSums(terms, metrics, weights))
    np.testing.assert_allclose(found["nll"], of_masks / num_targets, rtol=1e-5)
    np.testing.assert_allclose(found["boundary_loss"], of_spans / num_counted, rtol=1e-5)
    np.testing.assert_allclose(found["loss"], of_masks / num_targets + of_spans / num_counted, rtol=1e-5)


def test_span_masking_without_the_head_is_masked_language_modeling():
    batch, (_, params) = make(SPANBERT), model_and_params("spanbert")
    module = registry.build(dataclasses.replace(tiny.SPANBERT, span_boundary=models.NoHead()))
    terms, metrics, _ = masked_lm(module, params, batch)
    np.testing.assert_allclose(terms["masked_lm"], nll_of(logits_at_targets(module, params, batch), batch), rtol=1e-5)
    assert {name: own.keys() for name, own in metrics.items()} == {"masked_lm": {"nll", "accuracy"}}


@pytest.mark.parametrize("kind", ["electra", "spanbert"])
def test_flops_are_three_forward_passes(kind):
    """Products alone, loops as often as they run; the head where there are targets."""
    module, params = model_and_params(kind)
    rows, targets = 2, 3
    tokens, at = np.zeros((rows, LENGTH), np.int32), np.zeros((rows, targets), np.int32)

    def heads(model, params, features):
        part, matrix, _ = vocabulary.head(model, params, features[:, :targets])
        return jnp.einsum("btd,vd->btv", part, matrix)

    def forward(params):
        features = module.apply({"params": params}, tokens, method="features")
        if kind == "spanbert":
            part, matrix, _ = module.apply({"params": params}, features, at, at, at, method="boundary_head")
            return heads(module, params, features), jnp.einsum("btd,vd->btv", part, matrix)
        generator, own = electra.generator(module, params)
        generated = generator.apply({"params": own}, tokens, method="features")
        return heads(generator, own, generated), module.apply(
            {"params": params}, features, "discriminator", method="head_output"
        )

    counted = flops.of_program(jax.make_jaxpr(forward)(params).jaxpr)
    assert flops.per_step(module.model, rows, LENGTH, targets) == 3 * counted
