"""Position and kind of the norm, and the activation, in a GPT-2.

    python -m plm_jax sweep --sweep=ablations/norm_activation --workdir=runs/norm-activation
    python -m plm_jax sweep --sweep=ablations/norm_activation:demo --workdir=runs/norm-activation-demo --seeds=0,1,2

The first row is GPT-2's: LayerNorm before each sub-layer, GELU. Xiong et al. 2020 put norms before and after, Zhang and
Sennrich 2019 left the mean out, Shazeer 2020 gated the feed-forward, whose three matrices are each two thirds as wide.
None of them has figures for a GPT-2.
"""

from plm_jax import config
from plm_jax.configs import demo, gpt2
from plm_jax.configs.ablations.skeleton import by_size, unpublished

base = by_size(paper="../gpt2.py:small", demo="../demo.py:gpt2")
_WIDTHS = {"paper": 4 * gpt2.SIZES["small"].width, "demo": demo.gpt2().model.feed_forward.width}
VARIANTS = (
    "pre_layer_gelu",
    "post_layer_gelu",
    "deep_layer_gelu",
    "pre_rms_gelu",
    "pre_layer_relu",
    "pre_layer_swiglu",
)


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    for name in VARIANTS:
        placement, kind, activation = name.split("_")
        changes = {"model.norm.placement": placement, "model.norm.kind": kind}
        if activation == "swiglu":
            width = config.choose(_WIDTHS, size) * 2 // 3
            changes |= {"model.feed_forward.activation": "silu", "model.feed_forward.gated": True}
            changes |= {"model.feed_forward.width": width}
        elif activation == "relu":
            changes |= {"model.feed_forward.activation": "relu"}
        yield name, changes | ({"train.steps": 120} if size == "demo" else {})


published = unpublished(VARIANTS, "no figures of a GPT-2 were published")
compared = by_size(paper={"loss": "webtext/loss"}, demo={"loss": "sotu/loss"})
