"""Layers of an ALBERT that share one, two or four sets of weights, or none.

    python -m plm_jax sweep --sweep=ablations/albert_sharing --workdir=runs/albert-sharing
    python -m plm_jax sweep --sweep=ablations/albert_sharing:demo --workdir=runs/albert-sharing-demo --seeds=0,1,2

Lan et al. 2020, table 4, share all layers, no layers, only attention or only the feed-forward parts. Here whole layers
are shared within groups; the paper has figures for a single group and for one group per layer.
"""

from plm_jax.configs.ablations import albert_pairs

GROUPS = {"paper": (1, 2, 4, 12), "demo": (1, 3)}
base, compared = albert_pairs.base, albert_pairs.compared_without_pairs


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    for groups in GROUPS[size]:
        yield from albert_pairs.arm(f"groups_{groups}", {"model.stack.groups": groups}, size, demo_steps=600)


published = albert_pairs.model_table(
    "table 4 with tables 128 wide, page 7",
    "stack.groups",
    "groups",
    {1: "89.3 80.0 82.0 90.3 64.0 80.1", 2: None, 4: None, 12: "89.9 80.3 83.2 91.5 67.9 81.6"},
)
