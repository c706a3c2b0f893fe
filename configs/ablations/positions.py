"""How a GPT-2 knows places: learned, sinusoidal, T5's bias, rotary, or not at all.

    python -m plm_jax sweep --sweep=ablations/positions --workdir=runs/positions
    python -m plm_jax sweep --sweep=ablations/positions:demo --workdir=runs/positions-demo --seeds=0,1,2

Figures of these five beside one another for a GPT-2 are not at hand.
"""

from plm_jax.configs import demo, gpt2
from plm_jax.configs.ablations import norm_activation
from plm_jax.experiments.comparison import Published
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
    """(name, changes) of each run."""
    for name, scheme in SCHEMES.items():
        yield name, {"model.attention.position": scheme or _LEARNED[size].attention.position}


def published():
    """Of a GPT-2 nothing is at hand."""
    return [Published(name, {}, "not at hand") for name in SCHEMES]
