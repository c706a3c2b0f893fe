"""Heads: what a model makes of its features."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from plm_jax.common.roles import Role
from plm_jax.models.activations import Activation

if TYPE_CHECKING:
    from plm_jax.models.settings import Transformer


class Head(Role):
    """The base of heads' settings."""

    def products(self, model: "Transformer", length: int, targets: int) -> int:
        """Multiplications with its matrices, forward, for a row of so many tokens, so many of them targets."""
        del model, length, targets
        return 0


@dataclass(frozen=True)
class NoHead(Head):
    """Features only."""

    kind: ClassVar[str] = "none"


@dataclass(frozen=True)
class VocabularyHead(Head):
    """The projection to the vocabulary.

    Attributes:
      tied: it is the token table transposed.
      scale_by_width: features shrink by width ** -0.5 before it (T5 with a tied head).
      transform: before it comes a dense layer with this activation, and a norm (BERT's masked LM head).
      bias: it has a bias [vocab_size].
    """

    kind: ClassVar[str] = "vocabulary"
    tied: bool = True
    scale_by_width: bool = False
    transform: Activation | None = None
    bias: bool = False

    def products(self, model, length, targets):
        """At targets alone."""
        embedding = model.embedding
        transform = embedding.width * embedding.columns if self.transform else 0
        return targets * (embedding.columns * embedding.vocab_size + transform)


@dataclass(frozen=True)
class Pooler(Head):
    """A dense layer with tanh on the first position, and `classes` of the text from it (0: features only)."""

    kind: ClassVar[str] = "pooler"
    classes: int = 2


@dataclass(frozen=True)
class Discriminator(Head):
    """Whether each token was replaced: a dense layer with this activation, and one number (Clark et al. 2020 §2)."""

    kind: ClassVar[str] = "discriminator"
    activation: Activation = "gelu_exact"

    def products(self, model, length, targets):
        """At all tokens."""
        width = model.embedding.width
        return length * (width * width + width)


@dataclass(frozen=True)
class SpanBoundary(Head):
    """The tokens of a span from what lies on both sides of it (Joshi et al. 2020 §3.2), beside the vocabulary head.

    The defaults are those of the command in facebookresearch/SpanBERT, pretraining/README.md.

    Attributes:
      positions: how many tokens of a span, from its first on, are predicted.
      width: of the vectors that tell these apart.
      activation: of the two dense layers, each followed by a norm, before the token table transposed.
    """

    kind: ClassVar[str] = "span_boundary"
    positions: int = 15
    width: int = 200
    activation: Activation = "gelu_exact"

    def products(self, model, length, targets):
        """At targets alone."""
        width, columns = model.embedding.width, model.embedding.columns
        return targets * (columns * model.embedding.vocab_size + (2 * width + self.width) * width + width * columns)


@dataclass(frozen=True)
class Softmax(Head):
    """A matrix [vocab_size, width] and a bias [vocab_size], the same ones for both directions of an ELMo."""

    kind: ClassVar[str] = "softmax"
