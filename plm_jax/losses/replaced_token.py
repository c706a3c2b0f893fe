"""Replaced token detection."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.common.keys import named_key
from plm_jax.losses import vocabulary
from plm_jax.losses.cross_entropy import chunk_length
from plm_jax.losses.loss import Loss, LossWrapper, num_targets
from plm_jax.models import electra, tables
from plm_jax.models.partitioning import local_shape

# Array of the batch that passes samples from one update of a step to the next.
_SAMPLED = "sampled"


@dataclass(frozen=True)
class ReplacedTokenLoss(Loss):
    """The loss of the generator plus the loss of the discriminator (ELECTRA, Clark et al. 2020 §3.1).

    The generator's loss is its cross-entropy at `target_positions`. The discriminator reads the text with each target
    replaced by a sample of the generator, and predicts which tokens differ from the original text. A sample may equal
    the target. The discriminator's loss is its binary cross-entropy at all non-padding tokens. Samples are drawn with
    the key `sample`, and no gradient passes through them. If no keys are passed, as in validation, the samples of all
    batches are drawn with the same key.

    Attributes:
      discriminator_weight: coefficient of the discriminator's mean loss over tokens; the generator's mean loss over
        targets has the coefficient 1.
    """

    kind: ClassVar[str] = "replaced_token"
    heads: ClassVar[tuple[str, ...]] = ("vocabulary", "discriminator")
    samples: ClassVar[bool] = True
    discriminator_weight: ranges.Scale = 50.0

    @property
    @override
    def coefficients(self):
        return {"discriminator": self.discriminator_weight}

    @override
    def weights(self, model, batch):
        return {"generator": num_targets(batch), "discriminator": batch["mask"].astype(jnp.float32).sum()}

    @override
    def __call__(self, model, params, batch, rngs, carry):
        """Returns the results of `Loss.__call__`.

        The metric `replaced` counts the tokens that differ from the original text.
        """
        head, sampled = self._generate(model, params, batch, rngs)
        generator, of_generator = vocabulary.sums(self, *head, batch)
        discriminator, of_discriminator = self._sum_discriminator(model, params, batch, sampled, rngs)
        terms = {"generator": generator, "discriminator": discriminator}
        return terms, {"generator": of_generator, "discriminator": of_discriminator}, carry

    @override
    def scores(self, model, params, batch):
        _, sampled = self._generate(model, params, batch, None)
        logits, replaced = self._discriminate(model, params, batch, sampled, None)
        return {"discriminator": (logits, replaced > 0, batch["mask"] > 0)}

    def _generate(self, model, params, batch, rngs):
        """Runs the generator and samples a token for each target.

        Returns:
          A pair: the result of `vocabulary.head` for the generator, and the samples, int32 [B, T].
        """
        generator, generator_params = electra.generator(model, params)
        keys = rngs or {"sample": jax.random.key(0)}
        generator_keys = {name: named_key(key, "generator") for name, key in keys.items()}
        features = vocabulary.features_of(generator, generator_params, batch, generator_keys)
        head = vocabulary.head(generator, generator_params, vocabulary.at_targets(features, batch))
        features, unembedding, bias = jax.lax.stop_gradient(head)
        rows, length = local_shape(features.shape[:2], "batch", None)
        chunk = chunk_length(rows, length, generator.model.vocab_size, self.logits_at_once)
        return head, _sample(features, tables.array(unembedding), bias, keys["sample"], chunk)

    def _discriminate(self, model, params, batch, sampled, rngs):
        """Runs the discriminator on a text whose targets are replaced by `sampled` [B, T].

        Returns:
          A pair: the logits [B, L], and a mask of the tokens that differ from the original text, float32 [B, L].
        """
        keys = rngs or {"sample": jax.random.key(0)}
        text, corrupted = _filled(batch, batch["targets"]), _filled(batch, sampled)
        replaced = (text != corrupted).astype(jnp.float32)
        features = vocabulary.features_of(model, params, batch | {"tokens": corrupted}, keys)
        return model.apply({"params": params}, features, "discriminator", method="head_output"), replaced

    def _sum_discriminator(self, model, params, batch, sampled, rngs):
        """Returns a pair: the sum of the discriminator's loss over non-padding tokens, and the sums of its metrics."""
        logits, replaced = self._discriminate(model, params, batch, sampled, rngs)
        mask = batch["mask"].astype(jnp.float32)
        metrics = {
            "discriminator_accuracy": jnp.sum(mask * (jnp.where(replaced > 0, logits, -logits) > 0)),
            "replaced": jnp.sum(mask * replaced),
        }
        return jnp.sum(mask * (jax.nn.softplus(logits) - replaced * logits)), metrics


