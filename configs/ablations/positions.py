"""Position encodings of a GPT-2: learned, sinusoidal, T5's bias, rotary, or none.

    python -m plm_jax sweep --sweep=ablations/positions --workdir=runs/positions
    python -m plm_jax sweep --sweep=ablations/positions:demo --workdir=runs/positions-demo --seeds=0,1,2

No figures that compare these five for a GPT-2 are at hand.
"""

from plm_jax.configs import demo, gpt2
from plm_jax.configs.ablations import norm_activation
from plm_jax.configs.ablations.skeleton import unpublished
from plm_jax.models import positions

_LEARNED = {"paper": gpt2.model(*gpt2.SIZES["small"][:3]), "demo": demo.gpt2().model}
SCHEMES = {
    "learned": None,
    "sinusoidal": positions.SinusoidalPositions(),
    "relative_bias": positions.RelativeBias(),
    "rotary": positions.Rotary(),
    "none": positions.NoPositions(),
}
base, compared = norm_activation.base, norm_activation.compared


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    for name, scheme in SCHEMES.items():
        yield name, {"model.attention.position": scheme or _LEARNED[size].attention.position}


published = unpublished(SCHEMES, "not at hand")
