"""What earlier versions wrote into config.json, in the words of this one."""

from typing import Any

# Fields that each schedule had, of whatever kind, before the kinds had fields of their own.
_OF_EVERY_SCHEDULE = {
    "rsqrt": ("decay_steps", "final_fraction", "decay_counts_warmup", "by_tokens"),
    "rsqrt_warmup": ("decay_steps", "final_fraction", "decay_counts_warmup", "by_tokens"),
    "constant": ("decay_steps", "final_fraction", "decay_counts_warmup"),
}


def migrated(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree of a run as this version writes it; `tree` stays as it is."""
    schedule = tree.get("schedule")
    if not isinstance(schedule, dict):  # Damaged: `config.from_dict` says so.
        return tree
    ignored = _OF_EVERY_SCHEDULE.get(schedule.get("kind", ""), ())
    return tree | {"schedule": {name: value for name, value in schedule.items() if name not in ignored}}
