"""What noise and which targets: pure NumPy functions `(example, rng) → example`, one file each."""

from plm_jax.objectives.causal import Causal

__all__ = ["Causal"]
