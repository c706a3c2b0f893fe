"""Keys and values of each head's own, of groups of heads, or of all heads together, in a GPT-2 (Ainslie et al. 2023).

    python -m plm_jax.sweep --sweep=ablations/key_value_heads --workdir=runs/key-value-heads
    python -m plm_jax.sweep --sweep=ablations/key_value_heads:demo --workdir=runs/key-value-heads-demo --seeds=0,1,2

The paper trained T5s further whose heads were merged; it has no figures of a GPT-2.
"""

from plm_jax.configs.ablations import norm_activation
from plm_jax.experiments.comparison import Published

HEADS = {
    "paper": {"multi_head": 12, "grouped": 4, "multi_query": 1},
    "demo": {"multi_head": 6, "grouped": 2, "multi_query": 1},
}
base, compared = norm_activation.base, norm_activation.compared


def overrides(size="paper"):
    """(name, changes) of each run."""
    for name, heads in HEADS[size].items():
        yield name, {"model.attention.kv_heads": heads}


def published():
    """The paper has no figures of a GPT-2."""
    source = "Ainslie et al. 2023 (arXiv:2305.13245) has no figures of a GPT-2"
    return [Published(name, {}, source) for name in HEADS["paper"]]
