"""Every objective: its config, its loss, and the shapes that FLOPs are counted by."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import config, losses, models, objectives
from plm_jax.common.errors import UserError
from plm_jax.data.reader import blank_batch
from plm_jax.models import registry
from plm_jax.runs import phase_costs
from plm_jax.training import flops

PARTS = {
    "embedding": models.EmbeddingConfig(300, 16, token_types=2),
    "attention": models.AttentionConfig(2, 8, models.NoPositions()),
    "feed_forward": models.FeedForwardConfig(24),
    "stack": models.StackConfig(2),
}
MODELS = {
    "decoder": models.DecoderConfig(**PARTS),
    "encoder": models.EncoderConfig(**PARTS, head=models.VocabularyHead(bias=True), pooler=models.Pooler()),
    "encoder_decoder": models.EncoderDecoderConfig(**PARTS, decoder_stack=models.StackConfig(1)),
}


def make(objective):
    """A run of an objective with its defaults."""
    return config.Run(
        model=MODELS[objective.architectures[0]],
        objective=objective,
        data=config.DataConfig("cache", 64, {"a": config.TextFiles("a")}),
        vocabulary=config.VocabularyConfig("bytes", pad=256, eos=257, mask=258, bos=259, sentinels=30),
        optimizer=config.AdamWConfig(),
        schedule=config.ConstantSchedule(1e-3),
        train=config.TrainConfig(steps=5, batch_size=4),
    )


@pytest.mark.parametrize(
    "objective",
    [
        objectives.FullLM(),
        objectives.UL2(),
        objectives.ReplaceSpans(),
        objectives.PrefixLM(),
        objectives.MaskedLM(),
        objectives.Causal(),
        objectives.Denoising(insert=0.6),  # Its rows have 63 tokens.
    ],
    ids=lambda objective: objective.kind,
)
def test_row_lengths_equal_those_of_the_batch(objective):
    run = make(objective)
    assert config.from_dict(config.to_config_dict(run)) == run
    batch = blank_batch(config.reader_config(run), 64)
    (stage,) = config.resolve_phases(run)
    tokens, targets, decoder_length = phase_costs.row_lengths(run, stage)
    of_decoder = batch["decoder_tokens"].shape[1] if "decoder_tokens" in batch else 0
    assert (tokens, decoder_length) == (batch["tokens"].shape[1] + of_decoder, of_decoder)
    assert targets == batch["targets"].shape[1]
    assert phase_costs.model_flops(run, stage) == flops.per_step(
        run.model, 4, batch["tokens"].shape[1], targets, of_decoder
    )


def test_objective_rejects_other_architectures():
    run = make(objectives.PrefixLM())
    with pytest.raises(UserError, match="'prefix_lm' trains models of kind 'encoder_decoder'"):
        config.from_dict(config.to_dict(dataclasses.replace(run, model=MODELS["decoder"])))


def test_prefix_is_bidirectional_and_has_no_loss():
    """Token by token, what comes later replaced by anything."""
    run = make(objectives.DecoderPrefixLM())
    module, rng = registry.build(run.model, jnp.float32), np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.array(rng.normal(size=leaf.shape) / 4, jnp.float32), registry.shapes(run.model)
    )
    objective = objectives.BoundObjective(run.objective, objectives.Special(eos=1, vocab_size=300))
    rows = [objective({"tokens": rng.integers(2, 300, 13)}, rng) for _ in range(4)]
    batch = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    loss = losses.get(run.objective.loss)
    terms, _, _ = jax.jit(lambda batch: loss(module, params, batch, None, {}))(batch)
    asked = [(row, end) for row in rows for end in range(int(row["prefix_lengths"]), 13)]
    index = np.arange(12)
    seen = np.array([np.where(index < end, row["tokens"], rng.integers(2, 300, 12)) for row, end in asked])
    prefixes = np.array([row["prefix_lengths"] for row, _ in asked])
    logits = jax.jit(lambda *args: module.apply({"params": params}, args[0], prefix_lengths=args[1]))(seen, prefixes)
    log_p = np.asarray(jax.nn.log_softmax(logits), np.float64)
    expected = -sum(log_p[i, end - 1, row["targets"][end - 1]] for i, (row, end) in enumerate(asked))
    assert loss.weights(module, batch) == {"next_token": len(asked)}
    np.testing.assert_allclose(terms["next_token"], expected, rtol=1e-5)
    # Of a prefix each token sees the last: with another one, the first one's logits are others.
    (i, length) = next((i, n) for i, n in enumerate(prefixes.tolist()) if n > 1)
    changed = seen[i : i + 1].copy()
    changed[0, length - 1] = (changed[0, length - 1] + 1) % 300
    again = jax.jit(lambda tokens: module.apply({"params": params}, tokens, prefix_lengths=prefixes[i : i + 1]))(
        changed
    )
    assert np.abs(again[0, 0] - logits[i, 0]).max() > 1e-4
