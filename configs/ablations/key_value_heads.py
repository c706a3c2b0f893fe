"""A GPT-2 with keys and values for each head, for groups of heads, or shared by all heads (Ainslie et al. 2023).

    python -m plm_jax sweep --sweep=ablations/key_value_heads --workdir=runs/key-value-heads
    python -m plm_jax sweep --sweep=ablations/key_value_heads:demo --workdir=runs/key-value-heads-demo --seeds=0,1,2

The paper merges the heads of T5s and trains them further; it has no figures for a GPT-2.
"""

from plm_jax.configs.ablations import norm_activation
from plm_jax.configs.ablations.skeleton import unpublished

HEADS = {
    "paper": {"multi_head": 12, "grouped": 4, "multi_query": 1},
    "demo": {"multi_head": 6, "grouped": 2, "multi_query": 1},
}
base, compared = norm_activation.base, norm_activation.compared


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    for name, heads in HEADS[size].items():
        yield name, {"model.attention.kv_heads": heads}


published = unpublished(HEADS["paper"], "Ainslie et al. 2023 (arXiv:2305.13245) has no figures for a GPT-2")
