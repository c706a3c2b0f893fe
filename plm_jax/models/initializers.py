"""Initializers of a model's parameters.

Matrices are [in, out]; tables of embeddings and unembeddings are [rows, width].
"""

from dataclasses import dataclass
from typing import ClassVar

from flax.linen import initializers
from flax.typing import Initializer

from plm_jax.common import ranges


@dataclass(frozen=True)
class InitializerConfig:
    """Normal initialization.

    Attributes:
      std: standard deviation of the distribution before truncation.
      shrink_residual: whether `std` is divided by sqrt(2 · n) for projections that write to the residual stream; n is
        the number of transformer blocks in the stack.
      truncated: whether the distribution is truncated at two standard deviations.
    """

    kind: ClassVar[str] = "normal"
    std: ranges.Scale = 0.02
    shrink_residual: bool = False
    truncated: bool = False

    def normal(self, std: float) -> Initializer:
        """Returns a normal initializer with this standard deviation, truncated if `truncated` is set."""
        return initializers.truncated_normal(std) if self.truncated else initializers.normal(std)

    def matrix(self) -> Initializer:
        """Returns the initializer of a weight matrix."""
        return self.normal(self.std)

    def query(self, head_dim: int) -> Initializer:
        """Returns the initializer of the projection to queries."""
        return self.matrix()

    def residual(self, blocks: int) -> Initializer:
        """Returns the initializer of a matrix that writes to the residual stream of a stack of `blocks` blocks."""
        return self.normal(self.std / (2 * blocks) ** 0.5 if self.shrink_residual else self.std)

    def table(self) -> Initializer:
        """Returns the initializer of a table of embeddings."""
        return self.normal(self.std)

    def unembedding(self) -> Initializer:
        """Returns the initializer of the matrix of a vocabulary head that is not tied to the embeddings."""
        return self.table()

    def score_bias(self) -> Initializer:
        """Returns the initializer of a table [rows, heads] of biases that are added to attention scores."""
        return self.normal(self.std)


@dataclass(frozen=True)
class FanInConfig:
    """Initialization with variance 1 / inputs for weight matrices [inputs, outputs], and 1 for token embeddings.

    The defaults are those of T5 (google-research/t5x, examples/t5/layers.py).

    Attributes:
      unscaled_scores: whether the projection to queries has variance 1 / (inputs · head_dim), for attention that does
        not scale its scores (T5). If False, this projection is initialized like the other matrices (PaLM).
    """

    kind: ClassVar[str] = "fan_in"
    unscaled_scores: bool = True

    def normal(self, std: float) -> Initializer:
        """Returns a normal initializer with this standard deviation."""
        return initializers.normal(std)

    def matrix(self) -> Initializer:
        """Returns the initializer of a weight matrix."""
        return initializers.variance_scaling(1.0, "fan_in", "truncated_normal")

    def query(self, head_dim: int) -> Initializer:
        """Returns the initializer of the projection to queries."""
        variance = 1 / head_dim if self.unscaled_scores else 1.0
        return initializers.variance_scaling(variance, "fan_in", "truncated_normal")

    def residual(self, blocks: int) -> Initializer:
        """Returns the initializer of a matrix that writes to the residual stream."""
        return self.matrix()

    def table(self) -> Initializer:
        """Returns the initializer of a table of embeddings."""
        return self.normal(1.0)

    def unembedding(self) -> Initializer:
        """Returns the initializer of the matrix of a vocabulary head that is not tied to the embeddings."""
        return initializers.variance_scaling(1.0, "fan_in", "truncated_normal", in_axis=1, out_axis=0)

    def score_bias(self) -> Initializer:
        """Returns the initializer of a table [rows, heads] of biases that are added to attention scores."""
        return initializers.variance_scaling(1.0, "fan_avg", "uniform")


@dataclass(frozen=True)
class TorchLinearConfig:
    """Initialization of XLM: PyTorch's default for `Linear`, and token embeddings with variance 1 / width.

    Weights of matrices [inputs, outputs] are drawn uniformly between -inputs ** -0.5 and inputs ** -0.5
    (facebookresearch/XLM, xlm/model/transformer.py). Biases are 0, unlike in PyTorch.
    """

    kind: ClassVar[str] = "torch_linear"

    def normal(self, std: float) -> Initializer:
        """Returns a normal initializer with this standard deviation."""
        return initializers.normal(std)

    def matrix(self) -> Initializer:
        """Returns the initializer of a weight matrix."""
        return initializers.variance_scaling(1 / 3, "fan_in", "uniform")

    def query(self, head_dim: int) -> Initializer:
        """Returns the initializer of the projection to queries."""
        return self.matrix()

    def residual(self, blocks: int) -> Initializer:
        """Returns the initializer of a matrix that writes to the residual stream."""
        return self.matrix()

    def table(self) -> Initializer:
        """Returns the initializer of a table of embeddings."""
        return initializers.variance_scaling(1.0, "fan_in", "normal", in_axis=1, out_axis=0)

    def unembedding(self) -> Initializer:
        """Returns the initializer of the matrix of a vocabulary head that is not tied to the embeddings."""
        return initializers.variance_scaling(1 / 3, "fan_in", "uniform", in_axis=1, out_axis=0)

    def score_bias(self) -> Initializer:
        """Returns the initializer of a table [rows, heads] of biases that are added to attention scores."""
        return initializers.variance_scaling(1 / 3, "fan_in", "uniform")


Initialization = InitializerConfig | FanInConfig | TorchLinearConfig
