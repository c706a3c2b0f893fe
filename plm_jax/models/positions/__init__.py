"""Position schemes, one file each, derived from `Position`.

A new scheme needs a file in this folder and an import below.
"""

from plm_jax.models.positions.block import BlockPositions
from plm_jax.models.positions.disentangled import Disentangled
from plm_jax.models.positions.learned import LearnedPositions
from plm_jax.models.positions.learned_relative_bias import LearnedRelativeBias
from plm_jax.models.positions.none import NoPositions
from plm_jax.models.positions.position import Position, SelfAttentionLayer, Table
from plm_jax.models.positions.relative_bias import RelativeBias
from plm_jax.models.positions.relative_sinusoids import RelativeSinusoids
from plm_jax.models.positions.rotary import Rotary, RotaryScaling
from plm_jax.models.positions.rotary_2d import Rotary2D
from plm_jax.models.positions.sinusoidal import SinusoidalPositions

__all__ = [
    "BlockPositions",
    "Disentangled",
    "LearnedPositions",
    "LearnedRelativeBias",
    "NoPositions",
    "Position",
    "RelativeBias",
    "RelativeSinusoids",
    "Rotary",
    "Rotary2D",
    "RotaryScaling",
    "SelfAttentionLayer",
    "SinusoidalPositions",
    "Table",
]
