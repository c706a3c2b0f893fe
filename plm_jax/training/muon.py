"""Muon: momentum with orthogonalized updates of matrices (Jordan et al. 2024; Liu et al. 2025, arXiv:2502.16982)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.models.stack import is_stacked
from plm_jax.training.optimizers import HIDDEN_MATRICES, OptimizerConfig, map_tensors, path_name

# Coefficients of the Newton-Schulz iteration (KellerJordan/Muon), which bring singular values to about 0.7 to 1.2.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


@dataclass(frozen=True)
class MuonConfig(OptimizerConfig):
    """Muon, for the matrices of a model's layers; set it in the `groups` of the optimizer of all other parameters.

    Attributes:
      momentum: decay rate of the momentum.
      nesterov: whether to use Nesterov momentum.
      weight_decay: coefficient of weight decay, which is multiplied by the learning rate.
      scaling: factor on the update of a matrix with n inputs and m outputs: `original` is √max(1, m / n);
        `match_rms_adamw` is 0.2 √max(m, n), so that learning rates of AdamW can be reused.
      steps: number of Newton-Schulz iterations.
      epsilon: minimum of the Frobenius norm by which a matrix is divided before the iterations.
    """

    kind: ClassVar[str] = "muon"
    recipe: ClassVar[tuple[str, ...]] = (
        *("momentum", "nesterov", "weight_decay", "scaling", "steps", "epsilon"),
        *OptimizerConfig.recipe,
    )
    momentum: ranges.ShareBelowOne = 0.95
    nesterov: bool = True
    weight_decay: ranges.Scale = 0.0
    scaling: Literal["original", "match_rms_adamw"] = "original"
    steps: Annotated[int, ranges.Range(1, 100)] = 5
    epsilon: ranges.Epsilon = 1e-7

    @override
    def transformations(self) -> Sequence[optax.GradientTransformation]:
        def init(params):
            for path, leaf in jax.tree_util.tree_leaves_with_path(params):
                if leaf.ndim != 2 + is_stacked(path):
                    raise UserError(
                        f"Muon updates only matrices, and {path_name(path)} is not a matrix: use Muon in "
                        f"config.optimizer.groups with a pattern such as {HIDDEN_MATRICES}"
                    )
            return optax.TraceState(jax.tree.map(jnp.zeros_like, params))

        def update(updates, state, params=None):
            del params
            momenta = jax.tree.map(self._interpolated, updates, state.trace)
            updates = jax.tree.map(self._interpolated, updates, momenta) if self.nesterov else momenta
            return map_tensors(self._direction, updates), optax.TraceState(momenta)

        return optax.GradientTransformation(init, update), optax.add_decayed_weights(self.weight_decay)

    def _interpolated(self, gradient, momentum):
        return self.momentum * momentum + (1 - self.momentum) * gradient

    def _direction(self, update: Float[Array, "inputs outputs"]) -> Float[Array, "inputs outputs"]:
        inputs, outputs = update.shape
        factor = max(1, outputs / inputs) ** 0.5 if self.scaling == "original" else 0.2 * max(inputs, outputs) ** 0.5
        return factor * orthogonalize(update, self.steps, self.epsilon)


def orthogonalize(matrix: Float[Array, "n m"], steps: int = 5, epsilon: float = 1e-7) -> Float[Array, "n m"]:
    """Returns an approximation of U Vᵀ, where U S Vᵀ is the singular value decomposition of `matrix`.

    A matrix with more rows than columns is transposed before the Newton-Schulz iterations. Their Gram matrix therefore
    has the smaller of both sizes.

    Args:
      steps: number of Newton-Schulz iterations.
      epsilon: minimum of the Frobenius norm by which the matrix is divided before the iterations.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / jnp.maximum(jnp.sqrt(jnp.sum(x**2)), epsilon)
    a, b, c = _COEFFICIENTS
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if is_tall else x
