"""Evaluation compared with a walk over the rows, one by one, with all logits."""

import collections
import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import config, losses, models, objectives
from plm_jax.common.errors import UserError
from plm_jax.data.reader import Reader
from plm_jax.evaluation import perplexity
from plm_jax.inference.language_model import LanguageModel
from plm_jax.models import registry
from plm_jax.runs import setup
from tests.support import caches, tiny

VOCABULARY = config.VocabularyConfig(
    "bytes", bos=259, pad=256, eos=257, unk=258, cls=259, sep=260, mask=261, sentinels=8
)
SIZE, TEXT_IDS = 270, set(range(256)) | {258}
LENGTH = 24
PARTS = {
    "embedding": models.EmbeddingConfig(SIZE + 2, 16, token_types=2),
    "attention": models.AttentionConfig(2, 8, models.RelativeBias(8, 16)),
    "feed_forward": models.FeedForwardConfig(24),
    "stack": models.StackConfig(2),
    "dropout": models.DropoutConfig(0.5, 0.5, 0.5),
}
ENCODER = models.EncoderConfig(**PARTS, head=models.VocabularyHead(transform="relu", bias=True), pooler=models.Pooler())
WITHOUT_TYPES: dict[str, Any] = PARTS | {"embedding": models.EmbeddingConfig(SIZE, 16)}
ENCODER_DECODER = models.EncoderDecoderConfig(**WITHOUT_TYPES, decoder_stack=models.StackConfig(1))
DECODER = models.DecoderConfig(**WITHOUT_TYPES)
RUNS = {
    "causal": (DECODER, objectives.Causal(), config.Blocks()),
    "masked_lm": (ENCODER, objectives.MaskedLM(), config.Blocks()),
    "pairs": (ENCODER, objectives.MaskedLM(), config.SentencePairs(duplicates=2)),
    "span_corruption": (ENCODER_DECODER, objectives.SpanCorruption(noise_density=0.3), config.Blocks()),
    "denoising": (ENCODER_DECODER, objectives.Denoising(), config.Blocks()),
    "full_lm": (ENCODER_DECODER, objectives.FullLM(), config.Blocks()),
}


@pytest.fixture(scope="module")
def documents():
    """Token lists of each split; unk occurs in them."""
    rng = np.random.default_rng(0)
    letters = np.append(np.arange(97, 110), 258)
    return {
        split: [rng.choice(letters, rng.integers(20, 90), p=np.arange(1, 15) / 105) for _ in range(number)]
        for split, number in (("train", 30), ("validation", 9))
    }


@pytest.fixture(scope="module")
def cache_dir(documents, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    splits = {split: [(row, np.arange(0, len(row), 7)) for row in rows] for split, rows in documents.items()}
    vocabulary = {name: getattr(VOCABULARY, name) for name in (*config.SPECIALS, "sentinels")}
    caches.write(folder, "a", splits, SIZE, vocabulary | {"kind": "bytes"}, np.zeros(SIZE, np.bool_))
    return str(folder)


def make(cache_dir, name):
    """A run, and a model of it with random parameters."""
    model, objective, layout = (RUNS | {"electra": (tiny.ELECTRA, objectives.ReplacedToken(), config.Blocks())})[name]
    run = dataclasses.replace(
        tiny.PLAIN,
        model=model,
        objective=objective,
        vocabulary=VOCABULARY,
        data=dataclasses.replace(
            tiny.PLAIN.data, cache_dir=cache_dir, length=LENGTH, layout=layout, sources={"a": config.TextFiles("a")}
        ),
        evaluation=config.EvaluationConfig(batch_size=7),
    )
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32) / 3, registry.shapes(model))
    return run, LanguageModel(model, params, run=run, vocabulary_id="v")


def walk(run, lm):
    """Sums over the targets, row by row: of all, of those that are text, and of the pairs."""
    sums = collections.Counter()
    targets = []
    for row in Reader(config.reader_config(run)).in_order("validation", 1):
        inputs = {key: row[key] for key in ("tokens", "mask", "decoder_tokens", "token_types") if key in row}
        log_p = np.asarray(jax.nn.log_softmax(lm.logits(**inputs)[0]), np.float64)
        for i in np.flatnonzero(row["target_weights"][0]):
            target = int(row["targets"][0, i])
            scores = log_p[row["target_positions"][0, i] if "target_positions" in row else i]
            sums += {"tokens": 1, "nll": -scores[target], "hits": int(scores.argmax() == target)}
            if target in TEXT_IDS:
                targets.append(target)
                sums["real_nll"] -= scores[target]
        if "pair_label" in row:
            log_p = np.asarray(jax.nn.log_softmax(lm.logits(**inputs, head="sentence_pair")[0]), np.float64)
            label = int(row["pair_label"][0])
            sums += {"pairs": 1, "pair_nll": -log_p[label], "pair_hits": int(log_p.argmax() == label)}
            sums[f"label_{label}"] += 1
    return sums, targets