@dataclass(frozen=True)
class ReplacedTokenTerm(LossWrapper):
    """One of the two terms of replaced token detection, for one of several updates per step (`train.updates`).

    An update with the term `generator` must come first. The update with the term `discriminator` reads the samples of
    the generator, as in DeBERTaV3 (He et al. 2023 §3.3; microsoft/DeBERTa, apps/tasks/rtd_task.py).

    Attributes:
      term: term that the update minimizes.
    """

    kind: ClassVar[str] = "replaced_token_term"
    needs_updates: ClassVar[bool] = True
    term: Literal["generator", "discriminator"] = "generator"

    @override
    def wrap(self, loss):
        if not isinstance(loss, ReplacedTokenLoss):
            raise UserError(
                f"the loss '{self.kind}' does not support the loss '{loss.kind}' of the objective: leave it out, or "
                "choose the objective replaced_token"
            )
        settings = {each.name: getattr(loss, each.name) for each in dataclasses.fields(loss)}
        return ReplacedTokenTermLoss(**settings, term=self.term)


@dataclass(frozen=True)
class ReplacedTokenTermLoss(ReplacedTokenLoss):
    """The loss of `ReplacedTokenTerm`.

    The array `sampled` [B, T] of the carry passes the generator's samples to the update of the discriminator.

    Attributes:
      term: name of the only term.
    """

    kind: ClassVar[str] = "replaced_token_term"
    term: Literal["generator", "discriminator"] = "generator"

    @override
    def weights(self, model, batch):
        return {self.term: super().weights(model, batch)[self.term]}

    @override
    def __call__(self, model, params, batch, rngs, carry):
        """Returns the results of `Loss.__call__`, with only the term `term`.

        Raises:
          UserError: the term is `discriminator`, and no update before it in the step has the term `generator`.
        """
        if self.term == "generator":
            head, sampled = self._generate(model, params, batch, rngs)
            total, metrics = vocabulary.sums(self, *head, batch)
            return {self.term: total}, {self.term: metrics}, carry | {_SAMPLED: sampled}
        if _SAMPLED not in batch:
            raise UserError(
                "config.train.updates train the discriminator without samples: put an update with the term 'generator' "
                "before it"
            )
        total, metrics = self._sum_discriminator(model, params, batch, batch[_SAMPLED], rngs)
        return {self.term: total}, {self.term: metrics}, carry


def _sample(features, unembedding, bias, key, chunk):
    """Samples tokens from the softmax of features [B, T, E] @ unembedding.T + bias; returns int32 [B, T].

    The T slots are processed in chunks of `chunk` slots. Each slot has its own key, so neither the chunk size nor the
    mesh changes the samples.
    """
    matrix = unembedding.astype(features.dtype)

    def one(slot):
        features_BE, key = slot
        logits = jnp.einsum("be,ve->bv", features_BE, matrix, preferred_element_type=jnp.float32)
        return jax.random.categorical(key, logits if bias is None else logits + bias)

    slots = features.swapaxes(0, 1), jax.random.split(key, features.shape[1])
    return jax.lax.map(one, slots, batch_size=chunk).swapaxes(0, 1)


def _filled(batch, values):
    """Returns `tokens` [B, L] with `values` [B, T] at the target positions."""

    def of_row(tokens, positions, values, weights):
        # `add` rather than `set`: unused slots all have the same position.
        return tokens.at[positions].add(jnp.where(weights > 0, values - tokens[positions], 0))

    return jax.vmap(of_row)(batch["tokens"], batch["target_positions"], values, batch["target_weights"])
