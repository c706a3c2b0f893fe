"""Comparison with T5's preprocessors for the same noise; skipped without the package."""

import functools

import numpy as np
import pytest

from plm_jax import objectives
from plm_jax.objectives import ul2

pytest.importorskip("t5.data")

import seqio
import tensorflow as tf
from t5.data import preprocessors

SIZE = 32_100
T5 = objectives.Special(pad=0, eos=1, unk=2, sentinels=tuple(range(32_099, 31_999, -1)), vocab_size=SIZE)
TOKENS = np.random.default_rng(0).integers(3, 32_000, 568).astype(np.int32)
FEATURES = {
    name: seqio.Feature(seqio.PassThroughVocabulary(SIZE, eos_id=1), add_eos=True) for name in ("inputs", "targets")
}
SPANS = preprocessors.noise_span_to_unique_sentinel, preprocessors.nonnoise_span_to_unique_sentinel


def theirs(seed, noise_fn, inputs_fn, targets_fn=None, density=0.15, tokens=TOKENS):
    """Returns inputs and targets by T5's rules, T5's noise, and the seeds of the inputs."""
    seed = tf.constant([0, seed], tf.int32)
    result = preprocessors.single_example_denoise(
        {"targets": tf.constant(tokens)},
        seed,
        output_features=FEATURES,
        noise_density=density,
        noise_mask_fn=noise_fn,
        inputs_fn=inputs_fn,
        targets_fn=targets_fn,
    )
    seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 6))
    noise = noise_fn(tf.constant(len(tokens)), density, seeds=seeds[:2]).numpy()
    return [result[name].numpy().tolist() for name in ("inputs", "targets")], noise, seeds[2:4]


class Draws(np.random.Generator):
    """A random generator that returns T5's draws one after another."""

    def __init__(self, *draws):
        super().__init__(np.random.PCG64(0))
        self._draws = list(draws)

    def _next(self, *arguments, size=None):
        drawn = np.copy(self._draws.pop(0))
        assert size is None or np.shape(drawn) == (size,)
        return drawn

    random = integers = permutation = _next


def assert_same(settings, draws, expected, tokens=TOKENS):
    """Asserts that plm_jax with these draws equals the expected result, also for complete rows of seqio."""
    actual = settings.corrupt(tokens, T5, Draws(*draws))
    assert [row.tolist() for row in actual] == expected
    result = settings.apply({"tokens": tokens}, T5, Draws(*draws))
    lengths = {"inputs": len(result["tokens"]), "targets": len(result["targets"])}
    rows = tf.data.Dataset.from_tensors(dict(zip(lengths, map(tf.constant, expected), strict=True)))
    (ended,) = seqio.preprocessors.append_eos_after_trim(rows, FEATURES, lengths).as_numpy_iterator()
    np.testing.assert_array_equal(result["tokens"][result["mask"] > 0], ended["inputs"])
    np.testing.assert_array_equal(result["targets"][result["target_weights"] > 0], ended["targets"])


def uniform(chosen):
    """Returns draws whose smallest values select these positions."""
    return np.where(chosen, 0.0, 0.999)


@pytest.mark.parametrize("length", [128, 256, 512, 1024, 2048])
@pytest.mark.parametrize(("density", "mean"), [(0.15, 3.0), (0.15, 8.0), (0.25, 5.0)])
def test_lengths(length, density, mean):
    settings = objectives.SpanCorruption(density, mean)
    actual = settings.input_length(length), settings.target_length(length)
    assert actual == preprocessors.random_spans_helper(length, density, mean, 1, 1)


def cuts(sizes):
    """Returns draws that partition tokens into these runs; empty for a single run."""
    chosen = np.isin(np.arange(sum(sizes) - 1), np.cumsum(sizes)[:-1] - 1)
    return [uniform(chosen)] if chosen.any() else []


def runs(noise):
    """Returns the lengths of the runs of clean tokens and of noise."""
    edges = np.concatenate([[0], 1 + np.flatnonzero(np.diff(noise)), [len(noise)]])
    sizes = np.diff(edges)
    return sizes[::2], sizes[1::2]