@pytest.mark.parametrize("name", RUNS)
def test_the_metrics_equal_a_walk_over_the_rows(documents, cache_dir, name):
    run, lm = make(cache_dir, name)
    sums, targets = walk(run, lm)
    counts = collections.Counter(np.concatenate(documents["train"]).tolist())
    total = sum(counts.values()) + SIZE
    text_share = len(targets) / sums["tokens"]
    want = {
        "length": LENGTH,
        "loss": sums["nll"] / sums["tokens"],
        "nll": sums["nll"] / sums["tokens"],
        "perplexity": math.exp(sums["nll"] / sums["tokens"]),
        "accuracy": sums["hits"] / sums["tokens"],
        "real_loss": sums["real_nll"] / len(targets),
        "unigram_loss": -np.mean([math.log(text_share * (counts[token] + 1) / total) for token in targets]),
        "tokens": sums["tokens"],
        "real_tokens": len(targets),
    }
    if name == "pairs":
        want |= {
            f"pair_{what}": sums[f"pair_{of}"] / sums["pairs"] for what, of in (("loss", "nll"), ("accuracy", "hits"))
        }
        want |= {"masked_lm_loss": want["nll"], "loss": want["nll"] + want["pair_loss"]}
        want["pairs"] = sums["pairs"]
        want["pair_constant_accuracy"] = max(sums["label_0"], sums["label_1"]) / sums["pairs"]
    if name == "causal":
        want["bits_per_byte"] = sums["nll"] / math.log(2) / len(targets)
    assert (len(targets) < sums["tokens"]) == (name not in ("masked_lm", "pairs"))
    assert 258 in targets
    metrics = perplexity.evaluate(lm, run, "a", show_progress=False)
    assert metrics.keys() == want.keys()
    for key, value in want.items():
        np.testing.assert_allclose(metrics[key], value, rtol=2e-5, err_msg=key)


@pytest.mark.parametrize("name", ["pairs", "electra"])
def test_validation_and_evaluation_say_the_same_of_the_same_rows(cache_dir, name):
    """Over several batches, of which the last is smaller, so that a mean of their means would be another."""
    run, lm = make(cache_dir, name)
    job = setup.build(run, devices=jax.devices()[:1])
    validated = job.validation(lm.params, job.programs.phases[0])
    metrics = perplexity.evaluate(lm, run, "a", show_progress=False)
    terms = {"pairs": ("masked_lm", "pair"), "electra": ("generator", "discriminator")}[name]
    for key in ("loss", "nll", "accuracy", f"{terms[1]}_accuracy", *(f"{term}_loss" for term in terms)):
        np.testing.assert_allclose(validated[key], metrics[key], rtol=1e-6, err_msg=key)
        np.testing.assert_allclose(validated[f"a/{key}"], metrics[key], rtol=1e-6, err_msg=key)
    assert abs(metrics["loss"] - metrics["nll"]) > 0.1


def test_custom_loss_without_likelihoods_is_evaluated(cache_dir):
    @dataclass(frozen=True)
    class Square(losses.Loss):
        kind: ClassVar[str] = "square"

        def weights(self, model, batch):
            return {"rows": batch["real"].sum()}

        def __call__(self, model, params, batch, rngs, carry):
            first = batch["tokens"][:, 0] * batch["real"]
            return {"rows": jnp.sum(first**2)}, {"rows": {"first": jnp.sum(first)}}, carry

    @dataclass(frozen=True)
    class First(objectives.MaskedLM):
        kind: ClassVar[str] = "first"
        loss: ClassVar[str] = "square"

        def apply(self, example, special, rng):
            return {"tokens": np.asarray(example["tokens"], np.int32), "real": np.float32(1)}

    try:
        run, lm = make(cache_dir, "masked_lm")
        run = dataclasses.replace(run, objective=First())
        firsts = [int(row["tokens"][0, 0]) for row in Reader(config.reader_config(run)).in_order("validation", 1)]
        metrics = perplexity.evaluate(lm, run, "a", show_progress=False)
    finally:
        del losses.Loss.choices["square"], objectives.Objective.choices["first"]
    want = {"loss": np.mean(np.square(firsts)), "first": np.mean(firsts), "length": LENGTH}
    assert metrics.keys() == want.keys() and len(firsts) > run.evaluation.batch_size
    assert metrics == pytest.approx(want)


def test_a_model_without_a_pair_head_is_evaluated_on_its_tokens(cache_dir):
    run, lm = make(cache_dir, "pairs")
    plain = LanguageModel(dataclasses.replace(lm.config, pooler=models.NoHead()), lm.params, vocabulary_id="v")
    without_pairs, with_pairs = (perplexity.evaluate(model, run, "a", show_progress=False) for model in (plain, lm))
    assert "pair_loss" not in without_pairs
    assert without_pairs["loss"] == pytest.approx(with_pairs["masked_lm_loss"])


def test_a_model_that_cannot_have_been_trained_so_is_refused(cache_dir):
    masked, spans = make(cache_dir, "masked_lm"), make(cache_dir, "span_corruption")
    with pytest.raises(UserError, match=r"of kind 'encoder', but config.model.kind is 'encoder_decoder'"):
        perplexity.evaluate(masked[1], spans[0], "a")
    headless = LanguageModel(dataclasses.replace(ENCODER, head=models.NoHead()), {}, vocabulary_id="v")
    with pytest.raises(UserError, match="no vocabulary head"):
        perplexity.evaluate(headless, masked[0], "a")
