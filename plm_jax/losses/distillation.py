"""Distillation: training of a model to predict like a frozen teacher (Hinton et al. 2015; Sanh et al. 2019)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.losses import vocabulary
from plm_jax.losses.cross_entropy import VocabularyShard, sum_over_vocabulary
from plm_jax.losses.loss import Loss, LossWrapper, Reference, Term
from plm_jax.losses.next_token import NextTokenLoss
from plm_jax.models import tables

_TEACHER = "teacher"


@dataclass(frozen=True)
class Distillation(LossWrapper):
    """The objective's own loss plus two terms that compare the trained model with the reference `teacher`.

    One term compares predictions, and the other compares last hidden states. Each of the two is left out if its
    coefficient is 0. The teacher reads the same noised row as the trained model, without dropout. The defaults are
    those of DistilBERT (Sanh et al. 2019; huggingface/transformers, research_projects/distillation, README).

    Attributes:
      alpha_ce: coefficient of T² · KL(teacher ‖ student), averaged over non-padding tokens. The distributions are the
        softmaxes of the logits divided by the temperature T.
      alpha_lm: coefficient of the objective's own loss.
      alpha_cos: coefficient of 1 - cosine similarity of the last hidden states of teacher and student, averaged over
        non-padding tokens; above 0, both models must have the same width.
      temperature: temperature T, which divides the logits of both models.
      only_targets: whether the divergence is averaged only over the targets of the objective, such as masked tokens.
    """

    kind: ClassVar[str] = "distillation"
    references: ClassVar[tuple[str, ...]] = (_TEACHER,)
    alpha_ce: ranges.Scale = 5.0
    alpha_lm: ranges.Scale = 2.0
    alpha_cos: ranges.Scale = 1.0
    temperature: ranges.Positive = 2.0
    only_targets: bool = False

    def __post_init__(self):
        if not self.alpha_ce and not self.alpha_cos:
            raise UserError(
                "config.train.loss has alpha_ce and alpha_cos of 0, so the teacher has no effect: set one of them"
            )

    @override
    def wrap(self, loss):
        if not isinstance(loss, NextTokenLoss):
            raise UserError(
                f"config.train.loss '{self.kind}' does not support the loss '{loss.kind}' of the objective: leave it "
                "out, or choose an objective that predicts masked or next tokens"
            )
        return DistillationLoss(base=loss, settings=self)


@dataclass(frozen=True)
class DistillationLoss(Loss):
    """The loss of `Distillation`: the terms of the objective's own loss, and the terms `divergence` and `cosine`.

    The term `divergence` is left out if `alpha_ce` is 0, and `cosine` if `alpha_cos` is 0.

    Attributes:
      base: loss of the objective.
      settings: coefficients and temperature.
    """

    kind: ClassVar[str] = "distillation"
    references: ClassVar[tuple[str, ...]] = (_TEACHER,)
    base: NextTokenLoss = field(default_factory=NextTokenLoss)
    settings: Distillation = Distillation()

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the heads that the objective's own loss needs."""
        return self.base.heads

    @property
    @override
    def coefficients(self):
        settings = self.settings
        of_base = dict.fromkeys((self.base.kind, *Term.choices), 1.0) | self.base.coefficients
        return {name: settings.alpha_lm * value for name, value in of_base.items()} | {
            "divergence": settings.alpha_ce * settings.temperature**2,
            "cosine": settings.alpha_cos,
        }

    @override
    def check_references(self, model, references):
        teacher = references[_TEACHER]
        if teacher.architecture != model.architecture:
            raise UserError(
                f"the teacher is a model of kind '{teacher.kind}', but config.model.kind is '{model.kind}': choose "
                "a teacher of the same kind"
            )
        if self.settings.alpha_ce and "vocabulary" not in teacher.named_heads:
            raise UserError(
                "the teacher has no vocabulary head to learn from: choose another teacher, or set "
                "config.train.loss.alpha_ce to 0"
            )
        if teacher.vocab_size != model.vocab_size:
            raise UserError(
                f"the teacher has {teacher.vocab_size:,} tokens, but config.model has {model.vocab_size:,}: choose a "
                "teacher with the same vocabulary"
            )
        widths = [getattr(each, "state_width", None) for each in (teacher, model)]
        if self.settings.alpha_cos and widths[0] != widths[1]:
            raise UserError(
                f"the hidden states of the teacher have a width of {widths[0]}, those of config.model of {widths[1]}: "
                "set config.train.loss.alpha_cos to 0, or choose a teacher of the same width"
            )

    @override
    def weights(self, model, batch):
        num_tokens = self.base.real_tokens(batch).sum()
        weights = self.base.weights(model, batch)
        if self.settings.alpha_ce:
            num_compared = jnp.sum(batch["target_weights"] > 0, dtype=jnp.float32)
            weights["divergence"] = num_compared if self.settings.only_targets else num_tokens
        return weights | ({"cosine": num_tokens} if self.settings.alpha_cos else {})

    @override
    def __call__(self, model, params, batch, rngs, carry, references: Mapping[str, Reference] = {}):
        """Returns the results of `Loss.__call__`. `references` contains the module and parameters of `teacher`."""
        features = vocabulary.features_of(model, params, batch, rngs)
        terms, metrics = self.base.of_features(model, params, features, batch)
        teacher, teacher_params = references[_TEACHER]
        expected = vocabulary.features_of(teacher, teacher_params, batch, None)
        real = self.base.real_tokens(batch)
        if self.settings.alpha_cos:
            terms["cosine"] = jnp.sum((1 - _cosine(features, expected)) * real)
        if self.settings.alpha_ce:
            if self.settings.only_targets:
                real = (batch["target_weights"] > 0).astype(jnp.float32)
                features, expected = (self.base.predicting(each, batch) for each in (features, expected))
            student_head = vocabulary.head(model, params, features)
            teacher_head = vocabulary.head(teacher, teacher_params, expected)
            # The logits of teacher and student are in memory at the same time.
            at_once = max(1, self.base.logits_at_once // 2)
            terms["divergence"] = linear_divergence(
                student_head, teacher_head, real, self.settings.temperature, at_once
            )
        return terms, metrics | {name: {} for name in terms.keys() - metrics.keys()}, carry


def linear_divergence(student_head, teacher_head, weights, temperature: float, logits_at_once: int):
    """Returns the weighted sum over tokens of KL(teacher ‖ student), with a limited number of logits in memory.

    Only the student's features, matrix and bias have a gradient.

    Args:
      student_head, teacher_head: results of `vocabulary.head`.
      weights: float32 [B, L].
      temperature: number that divides the logits of both models.
      logits_at_once: approximate number of logits of each model per device and chunk.
    """
    features, unembedding, bias = student_head
    teacher_features, teacher_matrix, teacher_bias = teacher_head
    shared = tables.array(teacher_matrix).astype(teacher_features.dtype), teacher_bias
    tokens = teacher_features, weights
    compute = Divergence(temperature)
    return sum_over_vocabulary(compute, features, unembedding, bias, tokens, shared, logits_at_once).loss


class DivergenceSums(NamedTuple):
    """Weighted sum of the divergence over tokens, in nats."""

    loss: Float[Array, ""]


class Divergence(NamedTuple):
    """KL(teacher ‖ student), as the argument `compute` of `sum_over_vocabulary`.

    Attributes:
      temperature: number that divides the logits of both models.
    """

    temperature: float

    def __call__(
        self, shard: VocabularyShard, logits, shared, with_gradients: bool, teacher_features_BCE, weights_BC
    ) -> tuple[DivergenceSums, jax.Array | None]:
        """Returns a pair: the sum over a chunk, and the gradient of the sum with respect to the student's logits.

        Args:
          shard: shard of the vocabulary.
          logits: the student's logits [b, C, v].
          shared: pair of the teacher's matrix [v, E] and the teacher's bias [v] or None.
          with_gradients: whether to return the gradient, [b, C, v], instead of None.
          teacher_features_BCE: features that the teacher's matrix is multiplied by.
          weights_BC: weights of the tokens.
        """
        student = shard.log_softmax(logits / self.temperature)
        teacher = shard.log_softmax(shard.logits(teacher_features_BCE, *shared) / self.temperature)
        shares = jnp.exp(teacher)
        # Rows of padding have a share of 0 and a logarithm of -inf.
        of_tokens = jax.lax.psum(jnp.where(shares > 0, shares * (teacher - student), 0.0).sum(-1), shard.axes)
        sums = DivergenceSums(jnp.sum(of_tokens * weights_BC))
        if not with_gradients:
            return sums, None
        return sums, (weights_BC / self.temperature)[..., None] * (jnp.exp(student) - shares)


def _cosine(x, y):
    """Returns the cosine similarity of vectors [..., D], float32 [...]."""
    x, y = x.astype(jnp.float32), y.astype(jnp.float32)
    squares = jnp.sum(x * x, -1) * jnp.sum(y * y, -1)
    return jnp.sum(x * y, -1) * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))