@pytest.mark.parametrize("denoiser", range(7))
@pytest.mark.parametrize("seed", range(3))
def test_span_corruption_and_the_denoisers_of_ul2(denoiser, seed):
    """The first one is plain span corruption. T5 has no modes, which precede the inputs."""
    settings = objectives.UL2().denoisers[denoiser]
    noise_fn = functools.partial(
        preprocessors.random_spans_noise_mask, mean_noise_span_length=settings.mean_span_length
    )
    tokens = TOKENS[: objectives.UL2().input_length(512)]
    expected, noise, _ = theirs(seed, noise_fn, *SPANS, settings.noise_density, tokens)
    draws = [draw for sizes in runs(noise) for draw in cuts(sizes)]
    plain = objectives.SpanCorruption(settings.noise_density, settings.mean_span_length)
    assert_same(plain, draws, expected, tokens)
    mode = T5.sentinels[ul2.MODES.index(settings.mode) - 3]
    alone = objectives.UL2((settings,))
    assert_same(alone, [0.5, *draws], [[mode, *expected[0]], expected[1]], tokens)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("settings", "rules"),
    [
        (objectives.ReplaceSpans(), SPANS),
        (objectives.DropTokens(), (preprocessors.drop_noise_tokens, preprocessors.drop_nonnoise_tokens)),
        (objectives.MaskTokens(random_share=0.0), (preprocessors.noise_token_to_sentinel,)),
    ],
)
def test_iid_noise(settings, rules, seed):
    expected, noise, _ = theirs(seed, preprocessors.iid_noise_mask, *rules)
    assert_same(settings, [uniform(noise)], expected)


@pytest.mark.parametrize("seed", range(3))
def test_bert_style(seed):
    rule = preprocessors.noise_token_to_random_token_or_sentinel
    expected, noise, seeds = theirs(seed, preprocessors.iid_noise_mask, rule)
    is_random = tf.random.stateless_uniform([len(TOKENS)], seed=seeds[0]).numpy()[noise]
    ids = tf.random.stateless_uniform([len(TOKENS)], minval=3, maxval=SIZE, dtype=tf.int32, seed=seeds[1]).numpy()
    # plm_jax counts the ids that are not special; T5's first one is 3.
    assert_same(objectives.MaskTokens(), [uniform(noise), is_random, ids[noise][is_random < 0.1] - 3], expected)


@pytest.mark.parametrize("seed", range(3))
def test_deshuffling(seed):
    everywhere = lambda length, density, seeds: tf.ones([length], tf.bool)  # noqa: E731
    expected, _, seeds = theirs(seed, everywhere, preprocessors.permute_noise_tokens)
    shuffled = seqio.stateless_shuffle(tf.constant(TOKENS), seeds[0]).numpy()
    assert_same(objectives.Deshuffling(), [shuffled], expected)


@pytest.mark.parametrize("seed", range(3))
def test_prefix_lm(seed):
    rules = preprocessors.drop_nonnoise_tokens, preprocessors.drop_noise_tokens
    expected, noise, _ = theirs(seed, preprocessors.random_prefix_noise_mask, *rules, density=0.5)
    assert_same(objectives.PrefixLM(), [int(noise.sum())], expected)


def test_decoder_prefix():
    """T5 shifts right after pad, plm_jax begins with the text; predictions and bidirectional prefixes agree."""
    text = tf.data.Dataset.from_tensors({"targets": tf.constant(TOKENS)})
    (row,) = preprocessors.pack_prefix_lm_decoder_only(text, {"targets": len(TOKENS)}).as_numpy_iterator()
    weights = row["decoder_loss_weights"]
    split = len(TOKENS) - int(weights.sum())
    result = objectives.get("decoder_prefix_lm", T5)({"tokens": TOKENS}, Draws(split))
    np.testing.assert_array_equal(result["targets"][result["target_weights"] > 0], row["decoder_target_tokens"][split:])
    assert result["prefix_lengths"] == split == row["decoder_causal_attention"].sum() - 1
    np.testing.assert_array_equal(result["tokens"][:split], row["decoder_input_tokens"][1 : split + 1])


def test_full_lm():
    """T5's rows of documents that fit its random chunks, joined with eos and split."""
    sizes = np.random.default_rng(1).integers(1, 200, 20)
    documents = [TOKENS[:size] for size in sizes]
    signature = {"targets": tf.TensorSpec([None], tf.int32)}
    result = tf.data.Dataset.from_generator(
        lambda: ({"targets": document} for document in documents), output_signature=signature
    )
    rows = preprocessors.full_lm(result, {"targets": 64}, {"targets": FEATURES["targets"]})
    stream = np.concatenate([np.append(document, T5.eos) for document in documents])
    objective, count = objectives.get("full_lm", T5), 0
    for row in rows.as_numpy_iterator():
        tokens = stream[count : count + objective.input_length(64)]
        assert objective({"tokens": tokens}, None)["targets"].tolist() == row["targets"].tolist()
        count += len(tokens)
    assert count == len(stream) and objective.separator == T5.eos
